#include "metal/work_model.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace argent::metal {
namespace {

constexpr double kGiga = 1e9, kTera = 1e12, kMicro = 1e-6;
constexpr uint32_t kMostGroups = 24;  // of a core; SIMD-groups of 1024 threads limit most kernels before

// Sources, by number, in docs/metal-predictions.md.
constexpr GpuDescription kGpus[] = {
    {.name = "m4-pro",
     .description = "M4 Pro, 20 cores",
     .bandwidth = 273 * kGiga,             // [1]
     .read_share = 0.89,                   // [2] 243.7 of 273 measured on this machine
     .cores = 20,                          // [1]
     .f32_flops = 9.2 * kTera,             // [3]
     .matrix_share = 0.80,                 // [4] measured on an M4 Max
     .cache_bytes = 24 * 1048576.0,        // [5]
     .core_link = 32,                      // [6] of M1 and M2
     .core_l1 = 64,                        // assumed
     .core_shared = 64,                    // assumed
     .core_threads = 1024,                 // [6] with up to 104 registers a thread
     .core_threadgroup_bytes = 64 * 1024,  // [6]
     .core_simdgroups = 8,                 // assumed: two for each of a core's four schedulers
     .latency = 0.4 * kMicro,              // assumed
     .launch = 0.5 * kMicro,               // [7]
     .barrier = 0.8 * kMicro,              // [7] 1.3 serial less 0.5 concurrent
     .submit = 60 * kMicro},               // assumed
    {.name = "m4-max",
     .description = "M4 Max, 40 cores",
     .bandwidth = 546 * kGiga,
     .read_share = 0.89,
     .cores = 40,
     .f32_flops = 18.4 * kTera,
     .matrix_share = 0.80,
     .cache_bytes = 48 * 1048576.0,  // [5]
     .core_link = 32,
     .core_l1 = 64,
     .core_shared = 64,
     .core_threads = 1024,
     .core_threadgroup_bytes = 64 * 1024,
     .core_simdgroups = 8,
     .latency = 0.4 * kMicro,
     .launch = 0.5 * kMicro,
     .barrier = 0.8 * kMicro,
     .submit = 60 * kMicro},
};

// What a matrix of 8 x 8 by another costs, in floating point operations.
constexpr double kMatrixFlops = 2.0 * 8 * 8 * 8;

}  // namespace

std::span<const GpuDescription> gpus() { return kGpus; }

std::string_view name_of(Limit limit) {
  constexpr std::string_view kNames[] = {"memory", "link", "L1", "threadgroup", "arithmetic", "latency"};
  return kNames[size_t(limit)];
}

DispatchTime dispatch_time(const DispatchWork& work, const GpuDescription& gpu) {
  DispatchTime t;
  // A pass finds in the cache what the one before has left there, where it fits beside other things.
  const bool stays = work.weights < gpu.cache_bytes / 2;
  t.bytes = work.weights * (stays || work.together ? 1 : work.passes) + work.cache;
  if (work.activations > gpu.cache_bytes / 2) t.bytes += work.activations;
  const double through_links = work.weights * work.passes + work.cache + work.activations;
  const double clock = gpu.clock();
  // Of one core, or of the memory, in units of what a threadgroup does.
  const double groups = double(std::max<uint64_t>(work.threadgroups, 1));
  const double asked = (work.loaded + work.stored) / groups;
  // Matrix operations run on the same lanes as all else [8].
  const double instructions = work.operations + work.matrix * kMatrixFlops / 2 / gpu.matrix_share;

  const uint32_t simdgroups = std::max(1u, work.threads / kSimdWidth);
  uint32_t of_core = std::clamp(gpu.core_threads / std::max(1u, work.threads), 1u, kMostGroups);
  if (work.threadgroup_bytes) of_core = std::clamp(gpu.core_threadgroup_bytes / work.threadgroup_bytes, 1u, of_core);
  t.slots = of_core * gpu.cores;

  // Threadgroups run in waves that fill the GPU; the last one may not.
  double longest = 0;
  const auto wave = [&](double n, double times) {
    if (n == 0) return;
    const double active = std::min<double>(n, gpu.cores), of_each = std::ceil(n / active);  // a core has whole ones
    const double hidden = std::min(1.0, of_each * simdgroups / gpu.core_simdgroups);
    const double seconds[] = {
        n * t.bytes / groups / (gpu.bandwidth * gpu.read_share),
        of_each * through_links / groups / (gpu.core_link * clock),
        of_each * asked / (gpu.core_l1 * clock),
        of_each * work.shared / groups / (gpu.core_shared * clock),
        of_each * instructions / groups / (128 * clock * hidden),
        work.trips * gpu.latency,
    };
    const double* most = std::max_element(std::begin(seconds), std::end(seconds));
    t.seconds += times * *most;
    if (times * *most > longest) {
      longest = times * *most;
      t.limit = Limit(most - seconds);
    }
  };
  const double full = std::floor(groups / t.slots);
  wave(t.slots, full);
  wave(groups - full * t.slots, 1);

  t.busy[0] = t.bytes / (gpu.bandwidth * gpu.read_share);
  t.busy[1] = through_links / (gpu.core_link * clock * gpu.cores);
  t.busy[2] = groups * asked / (gpu.core_l1 * clock * gpu.cores);
  t.busy[3] = work.shared / (gpu.core_shared * clock * gpu.cores);
  t.busy[4] = instructions / gpu.lanes();
  return t;
}

Prediction predict(const RecordedList& list, const GpuDescription& gpu) {
  Prediction p;
  std::map<std::string, FamilyTime> families;
  std::map<std::string, double> longest;
  for (size_t begin = 0; begin < list.size();) {
    size_t end = begin + 1;
    while (end < list.size() && !list[end].barrier) ++end;
    // Dispatches of a level overlap: together they take what the longest or the busiest resource takes.
    double level = 0, alone = 0, busy[5] = {};
    std::vector<DispatchTime> times;
    for (size_t i = begin; i < end; ++i) {
      times.push_back(dispatch_time(list[i].work, gpu));
      level = std::max(level, times.back().seconds);
      alone += times.back().seconds;
      for (size_t k = 0; k < std::size(busy); ++k) busy[k] += times.back().busy[k];
    }
    level = std::max(level, *std::max_element(std::begin(busy), std::end(busy)));
    for (size_t i = begin; i < end; ++i) {
      const DispatchWork& work = list[i].work;
      const DispatchTime& t = times[i - begin];
      FamilyTime& f = families[work.family];
      f.family = work.family;
      f.dispatches++;
      f.seconds += alone > 0 ? level * t.seconds / alone : 0;
      f.bytes += t.bytes;
      f.flops += 2 * work.operations + work.matrix * kMatrixFlops;
      f.threadgroups_per_core += double(work.threadgroups) / gpu.cores;
      f.occupancy += std::min(1.0, double(work.threadgroups) / t.slots);
      if (t.seconds > longest[work.family]) {
        longest[work.family] = t.seconds;
        f.limit = t.limit;
      }
      p.bytes += t.bytes;
    }
    p.seconds += level;
    p.launches += double(end - begin) * gpu.launch;
    p.barriers += gpu.barrier;
    p.dispatches += uint32_t(end - begin);
    p.levels++;
    begin = end;
  }
  p.submit = gpu.submit;
  p.seconds += p.launches + p.barriers + p.submit;
  for (auto& [name, f] : families) {
    f.threadgroups_per_core /= f.dispatches;
    f.occupancy /= f.dispatches;
    p.families.push_back(f);
  }
  std::sort(p.families.begin(), p.families.end(), [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
  return p;
}

}  // namespace argent::metal
