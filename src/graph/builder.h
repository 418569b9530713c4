// The builder that architectures compose ops with. The first misfit is kept and every later call is a no-op, so that
// model code reads as the formula; finish() hands out the graph or that error.
#pragma once

#include <initializer_list>
#include <unordered_map>

#include "graph/graph.h"

namespace argent {

class Builder {
 public:
  // Parts of a model's graph
  ValueId input(Input input);
  ValueId weight(std::string name, Format format, uint32_t n_rows, uint32_t width, const uint8_t* data);
  ValueId kv(const KvSpec& spec);  // one state a layer
  void layer(int32_t index) { layer_ = index; }

  // Ops. A kNone in an optional place leaves it out.
  ValueId embed(ValueId tokens, ValueId table) { return add_op(Op::embed, {tokens, table}); }
  ValueId matmul(ValueId x, ValueId w) { return add_op(Op::matmul, {x, w}); }
  ValueId add_bias(ValueId x, ValueId b) { return b == kNone ? x : add_op(Op::add_bias, {x, b}); }
  ValueId add(ValueId a, ValueId b) { return add_op(Op::add, {a, b}); }
  ValueId mul(ValueId a, ValueId b) { return add_op(Op::mul, {a, b}); }
  ValueId scale(ValueId x, float s) { return s == 1.0f ? x : add_op(Op::scale, {x}, {.scale = s}); }
  ValueId silu(ValueId x) { return add_op(Op::silu, {x}); }
  ValueId gelu(ValueId x) { return add_op(Op::gelu, {x}); }
  ValueId sigmoid(ValueId x) { return add_op(Op::sigmoid, {x}); }
  ValueId softcap(ValueId x, float c) { return c == 0.0f ? x : add_op(Op::softcap, {x}, {.softcap = c}); }
  // RMS norm over groups of `group` elements (0: the whole row), then times w; without w the bare norm.
  ValueId rms_norm(ValueId x, ValueId w, float eps, uint32_t group = 0);
  ValueId rope(ValueId x, ValueId table, uint32_t n_head, const Attrs& rope);
  ValueId rope_table(ValueId positions, ValueId factors, const Attrs& rope);
  void kv_store(ValueId k, ValueId v, ValueId state);
  ValueId attention(ValueId q, ValueId state, uint32_t n_head, float scale, float softcap = 0.0f);

  ValueId add_op(Op op, std::vector<ValueId> inputs, const Attrs& attrs = {});
  void set_logits(ValueId logits) { graph_.logits = logits; }

  void fail_with(Error error);
  bool failed() const { return bool(error_); }
  Result<Graph> finish();
  const Graph& graph() const { return graph_; }

 private:
  Graph graph_;
  std::unordered_map<std::string, ValueId> weights_;
  std::optional<Error> error_;
  int32_t layer_ = -1;
};

// Appends an op to a finished graph (passes use it); shapes are inferred and checked.
Result<Node> make_node(Graph& graph, Op op, std::vector<ValueId> inputs, const Attrs& attrs, int32_t layer);

}  // namespace argent
