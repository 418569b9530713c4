#include "chat/interp.h"

#include <algorithm>

#include "chat/unicode.h"

namespace argent::jinja {

uint32_t Args::depth() const {
  uint32_t depth = 0;
  for (const Value& v : positional) depth = std::max(depth, v.depth());
  for (const auto& [k, v] : named) depth = std::max(depth, v.depth());
  return depth;
}

Interp::Interp(const Template::Parsed& parsed, const RenderOptions& options)
    : parsed_(parsed), options_(options), meter_(options.limits) {}

Interp::~Interp() {
  // While all of them are still held nothing is freed from inside another; then each goes alone.
  std::vector<Value> values;
  for (const Ptr<Object>& object : kept_) object->drop(values);
}

Status Interp::check_depth() const {
  if (depth_ > meter_.limits().depth) {
    return fail(Code::invalid, "the template nests more than {} evaluations", meter_.limits().depth);
  }
  return {};
}

Result<Rendered> Interp::run(const Json& context) {
  if (!context.is_object()) return fail(Code::invalid, "the variables of a template must be an object");
  define_globals();
  for (const auto& [name, json] : context.items()) {
    const auto& trusted = options_.trusted_variables;
    bool is_trusted = std::find(trusted.begin(), trusted.end(), name) != trusted.end();
    ARGENT_LET(Value v, name == "messages" ? from_messages(json) : from_json(json, is_trusted));
    context_.emplace_back(name, std::move(v));
  }
  ARGENT_LET(Ptr<Scope> scope, enter(parsed_.layout, nullptr));
  Text out;
  ARGENT_LET(Flow flow, exec(parsed_.body, scope, out));
  (void)flow;
  Rendered rendered;
  size_t at = 0;
  auto span = [&](size_t end, bool from_template) {
    if (end > at) rendered.spans.push_back({at, end, from_template});
    at = end;
  };
  for (const ByteRange& r : out.input()) {
    span(r.begin, true);
    span(r.end, false);
  }
  span(out.size(), true);
  rendered.text = out.bytes();
  return rendered;
}

Error Interp::locate(Position at, const Error& error) {
  if (located_) return error;
  located_ = true;
  return error_at(error.code, parsed_.name, at, error.message);
}

Result<Ptr<Scope>> Interp::enter(const ScopeLayout& layout, Names outer) {
  ARGENT_LET(Ptr<Scope> scope, make<Scope>(sizeof(Scope) + layout.slots.size() * sizeof(Value), 0));
  scope->outer = outer;
  scope->slots.resize(layout.slots.size());
  reset(*scope, layout);
  return scope;
}

void Interp::reset(Scope& scope, const ScopeLayout& layout) {
  auto find = [](const auto& names, const std::string& name) {
    auto it = std::find_if(names.begin(), names.end(), [&](const auto& entry) { return entry.first == name; });
    return it == names.end() ? nullptr : &it->second;
  };
  for (size_t i = 0; i < layout.slots.size(); ++i) {
    const SlotLoad& load = layout.slots[i];
    Value& slot = scope.slots[i];
    switch (load.kind) {
      case SlotLoad::parameter:
      case SlotLoad::undefined:
        slot = Value();
        break;
      case SlotLoad::resolve: {
        const Value* v = find(context_, load.name);
        if (!v) v = find(globals_, load.name);
        slot = v ? *v : Value();
        break;
      }
      case SlotLoad::alias: {
        Scope* s = &scope;
        for (uint32_t up = load.outer.up; up; --up) s = s->outer.get();
        slot = s->slots[load.outer.slot];
        break;
      }
    }
  }
}

Status Interp::write(Text& out, const Text& text) {
  if (text.size() > meter_.limits().output_bytes || out.size() > meter_.limits().output_bytes - text.size()) {
    return fail(Code::invalid, "the template writes more than {} bytes", meter_.limits().output_bytes);
  }
  ARGENT_TRY(meter_.step_bytes(text.size()));
  out.append(text);
  return {};
}

Result<Interp::Flow> Interp::exec(const Block& block, Names scope, Text& out) {
  Nested nested(*this);
  for (const StmtPtr& s : block) {
    auto flow = exec_stmt(*s, scope, out);
    if (!flow) return locate(s->at, flow.error());
    if (*flow != Flow::normal) return flow;
  }
  return Flow::normal;
}

Result<Interp::Flow> Interp::exec_stmt(const Stmt& s, Names scope, Text& out) {
  ARGENT_TRY(check_depth());
  ARGENT_TRY(meter_.step());
  switch (s.kind) {
    case StmtKind::output:
      ARGENT_TRY(output(s, scope, out));
      return Flow::normal;
    case StmtKind::set: {
      ARGENT_LET(Value v, eval(*s.exprs[0], scope));
      ARGENT_TRY(assign(*s.targets[0], scope, v));
      return Flow::normal;
    }
    case StmtKind::if_:
      for (const Branch& b : s.branches) {
        if (b.test) {
          ARGENT_LET(Value test, eval(*b.test, scope));
          if (!truthy(test)) continue;
        }
        return exec(b.body, scope, out);
      }
      return Flow::normal;
    case StmtKind::for_: {
      ARGENT_LET(Value iterable, eval(*s.iterable, scope));
      if (!s.recursive) return exec_for(s, scope, iterable, 0, out);
      Text inner;
      ARGENT_LET(Flow flow, exec_for(s, scope, iterable, 0, inner));
      ARGENT_TRY(write(out, inner));
      return flow;
    }
    case StmtKind::set_block:
    case StmtKind::filter_block:
      return exec_captured(s, scope, out);
    case StmtKind::with:
      return exec_with(s, scope, out);
    case StmtKind::macro: {
      ARGENT_LET(Value macro, make_macro(*s.macro, scope));
      scope->slots[s.macro_ref.slot] = std::move(macro);  // a macro is stored in the scope it stands in
      return Flow::normal;
    }
    case StmtKind::call_block:
      ARGENT_TRY(exec_call_block(s, scope, out));
      return Flow::normal;
    case StmtKind::generation: {
      ARGENT_LET(Value macro, make_macro(*s.macro, scope));
      Args none;
      ARGENT_LET(Value body, call_macro(macro.as<MacroObject>(), none));
      ARGENT_TRY(write(out, body.text()));
      return Flow::normal;
    }
    case StmtKind::break_:
      return Flow::break_;
    case StmtKind::continue_:
      return Flow::continue_;
  }
  return Flow::normal;
}

Status Interp::output(const Stmt& s, Names scope, Text& out) {
  for (const ExprPtr& e : s.exprs) {
    if (e->kind == ExprKind::constant && e->value.is(Kind::string)) {
      ARGENT_TRY(write(out, e->value.text()));
      continue;
    }
    ARGENT_LET(Value v, eval(*e, scope));
    if (v.is(Kind::string)) {
      ARGENT_TRY(write(out, v.text()));
    } else {
      ARGENT_LET(Text t, text(v));
      ARGENT_TRY(write(out, t));
    }
  }
  return {};
}

// {% set x %}...{% endset %} and {% filter f %}...{% endfilter %}: the text of the body, through filters.
Result<Interp::Flow> Interp::exec_captured(const Stmt& s, Names scope, Text& out) {
  ARGENT_LET(Ptr<Scope> inner, enter(s.layout, scope));
  Text body;
  ARGENT_LET(Flow flow, exec(s.body, inner, body));
  if (flow != Flow::normal) return flow;  // what was captured is lost, as in jinja2
  ARGENT_LET(Value v, string(std::move(body)));
  if (!s.exprs.empty()) {
    block_text_ = v;
    ARGENT_LET(v, eval(*s.exprs[0], inner));
  }
  if (s.kind == StmtKind::set_block) {
    ARGENT_TRY(assign(*s.targets[0], scope, v));
  } else {
    ARGENT_TRY(write_block(out, v));
  }
  return Flow::normal;
}

// What a filter block or a call block gives is written as it is, so it must be a string.
Status Interp::write_block(Text& out, const Value& v) {
  if (!v.is(Kind::string)) return fail(Code::invalid, "a block gives a string, not {}", type_name(v));
  return write(out, v.text());
}

Result<Interp::Flow> Interp::exec_with(const Stmt& s, Names scope, Text& out) {
  ARGENT_LET(Ptr<Scope> inner, enter(s.layout, scope));
  for (size_t i = 0; i < s.targets.size(); ++i) {
    ARGENT_LET(Value v, eval(*s.exprs[i], scope));
    ARGENT_TRY(assign(*s.targets[i], inner, v));
  }
  return exec(s.body, inner, out);
}

Status Interp::exec_call_block(const Stmt& s, Names scope, Text& out) {
  ARGENT_LET(Value caller, make_macro(*s.macro, scope));
  ARGENT_LET(Value v, eval_call(*s.exprs[0], scope, &caller));
  return write_block(out, v);
}

Result<Interp::Flow> Interp::exec_for(const Stmt& s, Names scope, const Value& iterable, int64_t depth, Text& out) {
  ARGENT_TRY(check_depth());
  Value source = iterable;
  if (s.filter) {
    if (!this->iterable(source)) return fail(Code::invalid, "'{}' is not iterable", type_name(source));
    ARGENT_LET(Ptr<Scope> names, enter(s.filter_layout, scope));
    ARGENT_LET(Ptr<Iterator> all, iterate(source));
    ARGENT_LET(source, make_iterator(source.depth() + 1, [this, &s, names, all](Value& item) -> Result<bool> {
                 for (;;) {
                   ARGENT_LET(bool more, next(*all, item));
                   if (!more) return false;
                   ARGENT_TRY(assign(*s.filter_target, names, item));
                   ARGENT_LET(Value keep, eval(*s.filter, names));
                   if (!truthy(keep)) continue;
                   ARGENT_LET(item, unpacked(*s.filter_target, names));
                   return true;
                 }
               }));
  }
  ARGENT_LET(Ptr<Iterator> items, iterate(source));
  ARGENT_LET(Ptr<Scope> body, enter(s.layout, scope));
  Ptr<LoopObject> loop;
  Value loop_value;
  if (s.uses_loop) {
    ARGENT_LET(loop, make<LoopObject>(sizeof(LoopObject), 0));
    loop->iterable = source;
    loop->items = items;
    loop->depth0 = depth;
    if (s.recursive) {
      loop->stmt = &s;
      loop->scope = scope;
    }
    loop_value = Value(Kind::loop, loop);
  }
  bool ran = false;  // to its end, once: jinja2's else depends on that
  Flow flow = Flow::normal;
  for (bool first = true;; first = false) {
    Value item;
    if (loop && !loop->ahead.is(Kind::missing)) {
      item = std::exchange(loop->ahead, Value());
    } else {
      ARGENT_LET(bool more, next(loop ? *loop->items : *items, item));
      if (!more) break;
    }
    ARGENT_TRY(meter_.step());
    if (!first) reset(*body, s.layout);
    if (loop) {
      ++loop->index0;
      loop->before = std::exchange(loop->current, item);
      body->slots[s.loop_slot] = loop_value;
    }
    ARGENT_TRY(assign(*s.targets[0], body, item));
    ARGENT_LET(flow, exec(s.body, body, out));
    if (flow == Flow::break_) break;
    if (flow == Flow::normal) ran = true;
  }
  if (body->kept) body->slots.assign(body->slots.size(), Value());
  loop_value = Value();
  body.reset();
  if (loop && loop.use_count() > 1) keep(loop);
  if (ran || s.otherwise.empty()) return Flow::normal;
  ARGENT_LET(Ptr<Scope> otherwise, enter(s.otherwise_layout, scope));
  return exec(s.otherwise, otherwise, out);
}

// What a filtered loop passes on: with several targets a tuple of them, whatever the item was.
Result<Value> Interp::unpacked(const Expr& target, Names scope) {
  if (target.kind == ExprKind::name) return scope->slots[target.ref.slot];
  std::vector<Value> parts;
  for (const ExprPtr& kid : target.kids) {
    ARGENT_LET(Value part, unpacked(*kid, scope));
    parts.push_back(std::move(part));
  }
  return tuple(std::move(parts));
}

Status Interp::assign(const Expr& target, Names scope, const Value& v) {
  auto variable = [&](const VariableRef& ref) -> Value& {
    Scope* s = scope.get();
    for (uint32_t up = ref.up; up; --up) s = s->outer.get();
    return s->slots[ref.slot];
  };
  switch (target.kind) {
    case ExprKind::name:
      variable(target.ref) = v;
      return {};
    case ExprKind::space_ref: {
      const Value& space = variable(target.kids[0]->ref);
      if (!space.is(Kind::space)) {
        return fail(Code::invalid, "cannot assign attribute '{}': '{}' is not a namespace", target.text,
                    target.kids[0]->text);
      }
      auto& object = space.mut<SpaceObject>();
      if (Value* found = object.find(target.text)) {
        *found = v;
        return {};
      }
      ARGENT_TRY(meter_.reserve(sizeof(object.attributes[0]) + target.text.size()));
      object.charged += sizeof(object.attributes[0]) + target.text.size();
      object.attributes.emplace_back(target.text, v);
      return {};
    }
    default:
      break;
  }
  ARGENT_LET(std::vector<Value> parts, items(v));
  if (parts.size() != target.kids.size()) {
    return fail(Code::invalid, "cannot unpack {} values into {}", parts.size(), target.kids.size());
  }
  // jinja2 looks at every namespace before it assigns anything; the first misfit is an error either way.
  for (size_t i = 0; i < parts.size(); ++i) ARGENT_TRY(assign(*target.kids[i], scope, parts[i]));
  return {};
}

Result<Value> Interp::make_macro(const MacroDecl& decl, Names scope) {
  ARGENT_LET(Ptr<MacroObject> macro, make<MacroObject>(sizeof(MacroObject), 0));
  macro->decl = &decl;
  macro->scope = scope;
  for (Ptr<Scope> s = scope; s && !s->kept; s = s->outer) {
    s->kept = true;
    keep(s);
  }
  return Value(Kind::macro, std::move(macro));
}

Result<Value> Interp::call_macro(const MacroObject& macro, Args& args) {
  Nested nested(*this);
  ARGENT_TRY(check_depth());
  const MacroDecl& decl = *macro.decl;
  ARGENT_LET(Ptr<Scope> scope, enter(decl.layout, macro.scope));
  auto take = [&](const std::string& name) {
    auto it = std::find_if(args.named.begin(), args.named.end(), [&](const auto& a) { return a.first == name; });
    if (it == args.named.end()) return Value();
    Value v = std::move(it->second);
    args.named.erase(it);
    return v;
  };
  size_t count = decl.parameters.size();
  size_t given = std::min(args.positional.size(), count);
  bool found_caller = given == count && decl.explicit_caller >= 0;
  for (size_t i = 0; i < count; ++i) {
    const Expr& p = *decl.parameters[i];
    if (i >= given && p.text == "caller") found_caller = true;
    scope->slots[p.ref.slot] = i < given ? args.positional[i] : take(p.text);
  }
  if (decl.uses_caller && !found_caller) {
    Value caller = take("caller");
    bool none = caller.is(Kind::missing) || caller.is(Kind::none);
    scope->slots[decl.caller_slot] = none ? make_undefined("No caller defined") : std::move(caller);
  }
  std::string name = decl.name.empty() ? "of a call block" : "'" + decl.name + "'";
  if (decl.uses_kwargs) {
    std::vector<std::pair<Value, Value>> entries;
    for (auto& [key, v] : args.named) {
      ARGENT_LET(Value k, make_string(key, meter_));
      entries.emplace_back(std::move(k), std::move(v));
    }
    ARGENT_LET(scope->slots[decl.kwargs_slot], make_dict(std::move(entries), meter_));
  } else if (!args.named.empty()) {
    return fail(Code::invalid, "macro {} takes no keyword argument '{}'", name, args.named[0].first);
  }
  if (decl.uses_varargs) {
    std::vector<Value> rest(args.positional.begin() + static_cast<ptrdiff_t>(given), args.positional.end());
    ARGENT_LET(scope->slots[decl.varargs_slot], tuple(std::move(rest)));
  } else if (args.positional.size() > count) {
    return fail(Code::invalid, "macro {} takes not more than {} arguments", name, count);
  }
  for (size_t i = 0; i < count; ++i) {
    const Expr& p = *decl.parameters[i];
    Value& slot = scope->slots[p.ref.slot];
    if (!slot.is(Kind::missing)) continue;
    size_t required = count - decl.defaults.size();
    if (i < required) {
      slot = make_undefined(fmt::format("parameter '{}' was not provided", p.text));
    } else {
      ARGENT_LET(Value v, eval(*decl.defaults[i - required], scope));
      scope->slots[p.ref.slot] = std::move(v);
    }
  }
  Text out;
  ARGENT_LET(Flow flow, exec(decl.body, scope, out));
  (void)flow;
  return string(std::move(out));
}

}  // namespace argent::jinja
