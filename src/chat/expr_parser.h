// The expressions of the template language, in jinja2's grammar.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "chat/ast.h"
#include "chat/template.h"

namespace argent::jinja {

using ExprResult = Result<ExprPtr>;
using Words = std::initializer_list<std::string_view>;

class ExprParser {
 public:
  ExprParser(std::vector<Token> tokens, const std::string& name, const TemplateLimits& limits)
      : tokens_(std::move(tokens)), name_(name), max_nesting_(limits.nesting) {}

 protected:
  // One more level of recursion while it lives.
  struct Nested {
    explicit Nested(ExprParser& p) : parser(p) { ++parser.nesting_; }
    ~Nested() { --parser.nesting_; }
    ExprParser& parser;
  };
  Status check_nesting() {
    if (nesting_ <= max_nesting_) return {};
    return fail_here(fmt::format("nested more than {} deep", max_nesting_));
  }

  const Token& current() const { return tokens_[pos_]; }
  const Token& look() const { return tokens_[std::min(pos_ + 1, tokens_.size() - 1)]; }
  Token next() {
    Token t = tokens_[pos_];
    if (pos_ + 1 < tokens_.size()) ++pos_;
    return t;
  }
  static bool is_name(const Token& t, std::string_view word) { return t.kind == TokenKind::name && t.text == word; }
  static bool is_op(const Token& t, std::string_view op) { return t.kind == TokenKind::op && t.text == op; }
  bool at_name(std::string_view word) const { return is_name(current(), word); }
  bool at_op(std::string_view op) const { return is_op(current(), op); }
  bool skip_name(std::string_view word) {
    bool found = at_name(word);
    if (found) next();
    return found;
  }
  bool skip_op(std::string_view op) {
    bool found = at_op(op);
    if (found) next();
    return found;
  }
  Position here() const { return {current().line, current().column}; }

  static std::string described(const Token& t);
  Error fail_here(const std::string& what) const { return error_at(Code::invalid, name_, here(), what); }
  Error expected(std::string_view what) const {
    return fail_here(fmt::format("expected {}, got {}", what, described(current())));
  }
  Status expect_op(std::string_view op) {
    if (!skip_op(op)) return expected(fmt::format("'{}'", op));
    return {};
  }
  Result<std::string> expect_name(std::string_view what) {
    if (current().kind != TokenKind::name) return expected(what);
    return next().text;
  }
  Status expect_block_end() {
    if (current().kind != TokenKind::block_end) return expected("'%}'");
    next();
    return {};
  }

  ExprPtr make(ExprKind kind, Position at);
  // The node with its children, unless the tree grows too high: evaluating and freeing it are recursive.
  ExprResult grown(ExprPtr e);
  ExprResult binary(ExprKind kind, Position at, ExprPtr left, ExprPtr right, BinaryOp op = BinaryOp::add);
  ExprResult unary(ExprKind kind, Position at, ExprPtr operand);
  static bool is_any(const Token& t, Words words) {
    return t.kind == TokenKind::name && std::find(words.begin(), words.end(), t.text) != words.end();
  }

  // --- expressions, loosest first

  ExprResult expression() { return conditional(); }
  // One expression, or several with commas between. `simplified`: only names and literals.
  ExprResult tuple(bool with_conditional, bool parentheses, Words ends, bool simplified = false,
                   bool with_namespace = false);
  ExprResult conditional();
  ExprResult logical_or();
  ExprResult logical_and();
  ExprResult logical_not();
  std::optional<CompareOp> compare_op();
  ExprResult compare();
  ExprResult sum();
  ExprResult concat();
  ExprResult product();
  ExprResult power();  // from the left, unlike Python
  ExprResult unary_expression(bool with_filter);
  ExprResult primary(bool with_namespace);
  ExprResult postfix(ExprPtr e);
  ExprResult filter_expression(ExprPtr e);
  ExprResult subscript(ExprPtr base);
  Result<std::unique_ptr<CallArgs>> call_args();
  ExprResult call(ExprPtr callee);
  ExprResult filters(ExprPtr e);
  Result<std::string> dotted_name(std::string_view what);
  ExprResult one_filter(ExprPtr value);
  ExprResult parse_test(ExprPtr value);

  std::vector<Token> tokens_;
  const std::string& name_;
  uint32_t max_nesting_;
  size_t pos_ = 0;
  uint32_t nesting_ = 0;
};

}  // namespace argent::jinja
