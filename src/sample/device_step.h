// A step's sampling as the kernels of a device read it (device_row.h): parameters, rules and histories as plain data.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/graph.h"
#include "graph/step.h"
#include "sample/device_row.h"

namespace argent::sample {

struct DeviceStep {
  std::vector<SampleRow> rows;
  std::vector<uint32_t> data;  // never empty, so that it can be bound
  bool adjusts = false;        // some row has a rule or a penalty: without, adjust in place changes nothing
};

// Packs a step that check_step accepted; `rows` says which token rows the logits have. Vectors keep their memory from
// step to step.
void pack(const Step& step, Rows rows, uint32_t n_vocab, DeviceStep& out);

}  // namespace argent::sample
