#include "kv/block_pool.h"

namespace argent::kv {

BlockPool::BlockPool(uint32_t n_blocks) : blocks_(size_t{n_blocks} + 1) {
  // Low numbers go out first, so a short run touches a compact part of the memory.
  free_.reserve(n_blocks);
  for (uint32_t i = n_blocks; i-- > 0;) free_.push_back(static_cast<int32_t>(i));
  blocks_[sentinel()].prev = blocks_[sentinel()].next = sentinel();
}

void BlockPool::unlink(int32_t block) {
  Block& b = blocks_[block];
  blocks_[b.prev].next = b.next;
  blocks_[b.next].prev = b.prev;
  b.prev = b.next = kNone;
  --n_cached_;
}

int32_t BlockPool::take() {
  const int32_t block = free_.back();
  free_.pop_back();
  blocks_[block].refs = 1;
  return block;
}

void BlockPool::add_ref(int32_t block) {
  if (blocks_[block].refs++ == 0) unlink(block);
}

void BlockPool::drop_ref(int32_t block) {
  Block& b = blocks_[block];
  if (--b.refs != 0) return;
  if (b.owner == kNone) {
    free_.push_back(block);
    return;
  }
  Block& end = blocks_[sentinel()];
  b.prev = end.prev;
  b.next = sentinel();
  blocks_[end.prev].next = block;
  end.prev = block;
  ++n_cached_;
}

void BlockPool::reclaim(int32_t block) {
  unlink(block);
  blocks_[block].owner = kNone;
  free_.push_back(block);
}

}  // namespace argent::kv
