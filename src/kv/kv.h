// The KV cache as numbers: which block of which layer group holds which tokens of which sequence. No tensors, no
// device; a backend owns the memory and is told block numbers.
//
// Positions of a sequence are cut into blocks of `block_tokens`. Each layer group (all layers with the same attention
// span and the same KV shape) has its own pool of blocks, and each sequence has one table per group. Three rules carry
// sharing, roll-back, preemption and eviction:
//   - Only full blocks are shared, and a full block is never written again, so nothing is copied on write.
//   - A block that a commit fills is published in a prefix tree. A published block that nobody references stays cached,
//     and is evicted only when its pool has no free block left, longest unreferenced first, leaves before parents.
//   - A sliding group references only the window before the last block edge and what follows; what falls out of it
//   stays
//     cached.
//
// One step of one sequence:   reserve(n) -> table() goes to the device, which computes n positions -> commit(tokens).
// A commit may be shorter than its reservation (rejected drafts); what was computed beyond it is simply written again.
// Reuse of a block number is safe on a device that runs steps in the order of the calls. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstddef>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/result.h"
#include "kv/block_pool.h"
#include "kv/prefix_tree.h"
#include "kv/tier.h"

namespace argent::kv {

struct GroupConfig {
  uint32_t n_blocks = 0;
  uint32_t window = 0;  // a query at position p sees keys at (p - window, p]; 0 is full attention
};

struct Config {
  uint32_t block_tokens = 32;  // a power of two
  uint32_t max_step = 512;     // the most tokens that one step computes for one sequence
  uint32_t rollback = 0;       // sliding groups hold this many more positions, so that truncate() can go back
  std::vector<GroupConfig> groups = {};
  bool prefix_cache = true;  // false: nothing is published; adopt_prefix never hits
};

// The most blocks that a sequence of up to n_tokens (a step's own included) references at once in a group of that
// window (0: full), whatever it does: a pool of this size never fails the only sequence in it. What a sliding pool has
// beyond that keeps old windows, and so prefixes that end there, usable.
uint32_t blocks_needed(const Config& config, uint32_t window, uint32_t n_tokens);

// Names an open sequence; never reused after close(), so a stale one is noticed.
enum class SeqId : uint64_t {};

struct PrefixHit {
  uint32_t length = 0;   // tokens whose KV can be used: a multiple of block_tokens
  uint32_t matched = 0;  // tokens that tree and tier know; more than `length` where a sliding group lost its window
};

// Copy the whole block `from` to block `to` in all layers of `group`.
struct BlockCopy {
  uint32_t group;
  int32_t from, to;
};

struct Fork {
  SeqId seq;
  std::vector<BlockCopy>
      copies;  // to be queued before the next step; empty if the length is a multiple of block_tokens
};

struct GroupUsage {
  uint32_t total = 0, free = 0, referenced = 0, cached = 0;  // blocks; total is the sum of the others
};

// Totals since the cache was made.
struct Counters {
  uint64_t lookups = 0;          // calls of adopt_prefix
  uint64_t hits = 0;             // those that found at least one block
  uint64_t lookup_tokens = 0;    // tokens asked for
  uint64_t reused_tokens = 0;    // tokens found
  uint64_t window_lost = 0;      // tokens known to the tree but not usable since a sliding group lost its window
  uint64_t published = 0;        // blocks of tokens that entered the tree
  uint64_t merged = 0;           // blocks of tokens that were in the tree already when a commit filled them
  uint64_t evicted = 0;          // blocks, all groups together
  uint64_t failed_reserves = 0;  // reserve() and fork() that ended with out_of_memory
};

class Cache {
 public:
  // invalid: no groups, a group without blocks, block_tokens not a power of two, max_step 0, sizes beyond 2^31.
  // With a tier, blocks that are evicted go there, and adopt_prefix() brings them back: whoever owns the device does
  // the tier's transfers before the next step.
  static Result<Cache> create(Config config, std::unique_ptr<Tier> tier = nullptr);

  // An empty sequence. Prefixes are shared only between sequences of the same salt (model, adapter, user).
  SeqId open(uint64_t salt = 0);

  // What adopt_prefix would find with room for all of it, changing nothing. O(tokens).
  PrefixHit find_prefix(uint64_t salt, std::span<const int32_t> tokens) const;
  // Starts an empty sequence with the longest usable cached prefix of `tokens`: whole blocks, less than tokens.size()
  // so that a position is left to compute. A full group needs all blocks of the prefix, a sliding one its last window.
  // What the tier has of it comes back as far as free and cached blocks reach. internal: the sequence is not empty.
  Result<PrefixHit> adopt_prefix(SeqId seq, std::span<const int32_t> tokens);

  // Begins to read from disk what the longest prefix lacks that can be had with it. Returns the number that
  // tier()->arrived() takes for the last of it; 0: there is nothing to wait for.
  uint64_t load_prefix(uint64_t salt, std::span<const int32_t> tokens);

  // Gives positions [length, length + n) a block in every group, evicting cached blocks where none is free. An engine
  // that is a step ahead of its commits asks for the step in flight and the next one together.
  // out_of_memory: a pool cannot (nothing has changed). invalid: n > max_step.
  Status reserve(SeqId seq, uint32_t n);

  // The KV of `tokens` now stands at [length, length + tokens.size()), which was reserved: the length grows, blocks
  // that became full are published, sliding groups let go of what is out of sight. A block whose content the tree
  // already has is given up for the one in the tree (and fills the tree's gaps in sliding groups): content is stored
  // once, and every full block of a sequence is a node of one path. internal: not reserved.
  Status commit(SeqId seq, std::span<const int32_t> tokens);

  // Rolls back to the largest usable length <= n, drops what is behind it (reservations too), and returns it. That is
  //   min(n, length)            while it lies in the block being filled, or in full blocks that only this sequence has;
  //   else a multiple of block_tokens, since published blocks are not written again; lower where a sliding group has
  //   lost a block of the window there: the highest multiple whose window is held or cached, in the end 0.
  // Over tokens that this sequence committed itself, going back to the greatest length so far minus `rollback` never
  // loses a window.
  Result<uint32_t> truncate(SeqId seq, uint32_t n);

  // A second sequence with the same tokens. Full blocks are shared, the one being filled is to be copied; reservations
  // stay with the original. out_of_memory: no block for the copy (nothing has changed).
  Result<Fork> fork(SeqId seq);

  // Ends a sequence. keep: its full blocks stay cached (preemption is close, open, adopt_prefix). Otherwise the blocks
  // that no other sequence or cached prefix builds on are free at once. No effect on a stale id.
  void close(SeqId seq, bool keep = true);

  // Frees all blocks that no open sequence references and all that the tier has, as when their content can no longer be
  // trusted.
  void drop_cached();
  // Queues copies of cached blocks to the tier, those released last first; `more` is called after each and may end it.
  void save_cached(const std::function<bool()>& more);

  // Logical block -> physical block, kNone where a sliding group let go; covers all that is reserved. Valid until the
  // next change of this sequence. These four give nothing for a stale id.
  std::span<const int32_t> table(SeqId seq, uint32_t group) const;
  std::span<const int32_t> tokens(SeqId seq) const;  // the committed ones
  uint32_t length(SeqId seq) const;                  // their number
  uint32_t capacity(SeqId seq) const;                // positions that have blocks, >= length

  const Config& config() const { return config_; }
  Tier* tier() const { return tier_.get(); }  // null: there is none
  GroupUsage usage(uint32_t group) const;
  const Counters& counters() const { return counters_; }
  uint32_t n_open() const { return n_open_; }

  // Verifies every invariant of the pools, the tree and the sequences; O(everything), for tests. internal: what is
  // broken.
  Status check() const;

 private:
  struct Table {
    std::vector<int32_t> blocks;  // kNone before `first`, held from there on
    uint32_t first = 0;
  };
  struct Sequence {
    uint32_t generation = 0;
    bool open = false;
    bool publish = false;  // false: full blocks from nodes.size() on stay private
    uint64_t salt = 0;
    std::vector<int32_t> tokens;
    std::vector<int32_t> nodes;  // tree path of the published blocks, [0, nodes.size()) of the table
    std::vector<Table> tables;   // one per group
  };

  Cache(Config config, std::unique_ptr<Tier> tier);

  const Sequence* find(SeqId id) const;
  Sequence* find(SeqId id) { return const_cast<Sequence*>(std::as_const(*this).find(id)); }
  SeqId id_of(const Sequence& s) const;

  uint32_t n_groups() const { return static_cast<uint32_t>(pools_.size()); }
  bool sliding(uint32_t group) const { return config_.groups[group].window != 0; }
  bool has_full_group() const {
    return std::any_of(config_.groups.begin(), config_.groups.end(),
                       [](const GroupConfig& g) { return g.window == 0; });
  }
  // The first block that a sequence of that length holds in a group.
  uint32_t first_needed(uint32_t group, uint32_t length) const;
  // The largest length <= n whose window is there in every sliding group, or rather: the first such length found by
  // going down to the start of a missing block, below which no length that contains this block's positions can be
  // usable. present(group, i) tells whether block i can be had; each block is asked for at most once a group and round.
  template <class Present>
  uint32_t usable_length(uint32_t n, Present present) const;
  // What is known along a text: its nodes in the tree, and in the tier; `n` blocks of it are complete for full groups.
  struct Path {
    std::vector<int32_t> tree, tier;
    uint32_t n = 0;
    void clear() { tree.clear(), tier.clear(), n = 0; }
  };
  int32_t cached_block(const Path& path, uint32_t group, uint32_t i) const;
  bool in_tier(const Path& path, uint32_t group, uint32_t i, bool disk) const;
  uint32_t match(uint64_t salt, std::span<const int32_t> tokens, bool disk, Path& path) const;
  uint32_t affordable_length(uint32_t n) const;
  void restore(Sequence& s, uint32_t n);

  void publish(Sequence& s);
  void let_go(Sequence& s);
  void pop_block(Sequence& s, bool keep);
  int32_t take_block(uint32_t group);
  void evict_one(uint32_t group);
  int32_t tier_node(int32_t node, bool add);
  void save(int32_t node, uint32_t only_group);
  bool make_room_in_tree();
  uint32_t remove_leaf(int32_t node);
  void prune(int32_t node);
  Status room_for(uint32_t group, uint64_t need, const char* purpose);

  struct Census;  // what the sequences hold, counted by check()
  Status check_sequence(const Sequence& s, Census& census) const;
  Status check_tree(const Census& census) const;
  Status check_pool(uint32_t group, const Census& census) const;

  Config config_;
  PrefixTree tree_;
  std::vector<BlockPool> pools_;  // one per group
  std::vector<Sequence> seqs_;    // slots; closed ones keep their buffers for the next sequence
  std::vector<uint32_t> closed_;
  std::unique_ptr<Tier> tier_;
  Path path_;                // scratch of adopt_prefix
  std::vector<int32_t> up_;  // scratch of tier_node
  Counters counters_;
  uint32_t n_open_ = 0;
};

template <class Present>
uint32_t Cache::usable_length(uint32_t n, Present present) const {
  bool again = true;
  while (again) {
    again = false;
    for (uint32_t g = 0; g < n_groups() && !again; ++g) {
      if (!sliding(g)) continue;
      const uint32_t first = first_needed(g, n);
      for (auto i = static_cast<uint32_t>((n + config_.block_tokens - 1) / config_.block_tokens); i-- > first;) {
        if (present(g, i)) continue;
        n = i * config_.block_tokens;
        again = true;
        break;
      }
    }
  }
  return n;
}

}  // namespace argent::kv
