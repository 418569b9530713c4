// Graphs over two devices: where nodes go, what of a model is whose, and plans that are cut in two.
#include "graph/parts.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "graph/kv_layout.h"
#include "graph/step_check.h"
#include "support/kernel_tables.h"
#include "support/tiny_model.h"

namespace argent {
namespace {

using test::FakeDevice;

std::unique_ptr<test::LoadedModel> tiny_of(const std::string& arch, bool tied = false) {
  auto model = test::load(test::TinyModel(arch, {.tied = tied}));
  EXPECT_TRUE(model) << model.error().message;
  return model ? *std::move(model) : nullptr;
}

// The first n_first of n layers on device 0, with what is before them; the others and the head on device 1.
PlanOptions split_at(uint32_t n_first, uint32_t n) {
  PlanOptions options;
  options.layer_device.assign(n + 1, 1);
  std::fill_n(options.layer_device.begin(), n_first, 0);
  options.fixed = true;
  return options;
}

TEST(Parts, NodesGoWithTheirLayer) {
  for (const std::string& arch : test::kArchitectures) {
    const auto model = tiny_of(arch);
    ASSERT_TRUE(model);
    const Graph& graph = model->model.graph;
    const uint32_t n = model->model.n_layer;
    for (uint32_t cut_at = 0; cut_at <= n; ++cut_at) {
      const auto devices = node_devices(graph, split_at(cut_at, n));
      bool behind = false;
      for (size_t i = 0; i < graph.nodes.size(); ++i) {
        const Node& node = graph.nodes[i];
        behind = behind || node.layer >= 0;
        if (node.op == Op::rope_table) continue;
        const uint32_t wanted = node.layer >= 0 ? uint32_t(node.layer) >= cut_at : behind;
        EXPECT_EQ(devices[i], wanted) << arch << " node " << i << " " << info(node.op).name;
      }
    }
  }
}

// Every weight and cache is in the part that reads it, under its id, and in no other.
TEST(Parts, WhatIsWhose) {
  for (const std::string& arch : test::kArchitectures)
    for (const bool tied : {false, true}) {
      if (tied && arch == "muse-glimmer") continue;  // has its own head always
      const auto model = tiny_of(arch, tied);
      ASSERT_TRUE(model);
      const Graph& graph = model->model.graph;
      const uint32_t n = model->model.n_layer;
      for (uint32_t cut_at = 0; cut_at <= n; ++cut_at) {
        uint64_t shared = 0;
        std::array<Graph, 2> parts;
        for (uint8_t d = 0; d < 2; ++d) parts[d] = device_part(graph, split_at(cut_at, n), d);
        EXPECT_EQ(kv_layout(parts[0]).layers.size(), cut_at);
        EXPECT_EQ(kv_layout(parts[1]).layers.size(), n - cut_at);
        for (ValueId id = 0; id < graph.values.size(); ++id) {
          if (graph.value(id).kind != ValueKind::weight) continue;
          uint32_t there = 0;
          for (const Graph& part : parts) {
            const bool read = std::any_of(part.nodes.begin(), part.nodes.end(), [&](const Node& node) {
              return std::find(node.inputs.begin(), node.inputs.end(), id) != node.inputs.end();
            });
            EXPECT_EQ(part.value(id).kind == ValueKind::weight, read);
            if (!read) continue;
            ++there;
            EXPECT_EQ(part.value(id).name, graph.value(id).name);
          }
          EXPECT_GE(there, 1u) << graph.value(id).name;
          shared += there == 2;
        }
        const bool own_head = std::any_of(graph.values.begin(), graph.values.end(),
                                          [](const Value& v) { return v.name == "output.weight"; });
        EXPECT_EQ(shared, own_head ? 0u : 1u) << arch << " at " << cut_at;
      }
    }
}

TEST(Parts, PlansAreCutInTwo) {
  const FakeDevice cpu("cpu"), gpu("gpu");
  const KernelTable* devices[] = {&cpu, &gpu};
  for (const std::string& arch : test::kArchitectures) {
    const auto model = tiny_of(arch);
    ASSERT_TRUE(model);
    const uint32_t n = model->model.n_layer;
    for (uint32_t cut_at = 0; cut_at <= n; ++cut_at)
      for (const Tail tail : {Tail::logits, Tail::sample, Tail::hidden})
        for (const bool all_rows : {false, true}) {
          const PlanKey key{64, all_rows ? 64u : 8u, all_rows, tail};
          const auto whole = make_plan(model->model.graph, key, devices, split_at(cut_at, n));
          ASSERT_TRUE(whole) << whole.error().message;
          const auto parts = cut(*whole);
          ASSERT_TRUE(parts) << parts.error().message;
          const auto& [first, second] = *parts;
          EXPECT_EQ(first.nodes.size() + second.nodes.size(), whole->graph.nodes.size());
          for (size_t d = 0; d < 2; ++d) {
            const PlanPart& part = (*parts)[d];
            ASSERT_EQ(part.nodes.size(), part.plan.graph.nodes.size());
            ASSERT_EQ(part.plan.workspace.size(), part.nodes.size());
            EXPECT_EQ(part.plan.arena_bytes, std::vector{whole->arena_bytes[d]});
            for (size_t i = 0; i < part.nodes.size(); ++i) {
              EXPECT_EQ(part.plan.graph.nodes[i].op, whole->graph.nodes[part.nodes[i]].op);
              EXPECT_EQ(whole->graph.nodes[part.nodes[i]].device, d);
            }
          }
          // What goes over are the rows of the logits where all layers are on the first device, else all rows.
          const Value& over = first.plan.graph.value(first.plan.graph.logits);
          const bool every = all_rows || cut_at < n;
          EXPECT_EQ(over.rows, every ? Rows::tokens : Rows::outputs);
          EXPECT_EQ(first.plan.key, (PlanKey{64, every ? 64u : 8u, every, Tail::hidden}));
          EXPECT_EQ(second.plan.key, key);
          EXPECT_EQ(second.plan.graph.logits, whole->graph.logits);
          EXPECT_EQ(second.plan.graph.sampled, whole->graph.sampled);
          const KvLayout none;
          const StepRules rules = step_rules(second.plan, none, {}, 32);
          EXPECT_EQ(rules.hidden_width, over.width);
          EXPECT_EQ(rules.hidden_rows, over.rows);
          EXPECT_EQ(rules.n_vocab, tail == Tail::sample ? 100u : uint32_t(INT32_MAX));
          EXPECT_EQ(step_rules(first.plan, none, {}, 32).hidden_width, 0u);
        }
  }
}

// What is known of a plan of the whole model bounds the arena of a part (engine/fit.h).
TEST(Parts, NoPartWantsMoreThanTheWhole) {
  FakeDevice cpu("cpu"), gpu("gpu");
  cpu.scratch = gpu.scratch = [](const Node& node, uint32_t n_rows) -> uint64_t {
    return node.op == Op::matmul || node.op == Op::qkv ? 100 * n_rows + 1 : node.op == Op::attention ? 5000 : 0;
  };
  const KernelTable *one[] = {&gpu}, *two[] = {&cpu, &gpu};
  for (const std::string& arch : test::kArchitectures)
    for (const uint32_t n_vocab : {100u, 5000u}) {
      const auto model = test::load(test::TinyModel(arch, {.n_vocab = n_vocab}));
      ASSERT_TRUE(model) << model.error().message;
      const Graph& graph = (*model)->model.graph;
      const uint32_t n = (*model)->model.n_layer;
      for (const bool fuse : {true, false})
        for (const Tail tail : {Tail::logits, Tail::sample, Tail::sample_logits, Tail::hidden})
          for (const PlanKey& key : {PlanKey{512, 64, false, tail}, PlanKey{64, 64, true, tail}}) {
            const auto whole = make_plan(graph, key, one, {.fuse = fuse});
            ASSERT_TRUE(whole) << whole.error().message;
            for (uint32_t n_first = 0; n_first <= n; ++n_first) {
              PlanOptions options = split_at(n_first, n);
              options.fuse = fuse;
              const auto split = make_plan(graph, key, two, options);
              ASSERT_TRUE(split) << split.error().message;
              for (const uint64_t bytes : split->arena_bytes)
                EXPECT_LE(bytes, whole->arena_bytes[0])
                    << arch << " at " << n_first << ", " << key.n_tokens << " tokens";
            }
          }
    }
}

TEST(Parts, WhatCannotBeCut) {
  const auto model = tiny_of("llama");
  ASSERT_TRUE(model);
  const FakeDevice cpu("cpu"), gpu("gpu"), no_silu("gpu", {Op::silu, Op::glu});
  const KernelTable *one[] = {&cpu}, *two[] = {&cpu, &gpu}, *lacking[] = {&cpu, &no_silu};
  const PlanKey key{8, 8, false, Tail::logits};
  EXPECT_EQ(cut(*make_plan(model->model.graph, key, one)).error().code, Code::internal);
  EXPECT_EQ(cut(*make_plan(model->model.graph, key, two)).error().code, Code::internal);  // all on the first
  EXPECT_EQ(cut(*make_plan(model->model.graph, key, two, {.layer_device = {1, 0}})).error().code, Code::internal);
  // An op without a kernel goes to the other device and the values back and forth, or nowhere.
  PlanOptions options = split_at(1, 2);
  const auto refused = make_plan(model->model.graph, key, lacking, options);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::unsupported);
  EXPECT_EQ(refused.error().message.find("gpu: NONE: silu"), 0u) << refused.error().message;
  options.fixed = false;
  const auto placed = make_plan(model->model.graph, key, lacking, options);
  ASSERT_TRUE(placed);
  EXPECT_EQ(cut(*placed).error().code, Code::internal);
}

TEST(Parts, StepsBringTheHiddenStates) {
  StepRules rules;
  rules.key = {.n_tokens = 4, .n_outputs = 2};
  rules.n_vocab = 10;
  rules.hidden_width = 3;
  const std::vector<float> hidden(6);
  Step step;
  step.tokens = {1, 2}, step.positions = {0, 1}, step.row_sequence = {0, 0}, step.output_rows = {1};
  step.sequences.push_back({.first_row = 0, .n_rows = 2, .tables = {}, .recent = {}});
  for (const auto& [rows, n] : {std::pair(Rows::tokens, 6u), {Rows::outputs, 3u}}) {
    rules.hidden_rows = rows;
    for (const uint32_t given : {0u, 3u, 5u, 6u}) {
      step.hidden = std::span(hidden).first(given);
      EXPECT_EQ(bool(check_step(rules, step, {})), given == n) << given;
    }
  }
  rules.hidden_width = 0;
  EXPECT_FALSE(check_step(rules, step, {}));  // a plan that takes none
  step.clear();
  EXPECT_TRUE(step.hidden.empty());
}

}  // namespace
}  // namespace argent
