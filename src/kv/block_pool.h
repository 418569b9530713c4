// The blocks of one layer group: which are free, who holds them, and in which order the cached ones leave.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace argent::kv {

constexpr int32_t kNone = -1;  // no block, no node

// A block is in exactly one of three states:
//   free        refs == 0, no owner      on the free stack
//   referenced  refs >= 1                in the table of each of its holders; owner is its tree node, if it has one
//   cached      refs == 0, has an owner  on the list of evictable blocks, longest unreferenced first
// Every operation is O(1) and allocates nothing.
class BlockPool {
 public:
  explicit BlockPool(uint32_t n_blocks);

  // A free block with one reference. Requires n_free() > 0.
  int32_t take();
  void add_ref(int32_t block);
  // The last reference gone, the block is cached if a tree node owns it, else free.
  void drop_ref(int32_t block);

  // Makes `node` the owner of a referenced block.
  void set_owner(int32_t block, int32_t node) { blocks_[block].owner = node; }
  // Takes a cached block from its owner: it is free then.
  void reclaim(int32_t block);

  // The cached block that has been unreferenced for longest, kNone if none is cached.
  int32_t oldest_cached() const { return n_cached_ ? blocks_[sentinel()].next : kNone; }
  // The cached block released next after `block`, kNone at the end.
  int32_t next_cached(int32_t block) const { return blocks_[block].next == sentinel() ? kNone : blocks_[block].next; }

  // The same from the other end: released last, and the one before.
  int32_t newest_cached() const { return n_cached_ ? blocks_[sentinel()].prev : kNone; }
  int32_t previous_cached(int32_t block) const {
    return blocks_[block].prev == sentinel() ? kNone : blocks_[block].prev;
  }

  uint32_t refs(int32_t block) const { return blocks_[block].refs; }
  int32_t owner(int32_t block) const { return blocks_[block].owner; }
  uint32_t size() const { return static_cast<uint32_t>(blocks_.size() - 1); }
  uint32_t n_free() const { return static_cast<uint32_t>(free_.size()); }
  uint32_t n_cached() const { return n_cached_; }
  uint32_t n_available() const { return n_free() + n_cached_; }
  const std::vector<int32_t>& free_blocks() const { return free_; }

 private:
  struct Block {
    uint32_t refs = 0;
    int32_t owner = kNone;
    int32_t prev = kNone, next = kNone;  // neighbours on the list of cached blocks
  };

  int32_t sentinel() const { return static_cast<int32_t>(blocks_.size() - 1); }
  void unlink(int32_t block);

  std::vector<Block> blocks_;  // the last one is the sentinel of the circular list
  std::vector<int32_t> free_;
  uint32_t n_cached_ = 0;
};

}  // namespace argent::kv
