#include "chat/value.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "chat/unicode.h"

namespace argent::jinja {
namespace {

constexpr size_t kLinearKeys = 8;  // dicts up to this size have no index

bool holds_int64(double d) { return d >= -9223372036854775808.0 && d < 9223372036854775808.0; }

int compare_int_real(int64_t i, double d) {  // d is not NaN
  if (!holds_int64(d)) return d > 0 ? -1 : 1;
  int64_t whole = static_cast<int64_t>(d);
  if (i != whole) return i < whole ? -1 : 1;
  double fraction = d - static_cast<double>(whole);
  return fraction > 0 ? -1 : fraction < 0 ? 1 : 0;
}

Error less_error(const Value& a, const Value& b, bool or_equal) {
  return fail(Code::invalid, "'{}' is not supported between {} and {}", or_equal ? "<=" : "<", type_name(a),
              type_name(b));
}

}  // namespace

Status charge(Object& object, size_t bytes, uint32_t depth, Meter& meter) {
  if (depth > meter.limits().value_depth) {
    return fail(Code::invalid, "values are nested more than {} deep", meter.limits().value_depth);
  }
  ARGENT_TRY(meter.reserve(bytes));
  object.meter = &meter;
  object.charged = bytes;
  object.depth = depth;
  return {};
}

Result<Value> make_string(Text text, Meter& meter, bool markup) {
  auto object = std::make_shared<StringObject>();
  ARGENT_TRY(charge(*object, sizeof(StringObject) + text.footprint(), 0, meter));
  ARGENT_TRY(meter.step_bytes(text.size()));
  object->text = std::move(text);
  object->markup = markup;
  return Value(Kind::string, std::move(object));
}

Result<Value> make_string(std::string_view bytes, Meter& meter) { return make_string(Text(std::string(bytes)), meter); }

Value constant_string(std::string bytes) {
  auto object = std::make_shared<StringObject>();
  object->text = Text(std::move(bytes));
  return Value(Kind::string, std::move(object));
}

Result<Value> make_sequence(Kind kind, std::vector<Value> items, Meter& meter, bool from_input) {
  auto object = std::make_shared<SequenceObject>();
  uint32_t depth = 0;
  for (const Value& v : items) depth = std::max(depth, v.depth());
  ARGENT_TRY(charge(*object, sizeof(SequenceObject) + items.size() * sizeof(Value), depth + 1, meter));
  object->items = std::move(items);
  object->from_input = from_input;
  return Value(kind, std::move(object));
}

Result<Value> make_dict(std::vector<std::pair<Value, Value>> entries, Meter& meter) {
  auto dict = std::make_shared<DictObject>();
  for (auto& [key, value] : entries) ARGENT_TRY(dict->set(key, std::move(value), meter));
  return finish_dict(std::move(dict), meter);
}

Result<Value> finish_dict(Ptr<DictObject> dict, Meter& meter) {
  uint32_t depth = 0;
  for (const auto& [k, v] : dict->entries) depth = std::max({depth, k.depth(), v.depth()});
  size_t per_entry = 2 * sizeof(Value) + (dict->index.empty() ? 0 : 48);
  ARGENT_TRY(charge(*dict, sizeof(DictObject) + dict->entries.size() * per_entry, depth + 1, meter));
  return Value(Kind::dict, std::move(dict));
}

Value make_undefined(std::string why) {
  auto object = std::make_shared<UndefinedObject>();
  object->why = std::move(why);
  return Value(Kind::undefined, std::move(object));
}

const Value* DictObject::find(std::string_view key) const {
  auto matches = [&](const Value& k) { return k.is(Kind::string) && k.text().bytes() == key; };
  if (index.empty()) {
    for (const auto& [k, v] : entries) {
      if (matches(k)) return &v;
    }
    return nullptr;
  }
  auto [begin, end] = index.equal_range(hash_string(key));
  for (auto it = begin; it != end; ++it) {
    if (matches(entries[it->second].first)) return &entries[it->second].second;
  }
  return nullptr;
}

Result<const Value*> DictObject::find(const Value& key, Meter& meter) const {
  ARGENT_LET(uint64_t h, hash(key, meter));  // also when the dict is small: an unhashable key is an error
  if (index.empty()) {
    for (const auto& [k, v] : entries) {
      ARGENT_LET(bool same, equal(k, key, meter));
      if (same) return &v;
    }
    return nullptr;
  }
  auto [begin, end] = index.equal_range(h);
  for (auto it = begin; it != end; ++it) {
    ARGENT_LET(bool same, equal(entries[it->second].first, key, meter));
    if (same) return &entries[it->second].second;
  }
  return nullptr;
}

Status DictObject::set(const Value& key, Value value, Meter& meter) {
  ARGENT_LET(const Value* found, find(key, meter));
  if (found) {
    *const_cast<Value*>(found) = std::move(value);
    return {};
  }
  entries.emplace_back(key, std::move(value));
  if (entries.size() > kLinearKeys) {
    for (size_t i = index.empty() ? 0 : entries.size() - 1; i < entries.size(); ++i) {
      ARGENT_LET(uint64_t h, hash(entries[i].first, meter));
      index.emplace(h, static_cast<uint32_t>(i));
    }
  }
  return {};
}

int64_t RangeObject::length() const {
  using Wide = __int128;
  Wide span = step > 0 ? Wide(stop) - start : Wide(start) - stop;
  if (span <= 0) return 0;
  Wide stride = step > 0 ? Wide(step) : -Wide(step);
  Wide n = (span + stride - 1) / stride;
  return n > INT64_MAX ? INT64_MAX : static_cast<int64_t>(n);
}

Value* SpaceObject::find(std::string_view name) {
  for (auto& [k, v] : attributes) {
    if (k == name) return &v;
  }
  return nullptr;
}

void SpaceObject::drop(std::vector<Value>& out) {
  for (auto& [k, v] : attributes) out.push_back(std::move(v));
  attributes.clear();
}

std::string_view type_name(const Value& v) {
  switch (v.kind()) {
    case Kind::missing:
    case Kind::undefined:
      return "Undefined";
    case Kind::none:
      return "NoneType";
    case Kind::boolean:
      return "bool";
    case Kind::integer:
      return "int";
    case Kind::real:
      return "float";
    case Kind::string:
      return v.markup() ? "Markup" : "str";
    case Kind::list:
      return "list";
    case Kind::tuple:
      return "tuple";
    case Kind::dict:
      return "dict";
    case Kind::range:
      return "range";
    case Kind::view:
      return "dict view";
    case Kind::iterator:
      return "generator";
    case Kind::space:
      return "Namespace";
    case Kind::loop:
      return "LoopContext";
    case Kind::macro:
      return "Macro";
    case Kind::function:
      return "function";
    case Kind::cycler:
      return "Cycler";
    case Kind::joiner:
      return "Joiner";
  }
  return "?";
}

bool truthy(const Value& v) {
  switch (v.kind()) {
    case Kind::missing:
    case Kind::undefined:
    case Kind::none:
      return false;
    case Kind::boolean:
    case Kind::integer:
      return v.as_int() != 0;
    case Kind::real:
      return v.as_real() != 0;
    case Kind::string:
      return !v.text().empty();
    case Kind::list:
    case Kind::tuple:
      return !v.items().empty();
    case Kind::dict:
      return !v.dict().entries.empty();
    case Kind::range:
      return v.as<RangeObject>().length() != 0;
    case Kind::view:
      return !v.as<ViewObject>().dict.dict().entries.empty();
    default:
      return true;
  }
}

std::optional<int> compare_numbers(const Value& a, const Value& b) {
  bool ra = a.is(Kind::real), rb = b.is(Kind::real);
  if ((ra && std::isnan(a.as_real())) || (rb && std::isnan(b.as_real()))) return std::nullopt;
  if (ra && rb) return a.as_real() < b.as_real() ? -1 : a.as_real() > b.as_real();
  if (rb) return compare_int_real(a.as_int(), b.as_real());
  if (ra) return -compare_int_real(b.as_int(), a.as_real());
  return a.as_int() < b.as_int() ? -1 : a.as_int() > b.as_int();
}

Result<bool> equal(const Value& a, const Value& b, Meter& meter) {
  ARGENT_TRY(meter.step());
  if (a.is_number() && b.is_number()) {
    auto order = compare_numbers(a, b);
    return order && *order == 0;
  }
  if (a.kind() != b.kind()) return false;
  if (a.is(Kind::undefined) || a.is(Kind::none) || a.object() == b.object()) return true;
  switch (a.kind()) {
    case Kind::string: {
      const std::string &x = a.text().bytes(), &y = b.text().bytes();
      if (x.size() != y.size()) return false;
      ARGENT_TRY(meter.step_bytes(x.size()));
      return x == y;
    }
    case Kind::list:
    case Kind::tuple: {
      const auto &x = a.items(), &y = b.items();
      if (x.size() != y.size()) return false;
      for (size_t i = 0; i < x.size(); ++i) {
        ARGENT_LET(bool same, equal(x[i], y[i], meter));
        if (!same) return false;
      }
      return true;
    }
    case Kind::dict: {
      const DictObject &x = a.dict(), &y = b.dict();
      if (x.entries.size() != y.entries.size()) return false;
      for (const auto& [k, v] : x.entries) {
        ARGENT_LET(const Value* other, y.find(k, meter));
        if (!other) return false;
        ARGENT_LET(bool same, equal(v, *other, meter));
        if (!same) return false;
      }
      return true;
    }
    case Kind::range: {
      const auto &x = a.as<RangeObject>(), &y = b.as<RangeObject>();
      int64_t n = x.length();
      return n == y.length() && (n == 0 || (x.start == y.start && (n == 1 || x.step == y.step)));
    }
    case Kind::view: {
      const auto &x = a.as<ViewObject>(), &y = b.as<ViewObject>();
      if (x.which != y.which || x.which == ViewObject::values) return false;
      const DictObject &p = x.dict.dict(), &q = y.dict.dict();
      if (p.entries.size() != q.entries.size()) return false;
      for (const auto& [k, v] : p.entries) {
        ARGENT_LET(const Value* other, q.find(k, meter));
        if (!other) return false;
        if (x.which == ViewObject::keys) continue;
        ARGENT_LET(bool same, equal(v, *other, meter));
        if (!same) return false;
      }
      return true;
    }
    default:
      return false;
  }
}

Result<bool> less(const Value& a, const Value& b, Meter& meter, bool or_equal) {
  ARGENT_TRY(meter.step());
  if (a.is_number() && b.is_number()) {
    auto order = compare_numbers(a, b);
    return order && (or_equal ? *order <= 0 : *order < 0);
  }
  if (a.is(Kind::undefined)) return fail(Code::invalid, "{}", a.as<UndefinedObject>().why);
  if (b.is(Kind::undefined)) return fail(Code::invalid, "{}", b.as<UndefinedObject>().why);
  if (a.is(Kind::string) && b.is(Kind::string)) {
    const std::string &x = a.text().bytes(), &y = b.text().bytes();
    ARGENT_TRY(meter.step_bytes(std::min(x.size(), y.size())));
    int order = x.compare(y);
    return or_equal ? order <= 0 : order < 0;
  }
  if (a.is_sequence() && a.kind() == b.kind()) {
    const auto &x = a.items(), &y = b.items();
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      ARGENT_LET(bool same, equal(x[i], y[i], meter));
      if (!same) return less(x[i], y[i], meter, or_equal);
    }
    return or_equal ? x.size() <= y.size() : x.size() < y.size();
  }
  return less_error(a, b, or_equal);
}

uint64_t hash_string(std::string_view bytes) { return std::hash<std::string_view>()(bytes); }

Result<uint64_t> hash(const Value& v, Meter& meter) {
  ARGENT_TRY(meter.step());
  auto mix = [](uint64_t h) { return (h ^ (h >> 31)) * 0x9E3779B97F4A7C15u; };
  switch (v.kind()) {
    case Kind::missing:
    case Kind::undefined:
      return uint64_t(1);
    case Kind::none:
      return uint64_t(2);
    case Kind::boolean:
    case Kind::integer:
      return mix(static_cast<uint64_t>(v.as_int()));
    case Kind::real: {
      double d = v.as_real();  // equal numbers hash alike, whatever their type
      if (holds_int64(d) && d == std::floor(d)) return mix(static_cast<uint64_t>(static_cast<int64_t>(d)));
      return static_cast<uint64_t>(std::hash<double>()(d));
    }
    case Kind::string: {
      ARGENT_TRY(meter.step_bytes(v.text().size()));
      return hash_string(v.text().bytes());
    }
    case Kind::tuple: {
      uint64_t h = 3;
      for (const Value& item : v.items()) {
        ARGENT_LET(uint64_t part, hash(item, meter));
        h = mix(h + part);
      }
      return h;
    }
    case Kind::range:
      return mix(static_cast<uint64_t>(v.as<RangeObject>().length()));
    case Kind::list:
    case Kind::dict:
    case Kind::view:
      return fail(Code::invalid, "unhashable type: {}", type_name(v));
    default:
      return static_cast<uint64_t>(std::hash<const void*>()(v.object()));
  }
}

std::string real_repr(double d) {
  if (std::isnan(d)) return "nan";
  if (std::isinf(d)) return d < 0 ? "-inf" : "inf";
  std::string s = fmt::format("{}", d);  // the shortest digits; the exponent begins where Python's does
  if (s.find_first_of(".e") == std::string::npos) s += ".0";
  return s;
}

void append_string_repr(Text& out, const Text& text, bool from_input) {
  const std::string& s = text.bytes();
  char quote = s.find('\'') != std::string::npos && s.find('"') == std::string::npos ? '"' : '\'';
  out.append(std::string_view(&quote, 1), from_input);
  for (size_t i = 0; i < s.size();) {
    Char c = char_at(s, i);
    std::string escape;
    if (c.code == static_cast<uint8_t>(quote) || c.code == '\\') {
      escape = {'\\', static_cast<char>(c.code)};
    } else if (c.code == '\n') {
      escape = "\\n";
    } else if (c.code == '\r') {
      escape = "\\r";
    } else if (c.code == '\t') {
      escape = "\\t";
    } else if (!(char_flags(c.code) & kPrintable) && c.code != ' ') {
      escape = c.code < 0x100     ? fmt::format("\\x{:02x}", c.code)
               : c.code < 0x10000 ? fmt::format("\\u{:04x}", c.code)
                                  : fmt::format("\\U{:08x}", c.code);
    }
    if (escape.empty()) {
      out.append(text, i, i + c.length);
    } else {
      out.append_like(escape, text, i);
    }
    i += c.length;
  }
  out.append(std::string_view(&quote, 1), from_input);
}

namespace {

// The namespaces that are being written: one inside of itself shows as dots, like a dict in Python.
struct Open {
  const Object* space = nullptr;
  const Open* outer = nullptr;
  bool holds(const Object* object) const { return space == object || (outer && outer->holds(object)); }
};

Status append_items(Text& out, const std::vector<Value>& items, Meter& meter, bool from_input, uint32_t depth,
                    const Open& open);

Status append_repr_at(Text& out, const Value& v, Meter& meter, bool from_input, uint32_t depth, const Open& open) {
  if (depth > meter.limits().value_depth) {
    return fail(Code::invalid, "values are nested more than {} deep", meter.limits().value_depth);
  }
  ARGENT_TRY(meter.step());
  ARGENT_TRY(meter.room(out.size()));
  switch (v.kind()) {
    case Kind::missing:
    case Kind::undefined:
      out.append("Undefined", from_input);
      return {};
    case Kind::none:
      out.append("None", from_input);
      return {};
    case Kind::boolean:
      out.append(v.as_bool() ? "True" : "False", from_input);
      return {};
    case Kind::integer:
      out.append(fmt::format("{}", v.as_int()), from_input);
      return {};
    case Kind::real:
      out.append(real_repr(v.as_real()), from_input);
      return {};
    case Kind::string:
      ARGENT_TRY(meter.step_bytes(v.text().size()));
      if (v.markup()) out.append("Markup(", from_input);
      append_string_repr(out, v.text(), from_input);
      if (v.markup()) out.append(")", from_input);
      return {};
    case Kind::list:
    case Kind::tuple: {
      from_input = from_input || v.as<SequenceObject>().from_input;
      bool list = v.is(Kind::list);
      out.append(list ? "[" : "(", from_input);
      ARGENT_TRY(append_items(out, v.items(), meter, from_input, depth, open));
      out.append(list ? "]" : v.items().size() == 1 ? ",)" : ")", from_input);
      return {};
    }
    case Kind::dict: {
      const DictObject& dict = v.dict();
      from_input = from_input || dict.from_input;
      out.append("{", from_input);
      for (size_t i = 0; i < dict.entries.size(); ++i) {
        if (i) out.append(", ", from_input);
        ARGENT_TRY(append_repr_at(out, dict.entries[i].first, meter, from_input, depth + 1, open));
        out.append(": ", from_input);
        ARGENT_TRY(append_repr_at(out, dict.entries[i].second, meter, from_input, depth + 1, open));
      }
      out.append("}", from_input);
      return {};
    }
    case Kind::range: {
      const auto& r = v.as<RangeObject>();
      out.append(r.step == 1 ? fmt::format("range({}, {})", r.start, r.stop)
                             : fmt::format("range({}, {}, {})", r.start, r.stop, r.step));
      return {};
    }
    case Kind::view: {
      const auto& view = v.as<ViewObject>();
      const DictObject& dict = view.dict.dict();
      from_input = from_input || dict.from_input;
      out.append(view.which == ViewObject::keys     ? "dict_keys(["
                 : view.which == ViewObject::values ? "dict_values(["
                                                    : "dict_items([",
                 from_input);
      for (size_t i = 0; i < dict.entries.size(); ++i) {
        const auto& [key, value] = dict.entries[i];
        if (i) out.append(", ", from_input);
        if (view.which == ViewObject::items) {
          out.append("(", from_input);
          ARGENT_TRY(append_items(out, {key, value}, meter, from_input, depth, open));
          out.append(")", from_input);
        } else {
          ARGENT_TRY(
              append_repr_at(out, view.which == ViewObject::keys ? key : value, meter, from_input, depth + 1, open));
        }
      }
      out.append("])", from_input);
      return {};
    }
    case Kind::space: {
      if (open.holds(v.object())) {
        out.append("<Namespace {...}>");
        return {};
      }
      out.append("<Namespace {");
      Open inner{v.object(), &open};
      const auto& attributes = v.as<SpaceObject>().attributes;
      for (size_t i = 0; i < attributes.size(); ++i) {
        if (i) out.append(", ");
        append_string_repr(out, Text(attributes[i].first));
        out.append(": ");
        ARGENT_TRY(append_repr_at(out, attributes[i].second, meter, from_input, depth + 1, inner));
      }
      out.append("}>");
      return {};
    }
    default:
      out.append(v.object()->label());
      return {};
  }
}

Status append_items(Text& out, const std::vector<Value>& items, Meter& meter, bool from_input, uint32_t depth,
                    const Open& open) {
  for (size_t i = 0; i < items.size(); ++i) {
    if (i) out.append(", ", from_input);
    ARGENT_TRY(append_repr_at(out, items[i], meter, from_input, depth + 1, open));
  }
  return {};
}

}  // namespace

Status append_repr(Text& out, const Value& v, Meter& meter, bool from_input) {
  return append_repr_at(out, v, meter, from_input, 0, Open());
}

Result<Text> to_text(const Value& v, Meter& meter) {
  if (v.is(Kind::string)) {
    ARGENT_TRY(meter.step_bytes(v.text().size()));
    return v.text();
  }
  Text out;
  if (!v.is(Kind::undefined) && !v.is(Kind::missing)) ARGENT_TRY(append_repr(out, v, meter));
  return out;
}

}  // namespace argent::jinja
