// Products of several matrices with the same activations, and the way to the cache.
#include <algorithm>

#include "backends/metal/encode_ops.h"
#include "backends/metal/fusion_policy.h"
#include "backends/metal/kernels/args.h"
#include "backends/metal/kernels/args_fused.h"
#include "backends/metal/policy.h"
#include "base/checked.h"

namespace argent::metal {
namespace {

constexpr size_t kScratchAlignment = 16;  // kernels read float4

uint32_t format_id(const Value& weight) { return info(weight.format).gguf_id; }

}  // namespace

namespace {

// One dispatch for gate and up: for few rows, or for many with 16-bit factors.
bool one_glu(const Graph& graph, const Node& node, uint32_t n_rows, const Variants& variants) {
  const Value &gate = graph.value(node.inputs[1]), &up = graph.value(node.inputs[2]);
  return fuses_glu(gate.n_rows, gate.width, n_rows, gate.format, up.format) &&
         (product_kind(n_rows) != ProductKind::many || variants.has("matrix"));
}

// The numbers of rows at which other kernels begin, up to n_rows: what holds for these holds for all.
template <class Holds>
bool for_all_rows(uint32_t n_rows, const Holds& holds) {
  return holds(1) && (n_rows == 1 || holds(std::min(n_rows, kTokensAtOnce))) &&
         (n_rows <= kTokensAtOnce || holds(n_rows));
}

}  // namespace

uint64_t glu_workspace(const Graph& graph, const Node& node, uint32_t n_rows, const Variants& variants) {
  const bool never = for_all_rows(n_rows, [&](uint32_t n) { return one_glu(graph, node, n, variants); });
  return never ? 0 : 4 * uint64_t(n_rows) * graph.value(node.inputs[1]).n_rows;
}

void encode_glu(Encoder& e, const Node& node, size_t index) {
  const Value &gate = e.value(node.inputs[1]), &up = e.value(node.inputs[2]);
  const uint32_t n_rows = e.rows_of(node.outputs[0]);
  const Place x = e.place(node.inputs[0]), y = e.place(node.outputs[0]);
  if (!one_glu(e.graph(), node, n_rows, e.variants())) {
    const Place gates = e.scratch(index, 4 * size_t(n_rows) * gate.n_rows);
    product(e, x, node.inputs[1], gates, n_rows);
    product(e, x, node.inputs[2], y, n_rows);
    return gate_up(e, node.attrs.act, gates, y, y, n_rows * gate.n_rows);
  }
  struct Form {
    const char* kernel;
    Size grid;
    uint32_t threadgroup_bytes;
  };
  const bool many = product_kind(n_rows) == ProductKind::many;
  const bool each = n_rows == 1 || !e.variants().has("tokens");
  const Form form = many   ? Form{"glu_mm", {mul_mm_token_tiles(n_rows), ceil_div(gate.n_rows, 32)}, kMulMmBytes}
                    : each ? Form{"glu", {ceil_div(gate.n_rows, 4), n_rows}, 16}
                           : Form{"glu_tokens", {ceil_div(gate.n_rows, 4)}, 128};
  Dispatch& d = e.add(form.kernel,
                      {{20, format_id(gate)},
                       {21, format_id(up)},
                       {22, uint32_t(node.attrs.act == Activation::silu ? kActSilu : kActGelu)}},
                      form.grid, {128});
  d.value(0, MatmulArgs{gate.n_rows, gate.width, n_rows, gate.width, gate.n_rows});
  bind(d, 1, e.place(node.inputs[1]));
  bind(d, 2, e.place(node.inputs[2]));
  bind(d, 3, x);
  bind(d, 4, y);
  d.threadgroup_bytes = {form.threadgroup_bytes};
}

void encode_qkv(Encoder& e, const Node& node, size_t) {
  const uint32_t n_rows = e.rows_of(node.outputs[0]);
  const bool biases = node.inputs.size() == 7;
  const Value *w[3], &first = e.value(node.inputs[1]);
  for (size_t i = 0; i < 3; ++i) w[i] = &e.value(node.inputs[1 + i]);
  const Place x = e.place(node.inputs[0]);
  if (!fuses_qkv(first.width, n_rows, w[0]->format, w[1]->format, w[2]->format)) {
    for (size_t i = 0; i < 3; ++i) {
      const Place y = e.place(node.outputs[i]);
      product(e, x, node.inputs[1 + i], y, n_rows);
      if (biases) add_vector(e, y, node.inputs[4 + i], n_rows * w[i]->n_rows);
    }
    return;
  }
  const bool one = n_rows == 1 || !e.variants().has("tokens");
  uint32_t groups = 0;
  for (const Value* v : w) groups += ceil_div(v->n_rows, 4);
  Dispatch& d = e.add(one ? "qkv" : "qkv_tokens",
                      {{23, format_id(*w[0])}, {24, format_id(*w[1])}, {25, format_id(*w[2])}, {26, biases}},
                      {groups, one ? n_rows : 1}, {64});
  d.value(0, QkvArgs{w[0]->n_rows, w[1]->n_rows, w[2]->n_rows, first.width, n_rows, first.width});
  bind(d, 4, x);
  for (uint32_t i = 0; i < 3; ++i) {
    bind(d, 1 + i, e.place(node.inputs[1 + i]));
    bind(d, 5 + i, e.place(node.outputs[i]));
    bind(d, 8 + i, biases ? e.place(node.inputs[4 + i]) : x);
  }
}

// ---- to the cache

void store(Encoder& e, const Place& k, const Place& v, ValueId state, uint32_t n_rows) {
  const KvSpec& kv = e.value(state).kv;
  const KvPlace& cache = e.kv_of(state);
  const StepBuffers& step = e.memory().step;
  Dispatch& d = e.add("kv_store", e.kv_types(), {ceil_div(2 * kv.n_head_kv, 4), n_rows}, {128});
  d.value(0, KvStoreArgs{kv.n_head_kv, kv.d_head, kv.d_value, cache.block_bytes});
  bind(d, 1, k);
  bind(d, 2, v);
  bind(d, 3, cache.k);
  bind(d, 4, cache.v);
  d.bind(5, step.positions()).bind(6, step.row_sequence());
  d.bind(7, step.sequences(cache.group)).bind(8, step.tables(cache.group));
}

void encode_kv_store(Encoder& e, const Node& node, size_t) {
  store(e, e.place(node.inputs[0]), e.place(node.inputs[1]), node.inputs[2], e.rows_of(node.inputs[0]));
}

namespace {

// One kernel from the projections to the cache: for few rows, and heads that fit threadgroup memory.
bool one_kernel(const Graph& graph, const Node& node, uint32_t n_rows, const Variants& variants) {
  const Attrs& a = node.attrs;
  const auto format = [&](size_t i) { return graph.value(node.inputs[1 + i]).format; };
  return (n_rows == 1 || variants.has("tokens")) &&
         fuses_qkv_rope({a.n_head, a.n_head_kv, a.d_head, a.d_value, a.n_rot, variants.kv_k, variants.kv_v},
                        graph.value(node.inputs[1]).width, n_rows, format(0), format(1), format(2));
}

}  // namespace

uint64_t qkv_store_workspace(const Graph& graph, const Node& node, uint32_t n_rows, const Variants& variants) {
  const bool never = for_all_rows(n_rows, [&](uint32_t n) { return one_kernel(graph, node, n, variants); });
  const auto bytes = [&](size_t i) { return 4 * uint64_t(n_rows) * graph.value(node.inputs[i]).n_rows; };
  return never ? 0 : align_up(bytes(2), kScratchAlignment) + bytes(3);
}

void encode_qkv_store(Encoder& e, const Node& node, size_t index) {
  const Attrs& a = node.attrs;
  const QkvStoreInputs at = qkv_store_inputs(node.inputs.size(), a);
  const uint32_t n_rows = e.rows_of(node.outputs[0]);
  const Value *w[3], &first = e.value(node.inputs[1]);
  for (size_t i = 0; i < 3; ++i) w[i] = &e.value(node.inputs[1 + i]);
  const Place x = e.place(node.inputs[0]), q = e.place(node.outputs[0]);
  if (!one_kernel(e.graph(), node, n_rows, e.variants())) {
    const size_t k_bytes = 4 * size_t(n_rows) * w[1]->n_rows, v_bytes = 4 * size_t(n_rows) * w[2]->n_rows;
    const size_t v_at = align_up(k_bytes, kScratchAlignment);
    const Place both = e.scratch(index, v_at + v_bytes);
    const Place k = {both.buffer, both.offset, k_bytes}, v = {both.buffer, both.offset + v_at, v_bytes};
    const Place parts[3] = {q, k, v};
    for (size_t i = 0; i < 3; ++i) product(e, x, node.inputs[1 + i], parts[i], n_rows);
    for (size_t i = 0; i < 3 && at.biases; ++i)
      add_vector(e, parts[i], node.inputs[at.biases + i], n_rows * w[i]->n_rows);
    for (size_t i = 0; i < 2 && at.norms; ++i)
      norm_heads(e, parts[i], node.inputs[at.norms + i], n_rows * w[i]->n_rows, a.d_head, a.eps);
    if (at.table) rotate_in_place(e, a, q, k, e.place(node.inputs[at.table]), n_rows);
    return store(e, k, v, node.inputs[4], n_rows);
  }
  const KvPlace& cache = e.kv_of(node.inputs[4]);
  const StepBuffers& step = e.memory().step;
  std::vector<FunctionConstant> constants = e.kv_types();
  for (uint32_t i = 0; i < 3; ++i) constants.push_back({23 + i, format_id(*w[i])});
  constants.push_back({26, bool(at.biases)});
  constants.push_back({27, bool(at.norms)});
  constants.push_back({50, a.interleaved});
  const uint32_t d_most = std::max(a.d_head, a.d_value);
  const char* kernel = n_rows == 1 ? "qkv_rope" : "qkv_rope_tokens";
  // Two rows a SIMD-group, so that all loads are in flight, or as many threads as registers allow.
  const uint32_t threads = std::min(e.max_threads(kernel, constants), (16 * d_most + 31) / 32 * 32);
  Dispatch& d = e.add(kernel, std::move(constants), {a.n_head + 2 * a.n_head_kv}, {threads});
  d.threadgroup_bytes = {(4 * d_most * n_rows + 15) / 16 * 16};
  d.value(0, QkvRopeArgs{a.n_head,
                         first.width,
                         n_rows,
                         first.width,
                         w[0]->n_rows,
                         a.n_rot,
                         a.eps,
                         {a.n_head_kv, a.d_head, a.d_value, cache.block_bytes}});
  bind(d, 4, x);
  bind(d, 5, q);
  bind(d, 6, cache.k);
  bind(d, 7, cache.v);
  for (uint32_t i = 0; i < 3; ++i) {
    bind(d, 1 + i, e.place(node.inputs[1 + i]));
    bind(d, 8 + i, at.biases ? e.place(node.inputs[at.biases + i]) : x);
  }
  for (uint32_t i = 0; i < 2; ++i) bind(d, 11 + i, at.norms ? e.place(node.inputs[at.norms + i]) : x);
  bind(d, 13, at.table ? e.place(node.inputs[at.table]) : x);
  d.bind(14, step.positions()).bind(15, step.row_sequence());
  d.bind(16, step.sequences(cache.group)).bind(17, step.tables(cache.group));
}

}  // namespace argent::metal
