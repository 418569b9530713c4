// The table of ops that the CUDA backend has kernels for.
#include "backends/cuda/part/encode_ops.h"

namespace argent::cuda {
namespace {

constexpr uint32_t kMostHead = 512;  // elements of a head, of attention's kernels

}  // namespace

OpEncoder op_encoder(Op op) {
  switch (op) {
    case Op::embed:
      return {encode_embed};
    case Op::matmul:
      return {encode_matmul};
    case Op::add_bias:
    case Op::mul_row:
      return {encode_row_vector};
    case Op::add:
    case Op::mul:
    case Op::mul_sigmoid:
      return {encode_zip};
    case Op::scale:
    case Op::silu:
    case Op::gelu:
    case Op::sigmoid:
    case Op::softcap:
    case Op::copy:
      return {encode_map};
    case Op::rms_norm:
    case Op::norm_mul:
      return {encode_norm};
    case Op::add_norm_mul:
      return {encode_add_norm_mul};
    case Op::norm_mul_add:
      return {encode_norm_mul_add};
    case Op::norm_add_norm:
      return {encode_norm_add_norm};
    case Op::rope_table:
      return {encode_rope_table};
    case Op::rope:
      return {encode_rope};
    case Op::gather_rows:
      return {encode_gather_rows};
    case Op::glu:
      return {encode_glu, glu_workspace};
    case Op::qkv:
      return {encode_qkv};
    case Op::kv_store:
      return {encode_kv_store};
    case Op::qkv_store:
      return {encode_qkv_store, qkv_store_workspace};
    case Op::attention:
      return {encode_attention};
    case Op::adjust:
      return {encode_adjust};
    case Op::argmax:
      return {encode_argmax, sample_scratch};
    case Op::top_k:
      return {encode_top_k, sample_scratch};
    case Op::top_p:
    case Op::min_p:
    case Op::temperature:
      return {encode_filter};
    case Op::draw:
      return {encode_draw};
  }
  return {};
}

std::string missing_kernel(const Graph& graph, const Node& node) {
  const OpInfo& op = info(node.op);
  const Value& first = graph.value(node.inputs[0]);
  const bool lists = first.dtype == DType::candidates;
  if (!op_encoder(node.op).encode || (lists && (node.op == Op::argmax || node.op == Op::copy)) ||
      (!lists && node.op == Op::draw))
    return fmt::format("{}: NONE on CUDA for {}", op.name, describe(first));
  if (node.op == Op::attention && std::max(node.attrs.d_head, node.attrs.d_value) > kMostHead)
    return fmt::format("attention: NONE on CUDA for heads of {} and {}, at most {}", node.attrs.d_head,
                       node.attrs.d_value, kMostHead);
  const bool norms = node.op == Op::rms_norm || node.op == Op::norm_mul || node.op == Op::add_norm_mul ||
                     node.op == Op::norm_mul_add || node.op == Op::norm_add_norm;
  if (const uint32_t group = node.attrs.group ? node.attrs.group : first.width; norms && group > kMostNorm)
    return fmt::format("{}: NONE on CUDA for {} elements, at most {}", op.name, group, kMostNorm);
  for (const ValueId id : node.inputs) {
    const Value& v = graph.value(id);
    if (v.kind == ValueKind::weight && v.width % info(v.format).block)
      return fmt::format("{}: rows of {} are no whole blocks", op.name, describe(v));
  }
  return "";
}

}  // namespace argent::cuda
