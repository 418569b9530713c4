// Alias: an op takes over the storage of its in-place input when nothing reads that input afterwards.
#include "graph/passes/passes.h"

namespace argent::passes {

Status alias(Graph& graph) {
  std::vector<size_t> last_use(graph.values.size(), 0);
  for (size_t n = 0; n < graph.nodes.size(); ++n)
    for (ValueId id : graph.nodes[n].inputs) last_use[id] = n;
  for (ValueId id : {graph.logits, graph.sampled})
    if (id != kNone) last_use[id] = graph.nodes.size();

  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    Node& node = graph.nodes[n];
    const int k = info(node.op).in_place;
    node.in_place = false;
    if (k < 0) continue;
    const ValueId id = node.inputs[size_t(k)];
    const Value &in = graph.values[id], &out = graph.values[node.outputs[0]];
    size_t readers = 0;  // the op itself may read it once only: add(x, x) stays out of place
    for (ValueId other : node.inputs) readers += other == id;
    node.in_place = in.kind == ValueKind::activation && last_use[id] == n && readers == 1 && in.rows == out.rows &&
                    in.width == out.width && in.dtype == out.dtype;
  }
  return {};
}

}  // namespace argent::passes
