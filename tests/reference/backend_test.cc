// The reference as a backend: what it refuses, and what lives from step to step.
#include <gtest/gtest.h>

#include "ops/harness.h"

namespace argent::ops_test {
namespace {

// A plan of a two-group model on the reference, and a valid step for it.
class StepCheck : public testing::Test {
 protected:
  void SetUp() override {
    maker_.builder().set_logits(maker_.two_groups());
    auto graph = maker_.builder().finish();
    ASSERT_TRUE(graph) << graph.error().message;
    graph_ = *graph;
    backend_ = *make_poisoned_reference({});
    for (const Tail tail : {Tail::logits, Tail::greedy, Tail::sample}) plans_.push_back(compile({8, 4, false, tail}));
    plans_.push_back(compile({8, 8, true, Tail::logits}));
    tables_ = {{3, 1}, {0, 2}, {2}, {3}};
    step_.tokens = {1, 2, 3, 63};
    step_.positions = {31, 32, 33, 0};
    step_.row_sequence = {0, 0, 0, 1};
    step_.output_rows = {2, 3};
    step_.sequences = {{0, 3, 31, 7, {tables_[0], tables_[1]}, {}}, {3, 1, 0, 2, {tables_[2], tables_[3]}, {}}};
  }
  PlanId compile(const PlanKey& key) {
    const KernelTable* device = backend_.get();
    auto plan = make_plan(graph_, key, {&device, 1});
    EXPECT_TRUE(plan) << plan.error().message;
    if (plans_.empty()) {
      EXPECT_TRUE(backend_->allocate(kv_layout(graph_), {1 << 20, {4, 4}}));
    }
    auto id = backend_->compile(*std::move(plan));
    EXPECT_TRUE(id) << id.error().message;
    return *id;
  }
  // Runs the step after a change; the error's message, or "".
  template <class F>
  std::string after(const F& change, Tail tail = Tail::logits) {
    Step step = step_;
    change(step);
    const auto ticket = backend_->run(plans_[size_t(tail)], step);
    if (ticket) return "";
    EXPECT_EQ(ticket.error().code, Code::invalid);
    return ticket.error().message;
  }

  Maker maker_{1};
  Graph graph_;
  std::unique_ptr<Backend> backend_;
  std::vector<PlanId> plans_;
  std::vector<std::vector<int32_t>> tables_;
  Step step_;
};

TEST_F(StepCheck, NamesWhatDoesNotFit) {
  const SampleParams greedy{.temperature = 0};
  struct Row {
    const char* message;
    std::function<void(Step&)> change;
    Tail tail = Tail::logits;
  };
  std::vector<int32_t> table;
  const Row rows[] = {
      {"", [](Step&) {}},
      {"has 0 rows, the plan takes 1 to 8", [](Step& s) { s.clear(); }},
      {"has 9 rows", [](Step& s) { s.tokens.resize(9); }},
      {"4 tokens, but 3 positions", [](Step& s) { s.positions.pop_back(); }},
      {"and 5 sequence numbers", [](Step& s) { s.row_sequence.push_back(1); }},
      {"wants logits of 5 rows, the plan gives at most 4",
       [](Step& s) {
         s.output_rows = {0, 1, 2, 3, 3};
       }},
      {"output row 1 is 2, wants ascending",
       [](Step& s) {
         s.output_rows = {2, 2};
       }},
      {"output row 0 is -1", [](Step& s) { s.output_rows = {-1}; }},
      {"output row 1 is 4",
       [](Step& s) {
         s.output_rows = {2, 4};
       }},
      {"", [](Step& s) { s.output_rows = {}; }},
      {"token 3 is 64, the vocabulary has 64", [](Step& s) { s.tokens[3] = 64; }},
      {"token 0 is what slot 7 sampled, but it sampled nothing", [](Step& s) { s.tokens[0] = ~7; }},
      {"token 0 is what slot 2147483647 sampled", [](Step& s) { s.tokens[0] = INT32_MIN; }},
      {"recent token 1 is 64",
       [&](Step& s) {
         s.sequences[0].recent = (table = {0, 64});
       }},
      {"row 1 of sequence 0 is at position 33, wants 32", [](Step& s) { s.positions[1] = 33; }},
      {"row 1 belongs to sequence 0 and to 1", [](Step& s) { s.row_sequence[1] = 1; }},
      {"the sequences have 3 rows, the step 4", [](Step& s) { s.sequences.pop_back(); }},
      {"row 2 belongs to sequence 1 and to 0", [](Step& s) { s.sequences[1].first_row = 2; }},
      {"sequence 1 has rows 3 to 3", [](Step& s) { s.sequences[1].n_rows = 0; }},
      {"sequence 1 has rows 3 to 4294967298", [](Step& s) { s.sequences[1].n_rows = UINT32_MAX; }},
      {"sequence 1 is 2147483647 positions long", [](Step& s) { s.sequences[1].length = INT32_MAX; }},
      {"two sequences have slot 7", [](Step& s) { s.sequences[1].slot = 7; }},
      {"sequence 1 has slot 4294967295", [](Step& s) { s.sequences[1].slot = UINT32_MAX; }},
      {"sequence 0 has 1 block tables, wants 2", [](Step& s) { s.sequences[0].tables.pop_back(); }},
      {"sequence 0 has 1 blocks in group 0, wants 2",
       [](Step& s) { s.sequences[0].tables[0] = s.sequences[0].tables[0].first(1); }},
      {"block 1 of sequence 0 in group 0 is 4, the pool has 4",
       [&](Step& s) {
         s.sequences[0].tables[0] = (table = {3, 4});
       }},
      {"block 0 of sequence 0 in group 0 is -1",
       [&](Step& s) {
         s.sequences[0].tables[0] = (table = {-1, 1});
       }},
      {"block 0 of sequence 0 in group 1 is -1",
       [&](Step& s) {
         s.sequences[0].tables[1] = (table = {-1, 1});
       }},
      {"block 1 of group 0 is written twice, by sequences 0 and 1",
       [&](Step& s) { s.sequences[1].tables[0] = s.sequences[0].tables[0].last(1); }},
      {"block 3 of group 0 is written twice",
       [&](Step& s) {
         s.sequences[0].tables[0] = (table = {3, 3});
       }},
      {"has 1 sampling parameters and 0 rules, the plan samples nothing", [&](Step& s) { s.sampling = {greedy}; }},
      {"has 1 sampling parameters for 2 output rows", [&](Step& s) { s.sampling = {greedy}; }, Tail::sample},
      {"has 0 sampling parameters for 2 output rows", [&](Step&) {}, Tail::sample},
      {"output row 1 wants temperature 0.5",
       [&](Step& s) {
         s.sampling = {greedy, {.temperature = 0.5f}};
       },
       Tail::greedy},
      {"top_p is 0",
       [&](Step& s) {
         s.sampling = {greedy, {.top_p = 0}};
       },
       Tail::sample},
      {"",
       [&](Step& s) {
         s.sampling = {greedy, {.temperature = 1}};
       },
       Tail::sample},
      {"", [](Step&) {}, Tail::greedy},
  };
  for (const Row& row : rows) {
    const std::string message = after(row.change, row.tail);
    if (*row.message == 0)
      EXPECT_EQ(message, "");
    else
      EXPECT_NE(message.find(row.message), std::string::npos) << "seen: " << message << "\nwanted: " << row.message;
  }
  Step step = step_;  // the plan of all rows
  const auto ticket = backend_->run(plans_[3], step);
  ASSERT_FALSE(ticket);
  EXPECT_EQ(ticket.error().message, "step: the plan wants logits of all 4 rows, the step of 2");
}

TEST_F(StepCheck, ReadersOfAWrittenBlock) {
  // Sequence 1 at position 40 reads block 1, which sequence 0 writes.
  tables_[2] = {1, 2}, tables_[3] = {1, 3};
  const std::string message = after([&](Step& s) {
    s.positions[3] = 40;
    s.sequences[1].length = 40;
    s.sequences[1].tables = {tables_[2], tables_[3]};
  });
  EXPECT_EQ(message, "step: block 1 of group 0 is written by sequence 0 and read by 1");
}

TEST_F(StepCheck, BlocksThatAWindowHasPassedMayBeGone) {
  // A row at position p sees p - 6 to p in the sliding group: block 0 ends with position 31.
  const std::vector<int32_t> passed = {-1, 2};
  const auto at = [&](uint32_t position) {
    return after([&](Step& s) {
      for (int i = 0; i < 3; ++i) s.positions[size_t(i)] = int32_t(position) + i;
      s.sequences[0].length = position;
      s.sequences[0].tables[1] = passed;
    });
  };
  EXPECT_EQ(at(38), "");
  EXPECT_EQ(at(37), "step: block 0 of sequence 0 in group 1 is -1, the pool has 4");
}

TEST_F(StepCheck, PlansTicketsAndCopies) {
  EXPECT_EQ(backend_->run(99, step_).error().code, Code::internal);
  EXPECT_FALSE(backend_->wait(0));
  const Ticket first = *backend_->run(plans_[1], step_);
  const auto sampled = *backend_->wait(first);
  const std::vector<int32_t> tokens(sampled.sampled.begin(), sampled.sampled.end());
  ASSERT_EQ(tokens.size(), 2u);
  EXPECT_TRUE(sampled.logits.empty());
  const Ticket second = *backend_->run(plans_[0], step_);
  EXPECT_EQ((*backend_->wait(second)).logits.size(), 2 * 128u);
  const auto late = *backend_->wait(first);  // a host one step behind
  EXPECT_EQ(std::vector<int32_t>(late.sampled.begin(), late.sampled.end()), tokens);
  ASSERT_TRUE(backend_->run(plans_[0], step_));
  EXPECT_TRUE((*backend_->wait(second)).logits.empty());  // overwritten
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(backend_->run(plans_[0], step_));
  EXPECT_FALSE(backend_->wait(first));

  EXPECT_TRUE(backend_->copy_blocks({}));
  for (const KvCopy& copy : {KvCopy{2, 0, 0}, KvCopy{0, -1, 0}, KvCopy{0, 0, 4}, KvCopy{1, 4, 0}})
    EXPECT_EQ(backend_->copy_blocks({&copy, 1}).error().code, Code::internal);
}

TEST(ReferenceBackend, SlotsCarrySampledTokens) {
  Maker m(4);
  m.builder().set_logits(m.logits(64));
  const auto graph = *m.builder().finish();
  const auto backend = *make_poisoned_reference({});
  const KernelTable* device = backend.get();
  Plan plan = *make_plan(graph, {2, 2, true, Tail::greedy}, {&device, 1});
  ASSERT_TRUE(backend->allocate(kv_layout(graph), {plan.arena_bytes[0], {}}));
  const PlanId id = *backend->compile(std::move(plan));
  int32_t position = 0;
  const auto sample = [&](int32_t a, int32_t b) {
    Step step;
    step.tokens = {a, b}, step.positions = {position, position}, step.row_sequence = {0, 1}, step.output_rows = {0, 1};
    step.sequences = {{0, 1, uint32_t(position), 7, {}, {}}, {1, 1, uint32_t(position), 2, {}, {}}};
    ++position;
    const auto ticket = backend->run(id, step);
    EXPECT_TRUE(ticket) << ticket.error().message;
    const auto sampled = (*backend->wait(*ticket)).sampled;
    return std::vector<int32_t>(sampled.begin(), sampled.end());
  };
  const auto first = sample(10, 11);
  const auto second = sample(~7, ~2), swapped = sample(first[1], first[0]);
  EXPECT_NE(second[0], second[1]);
  EXPECT_EQ(second, (std::vector<int32_t>{swapped[1], swapped[0]}));
  const auto crossed = sample(~2, ~7);
  EXPECT_EQ(crossed, sample(swapped[1], swapped[0]));
  const auto failed = sample(1, 11);
  EXPECT_EQ(failed, (std::vector<int32_t>{-1, first[1]}));  // the logits of token 1 hold a NaN
  const auto after = sample(~7, ~2);                        // the other sequence goes on
  EXPECT_EQ(after[1], second[1]);
}

TEST_F(StepCheck, CopiedBlocksReadTheSame) {
  ASSERT_TRUE(backend_->run(plans_[0], step_));
  const auto run = [&](const std::vector<int32_t>& full, const std::vector<int32_t>& sliding) {
    Step step;
    step.tokens = {5}, step.positions = {33}, step.row_sequence = {0}, step.output_rows = {0};
    step.sequences = {{0, 1, 33, 7, {full, sliding}, {}}};
    const auto ticket = backend_->run(plans_[0], step);
    EXPECT_TRUE(ticket);
    const auto logits = (*backend_->wait(*ticket)).logits;
    return std::vector<float>(logits.begin(), logits.end());
  };
  // Positions 0 to 30 were never written: NaN in the full group, and the copies must bring even that.
  const KvCopy copies[] = {{0, 1, 0}, {1, 2, 1}};
  ASSERT_TRUE(backend_->copy_blocks(copies));
  const auto original = run({3, 1}, {0, 2}), copied = run({3, 0}, {0, 1});
  for (size_t i = 0; i < original.size(); ++i)
    EXPECT_EQ(std::bit_cast<uint32_t>(original[i]), std::bit_cast<uint32_t>(copied[i]));
}

TEST(ReferenceBackend, PoisonShowsInStaleReads) {
  // A decode over positions that no step ever stored.
  Maker m(2);
  m.builder().set_logits(m.attention(1, {.n_head_kv = 1, .d_head = 8, .d_value = 8}, 1));
  const auto graph = m.builder().finish();
  const auto backend = *make_poisoned_reference({});
  const KernelTable* device = backend.get();
  auto plan = *make_plan(*graph, {1, 1, true, Tail::logits}, {&device, 1});
  ASSERT_TRUE(backend->allocate(kv_layout(*graph), {plan.arena_bytes[0], {1}}));
  const PlanId id = *backend->compile(std::move(plan));
  const std::vector<int32_t> table = {0};
  Step step;
  step.tokens = {9}, step.positions = {3}, step.row_sequence = {0}, step.output_rows = {0};
  step.sequences = {{0, 1, 3, 0, {table}, {}}};
  EXPECT_TRUE(std::isnan((*backend->wait(*backend->run(id, step))).logits[0]));
}

TEST(ReferenceBackend, PoisonShowsWhatNoNodeMade) {
  Maker m(2);
  m.builder().set_logits(m.builder().silu(m.rows(16)));
  const auto graph = *m.builder().finish();
  const auto backend = *make_poisoned_reference({});
  const KernelTable* device = backend.get();
  Plan plan = *make_plan(graph, {1, 1, true, Tail::logits}, {&device, 1});
  ASSERT_TRUE(backend->allocate(kv_layout(graph), {plan.arena_bytes[0], {}}));
  const PlanId whole = *backend->compile(plan);
  plan.graph.nodes.erase(plan.graph.nodes.begin());  // the embedding
  const PlanId broken = *backend->compile(std::move(plan));
  Step step;
  step.tokens = {9}, step.positions = {0}, step.row_sequence = {0}, step.output_rows = {0};
  step.sequences = {{0, 1, 0, 0, {}, {}}};
  EXPECT_TRUE(std::isfinite((*backend->wait(*backend->run(whole, step))).logits[0]));
  EXPECT_TRUE(std::isnan((*backend->wait(*backend->run(broken, step))).logits[0]));
}

TEST(ReferenceBackend, RunningOutOfMemoryIsAnError) {
  Maker m(2);
  m.builder().set_logits(m.attention(1, {.n_head_kv = 64, .d_head = 1024, .d_value = 1024}, 1));
  // 2^32 - 1 blocks of 4 MiB: no machine's.
  const auto backend = *make_reference_backend({});
  const KvLayout layout = kv_layout(m.builder().graph());
  EXPECT_EQ(backend->allocate(layout, {64, {UINT32_MAX}}).error().code, Code::out_of_memory);
  EXPECT_EQ(backend->allocate(layout, {uint64_t(1) << 60, {1}}).error().code, Code::out_of_memory);
  EXPECT_EQ(backend->allocate(layout, {64, {}}).error().code, Code::internal);
}

TEST(ReferenceBackend, RefusesPlansThatDoNotFitTheArena) {
  Maker m(2);
  m.builder().set_logits(m.attention(1, {.n_head_kv = 1, .d_head = 8, .d_value = 8}, 1));
  const auto graph = *m.builder().finish();
  const auto backend = *make_reference_backend({});
  const KernelTable* device = backend.get();
  const Plan plan = *make_plan(graph, {64, 64, true, Tail::logits}, {&device, 1});
  EXPECT_EQ(backend->compile(plan).error().code, Code::internal);  // nothing is allocated
  ASSERT_TRUE(backend->allocate(kv_layout(graph), {plan.arena_bytes[0] - 64, {1}}));
  EXPECT_EQ(backend->compile(plan).error().code, Code::internal);
  ASSERT_TRUE(backend->allocate(kv_layout(graph), {plan.arena_bytes[0], {1}}));
  EXPECT_TRUE(backend->compile(plan));
}

TEST(ReferenceBackend, ProfileHasEveryNode) {
  Maker m(2);
  m.builder().set_logits(m.builder().silu(m.rows(16)));
  const auto graph = *m.builder().finish();
  const auto backend = *make_reference_backend({});
  const KernelTable* device = backend.get();
  Plan plan = *make_plan(graph, {1, 1, true, Tail::logits}, {&device, 1});
  const size_t n_nodes = plan.graph.nodes.size();
  ASSERT_TRUE(backend->allocate(kv_layout(graph), {plan.arena_bytes[0], {}}));
  const PlanId id = *backend->compile(std::move(plan));
  Step step;
  step.tokens = {1}, step.positions = {0}, step.row_sequence = {0}, step.output_rows = {0};
  step.sequences = {{0, 1, 0, 0, {}, {}}};
  ASSERT_TRUE(backend->run(id, step));
  EXPECT_TRUE(backend->profile().empty());
  backend->set_profile(true);
  ASSERT_TRUE(backend->run(id, step));
  ASSERT_EQ(backend->profile().size(), n_nodes);
  for (size_t i = 0; i < n_nodes; ++i) EXPECT_EQ(backend->profile()[i].node, i);
}

}  // namespace
}  // namespace argent::ops_test
