// The parts by themselves: pre-tokenizers, special tokens, UTF-8, the streaming detokenizer.
#include <random>

#include "tokenizer/pretokenizer.h"
#include "tokenizer/specials.h"
#include "tokenizer/vocabs.h"

namespace argent::testing {
namespace {

std::string split(std::string_view pre, std::string_view text) {
  std::vector<uint32_t> ends;
  Pretokenizer::find(pre)->split(text, ends);
  std::string out;
  uint32_t begin = 0;
  for (const uint32_t end : ends) {
    EXPECT_LT(begin, end);
    if (begin) out += '|';
    out += text.substr(begin, end - begin);
    begin = end;
  }
  EXPECT_EQ(begin, text.size());
  return out;
}

TEST(Pretokenizer, Rules) {
  EXPECT_EQ(split("gpt-2", "It's 'S we'll 1234 a...b  c\n\nd  "), "It|'s| '|S| we|'ll| 1234| a|...|b| | c|\n|\n|d|  ");
  EXPECT_EQ(split("smollm", "a1 23  4"), "a|1| |2|3|  |4");
  EXPECT_EQ(split("llama-bpe", "It'S 'LL 12345 a...\n\nb  c\n\nd  \n e"),
            "It|'S| '|LL| |123|45| a|...\n\n|b| | c|\n\n|d|  \n| e");
  EXPECT_EQ(split("qwen2", "1234 x\r\n\r\n  y"), "1|2|3|4| x|\r\n\r\n| | y");
  EXPECT_EQ(split("qwen35", "e\u0301a \u0301b"), "e\u0301a| \u0301b");
  EXPECT_EQ(split("qwen2", "e\u0301a"), "e|\u0301a");
  EXPECT_EQ(split("llama-bpe", "\ta\u3000b\u00A0c\u200Dd"), "\ta|\u3000b|\u00A0c|\u200Dd");
  EXPECT_EQ(split("gpt-2", "\u3000a\u2028\u2029b \u00A0c"), "\u3000|a|\u2028|\u2029|b| |\u00A0|c");
  EXPECT_EQ(split("gpt-4o", "HTTPServer iPhoneX'll ÀÉbc /x//\n"), "HTTPServer| i|Phone|X'll| ÀÉbc| /|x|//\n");
  EXPECT_EQ(split("default", "a,b+`12345 6789"), "a|,|b|+|`|123|45| |678|9");
  EXPECT_EQ(split("falcon", "a1234"), "a|123|4");
  EXPECT_EQ(split("ufakzeka", "it's"), "it|'s");
  EXPECT_EQ(split("seed-coder", "!\n"), "!|\n");
  EXPECT_EQ(split("llama-bpe", ""), "");
  EXPECT_EQ(Pretokenizer::find("llama4")->max_digits, 3);
  EXPECT_FALSE(Pretokenizer::find(""));
  EXPECT_FALSE(Pretokenizer::find("Qwen2"));
}

TEST(Unicode, Classes) {
  const std::pair<uint32_t, CharClass> cases[] = {
      {'a', CharClass::letter},     {'1', CharClass::number},     {'_', CharClass::punctuation},
      {'$', CharClass::symbol},     {' ', CharClass::space},      {0, CharClass::other},
      {0x1C, CharClass::other},     {0x85, CharClass::space},     {0xA0, CharClass::space},
      {0x180E, CharClass::other},   {0x200B, CharClass::other},   {0x200D, CharClass::other},
      {0x2028, CharClass::space},   {0x301, CharClass::mark},     {0x4E00, CharClass::letter},
      {0xFFFD, CharClass::symbol},  {0x1F600, CharClass::symbol}, {0x2EBF0, CharClass::letter},  // new in 15.1
      {0x897, CharClass::other},                                                                 // a mark only in 16
      {0x323AF, CharClass::letter}, {0x323B0, CharClass::other},  {0x324FF, CharClass::other},
      {0x32400, CharClass::other},  {0xE0100, CharClass::mark},   {0xE01EF, CharClass::mark},
      {0xE01F0, CharClass::other},  {0x10FFFF, CharClass::other}};
  for (const auto& [cp, want] : cases) EXPECT_EQ(char_class(cp), want) << std::hex << cp;
  for (uint32_t cp = 0; cp < 0x110000; ++cp) ASSERT_LE(int(char_class(cp)), int(CharClass::space)) << cp;
}

TEST(Unicode, DecodesWhatItEncodes) {
  for (uint32_t cp = 0; cp < 0x110000; ++cp) {
    std::string text;
    append_utf8(cp, text);
    const Utf8Char c = decode_utf8(text.data(), text.size());
    if (cp >= 0xD800 && cp < 0xE000) {
      ASSERT_FALSE(c.valid);
    } else {
      ASSERT_TRUE(c.valid && c.cp == cp && c.length == text.size()) << cp;
      for (size_t n = 1; n < text.size(); ++n) {
        const Utf8Char part = decode_utf8(text.data(), n);
        ASSERT_TRUE(!part.valid && part.incomplete && part.length == n);
      }
    }
  }
}

// The ways of the reference: one token after the other, longest first, cuts the text that is left.
std::vector<Specials::Match> slow_specials(std::string_view text, std::vector<Specials::Token> tokens,
                                           const std::vector<bool>& plain) {
  std::stable_sort(tokens.begin(), tokens.end(), [](auto& a, auto& b) { return a.text.size() > b.text.size(); });
  std::vector<bool> taken(text.size());
  std::vector<Specials::Match> out;
  for (size_t t = 0; t < tokens.size();) {
    size_t same = t;
    while (same < tokens.size() && tokens[same].text.size() == tokens[t].text.size()) ++same;
    const size_t n = tokens[t].text.size();
    for (size_t i = 0; i + n <= text.size(); ++i) {
      for (size_t k = t; k < same; ++k) {
        bool fits = text.substr(i, n) == tokens[k].text;
        for (size_t j = i; fits && j < i + n; ++j) fits = !taken[j] && !(tokens[k].control && plain[j]);
        if (!fits) continue;
        std::fill(taken.begin() + i, taken.begin() + i + n, true);
        out.push_back({uint32_t(i), uint32_t(i + n), tokens[k].id});
        break;
      }
    }
    t = same;
  }
  std::sort(out.begin(), out.end(), [](auto& a, auto& b) { return a.begin < b.begin; });
  return out;
}

TEST(Specials, IsWhatTheDefinitionSays) {
  std::mt19937 rng(5);
  auto random_text = [&](size_t max) {
    std::string out(1 + rng() % max, 'a');
    for (char& c : out) c = "ab"[rng() % 2];
    return out;
  };
  for (int round = 0; round < 300; ++round) {
    std::vector<std::string> texts;
    for (uint32_t n = rng() % 8; n > 0; --n) {
      const std::string text = random_text(6);
      if (std::find(texts.begin(), texts.end(), text) == texts.end()) texts.push_back(text);
    }
    std::vector<Specials::Token> tokens;
    for (const auto& text : texts) tokens.push_back({text, int32_t(tokens.size()), rng() % 2 == 0});
    Specials specials;
    specials.build(tokens);
    for (int i = 0; i < 40; ++i) {
      const std::string text = random_text(30);
      std::vector<bool> plain(text.size());
      std::vector<std::pair<uint32_t, uint32_t>> stretches;
      for (uint32_t p = rng() % 6; p < text.size(); p += 1 + rng() % 6) {
        const uint32_t end = std::min<uint32_t>(text.size(), p + 1 + rng() % 6);
        stretches.push_back({p, end});
        std::fill(plain.begin() + p, plain.begin() + end, true);
        p = end;
      }
      const auto want = slow_specials(text, tokens, plain), got = specials.find(text, stretches);
      ASSERT_EQ(got.size(), want.size()) << text;
      for (size_t k = 0; k < want.size(); ++k)
        ASSERT_TRUE(got[k].begin == want[k].begin && got[k].end == want[k].end && got[k].id == want[k].id) << text;
    }
  }
}

TEST(Detokenizer, HoldsIncompleteCharacters) {
  const auto tokenizer = small_spm()->make();
  auto byte = [&](uint8_t b) { return *tokenizer->find(fmt::format("<0x{:02X}>", b)); };
  Detokenizer d(*tokenizer);
  EXPECT_EQ(d.push(byte(0xF0)), "");
  EXPECT_EQ(d.push(byte(0x9F)), "");
  EXPECT_EQ(d.push(byte(0x98)), "");
  EXPECT_EQ(d.push(byte(0x80)), "\U0001F600");
  EXPECT_EQ(d.push(byte(0xE6)), "");
  EXPECT_EQ(d.push(byte(0xAD)), "");
  EXPECT_EQ(d.push(byte('a')), "\uFFFDa");  // one for the maximal subpart
  EXPECT_EQ(d.push(byte(0xFF)), "\uFFFD");
  EXPECT_EQ(d.push(byte(0xC0)), "\uFFFD");
  EXPECT_EQ(d.push(byte(0xE0)), "");
  EXPECT_EQ(d.push(byte(0x80)), "\uFFFD\uFFFD");  // E0 80 can not begin a character
  EXPECT_EQ(d.push(byte(0xC3)), "");
  EXPECT_EQ(d.flush(), "\uFFFD");
  EXPECT_EQ(d.flush(), "");
  EXPECT_EQ(d.push(byte(0)), std::string(1, '\0'));
  EXPECT_EQ(d.push(1), "");  // control
  EXPECT_EQ(d.push(-1), "");
  EXPECT_EQ(d.push(99999), "");
  EXPECT_EQ(Detokenizer(*tokenizer, true).push(1), "<s>");
}

TEST(Detokenizer, LeadingSpace) {
  auto made = small_spm();
  auto all = [](const Tokenizer& t, std::string_view text, bool strip) {
    Detokenizer d(t, false, strip);
    std::string out;
    for (const int32_t id : t.encode(text)) out += d.push(id);
    return out + d.flush();
  };
  const auto with = made->make();
  for (const std::string text : {"", " ", "a", " a", "  a", "\t\t\t\t\t\ttest", "字", "abc bca"}) {
    EXPECT_EQ(all(*with, text, true), text);
    EXPECT_EQ(all(*with, text, false), text.empty() ? "" : " " + text);
  }
  made->vocab.add_space_prefix = false;
  const auto without = made->make();
  for (const std::string text : {"", " ", "a", " a", "  a", "\t\t\t\t\t\ttest", "字"})
    EXPECT_EQ(all(*without, text, true), text);
}

TEST(Detokenizer, AnyDivisionOfTheBytesGivesTheSame) {
  std::mt19937 rng(6);
  const std::string_view pieces[] = {"a",    "é",    "字",           "😀",        "\xF0\x9F", "\xE5", "\xAD",
                                     "\x80", "\xC0", "\xED\xA0\x80", "\xF4\x90", "\xFF"};
  for (int i = 0; i < 3000; ++i) {
    std::string bytes;
    for (uint32_t n = rng() % 10; n > 0; --n) bytes += pieces[rng() % std::size(pieces)];
    std::string whole, rest = bytes;
    take_complete_utf8(rest, whole);
    std::string pending, divided;
    for (const char c : bytes) {
      pending += c;
      take_complete_utf8(pending, divided);
      EXPECT_LE(pending.size(), 3u);
      EXPECT_TRUE(is_valid_utf8(divided));
    }
    EXPECT_EQ(divided, whole);
    EXPECT_EQ(pending, rest);
  }
}

}  // namespace
}  // namespace argent::testing
