#include "backends/cuda/part/encode.h"

#include "backends/cuda/part/encode_ops.h"

namespace argent::cuda {
namespace {

bool is_product(Op op) { return op == Op::matmul || op == Op::glu || op == Op::qkv || op == Op::qkv_store; }

// How many matrices a product multiplies its first input with: inputs 1 to n.
size_t n_matrices(Op op) { return op == Op::matmul ? 1 : op == Op::glu ? 2 : 3; }

struct Reads {
  bool some = false, all = false;  // of a product's matrices are quantized
};
Reads reads_q8(const Graph& graph, const Node& node) {
  if (!is_product(node.op)) return {};
  Reads reads{false, true};
  for (size_t i = 1; i <= n_matrices(node.op); ++i) {
    const bool quantized = !is_float(graph.value(node.inputs[i]).format);
    reads.some = reads.some || quantized;
    reads.all = reads.all && quantized;
  }
  return reads;
}

// Has the node's kernel its last output at hand as rows that it can round to int8?
bool can_round(const Graph& graph, const Node& node) {
  switch (node.op) {
    case Op::rms_norm:
    case Op::norm_mul:
    case Op::add_norm_mul:
    case Op::norm_add_norm: {
      const uint32_t width = graph.value(node.outputs.back()).width;
      return (node.attrs.group == 0 || node.attrs.group == width) && width % 32 == 0;
    }
    case Op::attention:
      return node.attrs.d_value % 32 == 0;
    default:
      return false;
  }
}

struct Use {
  size_t last = 0, readers = 0;      // the last node that reads it; how many do
  bool some = false, other = false;  // read as int8 by some; as f32
};
std::vector<Use> uses_of(const Graph& graph) {
  std::vector<Use> uses(graph.values.size());
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    const Reads reads = reads_q8(graph, node);
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      Use& use = uses[node.inputs[i]];
      use.last = n, ++use.readers;
      use.some = use.some || (i == 0 && reads.some);
      use.other = use.other || i != 0 || !reads.all;
    }
  }
  for (const ValueId id : {graph.logits, graph.sampled})
    if (id != kNone) uses[id].other = true, uses[id].last = graph.nodes.size();
  return uses;
}

// Which nodes write int8, and which of them nothing else. A value that is nowhere as f32 must stay in the one buffer
// until its last reader.
std::vector<Q8Output> q8_outputs(const Graph& graph, const std::vector<Use>& uses) {
  std::vector<Q8Output> outputs(graph.nodes.size(), Q8Output::none);
  for (size_t n = 0; n < graph.nodes.size(); ++n)
    if (can_round(graph, graph.nodes[n]) && uses[graph.nodes[n].outputs.back()].some) outputs[n] = Q8Output::both;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    if (outputs[n] == Q8Output::none) continue;
    const ValueId id = graph.nodes[n].outputs.back();
    bool stays = !uses[id].other;
    for (size_t m = n + 1; m < uses[id].last && stays; ++m)
      stays = outputs[m] == Q8Output::none && (!reads_q8(graph, graph.nodes[m]).some || graph.nodes[m].inputs[0] == id);
    if (stays) outputs[n] = Q8Output::only;
  }
  return outputs;
}

// Is the norm of a sum read by products only, as int8, and from a sum that is there as long?
bool norm_goes_into_products(const Graph& graph, const std::vector<Use>& uses, Q8Output q8, const Node& node) {
  const ValueId sum = node.outputs[0], y = node.outputs[1];
  const uint32_t width = graph.value(y).width;
  return q8 == Q8Output::only && graph.value(node.inputs[2]).width == width && width <= kMostNorm &&
         uses[sum].last > uses[y].last;
}

// A matmul whose only reader adds it to a value that is there before, and puts the sum where that value or the product
// is: elsewhere something else may still be.
void find_sums(const Plan& plan, const std::vector<Use>& uses, PlanInfo& info) {
  const Graph& graph = plan.graph;
  std::vector<size_t> made(graph.values.size(), 0);
  for (size_t n = 0; n < graph.nodes.size(); ++n)
    for (const ValueId id : graph.nodes[n].outputs) made[id] = n;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    if (node.op != Op::add_norm_mul) continue;
    for (const size_t i : {0, 1}) {
      const ValueId product = node.inputs[i], residual = node.inputs[1 - i], sum = node.outputs[0];
      const size_t at = made[product];
      const auto is_activation = [&](ValueId id) { return graph.value(id).kind == ValueKind::activation; };
      if (!is_activation(product) || !is_activation(residual) || graph.nodes[at].op != Op::matmul ||
          uses[product].readers != 1 || uses[product].last != n || made[residual] >= at)
        continue;
      // In place of the residual, nobody may read that one in between.
      bool read = false;
      for (size_t m = at; m < n; ++m)
        for (const ValueId id : graph.nodes[m].inputs) read = read || id == residual;
      if (plan.offset[sum] != plan.offset[product] && (plan.offset[sum] != plan.offset[residual] || read)) continue;
      info.norm_in_products[n] = norm_goes_into_products(graph, uses, info.q8[n], node);
      info.sums[at] = {residual, sum, info.norm_in_products[n]}, info.summed[n] = true;
      break;
    }
  }
}

}  // namespace

Result<PlanInfo> plan_info(const Plan& plan, const KvLayout& layout, KvType k, KvType v, bool folds) {
  const Graph& graph = plan.graph;
  const std::vector<Use> uses = uses_of(graph);
  PlanInfo info;
  info.q8 = q8_outputs(graph, uses);
  info.sums.resize(graph.nodes.size());
  info.summed.resize(graph.nodes.size());
  info.norm_in_products.resize(graph.nodes.size());
  info.folds = folds;
  if (folds) find_sums(plan, uses, info);
  info.list.assign(graph.nodes.size(), 0);
  info.rope.assign(graph.nodes.size(), nullptr);
  info.layer.assign(graph.values.size(), 0);
  for (ValueId id = 0; id < graph.values.size(); ++id) {
    const Value& value = graph.value(id);
    if (value.kind != ValueKind::state) continue;
    const auto found = std::find(layout.layers.begin(), layout.layers.end(), value.kv);
    if (found == layout.layers.end()) return fail(Code::internal, "no cache was allocated for '{}'", value.name);
    info.layer[id] = uint32_t(found - layout.layers.begin());
  }
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    if (reads_q8(graph, node).some) {
      const Value& x = graph.value(node.inputs[0]);
      info.q8_bytes = std::max(info.q8_bytes, product_rows_bytes(plan.max_rows(x.rows), x.width));
    }
    if ((node.op == Op::adjust || node.op == Op::argmax || node.op == Op::top_k) && graph.sampled != kNone)
      info.policy.n_vocab = graph.value(node.inputs[0]).width;
    if (node.op != Op::attention) continue;
    const Attrs& a = node.attrs;
    const AttentionList list = {layout.group_of_layer[info.layer[node.inputs[1]]], graph.value(node.inputs[0]).rows,
                                attention_is_fast(k, v, a.d_head, a.d_value),
                                attention_ctas(a.n_head, graph.value(node.inputs[1]).kv.n_head_kv)};
    std::vector<AttentionList>& lists = info.policy.lists;
    const auto found = std::find(lists.begin(), lists.end(), list);
    info.list[n] = uint32_t(found - lists.begin());
    if (found == lists.end()) lists.push_back(list), info.partial_bytes.push_back(0);
    uint64_t& bytes = info.partial_bytes[info.list[n]];
    bytes = std::max(bytes, attention_partial_bytes(1, a.n_head, a.d_value));
  }
  return info;
}

const int32_t* Encoder::input(ValueId id) const {
  const StepBuffers& step = resources_.step;
  switch (value(id).input) {
    case Input::tokens:
      return shape_.resolves ? step.ids() : step.part<int32_t>(step.layout().tokens);
    case Input::positions:
      return step.part<int32_t>(step.layout().positions);
    case Input::output_rows:
    case Input::hidden:  // f32, read by encode_map
      break;
  }
  return step.part<int32_t>(step.layout().output_rows);
}

StepRows Encoder::step_rows(ValueId state) const {
  const StepBuffers& step = resources_.step;
  const StepLayout& layout = step.layout();
  const uint32_t group = resources_.layout.group_of_layer[info_.layer[state]];
  return {step.part<int32_t>(layout.positions), step.part<uint32_t>(layout.row_sequence),
          step.part<KvSequence>(layout.sequences[group]), step.part<int32_t>(layout.tables)};
}

SampleStep Encoder::sample_step() const {
  const StepBuffers& step = resources_.step;
  return {step.part<uint8_t>(step.layout().sample_rows), step.part<uint32_t>(step.layout().data), step.slots(),
          step.n_slots()};
}

Q8 Encoder::q8_of(ValueId x) const { return {resources_.q8.data(), rows_of(x), value(x).width}; }

Encoder::Int8Rows Encoder::int8_rows(ValueId x) {
  const Q8 q = q8_of(x);
  if (held_ == x) return {q, {}};
  if (left_ == x) return {{}, left_row_};
  if (info_.folds && q.n_rows == 1) return {{}, {at(x)}};
  quantize(launch_, at(x), rows_of(x), value(x).width, q);
  held_ = x;
  return {q, {}};
}

bool Encoder::leave_to_products(const Node& node, size_t index, const float* x, const Norm& norm) {
  if (!info_.norm_in_products[index] || norm.n_rows != 1) return false;
  left_ = node.outputs.back();
  left_row_ = {x, squares(), norm.w, norm.eps};
  return true;
}

Q8 Encoder::q8_output(const Node& node, size_t index) {
  if (info_.q8[index] == Q8Output::none || !rounds(node)) return {};
  held_ = node.outputs.back();
  return q8_of(held_);
}

void Encoder::begin() {
  if (shape_.resolves)
    resolve_tokens(launch_, step().part<int32_t>(step().layout().tokens), step().ids(), shape_.n_tokens, sample_step());
}

void Encoder::end() {
  const ValueId sampled = graph().sampled;
  if (sampled != kNone && rows_of(sampled))
    store_tokens(launch_, at<int32_t>(sampled), rows_of(sampled), sample_step());
}

void Encoder::encode(size_t index) {
  const Node& node = plan_.graph.nodes[index];
  // A step may want no logits at all.
  if (node.outputs.empty() || rows_of(node.outputs[0]) != 0) op_encoder(node.op).encode(*this, node, index);
}

void Encoder::all() {
  begin();
  for (size_t n = 0; n < plan_.graph.nodes.size(); ++n) encode(n);
  end();
}

}  // namespace argent::cuda
