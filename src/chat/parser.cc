#include "chat/parser.h"

#include "chat/expr_parser.h"

namespace argent::jinja {
namespace {

using StmtResult = Result<StmtPtr>;

class Parser : ExprParser {
 public:
  using ExprParser::ExprParser;

  Result<Block> run() {
    ARGENT_LET(Block body, block_until({}));
    return body;
  }

 private:
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
      bool more = at_name("elif"), last_one = at_name("else");
      next();
      if (more) continue;
      if (last_one) {
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
