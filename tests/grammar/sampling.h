// A hand-made vocabulary, and random texts under a grammar's masks.
#pragma once

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "grammar/grammar.h"

namespace argent::grammar {

// Id 0 ends a text; 1..255 are the bytes of their number; then pieces that cross the seams of JSON; the last has no
// bytes.
inline std::vector<std::string> small_vocabulary() {
  std::vector<std::string> tokens{""};
  for (int b = 1; b < 256; b++) tokens.emplace_back(1, static_cast<char>(b));
  for (const char* piece : {"\":",   "\": ", "\", \"", "{\"",      "\"}",  "},",  "]]",    "[[",    "null", "true",
                            "false", "\\\"", "\\u",    "00",       "12",   ".5",  "-1",    "abc",   "ab",   "\n  ",
                            "  ",    "é",    "日本",   "\xe6\x97", "name", "red", "2024-", "-02-29"})
    tokens.emplace_back(piece);
  tokens.emplace_back("");
  return tokens;
}
inline constexpr int32_t kEnd = 0;

inline std::shared_ptr<Compiler> small_compiler(Compiler::Limits limits = {}) {
  const auto tokens = small_vocabulary();
  const std::vector<int32_t> ends{kEnd};
  auto made = Compiler::make(tokens, ends, static_cast<int>(tokens.size()) + 37, limits);
  EXPECT_TRUE(made) << made.error().message;
  return *made;
}

// Random tokens until an end id, with a liking for what ends soon that grows with the text.
// nullopt, with a test failure: the masks led nowhere.
inline std::optional<std::string> sample(const std::shared_ptr<const Compiled>& compiled,
                                         const std::vector<std::string>& tokens, int n_vocab,
                                         const std::vector<int32_t>& ends, std::mt19937& rng,
                                         std::vector<int32_t>* ids = nullptr) {
  Matcher matcher(compiled);
  std::vector<uint32_t> mask(Matcher::mask_words(n_vocab));
  std::string text;
  const std::string closers = "\"}]0123456789,:\n }";
  for (int step = 0; step < 4000; step++) {
    if (!matcher.fill_mask(mask)) {
      ADD_FAILURE() << "nothing is allowed after: " << text;
      return std::nullopt;
    }
    const auto allowed = [&](int32_t id) { return (mask[id / 32] >> (id % 32) & 1) != 0; };
    for (int32_t id = static_cast<int32_t>(tokens.size()); id < n_vocab; id++) EXPECT_FALSE(allowed(id)) << id;
    int32_t pick = -1;
    for (int32_t end : ends)
      if (allowed(end) && (step > 60 || rng() % 2 == 0)) pick = end;
    if (pick < 0 && rng() % 3 < (step > 60 ? 2u : 1u)) {
      for (size_t c = 0; c < closers.size() && pick < 0; c++)
        for (size_t id = 0; id < tokens.size() && pick < 0; id++)
          if (tokens[id].size() == 1 && tokens[id][0] == closers[c] && allowed(static_cast<int32_t>(id)))
            pick = static_cast<int32_t>(id);
    }
    if (pick < 0) {
      std::vector<int32_t> set;
      for (int32_t id = 0; id < static_cast<int32_t>(tokens.size()); id++)
        if (allowed(id)) set.push_back(id);
      pick = set[rng() % set.size()];
    }
    EXPECT_TRUE(matcher.accept(pick)) << pick;
    if (ids) ids->push_back(pick);
    if (matcher.is_ended()) return text;
    text += tokens[pick];
  }
  ADD_FAILURE() << "no end in sight: " << text.substr(0, 300);
  return std::nullopt;
}

// Whether a text, fed byte by byte, is one of the grammar's.
inline bool accepts(const std::shared_ptr<const Compiled>& compiled, std::string_view text) {
  Matcher matcher(compiled);
  for (unsigned char c : text)
    if (c == 0 || !matcher.accept(c)) return false;
  return matcher.is_complete();
}

}  // namespace argent::grammar
