#include "backends/null/backend.h"

#include <gtest/gtest.h>

#include <set>

#include "graph/builder.h"

namespace argent::null {
namespace {

// embed -> attention -> matmul over 16 tokens of width 8; no bytes behind the weights, since nothing reads them.
Graph model() {
  static const uint8_t nothing[1] = {};
  Builder b;
  const ValueId x = b.embed(b.input(Input::tokens), b.weight("embed", Format::f32, 16, 8, nothing));
  const ValueId state = b.kv({.n_head_kv = 1, .d_head = 8, .d_value = 8});
  b.kv_store(x, x, state);
  b.set_logits(b.matmul(b.attention(x, state, 1, 1), b.weight("head", Format::f32, 16, 8, nothing)));
  return *b.finish();
}

class Null : public testing::Test {
 protected:
  PlanId compile(const PlanKey& key) {
    const KernelTable* device = backend_.get();
    Plan plan = *make_plan(graph_, key, {&device, 1});
    if (backend_->counters().compiles == 0) {
      EXPECT_TRUE(backend_->allocate(kv_layout(graph_), {1 << 20, {2}}));
    }
    return *backend_->compile(std::move(plan));
  }
  Step step(int32_t token, uint32_t position, uint32_t slot) {
    Step s;
    s.tokens = {token}, s.positions = {int32_t(position)}, s.row_sequence = {0}, s.output_rows = {0};
    s.sequences = {{0, 1, position, slot, {table_}, {}}};
    return s;
  }

  const Graph graph_ = model();
  std::unique_ptr<NullBackend> backend_ = make_backend({});
  const std::vector<int32_t> table_ = {1, 0};
};

TEST_F(Null, SamplesByScript) {
  const PlanId plan = compile({4, 4, true, Tail::sample});
  std::set<int32_t> seen;
  for (uint32_t position = 0; position < 40; ++position) {
    Step s = step(int32_t(position % 16), position, 3);
    s.sampling = {{.seed = 11, .sample_index = 2}};
    const auto result = *backend_->wait(*backend_->run(plan, s));
    ASSERT_EQ(result.sampled.size(), 1u);
    EXPECT_EQ(result.sampled[0], scripted_token(11, 2, position, 16));
    seen.insert(result.sampled[0]);
  }
  EXPECT_GT(seen.size(), 8u);
  EXPECT_EQ(backend_->counters().runs, 40u);
  EXPECT_EQ(backend_->counters().rows, 40u);
  EXPECT_EQ(backend_->counters().output_rows, 40u);
  EXPECT_EQ(backend_->counters().compiles, 1u);
}

TEST_F(Null, GreedyPlansGoBySlotAndFeedBack) {
  const PlanId plan = compile({4, 4, true, Tail::greedy});
  EXPECT_FALSE(backend_->run(plan, step(~3, 0, 3)));  // slot 3 sampled nothing yet
  const Ticket first = *backend_->run(plan, step(5, 0, 3));
  ASSERT_TRUE(backend_->run(plan, step(~3, 1, 3)));
  EXPECT_EQ((*backend_->wait(first)).sampled[0], scripted_token(3, 0, 0, 16));  // a host one step behind
}

TEST_F(Null, LogitsPointAtTheScriptedToken) {
  const PlanId plan = compile({4, 4, true, Tail::logits});
  const auto result = *backend_->wait(*backend_->run(plan, step(5, 0, 3)));
  ASSERT_EQ(result.logits.size(), 16u);
  for (int32_t i = 0; i < 16; ++i) EXPECT_EQ(result.logits[size_t(i)], i == scripted_token(3, 0, 0, 16) ? 1 : 0);
}

TEST_F(Null, ChecksSteps) {
  const PlanId plan = compile({4, 4, true, Tail::logits});
  EXPECT_EQ(backend_->run(plan, step(16, 0, 0)).error().message, "step: token 0 is 16, the vocabulary has 16 tokens");
  EXPECT_EQ(backend_->run(plan, step(1, 64, 0)).error().message, "step: sequence 0 has 2 blocks in group 0, wants 3");
  EXPECT_EQ(backend_->run(1, step(1, 0, 0)).error().code, Code::internal);
  EXPECT_EQ(backend_->counters().runs, 0u);
  const KvCopy bad{0, 0, 2}, good{0, 0, 1};
  EXPECT_FALSE(backend_->copy_blocks({&bad, 1}));
  EXPECT_TRUE(backend_->copy_blocks({&good, 1}));
  EXPECT_EQ(backend_->counters().copies, 1u);
}

TEST_F(Null, MemoryCanBeShort) {
  const KvLayout layout = kv_layout(graph_);
  const uint64_t block = backend_->kv_bytes(layout.layers[0], 1);
  EXPECT_EQ(block, 32u * (8 + 8) * 2);
  backend_->set_memory(100 + 3 * block);
  EXPECT_TRUE(backend_->allocate(layout, {100, {3}}));
  EXPECT_EQ(backend_->allocate(layout, {101, {3}}).error().code, Code::out_of_memory);
  EXPECT_EQ(backend_->allocate(layout, {100, {}}).error().code, Code::internal);
}

}  // namespace
}  // namespace argent::null
