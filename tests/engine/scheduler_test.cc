// pick_step: exhaustively on small sizes, at random on large ones.
#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/rng.h"

namespace argent {
namespace {

void check(const std::vector<Want>& wants, const Budget& budget) {
  const std::vector<Pick> picks = pick_step(wants, budget);
  uint64_t tokens = 0, outputs = 0;
  std::vector<const Pick*> of(wants.size(), nullptr);
  bool prompts = false;
  for (const Pick& pick : picks) {
    ASSERT_LT(pick.index, wants.size());
    ASSERT_EQ(of[pick.index], nullptr) << "picked twice";
    of[pick.index] = &pick;
    const Want& w = wants[pick.index];
    ASSERT_GE(pick.n_tokens, 1u);
    ASSERT_LE(pick.n_tokens, w.missing);
    // Logits rows: all of them, the last when it is reached, else none.
    ASSERT_EQ(pick.n_outputs, w.all_rows ? pick.n_tokens : w.last_row && pick.n_tokens == w.missing ? 1 : 0);
    tokens += pick.n_tokens, outputs += pick.n_outputs;
    ASSERT_TRUE(w.missing > 1 || !prompts) << "a decode behind a prompt";
    prompts = prompts || w.missing > 1;
  }
  ASSERT_LE(tokens, budget.max_tokens);
  ASSERT_LE(outputs, budget.max_outputs);
  ASSERT_TRUE(std::is_sorted(picks.begin(), picks.end(), [&](const Pick& a, const Pick& b) {
    return std::pair(wants[a.index].missing > 1, a.index) < std::pair(wants[b.index].missing > 1, b.index);
  }));
  // Decodes are never delayed while the budget has room for them, however long the prompts are.
  uint64_t decodes = 0, decode_rows = 0;
  for (size_t i = 0; i < wants.size(); ++i)
    if (wants[i].missing == 1) {
      const uint32_t row = wants[i].all_rows || wants[i].last_row;
      if (++decodes > budget.max_tokens) break;
      if ((decode_rows += row) > budget.max_outputs) break;
      ASSERT_NE(of[i], nullptr) << "decode " << i << " waits";
    }
  // No idle budget: a sequence left behind could not have been brought forward.
  for (size_t i = 0; i < wants.size(); ++i) {
    const Want& w = wants[i];
    if (w.missing == 0 || (of[i] && of[i]->n_tokens == w.missing)) continue;
    const bool no_rows = outputs == budget.max_outputs, no_tokens = tokens == budget.max_tokens;
    if (no_tokens) continue;
    ASSERT_TRUE(no_rows) << i;
    if (!w.all_rows) {
      ASSERT_TRUE(w.last_row && (of[i] ? of[i]->n_tokens : 0) == w.missing - 1) << i;
    }
  }
}

TEST(PickStep, SmallSizesExhaustively) {
  const std::vector<Want> kinds = {{1, false, true}, {1, true, true},   {1, false, false}, {2, false, true},
                                   {3, true, true},  {4, false, false}, {5, false, true},  {0, false, true}};
  const size_t n = kinds.size();
  for (uint32_t tokens = 1; tokens <= 6; ++tokens)
    for (uint32_t outputs = 1; outputs <= tokens; ++outputs)
      for (size_t length = 0; length <= 4; ++length) {
        size_t combinations = 1;
        for (size_t i = 0; i < length; ++i) combinations *= n;
        for (size_t c = 0; c < combinations; ++c) {
          std::vector<Want> wants;
          for (size_t i = 0, rest = c; i < length; ++i, rest /= n) wants.push_back(kinds[rest % n]);
          check(wants, {tokens, outputs});
          if (testing::Test::HasFatalFailure()) return;
        }
      }
}

TEST(PickStep, RandomSizes) {
  Rng rng(3);
  for (int round = 0; round < 20000; ++round) {
    std::vector<Want> wants(rng.next() % 90);
    for (Want& w : wants) {
      const uint64_t kind = rng.next() % 4;
      w = {kind < 2 ? 1 : uint32_t(rng.next() % 3000), kind == 3 && rng.next() % 2 == 0, rng.next() % 8 != 0};
    }
    const uint32_t tokens = uint32_t(1 + rng.next() % 600);
    check(wants, {tokens, uint32_t(1 + rng.next() % tokens)});
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(PickStep, ALongPromptTakesWhatDecodesLeave) {
  const std::vector<Want> wants = {{100000, false, true}, {1, false, true}, {1, false, true}, {40, false, true}};
  const auto picks = pick_step(wants, {512, 64});
  ASSERT_EQ(picks.size(), 3u);
  EXPECT_EQ(picks[0].index, 1u);
  EXPECT_EQ(picks[1].index, 2u);
  EXPECT_EQ(picks[2].index, 0u);
  EXPECT_EQ(picks[2].n_tokens, 510u);
  EXPECT_EQ(picks[2].n_outputs, 0u);
}

// A machine on which one step of twenty is held up for longer than it takes: neither before the prompt nor beside it
// does that make steps longer than they should be.
TEST(ChunkPolicy, StepsAreAsLongAsTheyMayBe) {
  Rng rng(5);
  const double base = 4e-3, row = 0.4e-3, read = 0.7e-3, key = 0.35e-3;  // the last two for 1,024 keys
  for (const uint32_t n_decodes : {1u, 6u}) {
    ChunkPolicy policy;
    const double alone = base + n_decodes * 0.2e-3;
    const auto held_up = [&] { return rng.next() % 20 ? 0.0 : 2 * base; };
    for (int i = 0; i < 300; ++i) policy.observe(n_decodes, 0, 0, alone + held_up());
    std::vector<double> steps;
    for (uint32_t past = 0, n = 0; past < 4096; past += n) {
      n = std::min(policy.rows(n_decodes, 512), 4096 - past);
      const uint64_t keys = uint64_t(n) * past + uint64_t(n) * (n + 1) / 2;
      const double took = alone + n * row + past / 1024.0 * read + double(keys) / 1024 * key;
      policy.observe(n_decodes, n, keys, took + held_up());
      if (past > 256) steps.push_back(took / alone);
    }
    std::sort(steps.begin(), steps.end());
    EXPECT_NEAR(steps[steps.size() / 2], ChunkPolicy::kSlowdown, 0.15) << n_decodes;
    // Half a row of the last ones is 0.2, what is learned from steps that were held up as much.
    EXPECT_LT(steps[steps.size() * 95 / 100], ChunkPolicy::kSlowdown + 0.4) << n_decodes;
  }
}

// The first step that is measured may be one that was held up.
TEST(ChunkPolicy, AFirstStepThatTookLong) {
  ChunkPolicy policy;
  policy.observe(1, 0, 0, 40e-3);
  for (int i = 0; i < 20; ++i) policy.observe(1, 0, 0, 4e-3);
  double took = 0;
  for (int i = 0; i < 20; ++i) {
    const uint32_t n = policy.rows(1, 512);
    took = 4e-3 + n * 0.4e-3;
    policy.observe(1, n, n, took);
  }
  EXPECT_NEAR(took / 4e-3, ChunkPolicy::kSlowdown, 0.3);
}

// Many streams end but one.
TEST(ChunkPolicy, FewerStreamsThanItHasLearnedFrom) {
  ChunkPolicy policy;
  const auto decodes = [](uint32_t n) { return 3.4e-3 + n * 0.6e-3; };
  for (int i = 0; i < 300; ++i) policy.observe(32, 0, 0, decodes(32));
  for (int i = 0; i < 20; ++i) policy.observe(1, 0, 0, decodes(1));
  double took = 0;
  for (int i = 0; i < 40; ++i) {
    const uint32_t n = policy.rows(1, 512);
    took = decodes(1) + n * 0.4e-3;
    policy.observe(1, n, n, took);
  }
  EXPECT_LT(took / decodes(1), ChunkPolicy::kSlowdown + 0.5);
}

}  // namespace
}  // namespace argent
