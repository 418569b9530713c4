// The engine on the reference backend, whose arithmetic does not depend on the batch: whatever the schedule, the fusion
// or the cache, logits are the same bits and texts the same tokens.
#include <unistd.h>

#include <cmath>
#include <limits>

#include "engine/engines.h"

namespace argent {
namespace {

using namespace test;

constexpr uint32_t kVocab = 100;

struct EveryArchitecture : testing::TestWithParam<std::string> {
  TinyModel tiny(TinyShape shape = {}) const {
    shape.formats = {Format::q8_0, Format::q4_0, Format::f16};
    return TinyModel(GetParam(), shape);
  }
  void same(const std::vector<float>& seen, const std::vector<float>& wanted, const std::string& what) {
    EXPECT_EQ(difference(seen, wanted, kVocab), "") << what;
  }
};
INSTANTIATE_TEST_SUITE_P(Reference, EveryArchitecture, testing::ValuesIn(kArchitectures), [](const auto& i) {
  std::string name = i.param;
  std::erase(name, '-');
  return name;
});

TEST_P(EveryArchitecture, LogitsDoNotDependOnPassesFusionOrCache) {
  // Windows of 5 and 16: 70 tokens are many of them, and go over block edges.
  for (const uint32_t window : {5u, 16u}) {
    const TinyModel model = tiny({.window = window});
    const std::vector<int32_t> tokens = text(70);
    EngineOptions options = options_for("reference");
    const std::vector<float> wanted = logits(model, options, tokens);
    ASSERT_EQ(wanted.size(), 70u * kVocab);
    EXPECT_TRUE(std::all_of(wanted.begin(), wanted.end(), [](float x) { return std::isfinite(x); }));
    float least = INFINITY, most = -INFINITY;
    for (uint32_t i = 0; i < kVocab; ++i) least = std::min(least, wanted[i]), most = std::max(most, wanted[i]);
    EXPECT_GT(most - least, 0.1f);
    for (const std::vector<uint32_t>& passes : {std::vector<uint32_t>{1}, {7, 1, 13}, {33}}) {
      EngineOptions chunked = options;
      chunked.passes = passes;
      same(logits(model, chunked, tokens), wanted, fmt::format("passes of {}, window {}", passes[0], window));
    }
    EngineOptions plain = options;
    plain.fuse = false;
    same(logits(model, plain, tokens), wanted, "not fused");
    EngineOptions small = options;
    small.budget = {11, 3};
    small.prefix_cache = false;
    same(logits(model, small, tokens), wanted, "small steps, no prefix cache");
    EngineOptions threads = options;
    threads.backend.n_threads = 3;
    same(logits(model, threads, tokens), wanted, "three threads");
  }
}

TEST_P(EveryArchitecture, LastRowsAreThoseOfAllRows) {
  const TinyModel model = tiny();
  const std::vector<int32_t> tokens = text(41);
  const std::vector<float> all = logits(model, options_for("reference"), tokens);
  for (const bool fuse : {true, false}) {
    EngineOptions options = options_for("reference");
    options.fuse = fuse;
    const auto engine = open(model, options);
    for (const size_t n : {1u, 2u, 9u, 41u}) {  // the plan that gathers rows
      const SequenceId id = engine->open_sequence();
      const std::vector<float> last = logits(*engine, id, std::vector(tokens.begin(), tokens.begin() + n), false);
      same(last, std::vector(all.begin() + (n - 1) * kVocab, all.begin() + n * kVocab), std::to_string(n));
    }
  }
}

TEST_P(EveryArchitecture, ReusedTokensGiveTheSameLogits) {
  const TinyModel model = tiny();
  const auto engine = open(model, options_for("reference"));
  const SequenceId id = engine->open_sequence();
  std::vector<std::vector<int32_t>> texts = {
      text(90), joined(text(90), text(20, 2)), text(90), text(70), text(33), text(32), text(31)};
  for (const size_t at : {89u, 64u, 63u, 40u, 3u}) {
    texts.push_back(joined(text(90), text(20, 2)));
    texts.back()[at] = (texts.back()[at] + 1) % int32_t(kVocab);
  }
  uint32_t reused = 0;
  for (const auto& tokens : texts) {
    const uint64_t before = engine->counters().reused_tokens;
    const std::vector<float> seen = logits(*engine, id, tokens, false);
    reused += uint32_t(engine->counters().reused_tokens - before);
    EngineOptions fresh = options_for("reference");
    fresh.prefix_cache = false;
    const auto other = open(model, fresh);
    same(seen, logits(*other, other->open_sequence(), tokens, false), fmt::format("{} tokens", tokens.size()));
  }
  EXPECT_GT(reused, 300u);
}

TEST_P(EveryArchitecture, TextsDoNotDependOnTheCompany) {
  const TinyModel model = tiny();
  std::vector<Request> requests;
  for (uint64_t i = 0; i < 4; ++i) requests.push_back({text(20 + 17 * i, i), {}, 12});
  requests[1].params = {.temperature = 0.8f, .seed = 5};
  requests[2].params = {
      .temperature = 1.5f, .top_k = 0, .top_p = 0.9f, .min_p = 0, .repeat_penalty = 1.3f, .seed = 6, .sample_index = 2};
  std::vector<std::vector<int32_t>> alone;
  for (const Request& request : requests) {
    const auto engine = open(model, options_for("reference"));
    alone.push_back(generate(*engine, request));
  }
  for (const int how : {0, 1, 2, 3, 4, 5}) {
    EngineOptions options = options_for("reference");
    if (how == 1) options.n_sequences = 1, options.n_ctx = 96;  // preempted again and again
    if (how == 2) options.fuse = false;
    if (how == 3) options.budget = {9, 2};
    if (how == 4) options.passes = {5};
    if (how == 5) options.prefix_cache = false, options.n_sequences = 2;
    const auto engine = open(model, options);
    for (int round = 0; round < (how == 0 ? 2 : 1); ++round) {  // the second time from the prefix cache
      const auto together = generate(*engine, requests);
      for (size_t i = 0; i < requests.size(); ++i)
        EXPECT_EQ(together[i], alone[i]) << "case " << how << ", sequence " << i;
    }
    if (how == 0) {
      EXPECT_GT(engine->counters().reused_tokens, 0u);
    }
    if (how == 1) {
      EXPECT_GT(engine->counters().preemptions, 0u);
    }
  }
}

TEST_P(EveryArchitecture, SeedsDecide) {
  const auto engine = open(tiny(), options_for("reference"));
  const auto with = [&](uint64_t seed, uint32_t index) {
    return generate(
        *engine,
        {text(10), {.temperature = 3, .top_k = 0, .top_p = 1, .min_p = 0, .seed = seed, .sample_index = index}, 12});
  };
  const auto first = with(1, 0);
  EXPECT_EQ(with(1, 0), first);
  EXPECT_NE(with(2, 0), first);
  EXPECT_NE(with(1, 1), first);
}

TEST_P(EveryArchitecture, FusedTensorsAreTheirParts) {
  TinyModel parts(GetParam(), {.formats = {Format::q8_0}}), fused = parts;
  for (uint32_t i = 0; i < parts.s.n_layer; ++i)
    for (const std::string kind : {"weight", "bias"}) {
      const auto name = [&](const char* part) { return fmt::format("blk.{}.{}.{}", i, part, kind); };
      if (!parts.find(name("attn_q"))) continue;
      TinyTensor whole = *parts.find(name("attn_q"));
      whole.name = name("attn_qkv");
      for (const char* part : {"attn_k", "attn_v"}) {
        const TinyTensor& t = *parts.find(name(part));
        whole.dims.back() += t.dims.back();
        whole.data.insert(whole.data.end(), t.data.begin(), t.data.end());
      }
      for (const char* part : {"attn_q", "attn_k", "attn_v"}) fused.drop(name(part));
      fused.tensors.push_back(whole);
    }
  same(logits(fused, options_for("reference"), text(20)), logits(parts, options_for("reference"), text(20)),
       "attn_qkv");
}

TEST(ReferenceEngine, GreedyIsTheArgmaxOfTheLogits) {
  const TinyModel model("qwen3");
  const auto engine = open(model, options_for("reference"));
  const std::vector<int32_t> prompt = text(10), answer = generate(*engine, {prompt, {}, 20});
  const std::vector<float> rows = logits(model, options_for("reference"), joined(prompt, answer));
  for (size_t i = 0; i < answer.size(); ++i) {
    const float* row = &rows[(prompt.size() - 1 + i) * kVocab];
    EXPECT_EQ(answer[i], std::max_element(row, row + kVocab) - row);
  }
}

// A token whose embedding is not a number spoils the sequences that contain it, and no other.
TEST(ReferenceEngine, NotANumberStaysWithItsSequence) {
  for (const float poison : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    TinyModel model("llama");
    model.poke("token_embd.weight", 42, 3, poison);
    std::vector<int32_t> good = text(40), bad = text(40, 2);
    std::replace(good.begin(), good.end(), 42, 41);
    bad[35] = 42;
    TinyModel clean("llama");
    const auto reference = open(clean, options_for("reference"));
    const std::vector<int32_t> wanted = generate(*reference, {good, {}, 10});
    ASSERT_EQ(std::count(wanted.begin(), wanted.end(), 42), 0);

    for (const SampleParams& params : {SampleParams{}, SampleParams{.temperature = 1, .seed = 3}}) {
      const auto engine = open(model, options_for("reference"));
      const SequenceId a = engine->open_sequence(), b = engine->open_sequence();
      engine->set_sampling(a, params), engine->set_sampling(b, SampleParams{});
      set_tokens(*engine, a, bad), set_tokens(*engine, b, good);
      std::vector<int32_t> of_a, of_b;
      while (of_b.size() < 10)
        ASSERT_TRUE(
            *step(*engine, [&](const StepOutput& out) { (out.sequence == a ? of_a : of_b).push_back(out.token); }));
      EXPECT_EQ(of_a, std::vector<int32_t>{-1});  // once: it is paused then
      EXPECT_EQ(of_b, wanted);
      EXPECT_EQ(engine->tokens(a).size(), 40u);
      engine->pause(b, true);
      EXPECT_FALSE(*step(*engine));
      // What it computed is nobody's prefix, its first block included.
      EXPECT_EQ(set_tokens(*engine, engine->open_sequence(), bad), 0u);
      // With other tokens the sequence lives on.
      std::vector<int32_t> mended = bad;
      mended[35] = 41;
      EXPECT_EQ(set_tokens(*engine, a, mended), 0u);
      engine->pause(a, false);
      engine->set_sampling(a, SampleParams{});
      int32_t token = -1;
      while (token < 0)
        ASSERT_TRUE(*step(*engine, [&](const StepOutput& out) { token = out.sequence == a ? out.token : token; }));
      EXPECT_EQ(token, generate(*reference, {mended, {}, 1})[0]);
    }
  }
}

TEST(ReferenceEngine, ActivationsAndCacheTypesMatterALittle) {
  const TinyModel model("llama");
  const std::vector<int32_t> tokens = text(50);
  EngineOptions exact = options_for("reference");
  exact.backend.activations = ActivationMode::f32;
  exact.backend.kv_k = exact.backend.kv_v = KvType::f32;
  const std::vector<float> wanted = logits(model, exact, tokens);
  double power = 0;
  for (float x : wanted) power += double(x) * x;
  for (const bool native : {false, true}) {
    EngineOptions options = exact;
    if (native)
      options.backend.activations = ActivationMode::native;
    else
      options.backend.kv_k = options.backend.kv_v = KvType::f16;
    const std::vector<float> seen = logits(model, options, tokens);
    double error = 0;
    for (size_t i = 0; i < seen.size(); ++i) error += std::pow(double(seen[i]) - wanted[i], 2);
    EXPECT_GT(error, 0) << native;
    EXPECT_LT(error / power, native ? 1e-2 : 1e-5) << native;
  }
}

}  // namespace
}  // namespace argent
