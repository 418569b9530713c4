// "..." % values and "...".format(values), as Python writes them.
#include <algorithm>
#include <cmath>

#include "chat/interp.h"
#include "chat/unicode.h"

namespace argent::jinja {
namespace {

constexpr int64_t kMaxPrecision = 400;  // digits of a number; no double needs more to be told apart

// What %... and {:...} have in common.
struct Spec {
  std::string fill = " ";
  char align = 0;  // < > ^ =
  char sign = 0;   // + or space
  bool alternate = false;
  bool zero = false;
  char group = 0;  // , or _
  int64_t width = 0;
  int64_t precision = -1;
  char type = 0;
};

// Digits from i on, as a number; errors when it is absurd.
Result<int64_t> read_number(const std::string& s, size_t& i, int64_t none) {
  if (i >= s.size() || s[i] < '0' || s[i] > '9') return none;
  int64_t n = 0;
  for (; i < s.size() && s[i] >= '0' && s[i] <= '9'; ++i) {
    n = n * 10 + (s[i] - '0');
    if (n > INT32_MAX) return fail(Code::invalid, "too many decimal digits in a format string");
  }
  return n;
}

std::string grouped(const std::string& digits, char separator, size_t size) {
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i && (digits.size() - i) % size == 0) out += separator;
    out += digits[i];
  }
  return out;
}

// body padded to spec.width; `prefix` (sign, 0x) stays in front of zeros.
Result<Text> padded(Interp& interp, const Spec& spec, const std::string& prefix, const Text& body, char natural) {
  size_t have = char_count(prefix) + char_count(body.bytes());
  Text out;
  char align = spec.align ? spec.align : natural;
  size_t pad = static_cast<size_t>(spec.width) > have ? static_cast<size_t>(spec.width) - have : 0;
  ARGENT_TRY(interp.meter().room(pad * spec.fill.size()));
  ARGENT_TRY(interp.meter().step_bytes(pad));
  auto fill = [&](size_t n) {
    for (size_t i = 0; i < n; ++i) out.append(spec.fill);
  };
  size_t before = align == '>' ? pad : align == '^' ? pad / 2 : 0;
  fill(before);
  out.append(prefix);
  if (align == '=') fill(pad);
  out.append(body);
  if (align == '<' || align == '^') fill(pad - before);
  return out;
}

std::string in_base(uint64_t n, char type) {
  switch (type) {
    case 'b':
      return fmt::format("{:b}", n);
    case 'o':
      return fmt::format("{:o}", n);
    case 'x':
      return fmt::format("{:x}", n);
    case 'X':
      return fmt::format("{:X}", n);
    default:
      return fmt::format("{}", n);
  }
}

std::string sign_of(bool negative, char sign) { return negative ? "-" : sign ? std::string(1, sign) : ""; }

Result<Text> formatted_int(Interp& interp, const Spec& spec, int64_t value, bool percent_style) {
  uint64_t magnitude = value < 0 ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
  std::string digits = in_base(magnitude, spec.type);
  if (spec.precision > kMaxPrecision) return fail(Code::invalid, "the precision of a format is too large");
  if (static_cast<int64_t>(digits.size()) < spec.precision)
    digits.insert(0, static_cast<size_t>(spec.precision) - digits.size(), '0');
  std::string prefix = sign_of(value < 0, spec.sign);
  if (spec.alternate && (spec.type == 'x' || spec.type == 'X' || spec.type == 'o' || spec.type == 'b')) {
    prefix += std::string("0") + spec.type;
  }
  if (spec.group)
    digits = grouped(digits, spec.group,
                     spec.type == 'x' || spec.type == 'X' || spec.type == 'o' || spec.type == 'b' ? 4 : 3);
  (void)percent_style;
  return padded(interp, spec, prefix, Text(digits), '>');
}

Result<Text> formatted_real(Interp& interp, const Spec& spec, double value) {
  if (spec.precision > kMaxPrecision) return fail(Code::invalid, "the precision of a format is too large");
  bool negative = std::signbit(value) && !std::isnan(value);
  double d = std::fabs(value);
  int precision = static_cast<int>(spec.precision < 0 ? 6 : spec.precision);
  bool upper = spec.type == 'E' || spec.type == 'F' || spec.type == 'G';
  char type = static_cast<char>(spec.type | 0x20);
  std::string body;
  if (!std::isfinite(d)) {
    body = std::isnan(d) ? "nan" : "inf";
  } else if (spec.type == 0 && spec.precision < 0) {
    body = real_repr(d);
  } else if (spec.type == '%') {
    body = fmt::format("{:.{}f}", d * 100, precision);
  } else if (type == 'e') {
    body = spec.alternate ? fmt::format("{:#.{}e}", d, precision) : fmt::format("{:.{}e}", d, precision);
  } else if (type == 'f') {
    body = spec.alternate ? fmt::format("{:#.{}f}", d, precision) : fmt::format("{:.{}f}", d, precision);
  } else {
    if (precision == 0) precision = 1;
    body = spec.alternate ? fmt::format("{:#.{}g}", d, precision) : fmt::format("{:.{}g}", d, precision);
    if (spec.type == 0 && body.find_first_of(".e") == std::string::npos) body += ".0";
  }
  if (upper) {
    for (char& c : body) c = static_cast<char>(c >= 'a' && c <= 'z' ? c - 32 : c);
  }
  if (spec.group) {
    size_t whole = body.find_first_not_of("0123456789");
    whole = std::min(whole, body.size());
    body = grouped(body.substr(0, whole), spec.group, 3) + body.substr(whole);
  }
  if (spec.type == '%') body += "%";
  return padded(interp, spec, sign_of(negative, spec.sign), Text(body), '>');
}

// The first `count` characters.
Text shortened(const Text& text, int64_t count) {
  if (count < 0) return text;
  size_t end = 0;
  for (int64_t i = 0; i < count && end < text.size(); ++i) end += char_at(text.bytes(), end).length;
  return text.slice(0, end);
}

// repr with everything beyond ASCII escaped.
Text ascii_only(const Text& repr) {
  Text out;
  for (size_t i = 0; i < repr.size();) {
    Char c = char_at(repr.bytes(), i);
    if (c.code < 0x80) {
      out.append(repr, i, i + 1);
    } else {
      out.append_like(c.code < 0x100     ? fmt::format("\\x{:02x}", c.code)
                      : c.code < 0x10000 ? fmt::format("\\u{:04x}", c.code)
                                         : fmt::format("\\U{:08x}", c.code),
                      repr, i);
    }
    i += c.length;
  }
  return out;
}

Result<Text> converted(Interp& interp, const Value& v, char how) {
  if (how == 's') return interp.text(v);
  Text out;
  ARGENT_TRY(append_repr(out, v, interp.meter()));
  return how == 'a' ? ascii_only(out) : out;
}

Result<Text> one_character(Interp& interp, const Value& v) {
  if (v.is(Kind::string)) {
    ARGENT_LET(int64_t n, interp.length(v));
    if (n == 1) return v.text();
  } else if (v.is_integral() && v.as_int() >= 0 && v.as_int() <= 0x10FFFF &&
             (v.as_int() < 0xD800 || v.as_int() > 0xDFFF)) {
    std::string s;
    append_utf8(s, static_cast<uint32_t>(v.as_int()));
    return Text(s);
  }
  return fail(Code::invalid, "%c requires a character or the number of one");
}

// The values of one "..." % values.
class Percent {
 public:
  Percent(Interp& interp, const Value& format, const Value& values)
      : interp_(interp), format_(format), values_(values) {}

  Result<Value> run() {
    const Text& text = format_.text();
    const std::string& s = text.bytes();
    for (size_t i = 0; i < s.size();) {
      size_t percent = std::min(s.find('%', i), s.size());
      out_.append(text, i, percent);
      i = percent;
      if (i == s.size()) break;
      ++i;
      ARGENT_TRY(directive(s, i));
      ARGENT_TRY(interp_.meter().room(out_.footprint()));
    }
    bool mapping =
        values_.is(Kind::dict) || values_.is(Kind::list) || values_.is(Kind::undefined) || values_.is(Kind::range);
    bool left = values_.is(Kind::tuple) ? used_ < values_.items().size() : used_ == 0;
    if (left && !mapping) return fail(Code::invalid, "not all arguments converted during string formatting");
    return interp_.string(std::move(out_), format_.markup());
  }

 private:
  Result<Value> next() {
    if (values_.is(Kind::tuple)) {
      if (used_ >= values_.items().size()) return fail(Code::invalid, "not enough arguments for format string");
      return values_.items()[used_++];
    }
    if (used_++) return fail(Code::invalid, "not enough arguments for format string");
    return values_;
  }

  Result<int64_t> number_or_star(const std::string& s, size_t& i, int64_t none) {
    if (i >= s.size() || s[i] != '*') return read_number(s, i, none);
    ++i;
    ARGENT_LET(Value v, next());
    if (!v.is(Kind::integer) && !v.is(Kind::boolean)) return fail(Code::invalid, "* wants int");
    return v.as_int();
  }

  Status directive(const std::string& s, size_t& i) {
    Spec spec;
    std::optional<Value> keyed;
    if (i < s.size() && s[i] == '(') {
      size_t begin = ++i;
      for (int open = 1; i < s.size(); ++i) {
        if (s[i] == '(') ++open;
        if (s[i] == ')' && --open == 0) break;
      }
      if (i >= s.size()) return fail(Code::invalid, "incomplete format key");
      if (!values_.is(Kind::dict)) return fail(Code::invalid, "format requires a mapping");
      const Value* v = values_.dict().find(std::string_view(s).substr(begin, i - begin));
      if (!v)
        return fail(Code::invalid, "the mapping has no key '{}'", s.substr(begin, std::min<size_t>(i - begin, 100)));
      keyed = *v;
      ++i;
    }
    bool left = false;
    for (; i < s.size(); ++i) {
      if (s[i] == '-')
        left = true;
      else if (s[i] == '+')
        spec.sign = '+';
      else if (s[i] == ' ')
        spec.sign = spec.sign ? spec.sign : ' ';
      else if (s[i] == '#')
        spec.alternate = true;
      else if (s[i] == '0')
        spec.zero = true;
      else
        break;
    }
    ARGENT_LET(int64_t width, number_or_star(s, i, 0));
    if (width < 0) {
      left = true;
      width = -std::max<int64_t>(width, -INT32_MAX);
    }
    spec.width = width;
    if (i < s.size() && s[i] == '.') {
      ++i;
      ARGENT_LET(spec.precision, number_or_star(s, i, 0));
      spec.precision = std::max<int64_t>(spec.precision, 0);
    }
    if (i < s.size() && (s[i] == 'h' || s[i] == 'l' || s[i] == 'L')) ++i;
    if (i >= s.size()) return fail(Code::invalid, "incomplete format");
    spec.type = s[i++];
    if (spec.type == '%') {
      out_.append("%");
      return {};
    }
    Value v;
    if (keyed) {
      v = *keyed;
      used_ = std::max<size_t>(used_, 1);
    } else {
      ARGENT_LET(v, next());
    }
    spec.align = left ? '<' : '>';
    switch (spec.type) {
      case 's':
      case 'r':
      case 'a': {
        ARGENT_LET(Text t, converted(interp_, v, spec.type));
        if (format_.markup() && !v.markup()) t = html_escaped(t);
        return add(padded(interp_, spec, "", shortened(t, spec.precision), '>'));
      }
      case 'c': {
        ARGENT_LET(Text t, one_character(interp_, v));
        return add(padded(interp_, spec, "", t, '>'));
      }
      case 'd':
      case 'i':
      case 'u':
      case 'x':
      case 'X':
      case 'o': {
        bool decimal = spec.type != 'x' && spec.type != 'X' && spec.type != 'o';
        int64_t n = v.is_integral() ? v.as_int() : 0;
        if (v.is(Kind::real) && decimal) {
          ARGENT_LET(n, truncated(v.as_real()));
        } else if (!v.is_integral()) {
          return fail(Code::invalid, "%{} format: a number is required, not {}", spec.type, type_name(v));
        }
        if (decimal) spec.type = 'd';
        if (spec.zero && !left) spec.fill = "0", spec.align = '=';
        return add(formatted_int(interp_, spec, n, true));
      }
      case 'e':
      case 'E':
      case 'f':
      case 'F':
      case 'g':
      case 'G':
        if (!v.is_number()) return fail(Code::invalid, "must be real number, not {}", type_name(v));
        if (spec.zero && !left) spec.fill = "0", spec.align = '=';
        return add(formatted_real(interp_, spec, v.as_real()));
      default:
        return fail(Code::invalid, "unsupported format character");
    }
  }

  Status add(Result<Text> t) {
    if (!t) return t.error();
    out_.append(*t);
    return {};
  }

  Interp& interp_;
  const Value& format_;
  const Value& values_;
  size_t used_ = 0;
  Text out_;
};

Result<Spec> parse_spec(const std::string& s) {
  Spec spec;
  size_t i = 0;
  auto aligns = [](char c) { return c == '<' || c == '>' || c == '^' || c == '='; };
  if (!s.empty()) {
    size_t first = char_at(s, 0).length;
    if (first < s.size() && aligns(s[first])) {
      spec.fill = s.substr(0, first);
      spec.align = s[first];
      i = first + 1;
    } else if (aligns(s[0])) {
      spec.align = s[0];
      i = 1;
    }
  }
  if (i < s.size() && (s[i] == '+' || s[i] == '-' || s[i] == ' ')) spec.sign = s[i++];
  if (i < s.size() && s[i] == '#') spec.alternate = true, ++i;
  if (i < s.size() && s[i] == '0') {
    spec.zero = true;
    if (!spec.align) spec.fill = "0";
    ++i;
  }
  ARGENT_LET(spec.width, read_number(s, i, 0));
  if (i < s.size() && (s[i] == ',' || s[i] == '_')) spec.group = s[i++];
  if (i < s.size() && s[i] == '.') {
    ++i;
    ARGENT_LET(spec.precision, read_number(s, i, -1));
    if (spec.precision < 0) return fail(Code::invalid, "Format specifier missing precision");
  }
  if (i < s.size()) spec.type = s[i++];
  if (i < s.size()) return fail(Code::invalid, "Invalid format specifier");
  return spec;
}

// format(v, spec)
Result<Text> format_value(Interp& interp, const Value& v, const std::string& text) {
  if (text.empty()) return interp.text(v);
  if (!v.is(Kind::string) && !v.is_number()) {
    return fail(Code::invalid, "unsupported format string passed to {}.__format__", type_name(v));
  }
  ARGENT_LET(Spec spec, parse_spec(text));
  if (v.is(Kind::string)) {
    if (spec.type && spec.type != 's') return fail(Code::invalid, "Unknown format code '{}' for a string", spec.type);
    if (spec.sign || spec.alternate || spec.group || spec.align == '=') {
      return fail(Code::invalid, "format specifier not allowed for a string");
    }
    return padded(interp, spec, "", shortened(v.text(), spec.precision), '<');
  }
  if (spec.group && spec.zero && spec.width) {
    return fail(Code::unsupported, "grouped digits with zero padding are not supported");
  }
  if (spec.sign == '-') spec.sign = 0;
  if (spec.zero && !spec.align) spec.align = '=';
  constexpr std::string_view kIntTypes = "bcdnoxX", kRealTypes = "eEfFgGn%";
  if (v.is_integral() && (spec.type == 0 || kIntTypes.find(spec.type) != std::string_view::npos)) {
    if (spec.precision >= 0) return fail(Code::invalid, "Precision not allowed in integer format specifier");
    if (spec.group == ',' && spec.type != 0 && spec.type != 'd') return fail(Code::invalid, "Cannot specify ',' here");
    if (spec.type == 'c') {
      if (spec.sign || spec.alternate) return fail(Code::invalid, "Sign not allowed with integer format specifier 'c'");
      ARGENT_LET(Text t, one_character(interp, v));
      return padded(interp, spec, "", t, '<');
    }
    return formatted_int(interp, spec, v.as_int(), false);
  }
  if (spec.type && kRealTypes.find(spec.type) == std::string_view::npos) {
    return fail(Code::invalid, "Unknown format code '{}' for a number", spec.type);
  }
  if (spec.type == 'n') spec.type = 'g';
  return formatted_real(interp, spec, v.as_real());
}

class Braces {
 public:
  Braces(Interp& interp, Args& args, bool escape) : interp_(interp), args_(args), escape_(escape) {}

  Result<Text> run(const Text& text, int depth) {
    if (depth < 0) return fail(Code::invalid, "Max string recursion exceeded");
    const std::string& s = text.bytes();
    Text out;
    for (size_t i = 0; i < s.size();) {
      size_t brace = std::min(s.find_first_of("{}", i), s.size());
      out.append(text, i, brace);
      if (brace == s.size()) break;
      if (brace + 1 < s.size() && s[brace + 1] == s[brace]) {
        out.append(text, brace, brace + 1);
        i = brace + 2;
        continue;
      }
      if (s[brace] == '}') return fail(Code::invalid, "Single '}}' encountered in format string");
      size_t end = brace + 1;
      int open = 1;
      for (bool bracket = false; end < s.size(); ++end) {
        if (s[end] == '[') bracket = true;
        if (s[end] == ']') bracket = false;
        if (bracket) continue;
        if (s[end] == '{') ++open;
        if (s[end] == '}' && --open == 0) break;
      }
      if (open) return fail(Code::invalid, "expected '}}' before end of string");
      ARGENT_LET(Text t, field(text.slice(brace + 1, end), depth));
      ARGENT_TRY(interp_.meter().room(out.footprint() + t.footprint()));
      out.append(t);
      i = end + 1;
    }
    return out;
  }

 private:
  Result<Text> field(const Text& text, int depth) {
    const std::string& s = text.bytes();
    size_t name_end = 0;
    for (bool bracket = false; name_end < s.size(); ++name_end) {
      char c = s[name_end];
      if (c == '[') bracket = true;
      if (c == ']') bracket = false;
      if (c == '{') return fail(Code::invalid, "unexpected '{{' in field name");
      if (!bracket && (c == '!' || c == ':')) break;
    }
    char conversion = 0;
    size_t spec_begin = name_end;
    if (name_end < s.size() && s[name_end] == '!') {
      if (name_end + 1 >= s.size()) return fail(Code::invalid, "unmatched '{{' in format spec");
      conversion = s[name_end + 1];
      spec_begin = name_end + 2;
      if (spec_begin < s.size() && s[spec_begin] != ':') {
        return fail(Code::invalid, "expected ':' after conversion specifier");
      }
      if (conversion != 's' && conversion != 'r' && conversion != 'a') {
        return fail(Code::invalid, "Unknown conversion specifier");
      }
    }
    ARGENT_LET(Value v, look_up(s.substr(0, name_end)));
    if (conversion) {
      ARGENT_LET(Text t, converted(interp_, v, conversion));
      ARGENT_LET(v, interp_.string(std::move(t)));
    }
    Text spec;
    if (spec_begin < s.size()) {
      ARGENT_LET(spec, run(text.slice(spec_begin + 1, s.size()), depth - 1));
    }
    ARGENT_LET(Text t, format_value(interp_, v, spec.bytes()));
    return escape_ && !v.markup() ? html_escaped(t) : t;
  }

  Result<Value> look_up(const std::string& name) {
    size_t end = std::min(name.find_first_of(".["), name.size());
    std::string first = name.substr(0, end);
    if (name.empty()) {
      if (manual_)
        return fail(Code::invalid, "cannot switch from manual field specification to automatic field numbering");
      first = fmt::format("{}", automatic_++);
    } else if (name.find_first_not_of("0123456789") == std::string::npos) {
      if (automatic_)
        return fail(Code::invalid, "cannot switch from manual field specification to automatic field numbering");
      manual_ = true;
    }
    Value v;
    if (!first.empty() && first.find_first_not_of("0123456789") == std::string::npos) {
      size_t at = 0;
      ARGENT_LET(int64_t index, read_number(first, at, 0));
      if (static_cast<size_t>(index) >= args_.positional.size()) {
        return fail(Code::invalid, "Replacement index {} out of range for positional args tuple", index);
      }
      v = args_.positional[static_cast<size_t>(index)];
    } else {
      auto it = std::find_if(args_.named.begin(), args_.named.end(), [&](const auto& a) { return a.first == first; });
      if (it == args_.named.end()) return fail(Code::invalid, "format has no argument '{}'", first.substr(0, 100));
      v = it->second;
    }
    while (end < name.size()) {
      size_t begin = end + 1;
      if (name[end] == '.') {
        end = std::min(name.find_first_of(".[", begin), name.size());
        if (end == begin) return fail(Code::invalid, "Empty attribute in format string");
        ARGENT_LET(v, interp_.attribute(v, name.substr(begin, end - begin)));
        continue;
      }
      size_t close = name.find(']', begin);
      if (close == std::string::npos) return fail(Code::invalid, "Missing ']' in format string");
      if (close == begin) return fail(Code::invalid, "Empty attribute in format string");
      std::string key = name.substr(begin, close - begin);
      size_t at = 0;
      ARGENT_LET(int64_t index, read_number(key, at, -1));
      ARGENT_LET(Value k, at == key.size() ? Result<Value>(Value::integer(index)) : make_string(key, interp_.meter()));
      ARGENT_LET(v, interp_.item(v, k));
      end = close + 1;
      if (end < name.size() && name[end] != '.' && name[end] != '[') {
        return fail(Code::invalid, "Only '.' or '[' may follow ']' in format field specifier");
      }
    }
    return v;
  }

  Interp& interp_;
  Args& args_;
  bool escape_;
  int64_t automatic_ = 0;
  bool manual_ = false;
};

}  // namespace

Result<Value> printf_format(Interp& interp, const Value& format, const Value& values) {
  return Percent(interp, format, values).run();
}

Result<Value> printf_format(Interp& interp, const Value& format, Args& args) {
  if (!args.positional.empty() && !args.named.empty()) {
    return fail(Code::invalid, "can't handle positional and keyword arguments at the same time");
  }
  if (args.named.empty()) {
    ARGENT_LET(Value values, interp.tuple(args.positional));
    return printf_format(interp, format, values);
  }
  std::vector<std::pair<Value, Value>> entries;
  for (const auto& [name, v] : args.named) {
    ARGENT_LET(Value key, make_string(name, interp.meter()));
    entries.emplace_back(std::move(key), v);
  }
  ARGENT_LET(Value values, make_dict(std::move(entries), interp.meter()));
  return printf_format(interp, format, values);
}

Result<Value> str_format(Interp& interp, const Value& format, Args& args) {
  ARGENT_LET(Text out, Braces(interp, args, format.markup()).run(format.text(), 2));
  return interp.string(std::move(out), format.markup());
}

}  // namespace argent::jinja
