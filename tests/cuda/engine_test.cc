// The engine on CUDA, a step ahead of what it has seen: texts are those without.
#include "engine/engines.h"

namespace argent::test {
namespace {

TEST(CudaModels, StepsAheadGiveTheSameTexts) {
  for (const char* arch : {"llama", "gemma3"}) {
    EngineOptions options = options_for("cuda:0");
    options.n_sequences = 8;
    options.prefix_cache = false;  // blocks that another step computed are the same up to rounding only
    std::vector<std::vector<int32_t>> texts[2];
    for (const bool ahead : {false, true}) {
      options.run_ahead = ahead;
      const auto engine = open(TinyModel(arch), options);
      ASSERT_TRUE(engine);
      texts[ahead] = generate(*engine, mixed_requests());
      for (const Request& r : mixed_requests())
        texts[ahead].push_back(generate(*engine, r));  // alone, begun from the cache
    }
    for (size_t i = 0; i < texts[0].size(); ++i) {
      const auto [a, b] = std::mismatch(texts[0][i].begin(), texts[0][i].end(), texts[1][i].begin(), texts[1][i].end());
      (void)b;
      EXPECT_EQ(texts[0][i], texts[1][i]) << arch << ", text " << i << " from token " << a - texts[0][i].begin();
    }
  }
}

}  // namespace
}  // namespace argent::test
