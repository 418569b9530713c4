// The tree of published prefixes: a node is one full block of tokens after its parent's.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kv/block_pool.h"

namespace argent::kv {

// A child is found by a hash of (parent, tokens) and accepted only if the parent and every token are equal, so a hash
// collision costs time and never a wrong hit. Roots are told apart by salt. A node knows one block per layer group, or
// kNone where that block has been evicted. The tree counts nothing about blocks: Cache keeps the two in step.
class PrefixTree {
 public:
  PrefixTree(uint32_t block_tokens, uint32_t n_groups, uint64_t capacity);

  // The child of `parent` (kNone: a root of `salt`) that holds exactly `tokens` (block_tokens of them), or kNone.
  int32_t find(int32_t parent, uint64_t salt, std::span<const int32_t> tokens) const;
  // Adds that child, without blocks. Requires that it is not there and that the tree is not full.
  int32_t insert(int32_t parent, uint64_t salt, std::span<const int32_t> tokens);
  // Requires a node without children, pins and blocks.
  void remove(int32_t node);

  uint64_t salt(int32_t root) const { return nodes_[root].salt; }
  int32_t parent(int32_t node) const { return nodes_[node].parent; }
  uint32_t children(int32_t node) const { return nodes_[node].children; }
  // The number of sequences whose tokens run through the node; it stays in the tree while there is one.
  uint32_t& pins(int32_t node) { return nodes_[node].pins; }
  uint32_t pins(int32_t node) const { return nodes_[node].pins; }
  int32_t& block(int32_t node, uint32_t group) { return blocks_[size_t{n_groups_} * node + group]; }
  int32_t block(int32_t node, uint32_t group) const { return blocks_[size_t{n_groups_} * node + group]; }
  std::span<const int32_t> tokens(int32_t node) const {
    return {tokens_.data() + size_t{block_tokens_} * node, block_tokens_};
  }
  bool empty_leaf(int32_t node) const;

  bool full() const { return size_ >= capacity_; }
  uint32_t size() const { return size_; }
  uint32_t room() const { return static_cast<uint32_t>(capacity_ - std::min<uint64_t>(capacity_, size_)); }
  // Node numbers lie in [0, n_slots()); live() tells which are in use.
  uint32_t n_slots() const { return static_cast<uint32_t>(nodes_.size()); }
  bool live(int32_t node) const { return nodes_[node].live; }

 private:
  struct Node {
    uint64_t hash = 0, salt = 0;
    int32_t parent = kNone;
    int32_t hash_next = kNone;  // next node in the same bucket
    uint32_t children = 0, pins = 0;
    bool live = false;
  };

  uint64_t hash(int32_t parent, uint64_t salt, std::span<const int32_t> tokens) const;
  void rehash(size_t n_buckets);

  uint32_t block_tokens_, n_groups_;
  uint64_t capacity_, seed_;
  uint32_t size_ = 0;
  std::vector<Node> nodes_;
  std::vector<int32_t> tokens_;   // [node][block_tokens]
  std::vector<int32_t> blocks_;   // [node][group]
  std::vector<int32_t> buckets_;  // heads of the hash chains; a power of two
  std::vector<int32_t> unused_;
};

}  // namespace argent::kv
