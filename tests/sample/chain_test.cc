// The host's chain against what each op promises; tests/reference/sampling_test.cc holds it to the reference to the
// bit.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>

#include "sample/chain.h"

namespace argent::sample {
namespace {

class Row {
 public:
  explicit Row(size_t capacity) : bytes_(candidates_bytes(uint32_t(capacity)) / 8) {}
  Row(std::initializer_list<Candidate> list) : Row(list.size()) {
    std::copy(list.begin(), list.end(), get().data());
    get().resize(uint32_t(list.size()));
  }
  Candidates get() { return Candidates(reinterpret_cast<uint8_t*>(bytes_.data())); }
  std::vector<int32_t> tokens() {  // best first
    std::vector<Candidate> list(get().begin(), get().end());
    std::sort(list.begin(), list.end(), better);
    std::vector<int32_t> out;
    for (const Candidate& c : list) out.push_back(c.token);
    return out;
  }

 private:
  std::vector<uint64_t> bytes_;
};
using Tokens = std::vector<int32_t>;

TEST(Chain, ArgmaxTakesTheLowestOfEquals) {
  EXPECT_EQ(argmax(std::vector<float>{1, 3, 3, 2}), 1);
  EXPECT_EQ(argmax(std::vector<float>{-INFINITY, -3, -INFINITY}), 1);
  EXPECT_EQ(argmax(std::vector<float>{-0.0f, 0.0f}), 0);
  EXPECT_EQ(argmax(std::vector<float>{5}), 0);
  for (const size_t n : {1, 7, 8, 9, 1023, 1024, 1025, 5000})
    for (const size_t at : {size_t(0), n / 2, n - 1}) {
      std::vector<float> x(n, -1e30f);
      x[at] = 2;
      EXPECT_EQ(argmax(x), int32_t(at)) << n;
      x[n - 1] = 2;
      EXPECT_EQ(argmax(x), int32_t(at)) << n;
      for (const float bad : {NAN, -NAN, INFINITY}) {
        std::vector<float> y(n, 1);
        y[at] = bad;
        EXPECT_EQ(argmax(y), -1) << n;
        Row row(n);
        for (const uint32_t k : {0u, 1u, 3u, 4000u}) {
          top_k(y, {.temperature = 1, .top_k = k}, row.get());
          EXPECT_EQ(row.get().size(), 0u);
        }
        EXPECT_EQ(draw(row.get(), {}, 0), -1);
      }
    }
  EXPECT_EQ(argmax(std::vector<float>(3000, -INFINITY)), -1);
}

TEST(Chain, PenaltyCountsATokenOnce) {
  const std::vector<float> plain = {2, -2, 0, 3, -INFINITY, 5};
  const std::vector<int32_t> history = {5, 0, 1, 0, 0, 4, 99, ~1, ~7, ~2};
  const std::vector<int32_t> slots = {3, 3, -1};  // slot 1 sampled token 3, slot 2 nothing usable
  std::vector<float> x = plain;
  adjust(x, {.repeat_penalty = 2, .repeat_last_n = 9}, {history, 0}, {}, slots);
  EXPECT_EQ(x, (std::vector<float>{1, -4, 0, 1.5f, -INFINITY, 5}));
  x = plain;
  adjust(x, {.repeat_penalty = 2, .repeat_last_n = 0}, {history, 0}, {}, slots);
  EXPECT_EQ(x, plain);
  adjust(x, {.repeat_penalty = 1, .repeat_last_n = 64}, {history, 0}, {}, slots);
  EXPECT_EQ(x, plain);
  adjust(x, {.repeat_penalty = 0.5f, .repeat_last_n = 64}, {history, 0});
  EXPECT_EQ(x, (std::vector<float>{4, -1, 0, 3, -INFINITY, 10}));
}

TEST(Chain, PresenceAndFrequencyPassOverThePrompt) {
  const std::vector<int32_t> history = {0, 1, 1, 2, 1, 2};
  std::vector<float> x = {1, 1, 1, 1};
  adjust(x, {.presence_penalty = 0.5f, .frequency_penalty = 0.25f}, {history, 3});
  EXPECT_EQ(x, (std::vector<float>{1, 0.25f, 0, 1}));
  adjust(x, {.presence_penalty = -1}, {history, 0});
  EXPECT_EQ(x, (std::vector<float>{1, 0.25f, 0, 1}));
}

TEST(Chain, BiasThenPenaltyThenMask) {
  const std::vector<LogitBias> bias = {{0, 2}, {3, 100}, {1, -INFINITY}, {9, 1}};
  const std::vector<uint32_t> mask = {0b0111};
  const std::vector<int32_t> history = {0};
  std::vector<float> x = {1, 1, NAN, 1};
  adjust(x, {.repeat_penalty = 2}, {history, 0}, {mask, bias});
  EXPECT_EQ(x[0], 1.5f);
  EXPECT_EQ(x[1], -INFINITY);
  EXPECT_TRUE(std::isnan(x[2]));
  EXPECT_EQ(x[3], -INFINITY);
  x = {0, NAN};
  const std::vector<uint32_t> first = {1};
  adjust(x, {}, {}, {first, {}});
  EXPECT_TRUE(std::isnan(x[1]));  // a row that is not finite stays so
}

TEST(Chain, LogProbsAreOfTheWholeRow) {
  const std::vector<float> x = {0, std::log(2.0f), -INFINITY, std::log(5.0f)};
  const std::vector<LogProb> p = log_probs(x, 0, 3);
  ASSERT_EQ(p.size(), 4u);
  EXPECT_EQ(p[0].token, 0);
  EXPECT_NEAR(p[0].log_prob, std::log(1.0 / 8), 1e-6);
  EXPECT_EQ(p[1].token, 3);
  EXPECT_NEAR(p[1].log_prob, std::log(5.0 / 8), 1e-6);
  EXPECT_EQ(p[2].token, 1);
  EXPECT_EQ(p[3].token, 0);
  EXPECT_EQ(log_probs(x, 2, 0).size(), 1u);
  EXPECT_EQ(log_probs(x, 2, 9)[0].log_prob, -INFINITY);
  EXPECT_EQ(log_probs(x, -1, 9).size(), 4u);  // the three that can be drawn
}

TEST(Chain, TopK) {
  const std::vector<float> x = {1, 4, 4, -INFINITY, 2, 4};
  Row row(x.size());
  const auto kept = [&](uint32_t k, float temperature = 1) {
    top_k(x, {.temperature = temperature, .top_k = k}, row.get());
    return row.tokens();
  };
  EXPECT_EQ(kept(1), (Tokens{1}));
  EXPECT_EQ(kept(2), (Tokens{1, 2}));
  EXPECT_EQ(kept(4), (Tokens{1, 2, 5, 4}));
  EXPECT_EQ(kept(6), (Tokens{1, 2, 5, 4, 0}));  // masked tokens are no candidates
  EXPECT_EQ(kept(0), (Tokens{1, 2, 5, 4, 0}));
  EXPECT_EQ(kept(UINT32_MAX), (Tokens{1, 2, 5, 4, 0}));
  EXPECT_EQ(kept(0, 0), (Tokens{1}));
}

TEST(Chain, TopPAndMinP) {
  const float l2 = std::log(2.0f);  // weights 4 : 2 : 1 : 1
  const auto top = [&](float p) {
    Row row{{10, 0}, {7, 2 * l2}, {8, l2}, {9, 0}};
    top_p(row.get(), {.top_p = p});
    return row.tokens();
  };
  EXPECT_EQ(top(1e-20f), (Tokens{7}));
  EXPECT_EQ(top(0.49f), (Tokens{7}));
  EXPECT_EQ(top(0.51f), (Tokens{7, 8}));
  EXPECT_EQ(top(0.8f), (Tokens{7, 8, 9}));
  EXPECT_EQ(top(0.9f), (Tokens{7, 8, 9, 10}));
  EXPECT_EQ(top(1), (Tokens{7, 8, 9, 10}));
  const auto min = [&](float p) {
    Row row{{10, 0}, {7, 2 * l2}, {8, l2}, {9, 0}};
    min_p(row.get(), {.min_p = p});
    return row.tokens();
  };
  EXPECT_EQ(min(0), (Tokens{7, 8, 9, 10}));
  EXPECT_EQ(min(0.2f), (Tokens{7, 8, 9, 10}));
  EXPECT_EQ(min(0.3f), (Tokens{7, 8}));
  EXPECT_EQ(min(0.6f), (Tokens{7}));
  EXPECT_EQ(min(1), (Tokens{7}));
}

TEST(Chain, TemperatureKeepsTheBestAtZeroDistance) {
  Row row{{1, 3}, {2, 5}, {3, 1}};
  temperature(row.get(), {.temperature = 0.5f});
  EXPECT_EQ(row.get().data()[0].logit, -4);
  EXPECT_EQ(row.get().data()[1].logit, 0);
  EXPECT_EQ(row.get().data()[2].logit, -8);
  Row wide{{1, 3e38f}, {2, -3e38f}};
  temperature(wide.get(), {.temperature = 1e-4f});
  EXPECT_EQ(draw(wide.get(), {.seed = 3}, 0), 1);
}

// Frequencies of many draws against softmax, with a chi-squared bound that a right sampler breaks once in 10^6.
TEST(Chain, DrawsFollowTheSoftmax) {
  const std::vector<float> logits = {0.5f, -1, 2, 1, 0, -3, 1.5f, 0.2f};
  constexpr int n = 200000;
  for (const float t : {1.0f, 0.6f, 2.0f}) {
    std::vector<int> seen(logits.size());
    for (int i = 0; i < n; ++i) {
      const SampleParams params{
          .temperature = t, .top_k = 0, .top_p = 1, .min_p = 0, .seed = 42, .sample_index = uint32_t(i % 2)};
      Row row(logits.size());
      top_k(logits, params, row.get());
      temperature(row.get(), params);
      ++seen[size_t(draw(row.get(), params, uint32_t(i / 2)))];
    }
    double total = 0, chi = 0;
    for (float l : logits) total += std::exp(double(l) / t);
    for (size_t i = 0; i < logits.size(); ++i) {
      const double expected = n * std::exp(double(logits[i]) / t) / total;
      chi += (seen[i] - expected) * (seen[i] - expected) / expected;
    }
    EXPECT_LT(chi, 40.5) << t;  // 7 degrees of freedom
  }
}

TEST(Chain, DrawDependsOnSeedPositionAndIndexOnly) {
  std::vector<float> x(500);
  for (size_t i = 0; i < x.size(); ++i) x[i] = float(i % 7);
  const auto once = [&](const SampleParams& params, uint32_t position, bool shuffled) {
    Row row(x.size());
    top_k(x, params, row.get());
    if (shuffled) std::shuffle(row.get().begin(), row.get().end(), std::mt19937(position));
    return draw(row.get(), params, position);
  };
  std::map<int32_t, int> seen;
  for (uint32_t position = 0; position < 50; ++position) {
    const SampleParams params{.temperature = 1, .top_k = 0, .seed = 9};
    EXPECT_EQ(once(params, position, false), once(params, position, true));
    ++seen[once(params, position, false)];
  }
  EXPECT_GT(seen.size(), 30u);
}

}  // namespace
}  // namespace argent::sample
