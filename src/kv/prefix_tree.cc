#include "kv/prefix_tree.h"

#include <algorithm>
#include <random>

#include "kv/id_list.h"

namespace argent::kv {

// The seed keeps a client from preparing prompts that all fall into one bucket. No result depends on it.
PrefixTree::PrefixTree(uint32_t block_tokens, uint32_t n_groups, uint64_t capacity)
    : block_tokens_(block_tokens),
      n_groups_(n_groups),
      capacity_(capacity),
      seed_(uint64_t{std::random_device{}()} << 32 | std::random_device{}()),
      buckets_(64, kNone) {}

uint64_t PrefixTree::hash(int32_t parent, uint64_t salt, std::span<const int32_t> tokens) const {
  auto mix = [](uint64_t h) {
    h = (h ^ (h >> 32)) * 0x9e3779b97f4a7c15u;
    return h ^ (h >> 29);
  };
  uint64_t h = mix(seed_ ^ static_cast<uint32_t>(parent));
  if (parent == kNone) h = mix(h ^ salt);
  for (int32_t token : tokens) h = mix(h ^ static_cast<uint32_t>(token));
  return h;
}

int32_t PrefixTree::find(int32_t parent, uint64_t salt, std::span<const int32_t> tokens) const {
  const uint64_t h = hash(parent, salt, tokens);
  for (int32_t i = buckets_[h & (buckets_.size() - 1)]; i != kNone; i = nodes_[i].hash_next) {
    const Node& node = nodes_[i];
    if (node.parent == parent && (parent != kNone || node.salt == salt) && std::ranges::equal(this->tokens(i), tokens))
      return i;
  }
  return kNone;
}

int32_t PrefixTree::insert(int32_t parent, uint64_t salt, std::span<const int32_t> tokens) {
  if (size_ >= buckets_.size()) rehash(buckets_.size() * 2);
  int32_t id;
  if (unused_.empty()) {
    const size_t n = nodes_.size() + 1;
    id = static_cast<int32_t>(nodes_.size());
    tokens_.resize(n * block_tokens_);  // the node last: where one of these finds no memory, nothing has changed
    blocks_.resize(n * n_groups_, kNone);
    make_room(unused_, n);
    nodes_.emplace_back();
  } else {
    id = unused_.back();
    unused_.pop_back();
  }
  const uint64_t h = hash(parent, salt, tokens);
  int32_t& head = buckets_[h & (buckets_.size() - 1)];
  nodes_[id] = {.hash = h, .salt = salt, .parent = parent, .hash_next = head, .live = true};
  head = id;
  std::ranges::copy(tokens, tokens_.begin() + size_t{block_tokens_} * id);
  if (parent != kNone) ++nodes_[parent].children;
  ++size_;
  return id;
}

void PrefixTree::remove(int32_t node) {
  int32_t* link = &buckets_[nodes_[node].hash & (buckets_.size() - 1)];
  while (*link != node) link = &nodes_[*link].hash_next;
  *link = nodes_[node].hash_next;
  if (nodes_[node].parent != kNone) --nodes_[nodes_[node].parent].children;
  nodes_[node] = {};
  unused_.push_back(node);
  --size_;
}

bool PrefixTree::empty_leaf(int32_t node) const {
  if (nodes_[node].children != 0 || nodes_[node].pins != 0) return false;
  for (uint32_t g = 0; g < n_groups_; ++g)
    if (block(node, g) != kNone) return false;
  return true;
}

void PrefixTree::rehash(size_t n_buckets) {
  buckets_.assign(n_buckets, kNone);
  for (int32_t i = 0; i < static_cast<int32_t>(nodes_.size()); ++i) {
    if (!nodes_[i].live) continue;
    int32_t& head = buckets_[nodes_[i].hash & (n_buckets - 1)];
    nodes_[i].hash_next = head;
    head = i;
  }
}

}  // namespace argent::kv
