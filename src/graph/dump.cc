// Dumps of a graph or a plan: text for people, JSON for scripts, DOT for pictures.

#include <fmt/ranges.h>

#include "base/json.h"
#include "graph/plan.h"

namespace argent {
namespace {

struct View {
  const Graph& graph;
  const CostContext& context;
  const Plan* plan = nullptr;

  std::string value(ValueId id) const {
    const Value& v = graph.values[id];
    return v.kind == ValueKind::activation ? fmt::format("%{}", id) : v.name;
  }
  std::string place(ValueId id) const {
    return plan && id < plan->offset.size() && plan->offset[id] != Plan::kNoOffset
               ? fmt::format("@{}", plan->offset[id])
               : "";
  }
  std::string device(const Node& node) const {
    return plan && node.device < plan->devices.size() ? plan->devices[node.device] : "";
  }
};

std::string text(const View& view) {
  std::string out;
  uint64_t bytes = 0, flops = 0;
  for (size_t n = 0; n < view.graph.nodes.size(); ++n) {
    const Node& node = view.graph.nodes[n];
    const Cost c = cost(view.graph, node, view.context);
    bytes += c.bytes, flops += c.flops;
    std::string made, read;
    for (ValueId id : node.outputs)
      made += fmt::format("{}{} {}{}", made.empty() ? "" : ", ", view.value(id), describe(view.graph.values[id]),
                          view.place(id));
    for (ValueId id : node.inputs) read += fmt::format("{}{}", read.empty() ? "" : ", ", view.value(id));
    const std::string attrs = describe(node.op, node.attrs);
    out += fmt::format("{:4} {:>6} {}{}({}){}{}{}  # {} B, {} flop{}\n", n,
                       node.layer < 0 ? "-" : fmt::format("L{}", node.layer), made.empty() ? "" : made + " = ",
                       info(node.op).name, read, attrs.empty() ? "" : " ", attrs, node.in_place ? " in place" : "",
                       c.bytes, c.flops, view.device(node).empty() ? "" : ", " + view.device(node));
  }
  out += fmt::format("# {} nodes, {:.3f} MB, {:.3f} GFLOP with {} tokens, {} logits rows, {} positions before",
                     view.graph.nodes.size(), bytes / 1e6, flops / 1e9, view.context.n_tokens, view.context.n_outputs,
                     view.context.n_kv);
  if (view.plan && !view.plan->arena_bytes.empty())
    out += fmt::format(", arena {} B", fmt::join(view.plan->arena_bytes, " + "));
  return out + "\n";
}

Json json(const View& view) {
  Json nodes = Json::array();
  for (size_t n = 0; n < view.graph.nodes.size(); ++n) {
    const Node& node = view.graph.nodes[n];
    const Cost c = cost(view.graph, node, view.context);
    Json in = Json::array(), out = Json::array();
    for (ValueId id : node.inputs) in.push_back(view.value(id));
    for (ValueId id : node.outputs) {
      Json v = {{"value", view.value(id)}, {"shape", describe(view.graph.values[id])}};
      if (!view.place(id).empty()) v["offset"] = view.plan->offset[id];
      out.push_back(std::move(v));
    }
    Json row = {{"node", n},
                {"op", info(node.op).name},
                {"layer", node.layer},
                {"inputs", in},
                {"outputs", out},
                {"attributes", describe(node.op, node.attrs)},
                {"in_place", node.in_place},
                {"bytes", c.bytes},
                {"flops", c.flops}};
    if (!view.device(node).empty()) row["device"] = view.device(node);
    nodes.push_back(std::move(row));
  }
  Json all = {{"nodes", std::move(nodes)}};
  if (view.plan && !view.plan->arena_bytes.empty()) all["arena_bytes"] = view.plan->arena_bytes;
  return all;
}

std::string escaped(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

std::string dot(const View& view) {
  std::string out = "digraph graph_ {\n  rankdir=TB; node [shape=box, fontname=\"monospace\", fontsize=10];\n";
  std::vector<size_t> maker(view.graph.values.size(), SIZE_MAX);
  int32_t layer = -2;
  bool open = false;
  for (size_t n = 0; n < view.graph.nodes.size(); ++n) {
    const Node& node = view.graph.nodes[n];
    if (node.layer != layer) {
      if (open) out += "  }\n";
      layer = node.layer;
      open = layer >= 0;
      if (open) out += fmt::format("  subgraph cluster_{}_{} {{ label=\"layer {}\";\n", layer, n, layer);
    }
    const std::string shape = node.outputs.empty() ? "" : "\\n" + escaped(describe(view.graph.values[node.outputs[0]]));
    const std::string attrs = describe(node.op, node.attrs);
    out += fmt::format("  n{} [label=\"{}{}{}\"];\n", n, info(node.op).name,
                       attrs.empty() ? "" : "\\n" + escaped(attrs), shape);
    for (ValueId id : node.outputs) maker[id] = n;
  }
  if (open) out += "  }\n";
  for (size_t n = 0; n < view.graph.nodes.size(); ++n)
    for (ValueId id : view.graph.nodes[n].inputs) {
      const Value& v = view.graph.values[id];
      if (v.kind == ValueKind::activation)
        out += fmt::format("  n{} -> n{};\n", maker[id], n);
      else
        out += fmt::format("  \"{0}\" [shape=plaintext]; \"{0}\" -> n{1};\n", escaped(v.name), n);
    }
  return out + "}\n";
}

std::string render(const View& view, DumpFormat format) {
  switch (format) {
    case DumpFormat::text:
      return text(view);
    case DumpFormat::json:
      return json(view).dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
    case DumpFormat::dot:
      return dot(view);
  }
  return {};
}

}  // namespace

std::string dump(const Graph& graph, DumpFormat format, const CostContext& context) {
  return render({graph, context}, format);
}
std::string dump(const Plan& plan, DumpFormat format, const CostContext& context) {
  return render({plan.graph, context, &plan}, format);
}

}  // namespace argent
