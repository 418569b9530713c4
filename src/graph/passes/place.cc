// Place: a device a layer; an op that its device has no kernel for goes, alone, to the first device that has one. What
// reads and writes a KV cache goes together, since a cache lives on one device.
#include <map>

#include "graph/builder.h"
#include "graph/parts.h"
#include "graph/passes/passes.h"

namespace argent::passes {
namespace {

// The nodes that use each state; empty for other values.
std::vector<std::vector<const Node*>> state_users(const Graph& graph) {
  std::vector<std::vector<const Node*>> users(graph.values.size());
  for (const Node& node : graph.nodes)
    for (ValueId id : node.inputs)
      if (graph.value(id).kind == ValueKind::state) users[id].push_back(&node);
  return users;
}

}  // namespace

Status place(Graph& graph, std::span<const KernelTable* const> devices, const PlanOptions& options) {
  if (devices.empty()) return fail(Code::internal, "no device to place the graph on");
  Graph out;
  out.values = graph.values;
  out.logits = graph.logits;
  out.sampled = graph.sampled;
  std::vector<uint8_t> home(graph.values.size(), 0);      // device that makes a value
  std::map<std::pair<ValueId, uint8_t>, ValueId> copied;  // (value, device) -> its copy there
  const auto users = state_users(graph);
  const std::vector<uint8_t> wanted_devices = node_devices(graph, options);
  std::map<ValueId, const Node*> tables;  // of rope
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& original = graph.nodes[n];
    Node node = original;
    const uint8_t wanted = wanted_devices[n];
    if (wanted >= devices.size())
      return fail(Code::invalid, "layer {} is placed on device {} of {}", node.layer, wanted, devices.size());
    std::vector<const Node*> together = {&original};
    for (ValueId id : node.inputs)
      if (graph.value(id).kind == ValueKind::state) together = users[id];
    // The first kernel that a device lacks; an available one when it has all.
    const auto lacking = [&](size_t device) {
      Kernel kernel;
      for (const Node* part : together)
        if (kernel = devices[device]->find(graph, *part); !kernel.available) break;
      return kernel;
    };
    node.device = wanted;
    if (const Kernel first = lacking(wanted); !first.available) {
      size_t d = options.fixed ? devices.size() : 0;
      while (d < devices.size() && (d == wanted || !lacking(d).available)) ++d;
      if (d == devices.size()) return fail(Code::unsupported, "{}: {}", devices[wanted]->device_name(), first.reason);
      node.device = uint8_t(d);
    }
    if (node.op == Op::rope_table) tables[node.outputs[0]] = &original;
    for (ValueId& id : node.inputs) {
      if (out.values[id].kind != ValueKind::activation || home[id] == node.device) continue;
      auto [it, fresh] = copied.try_emplace({id, node.device}, id);
      if (fresh) {
        const auto table = tables.find(id);
        const bool again = table != tables.end() && devices[node.device]->find(graph, *table->second).available;
        ARGENT_LET(Node made, again ? make_node(out, Op::rope_table, table->second->inputs, table->second->attrs,
                                                table->second->layer)
                                    : make_node(out, Op::copy, {id}, {}, node.layer));
        made.device = node.device;
        it->second = made.outputs[0];
        home.resize(out.values.size(), node.device);
        out.nodes.push_back(std::move(made));
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
