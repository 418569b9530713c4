#include "graph/graph.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "graph/builder.h"

namespace argent {
namespace {

// "eps, group" of an ops.def row as a list.
std::vector<std::string_view> split_names(std::string_view text) {
  std::vector<std::string_view> names;
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    std::string_view name = text.substr(0, comma);
    while (!name.empty() && name.front() == ' ') name.remove_prefix(1);
    if (!name.empty()) names.push_back(name);
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return names;
}

}  // namespace

const OpInfo& info(Op op) {
  static const std::vector<OpInfo> rows = {
#define OP(name, least, most, n_out, shape, cost, in_place, ...) \
  {#name, least, most, n_out, in_place, split_names(#__VA_ARGS__)},
#include "graph/ops.def"
#undef OP
  };
  return rows[size_t(op)];
}

std::string describe(const Value& v) {
  if (v.kind == ValueKind::weight) return fmt::format("{} [{}][{}]", info(v.format).name, v.n_rows, v.width);
  if (v.kind == ValueKind::state)
    return fmt::format("kv {}x{}{}", v.kv.n_head_kv, v.kv.d_head,
                       v.kv.window ? fmt::format(" window {}", v.kv.window) : "");
  static constexpr std::string_view types[] = {"f32", "i32", "candidates"};
  static constexpr std::string_view rows[] = {"", "tokens", "outputs"};
  if (v.rows == Rows::fixed) return fmt::format("{} [{}][{}]", types[size_t(v.dtype)], v.n_rows, v.width);
  return fmt::format("{} [{}][{}]", types[size_t(v.dtype)], rows[size_t(v.rows)], v.width);
}

std::string describe(Op op, const Attrs& attrs) {
  static const Attrs defaults;
  std::string out;
  const auto& listed = info(op).attrs;
  const auto show = [&](std::string_view name, auto value, auto usual) {
    if (value == usual || std::find(listed.begin(), listed.end(), name) == listed.end()) return;
    if (!out.empty()) out += ' ';
    if constexpr (std::is_same_v<decltype(value), Activation>)
      out += fmt::format("{}={}", name, value == Activation::silu ? "silu" : "gelu");
    else
      out += fmt::format("{}={}", name, value);
  };
#define ATTR(type, name, value) show(#name, attrs.name, defaults.name);
#include "graph/attrs.def"
#undef ATTR
  return out;
}

Status verify(const Graph& graph) {
  std::vector<uint8_t> made(graph.values.size(), 0);
  for (size_t i = 0; i < graph.values.size(); ++i) made[i] = graph.values[i].kind != ValueKind::activation;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    const auto where = [&] { return fmt::format("node {} {}", n, info(node.op).name); };
    for (ValueId id : node.inputs) {
      if (id >= graph.values.size()) return fail(Code::internal, "{}: input {} does not exist", where(), id);
      if (!made[id])
        return fail(Code::internal, "{}: input {} '{}' is used before it is made", where(), id, graph.values[id].name);
    }
    auto shapes = infer(graph, node.op, node.inputs, node.attrs);
    if (!shapes) return fail(Code::internal, "{}: {}", where(), shapes.error().message);
    if (shapes->size() != node.outputs.size() || info(node.op).n_outputs != node.outputs.size())
      return fail(Code::internal, "{}: has {} outputs, wants {}", where(), node.outputs.size(), shapes->size());
    for (size_t k = 0; k < node.outputs.size(); ++k) {
      const ValueId id = node.outputs[k];
      if (id >= graph.values.size() || made[id])
        return fail(Code::internal, "{}: output {} is made twice or is no activation", where(), id);
      const Value &seen = graph.values[id], &want = (*shapes)[k];
      if (seen.dtype != want.dtype || seen.rows != want.rows || seen.width != want.width)
        return fail(Code::internal, "{}: output is {}, wants {}", where(), describe(seen), describe(want));
      made[id] = 1;
    }
  }
  for (ValueId id : {graph.logits, graph.sampled})
    if (id != kNone && (id >= graph.values.size() || !made[id]))
      return fail(Code::internal, "a result of the graph is never made");
  return {};
}

ValueId Builder::input(Input input) {
  for (ValueId id = 0; id < graph_.values.size(); ++id)
    if (graph_.values[id].kind == ValueKind::input && graph_.values[id].input == input) return id;
  static constexpr std::string_view names[] = {"tokens", "positions", "output_rows"};
  Value v;
  v.kind = ValueKind::input;
  v.dtype = DType::i32;
  v.input = input;
  v.rows = input == Input::output_rows ? Rows::outputs : Rows::tokens;
  v.width = 1;
  v.name = names[size_t(input)];
  graph_.values.push_back(v);
  return ValueId(graph_.values.size() - 1);
}

ValueId Builder::weight(std::string name, Format format, uint32_t n_rows, uint32_t width, const uint8_t* data) {
  const auto [known, fresh] = weights_.try_emplace(name, ValueId(graph_.values.size()));
  if (!fresh) return known->second;  // a tied matrix is one value
  Value v;
  v.kind = ValueKind::weight;
  v.format = format;
  v.n_rows = n_rows;
  v.width = width;
  v.data = data;
  v.name = std::move(name);
  graph_.values.push_back(std::move(v));
  return known->second;
}

ValueId Builder::kv(const KvSpec& spec) {
  Value v;
  v.kind = ValueKind::state;
  v.kv = spec;
  v.name = fmt::format("kv.{}", spec.layer);
  graph_.values.push_back(std::move(v));
  return ValueId(graph_.values.size() - 1);
}

Result<Node> make_node(Graph& graph, Op op, std::vector<ValueId> inputs, const Attrs& attrs, int32_t layer) {
  ARGENT_LET(std::vector<Value> shapes, infer(graph, op, inputs, attrs));
  Node node{op, std::move(inputs), {}, attrs, layer};
  for (Value& shape : shapes) {
    shape.name = layer < 0 ? std::string(info(op).name) : fmt::format("{}.{}", layer, info(op).name);
    graph.values.push_back(std::move(shape));
    node.outputs.push_back(ValueId(graph.values.size() - 1));
  }
  return node;
}

ValueId Builder::add_op(Op op, std::vector<ValueId> inputs, const Attrs& attrs) {
  if (error_) return 0;
  std::vector<ValueId> present;
  for (ValueId id : inputs)
    if (id != kNone) present.push_back(id);
  auto node = make_node(graph_, op, std::move(present), attrs, layer_);
  if (!node) {
    fail_with(node.error());
    return 0;
  }
  const ValueId out = node->outputs.empty() ? kNone : node->outputs[0];
  graph_.nodes.push_back(*std::move(node));
  return out;
}

ValueId Builder::rms_norm(ValueId x, ValueId w, float eps, uint32_t group) {
  const ValueId normed = add_op(Op::rms_norm, {x}, {.eps = eps, .group = group});
  return w == kNone ? normed : add_op(Op::mul_row, {normed, w});
}

ValueId Builder::rope_table(ValueId positions, ValueId factors, const Attrs& rope) {
  // Tables depend on the step alone: layers with equal parameters share one.
  for (const Node& node : graph_.nodes)
    if (node.op == Op::rope_table && node.attrs == rope && node.inputs.size() == (factors == kNone ? 1u : 2u) &&
        (factors == kNone || node.inputs[1] == factors))
      return node.outputs[0];
  return add_op(Op::rope_table, {positions, factors}, rope);
}

ValueId Builder::rope(ValueId x, ValueId table, uint32_t n_head, const Attrs& rope) {
  if (error_) return 0;
  Attrs attrs = rope;
  attrs.n_head = n_head;
  attrs.d_head = graph_.values[x].width / std::max(1u, n_head);
  return add_op(Op::rope, {x, table}, attrs);
}

void Builder::kv_store(ValueId k, ValueId v, ValueId state) {
  if (error_) return;
  const KvSpec& kv = graph_.values[state].kv;
  add_op(Op::kv_store, {k, v, state}, {.n_head_kv = kv.n_head_kv, .d_head = kv.d_head, .d_value = kv.d_value});
}

ValueId Builder::attention(ValueId q, ValueId state, uint32_t n_head, float scale, float softcap) {
  if (error_) return 0;
  const KvSpec& kv = graph_.values[state].kv;
  return add_op(Op::attention, {q, state},
                {.scale = scale,
                 .softcap = softcap,
                 .n_head = n_head,
                 .n_head_kv = kv.n_head_kv,
                 .d_head = kv.d_head,
                 .d_value = kv.d_value,
                 .window = kv.window});
}

void Builder::fail_with(Error error) {
  if (!error_) error_ = std::move(error);
}

Result<Graph> Builder::finish() {
  if (error_) return *error_;
  ARGENT_TRY(verify(graph_));
  return std::move(graph_);
}

}  // namespace argent
