// Rows: only what reaches the KV cache needs every token; the rest runs on the rows that want logits.
#include <unordered_map>

#include "graph/builder.h"
#include "graph/passes/passes.h"

namespace argent::passes {
namespace {

enum Demand : uint8_t { kNothing, kOutputs, kTokens };

bool reads_input(const Graph& graph, const Node& node) {
  for (ValueId id : node.inputs)
    if (graph.values[id].kind == ValueKind::input) return true;
  return false;
}

}  // namespace

Status rows(Graph& graph, bool all_rows) {
  std::vector<Demand> demand(graph.values.size(), kNothing);
  const Demand results = all_rows ? kTokens : kOutputs;
  for (ValueId id : {graph.logits, graph.sampled})
    if (id != kNone) demand[id] = results;

  // Backwards: what a node must compute is the most that anyone wants of it.
  std::vector<Demand> wanted(graph.nodes.size(), kNothing);
  for (size_t n = graph.nodes.size(); n-- > 0;) {
    const Node& node = graph.nodes[n];
    Demand most = node.op == Op::kv_store || node.op == Op::qkv_store ? kTokens : kNothing;
    for (ValueId id : node.outputs) most = std::max(most, demand[id]);
    if (most != kNothing && reads_input(graph, node)) most = kTokens;  // the step's inputs come a token at a time
    wanted[n] = most;
    for (ValueId id : node.inputs) demand[id] = std::max(demand[id], most);
  }

  Graph out;
  out.values = graph.values;
  out.logits = graph.logits;
  out.sampled = graph.sampled;
  std::unordered_map<ValueId, ValueId> gathered;
  ValueId output_rows = kNone;
  // Replaces an activation that has a row for every token by those of its rows that want logits.
  const auto gather = [&](ValueId& id, int32_t layer) -> Status {
    if (out.values[id].kind != ValueKind::activation || out.values[id].rows != Rows::tokens) return {};
    if (const auto it = gathered.find(id); it != gathered.end()) {
      id = it->second;
      return {};
    }
    if (output_rows == kNone) {
      Value v;
      v.kind = ValueKind::input;
      v.dtype = DType::i32;
      v.input = Input::output_rows;
      v.rows = Rows::outputs;
      v.width = 1;
      v.name = "output_rows";
      out.values.push_back(v);
      output_rows = ValueId(out.values.size() - 1);
    }
    ARGENT_LET(Node node, make_node(out, Op::gather_rows, {id, output_rows}, {}, layer));
    gathered[id] = node.outputs[0];
    id = node.outputs[0];
    out.nodes.push_back(std::move(node));
    return {};
  };
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    if (wanted[n] == kNothing) continue;
    Node node = graph.nodes[n];
    if (wanted[n] == kOutputs) {
      for (ValueId& id : node.inputs) ARGENT_TRY(gather(id, node.layer));
      for (ValueId id : node.outputs) out.values[id].rows = Rows::outputs;
    }
    out.nodes.push_back(std::move(node));
  }
  if (!all_rows && out.logits != kNone) ARGENT_TRY(gather(out.logits, -1));  // made for every token all the same
  graph = std::move(out);
  return {};
}

std::vector<uint32_t> count_uses(const Graph& graph) {
  std::vector<uint32_t> uses(graph.values.size(), 0);
  for (const Node& node : graph.nodes)
    for (ValueId id : node.inputs) ++uses[id];
  for (ValueId id : {graph.logits, graph.sampled})
    if (id != kNone) ++uses[id];
  return uses;
}

}  // namespace argent::passes
