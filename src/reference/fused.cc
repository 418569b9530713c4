// Fused ops: their parts, called one after the other.
#include "reference/ops.h"

namespace argent::reference {
namespace {

// A value between two parts that the fused op never shows.
struct Temporary {
  Temporary(const Operand& like, uint32_t width) : value(*like.value), floats(uint64_t(like.n_rows) * width) {
    value.width = width;
    operand = {&value, reinterpret_cast<uint8_t*>(floats.data()), like.n_rows, nullptr};
  }
  Temporary(const Temporary&) = delete;

  Value value;
  std::vector<float> floats;
  Operand operand;
};

void part(Function function, const Call& whole, std::initializer_list<Operand> in, const Operand& out) {
  function({std::span(in.begin(), in.size()), {&out, 1}, whole.attrs, whole.context});
}

void norm_mul_to(const Call& call, const Operand& x, const Operand& w, const Operand& out) {
  part(rms_norm, call, {x}, out);
  part(mul_row, call, {out, w}, out);
}

}  // namespace

void norm_mul(const Call& call) { norm_mul_to(call, call.in[0], call.in[1], call.out[0]); }

void add_norm_mul(const Call& call) {
  part(add, call, {call.in[0], call.in[1]}, call.out[0]);
  norm_mul_to(call, call.out[0], call.in[2], call.out[1]);
}

void norm_mul_add(const Call& call) {
  norm_mul_to(call, call.in[0], call.in[1], call.out[0]);
  part(add, call, {call.out[0], call.in[2]}, call.out[0]);
}

void norm_add_norm(const Call& call) {
  norm_mul_to(call, call.in[0], call.in[1], call.out[1]);
  part(add, call, {call.out[1], call.in[2]}, call.out[0]);
  Attrs second = call.attrs;
  second.eps = second.eps2;
  norm_mul_to({call.in, call.out, second, call.context}, call.out[0], call.in[3], call.out[1]);
}

void mul_sigmoid(const Call& call) {
  Temporary gate(call.out[0], call.out[0].value->width);
  part(sigmoid, call, {call.in[1]}, gate.operand);
  part(mul, call, {call.in[0], gate.operand}, call.out[0]);
}

void qkv_store(const Call& call) {
  const Attrs& a = call.attrs;
  const QkvStoreInputs at = qkv_store_inputs(call.in.size(), a);
  Temporary k(call.out[0], a.n_head_kv * a.d_head), v(call.out[0], a.n_head_kv * a.d_value);
  const Operand out[3] = {call.out[0], k.operand, v.operand};
  for (size_t i = 0; i < 3; ++i) {
    part(matmul, call, {call.in[0], call.in[1 + i]}, out[i]);
    if (at.biases) part(add_bias, call, {out[i], call.in[at.biases + i]}, out[i]);
    if (i == 2) break;
    Attrs heads = a;
    heads.n_head = i == 0 ? a.n_head : a.n_head_kv;
    heads.group = a.d_head;
    const Call of_heads{call.in, call.out, heads, call.context};
    if (at.norms) norm_mul_to(of_heads, out[i], call.in[at.norms + i], out[i]);
    if (at.table) part(rope, of_heads, {out[i], call.in[at.table]}, out[i]);
  }
  part(kv_store, call, {k.operand, v.operand, call.in[4]}, out[0]);
}

void qkv(const Call& call) {
  for (size_t i = 0; i < 3; ++i) {
    part(matmul, call, {call.in[0], call.in[1 + i]}, call.out[i]);
    if (call.in.size() == 7) part(add_bias, call, {call.out[i], call.in[4 + i]}, call.out[i]);
  }
}

void glu(const Call& call) {
  Temporary gate(call.out[0], call.out[0].value->width);
  part(matmul, call, {call.in[0], call.in[1]}, gate.operand);
  part(call.attrs.act == Activation::silu ? silu : gelu, call, {gate.operand}, gate.operand);
  part(matmul, call, {call.in[0], call.in[2]}, call.out[0]);
  part(mul, call, {gate.operand, call.out[0]}, call.out[0]);
}

}  // namespace argent::reference
