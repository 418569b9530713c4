// argent_metal_check: all cases of the kernels on this machine's GPU, a line each, and a summary as JSON
// (docs/metal-on-a-mac.md).
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <fstream>

#include "backends/metal/apple/metal_device.h"
#include "base/json.h"
#include "metal/cases.h"
#include "metal_apple/bench.h"

namespace {

using argent::Json;
using argent::metal::MetalDevice;

constexpr const char* kUsage =
    "argent_metal_check [WORD] [--json FILE] [--bench | --bench-small] [--from-source] [--any-gpu]\n"
    "  WORD           only cases whose name contains it\n"
    "  --json FILE    writes the summary there\n"
    "  --bench        then times products of matrices; --bench-small: sizes for an emulator\n"
    "  --from-source  compiles the kernels even where they are precompiled beside the program\n"
    "  --any-gpu      tries also GPUs before M1 and those of virtual machines\n"
    "Ends with 0 when all cases passed, 1 when one failed, 3 when there is no GPU that can be used.\n";

struct Options {
  std::string word, json;
  bool bench = false, small = false, from_source = false, any_gpu = false;
};

bool parse(int argc, char** argv, Options& options) {
  for (int i = 1; i < argc; i++) {
    const std::string argument = argv[i];
    if (argument == "--json" && i + 1 < argc) {
      options.json = argv[++i];
    } else if (argument == "--bench" || argument == "--bench-small") {
      options.bench = true;
      options.small = argument == "--bench-small";
    } else if (argument == "--from-source") {
      options.from_source = true;
    } else if (argument == "--any-gpu") {
      options.any_gpu = true;
    } else if (argument.starts_with("-") || !options.word.empty()) {
      return false;
    } else {
      options.word = argument;
    }
  }
  return true;
}

double since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Runs the cases; false when one fails, or there is none.
bool run_cases(MetalDevice& device, const Options& options, Json& summary) {
  int passed = 0;
  Json failures = Json::array(), times = Json::array();
  for (const auto& c : argent::metal::all_cases()) {
    if (c.name.find(options.word) == std::string::npos) continue;
    const auto start = std::chrono::steady_clock::now();
    const double gpu = device.counts().gpu_seconds;
    std::string wrong;
    try {
      wrong = c.run(device);
    } catch (const std::exception& error) {  // a case that gets no memory
      wrong = error.what();
    }
    times.push_back({{"case", c.name},
                     {"ok", wrong.empty()},
                     {"ms", since(start) * 1e3},
                     {"gpu_ms", (device.counts().gpu_seconds - gpu) * 1e3}});
    if (wrong.empty()) {
      passed++;
    } else {
      failures.push_back({{"case", c.name}, {"error", wrong}});
    }
    fmt::print("{}  {}{}{}\n", wrong.empty() ? "ok  " : "FAIL", c.name, wrong.empty() ? "" : ": ", wrong);
    std::fflush(stdout);
  }
  summary["passed"] = passed;
  summary["failed"] = failures.size();
  summary["failures"] = failures;
  summary["cases"] = times;
  return failures.empty() && passed > 0;
}

bool run_bench(MetalDevice& device, const Options& options, Json& summary) {
  bool good = true;
  for (const auto& r : argent::metal::run_bench(device, options.small)) {
    good &= r.error.empty();
    fmt::print("{:<22} {:<28} {}\n", r.kernel, r.shape,
               r.error.empty() ? fmt::format("{:9.1f} us {:8.1f} GB/s {:9.1f} GFLOP/s", r.microseconds,
                                             r.gigabytes_per_s, r.gigaflops_per_s)
                               : r.error);
    summary["bench"].push_back({{"kernel", r.kernel},
                                {"shape", r.shape},
                                {"us", r.microseconds},
                                {"gb_per_s", r.gigabytes_per_s},
                                {"gflop_per_s", r.gigaflops_per_s},
                                {"error", r.error}});
  }
  return good;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (!parse(argc, argv, options)) {
    std::fputs(kUsage, stderr);
    return 2;
  }
  const auto start = std::chrono::steady_clock::now();
  argent::metal::MetalOptions metal;
  metal.any_family = options.any_gpu;
  if (options.from_source) metal.metallibs.clear();
  Json summary = {{"program", "argent_metal_check"}, {"format", 1}};
  for (const auto& file : metal.kernels) summary["kernels"][file.stem] = file.hash;
  int exit_code = 0;
  {
    auto device = MetalDevice::open(metal);
    if (!device) {
      fmt::print(stderr, "argent_metal_check: {}\n", device.error().message);
      summary["error"] = device.error().message;
      exit_code = device.error().code == argent::Code::unsupported ? 3 : 1;
    } else {
      const auto info = (*device)->metal_info();
      summary["device"] = info.device;
      summary["system"] = info.system;
      summary["recommended_max_working_set"] = info.working_set;
      summary["max_buffer"] = info.max_buffer;
      summary["max_threadgroup_bytes"] = info.max_threadgroup_bytes;
      summary["residency_set"] = info.residency_set;
      if (!run_cases(**device, options, summary)) exit_code = 1;
      if (options.bench && !run_bench(**device, options, summary)) exit_code = 1;
      const auto& counts = (*device)->counts();
      summary["libraries_precompiled"] = counts.libraries_precompiled;
      summary["libraries_compiled"] = counts.libraries_compiled;
      summary["pipelines"] = counts.pipelines;
      summary["dispatches"] = counts.dispatches;
      summary["gpu_seconds"] = counts.gpu_seconds;
      fmt::print("{}, {}: {} passed, {} failed\n", info.device, info.system, summary["passed"].get<int>(),
                 summary["failed"].get<int>());
    }
  }
  summary["seconds"] = since(start);
  if (!options.json.empty()) {
    std::ofstream file(options.json);
    file << summary.dump(1) << "\n";
    if (!file.flush()) {
      fmt::print(stderr, "argent_metal_check: {} could not be written\n", options.json);
      return 5;
    }
  }
  return exit_code;
}
