// From what dispatches do (work.h) to what a step may take on an Apple GPU: predictions, since nothing here has run on
// one. docs/metal-predictions.md says how the model works and where its constants come from.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "metal/recording_device.h"

namespace argent::metal {

// A GPU. "assumed": no published measurement was found.
struct GpuDescription {
  std::string_view name, description;
  double bandwidth;   // bytes a second, as Apple states it
  double read_share;  // of it that reads reach
  uint32_t cores;
  double f32_flops;       // of all cores; halves are no faster
  double matrix_share;    // of it that simdgroup_matrix reaches in products of large matrices
  double cache_bytes;     // system level cache
  double core_link;       // bytes a cycle between a core and the memory system
  double core_l1;         // bytes a cycle that lanes get from the first-level cache
  double core_shared;     // bytes a cycle of threadgroup memory
  uint32_t core_threads;  // that a core holds at once
  uint32_t core_threadgroup_bytes;
  uint32_t core_simdgroups;  // that keep a core's arithmetic busy
  double latency;            // seconds from a load to its value
  double launch;             // seconds of a dispatch beside others
  double barrier;            // seconds more where it waits for those before
  double submit;             // seconds from a step's end to the next one's start

  double lanes() const { return f32_flops / 2; }              // instructions a second of all lanes
  double clock() const { return lanes() / (128.0 * cores); }  // 128 lanes a core
};
std::span<const GpuDescription> gpus();

// What holds a dispatch up.
enum class Limit : uint8_t { memory, link, l1, threadgroup, arithmetic, latency };
std::string_view name_of(Limit limit);

struct DispatchTime {
  double seconds = 0;   // alone on the GPU, without launch
  double bytes = 0;     // from and to memory
  double busy[5] = {};  // seconds of each resource, were all cores at it; in the order of Limit
  Limit limit = Limit::memory;
  uint32_t slots = 1;  // threadgroups that the GPU holds at once
};
DispatchTime dispatch_time(const DispatchWork& work, const GpuDescription& gpu);

struct FamilyTime {
  std::string family;
  uint32_t dispatches = 0;
  double seconds = 0;  // its share of the levels that it is in, launches and barriers left out
  double bytes = 0, flops = 0;
  double threadgroups_per_core = 0;  // mean over its dispatches
  double occupancy = 0;              // mean share of the slots that its threadgroups fill
  Limit limit = Limit::memory;       // of its longest dispatch
};
struct Prediction {
  double seconds = 0;  // of the step, all that follows included
  double launches = 0, barriers = 0, submit = 0;
  double bytes = 0;
  uint32_t dispatches = 0, levels = 0;
  std::vector<FamilyTime> families;  // the longest first
};
Prediction predict(const RecordedList& list, const GpuDescription& gpu);

}  // namespace argent::metal
