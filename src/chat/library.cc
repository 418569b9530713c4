// Tests, globals, and the binding of arguments.
#include "chat/library.h"

#include <algorithm>
#include <ctime>
#include <unordered_map>

#include "chat/interp.h"
#include "chat/unicode.h"

namespace argent::jinja {

Result<Bound> bind(std::string_view what, const Args& args, std::initializer_list<std::string_view> parameters,
                   size_t required) {
  Bound bound;
  bound.values_.resize(parameters.size());
  if (args.positional.size() > parameters.size()) {
    return fail(Code::invalid, "{} takes at most {} arguments, got {}", what, parameters.size(),
                args.positional.size());
  }
  std::copy(args.positional.begin(), args.positional.end(), bound.values_.begin());
  for (const auto& [name, v] : args.named) {
    auto it = std::find(parameters.begin(), parameters.end(), name);
    if (it == parameters.end()) return fail(Code::invalid, "{} takes no argument '{}'", what, name);
    Value& slot = bound.values_[static_cast<size_t>(it - parameters.begin())];
    if (!slot.is(Kind::missing)) return fail(Code::invalid, "{} was given '{}' twice", what, name);
    slot = v;
  }
  for (size_t i = 0; i < required; ++i) {
    if (!bound[i]) return fail(Code::invalid, "{} needs an argument '{}'", what, *(parameters.begin() + i));
  }
  return bound;
}

Status expect_positional(std::string_view what, const Args& args, size_t least, size_t most) {
  if (!args.named.empty()) return fail(Code::invalid, "{} takes no keyword arguments", what);
  if (args.positional.size() < least || args.positional.size() > most) {
    return fail(Code::invalid, "{} takes {} to {} arguments, got {}", what, least, most, args.positional.size());
  }
  return {};
}

Result<int64_t> integer_argument(const Value& v, std::string_view what) {
  if (v.is(Kind::undefined)) return fail(Code::invalid, "{}", v.as<UndefinedObject>().why);
  if (!v.is_integral()) return fail(Code::invalid, "{} must be an integer, not {}", what, type_name(v));
  return v.as_int();
}

Result<const Text*> string_argument(const Value& v, std::string_view what) {
  if (v.is(Kind::undefined)) return fail(Code::invalid, "{}", v.as<UndefinedObject>().why);
  if (!v.is(Kind::string)) return fail(Code::invalid, "{} must be a string, not {}", what, type_name(v));
  return &v.text();
}

// --- filters

Filter find_filter(std::string_view name) {
  static const auto table = [] {
    std::unordered_map<std::string_view, Filter> all;
    for (const auto* part : {&kTextFilters, &kListFilters, &kNumberFilters}) {
      for (const auto& [filter_name, f] : *part) all.emplace(filter_name, f);
    }
    return all;
  }();
  auto it = table.find(name);
  return it == table.end() ? nullptr : it->second;
}

// --- tests

namespace {

Status none_given(const Args& args, std::string_view what) { return expect_positional(what, args, 0, 0); }

template <class Holds>
Result<bool> simple(const Args& args, std::string_view what, Holds holds) {
  ARGENT_TRY(none_given(args, what));
  return holds();
}

// value % divisor == rest
Result<bool> has_rest(Interp& interp, const Value& v, const Value& divisor, int64_t rest) {
  ARGENT_LET(Value r, interp.binary(BinaryOp::mod, v, divisor));
  return equal(r, Value::integer(rest), interp.meter());
}

Result<bool> is_case(Interp& interp, const Value& v, uint16_t wanted) {
  ARGENT_LET(Text t, interp.text(v));
  bool any = false;
  for (size_t i = 0; i < t.size();) {
    Char c = char_at(t.bytes(), i);
    uint16_t f = char_flags(c.code);
    if (f & (wanted == kLower ? kUpper | kTitle : kLower | kTitle)) return false;
    any = any || (f & wanted);
    i += c.length;
  }
  return any;
}

Result<Value> other(const Args& args, std::string_view what) {
  ARGENT_TRY(expect_positional(what, args, 1, 1));
  return args.positional[0];
}

Result<bool> test_eq(Interp& interp, const Value& v, Args& args) {
  ARGENT_LET(Value b, other(args, "eq"));
  return equal(v, b, interp.meter());
}
Result<bool> test_ne(Interp& interp, const Value& v, Args& args) {
  ARGENT_LET(bool same, test_eq(interp, v, args));
  return !same;
}
Result<bool> test_lt(Interp& interp, const Value& v, Args& args) {
  ARGENT_LET(Value b, other(args, "lt"));
  return less(v, b, interp.meter());
}
Result<bool> test_le(Interp& interp, const Value& v, Args& args) {
  ARGENT_LET(Value b, other(args, "le"));
  return less(v, b, interp.meter(), true);
}
Result<bool> test_gt(Interp& interp, const Value& v, Args& args) {
  ARGENT_LET(Value b, other(args, "gt"));
  return less(b, v, interp.meter());
}
Result<bool> test_ge(Interp& interp, const Value& v, Args& args) {
  ARGENT_LET(Value b, other(args, "ge"));
  return less(b, v, interp.meter(), true);
}

bool is_same(const Value& a, const Value& b) {
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::none:
      return true;
    case Kind::boolean:
    case Kind::integer:
      return a.as_int() == b.as_int();
    case Kind::real:
      return a.as_real() == b.as_real();
    case Kind::string:
      return a.text().bytes() == b.text().bytes();
    default:
      return a.object() == b.object();
  }
}

const std::vector<Named<Test>>& tests() {
  static const std::vector<Named<Test>> table = {
      {"odd",
       [](Interp& in, const Value& v, Args& a) -> Result<bool> {
         ARGENT_TRY(none_given(a, "odd"));
         return has_rest(in, v, Value::integer(2), 1);
       }},
      {"even",
       [](Interp& in, const Value& v, Args& a) -> Result<bool> {
         ARGENT_TRY(none_given(a, "even"));
         return has_rest(in, v, Value::integer(2), 0);
       }},
      {"divisibleby",
       [](Interp& in, const Value& v, Args& a) -> Result<bool> {
         ARGENT_LET(Bound b, bind("divisibleby", a, {"num"}, 1));
         return has_rest(in, v, *b[0], 0);
       }},
      {"defined",
       [](Interp&, const Value& v, Args& a) { return simple(a, "defined", [&] { return !v.is(Kind::undefined); }); }},
      {"undefined",
       [](Interp&, const Value& v, Args& a) { return simple(a, "undefined", [&] { return v.is(Kind::undefined); }); }},
      {"none", [](Interp&, const Value& v, Args& a) { return simple(a, "none", [&] { return v.is(Kind::none); }); }},
      {"boolean",
       [](Interp&, const Value& v, Args& a) { return simple(a, "boolean", [&] { return v.is(Kind::boolean); }); }},
      {"false", [](Interp&, const Value& v,
                   Args& a) { return simple(a, "false", [&] { return v.is(Kind::boolean) && !v.as_bool(); }); }},
      {"true", [](Interp&, const Value& v,
                  Args& a) { return simple(a, "true", [&] { return v.is(Kind::boolean) && v.as_bool(); }); }},
      {"integer",
       [](Interp&, const Value& v, Args& a) { return simple(a, "integer", [&] { return v.is(Kind::integer); }); }},
      {"float", [](Interp&, const Value& v, Args& a) { return simple(a, "float", [&] { return v.is(Kind::real); }); }},
      {"number", [](Interp&, const Value& v, Args& a) { return simple(a, "number", [&] { return v.is_number(); }); }},
      {"string",
       [](Interp&, const Value& v, Args& a) { return simple(a, "string", [&] { return v.is(Kind::string); }); }},
      {"mapping",
       [](Interp&, const Value& v, Args& a) { return simple(a, "mapping", [&] { return v.is(Kind::dict); }); }},
      {"sequence",
       [](Interp&, const Value& v, Args& a) {
         return simple(a, "sequence", [&] {
           return v.is_sequence() || v.is(Kind::string) || v.is(Kind::dict) || v.is(Kind::range) ||
                  v.is(Kind::undefined);
         });
       }},
      {"iterable",
       [](Interp& in, const Value& v, Args& a) { return simple(a, "iterable", [&] { return in.iterable(v); }); }},
      {"callable",
       [](Interp&, const Value& v, Args& a) {
         return simple(a, "callable", [&] {
           return v.is(Kind::function) || v.is(Kind::macro) || v.is(Kind::loop) || v.is(Kind::joiner) ||
                  v.is(Kind::undefined);
         });
       }},
      {"escaped", [](Interp&, const Value& v, Args& a) { return simple(a, "escaped", [&] { return v.markup(); }); }},
      {"lower",
       [](Interp& in, const Value& v, Args& a) -> Result<bool> {
         ARGENT_TRY(none_given(a, "lower"));
         return is_case(in, v, kLower);
       }},
      {"upper",
       [](Interp& in, const Value& v, Args& a) -> Result<bool> {
         ARGENT_TRY(none_given(a, "upper"));
         return is_case(in, v, kUpper);
       }},
      {"sameas",
       [](Interp&, const Value& v, Args& a) -> Result<bool> {
         ARGENT_LET(Bound b, bind("sameas", a, {"other"}, 1));
         return is_same(v, *b[0]);
       }},
      {"in",
       [](Interp& in, const Value& v, Args& a) -> Result<bool> {
         ARGENT_LET(Bound b, bind("in", a, {"seq"}, 1));
         return in.contains(*b[0], v);
       }},
      {"filter",
       [](Interp&, const Value& v, Args& a) {
         return simple(a, "filter", [&] { return v.is(Kind::string) && find_filter(v.text().bytes()); });
       }},
      {"test",
       [](Interp&, const Value& v, Args& a) {
         return simple(a, "test", [&] { return v.is(Kind::string) && find_test(v.text().bytes()); });
       }},
      {"==", test_eq},
      {"eq", test_eq},
      {"equalto", test_eq},
      {"!=", test_ne},
      {"ne", test_ne},
      {"<", test_lt},
      {"lt", test_lt},
      {"lessthan", test_lt},
      {"<=", test_le},
      {"le", test_le},
      {">", test_gt},
      {"gt", test_gt},
      {"greaterthan", test_gt},
      {">=", test_ge},
      {"ge", test_ge},
  };
  return table;
}

}  // namespace

Test find_test(std::string_view name) {
  for (const auto& [test_name, t] : tests()) {
    if (test_name == name) return t;
  }
  return nullptr;
}

// --- globals

namespace {

// dict(mapping or pairs, **named)
Result<Value> make_dict_from(Interp& interp, Args& args, std::string_view what) {
  if (args.positional.size() > 1) return fail(Code::invalid, "{} takes at most one argument by position", what);
  std::vector<std::pair<Value, Value>> entries;
  if (!args.positional.empty()) {
    const Value& v = args.positional[0];
    if (v.is(Kind::undefined)) return fail(Code::invalid, "{}", v.as<UndefinedObject>().why);
    if (v.is(Kind::dict)) {
      entries = v.dict().entries;
    } else {
      ARGENT_LET(std::vector<Value> pairs, interp.items(v));
      for (const Value& pair : pairs) {
        ARGENT_LET(std::vector<Value> parts, interp.items(pair));
        if (parts.size() != 2) return fail(Code::invalid, "{} wants pairs, got {} values", what, parts.size());
        entries.emplace_back(parts[0], parts[1]);
      }
    }
  }
  for (auto& [name, v] : args.named) {
    ARGENT_LET(Value key, make_string(name, interp.meter()));
    entries.emplace_back(std::move(key), std::move(v));
  }
  return make_dict(std::move(entries), interp.meter());
}

Result<Value> global_namespace(Interp& interp, Args& args) {
  ARGENT_LET(Value dict, make_dict_from(interp, args, "namespace()"));
  ARGENT_LET(Ptr<SpaceObject> space, interp.make<SpaceObject>(sizeof(SpaceObject), 0));
  for (const auto& [key, v] : dict.dict().entries) {
    if (!key.is(Kind::string)) return fail(Code::unsupported, "the names in a namespace must be strings");
    size_t bytes = sizeof(space->attributes[0]) + key.text().size();
    ARGENT_TRY(interp.meter().reserve(bytes));
    space->charged += bytes;
    space->attributes.emplace_back(key.text().bytes(), v);
  }
  interp.keep(space);
  return Value(Kind::space, std::move(space));
}

Result<Value> global_range(Interp& interp, Args& args) {
  ARGENT_TRY(expect_positional("range()", args, 1, 3));
  int64_t v[3] = {0, 0, 1};
  for (size_t i = 0; i < args.positional.size(); ++i) {
    ARGENT_LET(v[i], integer_argument(args.positional[i], "an argument of range()"));
  }
  ARGENT_LET(Ptr<RangeObject> r, interp.make<RangeObject>(sizeof(RangeObject), 0));
  r->start = args.positional.size() == 1 ? 0 : v[0];
  r->stop = args.positional.size() == 1 ? v[0] : v[1];
  r->step = v[2];
  if (r->step == 0) return fail(Code::invalid, "the step of range() must not be zero");
  if (r->length() > interp.meter().limits().range_items) {
    return fail(Code::invalid, "range() has more than {} items", interp.meter().limits().range_items);
  }
  return Value(Kind::range, std::move(r));
}

Result<Value> global_cycler(Interp& interp, Args& args) {
  if (!args.named.empty()) return fail(Code::invalid, "cycler() takes no keyword arguments");
  if (args.positional.empty()) return fail(Code::invalid, "cycler() needs at least one item");
  size_t bytes = sizeof(CyclerObject) + args.positional.size() * sizeof(Value);
  ARGENT_LET(Ptr<CyclerObject> c, interp.make<CyclerObject>(bytes, args.depth() + 1));
  c->items = std::move(args.positional);
  return Value(Kind::cycler, std::move(c));
}

Result<Value> global_joiner(Interp& interp, Args& args) {
  ARGENT_LET(Bound b, bind("joiner()", args, {"sep"}, 0));
  ARGENT_LET(Ptr<JoinerObject> j, interp.make<JoinerObject>(sizeof(JoinerObject), args.depth() + 1));
  ARGENT_LET(j->separator, b[0] ? Result<Value>(*b[0]) : make_string(", ", interp.meter()));
  return Value(Kind::joiner, std::move(j));
}

Result<Value> global_raise(Interp& interp, Args& args) {
  ARGENT_LET(Bound b, bind("raise_exception()", args, {"message"}, 1));
  ARGENT_LET(Text message, interp.text(*b[0]));
  return fail(Code::invalid, "{}", message.bytes());
}

Result<Value> global_strftime_now(Interp& interp, Args& args) {
  ARGENT_LET(Bound b, bind("strftime_now()", args, {"format"}, 1));
  ARGENT_LET(const Text* given, string_argument(*b[0], "the format of strftime_now()"));
  if (given->size() > 1000) return fail(Code::invalid, "the format of strftime_now() is longer than 1000 bytes");
  // A time without zone, as datetime.now(): %z and %Z are empty there, %f are microseconds.
  std::string format;
  const std::string& s = given->bytes();
  if (s.find('\0') != std::string::npos) return fail(Code::invalid, "the format of strftime_now() holds a zero byte");
  for (size_t i = 0; i < s.size(); ++i) {
    if (s[i] != '%' || i + 1 == s.size()) {
      format += s[i] == '%' ? "%%" : std::string(1, s[i]);
      continue;
    }
    char c = s[++i];
    if (c == 'z' || c == 'Z') continue;
    format += c == 'f' ? "000000" : std::string{'%', c};
  }
  std::tm tm{};
  if (interp.options().now) {
    tm = interp.options().now();
  } else {
    std::time_t t = std::time(nullptr);
    localtime_r(&t, &tm);
  }
  format += '.';  // so that an empty result is told from one that does not fit
  std::string out(format.size() * 64 + 64, '\0');
  size_t n = std::strftime(out.data(), out.size(), format.c_str(), &tm);
  if (n == 0) return fail(Code::invalid, "the format of strftime_now() gives too long a text");
  return make_string(std::string_view(out).substr(0, n - 1), interp.meter());
}

}  // namespace

void Interp::define_globals() {
  auto define = [&](const char* name, const char* shown, bool is_class, Result<Value> (*f)(Interp&, Args&)) {
    auto object = std::make_shared<FunctionObject>();
    object->name = shown;
    object->is_class = is_class;
    object->call = f;
    globals_.emplace_back(name, Value(Kind::function, std::move(object)));
  };
  define("range", "range", false, global_range);
  define("dict", "dict", true, [](Interp& interp, Args& args) { return make_dict_from(interp, args, "dict()"); });
  define("namespace", "jinja2.utils.Namespace", true, global_namespace);
  define("cycler", "jinja2.utils.Cycler", true, global_cycler);
  define("joiner", "jinja2.utils.Joiner", true, global_joiner);
  define("raise_exception", "raise_exception", false, global_raise);
  define("strftime_now", "strftime_now", false, global_strftime_now);
  define("lipsum", "lipsum", false,
         [](Interp&, Args&) -> Result<Value> { return fail(Code::unsupported, "lipsum() is not supported"); });
}

}  // namespace argent::jinja
