// Cache::check(): the invariants, each recomputed from scratch and compared with what the cache keeps.
#include <algorithm>

#include "kv/kv.h"

namespace argent::kv {

struct Cache::Census {
  std::vector<std::vector<uint32_t>> holders;  // [group][block]
  std::vector<uint32_t> pins;                  // [node]
};

Status Cache::check() const {
  Census census;
  for (const BlockPool& pool : pools_) census.holders.emplace_back(pool.size());
  census.pins.resize(tree_.n_slots());
  uint32_t n_open = 0;
  for (const Sequence& s : seqs_) {
    if (s.open) {
      ++n_open;
      ARGENT_TRY(check_sequence(s, census));
    } else if (!s.tokens.empty() || !s.nodes.empty() || !s.tables[0].blocks.empty()) {
      return fail(Code::internal, "a closed sequence holds something");
    }
  }
  if (n_open != n_open_) return fail(Code::internal, "{} sequences are open, {} counted", n_open, n_open_);
  ARGENT_TRY(check_tree(census));
  for (uint32_t g = 0; g < n_groups(); ++g) ARGENT_TRY(check_pool(g, census));
  return tier_ ? tier_->check() : Status();
}

// The path is one of the tree and carries the sequence's tokens; tables hold the node's block or a private one, all
// that the next position can see, and no more than blocks_needed() promises.
Status Cache::check_sequence(const Sequence& s, Census& census) const {
  const uint32_t b = config_.block_tokens;
  const auto length = static_cast<uint32_t>(s.tokens.size());
  const size_t n_full = length / b, n_blocks = s.tables[0].blocks.size();
  if (s.nodes.size() > n_full || (s.publish && s.nodes.size() != n_full))
    return fail(Code::internal, "{} of {} full blocks are published", s.nodes.size(), n_full);
  for (size_t i = 0; i < s.nodes.size(); ++i) {
    const int32_t node = s.nodes[i];
    ++census.pins[node];
    if (!tree_.live(node) || tree_.parent(node) != (i == 0 ? kNone : s.nodes[i - 1]))
      return fail(Code::internal, "block {} of a sequence is not a child of the one before", i);
    if (!std::ranges::equal(tree_.tokens(node), std::span(s.tokens).subspan(i * b, b)))
      return fail(Code::internal, "block {} of a sequence has other tokens in the tree", i);
  }
  for (uint32_t g = 0; g < n_groups(); ++g) {
    const Table& t = s.tables[g];
    if (t.blocks.size() != n_blocks || n_blocks * b < length)
      return fail(Code::internal, "group {}: a table of {} blocks for {} tokens", g, t.blocks.size(), length);
    if (t.first > first_needed(g, length))
      return fail(Code::internal, "group {}: held from block {}, length {} needs {}", g, t.first, length,
                  first_needed(g, length));
    const uint32_t most = blocks_needed(config_, config_.groups[g].window, static_cast<uint32_t>(n_blocks * b));
    if (n_blocks - t.first > most)
      return fail(Code::internal, "group {}: {} blocks held, at most {} promised", g, n_blocks - t.first, most);
    for (size_t i = 0; i < n_blocks; ++i) {
      const int32_t block = t.blocks[i];
      if ((block != kNone) != (i >= t.first))
        return fail(Code::internal, "group {}: block {} is {}, held from {}", g, i, block, t.first);
      if (block == kNone) continue;
      if (block < 0 || block >= static_cast<int32_t>(pools_[g].size()))
        return fail(Code::internal, "group {}: no block {} in the pool", g, block);
      ++census.holders[g][block];
      if (i < s.nodes.size() ? tree_.block(s.nodes[i], g) != block : pools_[g].owner(block) != kNone)
        return fail(Code::internal, "group {}: block {} of a sequence is not the tree's, or wrongly published", g, i);
      if (i >= n_full && pools_[g].refs(block) != 1)
        return fail(Code::internal, "group {}: block {} is written with {} holders", g, i, pools_[g].refs(block));
    }
  }
  return {};
}

Status Cache::check_tree(const Census& census) const {
  std::vector<uint32_t> children(tree_.n_slots());
  uint32_t n_live = 0;
  for (int32_t node = 0; node < static_cast<int32_t>(tree_.n_slots()); ++node) {
    if (!tree_.live(node)) continue;
    ++n_live;
    const int32_t parent = tree_.parent(node);
    if (tree_.pins(node) != census.pins[node])
      return fail(Code::internal, "node {}: {} pins, {} sequences", node, tree_.pins(node), census.pins[node]);
    if (tree_.empty_leaf(node)) return fail(Code::internal, "node {} is an empty leaf", node);
    if (parent != kNone) {
      if (!tree_.live(parent)) return fail(Code::internal, "node {} has a dead parent", node);
      ++children[parent];
      if (tree_.pins(parent) < tree_.pins(node))
        return fail(Code::internal, "node {} has more pins than its parent", node);
    }
    for (uint32_t g = 0; g < n_groups(); ++g) {
      const int32_t block = tree_.block(node, g);
      if (block == kNone && !sliding(g)) return fail(Code::internal, "node {} lacks a block of full group {}", node, g);
      if (block != kNone && pools_[g].owner(block) != node)
        return fail(Code::internal, "node {}: block {} of group {} has another owner", node, block, g);
    }
  }
  if (n_live != tree_.size()) return fail(Code::internal, "{} nodes live, {} counted", n_live, tree_.size());
  for (int32_t node = 0; node < static_cast<int32_t>(tree_.n_slots()); ++node)
    if (tree_.live(node) && tree_.children(node) != children[node])
      return fail(Code::internal, "node {}: {} children, {} counted", node, children[node], tree_.children(node));
  return {};
}

// Every block is exactly one of free, referenced, cached; references are the holders; the list of cached blocks of a
// full group has children before parents.
Status Cache::check_pool(uint32_t g, const Census& census) const {
  const BlockPool& pool = pools_[g];
  enum : uint8_t { unseen, free, cached };
  std::vector<uint8_t> state(pool.size(), unseen);
  for (int32_t block : pool.free_blocks()) {
    if (state[block] != unseen || pool.refs(block) != 0 || pool.owner(block) != kNone)
      return fail(Code::internal, "group {}: block {} is on the free stack wrongly", g, block);
    state[block] = free;
  }
  uint32_t n_cached = 0;
  for (int32_t block = pool.oldest_cached(); block != kNone; block = pool.next_cached(block)) {
    const int32_t node = pool.owner(block);
    if (state[block] != unseen || pool.refs(block) != 0 || node == kNone || !tree_.live(node) ||
        tree_.block(node, g) != block)
      return fail(Code::internal, "group {}: block {} is cached wrongly", g, block);
    state[block] = cached;
    ++n_cached;
    const int32_t parent = tree_.parent(node);
    if (!sliding(g) && parent != kNone && state[tree_.block(parent, g)] == cached)
      return fail(Code::internal, "group {}: block {} leaves after its parent", g, block);
  }
  if (n_cached != pool.n_cached())
    return fail(Code::internal, "group {}: {} blocks cached, {} counted", g, n_cached, pool.n_cached());
  for (int32_t block = 0; block < static_cast<int32_t>(pool.size()); ++block) {
    if (pool.refs(block) != census.holders[g][block])
      return fail(Code::internal, "group {}: block {} has {} references, {} holders", g, block, pool.refs(block),
                  census.holders[g][block]);
    if ((pool.refs(block) != 0) != (state[block] == unseen))
      return fail(Code::internal, "group {}: block {} is lost or in two states", g, block);
  }
  return {};
}

}  // namespace argent::kv
