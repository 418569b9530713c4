#include "grammar/rules.h"

#include <algorithm>

namespace argent::grammar {

namespace {

// Compiling costs about 20 us a node with 49,152 tokens; this is a second or so.
constexpr int kMaxNodes = 60000;
constexpr size_t kMaxText = 4 << 20;
// (a{0,1000}){0,1000} keeps a state for each pair of counts: masks then take half a second.
constexpr int64_t kMaxCounted = 70000;
// xgrammar 0.2.9 allows tokens that it then refuses where a class is counted to more than this.
constexpr int64_t kRun = 64;
// A rule of one character inside a repetition makes every token one that leaves the rule: 19 ms a mask instead of 4 us.
constexpr int kMaxInlined = 48;

void print_char(std::string& out, uint32_t c) {
  const bool plain =
      (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == ' ' || c == '_' || c == ':';
  if (plain)
    out += static_cast<char>(c);
  else
    out += fmt::format("\\U{:08x}", c);
}

}  // namespace

bool decode_utf8(std::string_view text, std::vector<uint32_t>& out) {
  size_t i = 0;
  while (i < text.size()) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const int extra = lead < 0x80 ? 0 : lead < 0xc2 ? -1 : lead < 0xe0 ? 1 : lead < 0xf0 ? 2 : lead < 0xf5 ? 3 : -1;
    if (extra < 0 || text.size() - i <= static_cast<size_t>(extra)) return false;
    uint32_t c = extra == 0 ? lead : lead & (0x3f >> extra);
    for (int k = 1; k <= extra; k++) {
      const auto next = static_cast<unsigned char>(text[i + k]);
      if ((next & 0xc0) != 0x80) return false;
      c = c << 6 | (next & 0x3f);
    }
    if ((extra == 2 && c < 0x800) || (extra == 3 && c < 0x10000) || c > kMaxChar || (c >= 0xd800 && c <= 0xdfff))
      return false;
    out.push_back(c);
    i += extra + 1;
  }
  return true;
}

void append_utf8(std::string& out, uint32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xc0 | c >> 6);
    out += static_cast<char>(0x80 | (c & 0x3f));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xe0 | c >> 12);
    out += static_cast<char>(0x80 | (c >> 6 & 0x3f));
    out += static_cast<char>(0x80 | (c & 0x3f));
  } else {
    out += static_cast<char>(0xf0 | c >> 18);
    out += static_cast<char>(0x80 | (c >> 12 & 0x3f));
    out += static_cast<char>(0x80 | (c >> 6 & 0x3f));
    out += static_cast<char>(0x80 | (c & 0x3f));
  }
}

Expr Rules::push(Node node) {
  for (Expr c : node.children) node.counted = std::max(node.counted, nodes_[c].counted);
  if (node.kind == Kind::repeat) node.counted *= std::max<int64_t>(1, std::max(node.min, node.max));
  node.counted = std::min(node.counted, kMaxCounted + 1);
  nodes_.push_back(std::move(node));
  return static_cast<Expr>(nodes_.size() - 1);
}

Expr Rules::literal(std::string_view text) {
  Node node{Kind::literal};
  node.text = text;
  return push(std::move(node));
}

Expr Rules::chars(const CharSet& set) {
  if (set.empty()) return never();
  Node node{Kind::chars};
  node.set = set;
  return push(std::move(node));
}

Expr Rules::ref(RuleId rule) {
  Node node{Kind::ref};
  node.min = rule;
  return push(std::move(node));
}

Expr Rules::token(int32_t id) {
  Node node{Kind::token};
  node.min = id;
  return push(std::move(node));
}

Expr Rules::seq(std::vector<Expr> parts) {
  if (parts.size() == 1) return parts[0];
  if (parts.empty()) return literal("");
  Node node{Kind::seq};
  node.children = std::move(parts);
  return push(std::move(node));
}

Expr Rules::alt(std::vector<Expr> choices) {
  if (choices.size() == 1) return choices[0];
  Node node{Kind::alt};
  node.children = std::move(choices);
  return push(std::move(node));
}

Expr Rules::repeat(Expr e, int64_t min, int64_t max) {
  if (max == 0) return literal("");
  if (min == 1 && max == 1) return e;
  // (x?)* and (x*)* are x*: one way to read a text instead of infinitely many.
  std::vector<bool> none(rules_.size(), false);
  if (max == kUnbounded && nullable(e, none)) min = 0;
  while (max == kUnbounded && nodes_[e].kind == Kind::repeat && nodes_[e].min <= 1 && nodes_[e].max == kUnbounded)
    min = nodes_[e].min == 0 ? 0 : min, e = nodes_[e].children[0];
  if (nodes_[e].kind == Kind::chars && std::max(min, max) > kRun) {
    const RuleId full = add("run", repeat(e, kRun, kRun));
    std::vector<Expr> parts(min / kRun, ref(full));
    if (min % kRun > 0) parts.push_back(repeat(e, min % kRun, min % kRun));
    Expr rest = max == kUnbounded ? repeat(e, 0) : repeat(e, 0, (max - min) % kRun);
    for (int64_t k = max == kUnbounded ? 0 : (max - min) / kRun; k > 0; k--)
      rest = ref(add("run", alt({repeat(e, 0, kRun - 1), seq({ref(full), rest})})));
    parts.push_back(rest);
    return seq(std::move(parts));
  }
  Node node{Kind::repeat, min, max};
  node.children = {e};
  return push(std::move(node));
}

RuleId Rules::add(std::string name) {
  rules_.push_back({std::move(name)});
  return static_cast<RuleId>(rules_.size() - 1);
}

RuleId Rules::add(std::string name, Expr body) {
  const RuleId rule = add(std::move(name));
  define(rule, body);
  return rule;
}

void Rules::define(RuleId rule, Expr body) { rules_[rule].body = body; }

bool Rules::ends(Expr e, const std::vector<bool>& rule_ends) const {
  const Node& n = nodes_[e];
  switch (n.kind) {
    case Kind::literal:
    case Kind::chars:
    case Kind::token:
      return true;
    case Kind::ref:
      return rule_ends[n.min];
    case Kind::seq:
      for (Expr c : n.children)
        if (!ends(c, rule_ends)) return false;
      return true;
    case Kind::alt:
      for (Expr c : n.children)
        if (ends(c, rule_ends)) return true;
      return false;
    case Kind::repeat:
      return n.min == 0 || ends(n.children[0], rule_ends);
  }
  return false;
}

bool Rules::nullable(Expr e, const std::vector<bool>& rule_nullable) const {
  const Node& n = nodes_[e];
  switch (n.kind) {
    case Kind::literal:
      return n.text.empty();
    case Kind::chars:
    case Kind::token:
      return false;
    case Kind::ref:
      return rule_nullable[n.min];
    case Kind::seq:
      for (Expr c : n.children)
        if (!nullable(c, rule_nullable)) return false;
      return true;
    case Kind::alt:
      for (Expr c : n.children)
        if (nullable(c, rule_nullable)) return true;
      return false;
    case Kind::repeat:
      return n.min == 0 || nullable(n.children[0], rule_nullable);
  }
  return false;
}

void Rules::leading(Expr e, const std::vector<bool>& rule_nullable, std::vector<RuleId>& out) const {
  const Node& n = nodes_[e];
  if (n.kind == Kind::ref) out.push_back(static_cast<RuleId>(n.min));
  for (Expr c : n.children) {
    leading(c, rule_nullable, out);
    if (n.kind == Kind::seq && !nullable(c, rule_nullable)) break;
  }
}

void Rules::reach(Expr e, const std::vector<bool>& rule_ends, std::vector<bool>& seen,
                  std::vector<RuleId>& todo) const {
  if (!ends(e, rule_ends)) return;
  const Node& n = nodes_[e];
  if (n.kind == Kind::ref && !seen[n.min]) {
    seen[n.min] = true;
    todo.push_back(static_cast<RuleId>(n.min));
  }
  for (Expr c : n.children) reach(c, rule_ends, seen, todo);
}

std::vector<bool> Rules::fixed_point(const std::function<bool(RuleId, const std::vector<bool>&)>& holds) const {
  const size_t n = rules_.size();
  std::vector<std::vector<RuleId>> users(n);  // of each rule
  for (size_t r = 0; r < n; r++) {
    std::vector<Expr> todo{rules_[r].body};
    while (!todo.empty()) {
      const Expr e = todo.back();
      todo.pop_back();
      if (e < 0) continue;
      if (nodes_[e].kind == Kind::ref) users[nodes_[e].min].push_back(static_cast<RuleId>(r));
      todo.insert(todo.end(), nodes_[e].children.begin(), nodes_[e].children.end());
    }
  }
  std::vector<bool> out(n, false);
  std::vector<RuleId> todo;
  for (size_t r = 0; r < n; r++) todo.push_back(static_cast<RuleId>(r));
  while (!todo.empty()) {
    const RuleId rule = todo.back();
    todo.pop_back();
    if (out[rule] || !holds(rule, out)) continue;
    out[rule] = true;
    todo.insert(todo.end(), users[rule].begin(), users[rule].end());
  }
  return out;
}

Status Rules::check_left_recursion(const std::vector<bool>& reached) const {
  const size_t n = rules_.size();
  const std::vector<bool> empty = fixed_point(
      [&](RuleId r, const std::vector<bool>& so_far) { return reached[r] && nullable(rules_[r].body, so_far); });
  std::vector<std::vector<RuleId>> first(n);
  for (size_t r = 0; r < n; r++)
    if (reached[r]) leading(rules_[r].body, empty, first[r]);
  // Depth first without recursion: a rule met again while it is open leads itself.
  enum : uint8_t { fresh, open, done };
  std::vector<uint8_t> state(n, fresh);
  std::vector<std::pair<RuleId, size_t>> stack;
  for (size_t start = 0; start < n; start++) {
    if (!reached[start] || state[start] != fresh) continue;
    stack.push_back({static_cast<RuleId>(start), 0});
    state[start] = open;
    while (!stack.empty()) {
      auto& [rule, next] = stack.back();
      if (next == first[rule].size()) {
        state[rule] = done;
        stack.pop_back();
        continue;
      }
      const RuleId child = first[rule][next++];
      if (state[child] == open)
        return fail(Code::invalid, "rule '{}' is left-recursive: it begins with itself", rules_[child].name);
      if (state[child] == fresh && reached[child]) {
        state[child] = open;
        stack.push_back({child, 0});
      }
    }
  }
  return {};
}

int Rules::leaf_size(Expr e) const {
  int size = nodes_[e].kind == Kind::ref ? kMaxInlined + 1 : 1;
  for (Expr c : nodes_[e].children) {
    if (size > kMaxInlined) break;
    size += leaf_size(c);
  }
  return size;
}

void Rules::print(Expr e, bool atom, bool repeated, const std::vector<bool>& rule_ends, std::string& out) const {
  const Node& n = nodes_[e];
  switch (n.kind) {
    case Kind::literal: {
      std::vector<uint32_t> text;
      decode_utf8(n.text, text);
      out += '"';
      for (uint32_t c : text) print_char(out, c);
      out += '"';
      return;
    }
    case Kind::chars:
      out += '[';
      for (const CharRange& r : n.set.ranges()) {
        print_char(out, r.first);
        if (r.first == r.last) continue;
        out += '-';
        print_char(out, r.last);
      }
      out += ']';
      return;
    case Kind::token:
      out += fmt::format("Token({})", n.min);
      return;
    case Kind::ref:
      if (repeated && leaf_size(rules_[n.min].body) <= kMaxInlined)
        print(rules_[n.min].body, true, repeated, rule_ends, out);
      else
        out += fmt::format("r{}", n.min);
      return;
    case Kind::seq:
      if (atom) out += '(';
      for (Expr c : n.children) {
        out += ' ';
        print(c, true, repeated, rule_ends, out);
      }
      if (atom) out += ')';
      return;
    case Kind::alt: {
      if (atom) out += '(';
      bool more = false;
      for (Expr c : n.children) {
        if (!ends(c, rule_ends)) continue;
        if (more) out += " | ";
        print(c, false, repeated, rule_ends, out);
        more = true;
      }
      if (atom) out += ')';
      return;
    }
    case Kind::repeat:
      if (!ends(n.children[0], rule_ends)) {
        out += "\"\"";
        return;
      }
      out += "(";
      print(n.children[0], nodes_[n.children[0]].kind != Kind::chars, true, rule_ends, out);
      if (n.min == 0 && n.max == kUnbounded)
        out += "*)";
      else if (n.min == 1 && n.max == kUnbounded)
        out += "+)";
      else if (n.max == kUnbounded)
        out += fmt::format("{{{},}})", n.min);
      else
        out += fmt::format("{{{},{}}})", n.min, n.max);
      return;
  }
}

Result<std::string> Rules::text(RuleId root) const {
  if (n_nodes() > kMaxNodes)
    return fail(Code::invalid, "the grammar has {} parts, at most {} are compiled", n_nodes(), kMaxNodes);
  for (const Node& node : nodes_)
    if (node.counted > kMaxCounted)
      return fail(Code::invalid, "counts within counts multiply to more than {}", kMaxCounted);
  const size_t n = rules_.size();
  const std::vector<bool> rule_ends = fixed_point(
      [&](RuleId r, const std::vector<bool>& so_far) { return rules_[r].body >= 0 && ends(rules_[r].body, so_far); });
  if (!rule_ends[root])
    return fail(Code::invalid, "nothing satisfies rule '{}': it has no finite text", rules_[root].name);

  std::vector<bool> reached(n, false);
  std::vector<RuleId> todo{root};
  reached[root] = true;
  while (!todo.empty()) {
    const RuleId rule = todo.back();
    todo.pop_back();
    reach(rules_[rule].body, rule_ends, reached, todo);
  }
  ARGENT_TRY(check_left_recursion(reached));

  std::string out = fmt::format("root ::= r{}\n", root);
  for (size_t r = 0; r < n; r++) {
    if (!reached[r]) continue;
    out += fmt::format("r{} ::= ", r);
    print(rules_[r].body, false, false, rule_ends, out);
    out += '\n';
    if (out.size() > kMaxText) return fail(Code::invalid, "the grammar is larger than {} bytes", kMaxText);
  }
  return out;
}

}  // namespace argent::grammar
