// Bytes through encoding and back for small vocabularies of both families. What comes out must be the input: as its
// bytes for SentencePiece, with U+FFFD for each ill-formed byte for byte-level BPE; and the streaming detokenizer must
// give the same text as all bytes at once. The first bytes choose the vocabulary and where the text is cut into
// segments.
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <string>

#include "tokenizer/bpe.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/unicode.h"

namespace {

using namespace argent;

void check(bool ok) {
  if (!ok) std::abort();
}

struct Made {
  std::deque<std::string> texts;
  Vocab vocab;
  void add(std::string text, TokenType type = TokenType::normal, float score = 0) {
    vocab.tokens.push_back(texts.emplace_back(std::move(text)));
    vocab.types.push_back(type);
    if (vocab.model == "llama") vocab.scores.push_back(score);
  }
};

std::shared_ptr<const Tokenizer> make_bpe(std::string_view pre) {
  Made made;
  made.vocab.model = "gpt2";
  made.vocab.pre = pre;
  std::string chars[256];
  for (int byte = 0; byte < 256; ++byte) {
    append_utf8(byte_to_char(uint8_t(byte)), chars[byte]);
    made.add(chars[byte]);
  }
  auto merge = [&](const std::string& left, const std::string& right) {
    made.vocab.merges.push_back(made.texts.emplace_back(left + " " + right));
    made.add(left + right);
  };
  for (const char a : std::string_view("ab 1\n\xC3\xEF\xBF"))
    for (const char b : std::string_view("ba1 \n\xA9\xBD\xBF")) merge(chars[uint8_t(a)], chars[uint8_t(b)]);
  merge("ab", "ab");
  merge("abab", "abab");
  merge("a", "abab");
  for (const char* text : {"<|im_end|>", "<a>", "aa<"}) made.add(text, TokenType::control);
  for (const char* text : {"\n\n\n", "<a><a>", "    "}) made.add(text, TokenType::user_defined);
  return Tokenizer::make(made.vocab);
}

std::shared_ptr<const Tokenizer> make_spm(bool space_prefix) {
  Made made;
  made.vocab.model = "llama";
  made.vocab.add_space_prefix = space_prefix;
  made.add("<unk>", TokenType::unknown);
  made.add("<s>", TokenType::control);
  made.add("</s>", TokenType::control);
  for (int byte = 0; byte < 256; ++byte) made.add(fmt::format("<0x{:02X}>", byte), TokenType::byte);
  float score = 0;
  for (const char* text :
       {"ab", "▁a", "▁▁", "aba", "b▁", "é", "éé", "a", "b", "▁", "abab", "字", "字a", "\xE5\xAD", "<0x", "<0x0"})
    made.add(text, TokenType::normal, --score / 2);
  for (const char* text : {"\n\n", "\n", "<a>"}) made.add(text, TokenType::user_defined);
  made.vocab.bos = 1;
  made.vocab.eos = 2;
  made.vocab.unk = 0;
  return Tokenizer::make(made.vocab);
}

void check_ids(const Tokenizer& tokenizer, std::string_view text, const std::vector<int32_t>& ids, bool plain) {
  std::string bytes, streamed;
  Detokenizer detokenizer(tokenizer, true);
  for (const int32_t id : ids) {
    check(id >= 0 && id < tokenizer.n_vocab());
    check(!plain || !tokenizer.is_control(id));
    tokenizer.append_bytes(id, bytes, true);
    const std::string part = detokenizer.push(id);
    check(is_valid_utf8(part));
    streamed += part;
  }
  streamed += detokenizer.flush();
  std::string whole, rest = bytes;
  take_complete_utf8(rest, whole);
  if (!rest.empty()) whole += kReplacementCharacter;
  check(streamed == whole);

  if (tokenizer.model() == "gpt2") {
    std::string want;
    for (size_t i = 0; i < text.size();) {
      const Utf8Char c = decode_utf8(text.data() + i, text.size() - i);
      const size_t n = c.valid ? c.length : 1;
      want += c.valid ? text.substr(i, n) : kReplacementCharacter;
      i += n;
    }
    check(bytes == want);
  } else if (!tokenizer.add_space_prefix()) {
    // A space mark that the text itself has is taken for a space, as in the reference.
    std::string want;
    for (size_t i = 0; i < text.size(); ++i) {
      const bool mark = text.substr(i, 3) == "\u2581";
      want += mark ? ' ' : text[i];
      if (mark) i += 2;
    }
    check(bytes == want);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::shared_ptr<const Tokenizer> tokenizers[] = {
      make_bpe("gpt-2"),  make_bpe("smollm"),  make_bpe("llama-bpe"), make_bpe("qwen2"), make_bpe("qwen35"),
      make_bpe("gpt-4o"), make_bpe("default"), make_bpe("falcon"),    make_spm(false),   make_spm(true)};
  if (size < 3) return 0;
  const Tokenizer& tokenizer = *tokenizers[data[0] % std::size(tokenizers)];
  const std::string_view text(reinterpret_cast<const char*>(data + 3), size - 3);
  for (const bool special : {false, true})
    check_ids(tokenizer, text, tokenizer.encode(text, {.add_bos = false, .parse_special = special}), !special);
  const size_t first = std::min<size_t>(data[1], text.size()), second = std::min<size_t>(first + data[2], text.size());
  const Tokenizer::Segment segments[] = {
      {text.substr(0, first), true}, {text.substr(first, second - first), false}, {text.substr(second), true}};
  check_ids(tokenizer, text, tokenizer.encode(segments, false), false);
  const Tokenizer::Segment plain[] = {{text.substr(0, first), false}, {text.substr(first), false}};
  check(tokenizer.encode(plain, false) == tokenizer.encode(text, {.add_bos = false, .parse_special = false}));
  return 0;
}
