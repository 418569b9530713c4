#include "chat/lexer.h"

#include <array>
#include <optional>

#include "chat/text.h"
#include "chat/unicode.h"
#include "chat/value.h"

namespace argent::jinja {
namespace {

constexpr std::array<std::string_view, 25> kOperators = {",", "//", "**", "==", "!=", ">=", "<=", "+", "-",
                                                         "/", "*",  "%",  "~",  "[",  "]",  "(",  ")", "{",
                                                         "}", ">",  "<",  "=",  ".",  ":",  "|"};

bool digit(char c) { return c >= '0' && c <= '9'; }

// One line, printable, short: for quoting a piece of the template in an error.
std::string in_quotes(std::string_view s) {
  Text out;
  append_string_repr(out, Text(std::string(s.substr(0, 40))));
  return out.bytes();
}

std::string normalized(const std::string& source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out += source[i];
    } else {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

class Lexer {
 public:
  Lexer(const std::string& source, const std::string& name) : s_(normalized(source)), name_(name) {}

  Result<std::vector<Token>> run() {
    if (size_t bad = first_invalid_utf8(s_); bad != s_.size()) {
      return fail_at(bad, Code::invalid, "the template is not valid UTF-8");
    }
    while (pos_ < s_.size()) ARGENT_TRY(root());
    push(TokenKind::eof, "", s_.size());
    return std::move(tokens_);
  }

 private:
  // Template text up to the next tag, then that tag.
  Status root() {
    size_t begin = pos_;
    size_t tag = begin;
    for (;; ++tag) {
      tag = s_.find('{', tag);
      if (tag == std::string::npos || tag + 1 >= s_.size()) {
        push(TokenKind::data, s_.substr(begin), begin);
        pos_ = s_.size();
        return {};
      }
      if (s_[tag + 1] == '{' || s_[tag + 1] == '%' || s_[tag + 1] == '#') break;
    }
    char type = s_[tag + 1];
    size_t after = tag + 2;
    char sign = after < s_.size() && (s_[after] == '-' || s_[after] == '+') ? s_[after] : 0;
    push(TokenKind::data, left_trimmed(begin, tag, sign, type != '{'), begin);
    if (sign) ++after;
    pos_ = after;
    line_starting_ = false;
    if (type == '#') return comment();
    if (type == '%') {
      if (auto body = raw_begin(after)) return raw(*body);
      push(TokenKind::block_begin, "{%", tag);
      return tag_body(true);
    }
    push(TokenKind::variable_begin, "{{", tag);
    return tag_body(false);
  }

  // Text in front of a tag: all its trailing whitespace goes with '-'; the indentation of a block tag alone on its line
  // goes with lstrip_blocks.
  std::string left_trimmed(size_t begin, size_t end, char sign, bool lstrip) {
    std::string_view text = std::string_view(s_).substr(begin, end - begin);
    ByteRange kept = stripped(text, nullptr, false, true);
    if (sign == '-') return std::string(text.substr(0, kept.end));
    if (sign != '+' && lstrip) {
      size_t newline = text.rfind('\n');
      size_t line = newline == std::string_view::npos ? 0 : newline + 1;
      if ((line > 0 || line_starting_) && line < text.size() && kept.end <= line)
        return std::string(text.substr(0, line));
    }
    return std::string(text);
  }

  size_t skip_spaces(size_t i) const {
    while (i < s_.size()) {
      Char c = char_at(s_, i);
      if (!is_space(c.code)) break;
      i += c.length;
    }
    return i;
  }

  // The end of a tag at i: "-%}" and the whitespace behind, "+%}", or "%}" and one newline (`trim`). npos: none here.
  size_t tag_end(size_t i, std::string_view close, bool trim, bool plus) const {
    if (s_.compare(i, 1, "-") == 0 && s_.compare(i + 1, 2, close) == 0) return skip_spaces(i + 3);
    if (plus && s_.compare(i, 1, "+") == 0 && s_.compare(i + 1, 2, close) == 0) return i + 3;
    if (s_.compare(i, 2, close) == 0) {
      i += 2;
      return trim && i < s_.size() && s_[i] == '\n' ? i + 1 : i;
    }
    return std::string::npos;
  }

  void leave(size_t end) {
    line_starting_ = end > 0 && s_[end - 1] == '\n';
    pos_ = end;
  }

  Status comment() {
    for (size_t i = pos_; i < s_.size(); ++i) {
      if (s_[i] != '#' && s_[i] != '-' && s_[i] != '+') continue;
      size_t end = tag_end(i, "#}", true, true);
      if (end != std::string::npos) {
        leave(end);
        return {};
      }
    }
    if (pos_ < s_.size()) return fail_at(pos_, Code::invalid, "the comment is not closed");
    return {};  // jinja2 accepts a comment that opens at the very end
  }

  // `raw %}` behind "{%": where the raw text begins.
  std::optional<size_t> raw_begin(size_t i) const {
    i = skip_spaces(i);
    if (s_.compare(i, 3, "raw") != 0) return std::nullopt;
    i = skip_spaces(i + 3);
    size_t end = tag_end(i, "%}", false, false);
    if (end == std::string::npos) return std::nullopt;
    return end;
  }

  Status raw(size_t begin) {
    leave(begin);
    for (size_t i = begin; (i = s_.find("{%", i)) != std::string::npos; i += 2) {
      size_t j = i + 2;
      char sign = j < s_.size() && (s_[j] == '-' || s_[j] == '+') ? s_[j] : 0;
      j = skip_spaces(sign ? j + 1 : j);
      if (s_.compare(j, 6, "endraw") != 0) continue;
      size_t end = tag_end(skip_spaces(j + 6), "%}", true, true);
      if (end == std::string::npos) continue;
      push(TokenKind::data, left_trimmed(begin, i, sign, true), begin);
      leave(end);
      return {};
    }
    if (begin < s_.size()) return fail_at(begin, Code::invalid, "the raw block is not closed");
    return {};
  }

  Status tag_body(bool block) {
    std::string open;  // brackets to close, innermost last: inside them "}}" is two operators
    while (pos_ < s_.size()) {
      if (open.empty()) {
        size_t end = block ? tag_end(pos_, "%}", true, true) : tag_end(pos_, "}}", false, false);
        if (end != std::string::npos) {
          push(block ? TokenKind::block_end : TokenKind::variable_end, block ? "%}" : "}}", pos_);
          leave(end);
          return {};
        }
      }
      Char c = char_at(s_, pos_);
      if (is_space(c.code)) {
        pos_ = skip_spaces(pos_);
      } else if (digit(s_[pos_])) {
        number();
      } else if (name_char(c.code)) {
        ARGENT_TRY(name());
      } else if (c.code == '\'' || c.code == '"') {
        ARGENT_TRY(string());
      } else {
        ARGENT_TRY(op(open));
      }
    }
    return {};  // the parser says what is missing at the end of the template
  }

  static bool name_char(uint32_t code) {
    if (code < 0x80) return code == '_' || (code | 0x20u) - 'a' < 26u || code - '0' < 10u;
    return char_flags(code) & (kAlpha | kNumeric | kDecimal | kDigit);
  }

  Status name() {
    size_t begin = pos_;
    while (pos_ < s_.size()) {
      Char c = char_at(s_, pos_);
      if (!name_char(c.code)) break;
      pos_ += c.length;
    }
    push(TokenKind::name, s_.substr(begin, pos_ - begin), begin);
    return {};
  }

  // (digits with single underscores) from i; where they end
  size_t digits(size_t i) const {
    while (i < s_.size() && (digit(s_[i]) || (s_[i] == '_' && i + 1 < s_.size() && digit(s_[i + 1])))) ++i;
    return i;
  }

  void number() {
    size_t begin = pos_;
    auto at = [&](size_t i) { return i < s_.size() ? s_[i] : '\0'; };
    // After a dot digits are an index (`x.0.1`), never a float.
    if (begin == 0 || s_[begin - 1] != '.') {
      size_t end = digits(begin);
      size_t mantissa = end;
      if (at(end) == '.' && digit(at(end + 1))) mantissa = digits(end + 1);
      size_t exponent = mantissa;
      if ((at(mantissa) | 0x20) == 'e') {
        size_t e = mantissa + 1;
        if (at(e) == '+' || at(e) == '-') ++e;
        if (digit(at(e))) exponent = digits(e);
      }
      if (exponent != end) {
        pos_ = exponent;
        return push_number(TokenKind::real, begin);
      }
    }
    char radix = s_[begin] == '0' ? static_cast<char>(at(begin + 1) | 0x20) : 0;
    auto radix_digit = [&](char c) {
      return radix == 'b'   ? c == '0' || c == '1'
             : radix == 'o' ? c >= '0' && c <= '7'
                            : digit(c) || ((c | 0x20) >= 'a' && (c | 0x20) <= 'f');
    };
    if (radix == 'b' || radix == 'o' || radix == 'x') {
      size_t i = begin + 2;
      while (radix_digit(at(i)) || (at(i) == '_' && radix_digit(at(i + 1)))) ++i;
      if (i > begin + 2) {
        pos_ = i;
        return push_number(TokenKind::integer, begin);
      }
    }
    if (s_[begin] == '0') {  // only more zeros may follow
      size_t i = begin + 1;
      while (at(i) == '0' || (at(i) == '_' && at(i + 1) == '0')) ++i;
      pos_ = i;
    } else {
      pos_ = digits(begin);
    }
    push_number(TokenKind::integer, begin);
  }

  void push_number(TokenKind kind, size_t begin) {
    std::string text;
    for (size_t i = begin; i < pos_; ++i) {
      if (s_[i] != '_') text += s_[i];
    }
    push(kind, text, begin);
  }

  Status string() {
    size_t begin = pos_;
    char quote = s_[pos_++];
    while (pos_ < s_.size() && s_[pos_] != quote) pos_ += s_[pos_] == '\\' ? 2 : 1;
    if (pos_ >= s_.size()) return fail_at(begin, Code::invalid, "the string is not closed");
    ARGENT_LET(std::string text, unescaped(begin + 1, pos_));
    ++pos_;
    push(TokenKind::string, text, begin);
    return {};
  }

  // Python's unicode-escape over the literal in which characters beyond ASCII are already written as escapes.
  Result<std::string> unescaped(size_t begin, size_t end) {
    std::string out;
    for (size_t i = begin; i < end;) {
      if (s_[i] != '\\') {
        out += s_[i++];
        continue;
      }
      Char c = char_at(s_, i + 1);
      size_t next = i + 1 + c.length;
      auto hex = [&](size_t count) -> Result<uint32_t> {
        uint32_t code = 0;
        for (size_t k = 0; k < count; ++k) {
          char h = next + k < end ? s_[next + k] : '\0';
          if (!digit(h) && !((h | 0x20) >= 'a' && (h | 0x20) <= 'f')) {
            return fail_at(i, Code::invalid, "truncated \\" + std::string(1, static_cast<char>(c.code)) + " escape");
          }
          code = code << 4 | static_cast<uint32_t>(digit(h) ? h - '0' : (h | 0x20) - 'a' + 10);
        }
        next += count;
        if (code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) {
          return fail_at(i, Code::unsupported, "the escape is not a Unicode character");
        }
        return code;
      };
      switch (c.code) {
        case '\n':
          break;
        case '\\':
        case '\'':
        case '"':
          out += static_cast<char>(c.code);
          break;
        case 'a':
          out += '\a';
          break;
        case 'b':
          out += '\b';
          break;
        case 'f':
          out += '\f';
          break;
        case 'n':
          out += '\n';
          break;
        case 'r':
          out += '\r';
          break;
        case 't':
          out += '\t';
          break;
        case 'v':
          out += '\v';
          break;
        case 'x':
        case 'u':
        case 'U': {
          ARGENT_LET(uint32_t code, hex(c.code == 'x' ? 2 : c.code == 'u' ? 4 : 8));
          append_utf8(out, code);
          break;
        }
        case 'N':
          return fail_at(i, Code::unsupported, "\\N{...} escapes are not supported");
        default:
          if (c.code >= '0' && c.code <= '7') {
            uint32_t code = c.code - '0';
            for (int k = 0; k < 2 && next < end && s_[next] >= '0' && s_[next] <= '7'; ++k, ++next) {
              code = code * 8 + static_cast<uint32_t>(s_[next] - '0');
            }
            append_utf8(out, code);
          } else if (c.code < 0x80) {
            out += '\\';
            out += static_cast<char>(c.code);
          } else {  // the backslash escapes that of the character's own escape
            out += c.code < 0x100     ? fmt::format("\\x{:02x}", c.code)
                   : c.code < 0x10000 ? fmt::format("\\u{:04x}", c.code)
                                      : fmt::format("\\U{:08x}", c.code);
          }
      }
      i = next;
    }
    return out;
  }

  Status op(std::string& open) {
    for (std::string_view o : kOperators) {
      if (s_.compare(pos_, o.size(), o) != 0) continue;
      if (o == "(" || o == "[" || o == "{") open += o == "(" ? ')' : o == "[" ? ']' : '}';
      if (o == ")" || o == "]" || o == "}") {
        if (open.empty()) return fail_at(pos_, Code::invalid, fmt::format("unexpected '{}'", o));
        if (open.back() != o[0])
          return fail_at(pos_, Code::invalid, fmt::format("unexpected '{}', expected '{}'", o, open.back()));
        open.pop_back();
      }
      push(TokenKind::op, std::string(o), pos_);
      pos_ += o.size();
      return {};
    }
    return fail_at(pos_, Code::invalid, "unexpected character " + in_quotes(s_.substr(pos_, char_at(s_, pos_).length)));
  }

  Position position(size_t pos) {
    if (pos < counted_) counted_ = 0, at_ = {};  // only for errors
    while (counted_ < pos) {
      if (s_[counted_] == '\n') {
        ++at_.line;
        at_.column = 1;
      } else {
        ++at_.column;
      }
      counted_ += char_at(s_, counted_).length;
    }
    return at_;
  }

  void push(TokenKind kind, std::string text, size_t pos) {
    if (kind == TokenKind::data && text.empty()) return;
    Position at = position(pos);
    tokens_.push_back({kind, std::move(text), at.line, at.column});
  }

  Error fail_at(size_t pos, Code code, const std::string& what) { return error_at(code, name_, position(pos), what); }

  std::string s_;
  const std::string& name_;
  size_t pos_ = 0;
  bool line_starting_ = true;  // the last match ended with a newline
  std::vector<Token> tokens_;
  size_t counted_ = 0;
  Position at_;
};

}  // namespace

Error error_at(Code code, const std::string& name, Position at, const std::string& what) {
  std::string line = fmt::format("{}:{}:{}: {}", name, at.line, at.column, what);
  for (char& c : line) {
    if (c == '\n' || c == '\r') c = ' ';
  }
  return {code, line};
}

Result<std::vector<Token>> tokenize(const std::string& source, const std::string& name) {
  return Lexer(source, name).run();
}

}  // namespace argent::jinja
