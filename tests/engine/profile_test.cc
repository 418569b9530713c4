// What the engine reports of its steps, and what a profile makes of it.
#include "engine/profile.h"

#include "engine/engines.h"
#include "graph/builder.h"

namespace argent {
namespace {

using test::options_for;

TEST(EngineProfile, EveryStepHasItsNodesAndLayers) {
  for (const std::string device : {"cpu", "reference", "null"})
    for (const std::string& arch : test::kArchitectures) {
      const auto engine = test::open(test::TinyModel(arch), options_for(device));
      ASSERT_TRUE(engine);
      const uint32_t n_layer = uint32_t(engine->model().kv.layers.size());
      std::vector<ProfiledStep> steps;
      uint64_t last_end = 0;
      engine->set_profile([&](const ProfiledStep& step) {
        ASSERT_EQ(step.nodes.size(), step.graph->nodes.size()) << device;
        std::vector<uint32_t> of_layer(n_layer, 0);
        uint64_t at = 0;
        for (size_t i = 0; i < step.nodes.size(); ++i) {
          EXPECT_EQ(step.nodes[i].node, i);
          EXPECT_GE(step.nodes[i].begin, at) << device;
          at = step.nodes[i].begin + step.nodes[i].nanoseconds;
          EXPECT_EQ(step.nodes[i].busy.size(), device == "cpu" ? engine->options().backend.n_threads : 0);
          for (const uint64_t busy : step.nodes[i].busy) EXPECT_LE(busy, step.nodes[i].nanoseconds);
          const int32_t layer = step.graph->nodes[i].layer;
          ASSERT_LT(layer, int32_t(n_layer));
          if (layer >= 0) ++of_layer[size_t(layer)];
          for (const ValueId id : step.graph->nodes[i].inputs) {  // fused or not, a node is where its weights are
            const Value& v = step.graph->value(id);
            if (v.kind != ValueKind::weight) continue;
            // The norm in front of the sum may be the layer's before.
            if (step.graph->nodes[i].op == Op::norm_add_norm && id == step.graph->nodes[i].inputs[1]) continue;
            const bool inside = v.name.starts_with("blk.");
            EXPECT_EQ(layer, inside ? std::stoi(v.name.substr(4)) : -1) << arch << " " << v.name;
          }
        }
        EXPECT_LE(at, step.nanoseconds) << device;
        EXPECT_GE(step.begin, last_end);
        last_end = step.begin + step.nanoseconds;
        for (const uint32_t n : of_layer) EXPECT_GE(n, 4u) << arch;  // norms, products, attention
        steps.push_back(step);
      });
      test::generate(*engine, {test::text(40), {}, 3});
      ASSERT_EQ(steps.size(), 3u);
      EXPECT_EQ(std::tuple(steps[0].decode, steps[0].context.n_tokens, steps[0].context.n_kv),
                std::tuple(false, 40, 0));
      EXPECT_EQ(std::tuple(steps[2].decode, steps[2].context.n_tokens, steps[2].context.n_kv), std::tuple(true, 1, 41));
    }
}

// A profile that begins late sees the plans that are there already, and they are not compiled again.
TEST(EngineProfile, BeginsAndEndsAtAnyTime) {
  const auto engine = test::open(test::TinyModel("llama"), options_for("cpu"));
  ASSERT_TRUE(engine);
  const std::vector<int32_t> before = test::generate(*engine, {test::text(5)});
  const uint64_t plans = engine->counters().plans_built;
  Profile profile;
  engine->set_profile([&](const ProfiledStep& step) { profile.add(step); });
  EXPECT_EQ(test::generate(*engine, {test::text(5)}), before);
  EXPECT_EQ(engine->counters().plans_built, plans);
  EXPECT_EQ(profile.decode().steps + profile.prefill().steps, 16u);
  const uint64_t seen = profile.decode().nanoseconds;
  EXPECT_GT(seen, 0u);
  engine->set_profile({});
  EXPECT_EQ(test::generate(*engine, {test::text(5)}), before);
  EXPECT_EQ(profile.decode().nanoseconds, seen);
}

TEST(EngineProfile, SequencesOfOneStepCountTogether) {
  const auto engine = test::open(test::TinyModel("llama"), options_for("null"));
  ASSERT_TRUE(engine);
  CostContext last;
  engine->set_profile([&](const ProfiledStep& step) {
    if (step.decode) last = step.context;
  });
  test::generate(*engine, std::vector<test::Request>{{test::text(10, 1), {}, 4}, {test::text(20, 2), {}, 4}});
  EXPECT_EQ(std::tuple(last.n_tokens, last.n_sequences, last.n_kv), std::tuple(2, 2, 10 + 20 + 2 * 2));
}

TEST(Profile, AddsUpByPhaseLayerAndOp) {
  auto graph = std::make_shared<Graph>();
  Builder b;
  static const uint8_t bytes[1 << 12] = {};
  b.layer(3);
  const ValueId x = b.embed(b.input(Input::tokens), b.weight("t", Format::f32, 10, 64, bytes));
  b.layer(-1);
  b.set_logits(b.matmul(x, b.weight("w", Format::q8_0, 32, 64, bytes)));
  *graph = *b.finish();
  const uint64_t busy[] = {100, 60};
  const NodeTime times[] = {{0, 100, 0, busy}, {1, 50, 100, {}}};
  ProfiledStep step{graph, {.n_tokens = 1, .n_outputs = 1}, true, true, 0, 160, times};
  Profile profile;
  profile.add(step);
  profile.add(step);
  step.decode = false;
  profile.add(step);
  EXPECT_EQ(std::tuple(profile.decode().steps, profile.decode().tokens, profile.decode().nanoseconds),
            std::tuple(2, 2, 320));
  EXPECT_EQ(profile.prefill().steps, 1u);
  ASSERT_EQ(profile.decode().times.size(), 2u);
  const OpTime& embed = profile.decode().times.at({3, Op::embed});
  EXPECT_EQ(std::tuple(embed.count, embed.nanoseconds), std::tuple(2, 200));
  EXPECT_DOUBLE_EQ(embed.wait(), 0.2);  // 2 * (200 - 160) of 400
  const OpTime& matmul = profile.decode().times.at({-1, Op::matmul});
  EXPECT_EQ(matmul.wait(), 0);
  EXPECT_EQ(matmul.cost.flops, 2u * 2 * 32 * 64);
  profile.clear();
  EXPECT_EQ(profile.decode().steps + profile.prefill().steps, 0u);
}

TEST(Profile, LimitIsWhatTakesLongest) {
  const DevicePeaks peaks{100, 1000, 10};
  const auto limit = [&](const Cost& cost, bool int8) {
    const Limit l = limit_of(cost, peaks, int8);
    return std::pair(l.seconds, l.name);
  };
  using L = std::pair<double, std::string_view>;
  EXPECT_EQ(limit({200, 100, 0, 100}, true), L(2, "read"));
  EXPECT_EQ(limit({200, 5000, 0, 5000}, true), L(5, "int8"));
  EXPECT_EQ(limit({200, 5000, 0, 5000}, false), L(500, "f32"));
  EXPECT_EQ(limit({200, 5030, 0, 5000}, true), L(8, "int8"));  // products of both kinds
  EXPECT_EQ(limit({200, 5080, 0, 5000}, true), L(13, "f32"));
  EXPECT_EQ(limit_of({200, 100, 0, 0}, {}, true).seconds, 0);
}

}  // namespace
}  // namespace argent
