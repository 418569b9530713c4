// Attention by the work lists of the step.
#include "backends/metal/encode_ops.h"
#include "backends/metal/kernels/args_attention.h"

namespace argent::metal {

uint64_t attention_workspace(const Graph&, const Node& node, uint32_t n_rows, const Variants&) {
  const Attrs& a = node.attrs;
  return attention_is_fast(a.d_head, a.d_value) ? attention_workspace_bytes(n_rows, a.n_head, a.d_value) : 0;
}

size_t attention_lists(const Graph& graph, const Node& node, const Memory& memory) {
  const uint32_t group = memory.layout.group_of_layer[memory.layer_of(graph.value(node.inputs[1]).kv)];
  return memory.step.lists_of(graph.value(node.inputs[0]).rows, group,
                              attention_is_fast(node.attrs.d_head, node.attrs.d_value));
}

void encode_attention(Encoder& e, const Node& node, size_t index) {
  const Attrs& a = node.attrs;
  const KvPlace& cache = e.kv_of(node.inputs[1]);
  const StepBuffers& step = e.memory().step;
  const bool fast = attention_is_fast(a.d_head, a.d_value);
  const Rows rows = e.value(node.inputs[0]).rows;
  const size_t at = attention_lists(e.graph(), node, e.memory());
  const AttentionListBuffers& lists = step.lists(at);
  const AttentionShape& shape = e.shape().attention[at];
  const AttentionArgs args{a.n_head, a.n_head_kv, a.d_head, a.d_value, a.window, cache.block_bytes, a.scale, a.softcap};
  const Place q = e.place(node.inputs[0]), out = e.place(node.outputs[0]);
  const uint32_t parts = uint32_t(index) + 1;  // a row is of one list
  std::vector<FunctionConstant> constants = e.kv_types();
  constants.push_back({12, a.softcap != 0});
  const auto add = [&](const std::string& kernel, std::vector<FunctionConstant> with, Size grid, uint32_t threads,
                       const Buffer& list) -> Dispatch& {
    Dispatch& d = e.add(kernel, std::move(with), grid, {threads});
    d.value(0, args);
    bind(d, 1, q);
    bind(d, 2, cache.k);
    bind(d, 3, cache.v);
    d.bind(4, list).bind(5, step.tables(cache.group));
    bind(d, 6, out, parts);
    return d;
  };
  if (!fast) {
    add("attention_any", constants, {a.n_head, shape.decode}, kDecodeThreads, *lists.decode).threadgroup_bytes = {
        attention_any_threadgroup_bytes(a.d_value, kDecodeThreads)};
    return;
  }
  if (shape.prefill)
    add(fmt::format("attention_prefill_{}", a.d_head), constants, {a.n_head, shape.prefill}, kPrefillThreads,
        *lists.prefill)
        .threadgroup_bytes = {attention_prefill_threadgroup_bytes(a.d_head)};
  if (!shape.decode) return;
  const uint32_t of_kv = a.n_head / a.n_head_kv;
  const Place partial = e.scratch(index, attention_workspace(e.graph(), node, e.max_rows(rows), e.variants()));
  constants.push_back({13, attention_decode_heads(of_kv)});
  Dispatch& d = add(fmt::format("attention_decode_{}", a.d_head), constants,
                    {attention_decode_grid(a.n_head, a.n_head_kv), shape.decode}, kDecodeThreads, *lists.decode);
  d.threadgroup_bytes = {attention_decode_threadgroup_bytes(a.d_head, of_kv, kDecodeThreads)};
  bind(d, 7, partial);
  if (!shape.combine) return;
  Dispatch& join = e.add("attention_combine", {}, {a.n_head, shape.combine}, {kCombineThreads});
  join.value(0, args);
  bind(join, 1, partial);
  join.bind(2, *lists.combine);
  bind(join, 3, out);
}

}  // namespace argent::metal
