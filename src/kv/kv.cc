#include "kv/kv.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace argent::kv {
namespace {

constexpr uint64_t kMaxPositions = std::numeric_limits<int32_t>::max();

uint64_t ceil_div(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

// With a full group every node holds one of its blocks. Without one, nodes whose blocks are all evicted remain as the
// path to deeper ones; 16 times the blocks lets the path of a sequence be that much longer than what is held of it.
uint64_t tree_capacity(const Config& config) {
  uint64_t smallest_full = kMaxPositions, all = 0;
  for (const GroupConfig& group : config.groups) {
    all += group.n_blocks;
    if (group.window == 0) smallest_full = std::min<uint64_t>(smallest_full, group.n_blocks);
  }
  return std::min(smallest_full, 16 * all);
}

Error stale(SeqId id) { return fail(Code::internal, "KV sequence {:#x} is not open", static_cast<uint64_t>(id)); }

}  // namespace

uint32_t blocks_needed(const Config& config, uint32_t window, uint32_t n_tokens) {
  const uint64_t all = ceil_div(n_tokens, config.block_tokens);
  if (window == 0) return static_cast<uint32_t>(all);
  // The step, the rollback and at worst a block less one token lie behind the block edge that the window ends at.
  const uint64_t b = config.block_tokens;
  const uint64_t behind = ceil_div(uint64_t{config.max_step} + config.rollback + b - 1, b);
  return static_cast<uint32_t>(std::min(all, behind + ceil_div(uint64_t{window} - 1, b)));
}

Result<Cache> Cache::create(Config config, std::unique_ptr<Tier> tier) {
  if (!std::has_single_bit(config.block_tokens) || config.block_tokens > 1u << 16)
    return fail(Code::invalid, "KV block of {} tokens: wanted a power of two up to 65536", config.block_tokens);
  if (config.max_step == 0) return fail(Code::invalid, "KV max_step is 0: wanted at least one token a step");
  if (config.groups.empty()) return fail(Code::invalid, "KV cache without layer groups");
  uint64_t total = 0;
  for (size_t g = 0; g < config.groups.size(); ++g) {
    const GroupConfig& group = config.groups[g];
    if (group.n_blocks == 0) return fail(Code::invalid, "KV group {} has no blocks", g);
    if (uint64_t{group.window} + config.max_step + config.rollback > kMaxPositions)
      return fail(Code::invalid, "KV group {}: window {} + max_step {} + rollback {} exceed {} positions", g,
                  group.window, config.max_step, config.rollback, kMaxPositions);
    total += group.n_blocks;
  }
  if (total > kMaxPositions) return fail(Code::invalid, "{} KV blocks: wanted at most {}", total, kMaxPositions);
  return Cache(std::move(config), std::move(tier));
}

Cache::Cache(Config config, std::unique_ptr<Tier> tier)
    : config_(std::move(config)),
      tree_(config_.block_tokens, static_cast<uint32_t>(config_.groups.size()), tree_capacity(config_)),
      tier_(std::move(tier)) {
  for (const GroupConfig& group : config_.groups) pools_.emplace_back(group.n_blocks);
  if (tier_) up_.reserve(tree_capacity(config_));  // of any path, so that what is forgotten takes no memory
}

// ---- sequences ----

SeqId Cache::id_of(const Sequence& s) const {
  return static_cast<SeqId>(uint64_t{s.generation} << 32 | static_cast<uint64_t>(&s - seqs_.data()));
}

const Cache::Sequence* Cache::find(SeqId id) const {
  const auto slot = static_cast<uint32_t>(static_cast<uint64_t>(id));
  const auto generation = static_cast<uint32_t>(static_cast<uint64_t>(id) >> 32);
  if (slot >= seqs_.size() || !seqs_[slot].open || seqs_[slot].generation != generation) return nullptr;
  return &seqs_[slot];
}

SeqId Cache::open(uint64_t salt) {
  if (closed_.empty()) {
    const size_t slot = seqs_.size();
    std::vector<Table> tables(n_groups());
    make_room(closed_, slot + 1);  // close() then takes no memory
    seqs_.emplace_back().tables = std::move(tables);
    closed_.push_back(static_cast<uint32_t>(slot));
  }
  Sequence& s = seqs_[closed_.back()];
  closed_.pop_back();
  ++s.generation;
  s.open = true;
  s.publish = config_.prefix_cache;
  s.salt = salt;
  ++n_open_;
  return id_of(s);
}

void Cache::close(SeqId id, bool keep) {
  Sequence* s = find(id);
  if (!s) return;
  while (!s->tables[0].blocks.empty()) pop_block(*s, keep);
  for (Table& t : s->tables) t.first = 0;
  s->tokens.clear();
  s->open = false;
  --n_open_;
  closed_.push_back(static_cast<uint32_t>(s - seqs_.data()));
}

// Takes the last block off a sequence. Deepest first is what keeps eviction O(1): a parent is always released after its
// children, so it stands behind them on the list of cached blocks and the front of the list is a leaf.
void Cache::pop_block(Sequence& s, bool keep) {
  const size_t i = s.tables[0].blocks.size() - 1;
  for (uint32_t g = 0; g < n_groups(); ++g) {
    Table& t = s.tables[g];
    if (t.blocks[i] != kNone) pools_[g].drop_ref(t.blocks[i]);
    t.blocks.pop_back();
    t.first = std::min(t.first, static_cast<uint32_t>(i));
  }
  if (i >= s.nodes.size()) return;
  const int32_t node = s.nodes.back();
  s.nodes.pop_back();
  if (--tree_.pins(node) != 0) return;
  if (!keep && tree_.children(node) == 0) {
    if (const int32_t below = tier_ ? tier_node(node, false) : kNone; below != kNone) tier_->forget(below);
    remove_leaf(node);
  } else {
    prune(node);
  }
}

// The window is counted back from the last block edge, not from the length: then the full blocks of a sequence are
// always a usable prefix, which is what preemption and roll-back come back to. It costs at most one block.
uint32_t Cache::first_needed(uint32_t group, uint32_t length) const {
  const uint64_t window = config_.groups[group].window, b = config_.block_tokens;
  const uint64_t query = length / b * b;
  return window != 0 && query + 1 > window ? static_cast<uint32_t>((query + 1 - window) / b) : 0;
}

// ---- prefix reuse ----

int32_t Cache::cached_block(const Path& path, uint32_t group, uint32_t i) const {
  return i < path.tree.size() ? tree_.block(path.tree[i], group) : kNone;
}

bool Cache::in_tier(const Path& path, uint32_t group, uint32_t i, bool disk) const {
  if (i >= path.tier.size()) return false;
  return tier_->in_host(path.tier[i], group) || (disk && tier_->on_disk(path.tier[i], group));
}

// Leaves what is known along `tokens` in `path`, in the tier's files too if asked for, and returns the usable length.
// One token is left over.
uint32_t Cache::match(uint64_t salt, std::span<const int32_t> tokens, bool disk, Path& path) const {
  path.clear();
  const uint32_t b = config_.block_tokens;
  const auto most = static_cast<uint32_t>(tokens.empty() ? 0 : (tokens.size() - 1) / b);
  const auto last = [](const std::vector<int32_t>& nodes) { return nodes.empty() ? kNone : nodes.back(); };
  while (path.tree.size() < most) {
    const int32_t node = tree_.find(last(path.tree), salt, tokens.subspan(path.tree.size() * b, b));
    if (node == kNone) break;
    path.tree.push_back(node);
  }
  path.n = static_cast<uint32_t>(path.tree.size());
  while (tier_ && path.tier.size() < most) {
    const auto i = static_cast<uint32_t>(path.tier.size());
    const int32_t node = tier_->find(last(path.tier), salt, tokens.subspan(size_t{i} * b, b));
    if (node == kNone) break;
    path.tier.push_back(node);
    if (i < path.n) continue;
    bool whole = true;
    for (uint32_t g = 0; g < n_groups(); ++g) whole = whole && (sliding(g) || in_tier(path, g, i, disk));
    if (!whole) break;
    ++path.n;
  }
  return usable_length(path.n * b, [&](uint32_t g, uint32_t i) {
    return cached_block(path, g, i) != kNone || in_tier(path, g, i, disk);
  });
}

PrefixHit Cache::find_prefix(uint64_t salt, std::span<const int32_t> tokens) const {
  Path path;
  const uint32_t length = match(salt, tokens, false, path);
  return {length, path.n * config_.block_tokens};
}

Result<PrefixHit> Cache::adopt_prefix(SeqId id, std::span<const int32_t> tokens) {
  Sequence* s = find(id);
  if (!s) return stale(id);
  if (!s->tables[0].blocks.empty())
    return fail(Code::internal, "adopt_prefix on a sequence that has {} tokens and {} reserved positions",
                s->tokens.size(), capacity(id));
  PrefixHit hit;
  path_.clear();
  if (config_.prefix_cache) {
    hit.length = match(s->salt, tokens, false, path_);
    if (tier_) hit.length = affordable_length(hit.length);
    hit.matched = path_.n * config_.block_tokens;
  }
  const uint32_t n = hit.length / config_.block_tokens;
  const uint32_t n_known = std::min(n, static_cast<uint32_t>(path_.tree.size()));
  s->nodes.assign(path_.tree.begin(), path_.tree.begin() + n_known);
  s->tokens.assign(tokens.begin(), tokens.begin() + hit.length);
  for (int32_t node : s->nodes) ++tree_.pins(node);
  for (uint32_t g = 0; g < n_groups(); ++g) {
    Table& t = s->tables[g];
    t.first = first_needed(g, hit.length);
    t.blocks.assign(n, kNone);
    for (uint32_t i = t.first; i < n; ++i)
      if ((t.blocks[i] = cached_block(path_, g, i)) != kNone) pools_[g].add_ref(t.blocks[i]);
  }
  if (tier_) restore(*s, n);
  ++counters_.lookups;
  counters_.hits += hit.length != 0;
  counters_.lookup_tokens += tokens.size();
  counters_.reused_tokens += hit.length;
  counters_.window_lost += hit.matched - hit.length;
  return hit;
}

// ---- a step ----

// Every cached block can be evicted: whoever references a block of a node also pins all nodes above it, so nothing
// below an unreferenced block of a full group is referenced.
Status Cache::room_for(uint32_t group, uint64_t need, const char* purpose) {
  const BlockPool& pool = pools_[group];
  if (need <= pool.n_available()) return {};
  ++counters_.failed_reserves;
  return fail(Code::out_of_memory, "KV group {}: {} needs {} more blocks; {} of {} are free, {} cached, {} in use",
              group, purpose, need, pool.n_free(), pool.size(), pool.n_cached(), pool.size() - pool.n_available());
}

Status Cache::reserve(SeqId id, uint32_t n) {
  Sequence* s = find(id);
  if (!s) return stale(id);
  if (n > config_.max_step)
    return fail(Code::invalid, "a step of {} tokens for one sequence: the most is {}", n, config_.max_step);
  const uint64_t end = s->tokens.size() + n;
  if (end > kMaxPositions) return fail(Code::invalid, "a sequence of {} tokens: the most is {}", end, kMaxPositions);
  const uint64_t want = ceil_div(end, config_.block_tokens), have = s->tables[0].blocks.size();
  if (want <= have) return {};
  for (uint32_t g = 0; g < n_groups(); ++g) ARGENT_TRY(room_for(g, want - have, "a step"));
  for (Table& t : s->tables) make_room(t.blocks, want);  // before any is taken: the tables grow together
  for (uint32_t g = 0; g < n_groups(); ++g)
    for (uint64_t i = have; i < want; ++i) s->tables[g].blocks.push_back(take_block(g));
  return {};
}

Status Cache::commit(SeqId id, std::span<const int32_t> tokens) {
  Sequence* s = find(id);
  if (!s) return stale(id);
  if (s->tokens.size() + tokens.size() > capacity(id))
    return fail(Code::internal, "commit of {} tokens at length {}: only {} positions are reserved", tokens.size(),
                s->tokens.size(), capacity(id));
  s->tokens.insert(s->tokens.end(), tokens.begin(), tokens.end());
  publish(*s);
  let_go(*s);
  return {};
}

void Cache::publish(Sequence& s) {
  const uint32_t b = config_.block_tokens;
  while (s.publish && (s.nodes.size() + 1) * b <= s.tokens.size()) {
    const size_t i = s.nodes.size();
    const std::span<const int32_t> tokens(s.tokens.data() + i * b, b);
    const int32_t parent = s.nodes.empty() ? kNone : s.nodes.back();
    int32_t node = tree_.find(parent, s.salt, tokens);
    make_room(s.nodes, i + 1);
    if (node != kNone) {
      ++counters_.merged;
    } else if (tree_.full() && !make_room_in_tree()) {
      s.publish = false;
      return;
    } else {
      node = tree_.insert(parent, s.salt, tokens);
      ++counters_.published;
    }
    ++tree_.pins(node);
    s.nodes.push_back(node);
    for (uint32_t g = 0; g < n_groups(); ++g) {
      int32_t& ours = s.tables[g].blocks[i];
      int32_t& theirs = tree_.block(node, g);
      if (theirs == kNone) {
        theirs = ours;
        pools_[g].set_owner(ours, node);
      } else {
        pools_[g].add_ref(theirs);
        pools_[g].drop_ref(ours);
        ours = theirs;
      }
    }
  }
}

void Cache::let_go(Sequence& s) {
  const auto length = static_cast<uint32_t>(s.tokens.size());
  for (uint32_t g = 0; g < n_groups(); ++g) {
    Table& t = s.tables[g];
    const uint32_t first = first_needed(g, length - std::min(length, config_.rollback));
    for (; t.first < first; ++t.first) {
      pools_[g].drop_ref(t.blocks[t.first]);
      t.blocks[t.first] = kNone;
    }
  }
}

// ---- roll-back, forks ----

Result<uint32_t> Cache::truncate(SeqId id, uint32_t n) {
  Sequence* s = find(id);
  if (!s) return stale(id);
  const uint32_t b = config_.block_tokens;
  n = std::min(n, static_cast<uint32_t>(s->tokens.size()));

  // The block that holds position n will be written again: nobody else may have it.
  const uint32_t partial = n / b;
  bool writable = partial >= s->nodes.size();
  for (uint32_t g = 0; g < n_groups() && writable && n % b; ++g) {
    const int32_t block = s->tables[g].blocks[partial];
    writable = block == kNone || pools_[g].refs(block) == 1;
  }
  if (!writable) n = partial * b;
  n = usable_length(n, [&](uint32_t g, uint32_t i) {
    return s->tables[g].blocks[i] != kNone || (i < s->nodes.size() && tree_.block(s->nodes[i], g) != kNone);
  });

  // References to dropped blocks come back before later blocks go, so that nothing in between can be lost.
  const auto end = static_cast<uint32_t>(ceil_div(n, b));
  for (uint32_t g = 0; g < n_groups(); ++g) {
    Table& t = s->tables[g];
    const uint32_t first = first_needed(g, n);
    for (uint32_t i = first; i < std::min(end, t.first); ++i)
      pools_[g].add_ref(t.blocks[i] = tree_.block(s->nodes[i], g));
    t.first = std::min(t.first, first);
  }
  while (s->tables[0].blocks.size() > end) pop_block(*s, /*keep=*/true);
  s->tokens.resize(n);
  s->publish = config_.prefix_cache && s->nodes.size() == n / b;
  return n;
}

Result<Fork> Cache::fork(SeqId id) {
  if (!find(id)) return stale(id);
  const auto length = static_cast<uint32_t>(find(id)->tokens.size());
  const uint32_t full = length / config_.block_tokens;
  const bool copy = length % config_.block_tokens != 0;
  for (uint32_t g = 0; g < n_groups() && copy; ++g) ARGENT_TRY(room_for(g, 1, "a fork"));

  Fork fork{.seq = open(find(id)->salt), .copies = {}};  // may move the sequences
  const Sequence& from = *find(id);
  Sequence& to = *find(fork.seq);
  to.publish = from.publish;
  to.tokens.assign(from.tokens.begin(), from.tokens.end());
  to.nodes.assign(from.nodes.begin(), from.nodes.end());
  for (int32_t node : to.nodes) ++tree_.pins(node);
  for (uint32_t g = 0; g < n_groups(); ++g) {
    Table& t = to.tables[g];
    t.blocks.assign(from.tables[g].blocks.begin(), from.tables[g].blocks.begin() + full);
    t.first = from.tables[g].first;
    for (uint32_t i = t.first; i < full; ++i) pools_[g].add_ref(t.blocks[i]);
  }
  for (uint32_t g = 0; g < n_groups() && copy; ++g) {
    const int32_t block = take_block(g);
    to.tables[g].blocks.push_back(block);
    fork.copies.push_back({g, from.tables[g].blocks[full], block});
  }
  return fork;
}

// ---- eviction ----

int32_t Cache::take_block(uint32_t group) {
  if (pools_[group].n_free() == 0) evict_one(group);
  return pools_[group].take();
}

// A full group cannot spare a block of a prefix without losing what follows, so the whole leaf goes. A sliding group
// gives up one block: prefixes whose window it is not in stay usable.
void Cache::evict_one(uint32_t group) {
  const int32_t block = pools_[group].oldest_cached();
  const int32_t node = pools_[group].owner(block);
  save(node, sliding(group) ? group : n_groups());
  if (!sliding(group)) {
    counters_.evicted += remove_leaf(node);
    return;
  }
  pools_[group].reclaim(block);
  tree_.block(node, group) = kNone;
  ++counters_.evicted;
  prune(node);
}

// Only without a full group can the tree be full of nodes whose blocks are gone: evict until a path ends.
bool Cache::make_room_in_tree() {
  for (bool any = true; any && tree_.full();) {
    any = false;
    for (uint32_t g = 0; g < n_groups(); ++g) {
      if (pools_[g].n_cached() == 0) continue;
      evict_one(g);
      any = true;
    }
  }
  return !tree_.full();
}

// Frees the blocks of an unpinned leaf, their number is returned, and then the node.
uint32_t Cache::remove_leaf(int32_t node) {
  uint32_t n_freed = 0;
  for (uint32_t g = 0; g < n_groups(); ++g) {
    int32_t& block = tree_.block(node, g);
    if (block == kNone) continue;
    pools_[g].reclaim(block);
    block = kNone;
    ++n_freed;
  }
  prune(node);
  return n_freed;
}

// Removes the node if it is an empty leaf, and then its ancestors as far as they are.
void Cache::prune(int32_t node) {
  while (node != kNone && tree_.empty_leaf(node)) {
    const int32_t parent = tree_.parent(node);
    tree_.remove(node);
    node = parent;
  }
}

void Cache::drop_cached() {
  std::unique_ptr<Tier> tier = std::move(tier_);  // evicted without it
  for (uint32_t g = 0; g < n_groups(); ++g)
    while (pools_[g].n_cached() != 0) evict_one(g);
  tier_ = std::move(tier);
  if (tier_) tier_->clear();
}

// ---- reading ----

std::span<const int32_t> Cache::table(SeqId id, uint32_t group) const {
  const Sequence* s = find(id);
  if (!s || group >= n_groups()) return {};
  return s->tables[group].blocks;
}

std::span<const int32_t> Cache::tokens(SeqId id) const {
  const Sequence* s = find(id);
  if (!s) return {};
  return s->tokens;
}

uint32_t Cache::length(SeqId id) const { return static_cast<uint32_t>(tokens(id).size()); }

uint32_t Cache::capacity(SeqId id) const {
  return static_cast<uint32_t>(std::min(table(id, 0).size() * config_.block_tokens, size_t{kMaxPositions}));
}

GroupUsage Cache::usage(uint32_t group) const {
  const BlockPool& pool = pools_[group];
  return {pool.size(), pool.n_free(), pool.size() - pool.n_available(), pool.n_cached()};
}

}  // namespace argent::kv
