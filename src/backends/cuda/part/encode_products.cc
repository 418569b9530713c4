// Products with weights, rows of weights, and the way to and from the cache.
#include "backends/cuda/part/encode_ops.h"
#include "base/checked.h"

namespace argent::cuda {
namespace {

constexpr uint64_t kAlignment = 256;  // of parts of a node's scratch

Matrix shape_of(const Value& w) { return {nullptr, w.format, w.n_rows, w.width}; }

// Products of the rows of x, in the forms that their weights read.
void multiply(Encoder& e, ValueId x, std::span<const ProductPart> parts) {
  bool any_float = false, any_int8 = false;
  for (const ProductPart& part : parts) (is_float(part.w.format) ? any_float : any_int8) = true;
  const Encoder::Int8Rows rows = any_int8 ? e.int8_rows(x) : Encoder::Int8Rows{};
  products(e.launch(), parts.data(), uint32_t(parts.size()), any_float ? e.at(x) : nullptr, rows.q, rows.own,
           e.rows_of(x));
}

}  // namespace

void encode_embed(Encoder& e, const Node& node, size_t) {
  embed(e.launch(), e.matrix(node.inputs[1]), e.input(node.inputs[0]), e.rows_of(node.outputs[0]),
        e.at(node.outputs[0]));
}

void encode_matmul(Encoder& e, const Node& node, size_t index) {
  const SumInProduct& into = e.info().sums[index];
  ProductPart part{e.matrix(node.inputs[1]), e.at(into.sum == kNone ? node.outputs[0] : into.sum)};
  if (into.sum != kNone) part.residual = e.at(into.residual);
  if (into.squares && e.rows_of(into.sum) == 1) part.squares = e.squares();
  multiply(e, node.inputs[0], {&part, 1});
}

uint64_t glu_workspace(const Graph& graph, const Node& node, uint32_t n_rows) {
  const Matrix gate = shape_of(graph.value(node.inputs[1])), up = shape_of(graph.value(node.inputs[2]));
  return glu_is_fused(gate, up) ? 0 : 4 * uint64_t(n_rows) * gate.n_out;
}

void encode_glu(Encoder& e, const Node& node, size_t index) {
  const Matrix &gate = e.matrix(node.inputs[1]), &up = e.matrix(node.inputs[2]);
  const uint32_t n_rows = e.rows_of(node.outputs[0]);
  const bool silu = node.attrs.act == Activation::silu;
  float* const y = e.at(node.outputs[0]);
  if (glu_is_fused(gate, up)) {
    const Encoder::Int8Rows rows = e.int8_rows(node.inputs[0]);
    return glu(e.launch(), gate, up, silu ? Act::silu : Act::gelu, rows.q, rows.own, y, n_rows);
  }
  float* const gates = reinterpret_cast<float*>(e.scratch(index));
  const ProductPart parts[] = {{gate, gates}, {up, y}};
  multiply(e, node.inputs[0], parts);
  binary(e.launch(), silu ? Binary::silu_mul : Binary::gelu_mul, gates, y, y, uint64_t(n_rows) * gate.n_out);
}

void encode_qkv(Encoder& e, const Node& node, size_t) {
  ProductPart parts[3];
  for (size_t i = 0; i < 3; ++i) {
    parts[i] = {e.matrix(node.inputs[1 + i]), e.at(node.outputs[i])};
    if (node.inputs.size() == 7) parts[i].bias = e.vector(node.inputs[4 + i]);
  }
  multiply(e, node.inputs[0], parts);
}

uint64_t qkv_store_workspace(const Graph& graph, const Node& node, uint32_t n_rows) {
  const auto bytes = [&](size_t i) { return 4 * uint64_t(n_rows) * graph.value(node.inputs[i]).n_rows; };
  return align_up(bytes(2), kAlignment) + bytes(3);
}

void encode_qkv_store(Encoder& e, const Node& node, size_t index) {
  const Attrs& a = node.attrs;
  const QkvStoreInputs in = qkv_store_inputs(node.inputs.size(), a);
  const uint32_t n_rows = e.rows_of(node.outputs[0]);
  uint8_t* const scratch = e.scratch(index);
  const uint64_t v_at = align_up(4 * uint64_t(n_rows) * e.matrix(node.inputs[2]).n_out, kAlignment);
  float* const to[3] = {e.at(node.outputs[0]), reinterpret_cast<float*>(scratch),
                        reinterpret_cast<float*>(scratch + v_at)};
  ProductPart parts[3];
  for (size_t i = 0; i < 3; ++i) {
    parts[i] = {e.matrix(node.inputs[1 + i]), to[i]};
    if (in.biases) parts[i].bias = e.vector(node.inputs[in.biases + i]);
  }
  multiply(e, node.inputs[0], parts);
  Heads h = {};
  h.q = to[0], h.k = to[1], h.v = to[2];
  if (in.norms) h.norm_q = e.vector(node.inputs[in.norms]), h.norm_k = e.vector(node.inputs[in.norms + 1]);
  if (in.table) h.table = e.at(node.inputs[in.table]);
  h.eps = a.eps;
  h.n_rows = n_rows, h.n_head = a.n_head, h.n_rot = a.n_rot;
  h.interleaved = a.interleaved;
  heads(e.launch(), h, e.step_rows(node.inputs[4]), e.kv(node.inputs[4]));
}

void encode_kv_store(Encoder& e, const Node& node, size_t) {
  kv_store(e.launch(), e.at(node.inputs[0]), e.at(node.inputs[1]), e.step_rows(node.inputs[2]), e.kv(node.inputs[2]),
           e.rows_of(node.inputs[0]));
}

void encode_attention(Encoder& e, const Node& node, size_t index) {
  const Attrs& attrs = node.attrs;
  const StepBuffers& step = e.step();
  const StepLayout::List& list = step.layout().lists[e.info().list[index]];
  const ListShape& room = e.shape().lists[e.info().list[index]];
  Attention a = {};
  a.q = e.at(node.inputs[0]);
  a.y = e.f32_output(node, index);
  a.q8 = e.q8_output(node, index);
  a.n_head = attrs.n_head;
  a.scale = attrs.scale, a.softcap = attrs.softcap;
  a.rounded_queries = e.rounds_queries();
  a.window = attrs.window;
  a.work.counts = step.part<uint32_t>(list.counts);
  a.work.items = step.part<AttentionItem>(list.items);
  a.work.rows = step.part<AttentionRow>(list.rows);
  a.work.tiles = step.part<AttentionTile>(list.tiles);
  a.partial = e.partial();
  a.max_items = room.items, a.max_rows = room.rows, a.max_tiles = room.tiles;
  attention(e.launch(), a, e.step_rows(node.inputs[1]), e.kv(node.inputs[1]));
}

}  // namespace argent::cuda
