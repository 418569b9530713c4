// The methods of strings.
#include <algorithm>

#include "chat/interp.h"
#include "chat/unicode.h"

namespace argent::jinja {
namespace {

constexpr size_t npos = std::string::npos;

bool is_line_break(uint32_t c) {
  return (c >= 10 && c <= 13) || (c >= 28 && c <= 30) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

bool is_alnum(uint32_t c) { return char_flags(c) & (kAlpha | kDecimal | kDigit | kNumeric); }

Result<Value> piece(Interp& interp, const Value& s, size_t begin, size_t end) {
  return interp.string(s.text().slice(begin, end), s.markup());
}

// Whether a capital sigma at [pos, pos + 2) ends its word.
bool final_sigma(const std::string& s, size_t pos) {
  size_t i = pos;
  bool cased_before = false;
  while (i > 0) {
    i = char_before(s, i);
    uint16_t f = char_flags(char_at(s, i).code);
    if (f & kCaseIgnorable) continue;
    cased_before = f & kCased;
    break;
  }
  if (!cased_before) return false;
  for (i = pos + 2; i < s.size(); i += char_at(s, i).length) {
    uint16_t f = char_flags(char_at(s, i).code);
    if (f & kCaseIgnorable) continue;
    return !(f & kCased);
  }
  return true;
}

}  // namespace

Result<Value> case_mapped(Interp& interp, const Value& v, std::string_view how) {
  const std::string& s = v.text().bytes();
  ARGENT_TRY(interp.meter().room(s.size() * 3));
  ARGENT_TRY(interp.meter().step_bytes(s.size()));
  Text out;
  bool after_cased = false;
  for (size_t i = 0; i < s.size();) {
    Char c = char_at(s, i);
    CaseMap map = CaseMap::lower;
    if (how == "upper") map = CaseMap::upper;
    if (how == "fold") map = CaseMap::fold;
    if (how == "capitalize" && i == 0) map = CaseMap::title;
    if (how == "title" && !after_cased) map = CaseMap::title;
    if (how == "swap" && (char_flags(c.code) & kLower)) map = CaseMap::upper;
    bool changes = how != "swap" || (char_flags(c.code) & (kLower | kUpper));
    if (how == "title") after_cased = char_flags(c.code) & (kCased | kUpper | kLower | kTitle);
    uint32_t to[3];
    int n = 1;
    to[0] = c.code;
    if (map == CaseMap::lower && c.code == 0x3A3) {
      to[0] = final_sigma(s, i) ? 0x3C2 : 0x3C3;
    } else if (changes) {
      n = map_case(map, c.code, to);
    }
    if (n == 1 && to[0] == c.code) {
      out.append(v.text(), i, i + c.length);
    } else {
      std::string mapped;
      for (int k = 0; k < n; ++k) append_utf8(mapped, to[k]);
      out.append_like(mapped, v.text(), i);
    }
    i += c.length;
  }
  return interp.string(std::move(out), v.markup());
}

Result<Value> split_lines(Interp& interp, const Value& v, bool keep_ends) {
  const std::string& s = v.text().bytes();
  std::vector<Value> lines;
  size_t begin = 0;
  for (size_t i = 0; i < s.size();) {
    Char c = char_at(s, i);
    size_t end = i;
    i += c.length;
    if (!is_line_break(c.code)) continue;
    if (c.code == '\r' && i < s.size() && s[i] == '\n') ++i;
    ARGENT_LET(Value line, piece(interp, v, begin, keep_ends ? i : end));
    lines.push_back(std::move(line));
    begin = i;
  }
  if (begin < s.size()) {
    ARGENT_LET(Value line, piece(interp, v, begin, s.size()));
    lines.push_back(std::move(line));
  }
  return interp.list(std::move(lines));
}

Result<Value> replaced(Interp& interp, const Value& v, const Text& from, const Text& new_text, int64_t count) {
  Text escaped;
  if (v.markup()) escaped = html_escaped(new_text);
  const Text& to = v.markup() ? escaped : new_text;
  const Text& text = v.text();
  const std::string& s = text.bytes();
  Text out;
  size_t at = 0;
  while (count != 0) {
    // An empty string is found in front of every character and at the end.
    size_t found = from.empty() ? at : find_bytes(s, from.bytes(), at);
    if (found == npos || found > s.size()) break;
    out.append(text, at, found);
    out.append(to);
    --count;
    ARGENT_TRY(interp.meter().room(out.footprint()));
    ARGENT_TRY(interp.meter().step_bytes(to.size()));
    at = found + from.size();
    if (from.empty()) {
      if (at == s.size()) break;
      size_t next = at + char_at(s, at).length;
      out.append(text, at, next);
      at = next;
    }
  }
  out.append(text, at, s.size());
  return interp.string(std::move(out), v.markup());
}

namespace {

Result<Value> strip_with(Interp& interp, const Value& v, Args& args, bool left, bool right) {
  ARGENT_TRY(expect_positional("strip()", args, 0, 1));
  ByteRange kept;
  if (args.positional.empty() || args.positional[0].is(Kind::none)) {
    kept = stripped(v.text().bytes(), nullptr, left, right);
  } else {
    ARGENT_LET(const Text* chars, string_argument(args.positional[0], "the argument of strip()"));
    std::string_view set = chars->bytes();
    ARGENT_TRY(interp.meter().step_bytes(v.text().size() * std::min<size_t>(set.size(), 64)));
    if (set.size() > 4096) return fail(Code::unsupported, "strip() of more than 4096 bytes of characters");
    kept = stripped(v.text().bytes(), &set, left, right);
  }
  return piece(interp, v, kept.begin, kept.end);
}
Result<Value> strip(Interp& i, const Value& v, Args& a) { return strip_with(i, v, a, true, true); }
Result<Value> lstrip(Interp& i, const Value& v, Args& a) { return strip_with(i, v, a, true, false); }
Result<Value> rstrip(Interp& i, const Value& v, Args& a) { return strip_with(i, v, a, false, true); }

Result<std::vector<ByteRange>> split_spaces(Interp& interp, const std::string& s, int64_t limit, bool from_right) {
  std::vector<ByteRange> words;
  auto step = [&] { return interp.meter().step(); };
  if (!from_right) {
    size_t i = 0;
    auto skip = [&](bool spaces) {
      while (i < s.size() && is_space(char_at(s, i).code) == spaces) i += char_at(s, i).length;
    };
    for (skip(true); i < s.size(); skip(true)) {
      ARGENT_TRY(step());
      size_t begin = i;
      if (limit-- == 0) {
        words.push_back({begin, s.size()});  // with the whitespace at its end
        return words;
      }
      skip(false);
      words.push_back({begin, i});
    }
    return words;
  }
  size_t end = s.size();
  auto skip = [&](bool spaces) {
    while (end > 0) {
      size_t at = char_before(s, end);
      if (is_space(char_at(s, at).code) != spaces) break;
      end = at;
    }
  };
  for (skip(true); end > 0; skip(true)) {
    ARGENT_TRY(step());
    size_t word_end = end;
    if (limit-- == 0) {
      words.push_back({0, word_end});
      break;
    }
    skip(false);
    words.push_back({end, word_end});
  }
  std::reverse(words.begin(), words.end());
  return words;
}

Result<std::vector<ByteRange>> split_on(Interp& interp, const std::string& s, const std::string& by, int64_t limit,
                                        bool from_right) {
  std::vector<ByteRange> parts;
  if (by.empty()) return fail(Code::invalid, "empty separator");
  std::vector<size_t> found;  // from the left; a split from the right takes non-overlapping ones from the end
  if (!from_right) {
    size_t begin = 0;
    for (size_t at; limit-- != 0 && (at = find_bytes(s, by, begin)) != npos; begin = at + by.size()) {
      ARGENT_TRY(interp.meter().step());
      parts.push_back({begin, at});
    }
    parts.push_back({begin, s.size()});
    return parts;
  }
  std::string backwards(s.rbegin(), s.rend()), needle(by.rbegin(), by.rend());
  size_t begin = 0;
  for (size_t at; limit-- != 0 && (at = find_bytes(backwards, needle, begin)) != npos; begin = at + needle.size()) {
    ARGENT_TRY(interp.meter().step());
    parts.push_back({s.size() - at, s.size() - begin});
  }
  parts.push_back({0, s.size() - begin});
  std::reverse(parts.begin(), parts.end());
  return parts;
}

Result<Value> split_with(Interp& interp, const Value& v, Args& args, bool from_right) {
  ARGENT_LET(Bound b, bind("split()", args, {"sep", "maxsplit"}, 0));
  int64_t limit = -1;
  if (b[1]) {
    ARGENT_LET(limit, integer_argument(*b[1], "maxsplit"));
  }
  const std::string& s = v.text().bytes();
  ARGENT_TRY(interp.meter().step_bytes(s.size()));
  std::vector<ByteRange> parts;
  if (!b[0] || b[0]->is(Kind::none)) {
    ARGENT_LET(parts, split_spaces(interp, s, limit, from_right));
  } else {
    ARGENT_LET(const Text* by, string_argument(*b[0], "the separator of split()"));
    ARGENT_LET(parts, split_on(interp, s, by->bytes(), limit, from_right));
  }
  std::vector<Value> out;
  for (const ByteRange& part : parts) {
    ARGENT_LET(Value p, piece(interp, v, part.begin, part.end));
    out.push_back(std::move(p));
  }
  return interp.list(std::move(out));
}
Result<Value> split(Interp& i, const Value& v, Args& a) { return split_with(i, v, a, false); }
Result<Value> rsplit(Interp& i, const Value& v, Args& a) { return split_with(i, v, a, true); }

Result<Value> splitlines(Interp& interp, const Value& v, Args& args) {
  ARGENT_LET(Bound b, bind("splitlines()", args, {"keepends"}, 0));
  if (b[0]) ARGENT_TRY(integer_argument(*b[0], "keepends"));
  return split_lines(interp, v, b.flag(0));
}

// text[start:end] in bytes, as the optional arguments from `first` on say; nullopt: start lies behind the end.
struct Window {
  size_t begin = 0, end = 0;
  int64_t chars_before = 0;
};
Result<std::optional<Window>> window(Interp& interp, const Value& v, const Args& args, size_t first) {
  const std::string& s = v.text().bytes();
  ARGENT_LET(int64_t n, interp.length(v));
  int64_t bounds[2] = {0, n};
  for (size_t i = 0; i < 2; ++i) {
    if (args.positional.size() <= first + i || args.positional[first + i].is(Kind::none)) continue;
    ARGENT_LET(int64_t bound, integer_argument(args.positional[first + i], "an index"));
    if (bound < 0) bound = std::max<int64_t>(bound + n, 0);
    bounds[i] = i == 1 ? std::min(bound, n) : bound;
  }
  if (bounds[0] > bounds[1]) return std::optional<Window>();
  Window w;
  w.chars_before = bounds[0];
  size_t at = 0;
  for (int64_t i = 0; i < bounds[1]; ++i) {
    if (i == bounds[0]) w.begin = at;
    at += char_at(s, at).length;
  }
  if (bounds[0] == bounds[1]) w.begin = at;
  w.end = at;
  return std::optional<Window>(w);
}

Result<int64_t> find_in(Interp& interp, const Value& v, Args& args, bool last) {
  ARGENT_TRY(expect_positional("find()", args, 1, 3));
  ARGENT_LET(const Text* needle, string_argument(args.positional[0], "the argument of find()"));
  ARGENT_LET(auto w, window(interp, v, args, 1));
  if (!w) return int64_t(-1);
  std::string_view s = std::string_view(v.text().bytes()).substr(w->begin, w->end - w->begin);
  size_t at = last ? rfind_bytes(s, needle->bytes()) : find_bytes(s, needle->bytes());
  if (at == npos) return int64_t(-1);
  return w->chars_before + static_cast<int64_t>(char_count(s.substr(0, at)));
}
Result<Value> found(Result<int64_t> at, bool must_exist) {
  if (!at) return at.error();
  if (must_exist && *at < 0) return fail(Code::invalid, "substring not found");
  return Value::integer(*at);
}
Result<Value> find(Interp& i, const Value& v, Args& a) { return found(find_in(i, v, a, false), false); }
Result<Value> rfind(Interp& i, const Value& v, Args& a) { return found(find_in(i, v, a, true), false); }
Result<Value> index(Interp& i, const Value& v, Args& a) { return found(find_in(i, v, a, false), true); }
Result<Value> rindex(Interp& i, const Value& v, Args& a) { return found(find_in(i, v, a, true), true); }

Result<Value> count(Interp& interp, const Value& v, Args& args) {
  ARGENT_TRY(expect_positional("count()", args, 1, 3));
  ARGENT_LET(const Text* needle, string_argument(args.positional[0], "the argument of count()"));
  ARGENT_LET(auto w, window(interp, v, args, 1));
  if (!w) return Value::integer(0);
  std::string_view s = std::string_view(v.text().bytes()).substr(w->begin, w->end - w->begin);
  if (needle->empty()) return Value::integer(static_cast<int64_t>(char_count(s)) + 1);
  int64_t n = 0;
  for (size_t at = 0; (at = find_bytes(s, needle->bytes(), at)) != npos; at += needle->size()) {
    ARGENT_TRY(interp.meter().step());
    ++n;
  }
  return Value::integer(n);
}

Result<Value> affix(Interp& interp, const Value& v, Args& args, bool at_end) {
  ARGENT_TRY(expect_positional(at_end ? "endswith()" : "startswith()", args, 1, 3));
  std::vector<Value> options = {args.positional[0]};
  if (options[0].is(Kind::tuple)) options = std::vector<Value>(options[0].items());
  ARGENT_LET(auto w, window(interp, v, args, 1));
  for (const Value& option : options) {
    ARGENT_LET(const Text* t, string_argument(option, "a prefix or suffix"));
    if (!w) continue;
    std::string_view s = std::string_view(v.text().bytes()).substr(w->begin, w->end - w->begin);
    if (at_end ? s.ends_with(t->bytes()) : s.starts_with(t->bytes())) return Value::boolean(true);
  }
  return Value::boolean(false);
}
Result<Value> startswith(Interp& i, const Value& v, Args& a) { return affix(i, v, a, false); }
Result<Value> endswith(Interp& i, const Value& v, Args& a) { return affix(i, v, a, true); }

Result<Value> removeprefix(Interp& interp, const Value& v, Args& args) {
  ARGENT_TRY(expect_positional("removeprefix()", args, 1, 1));
  ARGENT_LET(const Text* t, string_argument(args.positional[0], "the prefix"));
  size_t n = v.text().bytes().starts_with(t->bytes()) ? t->size() : 0;
  return piece(interp, v, n, v.text().size());
}
Result<Value> removesuffix(Interp& interp, const Value& v, Args& args) {
  ARGENT_TRY(expect_positional("removesuffix()", args, 1, 1));
  ARGENT_LET(const Text* t, string_argument(args.positional[0], "the suffix"));
  size_t n = v.text().bytes().ends_with(t->bytes()) ? t->size() : 0;
  return piece(interp, v, 0, v.text().size() - n);
}

Result<Value> replace(Interp& interp, const Value& v, Args& args) {
  if (!v.markup() && !args.named.empty()) return fail(Code::invalid, "replace() takes no keyword arguments");
  ARGENT_LET(Bound b, bind("replace()", args, {"old", "new", "count"}, 2));
  ARGENT_LET(const Text* from, string_argument(*b[0], "the old text"));
  ARGENT_LET(const Text* to, string_argument(*b[1], "the new text"));
  int64_t times = -1;
  if (b[2]) {
    ARGENT_LET(times, integer_argument(*b[2], "the count"));
  }
  return replaced(interp, v, *from, *to, times);
}

Result<Value> partition_with(Interp& interp, const Value& v, Args& args, bool last) {
  ARGENT_TRY(expect_positional("partition()", args, 1, 1));
  ARGENT_LET(const Text* by, string_argument(args.positional[0], "the separator"));
  if (by->empty()) return fail(Code::invalid, "empty separator");
  const std::string& s = v.text().bytes();
  size_t at = last ? rfind_bytes(s, by->bytes()) : find_bytes(s, by->bytes());
  size_t cuts[2] = {at, at + by->size()};
  if (at == npos) cuts[0] = cuts[1] = last ? 0 : s.size();
  ARGENT_LET(Value head, piece(interp, v, 0, cuts[0]));
  ARGENT_LET(Value middle, piece(interp, v, cuts[0], cuts[1]));
  ARGENT_LET(Value tail, piece(interp, v, cuts[1], s.size()));
  return interp.tuple({head, middle, tail});
}
Result<Value> partition(Interp& i, const Value& v, Args& a) { return partition_with(i, v, a, false); }
Result<Value> rpartition(Interp& i, const Value& v, Args& a) { return partition_with(i, v, a, true); }

Result<Value> join(Interp& interp, const Value& v, Args& args) {
  ARGENT_TRY(expect_positional("join()", args, 1, 1));
  ARGENT_LET(std::vector<Value> items, interp.items(args.positional[0]));
  Text out;
  for (size_t i = 0; i < items.size(); ++i) {
    if (!items[i].is(Kind::string) && !v.markup()) {
      return fail(Code::invalid, "sequence item {}: expected str instance, {} found", i, type_name(items[i]));
    }
    ARGENT_LET(Text t, interp.text(items[i]));
    if (v.markup() && !items[i].markup()) t = html_escaped(t);
    ARGENT_TRY(interp.meter().room(out.footprint() + t.footprint() + v.text().footprint()));
    ARGENT_TRY(interp.meter().step_bytes(v.text().size()));
    if (i) out.append(v.text());
    out.append(t);
  }
  return interp.string(std::move(out), v.markup());
}

Result<Value> justified(Interp& interp, const Value& v, Args& args, char align) {
  ARGENT_TRY(expect_positional("justify", args, 1, 2));
  ARGENT_LET(int64_t width, integer_argument(args.positional[0], "the width"));
  Text fill(" ");
  if (args.positional.size() > 1) {
    ARGENT_LET(const Text* given, string_argument(args.positional[1], "the fill character"));
    if (char_count(given->bytes()) != 1)
      return fail(Code::invalid, "The fill character must be exactly one character long");
    fill = *given;
  }
  ARGENT_LET(int64_t n, interp.length(v));
  if (width <= n) return v;
  size_t pad = static_cast<size_t>(width - n);
  if (pad > interp.meter().limits().memory_bytes) pad = interp.meter().limits().memory_bytes;
  ARGENT_TRY(interp.meter().room(pad * fill.footprint()));
  ARGENT_TRY(interp.meter().step_bytes(pad * fill.size()));
  size_t left = align == '<' ? 0 : align == '>' ? pad : pad / 2 + (pad & static_cast<size_t>(width) & 1);
  Text out;
  for (size_t i = 0; i < left; ++i) out.append(fill);
  out.append(v.text());
  for (size_t i = left; i < pad; ++i) out.append(fill);
  return interp.string(std::move(out), v.markup());
}
Result<Value> ljust(Interp& i, const Value& v, Args& a) { return justified(i, v, a, '<'); }
Result<Value> rjust(Interp& i, const Value& v, Args& a) { return justified(i, v, a, '>'); }
Result<Value> center(Interp& i, const Value& v, Args& a) { return justified(i, v, a, '^'); }

Result<Value> zfill(Interp& interp, const Value& v, Args& args) {
  ARGENT_TRY(expect_positional("zfill()", args, 1, 1));
  Args padded;
  padded.positional = {args.positional[0], constant_string("0")};
  const std::string& s = v.text().bytes();
  if (s.empty() || (s[0] != '+' && s[0] != '-')) return rjust(interp, v, padded);
  ARGENT_LET(int64_t width, integer_argument(args.positional[0], "the width"));
  padded.positional[0] = Value::integer(width > INT64_MIN ? width - 1 : width);
  ARGENT_LET(Value digits, piece(interp, v, 1, s.size()));
  ARGENT_LET(digits, rjust(interp, digits, padded));
  Text out = v.text().slice(0, 1);
  out.append(digits.text());
  return interp.string(std::move(out), v.markup());
}

Result<Value> expandtabs(Interp& interp, const Value& v, Args& args) {
  ARGENT_LET(Bound b, bind("expandtabs()", args, {"tabsize"}, 0));
  int64_t size = 8;
  if (b[0]) {
    ARGENT_LET(size, integer_argument(*b[0], "tabsize"));
  }
  const std::string& s = v.text().bytes();
  Text out;
  int64_t column = 0;
  for (size_t i = 0; i < s.size();) {
    Char c = char_at(s, i);
    if (c.code == '\t') {
      int64_t spaces = size > 0 ? size - column % size : 0;
      ARGENT_TRY(interp.meter().room(out.footprint() + static_cast<size_t>(spaces)));
      ARGENT_TRY(interp.meter().step_bytes(static_cast<size_t>(spaces)));
      out.append_like(std::string(static_cast<size_t>(spaces), ' '), v.text(), i);
      column += spaces;
    } else {
      out.append(v.text(), i, i + c.length);
      column = c.code == '\n' || c.code == '\r' ? 0 : column + 1;
    }
    i += c.length;
  }
  return interp.string(std::move(out), v.markup());
}

template <class Holds>
Result<Value> every(const Value& v, Args& args, bool when_empty, Holds holds) {
  ARGENT_TRY(expect_positional("is...()", args, 0, 0));
  const std::string& s = v.text().bytes();
  if (s.empty()) return Value::boolean(when_empty);
  for (size_t i = 0; i < s.size();) {
    Char c = char_at(s, i);
    if (!holds(c.code)) return Value::boolean(false);
    i += c.length;
  }
  return Value::boolean(true);
}

Result<Value> is_cased(Interp& interp, const Value& v, Args& args, std::string_view test) {
  ARGENT_LET(bool holds, interp.test(test, v, args));
  return Value::boolean(holds);
}

Result<Value> istitle(Interp&, const Value& v, Args& args) {
  ARGENT_TRY(expect_positional("istitle()", args, 0, 0));
  const std::string& s = v.text().bytes();
  bool any = false, after_cased = false;
  for (size_t i = 0; i < s.size();) {
    Char c = char_at(s, i);
    uint16_t f = char_flags(c.code);
    if (f & (kUpper | kTitle)) {
      if (after_cased) return Value::boolean(false);
      any = after_cased = true;
    } else if (f & kLower) {
      if (!after_cased) return Value::boolean(false);
      any = true;
    } else {
      after_cased = false;
    }
    i += c.length;
  }
  return Value::boolean(any);
}

Result<Value> mapped(Interp& interp, const Value& v, Args& args, std::string_view how) {
  ARGENT_TRY(expect_positional(how, args, 0, 0));
  return case_mapped(interp, v, how);
}

Result<Value> format_map(Interp& interp, const Value& v, Args& args) {
  ARGENT_TRY(expect_positional("format_map()", args, 1, 1));
  if (!args.positional[0].is(Kind::dict)) return fail(Code::invalid, "format_map() wants a mapping");
  Args named;
  for (const auto& [key, value] : args.positional[0].dict().entries) {
    if (key.is(Kind::string)) named.named.emplace_back(key.text().bytes(), value);
  }
  return str_format(interp, v, named);
}

#define ARGENT_FLAG_METHOD(name, empty, test)                                                                          \
  {                                                                                                                    \
    name, [](Interp&, const Value& v, Args& a) { return every(v, a, empty, [](uint32_t c) -> bool { return test; }); } \
  }

}  // namespace

const std::vector<MethodEntry> kStringMethods = {
    {"capitalize", [](Interp& i, const Value& v, Args& a) { return mapped(i, v, a, "capitalize"); }},
    {"casefold", [](Interp& i, const Value& v, Args& a) { return mapped(i, v, a, "fold"); }},
    {"center", center},
    {"count", count},
    {"encode", nullptr},
    {"endswith", endswith},
    {"expandtabs", expandtabs},
    {"find", find},
    {"format", str_format},
    {"format_map", format_map},
    {"index", index},
    ARGENT_FLAG_METHOD("isalnum", false, is_alnum(c)),
    ARGENT_FLAG_METHOD("isalpha", false, char_flags(c) & kAlpha),
    ARGENT_FLAG_METHOD("isascii", true, c < 0x80),
    ARGENT_FLAG_METHOD("isdecimal", false, char_flags(c) & kDecimal),
    ARGENT_FLAG_METHOD("isdigit", false, char_flags(c) & kDigit),
    {"isidentifier", nullptr},
    {"islower", [](Interp& i, const Value& v, Args& a) { return is_cased(i, v, a, "lower"); }},
    ARGENT_FLAG_METHOD("isnumeric", false, char_flags(c) & kNumeric),
    ARGENT_FLAG_METHOD("isprintable", true, char_flags(c) & kPrintable),
    ARGENT_FLAG_METHOD("isspace", false, is_space(c)),
    {"istitle", istitle},
    {"isupper", [](Interp& i, const Value& v, Args& a) { return is_cased(i, v, a, "upper"); }},
    {"join", join},
    {"ljust", ljust},
    {"lower", [](Interp& i, const Value& v, Args& a) { return mapped(i, v, a, "lower"); }},
    {"lstrip", lstrip},
    {"maketrans", nullptr},
    {"partition", partition},
    {"removeprefix", removeprefix},
    {"removesuffix", removesuffix},
    {"replace", replace},
    {"rfind", rfind},
    {"rindex", rindex},
    {"rjust", rjust},
    {"rpartition", rpartition},
    {"rsplit", rsplit},
    {"rstrip", rstrip},
    {"split", split},
    {"splitlines", splitlines},
    {"startswith", startswith},
    {"strip", strip},
    {"swapcase", [](Interp& i, const Value& v, Args& a) { return mapped(i, v, a, "swap"); }},
    {"title", [](Interp& i, const Value& v, Args& a) { return mapped(i, v, a, "title"); }},
    {"translate", nullptr},
    {"upper", [](Interp& i, const Value& v, Args& a) { return mapped(i, v, a, "upper"); }},
    {"zfill", zfill},
};

}  // namespace argent::jinja
