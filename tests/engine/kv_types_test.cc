// The KV cache's types from end to end: what a narrower cache costs, and that texts do not depend on threads.
#include "engine/engine.h"

#include <cmath>

#include "engine/engines.h"

namespace argent::test {
namespace {

EngineOptions options_of(const std::string& device, KvType k, KvType v, uint32_t n_threads = 1) {
  EngineOptions options = options_for(device);
  options.backend.kv_k = k;
  options.backend.kv_v = v;
  options.backend.n_threads = n_threads;
  return options;
}

// Rounding to 11 and 8 bits, and to 1/127 of a group's largest; the model's weights are random. Activations are f32:
// int8 ones turn any change into 1e-4 or more.
double bound(KvType type) {
  return type == KvType::f32 ? 0 : type == KvType::f16 ? 1e-6 : type == KvType::bf16 ? 3e-5 : 1e-4;
}

TEST(KvTypes, LogitsBesideAnF32Cache) {
  for (const std::string arch : {"llama", "qwen3", "gemma3"}) {
    const TinyModel model(arch);
    const std::vector<int32_t> tokens = text(100);
    for (const std::string device : {"cpu", "reference"}) {
      const auto run = [&](KvType k, KvType v) {
        EngineOptions options = options_of(device, k, v);
        options.backend.activations = ActivationMode::f32;
        return logits(model, options, tokens);
      };
      const std::vector<float> wanted = run(KvType::f32, KvType::f32);
      double power = 0;
      for (const float x : wanted) power += double(x) * x;
      for (const KvType k : kTypes)
        for (const KvType v : {k, KvType::f16}) {
          const std::vector<float> seen = run(k, v);
          ASSERT_EQ(seen.size(), wanted.size());
          double error = 0;
          for (size_t i = 0; i < seen.size(); ++i) error += std::pow(double(seen[i]) - wanted[i], 2);
          EXPECT_LE(error / power, std::max(bound(k), bound(v)))
              << arch << ' ' << device << ' ' << name_of(k) << ' ' << name_of(v);
          if (k != KvType::f32) {
            EXPECT_GT(error, 0) << name_of(k);
          }
        }
    }
  }
}

TEST(KvTypes, TextsDoNotDependOnThreads) {
  for (const std::string arch : {"qwen3", "gemma3"}) {
    const TinyModel model(arch);
    for (const KvType type : kTypes) {
      const Request request{text(130), {.temperature = 0}, 40};
      const auto one = open(model, options_of("cpu", type, type, 1)),
                 two = open(model, options_of("cpu", type, type, 2));
      EXPECT_EQ(generate(*one, request), generate(*two, request)) << arch << ' ' << name_of(type);
    }
  }
}

// Three answers to one prompt share its blocks, the last of them half full: each is what it is alone.
TEST(KvTypes, AnswersOfOnePromptGoTheirOwnWays) {
  const TinyModel model("qwen3");
  for (const KvType type : {KvType::bf16, KvType::q8_0}) {
    const EngineOptions options = options_of("cpu", type, type, 2);
    const auto together = open(model, options);
    std::vector<Request> requests;
    for (uint64_t seed = 1; seed <= 3; ++seed) requests.push_back({text(70), {.seed = seed}, 30});
    const auto answers = generate(*together, requests);
    const auto again = generate(*together, requests);  // from the prefix cache
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(answers[i], generate(*open(model, options), requests[i])) << i;
      EXPECT_EQ(answers[i], again[i]) << i;
    }
  }
}

TEST(KvTypes, HeadsThatAreNoWholeGroups) {
  const TinyModel model("qwen3", {.d_head = 40});
  for (const std::string device : {"cpu", "reference", "null"}) {
    const std::string path = model.write("argent_heads_" + std::to_string(::getpid()) + ".gguf");
    const auto refused = Engine::open(path, options_of(device, KvType::q8_0, KvType::f16));
    ASSERT_FALSE(refused) << device;
    EXPECT_EQ(refused.error().code, Code::unsupported);
    EXPECT_EQ(refused.error().message,
              "the K cache cannot be q8_0: heads have 40 elements, no multiple of 32; f16, bf16 and f32 take any");
    EXPECT_TRUE(Engine::open(path, options_of(device, KvType::bf16, KvType::f16))) << device;
    std::remove(path.c_str());
  }
}

}  // namespace
}  // namespace argent::test
