// Devices for tests of the passes: kernel tables that lack what a test wants them to lack.
#pragma once

#include <fmt/format.h>

#include <array>
#include <functional>
#include <set>

#include "graph/kernel_table.h"

namespace argent::test {

struct FakeDevice : KernelTable {
  explicit FakeDevice(std::string n, std::set<Op> lacking = {}) : name(std::move(n)), none(std::move(lacking)) {
    none.insert(kWholeLayers.begin(), kWholeLayers.end());
  }
  // Fusions that a CPU gains nothing from.
  static constexpr std::array kWholeLayers = {Op::norm_add_norm, Op::mul_sigmoid, Op::qkv_store};

  std::string device_name() const override { return name; }
  Kernel find(const Graph& graph, const Node& node) const override {
    if (!none.contains(node.op) && (!refuses || !refuses(graph, node))) return {true, {}};
    std::string shapes;
    for (ValueId id : node.inputs) shapes += fmt::format("{}{}", shapes.empty() ? "" : ", ", describe(graph.value(id)));
    return {false, fmt::format("NONE: {}({})", info(node.op).name, shapes)};
  }
  bool wants_fused(Op op) const override { return !unfused.contains(op); }
  uint64_t workspace(const Graph&, const Node& node, uint32_t n_rows) const override {
    return scratch ? scratch(node, n_rows) : 0;
  }

  std::string name;
  std::set<Op> none;     // ops without a kernel
  std::set<Op> unfused;  // fused ops with a kernel that gains nothing
  std::function<bool(const Graph&, const Node&)> refuses;
  std::function<uint64_t(const Node&, uint32_t)> scratch;
};

}  // namespace argent::test
