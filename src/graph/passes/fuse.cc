// Fuse: the pattern table. A row names the fused op and how its parts are found around one node; every row is gated by
// the kernel table of the device. The reference of a fused op is the composition of its parts, so a pattern is right
// when replacing the parts changes no value.
#include <algorithm>
#include <optional>

#include "graph/builder.h"
#include "graph/passes/passes.h"

namespace argent::passes {
namespace {

// Who makes and who reads each value, kept while patterns are looked for.
struct Links {
  explicit Links(const Graph& g) : graph(g), maker(g.values.size(), SIZE_MAX), uses(count_uses(g)) {
    for (size_t n = 0; n < g.nodes.size(); ++n)
      for (ValueId id : g.nodes[n].outputs) maker[id] = n;
  }
  const Node* made_by(ValueId id, Op op) const {
    return maker[id] != SIZE_MAX && graph.nodes[maker[id]].op == op ? &graph.nodes[maker[id]] : nullptr;
  }
  // The node that makes this value with that op, when nobody else reads it.
  const Node* only_part(ValueId id, Op op) const { return uses[id] == 1 ? made_by(id, op) : nullptr; }
  size_t index(const Node* node) const { return size_t(node - graph.nodes.data()); }

  const Graph& graph;
  std::vector<size_t> maker;
  std::vector<uint32_t> uses;
};

// A match: the nodes that go, the one at whose place the fused node stands, and that node (its outputs are the parts').
struct Match {
  std::vector<size_t> parts;
  size_t at;
  Node fused;
};

Node fused_node(Op op, std::vector<ValueId> inputs, std::vector<ValueId> outputs, const Attrs& attrs,
                const Node& like) {
  Node node{op, std::move(inputs), std::move(outputs), attrs, like.layer};
  node.device = like.device;
  return node;
}

// mul_row(rms_norm(x), w)
std::optional<Match> norm_mul(const Links& l, const Node& node) {
  if (node.op != Op::mul_row) return std::nullopt;
  const Node* norm = l.only_part(node.inputs[0], Op::rms_norm);
  if (!norm) return std::nullopt;
  const uint32_t group = norm->attrs.group ? norm->attrs.group : l.graph.value(norm->inputs[0]).width;
  if (l.graph.value(node.inputs[1]).width != group) return std::nullopt;
  return Match{{l.index(norm), l.index(&node)},
               l.index(&node),
               fused_node(Op::norm_mul, {norm->inputs[0], node.inputs[1]}, node.outputs, norm->attrs, node)};
}

// add(r, norm_mul(x, w)), either way round
std::optional<Match> norm_mul_add(const Links& l, const Node& node) {
  if (node.op != Op::add) return std::nullopt;
  for (size_t side : {1u, 0u})
    if (const Node* norm = l.only_part(node.inputs[side], Op::norm_mul))
      return Match{{l.index(norm), l.index(&node)},
                   l.index(&node),
                   fused_node(Op::norm_mul_add, {norm->inputs[0], norm->inputs[1], node.inputs[1 - side]}, node.outputs,
                              norm->attrs, node)};
  return std::nullopt;
}

// s = add(a, b); norm_mul(s, w): s lives on for the residual stream
std::optional<Match> add_norm_mul(const Links& l, const Node& node) {
  if (node.op != Op::norm_mul) return std::nullopt;
  const Node* add = l.made_by(node.inputs[0], Op::add);
  if (!add) return std::nullopt;
  return Match{{l.index(add), l.index(&node)},
               l.index(add),
               fused_node(Op::add_norm_mul, {add->inputs[0], add->inputs[1], node.inputs[1]},
                          {add->outputs[0], node.outputs[0]}, node.attrs, node)};
}

// The projection behind a query, key or value: back through norms and rope to matmul [+ add_bias].
struct Projection {
  const Node* matmul = nullptr;
  const Node* bias = nullptr;
};
Projection projection(const Links& l, ValueId id) {
  for (int hop = 0; hop < 8 && l.maker[id] != SIZE_MAX; ++hop) {
    const Node& node = l.graph.nodes[l.maker[id]];
    if (node.op == Op::matmul) return {&node, nullptr};
    if (node.op == Op::add_bias) {
      if (const Node* matmul = l.only_part(node.inputs[0], Op::matmul)) return {matmul, &node};
      return {};
    }
    if (node.op != Op::rope && node.op != Op::norm_mul && node.op != Op::rms_norm && node.op != Op::mul_row &&
        node.op != Op::scale)
      return {};
    id = node.inputs[0];
  }
  return {};
}

// q, k and v of one layer, found from its attention and kv_store
std::optional<Match> qkv(const Links& l, const Node& node) {
  if (node.op != Op::attention) return std::nullopt;
  const size_t at = l.index(&node);
  const Node* store = nullptr;
  for (size_t n = 0; n < at; ++n)
    if (l.graph.nodes[n].op == Op::kv_store && l.graph.nodes[n].inputs[2] == node.inputs[1]) store = &l.graph.nodes[n];
  if (!store) return std::nullopt;
  const std::array<Projection, 3> p = {projection(l, node.inputs[0]), projection(l, store->inputs[0]),
                                       projection(l, store->inputs[1])};
  for (const Projection& part : p)
    if (!part.matmul || part.matmul->inputs[0] != p[0].matmul->inputs[0] || bool(part.bias) != bool(p[0].bias) ||
        part.matmul->device != p[0].matmul->device)
      return std::nullopt;
  if (p[0].matmul == p[1].matmul || p[1].matmul == p[2].matmul || p[0].matmul == p[2].matmul) return std::nullopt;
  Match match{{}, SIZE_MAX, fused_node(Op::qkv, {p[0].matmul->inputs[0]}, {}, {}, *p[0].matmul)};
  for (const Projection& part : p) {
    match.fused.inputs.push_back(part.matmul->inputs[1]);
    match.fused.outputs.push_back(part.bias ? part.bias->outputs[0] : part.matmul->outputs[0]);
    match.parts.push_back(l.index(part.matmul));
    match.at = std::min(match.at, l.index(part.matmul));
    if (part.bias) match.parts.push_back(l.index(part.bias));
  }
  if (p[0].bias)
    for (const Projection& part : p) match.fused.inputs.push_back(part.bias->inputs[1]);
  return match;
}

// mul(act(matmul(x, gate)), matmul(x, up)), either way round
std::optional<Match> glu(const Links& l, const Node& node) {
  if (node.op != Op::mul) return std::nullopt;
  for (size_t side : {0u, 1u}) {
    const Node* act = l.only_part(node.inputs[side], Op::silu);
    if (!act) act = l.only_part(node.inputs[side], Op::gelu);
    const Node* up = l.only_part(node.inputs[1 - side], Op::matmul);
    const Node* gate = act ? l.only_part(act->inputs[0], Op::matmul) : nullptr;
    if (!gate || !up || gate->inputs[0] != up->inputs[0]) continue;
    const Attrs attrs{.act = act->op == Op::silu ? Activation::silu : Activation::gelu};
    return Match{{l.index(gate), l.index(act), l.index(up), l.index(&node)},
                 l.index(&node),
                 fused_node(Op::glu, {gate->inputs[0], gate->inputs[1], up->inputs[1]}, node.outputs, attrs, node)};
  }
  return std::nullopt;
}

using Pattern = std::optional<Match> (*)(const Links&, const Node&);

// In this order: later ones look for what earlier ones made.
constexpr Pattern kPatterns[] = {norm_mul, norm_mul_add, add_norm_mul, qkv, glu};

Status apply(Graph& graph, Pattern pattern, std::span<const KernelTable* const> devices) {
  const Links links(graph);
  std::vector<uint8_t> gone(graph.nodes.size(), 0);
  std::vector<std::optional<Node>> replacement(graph.nodes.size());
  bool any = false;
  for (const Node& node : graph.nodes) {
    auto match = pattern(links, node);
    if (!match) continue;
    const bool free = std::none_of(match->parts.begin(), match->parts.end(), [&](size_t n) { return gone[n]; });
    const bool one_device = std::all_of(match->parts.begin(), match->parts.end(),
                                        [&](size_t n) { return graph.nodes[n].device == match->fused.device; });
    const KernelTable& device = *devices[match->fused.device];
    if (!free || !one_device || !infer(graph, match->fused.op, match->fused.inputs, match->fused.attrs) ||
        !device.find(graph, match->fused).available || !device.wants_fused(match->fused.op))
      continue;
    for (size_t n : match->parts) gone[n] = 1;
    replacement[match->at] = std::move(match->fused);
    any = true;
  }
  if (!any) return {};
  std::vector<Node> nodes;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    if (replacement[n])
      nodes.push_back(*std::move(replacement[n]));
    else if (!gone[n])
      nodes.push_back(std::move(graph.nodes[n]));
  }
  graph.nodes = std::move(nodes);
  return {};
}

}  // namespace

Status fuse(Graph& graph, std::span<const KernelTable* const> devices) {
  for (Pattern pattern : kPatterns) ARGENT_TRY(apply(graph, pattern, devices));
  return {};
}

}  // namespace argent::passes
