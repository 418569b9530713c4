// Memory: liveness, then one arena a device. Large values choose first; each takes the lowest gap that no value alive
// at the same time covers. The sum is known before anything is allocated.
#include <algorithm>

#include "base/checked.h"
#include "graph/passes/passes.h"
#include "graph/storage.h"

namespace argent::passes {
namespace {

constexpr uint64_t kAlign = 64;  // a cache line, and the widest vector load

struct Interval {
  size_t first, last;  // nodes
  uint64_t bytes;
  uint8_t device;
  uint64_t offset = 0;
};

}  // namespace

Status memory(Plan& plan, std::span<const KernelTable* const> devices) {
  const Graph& graph = plan.graph;
  std::vector<size_t> storage(graph.values.size(), SIZE_MAX);  // value -> interval; in-place outputs join their input's
  std::vector<size_t> scratch(graph.nodes.size(), SIZE_MAX);
  std::vector<Interval> intervals;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    for (ValueId id : node.inputs)
      if (storage[id] != SIZE_MAX) intervals[storage[id]].last = n;
    for (size_t k = 0; k < node.outputs.size(); ++k) {
      const ValueId id = node.outputs[k];
      const Value& v = graph.values[id];
      if (k == 0 && node.in_place) {
        storage[id] = storage[node.inputs[size_t(info(node.op).in_place)]];
        continue;
      }
      storage[id] = intervals.size();
      intervals.push_back({n, n, align_up(activation_row_bytes(v) * plan.max_rows(v.rows), kAlign), node.device});
    }
    uint32_t n_rows = plan.key.n_outputs;
    for (ValueId id : node.inputs)
      if (graph.values[id].rows == Rows::tokens) n_rows = plan.key.n_tokens;
    if (const uint64_t bytes = devices[node.device]->workspace(graph, node, n_rows)) {
      scratch[n] = intervals.size();
      intervals.push_back({n, n, align_up(bytes, kAlign), node.device});
    }
  }
  for (ValueId id : {graph.logits, graph.sampled})
    if (id != kNone && storage[id] != SIZE_MAX) intervals[storage[id]].last = graph.nodes.size();

  std::vector<size_t> order(intervals.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return intervals[a].bytes > intervals[b].bytes; });
  plan.arena_bytes.assign(devices.size(), 0);
  std::vector<const Interval*> placed, alive;
  for (size_t i : order) {
    Interval& me = intervals[i];
    alive.clear();
    for (const Interval* other : placed)
      if (other->device == me.device && other->first <= me.last && me.first <= other->last) alive.push_back(other);
    std::sort(alive.begin(), alive.end(), [](const Interval* a, const Interval* b) { return a->offset < b->offset; });
    for (const Interval* other : alive) {
      if (me.offset + me.bytes <= other->offset) break;
      me.offset = std::max(me.offset, other->offset + other->bytes);
    }
    placed.push_back(&me);
    plan.arena_bytes[me.device] = std::max(plan.arena_bytes[me.device], me.offset + me.bytes);
  }

  plan.offset.assign(graph.values.size(), Plan::kNoOffset);
  for (size_t id = 0; id < graph.values.size(); ++id)
    if (storage[id] != SIZE_MAX) plan.offset[id] = intervals[storage[id]].offset;
  plan.workspace.assign(graph.nodes.size(), Plan::kNoOffset);
  for (size_t n = 0; n < graph.nodes.size(); ++n)
    if (scratch[n] != SIZE_MAX) plan.workspace[n] = intervals[scratch[n]].offset;
  return {};
}

}  // namespace argent::passes
