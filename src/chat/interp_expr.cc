#include <algorithm>

#include "chat/interp.h"
#include "chat/unicode.h"

namespace argent::jinja {
namespace {

Error not_supported(std::string_view op, const Value& a, const Value& b) {
  return fail(Code::invalid, "'{}' is not supported between {} and {}", op, type_name(a), type_name(b));
}

Error undefined_error(const Value& v) { return fail(Code::invalid, "{}", v.as<UndefinedObject>().why); }

}  // namespace

Result<Value> Interp::eval(const Expr& e, Names scope) {
  if (e.kind == ExprKind::constant) return e.value;
  Nested nested(*this);
  auto result = [&]() -> Result<Value> {
    ARGENT_TRY(check_depth());
    ARGENT_TRY(meter_.step());
    return eval_node(e, scope);
  }();
  if (!result) return locate(e.at, result.error());
  return result;
}

Result<std::vector<Value>> Interp::eval_all(const std::vector<ExprPtr>& exprs, Names scope) {
  std::vector<Value> values;
  values.reserve(exprs.size());
  for (const ExprPtr& e : exprs) {
    ARGENT_LET(Value v, eval(*e, scope));
    values.push_back(std::move(v));
  }
  return values;
}

Result<Value> Interp::eval_node(const Expr& e, Names scope) {
  switch (e.kind) {
    case ExprKind::constant:
      return e.value;
    case ExprKind::name: {
      const Scope* s = scope.get();
      for (uint32_t up = e.ref.up; up; --up) s = s->outer.get();
      const Value& v = s->slots[e.ref.slot];
      if (v.is(Kind::missing)) return make_undefined(fmt::format("'{}' is undefined", e.text));
      return v;
    }
    case ExprKind::list:
    case ExprKind::tuple: {
      ARGENT_LET(std::vector<Value> values, eval_all(e.kids, scope));
      return make_sequence(e.kind == ExprKind::list ? Kind::list : Kind::tuple, std::move(values), meter_);
    }
    case ExprKind::dict:
      return eval_dict(e, scope);
    case ExprKind::attribute: {
      ARGENT_LET(Value v, eval(*e.kids[0], scope));
      return attribute(v, e.text);
    }
    case ExprKind::item: {
      ARGENT_LET(Value v, eval(*e.kids[0], scope));
      ARGENT_LET(Value key, eval(*e.kids[1], scope));
      return item(v, key);
    }
    case ExprKind::slice:
      return eval_slice(e, scope);
    case ExprKind::call:
      return eval_call(e, scope, nullptr);
    case ExprKind::filter: {
      Value v;
      if (e.kids[0]) {
        ARGENT_LET(v, eval(*e.kids[0], scope));
      } else {
        v = std::exchange(block_text_, Value());
      }
      ARGENT_LET(Args args, eval_args(*e.args, scope));
      return find_filter(e.text)(*this, v, args);
    }
    case ExprKind::test: {
      ARGENT_LET(Value v, eval(*e.kids[0], scope));
      ARGENT_LET(Args args, eval_args(*e.args, scope));
      ARGENT_LET(bool holds, find_test(e.text)(*this, v, args));
      return Value::boolean(holds);
    }
    case ExprKind::unary_not: {
      ARGENT_LET(Value v, eval(*e.kids[0], scope));
      return Value::boolean(!truthy(v));
    }
    case ExprKind::negative:
    case ExprKind::positive: {
      ARGENT_LET(Value v, eval(*e.kids[0], scope));
      if (v.is(Kind::undefined)) return undefined_error(v);
      if (!v.is_number()) return fail(Code::invalid, "bad operand type for unary sign: {}", type_name(v));
      if (e.kind == ExprKind::negative) return negated(v);
      return v.is(Kind::boolean) ? Value::integer(v.as_int()) : v;
    }
    case ExprKind::binary: {
      ARGENT_LET(Value a, eval(*e.kids[0], scope));
      ARGENT_LET(Value b, eval(*e.kids[1], scope));
      return binary(e.op, a, b);
    }
    case ExprKind::concat: {
      ARGENT_LET(std::vector<Value> values, eval_all(e.kids, scope));
      Text out;
      for (const Value& v : values) {
        ARGENT_LET(Text t, text(v));
        ARGENT_TRY(meter_.room(out.size() + t.size()));
        out.append(t);
      }
      return string(std::move(out));
    }
    case ExprKind::compare:
      return eval_compare(e, scope);
    case ExprKind::logical_and:
    case ExprKind::logical_or: {
      ARGENT_LET(Value v, eval(*e.kids[0], scope));
      if (truthy(v) == (e.kind == ExprKind::logical_or)) return v;
      return eval(*e.kids[1], scope);
    }
    case ExprKind::conditional: {
      ARGENT_LET(Value test, eval(*e.kids[0], scope));
      if (truthy(test)) return eval(*e.kids[1], scope);
      if (e.kids[2]) return eval(*e.kids[2], scope);
      return make_undefined("the inline if-expression evaluated to false and no else section was defined");
    }
    case ExprKind::space_ref:
      break;
  }
  return fail(Code::internal, "an expression that cannot be evaluated");
}

Result<Value> Interp::eval_dict(const Expr& e, Names scope) {
  std::vector<std::pair<Value, Value>> entries;
  for (size_t i = 0; i < e.kids.size(); i += 2) {
    ARGENT_LET(Value key, eval(*e.kids[i], scope));
    ARGENT_LET(Value v, eval(*e.kids[i + 1], scope));
    entries.emplace_back(std::move(key), std::move(v));
  }
  return make_dict(std::move(entries), meter_);
}

Result<Value> Interp::eval_slice(const Expr& e, Names scope) {
  ARGENT_LET(Value v, eval(*e.kids[0], scope));
  Value bounds[3] = {Value::none(), Value::none(), Value::none()};
  for (size_t i = 0; i < 3; ++i) {
    if (!e.kids[i + 1]) continue;
    ARGENT_LET(bounds[i], eval(*e.kids[i + 1], scope));
  }
  return slice(v, bounds[0], bounds[1], bounds[2]);
}

Result<Args> Interp::eval_args(const CallArgs& args, Names scope) {
  Args out;
  ARGENT_LET(out.positional, eval_all(args.positional, scope));
  if (args.star) {
    ARGENT_LET(Value v, eval(*args.star, scope));
    ARGENT_LET(std::vector<Value> more, items(v));
    out.positional.insert(out.positional.end(), more.begin(), more.end());
  }
  for (const auto& [name, e] : args.named) {
    ARGENT_LET(Value v, eval(*e, scope));
    out.named.emplace_back(name, std::move(v));
  }
  if (args.star_star) {
    ARGENT_LET(Value v, eval(*args.star_star, scope));
    if (!v.is(Kind::dict)) return fail(Code::invalid, "the argument after ** must be a mapping, not {}", type_name(v));
    for (const auto& [key, value] : v.dict().entries) {
      if (!key.is(Kind::string)) return fail(Code::invalid, "keywords must be strings");
      for (const auto& [other, unused] : out.named) {
        if (other == key.text().bytes()) return fail(Code::invalid, "the argument '{}' is given twice", other);
      }
      out.named.emplace_back(key.text().bytes(), value);
    }
  }
  return out;
}

Result<Value> Interp::eval_call(const Expr& e, Names scope, const Value* caller) {
  ARGENT_LET(Value callee, eval(*e.kids[0], scope));
  ARGENT_LET(Args args, eval_args(*e.args, scope));
  if (caller) args.named.emplace_back("caller", *caller);
  return call(callee, args);
}

Result<Value> Interp::eval_compare(const Expr& e, Names scope) {
  ARGENT_LET(Value left, eval(*e.kids[0], scope));
  for (size_t i = 0; i < e.compare_ops.size(); ++i) {
    ARGENT_LET(Value right, eval(*e.kids[i + 1], scope));
    ARGENT_LET(bool holds, compare(e.compare_ops[i], left, right));
    if (!holds) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

Result<bool> Interp::compare(CompareOp op, const Value& a, const Value& b) {
  switch (op) {
    case CompareOp::eq:
      return equal(a, b, meter_);
    case CompareOp::ne: {
      ARGENT_LET(bool same, equal(a, b, meter_));
      return !same;
    }
    case CompareOp::lt:
      return less(a, b, meter_);
    case CompareOp::le:
      return less(a, b, meter_, true);
    case CompareOp::gt:
      return less(b, a, meter_);
    case CompareOp::ge:
      return less(b, a, meter_, true);
    case CompareOp::in:
      return contains(b, a);
    case CompareOp::not_in: {
      ARGENT_LET(bool found, contains(b, a));
      return !found;
    }
  }
  return false;
}

Result<bool> Interp::contains(const Value& container, const Value& v) {
  switch (container.kind()) {
    case Kind::undefined:
      return false;
    case Kind::string: {
      if (v.is(Kind::undefined)) return fail(Code::invalid, "'in <string>' requires a string, not Undefined");
      if (!v.is(Kind::string)) return fail(Code::invalid, "'in <string>' requires a string, not {}", type_name(v));
      ARGENT_TRY(meter_.step_bytes(4 * container.text().size()));  // a search is slower than a copy
      return find_bytes(container.text().bytes(), v.text().bytes()) != std::string::npos;
    }
    case Kind::dict: {
      ARGENT_LET(const Value* found, container.dict().find(v, meter_));
      return found != nullptr;
    }
    case Kind::range: {
      const auto& r = container.as<RangeObject>();
      if (!v.is_number()) return false;
      for (int64_t i = 0, n = r.length(); i < n; ++i) {
        ARGENT_TRY(meter_.step());
        if (compare_numbers(Value::integer(r.at(i)), v) == 0) return true;
      }
      return false;
    }
    case Kind::view:
      if (container.as<ViewObject>().which == ViewObject::keys) return contains(container.as<ViewObject>().dict, v);
      [[fallthrough]];
    case Kind::list:
    case Kind::tuple:
    case Kind::iterator:
    case Kind::loop: {
      ARGENT_LET(Ptr<Iterator> it, iterate(container));
      Value item;
      for (;;) {
        ARGENT_LET(bool more, next(*it, item));
        if (!more) return false;
        ARGENT_LET(bool same, equal(item, v, meter_));
        if (same) return true;
      }
    }
    default:
      return fail(Code::invalid, "'{}' is not a container or iterable", type_name(container));
  }
}

Result<Value> Interp::binary(BinaryOp op, const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) return arithmetic(op, a, b);
  if (op == BinaryOp::mod && a.is(Kind::string)) return printf_format(*this, a, b);
  if (op == BinaryOp::sub && (a.is(Kind::view) || b.is(Kind::view))) {
    return fail(Code::unsupported, "sets are not supported");
  }
  if (a.is(Kind::undefined)) return undefined_error(a);
  if (b.is(Kind::undefined)) return undefined_error(b);
  if (op == BinaryOp::add && a.is(Kind::string) && b.is(Kind::string)) {
    bool markup = a.markup() || b.markup();
    ARGENT_TRY(meter_.room(a.text().size() + b.text().size()));
    Text out = markup && !a.markup() ? html_escaped(a.text()) : a.text();
    out.append(markup && !b.markup() ? html_escaped(b.text()) : b.text());
    return string(std::move(out), markup);
  }
  if (op == BinaryOp::add && a.is_sequence() && a.kind() == b.kind()) {
    ARGENT_TRY(meter_.room((a.items().size() + b.items().size()) * sizeof(Value)));
    std::vector<Value> out = a.items();
    out.insert(out.end(), b.items().begin(), b.items().end());
    ARGENT_TRY(meter_.step(out.size()));
    return make_sequence(a.kind(), std::move(out), meter_);
  }
  if (op == BinaryOp::mul && (a.is_integral() || b.is_integral())) {
    const Value& v = a.is_integral() ? b : a;
    uint64_t times = static_cast<uint64_t>(std::max<int64_t>(0, (a.is_integral() ? a : b).as_int()));
    if (v.is(Kind::string) || v.is_sequence()) {
      uint64_t size = v.is(Kind::string) ? v.text().footprint() : v.items().size() * sizeof(Value);
      if (size && times > meter_.limits().memory_bytes / size) times = meter_.limits().memory_bytes / size + 1;
      ARGENT_TRY(meter_.room(size * times));
      ARGENT_TRY(meter_.step_bytes(size * times));
      if (v.is(Kind::string)) {
        Text out;
        for (uint64_t i = 0; i < times && size; ++i) out.append(v.text());
        return string(std::move(out), v.markup());
      }
      std::vector<Value> out;
      for (uint64_t i = 0; i < times && size; ++i) out.insert(out.end(), v.items().begin(), v.items().end());
      return make_sequence(v.kind(), std::move(out), meter_);
    }
  }
  return not_supported(symbol(op), a, b);
}

Result<Value> Interp::slice(const Value& v, const Value& start, const Value& stop, const Value& step) {
  if (v.is(Kind::undefined)) return undefined_error(v);
  if (!v.is(Kind::string) && !v.is_sequence() && !v.is(Kind::range)) {
    return fail(Code::invalid, "'{}' cannot be sliced", type_name(v));
  }
  int64_t bounds[3] = {0, 0, 1};
  const Value* given[3] = {&start, &stop, &step};
  for (int i = 0; i < 3; ++i) {
    if (given[i]->is(Kind::none)) continue;
    if (!given[i]->is_integral())
      return fail(Code::invalid, "slice indices must be integers, not {}", type_name(*given[i]));
    bounds[i] = given[i]->as_int();
  }
  int64_t by = bounds[2];
  if (by == 0) return fail(Code::invalid, "slice step cannot be zero");
  if (by == INT64_MIN) by = -INT64_MAX;  // as Python does

  const std::string* bytes = v.is(Kind::string) ? &v.text().bytes() : nullptr;
  bool ascii = bytes && is_ascii(*bytes);
  ARGENT_LET(int64_t n, length(v));
  if (bytes) ARGENT_TRY(meter_.step_bytes(bytes->size()));
  auto clamp = [&](const Value& bound, int64_t i, int64_t none) {
    if (bound.is(Kind::none)) return none;
    if (i < 0) i += n;
    return std::clamp<int64_t>(i, by < 0 ? -1 : 0, by < 0 ? n - 1 : n);
  };
  int64_t from = clamp(start, bounds[0], by < 0 ? n - 1 : 0);
  int64_t to = clamp(stop, bounds[1], by < 0 ? -1 : n);
  int64_t count = by > 0 ? (to > from ? (to - from - 1) / by + 1 : 0) : (from > to ? (from - to - 1) / -by + 1 : 0);

  if (v.is(Kind::range)) {
    const auto& r = v.as<RangeObject>();
    ARGENT_LET(Ptr<RangeObject> out, make<RangeObject>(sizeof(RangeObject), 0));
    out->start = r.at(from);
    out->stop = r.at(to);
    out->step = r.step * by;
    return Value(Kind::range, std::move(out));
  }
  ARGENT_TRY(meter_.step(static_cast<uint64_t>(count)));
  if (v.is_sequence()) {
    ARGENT_TRY(meter_.room(static_cast<size_t>(count) * sizeof(Value)));
    std::vector<Value> out;
    out.reserve(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) out.push_back(v.items()[static_cast<size_t>(from + i * by)]);
    return make_sequence(v.kind(), std::move(out), meter_);
  }
  std::vector<size_t> starts;  // of each character, and the end
  if (!ascii) {
    ARGENT_TRY(meter_.room(bytes->size() * sizeof(size_t)));
    for (size_t i = 0; i < bytes->size(); i += char_at(*bytes, i).length) starts.push_back(i);
    starts.push_back(bytes->size());
  }
  auto offset = [&](int64_t i) { return ascii ? static_cast<size_t>(i) : starts[static_cast<size_t>(i)]; };
  Text out;
  if (by == 1) {
    if (count > 0) out = v.text().slice(offset(from), offset(from + count));
  } else {
    for (int64_t i = 0; i < count; ++i) out.append(v.text(), offset(from + i * by), offset(from + i * by + 1));
  }
  return string(std::move(out), v.markup());
}

}  // namespace argent::jinja
