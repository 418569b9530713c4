// Profiled steps in the trace-event format that chrome://tracing and ui.perfetto.dev open: one track with the steps and
// the ops inside them, and one for each thread's share of the work where the backend tells it.
#pragma once

#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "engine/profile.h"

namespace argent::cli {

class Trace {
 public:
  Status open(const std::string& path);
  bool is_open() const { return file_.is_open(); }
  void add(const ProfiledStep& step);
  // io: the disk is full.
  Status write(const DevicePeaks& peaks, const std::string& device);
  // Steps that had no room: what is kept ends after two million events.
  uint64_t n_left_out() const { return n_left_out_; }

 private:
  struct Step {
    ProfiledStep step;  // without nodes
    std::vector<NodeTime> nodes;
    std::vector<uint64_t> busy;  // [node][thread]
  };
  void write_step(const Step& s, const DevicePeaks& peaks);

  std::string path_;
  std::ofstream file_;
  std::vector<Step> steps_;
  uint64_t n_events_ = 0, n_left_out_ = 0;
  uint32_t n_threads_ = 0;
};

}  // namespace argent::cli
