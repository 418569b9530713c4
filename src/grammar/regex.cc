#include "grammar/regex.h"

#include <algorithm>

namespace argent::grammar {

namespace {

using Node = Regex::Node;
using Kind = Regex::Node::Kind;

constexpr size_t kMaxPattern = 65536;
constexpr int kMaxRegexDepth = 64;

const CharSet kDigit({{'0', '9'}});
const CharSet kWord({{'0', '9'}, {'A', 'Z'}, {'a', 'z'}, {'_', '_'}});
const CharSet kSpace({{'\t', '\r'},
                      {' ', ' '},
                      {0xa0, 0xa0},
                      {0x1680, 0x1680},
                      {0x2000, 0x200a},
                      {0x2028, 0x2029},
                      {0x202f, 0x202f},
                      {0x205f, 0x205f},
                      {0x3000, 0x3000},
                      {0xfeff, 0xfeff}});
const CharSet kLineEnd({{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}});

Node one(Kind kind) {
  Node n;
  n.kind = kind;
  return n;
}

Node any_text(int64_t max = kUnbounded) {
  Node n = one(Kind::repeat);
  n.max = max;
  n.children.push_back(one(Kind::set));
  n.children[0].set = CharSet::all();
  return n;
}

class RegexParser {
 public:
  explicit RegexParser(std::vector<uint32_t> text) : text_(std::move(text)) {}

  Result<Node> parse() {
    ARGENT_LET(Node n, alternatives());
    if (!at_end()) return error("')' without its '('");
    return n;
  }

 private:
  bool at_end() const { return at_ == text_.size(); }
  bool peek(uint32_t c, size_t ahead = 0) const { return at_ + ahead < text_.size() && text_[at_ + ahead] == c; }
  bool take(uint32_t c) { return peek(c) && ++at_; }

  template <class... Args>
  Error error(fmt::format_string<Args...> format, Args&&... args) const {
    return fail(Code::invalid, "regular expression, character {}: {}", at_ + 1,
                fmt::format(format, std::forward<Args>(args)...));
  }

  Result<Node> alternatives() {
    if (++depth_ > kMaxRegexDepth) return error("groups nest deeper than {}", kMaxRegexDepth);
    Node n = one(Kind::alt);
    do {
      ARGENT_LET(Node branch, sequence());
      n.children.push_back(std::move(branch));
    } while (take('|'));
    depth_--;
    if (n.children.size() == 1) {
      Node only = std::move(n.children[0]);
      return only;
    }
    return n;
  }

  Result<Node> sequence() {
    Node n = one(Kind::seq);
    while (!at_end() && !peek('|') && !peek(')')) {
      ARGENT_LET(Node atom, item());
      ARGENT_TRY(quantifiers(atom));
      n.children.push_back(std::move(atom));
    }
    return n;
  }

  Result<Node> item() {
    if (take('^')) return one(Kind::begin);
    if (take('$')) return one(Kind::end);
    Node n = one(Kind::set);
    if (take('.')) {
      n.set = kLineEnd.complement();
      return n;
    }
    if (peek('(')) return group();
    if (peek('[')) {
      ARGENT_LET(n.set, char_class());
      return n;
    }
    if (peek('*') || peek('+') || peek('?')) return error("'{}' has nothing to repeat", char(text_[at_]));
    if (peek('{')) return error("'{{' has nothing to repeat; the character itself is \\{{");
    if (peek('\\')) {
      bool is_set = false;
      ARGENT_LET(n.set, escape(false, is_set));
      return n;
    }
    n.set.add(text_[at_], text_[at_]);
    at_++;
    return n;
  }

  Result<Node> group() {
    at_++;
    if (take('?')) {
      if (take(':')) {
      } else if (peek('=') || peek('!') || (peek('<') && (peek('=', 1) || peek('!', 1)))) {
        return error("look-around can not be enforced");
      } else if (peek('<') || (peek('P') && peek('<', 1))) {
        take('P');
        at_++;
        const size_t start = at_;
        while (!at_end() && kWord.contains(text_[at_])) at_++;
        if (at_ == start || !take('>')) return error("a group's name is not complete");
      } else {
        return error("flags are not known here");
      }
    }
    ARGENT_LET(Node n, alternatives());
    if (!take(')')) return error("'(' without its ')'");
    return n;
  }

  Status quantifiers(Node& atom) {
    int64_t min, max;
    if (take('*'))
      min = 0, max = kUnbounded;
    else if (take('+'))
      min = 1, max = kUnbounded;
    else if (take('?'))
      min = 0, max = 1;
    else if (take('{')) {
      ARGENT_LET(min, count());
      max = min;
      if (take(',')) {
        max = kUnbounded;
        if (!peek('}')) {
          ARGENT_LET(max, count());
        }
      }
      if (!take('}')) return error("a count looks like {{2}}, {{2,}} or {{2,5}}");
      if (max != kUnbounded && max < min) return error("{{{},{}}}: the first count is larger", min, max);
    } else {
      return {};
    }
    if (atom.kind == Kind::begin || atom.kind == Kind::end) return error("an anchor can not be repeated");
    take('?');  // lazy or greedy, the texts are the same
    if (peek('*') || peek('+') || peek('?') || peek('{')) return error("a quantifier follows a quantifier");
    Node n = one(Kind::repeat);
    n.min = min;
    n.max = max;
    n.children.push_back(std::move(atom));
    atom = std::move(n);
    return {};
  }

  Result<int64_t> count() {
    int64_t n = 0;
    const size_t start = at_;
    for (; !at_end() && kDigit.contains(text_[at_]); at_++) {
      n = n * 10 + (text_[at_] - '0');
      if (n > kMaxRepeat) return error("counts go to {}", kMaxRepeat);
    }
    if (at_ == start) return error("a count looks like {{2}}, {{2,}} or {{2,5}}");
    return n;
  }

  Result<uint32_t> hex(int digits) {
    uint32_t c = 0;
    for (int i = 0; i < digits; i++, at_++) {
      const uint32_t d = at_end() ? 0 : text_[at_];
      if (d >= '0' && d <= '9')
        c = c * 16 + (d - '0');
      else if ((d | 32) >= 'a' && (d | 32) <= 'f')
        c = c * 16 + ((d | 32) - 'a' + 10);
      else
        return error("an escape wants {} hexadecimal digits", digits);
    }
    return c;
  }

  // One escape: a set (\d), or one character.
  Result<CharSet> escape(bool in_class, bool& is_set) {
    at_++;
    if (at_end()) return error("a backslash at the end");
    const uint32_t c = text_[at_++];
    is_set = true;
    switch (c) {
      case 'd':
        return kDigit;
      case 'D':
        return kDigit.complement();
      case 'w':
        return kWord;
      case 'W':
        return kWord.complement();
      case 's':
        return kSpace;
      case 'S':
        return kSpace.complement();
      default:
        break;
    }
    is_set = false;
    uint32_t value = c;
    switch (c) {
      case 'n':
        value = '\n';
        break;
      case 't':
        value = '\t';
        break;
      case 'r':
        value = '\r';
        break;
      case 'f':
        value = '\f';
        break;
      case 'v':
        value = '\v';
        break;
      case 'x': {
        ARGENT_LET(value, hex(2));
        break;
      }
      case 'u': {
        if (take('{')) {
          size_t end = at_;
          while (end < text_.size() && text_[end] != '}') end++;
          if (end == at_ || end - at_ > 6) return error("an escape wants 1 to 6 hexadecimal digits");
          ARGENT_LET(value, hex(static_cast<int>(end - at_)));
          at_++;
        } else {
          ARGENT_LET(value, hex(4));
          if (value >= 0xd800 && value <= 0xdbff && peek('\\') && peek('u', 1)) {
            at_ += 2;
            ARGENT_LET(const uint32_t low, hex(4));
            if (low < 0xdc00 || low > 0xdfff) return error("half of a surrogate pair");
            value = 0x10000 + ((value - 0xd800) << 10) + (low - 0xdc00);
          }
        }
        break;
      }
      case 'c':
        if (at_end() || (text_[at_] | 32) < 'a' || (text_[at_] | 32) > 'z') return error("\\c wants a letter");
        value = text_[at_++] & 31;
        break;
      case 'b':
        if (!in_class) return error("\\b (a word's edge) can not be enforced");
        value = '\b';
        break;
      default:
        if (c >= '0' && c <= '9') return error("back references and \\0 can not be enforced");
        if (c == 'p' || c == 'P') return error("\\p{{...}} is not known here");
        if (c == 'k') return error("back references can not be enforced");
        if (kWord.contains(c) && c != '_') return error("unknown escape \\{}", char(c));
    }
    CharSet set({{value, value}});
    if (set.empty()) return error("U+{:04X} is no character that can be written", value);
    return set;
  }

  Result<CharSet> char_class() {
    at_++;
    const bool negated = take('^');
    CharSet set;
    if (peek(']')) return error("an empty class");
    while (!take(']')) {
      if (at_end()) return error("'[' without its ']'");
      bool is_set = false;
      ARGENT_LET(CharSet first, class_atom(is_set));
      if (peek('-') && at_ + 1 < text_.size() && !peek(']', 1)) {
        at_++;
        bool second_is_set = false;
        ARGENT_LET(const CharSet last, class_atom(second_is_set));
        if (is_set || second_is_set) return error("a range has one character at each end");
        const uint32_t a = first.ranges()[0].first, b = last.ranges()[0].first;
        if (a > b) return error("a range goes backwards");
        set.add(a, b);
      } else {
        set.add(first);
      }
    }
    if (negated) set = set.complement();
    if (set.empty()) return error("a class that holds no character");
    return set;
  }

  Result<CharSet> class_atom(bool& is_set) {
    if (at_end()) return error("'[' without its ']'");
    if (peek('\\')) return escape(true, is_set);
    const uint32_t c = text_[at_++];
    return CharSet({{c, c}});
  }

  std::vector<uint32_t> text_;
  size_t at_ = 0;
  int depth_ = 0;
};

bool has_anchor(const Node& n) {
  if (n.kind == Kind::begin || n.kind == Kind::end) return true;
  return std::any_of(n.children.begin(), n.children.end(), has_anchor);
}

// Resolves what may stand at one edge of the pattern: an anchor there goes, no anchor lets any text stand there.
// `first` is the start of the text, else its end.
void resolve_edge(Node& n, bool first, bool search) {
  const Kind anchor = first ? Kind::begin : Kind::end;
  if (n.kind == Kind::alt) {
    for (Node& c : n.children) resolve_edge(c, first, search);
    return;
  }
  if (n.kind != Kind::seq) {
    Node seq = one(Kind::seq);
    seq.children.push_back(std::move(n));
    n = std::move(seq);
  }
  std::vector<Node>& parts = n.children;
  if (parts.empty() || !has_anchor(first ? parts.front() : parts.back())) {
    if (search) parts.insert(first ? parts.begin() : parts.end(), any_text());
    return;
  }
  Node& edge = first ? parts.front() : parts.back();
  if (edge.kind == anchor) {
    parts.erase(first ? parts.begin() : parts.end() - 1);
    // ^^a is ^a
    while (!parts.empty() && (first ? parts.front() : parts.back()).kind == anchor)
      parts.erase(first ? parts.begin() : parts.end() - 1);
  } else if (edge.kind == Kind::alt || edge.kind == Kind::seq) {
    resolve_edge(edge, first, search);
  } else if (search) {
    parts.insert(first ? parts.begin() : parts.end(), any_text());  // the other anchor: the middle one is found below
  }
}

Expr lower(Rules& rules, const Node& n, Regex::Spelling spelling) {
  std::vector<Expr> parts;
  switch (n.kind) {
    case Kind::set:
      return spelling == Regex::Spelling::json ? json_chars(rules, n.set) : rules.chars(n.set);
    case Kind::seq:
      for (size_t i = 0; i < n.children.size();) {
        // Runs of single plain characters are one literal.
        std::string run;
        for (; i < n.children.size() && n.children[i].kind == Kind::set; i++) {
          const auto& r = n.children[i].set.ranges();
          const bool plain =
              r.size() == 1 && r[0].first == r[0].last &&
              (spelling == Regex::Spelling::text || (r[0].first >= 0x20 && r[0].first != '"' && r[0].first != '\\'));
          if (!plain) break;
          append_utf8(run, r[0].first);
        }
        if (!run.empty()) parts.push_back(rules.literal(run));
        if (i < n.children.size() && (run.empty() || n.children[i].kind != Kind::set)) {
          parts.push_back(lower(rules, n.children[i], spelling));
          i++;
        }
      }
      return rules.seq(std::move(parts));
    case Kind::alt:
      for (const Node& c : n.children) parts.push_back(lower(rules, c, spelling));
      return rules.alt(std::move(parts));
    case Kind::repeat:
      return rules.repeat(lower(rules, n.children[0], spelling), n.min, n.max);
    default:
      return rules.literal("");
  }
}

constexpr int64_t kFar = int64_t{1} << 40;  // longer than any text here

// The shortest and longest text, in characters; kFar for no limit.
std::pair<int64_t, int64_t> lengths(const Node& n) {
  std::pair<int64_t, int64_t> out{0, 0};
  switch (n.kind) {
    case Kind::set:
      return {1, 1};
    case Kind::seq:
      for (const Node& c : n.children) {
        const auto [low, high] = lengths(c);
        out.first = std::min(kFar, out.first + low);
        out.second = std::min(kFar, out.second + high);
      }
      return out;
    case Kind::alt:
      out.first = kFar;
      for (const Node& c : n.children) {
        const auto [low, high] = lengths(c);
        out.first = std::min(out.first, low);
        out.second = std::max(out.second, high);
      }
      return out;
    case Kind::repeat: {
      const auto [low, high] = lengths(n.children[0]);
      const int64_t most = n.max == kUnbounded ? (high > 0 ? kFar : 0) : n.max;
      return {std::min(kFar, low * n.min), high > 0 && most > kFar / high ? kFar : high * most};
    }
    default:
      return out;
  }
}

// Narrows a tree to texts of low to high characters; false when that can not be done by narrowing counts.
bool narrow(Node& n, int64_t low, int64_t high) {
  const auto [shortest, longest] = lengths(n);
  if (shortest >= low && longest <= high) return true;
  if (n.kind == Kind::alt) {
    std::vector<Node> kept;
    for (Node& c : n.children) {
      const auto [c_short, c_long] = lengths(c);
      if (c_short > high || c_long < low) continue;
      if (narrow(c, low, high)) kept.push_back(std::move(c));
    }
    n.children = std::move(kept);
    return !n.children.empty();
  }
  if (n.kind == Kind::repeat && lengths(n.children[0]) == std::pair<int64_t, int64_t>{1, 1}) {
    n.min = std::max(n.min, low);
    n.max = n.max == kUnbounded ? high : std::min(n.max, high);
    if (n.max >= kFar) n.max = kUnbounded;
    return n.max == kUnbounded || n.min <= n.max;
  }
  if (n.kind != Kind::seq) return false;
  // The open parts share what is left. One of them: exactly. More: each an equal share of the room, and the first all
  // of what is missing, which loses texts but lets no wrong one in.
  std::vector<size_t> open;
  for (size_t i = 0; i < n.children.size(); i++) {
    const auto [a, b] = lengths(n.children[i]);
    if (a != b) open.push_back(i);
  }
  if (open.empty() || shortest > high) return false;
  const int64_t room = high >= kFar ? kFar : high - shortest;
  const int64_t missing = std::max<int64_t>(0, low - shortest);
  const int64_t shared = room >= kFar ? kFar : (room - missing) / static_cast<int64_t>(open.size());
  for (size_t k = 0; k < open.size(); k++) {
    Node& c = n.children[open[k]];
    const auto [a, b] = lengths(c);
    const int64_t must = k == 0 ? missing : 0;
    const int64_t most = room >= kFar ? kFar : open.size() == 1 ? a + room : a + must + shared;
    if (!narrow(c, a + must, most)) return false;
  }
  return true;
}

// Positions after a match of `n` from each of `from`: a set of positions, so the time is polynomial for any pattern.
std::vector<bool> match(const Node& n, const std::vector<uint32_t>& text, std::vector<bool> from) {
  std::vector<bool> out(from.size(), false);
  switch (n.kind) {
    case Kind::set:
      for (size_t i = 0; i + 1 < from.size(); i++)
        if (from[i] && n.set.contains(text[i])) out[i + 1] = true;
      return out;
    case Kind::seq:
      for (const Node& c : n.children) from = match(c, text, std::move(from));
      return from;
    case Kind::alt:
      for (const Node& c : n.children) {
        const std::vector<bool> some = match(c, text, from);
        for (size_t i = 0; i < out.size(); i++) out[i] = out[i] || some[i];
      }
      return out;
    case Kind::repeat:
      for (int64_t k = 0;; k++) {
        if (k >= n.min) {
          bool grew = false;
          for (size_t i = 0; i < out.size(); i++) {
            grew |= from[i] && !out[i];
            out[i] = out[i] || from[i];
          }
          if (!grew) return out;
        }
        if (k == n.max) return out;
        std::vector<bool> next = match(n.children[0], text, from);
        if (k < n.min && next == from) k = n.min - 1;
        from = std::move(next);
      }
    default:
      return from;
  }
}

}  // namespace

Result<Regex> Regex::parse(std::string_view pattern) {
  if (pattern.size() > kMaxPattern)
    return fail(Code::invalid, "regular expression: {} bytes, at most {}", pattern.size(), kMaxPattern);
  std::vector<uint32_t> text;
  if (!decode_utf8(pattern, text) || pattern.find('\0') != std::string_view::npos)
    return fail(Code::invalid, "regular expression: not UTF-8, or a NUL in it");
  ARGENT_LET(Node tree, RegexParser(std::move(text)).parse());
  Regex out;
  out.full_ = tree;
  out.search_ = std::move(tree);
  for (Node* n : {&out.full_, &out.search_}) {
    resolve_edge(*n, true, n == &out.search_);
    resolve_edge(*n, false, n == &out.search_);
  }
  if (has_anchor(out.full_))
    return fail(Code::invalid,
                "regular expression: '^' or '$' that is not at the start or the end can not be enforced");
  return out;
}

Expr Regex::full(Rules& rules, Spelling spelling) const { return lower(rules, full_, spelling); }
Expr Regex::search(Rules& rules, Spelling spelling) const { return lower(rules, search_, spelling); }

Result<Expr> Regex::search(Rules& rules, Spelling spelling, int64_t min_length, int64_t max_length) const {
  if (min_length == 0 && max_length == kUnbounded) return search(rules, spelling);
  Node narrowed = search_;
  if (!narrow(narrowed, min_length, max_length == kUnbounded ? kFar : max_length))
    return fail(Code::unsupported, "the pattern and the length can not be enforced together");
  return lower(rules, narrowed, spelling);
}

bool Regex::found_in(std::string_view utf8) const {
  std::vector<uint32_t> text;
  if (!decode_utf8(utf8, text)) return false;
  std::vector<bool> from(text.size() + 1, false);
  from[0] = true;
  return match(search_, text, std::move(from)).back();
}

Expr json_chars(Rules& rules, const CharSet& set) {
  static const CharSet escaped({{1, 0x1f}, {'"', '"'}, {'\\', '\\'}});
  std::vector<Expr> choices;
  const CharSet plain = set.minus(escaped);
  if (!plain.empty()) choices.push_back(rules.chars(plain));
  CharSet shorts;  // after a backslash
  for (auto [c, letter] :
       {std::pair{'"', '"'}, {'\\', '\\'}, {'\b', 'b'}, {'\f', 'f'}, {'\n', 'n'}, {'\r', 'r'}, {'\t', 't'}})
    if (set.contains(c)) shorts.add(letter, letter);
  if (!shorts.empty()) choices.push_back(rules.seq({rules.literal("\\"), rules.chars(shorts)}));
  // Controls without a short form are left out of classes that hold them among much else: nobody means them there.
  if (plain.empty() && shorts.empty()) {
    for (uint32_t c = 1; c < 0x20; c++)
      if (set.contains(c)) choices.push_back(rules.literal(fmt::format("\\u{:04x}", c)));
  }
  return rules.alt(std::move(choices));
}

}  // namespace argent::grammar
