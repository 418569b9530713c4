// Cache's part with a tier: what is evicted goes there, what a prefix lacks comes back.
#include <algorithm>
#include <new>

#include "kv/kv.h"

namespace argent::kv {

// ---- coming back ----

// The greatest usable length up to n for which blocks can be had: every one of path_ that lies in the tier wants one,
// which may be taken from what is cached, but for the prefix itself.
uint32_t Cache::affordable_length(uint32_t n) const {
  const uint32_t b = config_.block_tokens;
  for (;;) {
    uint32_t short_of = 0;
    for (uint32_t g = 0; g < n_groups(); ++g) {
      uint32_t missing = 0, own = 0;
      for (uint32_t i = first_needed(g, n); i < n / b; ++i) {
        const int32_t block = cached_block(path_, g, i);
        missing += block == kNone;
        own += block != kNone && pools_[g].refs(block) == 0;
      }
      const uint32_t there = pools_[g].n_available() - own;
      if (missing > there) short_of = std::max(short_of, missing - there);
    }
    // Without a full group, whose blocks bound it, the tree may be full of nodes that have no blocks left.
    const uint32_t n_new = n / b - std::min(n / b, static_cast<uint32_t>(path_.tree.size()));
    if (n_new > tree_.room() && !has_full_group()) short_of = std::max(short_of, n_new - tree_.room());
    if (short_of == 0) return n;
    n = usable_length(n - std::min(n, short_of * b), [&](uint32_t g, uint32_t i) {
      return cached_block(path_, g, i) != kNone || in_tier(path_, g, i, false);
    });
  }
}

// Gives the first n blocks of a sequence that the tree lacks and path_ has in the tier blocks of their own, and nodes.
void Cache::restore(Sequence& s, uint32_t n) {
  // Held first, the deepest longest ago: what is evicted for the new blocks goes to the tier as well.
  for (uint32_t i = n; i-- > 0;)
    for (uint32_t g = 0; g < n_groups(); ++g)
      if (i >= s.tables[g].first && s.tables[g].blocks[i] == kNone) tier_->hold(path_.tier[i], g);
  for (uint32_t i = 0; i < n; ++i) {
    bool any = false, from_disk = false;
    for (uint32_t g = 0; g < n_groups(); ++g) {
      int32_t& block = s.tables[g].blocks[i];
      if (i < s.tables[g].first || block != kNone) continue;
      block = take_block(g);
      from_disk = tier_->restore(path_.tier[i], g, block) || from_disk;
      any = true;
    }
    if (i >= s.nodes.size()) {
      const auto tokens =
          std::span<const int32_t>(s.tokens).subspan(size_t{i} * config_.block_tokens, config_.block_tokens);
      s.nodes.push_back(tree_.insert(s.nodes.empty() ? kNone : s.nodes.back(), s.salt, tokens));
      ++tree_.pins(s.nodes.back());
    }
    for (uint32_t g = 0; g < n_groups(); ++g) {
      const int32_t block = s.tables[g].blocks[i];
      if (block == kNone || tree_.block(s.nodes[i], g) != kNone) continue;
      tree_.block(s.nodes[i], g) = block;
      pools_[g].set_owner(block, s.nodes[i]);
    }
    if (any) tier_->count_restored(config_.block_tokens, from_disk);
  }
}

uint64_t Cache::load_prefix(uint64_t salt, std::span<const int32_t> tokens) {
  if (!config_.prefix_cache || !tier_ || !tier_->has_disk()) return 0;
  const uint32_t b = config_.block_tokens;
  const uint32_t had = match(salt, tokens, false, path_);
  uint32_t n = match(salt, tokens, true, path_);
  const auto lacks = [&](uint32_t g, uint32_t i) {
    return i >= first_needed(g, n) && cached_block(path_, g, i) == kNone && !in_tier(path_, g, i, false);
  };
  // As much as has room at once; the rest is computed.
  while (n > had) {
    uint64_t bytes = 0, per_block = 0;
    for (uint32_t g = 0; g < n_groups(); ++g) {
      per_block += tier_->group_bytes(g);
      for (uint32_t i = 0; i < n / b; ++i)
        if (lacks(g, i)) bytes += tier_->group_bytes(g);
    }
    if (bytes <= tier_->load_limit()) break;
    const uint64_t too_many = (bytes - tier_->load_limit() + per_block - 1) / per_block;
    n = usable_length(n - static_cast<uint32_t>(std::min<uint64_t>(n, too_many * b)), [&](uint32_t g, uint32_t i) {
      return cached_block(path_, g, i) != kNone || in_tier(path_, g, i, true);
    });
  }
  if (n <= had) return 0;
  for (uint32_t i = n / b; i-- > 0;)  // what is read must not push out what it belongs to
    for (uint32_t g = 0; g < n_groups(); ++g)
      if (i >= first_needed(g, n) && in_tier(path_, g, i, false)) tier_->hold(path_.tier[i], g);
  uint64_t last = 0;
  for (uint32_t i = 0; i < n / b; ++i)
    for (uint32_t g = 0; g < n_groups(); ++g) {
      if (!lacks(g, i)) continue;
      const uint64_t read = tier_->load(path_.tier[i], g);
      if (read == 0) return last;
      last = std::max(last, read);
    }
  return last;
}

// ---- going ----

void Cache::save_cached(const std::function<bool()>& more) {
  for (uint32_t g = 0; g < n_groups() && tier_; ++g)
    for (int32_t block = pools_[g].newest_cached(); block != kNone; block = pools_[g].previous_cached(block)) {
      save(pools_[g].owner(block), g);
      if (!more()) return;
    }
}

// The tier's node of the same prefix; kNone: it has none, or no room for one. Where it is added, prune() it again.
int32_t Cache::tier_node(int32_t node, bool add) {
  up_.clear();
  for (; node != kNone; node = tree_.parent(node)) up_.push_back(node);
  const uint64_t salt = tree_.salt(up_.back());
  int32_t at = kNone;
  for (auto next = up_.rbegin(); next != up_.rend(); ++next) {
    const auto tokens = tree_.tokens(*next);
    const int32_t below = add ? tier_->add(at, salt, tokens) : tier_->find(at, salt, tokens);
    if (below == kNone) {
      if (add) tier_->prune(at);
      return kNone;
    }
    at = below;
  }
  return at;
}

// Saves the cached blocks of a node, or that of one group.
void Cache::save(int32_t node, uint32_t only_group) {
  int32_t to = kNone;
  try {
    if (tier_) to = tier_node(node, true);
  } catch (const std::bad_alloc&) {  // it is not found later
  }
  if (to == kNone) return;
  const bool one = only_group < n_groups();
  for (uint32_t g = 0; g < n_groups(); ++g)
    if ((!one || g == only_group) && tree_.block(node, g) != kNone)
      tier_->save(to, g, tree_.block(node, g), one && tree_.pins(node) != 0);
  tier_->prune(to);
}

}  // namespace argent::kv
