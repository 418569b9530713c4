// --profile: where the time of a run went, by op and by layer, beside what the device could do; and every op of every
// step as a Chrome trace.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "base/json.h"
#include "cli/profile_trace.h"
#include "engine/engine.h"

namespace argent::cli {

struct ProfileOptions {
  bool wanted = false, layers = false;  // --profile, --profile-layers
  std::string trace;                    // --profile-trace
  void add(CLI::App& app);
  bool on() const { return wanted || layers || !trace.empty(); }
};

// What of a profile is printed: tables with `all_layers`, or a summary of the layers and the slowest of them. Ends with
// a newline; "" when nothing ran.
std::string profile_text(const Profile& profile, const DevicePeaks& peaks, bool all_layers);
// {"peaks": {...}, "phases": [{"phase", "steps", "tokens", "seconds", "ops": [...], "layers": [...]}]}; rates and
// shares are per second and of 1. docs/performance.md explains the fields.
nlohmann::ordered_json peaks_json(const DevicePeaks& peaks);
nlohmann::ordered_json profile_json(const Profile& profile, const DevicePeaks& peaks);

// Profiles an engine's steps from start() until it goes. Without options that want it, does nothing.
class Profiler {
 public:
  Profiler() = default;
  Profiler(const Profiler&) = delete;
  ~Profiler();
  // io: the trace can not be written.
  Status start(Engine& engine, const ProfileOptions& options);
  bool on() const { return engine_ != nullptr; }
  void clear() { profile_.clear(); }  // the trace keeps its steps

  // The device's peaks are the better of what it did before the run and when the first of these was called.
  void print();
  nlohmann::ordered_json json() { return profile_json(profile_, peaks()); }
  // Writes the trace, where one was asked for. io: the disk is full.
  Status finish();

 private:
  const DevicePeaks& peaks();

  Engine* engine_ = nullptr;
  ProfileOptions options_;
  Profile profile_;
  Trace trace_;
  DevicePeaks peaks_;  // before the run, then the better
  bool settled_ = false;
};

}  // namespace argent::cli
