// Filters over strings and numbers.
#include <algorithm>
#include <cmath>

#include "chat/interp.h"
#include "chat/unicode.h"

namespace argent::jinja {

Text html_escaped(const Text& text) {
  Text out;
  const std::string& s = text.bytes();
  size_t copied = 0;
  auto escape = [&](size_t i, std::string_view entity) {
    out.append(text, copied, i);
    out.append_like(entity, text, i);
    copied = i + 1;
  };
  for (size_t i = 0; i < s.size(); ++i) {
    switch (s[i]) {
      case '&':
        escape(i, "&amp;");
        break;
      case '<':
        escape(i, "&lt;");
        break;
      case '>':
        escape(i, "&gt;");
        break;
      case '\'':
        escape(i, "&#39;");
        break;
      case '"':
        escape(i, "&#34;");
        break;
      default:
        break;
    }
  }
  out.append(text, copied, s.size());
  return out;
}

namespace {

// What most text filters start from: a string as it is, anything else as str() writes it.
Result<Value> as_string(Interp& interp, const Value& v) {
  if (v.is(Kind::string)) return v;
  ARGENT_LET(Text t, interp.text(v));
  return interp.string(std::move(t));
}

Result<Value> cased(Interp& interp, const Value& v, Args& args, std::string_view how) {
  ARGENT_TRY(expect_positional(how, args, 0, 0));
  ARGENT_LET(Value s, as_string(interp, v));
  return case_mapped(interp, s, how);
}
Result<Value> do_capitalize(Interp& i, const Value& v, Args& a) { return cased(i, v, a, "capitalize"); }
Result<Value> do_lower(Interp& i, const Value& v, Args& a) { return cased(i, v, a, "lower"); }
Result<Value> do_upper(Interp& i, const Value& v, Args& a) { return cased(i, v, a, "upper"); }

Result<Value> call_method(Interp& interp, const Value& v, std::string_view name, Args& args) {
  ARGENT_LET(Value s, as_string(interp, v));
  return find_method(s, name)->call(interp, s, args);
}

Result<Value> do_title(Interp& interp, const Value& v, Args& args) {
  ARGENT_TRY(expect_positional("title", args, 0, 0));
  ARGENT_LET(Value s, as_string(interp, v));
  const std::string& bytes = s.text().bytes();
  // Words begin after whitespace and these; each gets one capital.
  auto separates = [](uint32_t c) { return is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<'; };
  Text out;
  for (size_t i = 0; i < bytes.size();) {
    Char c = char_at(bytes, i);
    if (separates(c.code)) {
      out.append(s.text(), i, i + c.length);
      i += c.length;
      continue;
    }
    size_t end = i + c.length;
    while (end < bytes.size() && !separates(char_at(bytes, end).code)) end += char_at(bytes, end).length;
    ARGENT_LET(Value first, interp.string(s.text().slice(i, i + c.length)));
    ARGENT_LET(first, case_mapped(interp, first, "upper"));
    ARGENT_LET(Value rest, interp.string(s.text().slice(i + c.length, end)));
    ARGENT_LET(rest, case_mapped(interp, rest, "lower"));
    out.append(first.text());
    out.append(rest.text());
    i = end;
  }
  return interp.string(std::move(out));
}

Result<Value> do_center(Interp& interp, const Value& v, Args& args) {
  ARGENT_LET(Bound b, bind("center", args, {"width"}, 0));
  Args given;
  given.positional.push_back(b[0] ? *b[0] : Value::integer(80));
  return call_method(interp, v, "center", given);
}

Result<Value> do_trim(Interp& interp, const Value& v, Args& args) {
  ARGENT_LET(Bound b, bind("trim", args, {"chars"}, 0));
  Args given;
  given.positional.push_back(b[0] ? *b[0] : Value::none());
  return call_method(interp, v, "strip", given);
}

Result<Value> do_replace(Interp& interp, const Value& v, Args& args) {
  ARGENT_LET(Bound b, bind("replace", args, {"old", "new", "count"}, 2));
  int64_t count = -1;
  if (b[2] && !b[2]->is(Kind::none)) {
    ARGENT_LET(count, integer_argument(*b[2], "the count of replace"));
  }
  ARGENT_LET(Text s, interp.text(v));
  ARGENT_LET(Text from, interp.text(*b[0]));
  ARGENT_LET(Text to, interp.text(*b[1]));
  ARGENT_LET(Value plain, interp.string(std::move(s)));
  return replaced(interp, plain, from, to, count);
}

Result<Value> do_escape(Interp& interp, const Value& v, Args& args) {
  ARGENT_TRY(expect_positional("escape", args, 0, 0));
  if (v.markup()) return v;
  ARGENT_LET(Text t, interp.text(v));
  ARGENT_TRY(interp.meter().room(t.size() * 6));
  return interp.string(html_escaped(t), true);
}

Result<Value> do_forceescape(Interp& interp, const Value& v, Args& args) {
  ARGENT_TRY(expect_positional("forceescape", args, 0, 0));
  ARGENT_LET(Text t, interp.text(v));
  ARGENT_TRY(interp.meter().room(t.size() * 6));
  return interp.string(html_escaped(t), true);
}

Result<Value> do_safe(Interp& interp, const Value& v, Args& args) {
  ARGENT_TRY(expect_positional("safe", args, 0, 0));
  ARGENT_LET(Text t, interp.text(v));
  return interp.string(std::move(t), true);
}

Result<Value> do_string(Interp& interp, const Value& v, Args& args) {
  ARGENT_TRY(expect_positional("string", args, 0, 0));
  return as_string(interp, v);
}

Result<Value> do_format(Interp& interp, const Value& v, Args& args) {
  ARGENT_LET(Value s, as_string(interp, v));
  return printf_format(interp, s, args);
}

Result<Value> do_indent(Interp& interp, const Value& v, Args& args) {
  ARGENT_LET(Bound b, bind("indent", args, {"width", "first", "blank"}, 0));
  Text indention("    ");
  if (b[0] && b[0]->is(Kind::string)) {
    indention = b[0]->text();
  } else if (b[0]) {
    ARGENT_LET(int64_t width, integer_argument(*b[0], "the width of indent"));
    width = std::clamp<int64_t>(width, 0, INT32_MAX);
    ARGENT_TRY(interp.meter().room(static_cast<size_t>(width)));
    indention = Text(std::string(static_cast<size_t>(width), ' '));
  }
  ARGENT_LET(Value with_newline, interp.binary(BinaryOp::add, v, constant_string("\n")));
  ARGENT_LET(Value lines_value, split_lines(interp, with_newline, false));
  const std::vector<Value>& lines = lines_value.items();
  Text out;
  for (size_t i = 0; i < lines.size(); ++i) {
    ARGENT_TRY(interp.meter().room(out.footprint() + indention.footprint()));
    ARGENT_TRY(interp.meter().step_bytes(indention.size()));
    if (i) out.append("\n");
    bool skipped = i == 0 ? !b.flag(1) : !b.flag(2) && lines[i].text().empty();
    if (!skipped) out.append(indention);
    out.append(lines[i].text());
  }
  return interp.string(std::move(out), with_newline.markup());
}

Result<Value> do_truncate(Interp& interp, const Value& v, Args& args) {
  ARGENT_LET(Bound b, bind("truncate", args, {"length", "killwords", "end", "leeway"}, 0));
  int64_t wanted = 255, leeway = 5;
  if (b[0]) {
    ARGENT_LET(wanted, integer_argument(*b[0], "the length of truncate"));
  }
  if (b[3] && !b[3]->is(Kind::none)) {
    ARGENT_LET(leeway, integer_argument(*b[3], "the leeway of truncate"));
  }
  Value end = b[2] ? *b[2] : constant_string("...");
  ARGENT_LET(int64_t end_length, interp.length(end));
  if (wanted < end_length || leeway < 0) return fail(Code::invalid, "truncate to less than the length of its end");
  ARGENT_LET(int64_t n, interp.length(v));
  if (n - wanted <= leeway) return v;
  ARGENT_LET(Value head, interp.slice(v, Value::none(), Value::integer(wanted - end_length), Value::none()));
  if (!b.flag(1)) {
    if (!head.is(Kind::string)) return fail(Code::invalid, "truncate wants a string, not {}", type_name(v));
    size_t space = head.text().bytes().rfind(' ');
    if (space != std::string::npos) {
      ARGENT_LET(head, interp.string(head.text().slice(0, space), head.markup()));
    }
  }
  return interp.binary(BinaryOp::add, head, end);
}

Status append_url_quoted(Interp& interp, Text& out, const Value& v, bool query) {
  ARGENT_LET(Text t, interp.text(v));
  ARGENT_TRY(interp.meter().room(out.footprint() + t.size() * 3));
  for (size_t i = 0; i < t.size(); ++i) {
    auto c = static_cast<uint8_t>(t.bytes()[i]);
    bool letter = (c | 0x20u) - 'a' < 26u || c - '0' < 10u;
    if (letter || c == '_' || c == '.' || c == '-' || c == '~' || (c == '/' && !query)) {
      out.append(t, i, i + 1);
    } else {
      out.append_like(c == ' ' && query ? "+" : fmt::format("%{:02X}", c), t, i);
    }
  }
  return {};
}

Result<Value> do_urlencode(Interp& interp, const Value& v, Args& args) {
  ARGENT_TRY(expect_positional("urlencode", args, 0, 0));
  Text out;
  if (v.is(Kind::string) || !interp.iterable(v)) {
    ARGENT_TRY(append_url_quoted(interp, out, v, false));
    return interp.string(std::move(out));
  }
  std::vector<Value> pairs;
  if (v.is(Kind::dict)) {
    for (const auto& [key, value] : v.dict().entries) {
      ARGENT_LET(Value pair, interp.tuple({key, value}));
      pairs.push_back(std::move(pair));
    }
  } else {
    ARGENT_LET(pairs, interp.items(v));
  }
  for (size_t i = 0; i < pairs.size(); ++i) {
    ARGENT_LET(std::vector<Value> parts, interp.items(pairs[i]));
    if (parts.size() != 2) return fail(Code::invalid, "urlencode wants pairs, got {} values", parts.size());
    if (i) out.append("&");
    ARGENT_TRY(append_url_quoted(interp, out, parts[0], true));
    out.append("=");
    ARGENT_TRY(append_url_quoted(interp, out, parts[1], true));
  }
  return interp.string(std::move(out));
}

Result<Value> do_wordcount(Interp& interp, const Value& v, Args& args) {
  ARGENT_TRY(expect_positional("wordcount", args, 0, 0));
  ARGENT_LET(Text t, interp.text(v));
  int64_t words = 0;
  bool inside = false;
  for (size_t i = 0; i < t.size();) {
    Char c = char_at(t.bytes(), i);
    bool word = c.code == '_' || (char_flags(c.code) & (kAlpha | kDecimal | kDigit | kNumeric));
    words += word && !inside;
    inside = word;
    i += c.length;
  }
  return Value::integer(words);
}

// --- numbers

Result<Value> do_abs(Interp&, const Value& v, Args& args) {
  ARGENT_TRY(expect_positional("abs", args, 0, 0));
  if (!v.is_number()) return fail(Code::invalid, "bad operand type for abs: {}", type_name(v));
  if (v.is(Kind::real)) return Value::real(std::fabs(v.as_real()));
  return v.as_int() < 0 ? negated(v) : Value::integer(v.as_int());
}

Result<Value> do_int(Interp&, const Value& v, Args& args) {
  ARGENT_LET(Bound b, bind("int", args, {"default", "base"}, 0));
  Value fallback = b[0] ? *b[0] : Value::integer(0);
  int64_t base = 10;
  if (b[1] && v.is(Kind::string)) {
    if (!b[1]->is_integral()) return fallback;  // int() has a TypeError, float() then the last word
    base = b[1]->as_int();
  }
  if (v.is(Kind::undefined)) return fail(Code::invalid, "{}", v.as<UndefinedObject>().why);
  double d = 0;
  if (v.is(Kind::string)) {
    ARGENT_LET(auto n, parse_int(v.text().bytes(), base));
    if (n) return Value::integer(*n);
    auto real = parse_real(v.text().bytes());
    if (!real || !std::isfinite(*real)) return fallback;
    d = *real;
  } else if (v.is_integral()) {
    return Value::integer(v.as_int());
  } else if (v.is(Kind::real)) {
    d = v.as_real();
    if (std::isnan(d)) return fallback;
    if (std::isinf(d)) return fail(Code::invalid, "cannot convert float infinity to integer");
  } else {
    return fallback;
  }
  ARGENT_LET(int64_t n, truncated(d));
  return Value::integer(n);
}

Result<Value> do_float(Interp&, const Value& v, Args& args) {
  ARGENT_LET(Bound b, bind("float", args, {"default"}, 0));
  if (v.is(Kind::undefined)) return fail(Code::invalid, "{}", v.as<UndefinedObject>().why);
  if (v.is_number()) return Value::real(v.as_real());
  if (v.is(Kind::string)) {
    if (auto d = parse_real(v.text().bytes())) return Value::real(*d);
  }
  return b[0] ? *b[0] : Value::real(0);
}

Result<Value> do_round(Interp& interp, const Value& v, Args& args) {
  ARGENT_LET(Bound b, bind("round", args, {"precision", "method"}, 0));
  std::string method = "common";
  if (b[1]) {
    ARGENT_LET(const Text* name, string_argument(*b[1], "the method of round"));
    method = name->bytes();
    if (method != "common" && method != "ceil" && method != "floor") {
      return fail(Code::invalid, "method must be common, ceil or floor");
    }
  }
  if (!v.is_number()) return fail(Code::invalid, "round wants a number, not {}", type_name(v));
  if (method == "common") {
    if (b[0] && b[0]->is(Kind::none)) {
      if (v.is_integral()) return Value::integer(v.as_int());
      ARGENT_LET(int64_t n, truncated(rounded(v.as_real(), 0)));
      return Value::integer(n);
    }
    int64_t digits = 0;
    if (b[0]) {
      ARGENT_LET(digits, integer_argument(*b[0], "the precision of round"));
    }
    if (v.is(Kind::real)) return Value::real(rounded(v.as_real(), digits));
    if (digits >= 0) return Value::integer(v.as_int());
    if (digits < -18) return Value::integer(0);
    int64_t scale = 1;
    for (int64_t i = digits; i < 0; ++i) scale *= 10;
    int64_t rest = v.as_int() % scale, whole = v.as_int() - rest;
    int64_t twice = std::abs(rest) >= scale - std::abs(rest) ? (std::abs(rest) == scale - std::abs(rest) ? 0 : 1) : -1;
    bool away = twice > 0 || (twice == 0 && (whole / scale) % 2 != 0);
    return interp.binary(BinaryOp::add, Value::integer(whole), Value::integer(away ? (rest < 0 ? -scale : scale) : 0));
  }
  ARGENT_LET(Value scale, interp.binary(BinaryOp::pow, Value::integer(10), b[0] ? *b[0] : Value::integer(0)));
  ARGENT_LET(Value scaled, interp.binary(BinaryOp::mul, v, scale));
  if (scaled.is(Kind::real)) {
    double d = method == "ceil" ? std::ceil(scaled.as_real()) : std::floor(scaled.as_real());
    if (!std::isfinite(d)) return fail(Code::invalid, "cannot convert float infinity or NaN to integer");
    scaled = Value::real(d);
    if (std::fabs(d) < 9e18) scaled = Value::integer(static_cast<int64_t>(d));
  }
  return interp.binary(BinaryOp::div, scaled, scale);
}

}  // namespace

const std::vector<Named<Filter>> kTextFilters = {
    {"capitalize", do_capitalize},
    {"center", do_center},
    {"e", do_escape},
    {"escape", do_escape},
    {"forceescape", do_forceescape},
    {"format", do_format},
    {"indent", do_indent},
    {"lower", do_lower},
    {"replace", do_replace},
    {"safe", do_safe},
    {"string", do_string},
    {"title", do_title},
    {"trim", do_trim},
    {"truncate", do_truncate},
    {"upper", do_upper},
    {"urlencode", do_urlencode},
    {"wordcount", do_wordcount},
};

const std::vector<Named<Filter>> kNumberFilters = {
    {"abs", do_abs},
    {"float", do_float},
    {"int", do_int},
    {"round", do_round},
};

}  // namespace argent::jinja
