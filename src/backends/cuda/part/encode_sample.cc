// Sampling on the device, by the parameters of the step.
#include "backends/cuda/part/encode_ops.h"

namespace argent::cuda {

uint64_t sample_scratch(const Graph& graph, const Node& node, uint32_t n_rows) {
  return sample_workspace(n_rows, graph.value(node.inputs[0]).width);
}

void encode_adjust(Encoder& e, const Node& node, size_t) {
  const float* x = e.at(node.inputs[0]);
  float* const y = e.at(node.outputs[0]);
  if (!e.shape().adjusts && x == y) return;
  adjust(e.launch(), x, y, e.rows_of(node.outputs[0]), e.value(node.inputs[0]).width, e.sample_step());
}

void encode_argmax(Encoder& e, const Node& node, size_t index) {
  argmax(e.launch(), e.at(node.inputs[0]), e.at<int32_t>(node.outputs[0]), e.rows_of(node.outputs[0]),
         e.value(node.inputs[0]).width, e.scratch(index));
}

void encode_top_k(Encoder& e, const Node& node, size_t index) {
  top_k(e.launch(), e.at(node.inputs[0]), e.at<uint8_t>(node.outputs[0]), e.rows_of(node.outputs[0]),
        e.value(node.inputs[0]).width, e.sample_step(), e.scratch(index));
}

void encode_filter(Encoder& e, const Node& node, size_t) {
  const Filter f = node.op == Op::top_p ? Filter::top_p : node.op == Op::min_p ? Filter::min_p : Filter::temperature;
  filter(e.launch(), f, e.at<uint8_t>(node.inputs[0]), e.at<uint8_t>(node.outputs[0]), e.rows_of(node.outputs[0]),
         e.value(node.inputs[0]).width, e.sample_step());
}

void encode_draw(Encoder& e, const Node& node, size_t) {
  draw(e.launch(), e.at<uint8_t>(node.inputs[0]), e.at<int32_t>(node.outputs[0]), e.rows_of(node.outputs[0]),
       e.value(node.inputs[0]).width, e.sample_step());
}

}  // namespace argent::cuda
