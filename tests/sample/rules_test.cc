// Philox, weights and parameters.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "sample/params.h"
#include "sample/philox.h"
#include "sample/rules.h"

namespace argent::sample {
namespace {

TEST(Philox, KnownAnswers) {  // Random123's kat_vectors, philox4x32 10
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}), (PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxCounter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
  EXPECT_EQ(draw_bits(0, 0, 0), 0x6627e8d5e169c58du);
  EXPECT_NE(draw_bits(1, 0, 0), draw_bits(uint64_t(1) << 32, 0, 0));
  EXPECT_NE(draw_bits(1, 2, 3), draw_bits(1, 3, 2));
}

TEST(Rules, WeightIsExp) {
  EXPECT_EQ(weight(0), kWeightOne);
  uint64_t last = kWeightOne;
  for (float below = 0; below < 30; below += 0.00093f) {
    const uint64_t w = weight(below);
    const double wanted = below < 28 ? std::exp(-double(below)) * 0x1p40 : 0;
    EXPECT_NEAR(double(w), wanted, wanted * 2.5e-8 + 1) << below;  // steps of 2^-26, and the polynomial
    EXPECT_LE(w, last) << below;
    last = w;
  }
  for (float below : {28.0f, 1e30f, INFINITY, NAN}) EXPECT_EQ(weight(below), 0u) << below;
  EXPECT_EQ(weight(1e-38f), kWeightOne);
}

TEST(Rules, IntegerHelpers) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 1000; ++i) {
    const uint64_t a = random() >> (i % 64), b = random() >> (i / 16 % 64);
    EXPECT_EQ(mul_high(a, b), uint64_t((unsigned __int128)a * b >> 64));
    const uint64_t sum = (random() >> 6) | 1;
    const float p = float(random() % 1000001) / 1e6f;
    EXPECT_EQ(share_of(sum, p),
              std::max<uint64_t>(1, uint64_t((unsigned __int128)sum * uint64_t(double(p) * 0x1p32) >> 32)));
  }
  EXPECT_EQ(mul_high(UINT64_MAX, UINT64_MAX), UINT64_MAX - 1);
  EXPECT_EQ(share_of(uint64_t(1) << 58, 1), uint64_t(1) << 58);
  EXPECT_EQ(share_of(1000, 1e-30f), 1u);
}

TEST(Rules, HistoryEndsBeforeTheSampledToken) {
  const std::vector<int32_t> recent = {1, 2, 3, 4, 5};
  Step step;
  step.row_sequence = {0, 0, 0};
  step.sequences = {{0, 3, 10, 0, {}, recent}};
  const auto list = [&](uint32_t row, uint32_t last_n) {
    const History h = history(step, row);
    const auto span = h.tokens.last(std::min<size_t>(h.tokens.size(), last_n));
    return std::vector<int32_t>(span.begin(), span.end());
  };
  EXPECT_EQ(list(2, 64), recent);
  EXPECT_EQ(list(2, 2), (std::vector<int32_t>{4, 5}));
  EXPECT_EQ(list(0, 2), (std::vector<int32_t>{2, 3}));  // two of the step's tokens come later
  EXPECT_EQ(list(1, UINT32_MAX), (std::vector<int32_t>{1, 2, 3, 4}));
  EXPECT_EQ(list(2, 0), std::vector<int32_t>{});
  step.sequences[0].n_prompt = 3;
  EXPECT_EQ(history(step, 2).n_generated, 2u);
  EXPECT_EQ(history(step, 1).n_generated, 1u);
  EXPECT_EQ(history(step, 0).n_generated, 0u);
  step.sequences[0].recent = std::span(recent).first(1);
  EXPECT_EQ(list(0, 5), std::vector<int32_t>{});
}

TEST(Params, RangesAreNamed) {
  EXPECT_TRUE(check({}));
  constexpr float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  struct Row {
    SampleParams params;
    const char* message;  // null: fine
  };
  const Row rows[] = {
      {{.temperature = 0}, nullptr},
      {{.temperature = 1e-4f}, nullptr},
      {{.temperature = 100}, nullptr},
      {{.temperature = -1}, "temperature is -1, wants 0 or 0.0001 to 100"},
      {{.temperature = 1e-5f}, "temperature is 1e-05, wants"},
      {{.temperature = 101}, "temperature is 101, wants"},
      {{.temperature = nan}, "temperature is nan, wants"},
      {{.temperature = inf}, "temperature is inf, wants"},
      {{.top_k = UINT32_MAX}, nullptr},
      {{.top_p = 1}, nullptr},
      {{.top_p = 1e-30f}, nullptr},
      {{.top_p = 0}, "top_p is 0, wants more than 0, at most 1"},
      {{.top_p = 1.01f}, "top_p is 1.01, wants"},
      {{.top_p = nan}, "top_p is nan, wants"},
      {{.min_p = 0}, nullptr},
      {{.min_p = 1}, nullptr},
      {{.min_p = -0.1f}, "min_p is -0.1, wants 0 to 1"},
      {{.min_p = nan}, "min_p is nan, wants"},
      {{.repeat_penalty = 0.01f}, nullptr},
      {{.repeat_penalty = 0}, "repeat_penalty is 0, wants 0.01 to 100"},
      {{.repeat_penalty = inf}, "repeat_penalty is inf, wants"},
  };
  for (const Row& row : rows) {
    const Status status = check(row.params);
    if (!row.message) {
      EXPECT_TRUE(status) << status.error().message;
      continue;
    }
    ASSERT_FALSE(status) << row.message;
    EXPECT_EQ(status.error().code, Code::invalid);
    EXPECT_EQ(status.error().message.find(row.message), 0u) << status.error().message;
  }
}

TEST(Params, SetByName) {
  SampleParams p;
  for (const auto& [name, text] :
       std::initializer_list<std::pair<const char*, const char*>>{{"temperature", "0.8"},
                                                                  {"top_k", "0"},
                                                                  {"top_p", "0.5"},
                                                                  {"min_p", "1e-1"},
                                                                  {"repeat_penalty", "1.1"},
                                                                  {"repeat_last_n", "7"},
                                                                  {"seed", "18446744073709551615"}})
    EXPECT_TRUE(set(p, name, text)) << name;
  EXPECT_EQ(p.temperature, 0.8f);
  EXPECT_EQ(p.top_k, 0u);
  EXPECT_EQ(p.top_p, 0.5f);
  EXPECT_EQ(p.min_p, 0.1f);
  EXPECT_EQ(p.repeat_penalty, 1.1f);
  EXPECT_EQ(p.repeat_last_n, 7u);
  EXPECT_EQ(p.seed, UINT64_MAX);
  EXPECT_EQ(set(p, "temprature", "1").error().code, Code::not_found);
  for (const char* text : {"", " 1", "1 ", "0.8x", "nan", "inf", "-0.5", "1e99", "0x1"}) {
    const Status status = set(p, "temperature", text);
    ASSERT_FALSE(status) << text;
    EXPECT_EQ(status.error().code, Code::invalid);
  }
  EXPECT_EQ(p.temperature, 0.8f);
  for (const char* text : {"-1", "1.5", "4294967296", "", "1e3"}) EXPECT_FALSE(set(p, "top_k", text)) << text;
  EXPECT_EQ(set(p, "top_k", "x").error().message, "top_k is 'x', wants a whole number from 0 to 4294967295");
}

}  // namespace
}  // namespace argent::sample
