// The passes, in the order in which make_plan runs them. Each takes a valid graph and leaves a valid graph.
#pragma once

#include <span>

#include "graph/plan.h"

namespace argent::passes {

// Drops what no result needs, and computes on the logits rows alone whatever only they need.
Status rows(Graph& graph, bool all_rows);
// Sets node.device: the layer's device, or another one that has the kernel; copies appear as ops. Tables of rope are
// made on each device that reads them.
Status place(Graph& graph, std::span<const KernelTable* const> devices, const PlanOptions& options);
// Replaces the patterns that the node's device has fused kernels for.
Status fuse(Graph& graph, std::span<const KernelTable* const> devices);
// Sets node.in_place where the input dies in the op.
Status alias(Graph& graph);
// Offsets of all values and scratch in one arena a device.
Status memory(Plan& plan, std::span<const KernelTable* const> devices);

// Uses of each value: how many operands read it; results of the graph count as one.
std::vector<uint32_t> count_uses(const Graph& graph);

}  // namespace argent::passes
