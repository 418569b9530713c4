#include "tokenizer/specials.h"

#include <algorithm>
#include <queue>

namespace argent {

size_t Specials::slot(uint64_t key) const {
  size_t i = hash_(key) & (edges_.size() - 1);
  while (edges_[i].key != key && edges_[i].key != UINT64_MAX) i = (i + 1) & (edges_.size() - 1);
  return i;
}

uint32_t Specials::child(uint32_t node, uint8_t byte) const {
  if (node == 0) return first_[byte];
  return edges_.empty() ? 0 : edges_[slot(uint64_t(node) << 8 | byte)].node;
}

void Specials::add_edge(uint32_t node, uint8_t byte, uint32_t child) {
  if (node == 0) {
    first_[byte] = child;
  } else {
    const uint64_t key = uint64_t(node) << 8 | byte;
    edges_[slot(key)] = {key, child};
  }
}

void Specials::build(std::span<const Token> tokens) {
  size_t n_bytes = 0;
  for (const Token& t : tokens) n_bytes += t.text.size();
  size_t capacity = 16;
  while (capacity < n_bytes * 2) capacity *= 2;
  edges_.assign(capacity, {});

  struct Origin {
    uint32_t parent;
    uint8_t byte;
  };
  std::vector<Origin> origins = {{0, 0}};
  for (const Token& t : tokens) {
    uint32_t node = 0;
    for (const char c : t.text) {
      uint32_t next = child(node, uint8_t(c));
      if (next == 0) {
        next = uint32_t(nodes_.size());
        add_edge(node, uint8_t(c), next);
        nodes_.push_back({.length = nodes_[node].length + 1});
        origins.push_back({node, uint8_t(c)});
      }
      node = next;
    }
    if (nodes_[node].id < 0) nodes_[node].id = t.id, nodes_[node].control = t.control;
  }

  // Shorter prefixes first: the links of a node follow from those of its parent.
  std::vector<uint32_t> order(nodes_.size());
  for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return nodes_[a].length < nodes_[b].length; });
  for (const uint32_t i : order) {
    if (nodes_[i].length > 1) {
      uint32_t suffix = origins[i].parent;
      do {
        suffix = nodes_[suffix].fail;
        nodes_[i].fail = child(suffix, origins[i].byte);
      } while (nodes_[i].fail == 0 && suffix != 0);
    }
    const Node& fail = nodes_[nodes_[i].fail];
    nodes_[i].shorter = fail.id >= 0 ? nodes_[i].fail : fail.shorter;
  }
}

std::vector<Specials::Match> Specials::find(std::string_view text,
                                            std::span<const std::pair<uint32_t, uint32_t>> plain) const {
  // A candidate is the longest allowed token that ends at a place. Shorter ones there come up only if it is refused.
  struct Candidate {
    uint32_t length, end, node;
    bool operator<(const Candidate& other) const {  // which is tried first
      return length != other.length ? length > other.length : end < other.end;
    }
  };
  std::vector<Candidate> candidates;
  auto plain_before = [&](uint32_t end) {  // the end of the last plain stretch that begins before `end`
    auto it = std::partition_point(plain.begin(), plain.end(), [&](auto& stretch) { return stretch.first < end; });
    return it == plain.begin() ? 0 : std::min(end, (it - 1)->second);
  };
  auto allowed = [&](uint32_t node, uint32_t end) {  // the longest of node and its suffixes that may end here, or 0
    if (node != 0 && nodes_[node].id < 0) node = nodes_[node].shorter;
    while (node != 0 && nodes_[node].control && end - nodes_[node].length < plain_before(end))
      node = nodes_[node].shorter;
    return node;
  };

  uint32_t state = 0;
  for (uint32_t i = 0; i < text.size(); ++i) {
    const uint8_t byte = uint8_t(text[i]);
    uint32_t next;
    while ((next = child(state, byte)) == 0 && state != 0) state = nodes_[state].fail;
    state = next;
    if (state == 0 || (nodes_[state].id < 0 && nodes_[state].shorter == 0)) continue;
    if (const uint32_t node = allowed(state, i + 1)) candidates.push_back({nodes_[node].length, i + 1, node});
  }
  if (candidates.empty()) return {};

  std::sort(candidates.begin(), candidates.end());
  auto later = [](const Candidate& a, const Candidate& b) { return b < a; };
  std::priority_queue<Candidate, std::vector<Candidate>, decltype(later)> shortened(later);
  std::vector<bool> taken(text.size());
  std::vector<Match> matches;
  for (size_t next = 0; next < candidates.size() || !shortened.empty();) {
    Candidate c;
    if (shortened.empty() || (next < candidates.size() && candidates[next] < shortened.top())) {
      c = candidates[next++];
    } else {
      c = shortened.top();
      shortened.pop();
    }
    // What is taken is at least as long as this, so an overlap shows at one of the ends.
    if (taken[c.end - 1]) continue;
    const uint32_t begin = c.end - c.length;
    if (taken[begin]) {
      const uint32_t node = allowed(nodes_[c.node].shorter, c.end);
      if (node != 0) shortened.push({nodes_[node].length, c.end, node});
      continue;
    }
    std::fill(taken.begin() + begin, taken.begin() + c.end, true);
    matches.push_back({begin, c.end, nodes_[c.node].id});
  }
  std::sort(matches.begin(), matches.end(), [](const Match& a, const Match& b) { return a.begin < b.begin; });
  return matches;
}

}  // namespace argent
