// What Vocab::load accepts and refuses, and how it says so.
#include "gguf/writer.h"
#include "tokenizer/vocabs.h"

namespace argent::testing {
namespace {

using Strings = std::vector<std::string_view>;

// A valid file of a kind, to be broken by the tests.
gguf::Writer bpe_file() {
  gguf::Writer w;
  w.set("general.architecture", "llama");
  w.set("tokenizer.ggml.model", "gpt2");
  w.set("tokenizer.ggml.pre", "qwen2");
  w.set_strings("tokenizer.ggml.tokens", Strings{"a", "b", "ab", "<|im_end|>"});
  w.set_array<int32_t>("tokenizer.ggml.token_type", std::vector<int32_t>{1, 1, 1, 3});
  w.set_strings("tokenizer.ggml.merges", Strings{"a b"});
  w.set<uint32_t>("tokenizer.ggml.eos_token_id", 3);
  return w;
}
gguf::Writer spm_file() {
  gguf::Writer w;
  w.set("general.architecture", "llama");
  w.set("tokenizer.ggml.model", "llama");
  w.set_strings("tokenizer.ggml.tokens", Strings{"<unk>", "<s>", "</s>", "▁a"});
  w.set_array<int32_t>("tokenizer.ggml.token_type", std::vector<int32_t>{2, 3, 3, 1});
  w.set_array<float>("tokenizer.ggml.scores", std::vector<float>{0, 0, 0, -1});
  return w;
}

Result<std::shared_ptr<const Tokenizer>> load(const gguf::Writer& w) {
  const auto bytes = w.to_bytes();
  EXPECT_TRUE(bool(bytes));
  auto file = gguf::File::parse(*bytes, "made.gguf");
  if (!file) return file.error();
  return Tokenizer::load(*file);
}

// The whole message, so that a reader of this file sees what users see.
void expect_refused(const gguf::Writer& w, Code code, const std::string& message) {
  const auto result = load(w);
  ASSERT_FALSE(result) << message;
  EXPECT_EQ(result.error().code, code);
  EXPECT_EQ(result.error().message.substr(0, message.size()), message);
}

TEST(Load, Valid) {
  auto bpe = load(bpe_file());
  ASSERT_TRUE(bpe) << bpe.error().message;
  EXPECT_EQ((*bpe)->encode("ab<|im_end|>"), (std::vector<int32_t>{2, 3}));
  EXPECT_EQ((*bpe)->eos(), 3);
  auto spm = load(spm_file());
  ASSERT_TRUE(spm) << spm.error().message;
  EXPECT_EQ((*spm)->encode("a"), (std::vector<int32_t>{1, 3}));
  EXPECT_EQ((*spm)->eos(), 2);
}

TEST(Load, NoVocabulary) {
  gguf::Writer w;
  w.set("general.architecture", "llama");
  auto none = load(w);
  ASSERT_TRUE(none);
  EXPECT_EQ(*none, nullptr);
  for (const char* name : {"none", "no_vocab"}) {
    w.set("tokenizer.ggml.model", name);
    none = load(w);
    ASSERT_TRUE(none);
    EXPECT_EQ(*none, nullptr);
  }
}

TEST(Load, Unsupported) {
  auto w = bpe_file();
  w.set("tokenizer.ggml.model", "rwkv");
  expect_refused(w, Code::unsupported,
                 "made.gguf: tokenizer model 'rwkv' is not supported; supported are 'gpt2', 'llama' and 'none'");
  w = bpe_file();
  w.set("tokenizer.ggml.pre", "new\nest");
  expect_refused(w, Code::unsupported,
                 "made.gguf: pre-tokenizer 'new\\x0aest' is not supported; supported are default, llama-bpe, ");
}

TEST(Load, WrongTypesAndLengths) {
  auto w = bpe_file();
  w.set<uint32_t>("tokenizer.ggml.model", 7);
  expect_refused(w, Code::invalid, "made.gguf: key 'tokenizer.ggml.model' is u32 7, wanted a string");
  w = bpe_file();
  w.erase("tokenizer.ggml.model");
  expect_refused(w, Code::invalid, "made.gguf: key 'tokenizer.ggml.model' is missing, wanted a string");
  w = bpe_file();
  w.erase("tokenizer.ggml.tokens");
  expect_refused(w, Code::invalid, "made.gguf: key 'tokenizer.ggml.tokens' is missing, wanted an array of strings");
  w = bpe_file();
  w.set_strings("tokenizer.ggml.tokens", {});
  expect_refused(w, Code::invalid, "made.gguf: key 'tokenizer.ggml.tokens' is string[0], wanted at least one token");
  w = bpe_file();
  w.set_array<int32_t>("tokenizer.ggml.token_type", std::vector<int32_t>{1, 1, 1});
  expect_refused(w, Code::invalid,
                 "made.gguf: key 'tokenizer.ggml.token_type' is i32[3], wanted an array of 4 integers");
  w.set_array<float>("tokenizer.ggml.token_type", std::vector<float>{1, 1, 1, 3});
  expect_refused(w, Code::invalid,
                 "made.gguf: key 'tokenizer.ggml.token_type' is f32[4], wanted an array of 4 integers");
  w = bpe_file();
  w.erase("tokenizer.ggml.merges");
  expect_refused(w, Code::invalid, "made.gguf: key 'tokenizer.ggml.merges' is missing, wanted an array of strings");
  for (const char* merge : {"ab", "a ", " a", "", " "}) {
    w = bpe_file();
    w.set_strings("tokenizer.ggml.merges", Strings{"a b", merge});
    expect_refused(w, Code::invalid,
                   fmt::format("made.gguf: key 'tokenizer.ggml.merges'[1] is '{}', wanted two tokens", merge));
  }
  w = bpe_file();
  w.set("tokenizer.ggml.pre", true);
  expect_refused(w, Code::invalid, "made.gguf: key 'tokenizer.ggml.pre' is bool true, wanted a string");
  w = spm_file();
  w.erase("tokenizer.ggml.scores");
  expect_refused(w, Code::invalid, "made.gguf: key 'tokenizer.ggml.scores' is missing, wanted an array of 4 floats");
  w.set_array<float>("tokenizer.ggml.scores", std::vector<float>{1});
  expect_refused(w, Code::invalid, "made.gguf: key 'tokenizer.ggml.scores' is f32[1], wanted an array of 4 floats");
  w.set_array<float>("tokenizer.ggml.scores", std::vector<float>{1, NAN, 1, 1});
  expect_refused(w, Code::invalid, "made.gguf: key 'tokenizer.ggml.scores'[1] is nan, wanted a finite number");
  w.set_array<double>("tokenizer.ggml.scores", std::vector<double>{1, 1, 1, 1e300});
  expect_refused(w, Code::invalid, "made.gguf: key 'tokenizer.ggml.scores'[3] is inf, wanted a finite number");
}

TEST(Load, IdsAndFlags) {
  for (const char* key : {"bos", "eos", "eot", "eom", "unknown", "fim_pad"}) {
    auto w = bpe_file();
    const std::string name = fmt::format("tokenizer.ggml.{}_token_id", key);
    w.set<uint32_t>(name, 4);
    expect_refused(w, Code::invalid,
                   fmt::format("made.gguf: key '{}' is u32 4, wanted the id of one of 4 tokens", name));
    w.set<int32_t>(name, -2);
    expect_refused(w, Code::invalid,
                   fmt::format("made.gguf: key '{}' is i32 -2, wanted the id of one of 4 tokens", name));
    w.set(name, "a");
    expect_refused(w, Code::invalid,
                   fmt::format("made.gguf: key '{}' is string 'a', wanted the id of one of 4 tokens", name));
    for (int i = 0; i < 3; ++i) {  // any width, and both ways of writing "none"
      if (i == 0) w.set<uint8_t>(name, 3);
      if (i == 1) w.set<int32_t>(name, -1);
      if (i == 2) w.set<uint32_t>(name, UINT32_MAX);
      EXPECT_TRUE(load(w)) << name << i;
    }
  }
  auto w = bpe_file();
  w.set("tokenizer.ggml.add_bos_token", true);
  expect_refused(w, Code::invalid,
                 "made.gguf: key 'tokenizer.ggml.bos_token_id' is missing, wanted an id, as add_bos_token is true");
  w.set<uint32_t>("tokenizer.ggml.bos_token_id", 0);
  ASSERT_TRUE(load(w));
  EXPECT_EQ((*load(w))->encode("b"), (std::vector<int32_t>{0, 1}));
  w.set<uint32_t>("tokenizer.ggml.add_bos_token", 1);
  expect_refused(w, Code::invalid, "made.gguf: key 'tokenizer.ggml.add_bos_token' is u32 1, wanted a bool");
  // A name that implies BOS is not a demand for it.
  w = bpe_file();
  w.set("tokenizer.ggml.pre", "llama-bpe");
  ASSERT_TRUE(load(w));
  EXPECT_FALSE((*load(w))->add_bos());
}

TEST(Load, Lenient) {
  auto w = bpe_file();
  w.set_strings("tokenizer.ggml.tokens", Strings{"a", "b", "a", ""});  // duplicate and empty
  w.set_array<uint64_t>("tokenizer.ggml.token_type", std::vector<uint64_t>{1, 1, UINT64_MAX, 99});
  w.set_strings("tokenizer.ggml.merges", Strings{"a b", "x y", "a b"});  // not tokens; twice
  auto t = load(w);
  ASSERT_TRUE(t) << t.error().message;
  EXPECT_EQ((*t)->encode("ab"), (std::vector<int32_t>{0, 1}));
  EXPECT_EQ((*t)->type(2), TokenType::undefined);
  w.erase("tokenizer.ggml.token_type");
  w.erase("tokenizer.ggml.pre");
  ASSERT_TRUE(load(w));
  EXPECT_EQ((*load(w))->pre(), "default");
  for (const int width : {1, 2, 4}) {
    auto s = spm_file();
    if (width == 1) s.set_array<int8_t>("tokenizer.ggml.token_type", std::vector<int8_t>{2, 3, 3, 1});
    if (width == 2) s.set_array<uint16_t>("tokenizer.ggml.token_type", std::vector<uint16_t>{2, 3, 3, 1});
    if (width == 4) s.set_array<int32_t>("tokenizer.ggml.scores", std::vector<int32_t>{0, 0, 0, -1});
    ASSERT_TRUE(load(s));
    EXPECT_EQ((*load(s))->encode("a"), (std::vector<int32_t>{1, 3}));
  }
}

}  // namespace
}  // namespace argent::testing
