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

// norm_mul(norm_mul_add(x, w, r), w2): the sum lives on for the residual stream
std::optional<Match> norm_add_norm(const Links& l, const Node& node) {
  if (node.op != Op::norm_mul) return std::nullopt;
  const Node* sum = l.made_by(node.inputs[0], Op::norm_mul_add);
  if (!sum || sum->attrs.group != node.attrs.group) return std::nullopt;
  Attrs attrs = sum->attrs;
  attrs.eps2 = node.attrs.eps;
  return Match{{l.index(sum), l.index(&node)},
               l.index(sum),
               fused_node(Op::norm_add_norm, {sum->inputs[0], sum->inputs[1], sum->inputs[2], node.inputs[1]},
                          {sum->outputs[0], node.outputs[0]}, attrs, node)};
}

// mul(x, sigmoid(g)), either way round
std::optional<Match> mul_sigmoid(const Links& l, const Node& node) {
  if (node.op != Op::mul) return std::nullopt;
  for (size_t side : {1u, 0u})
    if (const Node* gate = l.only_part(node.inputs[side], Op::sigmoid))
      return Match{{l.index(gate), l.index(&node)},
                   l.index(&node),
                   fused_node(Op::mul_sigmoid, {node.inputs[1 - side], gate->inputs[0]}, node.outputs, {}, node)};
  return std::nullopt;
}

// From qkv to the cache: [norm of the heads,] [rope,] kv_store. Stands where the last of them stood.
std::optional<Match> qkv_store(const Links& l, const Node& node) {
  if (node.op != Op::attention) return std::nullopt;
  const Node* store = nullptr;
  for (size_t n = 0; n < l.index(&node); ++n)
    if (l.graph.nodes[n].op == Op::kv_store && l.graph.nodes[n].inputs[2] == node.inputs[1]) store = &l.graph.nodes[n];
  const Node* qkv = store ? l.only_part(store->inputs[1], Op::qkv) : nullptr;
  if (!qkv || qkv->outputs[2] != store->inputs[1]) return std::nullopt;
  struct Chain {
    const Node *rope = nullptr, *norm = nullptr;
    ValueId from = kNone;
  };
  const auto chain = [&](ValueId id) {
    Chain c;
    if ((c.rope = l.only_part(id, Op::rope))) id = c.rope->inputs[0];
    if ((c.norm = l.only_part(id, Op::norm_mul))) id = c.norm->inputs[0];
    if (l.uses[id] == 1) c.from = id;
    return c;
  };
  const Chain q = chain(node.inputs[0]), k = chain(store->inputs[0]);
  const Attrs& heads = node.attrs;
  if (q.from != qkv->outputs[0] || k.from != qkv->outputs[1] || bool(q.rope) != bool(k.rope) ||
      bool(q.norm) != bool(k.norm))
    return std::nullopt;
  Match match{{l.index(qkv), l.index(store)}, 0, fused_node(Op::qkv_store, {}, {node.inputs[0]}, {}, *qkv)};
  Attrs& a = match.fused.attrs;
  a.n_head = heads.n_head, a.n_head_kv = heads.n_head_kv, a.d_head = heads.d_head, a.d_value = heads.d_value;
  std::vector<ValueId>& inputs = match.fused.inputs;
  inputs.assign(qkv->inputs.begin(), qkv->inputs.begin() + 4);
  inputs.push_back(node.inputs[1]);
  if (q.rope) {
    if (q.rope->inputs[1] != k.rope->inputs[1] || q.rope->attrs.interleaved != k.rope->attrs.interleaved)
      return std::nullopt;
    a.n_rot = q.rope->attrs.n_rot, a.interleaved = q.rope->attrs.interleaved;
    inputs.push_back(q.rope->inputs[1]);
    match.parts.push_back(l.index(q.rope)), match.parts.push_back(l.index(k.rope));
  }
  inputs.insert(inputs.end(), qkv->inputs.begin() + 4, qkv->inputs.end());
  if (q.norm) {
    if (q.norm->attrs.group != a.d_head || k.norm->attrs.group != a.d_head || q.norm->attrs.eps != k.norm->attrs.eps)
      return std::nullopt;
    a.eps = q.norm->attrs.eps;
    inputs.push_back(q.norm->inputs[1]), inputs.push_back(k.norm->inputs[1]);
    match.parts.push_back(l.index(q.norm)), match.parts.push_back(l.index(k.norm));
  }
  match.at = *std::max_element(match.parts.begin(), match.parts.end());
  return match;
}

using Pattern = std::optional<Match> (*)(const Links&, const Node&);

// In this order: later ones look for what earlier ones made.
constexpr Pattern kPatterns[] = {norm_mul, norm_mul_add, add_norm_mul, qkv, glu, norm_add_norm, mul_sigmoid, qkv_store};

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
