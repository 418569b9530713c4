// Regular expressions of the ECMAScript kind, as guided_regex and JSON schema's "pattern" have them: parsed into a
// tree, then written as rules. Groups of every kind, classes, \d \w \s and their negations, \x \u \u{} \c escapes, lazy
// and greedy quantifiers are read; look-around, back references, \b, \p and flags are refused with their position,
// since a context-free rule does not hold them.
#pragma once

#include <memory>

#include "base/result.h"
#include "grammar/rules.h"

namespace argent::grammar {

class Regex {
 public:
  // Positions in messages count characters from 1.
  static Result<Regex> parse(std::string_view pattern);

  // How characters are spelled: as they are, or as the inside of a JSON string, with one spelling for each (\n, \",
  // \u001f).
  enum class Spelling { text, json };

  // The rule of the texts that `pattern` describes wholly (full), or that contain a match of it (search).
  Expr full(Rules& rules, Spelling spelling) const;
  Expr search(Rules& rules, Spelling spelling) const;

  // Search, for texts of min_length to max_length characters (kUnbounded: no limit). Where the pattern leaves several
  // places open, the rule may hold fewer texts than the pattern does, never others; unsupported when it can not be
  // told.
  Result<Expr> search(Rules& rules, Spelling spelling, int64_t min_length, int64_t max_length) const;

  // Whether a text contains a match.
  bool found_in(std::string_view utf8) const;

  struct Node {
    enum class Kind : uint8_t { empty, set, seq, alt, repeat, begin, end } kind = Kind::empty;
    CharSet set;
    int64_t min = 0, max = 0;
    std::vector<Node> children;
  };

 private:
  Node full_;    // without anchors
  Node search_;  // the same, with the characters before and after where there is no anchor
};

// The characters of a JSON string, each with one spelling or all of them.
Expr json_chars(Rules& rules, const CharSet& set);

}  // namespace argent::grammar
