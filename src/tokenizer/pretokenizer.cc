#include "tokenizer/pretokenizer.h"

#include <algorithm>

#include "tokenizer/unicode.h"

namespace argent {
namespace {

// The regular expressions, for comparison. C stands for '(s|t|re|ve|m|ll|d), case-insensitive in llama3 and cased:
//   gpt2:   C| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//   llama3: C|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
//   cased:  [^\r\n\p{L}\p{N}]?U*W+C?|[^\r\n\p{L}\p{N}]?U+W*C?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|
//           \s+(?!\S)|\s+     with U = \p{L} but a-z and W = \p{L} but A-Z, which is how llama.cpp tells the cases
//           apart
struct Name {
  std::string_view name;
  Pretokenizer rules;
};

using Rule = Pretokenizer::Rule;
using Cut = Pretokenizer::Cut;

const std::vector<Name>& table() {
  static const std::vector<Name> names = [] {
    const Pretokenizer gpt2;
    Pretokenizer smollm, fallback, falcon, llama3, dbrx, glm4, qwen2, qwen35, seed_coder, ufakzeka, gpt4o, tekken;
    smollm.first = Cut::each_number;
    fallback.first = Cut::punctuation_but_backtick;
    fallback.numbers_apart_after = true;
    fallback.digits_by_3_after = true;
    falcon.first = Cut::punctuation;
    falcon.digits_by_3_after = true;
    dbrx.rule = Rule::llama3;
    llama3 = glm4 = dbrx;
    glm4.whole_words_first = true;
    llama3.whole_words_first = llama3.add_bos = true;
    qwen2 = dbrx;
    qwen2.max_digits = 1;
    qwen35 = qwen2;
    qwen35.marks_in_words = true;
    seed_coder = qwen2;
    seed_coder.newlines_after_symbols = false;
    ufakzeka = qwen2;
    ufakzeka.contractions = false;
    gpt4o.rule = Rule::cased;
    gpt4o.slashes_after_symbols = true;
    tekken = gpt4o;
    tekken.max_digits = 1;
    tekken.contractions = false;
    tekken.whole_words_first = tekken.add_bos = true;

    std::vector<Name> all;
    auto add = [&](const Pretokenizer& rules, std::initializer_list<std::string_view> names) {
      for (auto name : names) all.push_back({name, rules});
    };
    add(fallback, {"default"});
    add(llama3, {"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"});
    add(dbrx, {"dbrx", "smaug-bpe", "chatglm-bpe"});
    add(glm4, {"glm4"});
    add(qwen2,
        {"qwen2", "deepseek-r1-qwen", "megrez", "kormo", "f2llmv2", "stablelm2", "hunyuan", "solar-open", "grok-2"});
    add(qwen35, {"qwen35"});
    add(smollm, {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"});
    add(gpt2, {"gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling", "gigachat", "a.x-4.0", "mellum",
               "exaone4", "modern-bert"});
    add(falcon, {"falcon"});
    add(gpt4o, {"gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"});
    add(tekken, {"tekken"});
    add(seed_coder, {"seed-coder"});
    add(ufakzeka, {"ufakzeka"});
    return all;
  }();
  return names;
}

bool is_letter(CharClass c) { return c == CharClass::letter; }
bool is_number(CharClass c) { return c == CharClass::number; }
bool is_space(CharClass c) { return c == CharClass::space; }
bool is_symbol(CharClass c) { return !is_letter(c) && !is_number(c) && !is_space(c); }  // [^\s\p{L}\p{N}]

// One word at a time from a position on, in text that stops at `end`. All positions are between characters.
class Scanner {
 public:
  Scanner(const Pretokenizer& rules, const char* end) : rules_(rules), end_(end) {}

  const char* next(const char* p) const {
    switch (rules_.rule) {
      case Rule::gpt2:
        return next_gpt2(p);
      case Rule::llama3:
        return next_llama3(p);
      case Rule::cased:
        return next_cased(p);
    }
    return end_;
  }

  CharClass at(const char* p, const char** after) const {
    const Utf8Char c = decode_utf8(p, size_t(end_ - p));
    *after = p + c.length;
    return char_class(c.cp);
  }
  template <class Is>
  const char* skip(const char* p, Is is) const {
    for (const char* after; p < end_ && is(at(p, &after));) p = after;
    return p;
  }

 private:
  // The end of a contraction at p, else p.
  const char* contraction(const char* p, bool any_case) const {
    if (!rules_.contractions || p == end_ || *p != '\'') return p;
    auto letter = [&](const char* q) { return q < end_ ? char(any_case ? *q | 0x20 : *q) : '\0'; };
    const char a = letter(p + 1);
    // Setting bit 5 maps only the two cases of a letter to that letter.
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return p + 2;
    const char b = letter(p + 2);
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return p + 3;
    return p;
  }

  // Where the class of p, or of what follows the space at p, is that of a run of `is`: the end of the run, else p.
  template <class Is>
  const char* spaced_run(const char* p, Is is) const {
    const char* start = *p == ' ' ? p + 1 : p;
    const char* stop = skip(start, is);
    return stop == start ? p : stop;
  }

  // \s+(?!\S)|\s+ : all white space at p, but the last of several if a word follows, which then begins with it.
  const char* spaces(const char* p) const {
    const char* last = p;
    const char* stop = p;
    for (const char* after; stop < end_ && is_space(at(stop, &after)); stop = after) last = stop;
    return stop < end_ && last > p ? last : stop;
  }

  // \s*[\r\n]+ and the alternatives behind it.
  const char* spaces_to_newline(const char* p) const {
    const char* newline = nullptr;
    for (const char *q = p, *after; q < end_ && is_space(at(q, &after)); q = after)
      if (*q == '\r' || *q == '\n') newline = after;
    return newline ? newline : spaces(p);
  }

  const char* next_gpt2(const char* p) const {
    if (const char* q = contraction(p, false); q != p) return q;
    if (const char* q = spaced_run(p, is_letter); q != p) return q;
    if (const char* q = spaced_run(p, is_number); q != p) return q;
    if (const char* q = spaced_run(p, is_symbol); q != p) return q;
    return spaces(p);
  }

  const char* numbers(const char* p) const {
    const char* after;
    for (int n = 0; n < rules_.max_digits && p < end_ && is_number(at(p, &after)); ++n) p = after;
    return p;
  }

  // ` ?[^\s\p{L}\p{N}]+[\r\n]*` with what may follow as the rules say.
  template <class Is>
  const char* symbols(const char* p, Is is) const {
    const char* q = spaced_run(p, is);
    if (q == p) return p;
    while (q < end_ && ((rules_.newlines_after_symbols && (*q == '\r' || *q == '\n')) ||
                        (rules_.slashes_after_symbols && *q == '/')))
      ++q;
    return q;
  }

  const char* next_llama3(const char* p) const {
    if (const char* q = contraction(p, true); q != p) return q;
    auto in_word = [this](CharClass c) { return is_letter(c) || (rules_.marks_in_words && c == CharClass::mark); };
    const char* after;
    const CharClass c = at(p, &after);
    if (in_word(c)) return skip(after, in_word);
    if (!is_number(c) && *p != '\r' && *p != '\n')
      if (const char* q = skip(after, in_word); q != after) return q;
    if (is_number(c)) return numbers(p);
    auto other = [&](CharClass s) { return is_symbol(s) && !in_word(s); };
    if (const char* q = symbols(p, other); q != p) return q;
    return spaces_to_newline(p);
  }

  // U*W+ or else U+W* at p, where a letter stands.
  const char* cased_word(const char* p) const {
    auto lower = [](const char* q) { return *q >= 'a' && *q <= 'z'; };
    auto upper = [](const char* q) { return *q >= 'A' && *q <= 'Z'; };
    const char* q = p;
    const char* both_end = nullptr;  // the end of the last letter of U* that is in W too: not ASCII
    const char* after;
    while (q < end_ && !lower(q) && is_letter(at(q, &after))) {
      if (!upper(q)) both_end = after;
      q = after;
    }
    if (q < end_ && lower(q)) {
      while (q < end_ && !upper(q) && is_letter(at(q, &after))) q = after;
      return q;
    }
    return both_end ? both_end : q;  // W+ takes back from U* what it needs
  }

  const char* next_cased(const char* p) const {
    const char* after;
    const CharClass c = at(p, &after);
    const char* word = nullptr;
    if (is_letter(c)) {
      word = cased_word(p);
    } else if (!is_number(c) && *p != '\r' && *p != '\n' && after < end_) {
      const char* unused;
      if (is_letter(at(after, &unused))) word = cased_word(after);
    }
    if (word) return contraction(word, true);
    if (is_number(c)) return numbers(p);
    if (const char* q = symbols(p, is_symbol); q != p) return q;
    return spaces_to_newline(p);
  }

  const Pretokenizer& rules_;
  const char* end_;
};

bool is_ascii_digit(char c) { return c >= '0' && c <= '9'; }

// Cuts [begin, end), a word of the rule, further, and appends the ends of the parts.
void split_after(const Pretokenizer& rules, const Scanner& scanner, const char* begin, const char* end,
                 const char* origin, std::vector<uint32_t>& ends) {
  auto add = [&](const char* p) {
    if (ends.empty() ? p > origin : p > origin + ends.back()) ends.push_back(uint32_t(p - origin));
  };
  for (const char* p = begin; p < end;) {
    const char* after;
    if (rules.digits_by_3_after && end - p >= 3 && is_ascii_digit(p[0]) && is_ascii_digit(p[1]) &&
        is_ascii_digit(p[2])) {
      add(p);
      add(p += 3);
      continue;
    }
    const bool number = is_number(scanner.at(p, &after));
    const char* q = after;
    if (rules.numbers_apart_after && q < end && is_number(scanner.at(q, &after)) != number) add(q);
    p = q;
  }
  add(end);
}

}  // namespace

std::optional<Pretokenizer> Pretokenizer::find(std::string_view name) {
  for (const Name& n : table())
    if (n.name == name) return n.rules;
  return std::nullopt;
}

std::string Pretokenizer::names() {
  std::string all;
  for (const Name& n : table()) {
    if (!all.empty()) all += ", ";
    all += n.name;
  }
  return all;
}

void Pretokenizer::split(std::string_view text, std::vector<uint32_t>& ends) const {
  const char* const origin = text.data();
  const char* const end = origin + text.size();
  auto cut_out = [&](char c, CharClass cls) {
    switch (first) {
      case Cut::none:
        return false;
      case Cut::each_number:
        return cls == CharClass::number;
      case Cut::punctuation:
      case Cut::punctuation_but_backtick:  // [\p{P}$+<=>^~|]+, with or without `
        if (uint8_t(c) < 0x80 && cls == CharClass::symbol) return c != '`' || first == Cut::punctuation;
        return cls == CharClass::punctuation;
    }
    return false;
  };
  const Scanner all(*this, end);
  for (const char* part = origin; part < end;) {
    // A part is a run of what is cut out, or of what is not. The rule sees a part as if it were the whole text.
    const char* stop = end;
    if (first != Cut::none) {
      const char* after;
      const bool out = cut_out(*part, all.at(part, &after));
      for (stop = after; stop < end; stop = after) {
        if (cut_out(*stop, all.at(stop, &after)) != out) break;
        if (out && first == Cut::each_number) break;
      }
    }
    const Scanner scanner(*this, stop);
    for (const char* word = part; word < stop;) {
      const char* next = scanner.next(word);
      if (digits_by_3_after || numbers_apart_after) {
        split_after(*this, scanner, word, next, origin, ends);
      } else {
        ends.push_back(uint32_t(next - origin));
      }
      word = next;
    }
    part = stop;
  }
}

}  // namespace argent
