// The host's side of sampling on the device: how a step is packed, f32 arithmetic in integers, and a row of 262,144.
#include "backends/metal/sample_step.h"

#include <gtest/gtest.h>

#include <random>

#include "backends/metal/emu/device.h"
#include "metal/options.h"
#include "metal/sample_truth.h"

namespace argent::metal {
namespace {

using truth::Kind;
using truth::Problem;
using truth::Row;

std::vector<uint32_t> words(const SampleStep& step, uint32_t begin, uint32_t n) {
  return {step.data.begin() + begin, step.data.begin() + begin + n};
}

TEST(SampleStep, HistoriesAreTokensAndSlotsWithTheirUses) {
  SampleParams p{.repeat_penalty = 1.1f, .repeat_last_n = 3, .presence_penalty = 1};
  // The last four were generated; the vocabulary has no 99.
  Problem problem(50, {{.params = p, .recent = {7, 5, 7, 99, 7, ~4, 5, ~4}, .n_prompt = 4}});
  problem.pack();
  const SampleRow& row = problem.packed.rows[0];
  EXPECT_EQ(words(problem.packed, row.tokens, 2 * row.n_tokens), (std::vector<uint32_t>{5, 3, 7, 2}));
  EXPECT_EQ(words(problem.packed, row.slots, 2 * row.n_slots), (std::vector<uint32_t>{4, 5}));
  EXPECT_EQ(row.tokens % 2, 0u);
  EXPECT_EQ(row.position, 100u);
  EXPECT_TRUE(problem.packed.adjusts);
}

TEST(SampleStep, WhatIsOffIsNotSent) {
  Problem problem(50, {{.params = {}, .recent = {1, 2, ~3}},
                       {.params = {.repeat_penalty = 2, .repeat_last_n = 0}, .recent = {1, 2}}});
  problem.pack();
  EXPECT_FALSE(problem.packed.adjusts);
  EXPECT_EQ(problem.packed.rows[0].top_k, 1u);  // temperature 0
  EXPECT_EQ(problem.packed.rows[0].mask, uint32_t(kNowhere));
  EXPECT_FALSE(problem.packed.data.empty());
}

TEST(SampleStep, MasksAndBiasesInTheirOrder) {
  Problem problem(70, {{.bias = {{9, 1}, {3, 2}, {9, 4}, {3, 8}}, .masks = true}, {.masks = true}});
  problem.pack();
  const SampleStep& s = problem.packed;
  EXPECT_EQ(words(s, s.rows[0].mask, 3), problem.masks[0]);
  EXPECT_EQ(words(s, s.rows[1].mask, 3), problem.masks[1]);
  const auto bits = [](float f) { return std::bit_cast<uint32_t>(f); };
  EXPECT_EQ(words(s, s.rows[0].bias, 8), (std::vector<uint32_t>{3, bits(2), 3, bits(8), 9, bits(1), 9, bits(4)}));
  EXPECT_TRUE(s.adjusts);
}

TEST(SampleStep, TheLastRowOfASequenceKeepsItsToken) {
  Problem problem(50, {{}, {.shares = true}, {}, {.shares = true}, {.shares = true}, {}});
  problem.pack();
  std::vector<uint32_t> slots;
  for (const SampleRow& row : problem.packed.rows) slots.push_back(row.slot);
  const uint32_t no = kNowhere;
  EXPECT_EQ(slots, (std::vector<uint32_t>{no, 2, no, no, 4, 6}));
}

TEST(SampleStep, APlanThatDrawsNothingStillHasRows) {
  Problem problem(50, {{.bias = {{9, 1}}}, {}});
  problem.step.sampling.clear();
  problem.pack();
  ASSERT_EQ(problem.packed.rows.size(), 2u);
  EXPECT_EQ(problem.packed.rows[0].n_bias, 1u);
  EXPECT_EQ(problem.packed.rows[1].top_k, 1u);
}

TEST(SampleStep, ParametersAtTheirEnds) {
  Problem problem(50,
                  {{.params = {.temperature = -0.0f, .top_p = 0x1.fffffep-1f, .min_p = 1, .seed = ~uint64_t(0) - 1}},
                   {.params = {.temperature = 1, .top_k = 0, .top_p = 1e-30f, .min_p = 0, .sample_index = 7}}});
  problem.pack();
  const SampleRow &a = problem.packed.rows[0], &b = problem.packed.rows[1];
  EXPECT_EQ(a.temperature, 0u);
  EXPECT_EQ(a.top_p, 0xffffff00u);
  EXPECT_EQ(a.min_p_high, 256u);  // 2^40
  EXPECT_EQ(a.seed_low, 0xfffffffeu);
  EXPECT_EQ(a.seed_high, 0xffffffffu);
  EXPECT_EQ(b.top_p_on, 1u);
  EXPECT_EQ(b.top_p, 0u);
  EXPECT_EQ(b.min_p_low | b.min_p_high, 0u);
  EXPECT_EQ(b.sample_index, 7u);
}

TEST(SampleExact, FloatsAreThoseOfTheHost) {
  std::mt19937_64 random(1);
  const uint32_t special[] = {0,          0x80000000, 1,          0x80000001, 0x7fffff,   0x800000,
                              0x807fffff, 0x7f7fffff, 0xff7fffff, 0x7f800000, 0xff800000, 0x7fc00000,
                              0x3f800000, 0xbf800000, 0x3f800001, 0x00800001};
  const auto same = [](uint32_t got, float want) {
    return got == (std::isnan(want) ? sample::kNanBits : std::bit_cast<uint32_t>(want));
  };
  for (int i = 0; i < 300000; ++i) {
    uint32_t a = uint32_t(random()), b = uint32_t(random());
    if (i % 4 == 1) b = (b & 0x807fffff) | ((a & 0x7f800000) + ((b >> 26) << 23) - (31u << 23)) % 0x7f800000;  // near a
    if (i % 8 == 2) a = special[random() % 16];
    if (i % 8 == 3 || i % 16 == 2) b = special[random() % 16];
    if (i % 8 == 4) a &= 0x81ffffff, b &= 0x80ffffff;  // subnormal, or nearly
    const volatile float x = std::bit_cast<float>(a), y = std::bit_cast<float>(b);
    ASSERT_TRUE(same(sample::f32_add(a, b), x + y)) << std::hex << a << " + " << b;
    ASSERT_TRUE(same(sample::f32_sub(a, b), x - y)) << std::hex << a << " - " << b;
    ASSERT_TRUE(same(sample::f32_mul(a, b), x * y)) << std::hex << a << " * " << b;
    ASSERT_TRUE(same(sample::f32_div(a, b), x / y)) << std::hex << a << " / " << b;
  }
}

TEST(SampleExact, StepsAreThoseOfTheProduct) {
  for (uint64_t bits = 0; bits < 0x7f800000; bits += 10007) {
    const float below = std::bit_cast<float>(uint32_t(bits));
    const uint32_t want = below < 28 ? uint32_t(below * 0x1p26f) : sample::kNoWeight;
    ASSERT_EQ(sample::weight_steps(uint32_t(bits)), want) << below;
  }
  for (float below : {INFINITY, NAN, -NAN, 28.0f})
    EXPECT_EQ(sample::weight_steps(std::bit_cast<uint32_t>(below)), sample::kNoWeight);
  EXPECT_EQ(sample::weight_steps(0x80000000), 0u);
}

// The largest vocabulary, k that no u32 exceeds, and rows of a whole chain with all of their candidates.
TEST(SampleChain, AVocabularyOf262144) {
  if (emu::Machine::instrumented) GTEST_SKIP() << "under the checks, smaller rows do";
  std::vector<Row> rows = {{.kind = Kind::plain, .params = {.temperature = 0.8f}},
                           {.kind = Kind::near, .params = {.temperature = 1, .top_k = UINT32_MAX, .top_p = 0.9f}}};
  Problem problem(262144, rows);
  emu::EmuDevice device({.variant = test_options().variant});
  EXPECT_EQ(truth::run_chain(device, problem, 512), "");
}

}  // namespace
}  // namespace argent::metal
