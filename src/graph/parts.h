// A graph over several devices, and what of it is each one's. Ids of values stay those of the whole.
#pragma once

#include <array>

#include "graph/plan.h"

namespace argent {

// The device of each node, as options.layer_device and front_device say: before the first node of a layer stands the
// front. A table of rope goes where it is read first.
std::vector<uint8_t> node_devices(const Graph& graph, const PlanOptions& options);

// What a device computes of a model: its nodes, and the tables of rope that they read. Weights and caches that it does
// not use are empty values.
Graph device_part(const Graph& model, const PlanOptions& options, uint8_t device);

struct PlanPart {
  Plan plan;
  std::vector<uint32_t> nodes;  // the whole plan's, by node of this one
};

// Cuts a plan over two devices where the first hands the second a value, once: the first part gives its rows as hidden
// states (Tail::hidden, of every row or of those that want logits, as the value has them), the second begins with
// them, Input::hidden. internal: a plan that goes over otherwise.
Result<std::array<PlanPart, 2>> cut(const Plan& whole);

}  // namespace argent
