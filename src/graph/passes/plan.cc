// Plan: runs the passes in their order over a copy of the model's graph.
#include "graph/plan.h"

#include <algorithm>

#include "graph/builder.h"
#include "graph/kv_layout.h"
#include "graph/passes/passes.h"

namespace argent {
namespace {

// Ends the graph before the matrix that makes the logits.
Status cut_head(Graph& graph) {
  for (size_t n = graph.nodes.size(); n-- > 0;) {
    if (graph.nodes[n].op != Op::matmul) continue;
    graph.logits = graph.nodes[n].inputs[0];
    graph.nodes.resize(n);
    return {};
  }
  return fail(Code::unsupported, "the model has no head to take hidden states before");
}

// The sampling ops behind the logits, as one plan wants them.
Status append_tail(Graph& graph, Tail tail) {
  if (tail == Tail::logits) return {};
  if (tail == Tail::hidden) return cut_head(graph);
  ValueId at = graph.logits;
  ValueId adjusted = kNone;
  const auto chain = tail == Tail::greedy
                         ? std::vector<Op>{Op::argmax}
                         : std::vector<Op>{Op::adjust, Op::top_k, Op::top_p, Op::min_p, Op::temperature, Op::draw};
  for (Op op : chain) {
    ARGENT_LET(Node node, make_node(graph, op, {at}, {}, -1));
    at = node.outputs[0];
    if (op == Op::adjust) adjusted = at;
    graph.nodes.push_back(std::move(node));
  }
  graph.sampled = at;
  graph.logits = tail == Tail::sample_logits ? adjusted : kNone;  // the model's own are read once: adjusted in place
  return {};
}

uint32_t rung(uint32_t n, uint32_t most) {
  for (uint32_t r : {1u, 8u, 64u})
    if (n <= r && r < most) return r;
  return std::max(most, n);
}

}  // namespace

PlanKey plan_key(uint32_t n_tokens, uint32_t n_outputs, uint32_t max_tokens, uint32_t max_outputs, Tail tail) {
  const bool all_rows = n_tokens == n_outputs;
  const uint32_t tokens = rung(n_tokens, all_rows ? max_outputs : max_tokens);
  return {tokens, all_rows ? tokens : rung(n_outputs, max_outputs), all_rows, tail};
}

Result<Plan> make_plan(const Graph& model, const PlanKey& key, std::span<const KernelTable* const> devices,
                       const PlanOptions& options) {
  Plan plan;
  plan.key = key;
  plan.graph = model;
  for (const KernelTable* device : devices) plan.devices.push_back(device->device_name());
  ARGENT_TRY(append_tail(plan.graph, key.tail));
  if (options.stop_after == Stage::built) return plan;
  ARGENT_TRY(passes::rows(plan.graph, key.all_rows));
  if (options.stop_after == Stage::rows) return plan;
  ARGENT_TRY(passes::place(plan.graph, devices, options));
  if (options.stop_after == Stage::placed) return plan;
  if (options.fuse) ARGENT_TRY(passes::fuse(plan.graph, devices));
  if (options.stop_after == Stage::fused) return plan;
  ARGENT_TRY(passes::alias(plan.graph));
  if (options.stop_after == Stage::aliased) return plan;
  ARGENT_TRY(passes::memory(plan, devices));
  ARGENT_TRY(verify(plan.graph));
  return plan;
}

}  // namespace argent
