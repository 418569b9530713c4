// The host's sampling chain against the reference, op by op: the same bits, kept sets and tokens.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "reference/ops.h"
#include "sample/chain.h"

namespace argent::reference {
namespace {

using sample::Candidate;
using sample::Candidates;

constexpr uint32_t kGuard = 0xabababab;  // behind a row

std::vector<Candidate> sorted(Candidates list) {
  std::vector<Candidate> all(list.begin(), list.end());
  std::sort(all.begin(), all.end(), sample::better);
  return all;
}

bool same(const std::vector<Candidate>& a, const std::vector<Candidate>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Candidate& x, const Candidate& y) {
    return x.token == y.token && x.logit == y.logit;  // zeros of either sign are one logit
  });
}

// Runs both chains on one row; returns the token.
int32_t compare_chains(std::vector<float> logits, const SampleParams& params, const std::vector<int32_t>& recent) {
  const uint32_t n = uint32_t(logits.size());
  static ThreadPool pool({.n_threads = 1});
  const std::vector<int32_t> slots = {int32_t(n / 2), -1};
  Step step;
  step.positions = {17}, step.row_sequence = {0}, step.output_rows = {0}, step.sampling = {params};
  step.sequences = {{0, 1, 17, 0, {}, recent, uint32_t(recent.size() / 2)}};
  std::vector<uint32_t> mask((n + 31) / 32);
  for (size_t i = 0; i < mask.size(); ++i) mask[i] = uint32_t(params.seed >> (i % 32)) | 1;
  const std::vector<LogitBias> bias = {{int32_t(n / 2), 3.5f}, {0, -1.25f}, {int32_t(n - 1), -INFINITY}};
  if (params.seed % 2) step.rules = {{mask, bias}};
  const Context context{step, slots, ActivationMode::native, UINT32_MAX, pool};
  Value f32, list, i32;
  f32.rows = list.rows = i32.rows = Rows::outputs;
  f32.width = list.width = n, i32.width = 1;
  list.dtype = DType::candidates, i32.dtype = DType::i32;

  std::vector<float> adjusted = logits;
  std::vector<uint64_t> bytes[2];
  for (auto& b : bytes) b.assign(n + 2, kGuard);
  int32_t token = -7;
  const Operand in{&f32, reinterpret_cast<uint8_t*>(adjusted.data()), 1, nullptr};
  const Operand candidates{&list, reinterpret_cast<uint8_t*>(bytes[0].data()), 1, nullptr};
  const Operand out{&i32, reinterpret_cast<uint8_t*>(&token), 1, nullptr};
  const Attrs attrs;
  const auto call = [&](Function f, const Operand& from, const Operand& to) {
    f({{&from, 1}, {&to, 1}, attrs, context});
  };
  const Candidates mine(reinterpret_cast<uint8_t*>(bytes[1].data())), wanted(candidates.data);
  const auto expect_same = [&](const char* op) {
    EXPECT_TRUE(same(sorted(mine), sorted(wanted)))
        << op << ": " << mine.size() << " candidates, wants " << wanted.size();
    EXPECT_EQ(bytes[0].back(), kGuard);
    EXPECT_EQ(bytes[1].back(), kGuard);
  };

  call(adjust, in, in);
  sample::adjust(logits, params, sample::history(step, 0), sample::rules_of(step, 0), slots);
  EXPECT_EQ(std::memcmp(logits.data(), adjusted.data(), n * sizeof(float)), 0) << "adjust";
  call(argmax, in, out);
  EXPECT_EQ(sample::argmax(logits), token) << "argmax";
  call(top_k, in, candidates);
  sample::top_k(logits, params, mine);
  expect_same("top_k");
  call(top_p, candidates, candidates);
  sample::top_p(mine, params);
  expect_same("top_p");
  call(min_p, candidates, candidates);
  sample::min_p(mine, params);
  expect_same("min_p");
  call(temperature, candidates, candidates);
  sample::temperature(mine, params);
  expect_same("temperature");
  call(draw, candidates, out);
  EXPECT_EQ(sample::draw(mine, params, 17), token) << "draw";
  EXPECT_EQ(bytes[1].back(), kGuard);
  return token;
}

TEST(SamplingChain, SameAsTheReference) {
  std::mt19937 random(1);
  const auto pick = [&](const auto& list) { return list[random() % std::size(list)]; };
  const uint32_t widths[] = {1, 2, 7, 8, 33, 1000, 1025, 5000},
                 ks[] = {0, 1, 2, 40, 1000, 1024, 1025, 3000, UINT32_MAX};
  const float temperatures[] = {0, 1e-4f, 0.5f, 0.8f, 1, 3, 100}, ps[] = {1e-30f, 0.1f, 0.5f, 0.95f, 0.999999f, 1};
  const float mins[] = {0, 1e-12f, 0.05f, 0.5f, 1}, penalties[] = {1, 1.1f, 0.5f, 100};
  int drawn = 0;
  for (int i = 0; i < 3000; ++i) {
    std::vector<float> x(pick(widths));
    const float spread = std::exp2(float(random() % 12) - 4);
    std::normal_distribution<float> normal(0, spread);
    for (float& v : x) {
      v = normal(random);
      if (i % 3 == 0) v = std::round(v);                     // ties
      if (i % 5 == 0 && random() % 3) v = -INFINITY;         // masks
      if (i % 7 == 0 && random() % 2) v = std::exp2(v * 8);  // far apart
    }
    if (i % 11 == 0)
      x[random() % x.size()] = pick((const float[]){NAN, -NAN, INFINITY, -INFINITY, 3e38f, -3e38f, 1e-40f, -0.0f});
    std::vector<int32_t> recent;
    for (int k = 0; k < int(random() % 100); ++k)
      recent.push_back(int32_t(random() % (x.size() + 2)) - 2);  // ~0 and ~1 too
    const SampleParams params{pick(temperatures),
                              pick(ks),
                              pick(ps),
                              pick(mins),
                              pick(penalties),
                              uint32_t(random() % 80),
                              random() % 2 ? 0.5f : 0.0f,
                              random() % 3 ? 0 : -0.3f,
                              random(),
                              uint32_t(random() % 4)};
    SCOPED_TRACE(fmt::format("case {}: {} logits, temperature {} top_k {} top_p {} min_p {} penalty {} last {}", i,
                             x.size(), params.temperature, params.top_k, params.top_p, params.min_p,
                             params.repeat_penalty, params.repeat_last_n));
    const int32_t token = compare_chains(x, params, recent);
    ASSERT_GE(token, -1);
    ASSERT_LT(token, int32_t(x.size()));
    drawn += token >= 0;
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(drawn, 2500);
}

TEST(SamplingChain, AsWideAsAVocabulary) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> x(262144);
  for (float& v : x) v = normal(random);
  for (const SampleParams& params : {SampleParams{.temperature = 0.8f, .seed = 5},
                                     SampleParams{.temperature = 1, .top_k = 0, .top_p = 0.9f, .seed = 6},
                                     SampleParams{.temperature = 2, .top_k = 0, .top_p = 1, .min_p = 0, .seed = 7}})
    EXPECT_GE(compare_chains(x, params, {}), 0);
}

}  // namespace
}  // namespace argent::reference
