// Where the time of steps goes: by op, by layer, beside what the device could do.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "backends/backend.h"

namespace argent {

// A step as the engine saw it, with the times that the backend took.
struct ProfiledStep {
  std::shared_ptr<const Graph> graph;  // of the plan that ran
  CostContext context;
  bool decode = false;                  // one row of each sequence
  bool int8 = false;                    // products with weights of block formats are made in int8
  uint64_t begin = 0, nanoseconds = 0;  // from the start of run() to the end of wait(), after profiling began
  std::span<const NodeTime> nodes;      // valid in the call alone
};
using ProfileSink = std::function<void(const ProfiledStep&)>;

// The least time that a cost can take, and what sets it.
struct Limit {
  double seconds = 0;     // 0: the device's peaks are not known
  std::string_view name;  // "read", "int8", "f32" or ""
};
DevicePeaks better(const DevicePeaks& a, const DevicePeaks& b);  // the larger of each
Limit limit_of(const Cost& cost, const DevicePeaks& peaks, bool int8);

// What one op took in one layer, over all steps of a phase.
struct OpTime {
  uint64_t count = 0, nanoseconds = 0;
  uint64_t busy = 0, threads = 0;  // nanoseconds in which threads worked, and which they had; 0 where it is not known
  Cost cost;

  OpTime& operator+=(const OpTime& o);
  double seconds() const { return double(nanoseconds) * 1e-9; }
  // Share of the threads' time that passed in waiting for the slowest of them.
  double wait() const { return threads ? 1 - double(busy) / double(threads) : 0; }
};

// Sums of steps.
class Profile {
 public:
  struct Phase {
    uint64_t steps = 0, tokens = 0, nanoseconds = 0;
    std::map<std::pair<int32_t, Op>, OpTime> times;  // by layer (-1: outside the layers) and op
    bool int8 = false;
  };

  void add(const ProfiledStep& step);
  void clear() { prefill_ = decode_ = {}; }
  const Phase& prefill() const { return prefill_; }
  const Phase& decode() const { return decode_; }

 private:
  Phase prefill_, decode_;
};

}  // namespace argent
