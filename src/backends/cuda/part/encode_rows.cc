// Ops that work on rows and elements: norms, rotary positions, element functions, gathering.
#include "backends/cuda/part/encode_ops.h"
#include "graph/rope_frequencies.h"

namespace argent::cuda {
namespace {

uint64_t elements(const Encoder& e, ValueId id) { return uint64_t(e.rows_of(id)) * e.value(id).width; }

// The norm of a node's rows by the weight, or by none.
Norm norm_of(const Encoder& e, const Node& node, ValueId weight, float eps) {
  const uint32_t width = e.value(node.inputs[0]).width, group = node.attrs.group ? node.attrs.group : width;
  Norm n = {e.rows_of(node.outputs[0]), width, group, eps, nullptr, group};
  if (weight != kNone) n.w = e.vector(weight), n.n_w = e.value(weight).width;
  return n;
}

}  // namespace

void encode_norm(Encoder& e, const Node& node, size_t index) {  // rms_norm, norm_mul
  const Norm n = norm_of(e, node, node.inputs.size() > 1 ? node.inputs[1] : kNone, node.attrs.eps);
  if (e.leave_to_products(node, index, e.at(node.inputs[0]), n)) return;
  norm(e.launch(), n, e.at(node.inputs[0]), e.f32_output(node, index), e.q8_output(node, index));
}

void encode_add_norm_mul(Encoder& e, const Node& node, size_t index) {
  const Norm n = norm_of(e, node, node.inputs[2], node.attrs.eps);
  float* const sum = e.at(node.outputs[0]);
  if (!e.info().summed[index])
    return add_norm(e.launch(), n, e.at(node.inputs[0]), e.at(node.inputs[1]), sum, e.f32_output(node, index),
                    e.q8_output(node, index));
  if (!e.leave_to_products(node, index, sum, n))
    norm(e.launch(), n, sum, e.f32_output(node, index), e.q8_output(node, index));
}

void encode_norm_mul_add(Encoder& e, const Node& node, size_t) {
  norm_add(e.launch(), norm_of(e, node, node.inputs[1], node.attrs.eps), e.at(node.inputs[0]), e.at(node.inputs[2]),
           e.at(node.outputs[0]));
}

void encode_norm_add_norm(Encoder& e, const Node& node, size_t index) {
  norm_add_norm(e.launch(), norm_of(e, node, node.inputs[1], node.attrs.eps),
                norm_of(e, node, node.inputs[3], node.attrs.eps2), e.at(node.inputs[0]), e.at(node.inputs[2]),
                e.at(node.outputs[0]), e.f32_output(node, index), e.q8_output(node, index));
}

void encode_row_vector(Encoder& e, const Node& node, size_t) {
  with_vector(e.launch(), node.op == Op::add_bias ? Binary::add : Binary::mul, e.at(node.inputs[0]),
              e.vector(node.inputs[1]), e.value(node.inputs[1]).width, e.at(node.outputs[0]),
              elements(e, node.outputs[0]));
}

void encode_map(Encoder& e, const Node& node, size_t) {
  const auto [function, parameter] = [&]() -> std::pair<Unary, float> {
    switch (node.op) {
      case Op::scale:
        return {Unary::scale, node.attrs.scale};
      case Op::silu:
        return {Unary::silu, 0};
      case Op::gelu:
        return {Unary::gelu, 0};
      case Op::sigmoid:
        return {Unary::sigmoid, 0};
      case Op::softcap:
        return {Unary::softcap, node.attrs.softcap};
      default:
        return {Unary::copy, 0};
    }
  }();
  const bool hidden = e.value(node.inputs[0]).kind == ValueKind::input;  // a copy of what another device computed
  const float* const x = hidden ? e.step().part<float>(e.step().layout().hidden) : e.at(node.inputs[0]);
  unary(e.launch(), function, parameter, x, e.at(node.outputs[0]), elements(e, node.outputs[0]));
}

void encode_zip(Encoder& e, const Node& node, size_t) {
  const Binary function = node.op == Op::add ? Binary::add : node.op == Op::mul ? Binary::mul : Binary::mul_sigmoid;
  binary(e.launch(), function, e.at(node.inputs[0]), e.at(node.inputs[1]), e.at(node.outputs[0]),
         elements(e, node.outputs[0]));
}

void encode_rope_table(Encoder& e, const Node& node, size_t index) {
  const double magnitude = argent::RopeFrequencies(node.attrs, nullptr).magnitude();
  rope_table(e.launch(), {e.info().rope[index], node.attrs.n_rot, magnitude}, e.input(node.inputs[0]),
             e.rows_of(node.outputs[0]), e.at(node.outputs[0]));
}

void encode_rope(Encoder& e, const Node& node, size_t) {
  const Attrs& a = node.attrs;
  rope(e.launch(), e.at(node.inputs[0]), e.at(node.inputs[1]), e.at(node.outputs[0]), e.rows_of(node.outputs[0]),
       a.n_head, a.d_head, a.n_rot, a.interleaved);
}

void encode_gather_rows(Encoder& e, const Node& node, size_t) {
  gather(e.launch(), e.at<uint32_t>(node.inputs[0]), e.input(node.inputs[1]), e.rows_of(node.outputs[0]),
         e.value(node.inputs[0]).width, e.at<uint32_t>(node.outputs[0]));
}

}  // namespace argent::cuda
