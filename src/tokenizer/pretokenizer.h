// Cuts text into the words within which byte-level BPE merges. The families of rules are regular expressions in the
// files that models come with; here each is a scanner that looks at every character a fixed number of times.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace argent {

// How a family differs from the GPT-2 or the Llama 3 expression. Written out under each name in pretokenizer.cc.
struct Pretokenizer {
  enum class Rule : uint8_t { gpt2, llama3, cased };
  enum class Cut : uint8_t { none, each_number, punctuation, punctuation_but_backtick };

  Rule rule = Rule::gpt2;
  Cut first = Cut::none;               // cut these out of the text before the rule sees it
  bool digits_by_3_after = false;      // cut runs of ASCII digits in threes, from the left, after the rule
  bool numbers_apart_after = false;    // cut runs of \p{N} out after the rule
  uint8_t max_digits = 3;              // \p{N}{1,max} of the llama3 and cased rules
  bool contractions = true;            // 's 't 're 've 'm 'll 'd, in any case for the llama3 and cased rules
  bool marks_in_words = false;         // [\p{L}\p{M}]+ where the llama3 rule has \p{L}+
  bool newlines_after_symbols = true;  // the llama3 rule's [\r\n]* behind symbols
  bool slashes_after_symbols = false;  // the cased rule's [\r\n/]*

  // What llama.cpp derives from the name beside the rule.
  bool whole_words_first = false;  // a word that is a token is that token, whatever the merges say
  bool add_bos = false;            // unless the file says otherwise

  // The rules of a tokenizer.ggml.pre name; nothing if it is not one of names().
  static std::optional<Pretokenizer> find(std::string_view name);
  static std::string names();  // of all that find knows, for messages: "default, llama-bpe, ..."

  // Appends the end of each word to `ends`. The words are not empty and cover the text, which must be valid UTF-8.
  void split(std::string_view text, std::vector<uint32_t>& ends) const;
};

}  // namespace argent
