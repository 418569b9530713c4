#include "chat/expr_parser.h"

#include "chat/library.h"
#include "chat/numbers.h"

namespace argent::jinja {

std::string ExprParser::described(const Token& t) {
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

ExprResult ExprParser::grown(ExprPtr e) {
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

ExprResult ExprParser::binary(ExprKind kind, Position at, ExprPtr left, ExprPtr right, BinaryOp op) {
  ExprPtr e = make(kind, at);
  e->op = op;
  e->kids.push_back(std::move(left));
  e->kids.push_back(std::move(right));
  return grown(std::move(e));
}

ExprResult ExprParser::unary(ExprKind kind, Position at, ExprPtr operand) {
  ExprPtr e = make(kind, at);
  e->kids.push_back(std::move(operand));
  return grown(std::move(e));
}

ExprPtr ExprParser::make(ExprKind kind, Position at) {
  auto e = std::make_unique<Expr>();
  e->kind = kind;
  e->at = at;
  return e;
}

ExprResult ExprParser::tuple(bool with_conditional, bool parentheses, Words ends, bool simplified,
                             bool with_namespace) {
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

ExprResult ExprParser::conditional() {
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

ExprResult ExprParser::logical_or() {
  Position at = here();
  ARGENT_LET(ExprPtr left, logical_and());
  while (skip_name("or")) {
    ARGENT_LET(ExprPtr right, logical_and());
    ARGENT_LET(left, binary(ExprKind::logical_or, at, std::move(left), std::move(right)));
  }
  return left;
}

ExprResult ExprParser::logical_and() {
  Position at = here();
  ARGENT_LET(ExprPtr left, logical_not());
  while (skip_name("and")) {
    ARGENT_LET(ExprPtr right, logical_not());
    ARGENT_LET(left, binary(ExprKind::logical_and, at, std::move(left), std::move(right)));
  }
  return left;
}

ExprResult ExprParser::logical_not() {
  if (!at_name("not")) return compare();
  Nested nested(*this);
  ARGENT_TRY(check_nesting());
  Position at = here();
  next();
  ARGENT_LET(ExprPtr operand, logical_not());
  return unary(ExprKind::unary_not, at, std::move(operand));
}

std::optional<CompareOp> ExprParser::compare_op() {
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

ExprResult ExprParser::compare() {
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

ExprResult ExprParser::sum() {
  Position at = here();
  ARGENT_LET(ExprPtr left, concat());
  while (at_op("+") || at_op("-")) {
    BinaryOp op = next().text == "+" ? BinaryOp::add : BinaryOp::sub;
    ARGENT_LET(ExprPtr right, concat());
    ARGENT_LET(left, binary(ExprKind::binary, at, std::move(left), std::move(right), op));
  }
  return left;
}

ExprResult ExprParser::concat() {
  ExprPtr e = make(ExprKind::concat, here());
  do {
    ARGENT_LET(ExprPtr operand, product());
    e->kids.push_back(std::move(operand));
  } while (skip_op("~"));
  if (e->kids.size() == 1) return std::move(e->kids[0]);
  return grown(std::move(e));
}

ExprResult ExprParser::product() {
  constexpr std::pair<std::string_view, BinaryOp> kOps[] = {
      {"*", BinaryOp::mul}, {"/", BinaryOp::div}, {"//", BinaryOp::floordiv}, {"%", BinaryOp::mod}};
  Position at = here();
  ARGENT_LET(ExprPtr left, power());
  for (;;) {
    auto op = std::find_if(std::begin(kOps), std::end(kOps), [&](const auto& o) { return skip_op(o.first); });
    if (op == std::end(kOps)) return left;
    ARGENT_LET(ExprPtr right, power());
    ARGENT_LET(left, binary(ExprKind::binary, at, std::move(left), std::move(right), op->second));
  }
}

ExprResult ExprParser::power() {
  Position at = here();
  ARGENT_LET(ExprPtr left, unary_expression(true));
  while (skip_op("**")) {
    ARGENT_LET(ExprPtr right, unary_expression(true));
    ARGENT_LET(left, binary(ExprKind::binary, at, std::move(left), std::move(right), BinaryOp::pow));
  }
  return left;
}

ExprResult ExprParser::unary_expression(bool with_filter) {
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

ExprResult ExprParser::primary(bool with_namespace) {
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

ExprResult ExprParser::postfix(ExprPtr e) {
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

ExprResult ExprParser::filter_expression(ExprPtr e) {
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

ExprResult ExprParser::subscript(ExprPtr base) {
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

Result<std::unique_ptr<CallArgs>> ExprParser::call_args() {
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

ExprResult ExprParser::call(ExprPtr callee) {
  ExprPtr e = make(ExprKind::call, here());
  e->kids.push_back(std::move(callee));
  ARGENT_LET(e->args, call_args());
  return grown(std::move(e));
}

ExprResult ExprParser::filters(ExprPtr e) {
  while (skip_op("|")) {
    ARGENT_LET(e, one_filter(std::move(e)));
  }
  return e;
}

Result<std::string> ExprParser::dotted_name(std::string_view what) {
  ARGENT_LET(std::string name, expect_name(what));
  while (skip_op(".")) {
    ARGENT_LET(std::string part, expect_name(what));
    name += "." + part;
  }
  return name;
}

ExprResult ExprParser::one_filter(ExprPtr value) {
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

ExprResult ExprParser::parse_test(ExprPtr value) {
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

}  // namespace argent::jinja
