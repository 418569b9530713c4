#include "chat/output_literals.h"

#include <charconv>

namespace argent::output {
namespace {

bool append_code_point(std::string& out, uint32_t c) {
  if (c > 0x10ffff || (c >= 0xd800 && c < 0xe000)) return false;
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += {static_cast<char>(0xc0 | c >> 6), static_cast<char>(0x80 | (c & 63))};
  } else if (c < 0x10000) {
    out += {static_cast<char>(0xe0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 63)),
            static_cast<char>(0x80 | (c & 63))};
  } else {
    out += {static_cast<char>(0xf0 | c >> 18), static_cast<char>(0x80 | (c >> 12 & 63)),
            static_cast<char>(0x80 | (c >> 6 & 63)), static_cast<char>(0x80 | (c & 63))};
  }
  return true;
}

enum class Notation { python, gemma };

class Reader {
 public:
  Reader(std::string_view text, Notation notation) : text_(text), notation_(notation) {}

  bool at_end() {
    skip_space();
    return at_ == text_.size();
  }
  void skip_space() {
    while (at_ < text_.size() && is_space(text_[at_])) ++at_;
  }
  // c, perhaps behind white space.
  bool take(char c) {
    skip_space();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  std::string_view name() {
    skip_space();
    size_t begin = at_;
    while (at_ < text_.size() && is_name(text_[at_])) ++at_;
    return text_.substr(begin, at_ - begin);
  }

  // Behind the opening mark, up to and with the closing one. Python's calls have key=value, dicts key:value.
  bool members(char close, char equals, std::string& out) {
    std::set<std::string, std::less<>> seen;
    out += '{';
    while (!take(close)) {
      if (!seen.empty()) {
        if (!take(',')) return false;
        if (take(close)) break;
        out += ", ";
      }
      std::string key;
      skip_space();
      bool bare = equals == '=' || (notation_ == Notation::gemma && at_ < text_.size() && is_name(text_[at_]));
      if (bare) {
        if (!append_quoted(key, name()) || key.size() == 2) return false;
      } else if (!string(key)) {
        return false;
      }
      if (!take(equals) || !seen.insert(key).second) return false;
      out += key + ": ";
      if (!value(out)) return false;
    }
    out += '}';
    return true;
  }

 private:
  bool literal(std::string_view s) {
    if (!text_.substr(at_).starts_with(s)) return false;
    at_ += s.size();
    return true;
  }

  bool value(std::string& out) {
    skip_space();
    if (at_ == text_.size()) return false;
    char c = text_[at_];
    if (c == '[' || c == '{' || c == '(') {
      if (c == '(' && notation_ == Notation::gemma) return false;
      if (++depth_ > kDepth) return false;
      ++at_;
      bool good = c == '{' ? members('}', ':', out) : items(c == '[' ? ']' : ')', out);
      --depth_;
      return good;
    }
    if ((c >= '0' && c <= '9') || c == '-' || c == '+' || c == '.') return number(out);
    if (is_name(c)) return word(out);
    return string(out);
  }

  bool items(char close, std::string& out) {
    bool any = false, comma = false;
    out += '[';
    while (!take(close)) {
      if (any) {
        if (!take(',')) return false;
        comma = true;
        if (take(close)) break;
        out += ", ";
      }
      if (!value(out)) return false;
      any = true;
    }
    out += ']';
    return close == ']' || !any || comma;  // (1) is no tuple
  }

  bool word(std::string& out) {
    std::string_view w = name();
    if (w == "true" || w == "True") {
      out += "true";
    } else if (w == "false" || w == "False") {
      out += "false";
    } else if (w == "null" || w == "None") {
      out += "null";
    } else {
      return false;
    }
    return true;
  }

  // Python's "1.", ".5" and "+1" become numbers of JSON; "01" is one in neither.
  bool number(std::string& out) {
    std::string n;
    if (literal("-")) {
      n = "-";
    } else {
      literal("+");
    }
    size_t begin = at_;
    while (at_ < text_.size() && (is_name(text_[at_]) || text_[at_] == '+')) ++at_;
    std::string_view rest = text_.substr(begin, at_ - begin);
    if (rest.starts_with('.')) n += '0';
    if (size_t dot = rest.find('.'); dot != std::string_view::npos && rest.size() > 1) {
      n += rest.substr(0, dot + 1);
      rest.remove_prefix(dot + 1);
      if (rest.empty() || rest[0] == 'e' || rest[0] == 'E') n += '0';
    }
    n += rest;
    out += n;
    return is_json(n);
  }

  bool string(std::string& out) {
    skip_space();
    if (notation_ == Notation::gemma) {
      for (std::string_view quote : {std::string_view("<escape>"), std::string_view("<|\"|>")}) {
        if (!literal(quote)) continue;
        size_t end = text_.find(quote, at_);
        if (end == std::string_view::npos) return false;
        bool good = append_quoted(out, text_.substr(at_, end - at_));
        at_ = end + quote.size();
        return good;
      }
      return json_string(out);
    }
    return python_string(out);
  }

  bool json_string(std::string& out) {
    size_t begin = at_;
    if (!literal("\"")) return false;
    while (at_ < text_.size() && text_[at_] != '"') at_ += text_[at_] == '\\' ? 2 : 1;
    if (at_ >= text_.size()) return false;
    ++at_;
    std::string_view raw = text_.substr(begin, at_ - begin);
    out += raw;
    return is_json(raw);
  }

  bool python_string(std::string& out) {
    std::string_view quote;
    for (std::string_view q : {"\"\"\"", "'''", "\"", "'"}) {
      if (quote.empty() && literal(q)) quote = q;
    }
    if (quote.empty()) return false;
    std::string decoded;
    while (!literal(quote)) {
      if (at_ == text_.size()) return false;
      char c = text_[at_++];
      if (c == '\n' && quote.size() == 1) return false;
      if (c != '\\') {
        decoded += c;
      } else if (!escape(decoded)) {
        return false;
      }
    }
    return append_quoted(out, decoded);
  }

  bool escape(std::string& out) {
    if (at_ == text_.size()) return false;
    char c = text_[at_++];
    constexpr std::string_view kLetters = "abfnrtv0\\'\"/", kMeant("\a\b\f\n\r\t\v\0\\'\"/", 12);
    if (size_t i = kLetters.find(c); i != std::string_view::npos) {
      out += kMeant[i];
      return true;
    }
    if (c == '\n') return true;  // the line goes on
    if (c != 'x' && c != 'u' && c != 'U') {
      out += '\\';  // what Python does not know stays as it is
      out += c;
      return true;
    }
    uint32_t code = 0;
    if (!hex(c == 'x' ? 2 : c == 'u' ? 4 : 8, code)) return false;
    if (code >= 0xd800 && code < 0xdc00) {  // half of a pair, which JSON has and Python has not
      uint32_t low = 0;
      if (!literal("\\u") || !hex(4, low) || low < 0xdc00 || low > 0xdfff) return false;
      code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    return append_code_point(out, code);
  }

  bool hex(size_t digits, uint32_t& code) {
    if (text_.size() - at_ < digits) return false;
    const char* begin = text_.data() + at_;
    at_ += digits;
    auto [end, error] = std::from_chars(begin, begin + digits, code, 16);
    return error == std::errc() && end == begin + digits;
  }

  std::string_view text_;
  Notation notation_;
  size_t at_ = 0;
  uint32_t depth_ = 1;  // the arguments themselves
};

}  // namespace

bool read_python_calls(std::string_view text, Calls& calls) {
  Reader r(text, Notation::python);
  bool list = r.take('[');
  while (true) {
    std::string_view name = r.name();
    if (!calls.known(name) || !r.take('(')) return false;
    Calls::Call& call = calls.calls.emplace_back();
    call.name = name;
    if (!r.members(')', '=', call.arguments)) return false;
    bool comma = r.take(',');
    if (list) {
      if (r.take(']')) return r.at_end();
      if (!comma) return false;
    } else {
      if (!comma) r.take(';');
      if (r.at_end()) return true;
    }
  }
}

bool read_gemma_arguments(std::string_view text, std::string& json) {
  Reader r(text, Notation::gemma);
  return r.take('{') && r.members('}', ':', json) && r.at_end();
}

}  // namespace argent::output
