// What the families of measurements share: the machine and its peaks, which cases are wanted, timing, and the report. A
// family is one file with one function that offers its cases; main.cc lists them.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <regex>
#include <string>
#include <string_view>
#include <vector>

#include "backends/cpu/matmul.h"
#include "backends/cpu/peaks.h"
#include "base/huge_pages.h"
#include "base/result.h"
#include "base/rng.h"
#include "base/thread_pool.h"

namespace argent::bench {

// What a run of a case moves and computes; a multiplication and an addition are two operations.
struct Work {
  double bytes = 0;
  bool from_memory = false;  // bytes that no cache holds: their rate is shown as a share of the read peak
  double ops = 0;
  enum class Peak { none, int8, f32 } peak = Peak::none;
};

struct Options {
  bool all = false, list = false, json = false, processor_time = false;
  std::optional<std::regex> filter;  // of all cases, not only the usual ones
  double seconds = 0.05;             // of a case
};

class Bench {
 public:
  Bench(const Options& options, ThreadPool& pool, cpu::Isa isa, std::string isa_name)
      : options_(options), pool_(pool), isa_(isa), isa_name_(std::move(isa_name)) {}

  ThreadPool& pool() { return pool_; }
  cpu::Isa isa() const { return isa_; }
  const std::string& isa_name() const { return isa_name_; }
  const DevicePeaks& peaks() const { return peaks_; }
  uint32_t n_wanted() const { return n_wanted_; }
  uint32_t n_failed() const { return n_failed_; }

  // Whether a case is to be measured; usual ones make up the plain run. With --list it is printed instead. Measures the
  // peaks before the first case and again every few seconds: the memory of a machine that others use changes its speed.
  bool wants(const std::string& name, bool usual);
  // Seconds of the shortest of as many runs as fit the budget, at least one; what the first run warms up is not timed.
  double time(const std::function<void()>& body) const { return time(options_.seconds, body); }
  double time(double budget, const std::function<void()>& body) const;
  void report(const std::string& name, double seconds, const Work& work);
  void failed(const std::string& name, const Error& error);  // in place of a report
  // Ends the program: nothing can be measured without memory.
  HugePages memory(uint64_t bytes) const;

 private:
  void measure_peaks();
  double now() const;

  const Options& options_;
  ThreadPool& pool_;
  const cpu::Isa isa_;
  const std::string isa_name_;
  DevicePeaks peaks_;
  std::optional<std::chrono::steady_clock::time_point> measured_;
  uint32_t n_wanted_ = 0, n_failed_ = 0;  // cases
};

inline std::vector<float> random_floats(uint64_t n, float scale = 1.0f, uint64_t seed = 1) {
  Rng rng(seed);
  std::vector<float> x(n);
  for (float& v : x) v = float(int32_t(rng.next() >> 32)) * 0x1p-31f * scale;
  return x;
}

// Public shapes of the models that figures are given for.
struct ModelShape {
  std::string_view name;
  uint32_t n_embd, n_ff, n_head, n_head_kv, d_head, n_vocab, window;  // window 0: no sliding layers
};
inline constexpr ModelShape kModels[] = {
    {"smollm2-135m", 576, 1536, 9, 3, 64, 49152, 0},    {"gemma3-270m", 640, 2048, 4, 1, 256, 262144, 512},
    {"qwen2.5-0.5b", 896, 4864, 14, 2, 64, 151936, 0},  {"qwen3-0.6b", 1024, 3072, 16, 8, 128, 151936, 0},
    {"qwen2.5-7b", 3584, 18944, 28, 4, 128, 152064, 0},
};

// The families.
void matmul(Bench& bench);
void attention(Bench& bench);
void vector(Bench& bench);
void sample(Bench& bench);
void pool(Bench& bench);

}  // namespace argent::bench
