// Real models, from the folder that ARGENT_MODELS names.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>

#include "gguf/split.h"
#include "raw_file.h"
#include "walk.h"

namespace argent::gguf {
namespace {

struct Model {
  const char* file;
  const char* architecture;
  size_t n_keys, n_tensors;
  uint64_t n_vocab;
};
constexpr Model kModels[] = {
    {"smollm2-135m-instruct-q4_1.gguf", "llama", 33, 272, 49152},
    {"gemma-3-270m-q4_k_m.gguf", "gemma3", 33, 236, 262144},
};

std::optional<std::string> path_of(const Model& model) {
  const char* folder = std::getenv("ARGENT_MODELS");
  if (!folder) return std::nullopt;
  std::string path = std::string(folder) + "/" + model.file;
  if (!std::filesystem::exists(path)) return std::nullopt;
  return path;
}

class Models : public ::testing::TestWithParam<Model> {};

TEST_P(Models, OpensInMilliseconds) {
  const auto path = path_of(GetParam());
  if (!path) GTEST_SKIP() << "ARGENT_MODELS has no " << GetParam().file;
  auto best = std::chrono::steady_clock::duration::max();
  for (int i = 0; i < 5; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    const auto file = File::open(*path);
    best = std::min(best, std::chrono::steady_clock::now() - begin);
    ASSERT_TRUE(file) << file.error().message;
    EXPECT_EQ(file->find("general.architecture")->as_string(), GetParam().architecture);
    EXPECT_EQ(file->entries().size(), GetParam().n_keys);
    EXPECT_EQ(file->tensors().size(), GetParam().n_tensors);
    EXPECT_EQ((*file->require_strings("tokenizer.ggml.tokens"))->size(), GetParam().n_vocab);
    EXPECT_NE(file->find_tensor("token_embd.weight"), nullptr);
    EXPECT_EQ(file->find_tensor("token_embd.weight")->dims[1], GetParam().n_vocab);
  }
  EXPECT_LT(best, std::chrono::milliseconds(15));
}

TEST_P(Models, SplitAndMergeKeepsAll) {
  const auto path = path_of(GetParam());
  if (!path) GTEST_SKIP() << "ARGENT_MODELS has no " << GetParam().file;
  TempDir dir;
  const auto whole = File::open(*path);
  const auto paths = split(*whole, {0, 40'000'000}, dir / "s");
  ASSERT_TRUE(paths) << paths.error().message;
  EXPECT_GE(paths->size(), 3u);
  const auto shards = File::open(paths->back());
  ASSERT_TRUE(shards) << shards.error().message;
  ASSERT_TRUE(merge(*shards, dir / "m.gguf"));
  const auto merged = File::open(dir / "m.gguf");
  ASSERT_EQ(merged->entries().size(), whole->entries().size());
  for (size_t i = 0; i < whole->entries().size(); ++i) {
    const Entry &a = whole->entries()[i], &b = merged->entries()[i];
    EXPECT_EQ(a.key, b.key);
    EXPECT_TRUE(std::equal(a.value.raw().begin(), a.value.raw().end(), b.value.raw().begin(), b.value.raw().end()));
  }
  ASSERT_EQ(merged->tensors().size(), whole->tensors().size());
  for (size_t i = 0; i < whole->tensors().size(); ++i) {
    const Tensor &a = whole->tensors()[i], &b = merged->tensors()[i];
    EXPECT_EQ(a.name, b.name);
    EXPECT_TRUE(a.n_bytes == b.n_bytes && std::memcmp(a.data, b.data, a.n_bytes) == 0) << a.name;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Models, ::testing::ValuesIn(kModels),
                         [](const auto& info) { return std::string(info.param.architecture); });

}  // namespace
}  // namespace argent::gguf
