#include "chat/parser.h"

#include <algorithm>
#include <charconv>
#include <initializer_list>

#include "chat/library.h"

namespace argent::jinja {
namespace {

using ExprResult = Result<ExprPtr>;
using StmtResult = Result<StmtPtr>;
using Words = std::initializer_list<std::string_view>;

class Parser {
 public:
  Parser(std::vector<Token> tokens, const std::string& name, const TemplateLimits& limits)
      : tokens_(std::move(tokens)), name_(name), max_nesting_(limits.nesting) {}

  Result<Block> run() {
    ARGENT_LET(Block body, block_until({}));
    return body;
  }

 private:
  struct Nested {
    explicit Nested(Parser& p) : parser(p) { ++parser.nesting_; }
    ~Nested() { --parser.nesting_; }
    Parser& parser;
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

  static std::string described(const Token& t) {
    switch (t.kind) {
      case TokenKind::eof:
        return "the end of the template";
      case TokenKind::data:
        return "text";
      case TokenKind::variable_begin:
      case TokenKind::variable_end:
      case TokenKind::block_begin:
      case TokenKind::block_end:
        return fmt::format("'{}'", t.text);
      case TokenKind::string:
        return "a string";
      default:
        return fmt::format("'{}'", t.text.substr(0, 40));
    }
  }
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

  ExprPtr make(ExprKind kind, Position at) {
    auto e = std::make_unique<Expr>();
    e->kind = kind;
    e->at = at;
    return e;
  }
  // The node with its children, unless the tree grows too high: evaluating and freeing it are recursive.
  ExprResult grown(ExprPtr e) {
    uint32_t height = 0;
    auto see = [&](const ExprPtr& kid) {
      if (kid) height = std::max(height, kid->height);
    };
    for (const ExprPtr& kid : e->kids) see(kid);
    if (e->args) {
      for (const ExprPtr& kid : e->args->positional) see(kid);
      for (const auto& [key, kid] : e->args->named) see(kid);
      see(e->args->star);
      see(e->args->star_star);
    }
    e->height = height + 1;
    if (e->height > max_nesting_) {
      return error_at(Code::invalid, name_, e->at,
                      fmt::format("an expression is nested more than {} deep", max_nesting_));
    }
    return e;
  }
  ExprResult binary(ExprKind kind, Position at, ExprPtr left, ExprPtr right, BinaryOp op = BinaryOp::add) {
    ExprPtr e = make(kind, at);
    e->op = op;
    e->kids.push_back(std::move(left));
    e->kids.push_back(std::move(right));
    return grown(std::move(e));
  }
  ExprResult unary(ExprKind kind, Position at, ExprPtr operand) {
    ExprPtr e = make(kind, at);
    e->kids.push_back(std::move(operand));
    return grown(std::move(e));
  }

  // --- statements

  static bool is_any(const Token& t, Words words) {
    return t.kind == TokenKind::name && std::find(words.begin(), words.end(), t.text) != words.end();
  }

  // Statements up to a tag of `ends`, whose name is then the current token; up to the end of the template when empty.
  Result<Block> block_until(Words ends) {
    Nested nested(*this);
    ARGENT_TRY(check_nesting());
    Block body;
    StmtPtr output;
    auto flush = [&] {
      if (output) body.push_back(std::move(output));
    };
    auto add = [&](ExprPtr e) {
      if (!output) {
        output = std::make_unique<Stmt>();
        output->at = e->at;
      }
      output->exprs.push_back(std::move(e));
    };
    while (current().kind != TokenKind::eof) {
      Position at = here();
      if (current().kind == TokenKind::data) {
        ExprPtr e = make(ExprKind::constant, at);
        e->value = constant_string(next().text);
        add(std::move(e));
      } else if (current().kind == TokenKind::variable_begin) {
        next();
        ARGENT_LET(ExprPtr e, tuple(true, false, {}));
        add(std::move(e));
        if (current().kind != TokenKind::variable_end) return expected("'}}'");
        next();
      } else {
        flush();
        next();
        if (is_any(current(), ends)) return body;
        ARGENT_LET(StmtPtr s, statement());
        body.push_back(std::move(s));
        ARGENT_TRY(expect_block_end());
      }
    }
    flush();
    if (ends.size()) return fail_here(fmt::format("the template ends, but '{}' is missing", *(ends.end() - 1)));
    return body;
  }

  // The body of the tag that was just read, up to one of `ends`.
  Result<Block> body_until(Words ends) {
    skip_op(":");
    ARGENT_TRY(expect_block_end());
    return block_until(ends);
  }
  Result<Block> body_through(std::string_view end) {
    ARGENT_LET(Block body, body_until({end}));
    next();
    return body;
  }

  StmtResult statement() {
    if (current().kind != TokenKind::name) return expected("the name of a tag");
    auto s = std::make_unique<Stmt>();
    s->at = here();
    const std::string tag = current().text;
    if (is_any(current(), {"block", "extends", "include", "import", "from", "autoescape"})) {
      return error_at(Code::unsupported, name_, s->at, fmt::format("the tag '{}' is not supported", tag));
    }
    if (!is_any(current(),
                {"for", "if", "set", "macro", "call", "filter", "with", "print", "generation", "break", "continue"})) {
      bool end = tag.starts_with("end") || tag == "else" || tag == "elif";
      return fail_here(fmt::format("{} tag '{}'", end ? "unexpected" : "unknown", tag));
    }
    next();
    if (tag == "for") return parse_for(std::move(s));
    if (tag == "if") return parse_if(std::move(s));
    if (tag == "set") return parse_set(std::move(s));
    if (tag == "macro") return parse_macro(std::move(s));
    if (tag == "call") return parse_call_block(std::move(s));
    if (tag == "filter") return parse_filter_block(std::move(s));
    if (tag == "with") return parse_with(std::move(s));
    if (tag == "print") return parse_print(std::move(s));
    if (tag == "generation") {
      s->kind = StmtKind::generation;
      s->macro = std::make_unique<MacroDecl>();
      ARGENT_LET(s->macro->body, macro_body("endgeneration"));
      return s;
    }
    s->kind = tag == "break" ? StmtKind::break_ : StmtKind::continue_;
    if (loops_ == 0) return error_at(Code::invalid, name_, s->at, fmt::format("'{}' outside of a loop", tag));
    return s;
  }

  // Bodies of macros run on their own: a break in them has no loop.
  Result<Block> macro_body(std::string_view end) {
    uint32_t saved = std::exchange(loops_, 0);
    auto result = body_through(end);
    loops_ = saved;
    return result;
  }

  StmtResult parse_for(StmtPtr s) {
    s->kind = StmtKind::for_;
    ARGENT_LET(ExprPtr target, assign_target(false, {"in"}));
    s->targets.push_back(std::move(target));
    if (!skip_name("in")) return expected("'in'");
    ARGENT_LET(s->iterable, tuple(false, false, {"recursive"}));
    if (skip_name("if")) {
      ARGENT_LET(s->filter, expression());
    }
    s->recursive = skip_name("recursive");
    ++loops_;
    auto body = body_until({"endfor", "else"});
    --loops_;
    ARGENT_LET(s->body, std::move(body));
    if (next().text == "else") {
      uint32_t saved = std::exchange(loops_, s->recursive ? 0 : loops_);
      auto otherwise = body_through("endfor");
      loops_ = saved;
      ARGENT_LET(s->otherwise, std::move(otherwise));
    }
    return s;
  }

  StmtResult parse_if(StmtPtr s) {
    s->kind = StmtKind::if_;
    for (;;) {
      Branch branch;
      ARGENT_LET(branch.test, tuple(false, false, {}));
      ARGENT_LET(branch.body, body_until({"elif", "else", "endif"}));
      s->branches.push_back(std::move(branch));
      std::string end = next().text;
      if (end == "elif") continue;
      if (end == "else") {
        Branch last;
        ARGENT_LET(last.body, body_through("endif"));
        s->branches.push_back(std::move(last));
      }
      return s;
    }
  }

  StmtResult parse_set(StmtPtr s) {
    ARGENT_LET(ExprPtr target, assign_target(true, {}));
    s->targets.push_back(std::move(target));
    if (skip_op("=")) {
      s->kind = StmtKind::set;
      ARGENT_LET(ExprPtr value, tuple(true, false, {}));
      s->exprs.push_back(std::move(value));
      return s;
    }
    s->kind = StmtKind::set_block;
    if (at_op("|")) {
      ARGENT_LET(ExprPtr filter, filters(nullptr));
      s->exprs.push_back(std::move(filter));
    }
    ARGENT_LET(s->body, body_through("endset"));
    return s;
  }

  Status signature(MacroDecl& macro) {
    ARGENT_TRY(expect_op("("));
    while (!at_op(")")) {
      if (!macro.parameters.empty()) ARGENT_TRY(expect_op(","));
      Position at = here();
      ARGENT_LET(std::string name, assignable_name());
      for (const ExprPtr& other : macro.parameters) {
        if (other->text == name) return error_at(Code::invalid, name_, at, fmt::format("two parameters '{}'", name));
      }
      ExprPtr parameter = make(ExprKind::name, at);
      parameter->text = std::move(name);
      parameter->use = NameUse::parameter;
      macro.parameters.push_back(std::move(parameter));
      if (skip_op("=")) {
        ARGENT_LET(ExprPtr value, expression());
        macro.defaults.push_back(std::move(value));
      } else if (!macro.defaults.empty()) {
        return fail_here("a parameter without default follows one with default");
      }
    }
    return expect_op(")");
  }

  StmtResult parse_macro(StmtPtr s) {
    s->kind = StmtKind::macro;
    s->macro = std::make_unique<MacroDecl>();
    ARGENT_LET(s->macro->name, assignable_name());
    ARGENT_TRY(signature(*s->macro));
    ARGENT_LET(s->macro->body, macro_body("endmacro"));
    return s;
  }

  StmtResult parse_call_block(StmtPtr s) {
    s->kind = StmtKind::call_block;
    s->macro = std::make_unique<MacroDecl>();
    if (at_op("(")) ARGENT_TRY(signature(*s->macro));
    ARGENT_LET(ExprPtr call, expression());
    if (call->kind != ExprKind::call) return error_at(Code::invalid, name_, s->at, "expected a call");
    for (const auto& [key, value] : call->args->named) {
      if (key == "caller") return error_at(Code::invalid, name_, value->at, "the argument 'caller' is given twice");
    }
    s->exprs.push_back(std::move(call));
    ARGENT_LET(s->macro->body, macro_body("endcall"));
    return s;
  }

  StmtResult parse_filter_block(StmtPtr s) {
    s->kind = StmtKind::filter_block;
    ARGENT_LET(ExprPtr filter, one_filter(nullptr));
    ARGENT_LET(filter, filters(std::move(filter)));
    s->exprs.push_back(std::move(filter));
    ARGENT_LET(s->body, body_through("endfilter"));
    return s;
  }

  StmtResult parse_with(StmtPtr s) {
    s->kind = StmtKind::with;
    while (current().kind != TokenKind::block_end) {
      if (!s->targets.empty()) ARGENT_TRY(expect_op(","));
      ARGENT_LET(ExprPtr target, assign_target(false, {}));
      set_use(*target, NameUse::parameter);
      s->targets.push_back(std::move(target));
      ARGENT_TRY(expect_op("="));
      ARGENT_LET(ExprPtr value, expression());
      s->exprs.push_back(std::move(value));
    }
    ARGENT_LET(s->body, body_through("endwith"));
    return s;
  }

  StmtResult parse_print(StmtPtr s) {
    while (current().kind != TokenKind::block_end) {
      if (!s->exprs.empty()) ARGENT_TRY(expect_op(","));
      ARGENT_LET(ExprPtr e, expression());
      s->exprs.push_back(std::move(e));
    }
    return s;
  }

  static void set_use(Expr& e, NameUse use) {
    e.use = use;
    if (e.kind == ExprKind::space_ref) return;  // the namespace itself is read
    for (const ExprPtr& kid : e.kids) set_use(*kid, use);
  }
  static bool assignable(const Expr& e) {
    if (e.kind == ExprKind::tuple) {
      return std::all_of(e.kids.begin(), e.kids.end(), [](const ExprPtr& kid) { return assignable(*kid); });
    }
    return e.kind == ExprKind::name || e.kind == ExprKind::space_ref;
  }
  ExprResult assign_target(bool with_namespace, Words ends) {
    Position at = here();
    ARGENT_LET(ExprPtr target, tuple(true, false, ends, true, with_namespace));
    if (!assignable(*target)) return error_at(Code::invalid, name_, at, "cannot assign to this");
    set_use(*target, NameUse::store);
    return target;
  }
  Result<std::string> assignable_name() {
    if (is_any(current(), {"true", "false", "none", "True", "False", "None"})) {
      return fail_here(fmt::format("cannot assign to '{}'", current().text));
    }
    return expect_name("a name");
  }

  // --- expressions, loosest first

  ExprResult expression() { return conditional(); }

  // One expression, or several with commas between. `simplified`: only names and literals.
  ExprResult tuple(bool with_conditional, bool parentheses, Words ends, bool simplified = false,
                   bool with_namespace = false) {
    Position at = here();
    std::vector<ExprPtr> items;
    bool comma = false;
    for (;;) {
      if (!items.empty()) ARGENT_TRY(expect_op(","));
      if (current().kind == TokenKind::variable_end || current().kind == TokenKind::block_end || at_op(")") ||
          is_any(current(), ends)) {
        break;
      }
      ARGENT_LET(ExprPtr item, simplified ? primary(with_namespace) : with_conditional ? conditional() : logical_or());
      items.push_back(std::move(item));
      if (!at_op(",")) break;
      comma = true;
    }
    if (!comma) {
      if (!items.empty()) return std::move(items[0]);
      if (!parentheses) return expected("an expression");
    }
    ExprPtr e = make(ExprKind::tuple, at);
    e->kids = std::move(items);
    return grown(std::move(e));
  }

  ExprResult conditional() {
    Nested nested(*this);
    ARGENT_TRY(check_nesting());
    Position at = here();
    ARGENT_LET(ExprPtr value, logical_or());
    while (skip_name("if")) {
      ExprPtr e = make(ExprKind::conditional, at);
      ARGENT_LET(ExprPtr test, logical_or());
      e->kids.push_back(std::move(test));
      e->kids.push_back(std::move(value));
      if (skip_name("else")) {
        ARGENT_LET(ExprPtr otherwise, conditional());
        e->kids.push_back(std::move(otherwise));
      } else {
        e->kids.push_back(nullptr);
      }
      at = here();
      ARGENT_LET(value, grown(std::move(e)));
    }
    return value;
  }

  ExprResult logical_or() {
    Position at = here();
    ARGENT_LET(ExprPtr left, logical_and());
    while (skip_name("or")) {
      ARGENT_LET(ExprPtr right, logical_and());
      ARGENT_LET(left, binary(ExprKind::logical_or, at, std::move(left), std::move(right)));
    }
    return left;
  }

  ExprResult logical_and() {
    Position at = here();
    ARGENT_LET(ExprPtr left, logical_not());
    while (skip_name("and")) {
      ARGENT_LET(ExprPtr right, logical_not());
      ARGENT_LET(left, binary(ExprKind::logical_and, at, std::move(left), std::move(right)));
    }
    return left;
  }

  ExprResult logical_not() {
    if (!at_name("not")) return compare();
    Nested nested(*this);
    ARGENT_TRY(check_nesting());
    Position at = here();
    next();
    ARGENT_LET(ExprPtr operand, logical_not());
    return unary(ExprKind::unary_not, at, std::move(operand));
  }

  std::optional<CompareOp> compare_op() {
    constexpr std::pair<std::string_view, CompareOp> kOps[] = {{"==", CompareOp::eq}, {"!=", CompareOp::ne},
                                                               {"<", CompareOp::lt},  {"<=", CompareOp::le},
                                                               {">", CompareOp::gt},  {">=", CompareOp::ge}};
    for (const auto& [text, op] : kOps) {
      if (skip_op(text)) return op;
    }
    if (skip_name("in")) return CompareOp::in;
    if (at_name("not") && is_name(look(), "in")) {
      next();
      next();
      return CompareOp::not_in;
    }
    return std::nullopt;
  }

  ExprResult compare() {
    Position at = here();
    ARGENT_LET(ExprPtr first, sum());
    ExprPtr e = make(ExprKind::compare, at);
    e->kids.push_back(std::move(first));
    while (auto op = compare_op()) {
      e->compare_ops.push_back(*op);
      ARGENT_LET(ExprPtr operand, sum());
      e->kids.push_back(std::move(operand));
    }
    if (e->compare_ops.empty()) return std::move(e->kids[0]);
    return grown(std::move(e));
  }

  ExprResult sum() {
    Position at = here();
    ARGENT_LET(ExprPtr left, concat());
    while (at_op("+") || at_op("-")) {
      BinaryOp op = next().text == "+" ? BinaryOp::add : BinaryOp::sub;
      ARGENT_LET(ExprPtr right, concat());
      ARGENT_LET(left, binary(ExprKind::binary, at, std::move(left), std::move(right), op));
    }
    return left;
  }

  ExprResult concat() {
    ExprPtr e = make(ExprKind::concat, here());
    do {
      ARGENT_LET(ExprPtr operand, product());
      e->kids.push_back(std::move(operand));
    } while (skip_op("~"));
    if (e->kids.size() == 1) return std::move(e->kids[0]);
    return grown(std::move(e));
  }

  ExprResult product() {
    Position at = here();
    ARGENT_LET(ExprPtr left, power());
    while (at_op("*") || at_op("/") || at_op("//") || at_op("%")) {
      std::string text = next().text;
      BinaryOp op = text == "*"    ? BinaryOp::mul
                    : text == "/"  ? BinaryOp::div
                    : text == "//" ? BinaryOp::floordiv
                                   : BinaryOp::mod;
      ARGENT_LET(ExprPtr right, power());
      ARGENT_LET(left, binary(ExprKind::binary, at, std::move(left), std::move(right), op));
    }
    return left;
  }

  ExprResult power() {  // from the left, unlike Python
    Position at = here();
    ARGENT_LET(ExprPtr left, unary_expression(true));
    while (skip_op("**")) {
      ARGENT_LET(ExprPtr right, unary_expression(true));
      ARGENT_LET(left, binary(ExprKind::binary, at, std::move(left), std::move(right), BinaryOp::pow));
    }
    return left;
  }

  ExprResult unary_expression(bool with_filter) {
    Position at = here();
    ExprPtr e;
    if (at_op("-") || at_op("+")) {
      Nested nested(*this);
      ARGENT_TRY(check_nesting());
      ExprKind kind = next().text == "-" ? ExprKind::negative : ExprKind::positive;
      ARGENT_LET(ExprPtr operand, unary_expression(false));
      ARGENT_LET(e, unary(kind, at, std::move(operand)));
    } else {
      ARGENT_LET(e, primary(false));
    }
    ARGENT_LET(e, postfix(std::move(e)));
    if (with_filter) {
      ARGENT_LET(e, filter_expression(std::move(e)));
    }
    return e;
  }

  ExprResult primary(bool with_namespace) {
    Position at = here();
    ExprPtr e = make(ExprKind::constant, at);
    switch (current().kind) {
      case TokenKind::name: {
        std::string name = next().text;
        if (name == "true" || name == "True" || name == "false" || name == "False") {
          e->value = Value::boolean(name == "true" || name == "True");
        } else if (name == "none" || name == "None") {
          e->value = Value::none();
        } else if (with_namespace && skip_op(".")) {
          e->kind = ExprKind::space_ref;
          ARGENT_LET(std::string attribute, expect_name("a name"));
          ExprPtr base = make(ExprKind::name, at);
          base->text = std::move(name);
          e->kids.push_back(std::move(base));
          e->text = std::move(attribute);
        } else {
          e->kind = ExprKind::name;
          e->text = std::move(name);
        }
        return e;
      }
      case TokenKind::string: {
        std::string text;
        while (current().kind == TokenKind::string) text += next().text;
        e->value = constant_string(std::move(text));
        return e;
      }
      case TokenKind::integer: {
        ARGENT_LET(auto value, parse_int(next().text, 0));
        if (!value) return error_at(Code::invalid, name_, at, "malformed integer");
        e->value = Value::integer(*value);
        return e;
      }
      case TokenKind::real:
        e->value = Value::real(parse_real(next().text).value_or(0));
        return e;
      default:
        break;
    }
    Nested nested(*this);
    ARGENT_TRY(check_nesting());
    if (skip_op("(")) {
      ARGENT_LET(ExprPtr inner, tuple(true, true, {}));
      ARGENT_TRY(expect_op(")"));
      return inner;
    }
    if (skip_op("[")) {
      e->kind = ExprKind::list;
      while (!at_op("]")) {
        if (!e->kids.empty()) ARGENT_TRY(expect_op(","));
        if (at_op("]")) break;
        ARGENT_LET(ExprPtr item, expression());
        e->kids.push_back(std::move(item));
      }
      ARGENT_TRY(expect_op("]"));
      return grown(std::move(e));
    }
    if (skip_op("{")) {
      e->kind = ExprKind::dict;
      while (!at_op("}")) {
        if (!e->kids.empty()) ARGENT_TRY(expect_op(","));
        if (at_op("}")) break;
        ARGENT_LET(ExprPtr key, expression());
        ARGENT_TRY(expect_op(":"));
        ARGENT_LET(ExprPtr value, expression());
        e->kids.push_back(std::move(key));
        e->kids.push_back(std::move(value));
      }
      ARGENT_TRY(expect_op("}"));
      return grown(std::move(e));
    }
    return fail_here(fmt::format("unexpected {}", described(current())));
  }

  ExprResult postfix(ExprPtr e) {
    for (;;) {
      if (at_op(".") || at_op("[")) {
        ARGENT_LET(e, subscript(std::move(e)));
      } else if (at_op("(")) {
        ARGENT_LET(e, call(std::move(e)));
      } else {
        return e;
      }
    }
  }

  ExprResult filter_expression(ExprPtr e) {
    for (;;) {
      if (at_op("|")) {
        ARGENT_LET(e, filters(std::move(e)));
      } else if (at_name("is")) {
        ARGENT_LET(e, parse_test(std::move(e)));
      } else if (at_op("(")) {
        ARGENT_LET(e, call(std::move(e)));
      } else {
        return e;
      }
    }
  }

  ExprResult subscript(ExprPtr base) {
    Position at = here();
    ExprPtr e = make(ExprKind::item, at);
    e->kids.push_back(std::move(base));
    if (skip_op(".")) {
      if (current().kind == TokenKind::name) {
        e->kind = ExprKind::attribute;
        e->text = next().text;
        return grown(std::move(e));
      }
      if (current().kind != TokenKind::integer) return expected("a name or a number");
      ARGENT_LET(ExprPtr index, primary(false));
      e->kids.push_back(std::move(index));
      return grown(std::move(e));
    }
    next();
    std::vector<ExprPtr> keys;
    bool sliced = false;
    while (!at_op("]")) {
      if (!keys.empty()) ARGENT_TRY(expect_op(","));
      ExprPtr parts[3];
      bool colon = false;
      if (!at_op(":")) {
        ARGENT_LET(parts[0], expression());
      }
      for (int i = 1; i < 3 && skip_op(":"); ++i) {
        colon = true;
        if (!at_op("]") && !at_op(",") && !at_op(":")) {
          ARGENT_LET(parts[i], expression());
        }
      }
      sliced = sliced || colon;
      if (!colon) {
        keys.push_back(std::move(parts[0]));
      } else {
        for (ExprPtr& part : parts) keys.push_back(std::move(part));
      }
      if (sliced && at_op(",")) return error_at(Code::unsupported, name_, at, "a tuple of slices is not supported");
    }
    ARGENT_TRY(expect_op("]"));
    if (sliced) {
      if (keys.size() != 3) return error_at(Code::unsupported, name_, at, "a tuple of slices is not supported");
      e->kind = ExprKind::slice;
      for (ExprPtr& key : keys) e->kids.push_back(std::move(key));
    } else if (keys.size() == 1) {
      e->kids.push_back(std::move(keys[0]));
    } else {
      ExprPtr key = make(ExprKind::tuple, at);
      key->kids = std::move(keys);
      ARGENT_LET(key, grown(std::move(key)));
      e->kids.push_back(std::move(key));
    }
    return grown(std::move(e));
  }

  Result<std::unique_ptr<CallArgs>> call_args() {
    Position at = here();
    auto args = std::make_unique<CallArgs>();
    ARGENT_TRY(expect_op("("));
    auto malformed = [&] { return error_at(Code::invalid, name_, at, "malformed arguments of a call"); };
    for (bool first = true; !at_op(")"); first = false) {
      if (!first) {
        ARGENT_TRY(expect_op(","));
        if (at_op(")")) break;
      }
      if (skip_op("*")) {
        if (args->star || args->star_star) return malformed();
        ARGENT_LET(args->star, expression());
      } else if (skip_op("**")) {
        if (args->star_star) return malformed();
        ARGENT_LET(args->star_star, expression());
      } else if (current().kind == TokenKind::name && is_op(look(), "=")) {
        if (args->star_star) return malformed();
        Position key_at = here();
        std::string key = next().text;
        next();
        for (const auto& [other, value] : args->named) {
          if (other == key)
            return error_at(Code::invalid, name_, key_at, fmt::format("the argument '{}' is given twice", key));
        }
        ARGENT_LET(ExprPtr value, expression());
        args->named.emplace_back(std::move(key), std::move(value));
      } else {
        if (args->star || args->star_star || !args->named.empty()) return malformed();
        ARGENT_LET(ExprPtr value, expression());
        args->positional.push_back(std::move(value));
      }
    }
    ARGENT_TRY(expect_op(")"));
    return args;
  }

  ExprResult call(ExprPtr callee) {
    ExprPtr e = make(ExprKind::call, here());
    e->kids.push_back(std::move(callee));
    ARGENT_LET(e->args, call_args());
    return grown(std::move(e));
  }

  ExprResult filters(ExprPtr e) {
    while (skip_op("|")) {
      ARGENT_LET(e, one_filter(std::move(e)));
    }
    return e;
  }

  Result<std::string> dotted_name(std::string_view what) {
    ARGENT_LET(std::string name, expect_name(what));
    while (skip_op(".")) {
      ARGENT_LET(std::string part, expect_name(what));
      name += "." + part;
    }
    return name;
  }

  ExprResult one_filter(ExprPtr value) {
    ExprPtr e = make(ExprKind::filter, here());
    ARGENT_LET(e->text, dotted_name("the name of a filter"));
    if (!find_filter(e->text)) {
      return error_at(Code::unsupported, name_, e->at, fmt::format("unknown filter '{}'", e->text));
    }
    e->kids.push_back(std::move(value));
    if (at_op("(")) {
      ARGENT_LET(e->args, call_args());
    } else {
      e->args = std::make_unique<CallArgs>();
    }
    return grown(std::move(e));
  }

  ExprResult parse_test(ExprPtr value) {
    ExprPtr e = make(ExprKind::test, here());
    next();
    bool negated = skip_name("not");
    Position name_at = here();
    ARGENT_LET(e->text, dotted_name("the name of a test"));
    if (!find_test(e->text)) {
      return error_at(Code::unsupported, name_, name_at, fmt::format("unknown test '{}'", e->text));
    }
    e->kids.push_back(std::move(value));
    e->args = std::make_unique<CallArgs>();
    TokenKind kind = current().kind;
    if (at_op("(")) {
      ARGENT_LET(e->args, call_args());
    } else if ((kind == TokenKind::name || kind == TokenKind::string || kind == TokenKind::integer ||
                kind == TokenKind::real || at_op("[") || at_op("{")) &&
               !is_any(current(), {"else", "or", "and"})) {
      if (at_name("is")) return fail_here("tests cannot be chained with 'is'");
      ARGENT_LET(ExprPtr argument, primary(false));
      ARGENT_LET(argument, postfix(std::move(argument)));
      e->args->positional.push_back(std::move(argument));
    }
    Position at = e->at;
    ARGENT_LET(e, grown(std::move(e)));
    if (negated) return unary(ExprKind::unary_not, at, std::move(e));
    return e;
  }

  std::vector<Token> tokens_;
  const std::string& name_;
  uint32_t max_nesting_;
  size_t pos_ = 0;
  uint32_t nesting_ = 0;
  uint32_t loops_ = 0;  // around, within the innermost macro
};

}  // namespace

Result<std::shared_ptr<Template::Parsed>> parse_template(std::string source, std::string name,
                                                         const TemplateLimits& limits) {
  if (source.size() > limits.source_bytes) {
    return fail(Code::invalid, "{}: the template has {} bytes, the limit is {}", name, source.size(),
                limits.source_bytes);
  }
  auto parsed = std::make_shared<Template::Parsed>();
  parsed->source = std::move(source);
  parsed->name = std::move(name);
  ARGENT_LET(std::vector<Token> tokens, tokenize(parsed->source, parsed->name));
  ARGENT_LET(parsed->body, Parser(std::move(tokens), parsed->name, limits).run());
  ARGENT_TRY(resolve_names(*parsed));
  return parsed;
}

}  // namespace argent::jinja
