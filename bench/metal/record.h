// The command list of a step behind any number of positions, as the Metal backend records it.
#pragma once

#include "graph/graph.h"
#include "metal/recording_device.h"

namespace argent::metal {

struct StepToRecord {
  uint32_t depth = 0, rows = 1;
  bool decode = true;        // rows that draw a token, which the step before has left on the device
  std::string without = {};  // as ARGENT_METAL_WITHOUT
  bool runs = false;         // in the emulator, with a prompt that fills the cache first
};
// recording.lists.back() is the step's.
Status record_step(const Graph& graph, const StepToRecord& step, Recording& recording);

}  // namespace argent::metal
