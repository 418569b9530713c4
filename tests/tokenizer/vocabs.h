// Vocabularies for tests: those of the real models, where ARGENT_MODELS has them, and ones made in code.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <deque>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "gguf/gguf.h"
#include "tokenizer/bpe.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/unicode.h"

namespace argent::testing {

// Texts and the Vocab that views them.
struct MadeVocab {
  std::deque<std::string> texts;
  Vocab vocab;

  int32_t add(std::string text, TokenType type = TokenType::normal, float score = 0) {
    vocab.tokens.push_back(texts.emplace_back(std::move(text)));
    vocab.types.push_back(type);
    if (vocab.model == "llama") vocab.scores.push_back(score);
    return int32_t(vocab.tokens.size()) - 1;
  }
  void merge(const std::string& left, const std::string& right) {
    vocab.merges.push_back(texts.emplace_back(left + " " + right));
  }
  std::shared_ptr<const Tokenizer> make() const { return Tokenizer::make(vocab); }
};

inline std::string spell(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) append_utf8(byte_to_char(uint8_t(c)), out);
  return out;
}

// The vocabulary of samples.py's pair_vocab.
inline std::unique_ptr<MadeVocab> pair_vocab(std::string_view pre) {
  auto made = std::make_unique<MadeVocab>();
  made->vocab.model = "gpt2";
  made->vocab.pre = pre;
  std::vector<std::string> chars;
  for (int byte = 0; byte < 256; ++byte) chars.push_back(spell(std::string(1, char(byte))));
  for (const auto& c : chars) made->add(c);
  for (uint32_t k = 0; k < 65536; ++k) {
    const uint32_t v = k * 40503 % 65536;
    made->add(chars[v >> 8] + chars[v & 255]);
    made->merge(chars[v >> 8], chars[v & 255]);
  }
  for (const char* word : {"hello", "Ġhello", "ABC", "123", "don", "Ġworld"}) made->add(word);
  for (const char* text : {"<|im_start|>", "<|im_end|>", "<|endoftext|>", "<mask>"})
    made->add(text, TokenType::control);
  for (const char* text : {"\n\n\n\n", "      ", "<h1>", "</table>"}) made->add(text, TokenType::user_defined);
  made->vocab.bos = made->vocab.eos = 0;
  return made;
}

// A small SentencePiece vocabulary: <unk> <s> </s>, the bytes, some words.
inline std::unique_ptr<MadeVocab> small_spm() {
  auto made = std::make_unique<MadeVocab>();
  made->vocab.model = "llama";
  made->vocab.pre = "default";
  made->add("<unk>", TokenType::unknown);
  made->add("<s>", TokenType::control);
  made->add("</s>", TokenType::control);
  for (int byte = 0; byte < 256; ++byte) made->add(fmt::format("<0x{:02X}>", byte), TokenType::byte);
  float score = 0;
  for (const char* text :
       {"▁a", "bc", "▁▁", "ab", "▁ab", "abc", "bca", "ca", "▁abc", "éa", "é", "▁", "a", "b", "c", "字"})
    made->add(text, TokenType::normal, --score);
  made->add("\n\n", TokenType::user_defined);
  made->add("<tag>", TokenType::user_defined);
  made->vocab.bos = 1;
  made->vocab.eos = 2;
  made->vocab.unk = 0;
  return made;
}

// The file of a model, opened once; null where ARGENT_MODELS does not have it.
inline const gguf::File* model_file(const std::string& name) {
  static std::deque<std::pair<std::string, gguf::File>> open;
  for (const auto& [known, file] : open)
    if (known == name) return &file;
  const char* folder = std::getenv("ARGENT_MODELS");
  if (!folder || !std::filesystem::exists(std::filesystem::path(folder) / name)) return nullptr;
  auto file = gguf::File::open((std::filesystem::path(folder) / name).string());
  EXPECT_TRUE(bool(file)) << file.error().message;
  if (!file) return nullptr;
  return &open.emplace_back(name, *std::move(file)).second;
}

inline constexpr const char* kSmolLM2 = "smollm2-135m-instruct-q4_1.gguf";
inline constexpr const char* kGemma3 = "gemma-3-270m-q4_k_m.gguf";

inline std::shared_ptr<const Tokenizer> model_tokenizer(const std::string& name) {
  static std::deque<std::pair<std::string, std::shared_ptr<const Tokenizer>>> loaded;
  for (const auto& [known, tokenizer] : loaded)
    if (known == name) return tokenizer;
  const gguf::File* file = model_file(name);
  if (!file) return nullptr;
  auto tokenizer = Tokenizer::load(*file);
  EXPECT_TRUE(bool(tokenizer)) << tokenizer.error().message;
  return tokenizer ? loaded.emplace_back(name, *tokenizer).second : nullptr;
}

}  // namespace argent::testing

#define ARGENT_TOKENIZER_OR_SKIP(variable, name)                  \
  const auto variable = ::argent::testing::model_tokenizer(name); \
  if (!variable) GTEST_SKIP() << "ARGENT_MODELS has no " << name
