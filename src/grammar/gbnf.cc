#include "grammar/gbnf.h"

#include <map>

namespace argent::grammar {

namespace {

constexpr size_t kMaxGrammar = 256 << 10;
constexpr int kMaxGroups = 64;

class GbnfParser {
 public:
  GbnfParser(std::vector<uint32_t> text, Rules& rules) : text_(std::move(text)), rules_(rules) {}

  Result<RuleId> parse() {
    skip(true);
    while (!at_end()) ARGENT_TRY(rule());
    for (const auto& [name, known] : names_)
      if (!known.defined) return error_at(known.first_use, "rule '{}' is not defined", name);
    const auto root = names_.find("root");
    if (root == names_.end()) return error_at(0, "there is no rule 'root'");
    return root->second.rule;
  }

 private:
  struct Name {
    RuleId rule;
    bool defined = false;
    size_t first_use = 0;
  };

  // What Lark's and llguidance's grammars begin with.
  static constexpr const char* kOtherSyntax = " (grammars are in GBNF's syntax; Lark's is not read)";

  bool at_end() const { return at_ >= text_.size(); }
  uint32_t peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : 0; }
  bool take(uint32_t c) {
    if (at_end() || peek() != c) return false;
    at_++;
    return true;
  }

  template <class... Args>
  Error error_at(size_t where, fmt::format_string<Args...> format, Args&&... args) const {
    int line = 1, column = 1;
    for (size_t i = 0; i < where && i < text_.size(); i++) {
      column++;
      if (text_[i] == '\n') line++, column = 1;
    }
    return fail(Code::invalid, "line {}, column {}: {}", line, column,
                fmt::format(format, std::forward<Args>(args)...));
  }
  template <class... Args>
  Error error(fmt::format_string<Args...> format, Args&&... args) const {
    return error_at(at_, format, std::forward<Args>(args)...);
  }

  void skip(bool lines) {
    while (!at_end()) {
      const uint32_t c = peek();
      if (c == '#') {
        while (!at_end() && peek() != '\n' && peek() != '\r') at_++;
      } else if (c == ' ' || c == '\t' || (lines && (c == '\n' || c == '\r'))) {
        at_++;
      } else {
        return;
      }
    }
  }

  static bool is_word(uint32_t c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
  }

  std::string word() {
    std::string out;
    while (!at_end() && is_word(peek())) out += static_cast<char>(text_[at_++]);
    return out;
  }

  Name& name_of(const std::string& name, size_t where) {
    const auto it = names_.find(name);
    if (it != names_.end()) return it->second;
    return names_[name] = {rules_.add(name), false, where};
  }

  bool at_assign() const { return peek() == ':' && peek(1) == ':' && peek(2) == '='; }

  Status rule() {
    const size_t start = at_;
    const std::string name = word();
    if (name.empty()) return error("a rule begins with its name{}", peek() == '%' ? kOtherSyntax : "");
    skip(false);
    if (!at_assign()) return error("'::=' must follow the rule's name{}", peek() == ':' ? kOtherSyntax : "");
    at_ += 3;
    Name& known = name_of(name, start);
    if (known.defined) return error_at(start, "rule '{}' is defined twice", name);
    known.defined = true;
    const RuleId rule = known.rule;
    skip(true);
    ARGENT_LET(const Expr body, alternatives(false));
    rules_.define(rule, body);
    if (!at_end() && peek() != '\n' && peek() != '\r') return error("unexpected '{}'", seen());
    skip(true);
    return {};
  }

  std::string seen() const {
    std::string out;
    if (!at_end()) append_utf8(out, peek());
    return out;
  }

  Result<Expr> alternatives(bool nested) {
    if (++depth_ > kMaxGroups) return error("groups nest deeper than {}", kMaxGroups);
    std::vector<Expr> choices;
    for (;;) {
      ARGENT_LET(const Expr e, sequence(nested));
      choices.push_back(e);
      // A '|' may begin the next line.
      const size_t before = at_;
      skip(true);
      if (take('|')) {
        skip(true);
        continue;
      }
      if (!nested) at_ = before;
      break;
    }
    depth_--;
    return rules_.alt(std::move(choices));
  }

  Result<Expr> sequence(bool nested) {
    std::vector<Expr> parts;
    for (;;) {
      skip(nested);
      if (at_end() || peek() == '|' || peek() == ')' || peek() == '\n' || peek() == '\r') break;
      // A line end may be missing before the next rule: `a ::= b c ::= d` is not that, it is an error at '::='.
      ARGENT_LET(Expr e, item());
      ARGENT_LET(e, quantified(e, nested));
      parts.push_back(e);
    }
    return rules_.seq(std::move(parts));
  }

  Result<Expr> item() {
    const size_t start = at_;
    if (take('"')) {
      std::string text;
      while (!take('"')) {
        if (at_end() || peek() == '\n') return error_at(start, "the literal does not end on its line");
        ARGENT_LET(const uint32_t c, character());
        append_utf8(text, c);
      }
      return rules_.literal(text);
    }
    if (take('[')) return char_class(start);
    if (take('.')) return rules_.chars(CharSet::all());
    if (take('(')) {
      ARGENT_LET(const Expr e, alternatives(true));
      if (!take(')')) return error_at(start, "'(' without its ')'");
      return e;
    }
    if (is_word(peek())) {
      const std::string name = word();
      const size_t end = at_;
      skip(false);
      if (at_assign()) return error("'::=' in the middle of a line");
      at_ = end;
      return rules_.ref(name_of(name, start).rule);
    }
    if (peek() == '<' || peek() == '!') return error("tokens by name or id are not known here");
    if (peek() == '*' || peek() == '+' || peek() == '?' || peek() == '{')
      return error("'{}' has nothing to repeat", seen());
    return error("unexpected '{}'", seen());
  }

  Result<Expr> quantified(Expr e, bool nested) {
    for (int n = 0;; n++) {
      const size_t before = at_;
      skip(nested);
      if (peek() != '*' && peek() != '+' && peek() != '?' && peek() != '{') {
        at_ = before;
        return e;
      }
      if (n == 8) return error("too many quantifiers follow each other");
      if (take('*')) {
        e = rules_.repeat(e, 0);
      } else if (take('+')) {
        e = rules_.repeat(e, 1);
      } else if (take('?')) {
        e = rules_.optional(e);
      } else {
        at_++;
        skip(nested);
        int64_t min = 0, max;
        if (peek() != ',') {
          ARGENT_LET(min, count());
        }
        skip(nested);
        max = min;
        if (take(',')) {
          skip(nested);
          max = kUnbounded;
          if (peek() != '}') {
            ARGENT_LET(max, count());
          }
          skip(nested);
        }
        if (!take('}')) return error("a count looks like {{2}}, {{2,}} or {{2,5}}");
        if (max != kUnbounded && max < min) return error("{{{},{}}}: the first count is larger", min, max);
        e = rules_.repeat(e, min, max);
      }
    }
  }

  Result<int64_t> count() {
    const size_t start = at_;
    int64_t n = 0;
    for (; peek() >= '0' && peek() <= '9'; at_++) {
      n = n * 10 + (peek() - '0');
      if (n > kMaxRepeat) return error("counts go to {}", kMaxRepeat);
    }
    if (at_ == start) return error("a count looks like {{2}}, {{2,}} or {{2,5}}");
    return n;
  }

  Result<uint32_t> character() {
    const size_t start = at_;
    uint32_t c = text_[at_++];
    if (c != '\\') return c;
    if (at_end()) return error_at(start, "a backslash at the end");
    const uint32_t kind = text_[at_++];
    const int digits = kind == 'x' ? 2 : kind == 'u' ? 4 : kind == 'U' ? 8 : 0;
    if (digits > 0) {
      uint64_t value = 0;
      for (int i = 0; i < digits; i++, at_++) {
        const uint32_t d = peek();
        if (d >= '0' && d <= '9')
          value = value * 16 + (d - '0');
        else if ((d | 32) >= 'a' && (d | 32) <= 'f')
          value = value * 16 + ((d | 32) - 'a' + 10);
        else
          return error_at(start, "the escape wants {} hexadecimal digits", digits);
      }
      if (value == 0 || value > kMaxChar || (value >= 0xd800 && value <= 0xdfff))
        return error_at(start, "U+{:04X} is no character that can be written", value);
      return static_cast<uint32_t>(value);
    }
    switch (kind) {
      case 'n':
        return uint32_t{'\n'};
      case 'r':
        return uint32_t{'\r'};
      case 't':
        return uint32_t{'\t'};
      case '\\':
      case '"':
      case '\'':
      case '[':
      case ']':
      case '-':
      case '^':
        return kind;
      default:
        return error_at(start, "unknown escape");
    }
  }

  Result<Expr> char_class(size_t start) {
    const bool negated = take('^');
    CharSet set;
    while (!take(']')) {
      if (at_end() || peek() == '\n') return error_at(start, "the class does not end on its line");
      const size_t from = at_;
      ARGENT_LET(const uint32_t first, character());
      if (peek() == '-' && peek(1) != ']' && at_ + 1 < text_.size()) {
        at_++;
        if (at_end() || peek() == '\n') return error_at(start, "the class does not end on its line");
        ARGENT_LET(const uint32_t last, character());
        if (last < first) return error_at(from, "a range goes backwards");
        set.add(first, last);
      } else {
        set.add(first, first);
      }
    }
    if (negated) set = set.complement();
    if (set.empty()) return error_at(start, "a class that holds no character");
    return rules_.chars(set);
  }

  std::vector<uint32_t> text_;
  Rules& rules_;
  size_t at_ = 0;
  int depth_ = 0;
  std::map<std::string, Name> names_;
};

}  // namespace

Result<RuleId> parse_gbnf(std::string_view text, Rules& rules) {
  if (text.size() > kMaxGrammar)
    return fail(Code::invalid, "the grammar has {} bytes, at most {}", text.size(), kMaxGrammar);
  std::vector<uint32_t> chars;
  if (text.find('\0') != std::string_view::npos || !decode_utf8(text, chars))
    return fail(Code::invalid, "the grammar is not UTF-8, or has a NUL in it");
  return GbnfParser(std::move(chars), rules).parse();
}

}  // namespace argent::grammar
