// What values can do: being looked into, walked, and called.
#include <algorithm>

#include "chat/interp.h"
#include "chat/unicode.h"

namespace argent::jinja {
namespace {

bool hashable(const Value& v) {
  if (v.is(Kind::tuple)) return std::all_of(v.items().begin(), v.items().end(), hashable);
  return !v.is(Kind::list) && !v.is(Kind::dict) && !v.is(Kind::view);
}

// The methods with which lists and dicts would change: the sandbox has them undefined.
bool changes_its_object(const Value& v, std::string_view name) {
  constexpr std::string_view kList[] = {"append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove"};
  constexpr std::string_view kDict[] = {"clear", "pop", "popitem", "setdefault", "update"};
  if (v.is(Kind::list)) return std::find(std::begin(kList), std::end(kList), name) != std::end(kList);
  if (v.is(Kind::dict)) return std::find(std::begin(kDict), std::end(kDict), name) != std::end(kDict);
  return false;
}

std::string no_attribute(const Value& v, std::string_view name) {
  if (v.is(Kind::none)) return fmt::format("'None' has no attribute '{}'", name);
  return fmt::format("'{} object' has no attribute '{}'", type_name(v), name);
}

}  // namespace

Result<Value> Interp::from_json(const Json& json, bool trusted) {
  Nested nested(*this);
  if (depth_ > meter_.limits().value_depth) {
    return fail(Code::invalid, "a variable is nested more than {} deep", meter_.limits().value_depth);
  }
  switch (json.type()) {
    case Json::value_t::null:
      return Value::none();
    case Json::value_t::boolean:
      return Value::boolean(json.get<bool>());
    case Json::value_t::number_integer:
      return Value::integer(json.get<int64_t>());
    case Json::value_t::number_unsigned: {
      uint64_t n = json.get<uint64_t>();  // beyond 64 signed bits: the nearest double, as for integers beyond 64 bits
      return n <= INT64_MAX ? Value::integer(static_cast<int64_t>(n)) : Value::real(static_cast<double>(n));
    }
    case Json::value_t::number_float:
      return Value::real(json.get<double>());
    case Json::value_t::string:
      return string(Text(json.get<std::string>(), !trusted));
    case Json::value_t::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const Json& item : json) {
        ARGENT_LET(Value v, from_json(item, trusted));
        items.push_back(std::move(v));
      }
      return make_sequence(Kind::list, std::move(items), meter_, !trusted);
    }
    case Json::value_t::object: {
      auto dict = std::make_shared<DictObject>();
      dict->from_input = !trusted;
      for (const auto& [key, item] : json.items()) {
        ARGENT_LET(Value k, string(Text(key, !trusted)));
        ARGENT_LET(Value v, from_json(item, trusted));
        ARGENT_TRY(dict->set(k, std::move(v), meter_));
      }
      return finish_dict(std::move(dict), meter_);
    }
    default:
      return fail(Code::invalid, "a variable of a template must be plain JSON");
  }
}

// Messages are input, but a role of the known few is as good as the template's own word.
Result<Value> Interp::from_messages(const Json& json) {
  if (!json.is_array()) return from_json(json, false);
  const auto& roles = options_.trusted_roles;
  std::vector<Value> items;
  for (const Json& message : json) {
    ARGENT_LET(Value v, from_json(message, false));
    if (v.is(Kind::dict)) {
      auto& entries = v.mut<DictObject>().entries;
      for (auto& [key, value] : entries) {
        if (!value.is(Kind::string) || key.text().bytes() != "role") continue;
        const std::string& role = value.text().bytes();
        if (std::find(roles.begin(), roles.end(), role) == roles.end()) continue;
        ARGENT_LET(value, make_string(role, meter_));
      }
    }
    items.push_back(std::move(v));
  }
  return make_sequence(Kind::list, std::move(items), meter_, true);
}

Result<Value> Interp::function(std::string name, std::function<Result<Value>(Interp&, Args&)> call, uint32_t depth) {
  ARGENT_LET(Ptr<FunctionObject> f, make<FunctionObject>(sizeof(FunctionObject) + name.size(), depth));
  f->name = std::move(name);
  f->call = std::move(call);
  return Value(Kind::function, std::move(f));
}

Result<Value> Interp::call(const Value& callee, Args& args) {
  Nested nested(*this);
  ARGENT_TRY(check_depth());
  switch (callee.kind()) {
    case Kind::function:
      return callee.as<FunctionObject>().call(*this, args);
    case Kind::macro:
      return call_macro(callee.as<MacroObject>(), args);
    case Kind::joiner: {
      ARGENT_TRY(expect_positional("joiner()", args, 0, 0));
      auto& joiner = callee.mut<JoinerObject>();
      if (joiner.used) return joiner.separator;
      joiner.used = true;
      return string(Text());
    }
    case Kind::loop: {
      const auto& loop = callee.as<LoopObject>();
      ARGENT_TRY(expect_positional("loop()", args, 1, 1));
      if (!loop.stmt || !loop.scope) return fail(Code::invalid, "the loop is not marked 'recursive'");
      Text out;
      ARGENT_LET(Flow flow, exec_for(*loop.stmt, loop.scope, args.positional[0], loop.depth0 + 1, out));
      (void)flow;
      return string(std::move(out));
    }
    case Kind::undefined:
      return fail(Code::invalid, "{}", callee.as<UndefinedObject>().why);
    default:
      return fail(Code::invalid, "'{}' is not callable", type_name(callee));
  }
}

Result<Value> Interp::filter(std::string_view name, const Value& v, Args& args) {
  Nested nested(*this);
  ARGENT_TRY(check_depth());
  ARGENT_TRY(meter_.step());
  Filter f = find_filter(name);
  if (!f) return fail(Code::invalid, "no filter named '{}'", name);
  return f(*this, v, args);
}

Result<bool> Interp::test(std::string_view name, const Value& v, Args& args) {
  Nested nested(*this);
  ARGENT_TRY(check_depth());
  ARGENT_TRY(meter_.step());
  Test t = find_test(name);
  if (!t) return fail(Code::invalid, "no test named '{}'", name);
  return t(*this, v, args);
}

Result<std::optional<Value>> Interp::own_attribute(const Value& v, std::string_view name) {
  using Maybe = std::optional<Value>;
  auto found = [](Result<Value> r) -> Result<Maybe> {
    if (!r) return r.error();
    return Maybe(*r);
  };
  if (v.is(Kind::undefined)) return fail(Code::invalid, "{}", v.as<UndefinedObject>().why);
  if (name.starts_with("_")) return Maybe();
  if (changes_its_object(v, name)) {
    return Maybe(make_undefined(fmt::format("access to attribute '{}' of '{}' object is unsafe", name, type_name(v))));
  }
  switch (v.kind()) {
    case Kind::space:
      if (Value* value = v.mut<SpaceObject>().find(name)) return Maybe(*value);
      return Maybe();
    case Kind::loop:
      return loop_attribute(v, name);
    case Kind::macro: {
      const MacroDecl& decl = *v.as<MacroObject>().decl;
      if (name == "name") {
        return decl.name.empty() ? Result<Maybe>(Maybe(Value::none())) : found(make_string(decl.name, meter_));
      }
      if (name == "caller") return Maybe(Value::boolean(decl.uses_caller));
      if (name == "catch_kwargs") return Maybe(Value::boolean(decl.uses_kwargs));
      if (name == "catch_varargs") return Maybe(Value::boolean(decl.uses_varargs));
      if (name == "explicit_caller") return Maybe(Value::boolean(decl.explicit_caller >= 0));
      if (name == "arguments") {
        std::vector<Value> names;
        for (const ExprPtr& p : decl.parameters) {
          ARGENT_LET(Value s, make_string(p->text, meter_));
          names.push_back(std::move(s));
        }
        return found(tuple(std::move(names)));
      }
      return Maybe();
    }
    case Kind::range: {
      const auto& r = v.as<RangeObject>();
      if (name == "start") return Maybe(Value::integer(r.start));
      if (name == "stop") return Maybe(Value::integer(r.stop));
      if (name == "step") return Maybe(Value::integer(r.step));
      break;
    }
    case Kind::cycler: {
      auto object = std::static_pointer_cast<CyclerObject>(std::const_pointer_cast<Object>(v.object_ptr()));
      if (name == "current") return Maybe(object->items[object->position]);
      if (name == "next") {
        return found(function(
            "next",
            [object](Interp&, Args& args) -> Result<Value> {
              ARGENT_TRY(expect_positional("next()", args, 0, 0));
              size_t at = object->position;
              object->position = (at + 1) % object->items.size();
              return object->items[at];
            },
            v.depth() + 1));
      }
      if (name == "reset") {
        return found(function(
            "reset",
            [object](Interp&, Args& args) -> Result<Value> {
              ARGENT_TRY(expect_positional("reset()", args, 0, 0));
              object->position = 0;
              return Value::none();
            },
            v.depth() + 1));
      }
      return Maybe();
    }
    case Kind::tuple:
      if (v.as<SequenceObject>().group && name == "grouper") return Maybe(v.items()[0]);
      if (v.as<SequenceObject>().group && name == "list") return Maybe(v.items()[1]);
      break;
    case Kind::boolean:
    case Kind::integer:
      if (name == "real" || name == "numerator") return Maybe(Value::integer(v.as_int()));
      if (name == "imag") return Maybe(Value::integer(0));
      if (name == "denominator") return Maybe(Value::integer(1));
      break;
    case Kind::real:
      if (name == "real") return Maybe(v);
      if (name == "imag") return Maybe(Value::real(0));
      break;
    default:
      break;
  }
  const MethodEntry* method = find_method(v, name);
  if (!method) return Maybe();
  return found(function(
      std::string(name),
      [v, method](Interp& interp, Args& args) -> Result<Value> {
        if (!method->call) {
          return fail(Code::unsupported, "the method '{}' of '{}' is not supported", method->name, type_name(v));
        }
        return method->call(interp, v, args);
      },
      v.depth() + 1));
}

Result<Value> Interp::attribute(const Value& v, std::string_view name) {
  ARGENT_LET(auto own, own_attribute(v, name));
  if (own) return std::move(*own);
  if (v.is(Kind::dict)) {
    if (const Value* value = v.dict().find(name)) return *value;
  }
  return make_undefined(no_attribute(v, name));
}

Result<Value> Interp::item(const Value& v, const Value& key) {
  if (v.is(Kind::undefined)) return fail(Code::invalid, "{}", v.as<UndefinedObject>().why);
  if (key.is_integral()) {
    int64_t i = key.as_int();
    if (v.is_sequence() || v.is(Kind::range)) {
      ARGENT_LET(int64_t n, length(v));
      if (i < 0) i += n;
      if (i >= 0 && i < n) {
        return v.is(Kind::range) ? Value::integer(v.as<RangeObject>().at(i)) : v.items()[static_cast<size_t>(i)];
      }
    } else if (v.is(Kind::string)) {
      ARGENT_LET(int64_t n, length(v));
      if (i < 0) i += n;
      if (i >= 0 && i < n) return slice(v, Value::integer(i), Value::integer(i + 1), Value::none());
    }
  }
  if (v.is(Kind::dict) && hashable(key)) {
    ARGENT_LET(const Value* value, v.dict().find(key, meter_));
    if (value) return *value;
  }
  if (key.is(Kind::string)) {
    const std::string& name = key.text().bytes();
    ARGENT_LET(auto own, own_attribute(v, name));
    if (own) return std::move(*own);
    return make_undefined(no_attribute(v, name.substr(0, 100)));
  }
  Text shown;
  ARGENT_TRY(append_repr(shown, key, meter_));
  return make_undefined(fmt::format("'{} object' has no element {}", type_name(v), shown.bytes().substr(0, 100)));
}

bool Interp::iterable(const Value& v) const {
  switch (v.kind()) {
    case Kind::undefined:
    case Kind::string:
    case Kind::list:
    case Kind::tuple:
    case Kind::dict:
    case Kind::range:
    case Kind::view:
    case Kind::iterator:
    case Kind::loop:
      return true;
    default:
      return false;
  }
}

Result<Value> Interp::make_iterator(uint32_t depth, std::function<Result<bool>(Value&)> step) {
  auto it = std::make_shared<Iterator>(std::move(step));
  ARGENT_TRY(charge(*it, sizeof(Iterator) + 64, depth, meter_));
  return Value(Kind::iterator, std::move(it));
}

Result<bool> Interp::next(Iterator& it, Value& out) {
  if (it.over) return false;
  if (it.running) return fail(Code::invalid, "generator already executing");
  Nested nested(*this);
  ARGENT_TRY(check_depth());
  ARGENT_TRY(meter_.step());
  it.running = true;
  auto more = it.next_item(out);
  it.running = false;
  if (!more || !*more) it.over = true;
  return more;
}

Result<Ptr<Iterator>> Interp::iterate(const Value& v) {
  std::function<Result<bool>(Value&)> step;
  auto counted = [&v](size_t n, auto at) {
    return [v, at, n, i = size_t(0)](Value& out) mutable -> Result<bool> {
      if (i >= n) return false;
      out = at(v, i++);
      return true;
    };
  };
  switch (v.kind()) {
    case Kind::iterator:
      return std::static_pointer_cast<Iterator>(std::const_pointer_cast<Object>(v.object_ptr()));
    case Kind::undefined:
      step = [](Value&) -> Result<bool> { return false; };
      break;
    case Kind::list:
    case Kind::tuple:
      step = counted(v.items().size(), [](const Value& x, size_t i) { return x.items()[i]; });
      break;
    case Kind::dict:
      step = counted(v.dict().entries.size(), [](const Value& x, size_t i) { return x.dict().entries[i].first; });
      break;
    case Kind::range:
      step = counted(static_cast<size_t>(v.as<RangeObject>().length()), [](const Value& x, size_t i) {
        return Value::integer(x.as<RangeObject>().at(static_cast<int64_t>(i)));
      });
      break;
    case Kind::view: {
      const auto& view = v.as<ViewObject>();
      step = [this, dict = view.dict, which = view.which, i = size_t(0)](Value& out) mutable -> Result<bool> {
        if (i >= dict.dict().entries.size()) return false;
        const auto& [key, value] = dict.dict().entries[i++];
        if (which == ViewObject::items) {
          ARGENT_LET(out, tuple({key, value}));
        } else {
          out = which == ViewObject::keys ? key : value;
        }
        return true;
      };
      break;
    }
    case Kind::string:
      step = [this, v, at = size_t(0)](Value& out) mutable -> Result<bool> {
        const std::string& bytes = v.text().bytes();
        if (at >= bytes.size()) return false;
        size_t end = at + char_at(bytes, at).length;
        ARGENT_LET(out, string(v.text().slice(at, end)));
        at = end;
        return true;
      };
      break;
    case Kind::loop:  // walking the loop from inside itself takes its items away
      step = [this, v](Value& out) -> Result<bool> {
        auto& loop = v.mut<LoopObject>();
        Value item;
        if (!loop.ahead.is(Kind::missing)) {
          item = std::exchange(loop.ahead, Value());
        } else {
          if (!loop.items) return false;
          ARGENT_LET(bool more, next(*loop.items, item));
          if (!more) return false;
        }
        ++loop.index0;
        loop.before = std::exchange(loop.current, item);
        ARGENT_LET(out, tuple({item, v}));
        return true;
      };
      break;
    default:
      return fail(Code::invalid, "'{}' object is not iterable", type_name(v));
  }
  auto it = std::make_shared<Iterator>(std::move(step));
  ARGENT_TRY(charge(*it, sizeof(Iterator) + 64, v.depth(), meter_));
  return it;
}

Result<std::vector<Value>> Interp::items(const Value& v) {
  if (v.is_sequence()) {
    ARGENT_TRY(meter_.step(1 + v.items().size()));
    ARGENT_TRY(meter_.room(v.items().size() * sizeof(Value)));
    return v.items();
  }
  ARGENT_LET(Ptr<Iterator> it, iterate(v));
  std::vector<Value> out;
  Value item;
  for (;;) {
    ARGENT_LET(bool more, next(*it, item));
    if (!more) return out;
    ARGENT_TRY(meter_.room((out.size() + 1) * sizeof(Value)));
    out.push_back(std::move(item));
  }
}

Result<int64_t> Interp::length(const Value& v) {
  switch (v.kind()) {
    case Kind::undefined:
      return int64_t(0);
    case Kind::string:
      ARGENT_TRY(meter_.step_bytes(v.text().size()));
      return static_cast<int64_t>(char_count(v.text().bytes()));
    case Kind::list:
    case Kind::tuple:
      return static_cast<int64_t>(v.items().size());
    case Kind::dict:
      return static_cast<int64_t>(v.dict().entries.size());
    case Kind::view:
      return static_cast<int64_t>(v.as<ViewObject>().dict.dict().entries.size());
    case Kind::range:
      return v.as<RangeObject>().length();
    case Kind::loop:
      return loop_length(v.mut<LoopObject>());
    default:
      return fail(Code::invalid, "object of type '{}' has no length", type_name(v));
  }
}

Result<int64_t> Interp::loop_length(LoopObject& loop) {
  if (loop.length >= 0) return loop.length;
  if (!loop.iterable.is(Kind::iterator)) {
    ARGENT_LET(loop.length, length(loop.iterable));
    return loop.length;
  }
  if (!loop.items) return int64_t(0);
  // What is left of a one-pass iterable is read now and walked later.
  ARGENT_LET(std::vector<Value> rest, items(Value(Kind::iterator, loop.items)));
  loop.length = static_cast<int64_t>(rest.size()) + loop.index0 + 1 + (loop.ahead.is(Kind::missing) ? 0 : 1);
  ARGENT_LET(Value left, list(std::move(rest)));
  ARGENT_LET(loop.items, iterate(left));
  return loop.length;
}

// The next item of a loop, read before its turn; missing at the end.
Result<Value> Interp::peek(LoopObject& loop) {
  if (loop.ahead.is(Kind::missing) && loop.items) {
    Value item;
    ARGENT_LET(bool more, next(*loop.items, item));
    if (more) loop.ahead = std::move(item);
  }
  return loop.ahead;
}

Result<std::optional<Value>> Interp::loop_attribute(const Value& v, std::string_view name) {
  using Maybe = std::optional<Value>;
  auto& loop = v.mut<LoopObject>();
  if (name == "index") return Maybe(Value::integer(loop.index0 + 1));
  if (name == "index0") return Maybe(Value::integer(loop.index0));
  if (name == "first") return Maybe(Value::boolean(loop.index0 == 0));
  if (name == "depth") return Maybe(Value::integer(loop.depth0 + 1));
  if (name == "depth0") return Maybe(Value::integer(loop.depth0));
  if (name == "length" || name == "revindex" || name == "revindex0") {
    ARGENT_LET(int64_t n, loop_length(loop));
    return Maybe(Value::integer(name == "length" ? n : name == "revindex" ? n - loop.index0 : n - loop.index0 - 1));
  }
  if (name == "last" || name == "nextitem") {
    ARGENT_LET(Value ahead, peek(loop));
    bool over = ahead.is(Kind::missing);
    if (name == "last") return Maybe(Value::boolean(over));
    return Maybe(over ? make_undefined("there is no next item") : std::move(ahead));
  }
  if (name == "previtem") return Maybe(loop.index0 == 0 ? make_undefined("there is no previous item") : loop.before);
  auto object = std::static_pointer_cast<LoopObject>(std::const_pointer_cast<Object>(v.object_ptr()));
  if (name == "cycle") {
    ARGENT_LET(Value f, function("cycle", [object](Interp&, Args& args) -> Result<Value> {
                 if (!args.named.empty()) return fail(Code::invalid, "loop.cycle() takes no keyword arguments");
                 if (args.positional.empty()) return fail(Code::invalid, "no items for cycling given");
                 return args.positional[static_cast<size_t>(object->index0) % args.positional.size()];
               }));
    return Maybe(std::move(f));
  }
  if (name == "changed") {
    ARGENT_LET(Value f, function("changed", [object](Interp& interp, Args& args) -> Result<Value> {
                 if (!args.named.empty()) return fail(Code::invalid, "loop.changed() takes no keyword arguments");
                 ARGENT_LET(Value now, interp.tuple(std::move(args.positional)));
                 ARGENT_LET(bool same, equal(now, object->last_changed, interp.meter()));
                 object->last_changed = std::move(now);
                 return Value::boolean(!same);
               }));
    return Maybe(std::move(f));
  }
  return Maybe();
}

}  // namespace argent::jinja
