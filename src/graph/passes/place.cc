// Place: a device a layer; an op that its device has no kernel for goes, alone, to the first device that has one.
#include <map>

#include "graph/builder.h"
#include "graph/passes/passes.h"

namespace argent::passes {

Status place(Graph& graph, std::span<const KernelTable* const> devices, const std::vector<uint8_t>& layer_device) {
  if (devices.empty()) return fail(Code::internal, "no device to place the graph on");
  Graph out;
  out.values = graph.values;
  out.logits = graph.logits;
  out.sampled = graph.sampled;
  std::vector<uint8_t> home(graph.values.size(), 0);           // device that makes a value
  std::map<std::pair<ValueId, uint8_t>, ValueId> copied;       // (value, device) -> its copy there
  for (Node node : graph.nodes) {
    const bool in_layer = node.layer >= 0 && size_t(node.layer) < layer_device.size();
    const uint8_t wanted = in_layer ? layer_device[size_t(node.layer)] : layer_device.empty() ? 0 : layer_device.back();
    if (wanted >= devices.size()) return fail(Code::invalid, "layer {} is placed on device {} of {}", node.layer, wanted, devices.size());
    const Kernel first = devices[wanted]->find(graph, node);
    node.device = wanted;
    if (!first.available) {
      bool found = false;
      for (uint8_t d = 0; d < devices.size() && !found; ++d)
        if (d != wanted && devices[d]->find(graph, node).available) node.device = d, found = true;
      if (!found) return fail(Code::unsupported, "{}: {}", devices[wanted]->device_name(), first.reason);
    }
    for (ValueId& id : node.inputs) {
      if (out.values[id].kind != ValueKind::activation || home[id] == node.device) continue;
      auto [it, fresh] = copied.try_emplace({id, node.device}, id);
      if (fresh) {
        ARGENT_LET(Node copy, make_node(out, Op::copy, {id}, {}, node.layer));
        copy.device = node.device;
        it->second = copy.outputs[0];
        out.values[it->second].dtype = out.values[id].dtype;
        home.resize(out.values.size(), node.device);
        out.nodes.push_back(std::move(copy));
      }
      id = it->second;
    }
    for (ValueId id : node.outputs) home[id] = node.device;
    out.nodes.push_back(std::move(node));
  }
  graph = std::move(out);
  return {};
}

}  // namespace argent::passes
