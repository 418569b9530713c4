// What every front end (schema, regular expression, GBNF, choices, tool calls) writes: context-free rules over
// characters. They are checked here once, and printed in the text form that xgrammar compiles.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "grammar/charset.h"

namespace argent::grammar {

using Expr = int32_t;    // an expression of one Rules
using RuleId = int32_t;  // a rule of one Rules

inline constexpr int64_t kUnbounded = -1;
inline constexpr int64_t kMaxRepeat = 65536;  // counts in {n,m}, minLength, maxItems, ...

// Splits valid UTF-8 into scalar values; false where it is not valid.
bool decode_utf8(std::string_view text, std::vector<uint32_t>& out);
void append_utf8(std::string& out, uint32_t c);

class Rules {
 public:
  Expr literal(std::string_view text);  // valid UTF-8 without NUL; may be empty
  Expr chars(const CharSet& set);       // one character; never, if the set is empty
  Expr ref(RuleId rule);
  Expr seq(std::vector<Expr> parts);
  Expr alt(std::vector<Expr> choices);                         // never, if there is none
  Expr repeat(Expr e, int64_t min, int64_t max = kUnbounded);  // 0 <= min <= max <= kMaxRepeat
  Expr optional(Expr e) { return alt({literal(""), e}); }
  Expr never() { return alt({}); }
  Expr token(int32_t id);  // exactly this token, whatever its text is

  RuleId add(std::string name);  // the name is for messages only
  RuleId add(std::string name, Expr body);
  void define(RuleId rule, Expr body);
  const std::string& name(RuleId rule) const { return rules_[rule].name; }

  int n_nodes() const { return static_cast<int>(nodes_.size()); }

  // xgrammar's text of what `root` reaches, without what can never end. Fails when nothing can be derived from the
  // root, when a rule is left-recursive, or when the rules are too many to compile in a second or so.
  Result<std::string> text(RuleId root) const;

 private:
  enum class Kind : uint8_t { literal, chars, ref, seq, alt, repeat, token };
  struct Node {
    explicit Node(Kind k, int64_t low = 0, int64_t high = 0) : kind(k), min(low), max(high) {}
    Kind kind;
    int64_t min, max;            // repeat; token id or rule in min
    std::string text;            // literal
    CharSet set;                 // chars
    std::vector<Expr> children;  // seq, alt, repeat
    int64_t counted = 1;         // the product of counts nested in it, over references not
  };
  struct Rule {
    std::string name;
    Expr body = -1;
  };
  Expr push(Node node);
  // Whether an expression can derive a finite text, and whether it can derive the empty one, given that of the rules.
  bool ends(Expr e, const std::vector<bool>& rule_ends) const;
  bool nullable(Expr e, const std::vector<bool>& rule_nullable) const;
  // What may stand first in `e`: rules before which nothing was read.
  void leading(Expr e, const std::vector<bool>& rule_nullable, std::vector<RuleId>& out) const;
  void reach(Expr e, const std::vector<bool>& rule_ends, std::vector<bool>& seen, std::vector<RuleId>& todo) const;
  // The rules that have a property which follows from that of the rules they refer to: the least such set.
  std::vector<bool> fixed_point(const std::function<bool(RuleId, const std::vector<bool>&)>& holds) const;
  Status check_left_recursion(const std::vector<bool>& reached) const;
  // Nodes of an expression without references; more than any limit, if it has one.
  int leaf_size(Expr e) const;
  void print(Expr e, bool atom, bool repeated, const std::vector<bool>& rule_ends, std::string& out) const;

  std::vector<Node> nodes_;
  std::vector<Rule> rules_;
};

}  // namespace argent::grammar
