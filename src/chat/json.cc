// tojson: json.dumps as transformers calls it.
#include <algorithm>
#include <cmath>

#include "chat/interp.h"
#include "chat/unicode.h"

namespace argent::jinja {
namespace {

struct Style {
  bool ascii = false;
  bool sort_keys = false;
  std::optional<std::string> indent;
  Text item_separator{", "};
  Text key_separator{": "};
};

class Writer {
 public:
  Writer(Meter& meter, const Style& style) : meter_(meter), style_(style) {}

  // Punctuation counts as input inside of what came from the input.
  Status write(const Value& v, bool from_input, uint32_t depth) {
    if (depth > meter_.limits().value_depth) return fail(Code::invalid, "values are nested too deep for tojson");
    ARGENT_TRY(meter_.step());
    ARGENT_TRY(meter_.room(out_.footprint()));
    switch (v.kind()) {
      case Kind::none:
        out_.append("null", from_input);
        return {};
      case Kind::boolean:
        out_.append(v.as_bool() ? "true" : "false", from_input);
        return {};
      case Kind::integer:
        out_.append(fmt::format("{}", v.as_int()), from_input);
        return {};
      case Kind::real:
        out_.append(number(v.as_real()), from_input);
        return {};
      case Kind::string:
        return string(v.text(), from_input);
      case Kind::list:
      case Kind::tuple:
        return array(v.items(), from_input || v.as<SequenceObject>().from_input, depth);
      case Kind::dict:
        return object(v.dict(), depth, from_input || v.dict().from_input);
      default:
        return fail(Code::invalid, "Object of type {} is not JSON serializable", type_name(v));
    }
  }

  Text take() { return std::move(out_); }

 private:
  static std::string number(double d) {
    if (std::isnan(d)) return "NaN";
    if (std::isinf(d)) return d < 0 ? "-Infinity" : "Infinity";
    return real_repr(d);
  }

  void new_line(uint32_t depth, bool from_input) {
    if (!style_.indent) return;
    out_.append("\n", from_input);
    for (uint32_t i = 0; i < depth; ++i) out_.append(*style_.indent, from_input);
  }
  void separator(const Text& text, bool from_input) {
    if (from_input) {
      out_.append(text.bytes(), true);
    } else {
      out_.append(text);
    }
  }

  Status array(const std::vector<Value>& items, bool from_input, uint32_t depth) {
    if (items.empty()) {
      out_.append("[]", from_input);
      return {};
    }
    out_.append("[", from_input);
    for (size_t i = 0; i < items.size(); ++i) {
      if (i) separator(style_.item_separator, from_input);
      new_line(depth + 1, from_input);
      ARGENT_TRY(write(items[i], from_input, depth + 1));
    }
    new_line(depth, from_input);
    out_.append("]", from_input);
    return {};
  }

  Status key(const Value& k, bool from_input) {
    switch (k.kind()) {
      case Kind::string:
        return string(k.text(), from_input);
      case Kind::none:
      case Kind::boolean:
      case Kind::integer:
      case Kind::real: {
        std::string text = k.is(Kind::none)      ? "null"
                           : k.is(Kind::boolean) ? (k.as_bool() ? "true" : "false")
                           : k.is(Kind::integer) ? fmt::format("{}", k.as_int())
                                                 : number(k.as_real());
        return string(Text(text), from_input);
      }
      default:
        return fail(Code::invalid, "keys must be str, int, float, bool or None, not {}", type_name(k));
    }
  }

  Status object(const DictObject& dict, uint32_t depth, bool from_input) {
    if (dict.entries.empty()) {
      out_.append("{}", from_input);
      return {};
    }
    std::vector<const std::pair<Value, Value>*> entries;
    for (const auto& e : dict.entries) entries.push_back(&e);
    if (style_.sort_keys) {
      Status failed;
      std::stable_sort(entries.begin(), entries.end(), [&](const auto* a, const auto* b) {
        if (!failed) return false;
        auto r = less(a->first, b->first, meter_);
        if (!r) failed = r.error();
        return r && *r;
      });
      ARGENT_TRY(failed);
    }
    out_.append("{", from_input);
    for (size_t i = 0; i < entries.size(); ++i) {
      if (i) separator(style_.item_separator, from_input);
      new_line(depth + 1, from_input);
      ARGENT_TRY(key(entries[i]->first, from_input));
      separator(style_.key_separator, from_input);
      ARGENT_TRY(write(entries[i]->second, from_input, depth + 1));
    }
    new_line(depth, from_input);
    out_.append("}", from_input);
    return {};
  }

  Status string(const Text& text, bool from_input) {
    ARGENT_TRY(meter_.step_bytes(text.size()));
    ARGENT_TRY(meter_.room(out_.footprint() + text.size()));
    const std::string& s = text.bytes();
    out_.append("\"", from_input);
    for (size_t i = 0; i < s.size();) {
      Char c = char_at(s, i);
      std::string escape;
      switch (c.code) {
        case '"':
          escape = "\\\"";
          break;
        case '\\':
          escape = "\\\\";
          break;
        case '\n':
          escape = "\\n";
          break;
        case '\r':
          escape = "\\r";
          break;
        case '\t':
          escape = "\\t";
          break;
        case '\f':
          escape = "\\f";
          break;
        case '\b':
          escape = "\\b";
          break;
        default:
          if (c.code < 0x20 || (style_.ascii && c.code > 0x7E)) {
            if (c.code < 0x10000) {
              escape = fmt::format("\\u{:04x}", c.code);
            } else {
              uint32_t v = c.code - 0x10000;
              escape = fmt::format("\\u{:04x}\\u{:04x}", 0xD800 | v >> 10, 0xDC00 | (v & 0x3FF));
            }
          }
      }
      if (!escape.empty()) {
        out_.append_like(escape, text, i);
      } else {
        out_.append(text, i, i + c.length);
      }
      i += c.length;
    }
    out_.append("\"", from_input);
    return {};
  }

  Meter& meter_;
  const Style& style_;
  Text out_;
};

}  // namespace

Result<Value> tojson(Interp& interp, const Value& value, Args& args) {
  ARGENT_LET(Bound b, bind("tojson", args, {"ensure_ascii", "indent", "separators", "sort_keys"}, 0));
  Style style;
  style.ascii = b.flag(0);
  style.sort_keys = b.flag(3);
  if (b[1] && !b[1]->is(Kind::none)) {
    if (b[1]->is(Kind::string)) {
      style.indent = b[1]->text().bytes();
    } else {
      ARGENT_LET(int64_t width, integer_argument(*b[1], "the indent of tojson"));
      if (width > 1000) return fail(Code::invalid, "the indent of tojson is more than 1000");
      style.indent = std::string(static_cast<size_t>(std::max<int64_t>(width, 0)), ' ');
    }
    style.item_separator = Text(",");
  }
  if (b[2] && !b[2]->is(Kind::none)) {
    ARGENT_LET(std::vector<Value> parts, interp.items(*b[2]));
    if (parts.size() != 2) return fail(Code::invalid, "the separators of tojson must be two strings");
    for (size_t i = 0; i < 2; ++i) {
      ARGENT_LET(const Text* text, string_argument(parts[i], "a separator of tojson"));
      (i == 0 ? style.item_separator : style.key_separator) = *text;
    }
  }
  Writer writer(interp.meter(), style);
  ARGENT_TRY(writer.write(value, false, 0));
  return interp.string(writer.take());
}

}  // namespace argent::jinja
