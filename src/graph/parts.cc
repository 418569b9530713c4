#include "graph/parts.h"

#include <algorithm>

namespace argent {
namespace {

// Empties weights and caches that no node reads.
void drop_unused(Graph& graph) {
  std::vector<bool> used(graph.values.size(), false);
  for (const Node& node : graph.nodes)
    for (const ValueId id : node.inputs) used[id] = true;
  for (ValueId id = 0; id < graph.values.size(); ++id)
    if (Value& v = graph.values[id]; !used[id] && (v.kind == ValueKind::weight || v.kind == ValueKind::state)) v = {};
}

}  // namespace

std::vector<uint8_t> node_devices(const Graph& graph, const PlanOptions& options) {
  const std::vector<uint8_t>& layers = options.layer_device;
  std::vector<uint8_t> devices(graph.nodes.size(), 0);
  if (layers.empty()) return devices;
  bool front = true;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const int32_t layer = graph.nodes[n].layer;
    front = front && layer < 0;
    devices[n] = front                                         ? options.front_device
                 : layer < 0 || size_t(layer) >= layers.size() ? layers.back()
                                                               : layers[size_t(layer)];
  }
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    if (graph.nodes[n].op != Op::rope_table) continue;
    const ValueId table = graph.nodes[n].outputs[0];
    const auto reader = std::find_if(graph.nodes.begin() + ptrdiff_t(n), graph.nodes.end(), [&](const Node& node) {
      return std::find(node.inputs.begin(), node.inputs.end(), table) != node.inputs.end();
    });
    if (reader != graph.nodes.end()) devices[n] = devices[size_t(reader - graph.nodes.begin())];
  }
  return devices;
}

Graph device_part(const Graph& model, const PlanOptions& options, uint8_t device) {
  const std::vector<uint8_t> devices = node_devices(model, options);
  std::vector<bool> read(model.values.size(), false);
  for (size_t n = 0; n < model.nodes.size(); ++n)
    if (devices[n] == device)
      for (const ValueId id : model.nodes[n].inputs) read[id] = true;
  Graph part;
  part.values = model.values;
  for (size_t n = 0; n < model.nodes.size(); ++n)
    if (const Node& node = model.nodes[n]; devices[n] == device || (node.op == Op::rope_table && read[node.outputs[0]]))
      part.nodes.push_back(node);
  drop_unused(part);
  return part;
}

Result<std::array<PlanPart, 2>> cut(const Plan& whole) {
  const Graph& graph = whole.graph;
  if (whole.arena_bytes.size() != 2)
    return fail(Code::internal, "a plan over {} devices is cut in two", whole.arena_bytes.size());
  std::vector<uint8_t> home(graph.values.size(), 0);
  ValueId crossing = kNone;
  for (const Node& node : graph.nodes) {
    for (const ValueId id : node.outputs) home[id] = node.device;
    if (crossing != kNone && node.device == 0)
      return fail(Code::internal, "{} of layer {} is computed on {} behind what {} computes", info(node.op).name,
                  node.layer, whole.devices[0], whole.devices[1]);
    if (node.op != Op::copy || home[node.inputs[0]] == node.device) continue;
    if (crossing != kNone || graph.value(node.inputs[0]).dtype != DType::f32)
      return fail(Code::internal, "layer {}: more than one value goes from {} to {}", node.layer, whole.devices[0],
                  whole.devices[1]);
    crossing = node.inputs[0];
  }
  if (crossing == kNone) return fail(Code::internal, "nothing goes from {} to {}", whole.devices[0], whole.devices[1]);

  std::array<PlanPart, 2> parts;
  for (uint8_t d = 0; d < 2; ++d) {
    Plan& plan = parts[d].plan;
    plan.key = whole.key;
    plan.graph.values = graph.values;
    plan.offset = whole.offset;
    plan.arena_bytes = {whole.arena_bytes[d]};
    plan.devices = {whole.devices[d]};
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      if (graph.nodes[n].device != d) continue;
      plan.graph.nodes.push_back(graph.nodes[n]);
      plan.graph.nodes.back().device = 0;
      plan.workspace.push_back(whole.workspace[n]);
      parts[d].nodes.push_back(uint32_t(n));
    }
    drop_unused(plan.graph);
  }
  Plan &first = parts[0].plan, &second = parts[1].plan;
  first.graph.logits = crossing;
  first.key.tail = Tail::hidden;
  if (graph.value(crossing).rows == Rows::tokens) first.key.n_outputs = first.key.n_tokens, first.key.all_rows = true;
  second.graph.logits = graph.logits;
  second.graph.sampled = graph.sampled;
  Value& hidden = second.graph.values[crossing];
  hidden.kind = ValueKind::input;
  hidden.input = Input::hidden;
  hidden.name = "hidden";
  second.offset[crossing] = Plan::kNoOffset;
  for (const PlanPart& part : parts) ARGENT_TRY(verify(part.plan.graph));
  return parts;
}

}  // namespace argent
