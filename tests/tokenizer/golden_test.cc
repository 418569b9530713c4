// Ids that llama.cpp gives, as make_golden.py recorded them.
#include <fstream>
#include <sstream>

#include "base/json.h"
#include "tokenizer/vocabs.h"

namespace argent::testing {
namespace {

std::vector<std::string> lines_of(const std::string& name) {
  std::ifstream in(std::string(ARGENT_TEST_DIR "/golden/") + name);
  EXPECT_TRUE(in.good()) << name;
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

const std::vector<std::string>& strings() {
  static const auto all = [] {
    std::vector<std::string> out;
    for (const auto& line : lines_of("strings.jsonl")) out.push_back(nlohmann::json::parse(line).get<std::string>());
    return out;
  }();
  return all;
}

std::vector<int32_t> parse_ids(const std::string& text) {
  std::istringstream in(text);
  return {std::istream_iterator<int32_t>(in), {}};
}

void expect_golden(const Tokenizer& tokenizer, const std::string& name) {
  const auto lines = lines_of(name + ".ids");
  ASSERT_EQ(lines.size(), strings().size());
  ASSERT_GT(lines.size(), 600u);
  for (size_t i = 0; i < lines.size(); ++i) {
    const size_t bar = lines[i].find('|');
    const auto special = parse_ids(lines[i].substr(0, bar));
    const auto plain = bar == std::string::npos ? special : parse_ids(lines[i].substr(bar + 1));
    const std::string& text = strings()[i];
    EXPECT_EQ(tokenizer.encode(text, {.add_bos = false, .parse_special = true}), special) << name << ' ' << text;
    EXPECT_EQ(tokenizer.encode(text, {.add_bos = false, .parse_special = false}), plain) << name << ' ' << text;
    const Tokenizer::Segment as_template[] = {{text, true}}, as_message[] = {{text, false}};
    EXPECT_EQ(tokenizer.encode(as_template, false), special);
    EXPECT_EQ(tokenizer.encode(as_message, false), plain);
  }
}

TEST(Golden, SmolLM2) {
  ARGENT_TOKENIZER_OR_SKIP(tokenizer, kSmolLM2);
  expect_golden(*tokenizer, "smollm2");
}

TEST(Golden, Gemma3) {
  ARGENT_TOKENIZER_OR_SKIP(tokenizer, kGemma3);
  expect_golden(*tokenizer, "gemma");
}

TEST(Golden, Gemma3WithSpacePrefix) {
  const gguf::File* file = model_file(kGemma3);
  if (!file) GTEST_SKIP() << "ARGENT_MODELS has no " << kGemma3;
  auto vocab = Vocab::load(*file);
  ASSERT_TRUE(vocab && *vocab);
  (*vocab)->add_space_prefix = true;
  expect_golden(*Tokenizer::make(**vocab), "gemma-space-prefix");
}

class PreTokenizers : public ::testing::TestWithParam<const char*> {};
TEST_P(PreTokenizers, OnTheVocabularyOfPairs) {
  const auto made = pair_vocab(GetParam());
  expect_golden(*made->make(), GetParam());
}
INSTANTIATE_TEST_SUITE_P(Golden, PreTokenizers,
                         ::testing::Values("smollm", "default", "llama-bpe", "qwen2", "qwen35", "gpt-2", "falcon",
                                           "gpt-4o", "tekken", "seed-coder", "ufakzeka", "glm4"));

}  // namespace
}  // namespace argent::testing
