// Sampling on the device, by the parameters of the step.
#include "backends/metal/encode_ops.h"

namespace argent::metal {
namespace {

constexpr uint32_t kRowThreads = 256;  // of a threadgroup that has a row's list alone: most lists are short

SampleArgs sample_args(const Encoder& e, uint32_t n_vocab) { return {n_vocab, e.memory().step.n_slots()}; }

}  // namespace

uint64_t sample_workspace(const Graph& graph, const Node& node, uint32_t n_rows, const Variants&) {
  return sample_scratch_bytes(n_rows, graph.value(node.inputs[0]).width);
}

void encode_adjust(Encoder& e, const Node& node, size_t) {
  const Place x = e.place(node.inputs[0]), y = e.place(node.outputs[0]);
  if (!e.shape().adjusts && x.offset == y.offset) return;
  const uint32_t n_vocab = e.value(node.inputs[0]).width;
  const StepBuffers& step = e.memory().step;
  Dispatch& d = e.add("adjust", {}, {adjust_tiles(n_vocab), e.rows_of(node.outputs[0])}, {256});
  d.threadgroup_bytes = {kAdjustBytes};
  d.value(0, sample_args(e, n_vocab));
  d.bind(1, step.sample_rows()).bind(2, step.sample_data()).bind(3, step.slots());
  bind(d, 4, x);
  bind(d, 5, y);
}

void encode_argmax(Encoder& e, const Node& node, size_t index) {
  const uint32_t n_vocab = e.value(node.inputs[0]).width, n_rows = e.rows_of(node.outputs[0]);
  const Place parts = e.scratch(index, sample_scratch_bytes(n_rows, n_vocab));
  Dispatch& d = e.add("argmax_parts", {}, {sample_parts(n_vocab), n_rows}, {256});
  d.threadgroup_bytes = {kArgmaxBytes};
  d.value(0, sample_args(e, n_vocab));
  bind(d, 1, e.place(node.inputs[0]));
  bind(d, 2, parts);
  Dispatch& join = e.add("argmax_join", {}, {n_rows}, {32});
  join.value(0, sample_args(e, n_vocab));
  bind(join, 1, parts);
  bind(join, 2, e.place(node.outputs[0]));
}

void encode_top_k(Encoder& e, const Node& node, size_t index) {
  const uint32_t n_vocab = e.value(node.inputs[0]).width, n_rows = e.rows_of(node.outputs[0]);
  const Place counts = e.scratch(index, sample_scratch_bytes(n_rows, n_vocab)), lists = e.place(node.outputs[0]);
  const StepBuffers& step = e.memory().step;
  Dispatch& d = e.add("top_k_parts", {}, {sample_parts(n_vocab), n_rows}, {512});
  d.threadgroup_bytes = {kSelectBytes};
  d.value(0, sample_args(e, n_vocab)).bind(1, step.sample_rows());
  bind(d, 2, e.place(node.inputs[0]));
  bind(d, 3, lists);
  bind(d, 4, counts);
  Dispatch& join = e.add("top_k_join", {}, {n_rows}, {kRowThreads});
  join.threadgroup_bytes = {kSelectBytes};
  join.value(0, sample_args(e, n_vocab)).bind(1, step.sample_rows());
  bind(join, 2, lists);
  bind(join, 3, counts);
}

void encode_filter(Encoder& e, const Node& node, size_t) {  // top_p, min_p, temperature, draw
  const uint32_t n_vocab = e.value(node.inputs[0]).width, n_rows = e.rows_of(node.outputs[0]);
  Dispatch& d = e.add(info(node.op).name, {}, {n_rows}, {kRowThreads});
  d.threadgroup_bytes = {kSelectBytes};
  d.value(0, sample_args(e, n_vocab)).bind(1, e.memory().step.sample_rows());
  bind(d, 2, e.place(node.inputs[0]));
  bind(d, 3, e.place(node.outputs[0]));
}

void resolve_tokens(Encoder& e) {
  const StepBuffers& step = e.memory().step;
  const uint32_t n = e.shape().n_tokens;
  e.add("resolve_tokens", {}, {ceil_div(n, 256)}, {256})
      .value(0, TokensArgs{n, step.n_slots()})
      .bind(1, step.tokens())
      .bind(2, step.slots())
      .bind(3, step.ids());
}

void store_tokens(Encoder& e, ValueId sampled) {
  const StepBuffers& step = e.memory().step;
  const uint32_t n = e.rows_of(sampled);
  if (n == 0) return;
  Dispatch& d = e.add("store_tokens", {}, {ceil_div(n, 256)}, {256});
  d.value(0, TokensArgs{n, step.n_slots()}).bind(1, step.sample_rows());
  bind(d, 2, e.place(sampled));
  d.bind(3, step.slots());
}

}  // namespace argent::metal
