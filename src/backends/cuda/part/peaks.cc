#include "backends/cuda/part/peaks.h"

#include <algorithm>
#include <functional>

#include "backends/cuda/part/kernels/peaks.h"

namespace argent::cuda {
namespace {

constexpr uint64_t kMostBytes = 1 << 30, kLeastBytes = 256 << 20;  // read at once: an H200's L2 cache has 50 MiB
constexpr int kRuns = 6;                                           // the first brings clocks and caches to work
constexpr uint32_t kRounds = 4000;                                 // 2.5 ms of int8 on an H200, 6 ms on an A100

// The shortest of some runs, in seconds; 0: it could not be measured.
double best_time(Device& device, const std::function<void(Launch&)>& run) {
  const auto begin = Event::make(device, true), end = Event::make(device, true);
  if (!begin || !end) return 0;
  float best = 0;  // milliseconds
  for (int i = 0; i < kRuns; ++i) {
    Launch launch(device.stream(), {.dependent = false});
    const Status started = begin->record(device);
    run(launch);
    float ms = 0;
    if (!started || !device.check(launch) || !end->record(device) || !device.wait(end->get()) ||
        !device.check(cudaEventElapsedTime(&ms, begin->get(), end->get()), "cudaEventElapsedTime"))
      return 0;
    if (i == 1 || (i > 1 && ms < best)) best = ms;
  }
  return 1e-3 * double(best);
}

double read_rate(Device& device, uint32_t* sink) {
  const uint64_t bytes = std::min(kMostBytes, device.memory_free() / 2 / kLeastBytes * kLeastBytes);
  if (bytes == 0) return 0;
  const auto memory = Memory::of_device(device, bytes, "measurement of its bandwidth");
  if (!memory) return 0;
  const double seconds = best_time(device, [&](Launch& launch) { read_all(launch, memory->data(), bytes, sink); });
  return seconds > 0 ? double(bytes) / seconds : 0;
}

double product_rate(Device& device, Factors factors, uint32_t* sink) {
  uint64_t n = 0;
  const double seconds = best_time(device, [&](Launch& launch) { n = multiply_all(launch, factors, kRounds, sink); });
  return seconds > 0 ? double(n) / seconds : 0;
}

}  // namespace

DevicePeaks measure_peaks(Device& device) {
  const auto memory = Memory::of_device(device, 4, "measurement of its speed");
  if (!memory) return {};
  uint32_t* const sink = reinterpret_cast<uint32_t*>(memory->data());
  return {read_rate(device, sink), product_rate(device, Factors::int8, sink),
          product_rate(device, Factors::half, sink)};
}

}  // namespace argent::cuda
