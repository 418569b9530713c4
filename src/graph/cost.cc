// The cost model: bytes that must move and operations that must be done, from shapes alone.
#include <algorithm>

#include "graph/graph.h"

namespace argent {
namespace {

struct Call {
  const Graph& graph;
  const Node& node;
  const CostContext& context;

  const Value& in(size_t i) const { return graph.values[node.inputs[i]]; }
  const Value& out(size_t i) const { return graph.values[node.outputs[i]]; }
  uint64_t rows(const Value& v) const {
    return v.rows == Rows::tokens ? context.n_tokens : v.rows == Rows::outputs ? context.n_outputs : v.n_rows;
  }
  uint64_t bytes(const Value& v) const {
    if (v.kind == ValueKind::weight) return v.file_bytes();
    if (v.kind == ValueKind::state) return 0;
    if (v.dtype == DType::candidates) return 0;  // how many there are is data of the step
    return rows(v) * v.width * 4;
  }
  uint64_t all_bytes() const {
    uint64_t sum = 0;
    for (ValueId id : node.inputs) sum += bytes(graph.values[id]);
    for (ValueId id : node.outputs) sum += bytes(graph.values[id]);
    return sum;
  }
  // The products of the first input with `count` matrices.
  Cost products(size_t count) const {
    Cost sum{all_bytes(), 0, 0, 0};
    for (size_t i = 1; i <= count; ++i) {
      const uint64_t flops = 2 * rows(in(0)) * in(i).n_rows * in(i).width;
      sum.flops += flops;
      sum.streamed += in(i).file_bytes();
      if (info(in(i).format).block > 1) sum.quantized += flops;
    }
    return sum;
  }
};

Cost elementwise(const Call& c) {
  uint64_t flops = 0;
  for (ValueId id : c.node.outputs) flops += c.rows(c.graph.values[id]) * c.graph.values[id].width;
  return {c.all_bytes(), flops};
}
Cost copy(const Call& c) { return {c.all_bytes(), 0}; }
Cost embed(const Call& c) {
  const uint64_t read = c.rows(c.out(0)) * row_bytes(c.in(1).format, c.in(1).width);
  return {read + c.bytes(c.out(0)), 0, read};
}
Cost matmul(const Call& c) { return c.products(1); }
Cost qkv(const Call& c) { return c.products(3); }
Cost qkv_store(const Call& c) {
  Cost sum = c.products(3);
  const uint64_t k = c.rows(c.in(0)) * c.in(2).n_rows, v = c.rows(c.in(0)) * c.in(3).n_rows;
  sum.bytes += kv_bytes_of(c.context.kv_k, k) + kv_bytes_of(c.context.kv_v, v);
  return sum;
}
Cost glu(const Call& c) { return c.products(2); }
Cost rope_table(const Call& c) { return {c.all_bytes(), 20 * c.rows(c.out(0)) * c.out(0).width}; }
Cost kv_store(const Call& c) {
  const uint64_t k = c.rows(c.in(0)) * c.in(0).width, v = c.rows(c.in(0)) * c.in(1).width;
  return {4 * (k + v) + kv_bytes_of(c.context.kv_k, k) + kv_bytes_of(c.context.kv_v, v), 0};
}
Cost attention(const Call& c) {
  const Attrs& a = c.node.attrs;
  const uint64_t rows = c.rows(c.in(0)), n = std::max<uint64_t>(1, c.context.n_sequences);
  // Of one sequence. Causal: a row sees half of its own step on average.
  const uint64_t past = c.context.n_kv / n, fresh = (c.context.n_tokens + n - 1) / n;
  uint64_t keys = past + (fresh + 1) / 2, held = past + fresh;
  if (a.window && keys > a.window) keys = a.window;
  if (a.window && held > a.window + fresh) held = a.window + fresh;
  const uint64_t kv = n * (kv_bytes_of(c.context.kv_k, held * a.n_head_kv * a.d_head) +
                           kv_bytes_of(c.context.kv_v, held * a.n_head_kv * a.d_value));
  return {c.bytes(c.in(0)) + c.bytes(c.out(0)) + kv, 2 * rows * keys * a.n_head * (a.d_head + a.d_value), kv};
}

}  // namespace

Cost cost(const Graph& graph, const Node& node, const CostContext& context) {
  const Call call{graph, node, context};
  switch (node.op) {
#define OP(name, least, most, n_out, shape, rule, in_place, ...) \
  case Op::name:                                                 \
    return rule(call);
#include "graph/ops.def"
#undef OP
  }
  return {};
}

Cost cost(const Graph& graph, const CostContext& context) {
  Cost sum;
  for (const Node& node : graph.nodes) sum += cost(graph, node, context);
  return sum;
}

}  // namespace argent
