// Shares the attention of a step out to threadgroups: from the sequences of a layer group to the work lists of
// kernels/args_attention.h, and what the host has to give the attention kernels. Plain numbers in, plain numbers out.
//
// Sequences with at most kDecodeRows rows go to attention_decode_*, an item a row and split of its keys; longer ones to
// attention_prefill_*, an item a tile of rows. What a row gives depends on its position, the window, max_splits of the
// plan and which of the two it goes to, not on other sequences or how a prompt's rows fall into tiles.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "backends/metal/kernels/args_attention.h"
#include "backends/metal/kernels/args_step.h"

namespace argent::metal {

constexpr uint32_t kDecodeRows = 8;   // of a sequence
constexpr uint32_t kSplitBlocks = 9;  // of a split, at least: 257 keys, even where the first or last is seen in part
constexpr uint32_t kDecodeThreads = 128;  // also of attention_any
constexpr uint32_t kPrefillThreads = 32 * kPrefillSimdgroups;
constexpr uint32_t kCombineThreads = 32;

// True where attention_decode_<d>, attention_combine and attention_prefill_<d> can be used, otherwise attention_any.
constexpr bool attention_is_fast(uint32_t d_head, uint32_t d_value) {
  return d_head == d_value && (d_head == 64 || d_head == 80 || d_head == 96 || d_head == 128 || d_head == 256);
}

// Splits that a row of a plan for n_rows rows may have: together at most 256, which fill the largest GPUs with eight KV
// heads several times over and bound the workspace.
constexpr uint32_t attention_max_splits(uint32_t n_rows) {
  uint32_t splits = kMaxSplits;
  while (splits > 1 && splits * n_rows > 256) splits /= 2;
  return splits;
}

struct AttentionPolicy {
  uint32_t window = 0;      // 0: none
  uint32_t max_splits = 1;  // attention_max_splits of the plan's rows; without meaning where not fast
  bool fast = true;         // attention_is_fast; otherwise all rows go to attention_any, whole
};

struct AttentionLists {
  std::vector<AttentionItem> decode;          // of attention_decode_* or attention_any
  std::vector<AttentionCombineItem> combine;  // rows of more than one split
  std::vector<AttentionItem> prefill;
};

// The lists of a layer group; those that take longest come first.
AttentionLists attention_items(std::span<const KvSequence> sequences, const AttentionPolicy& policy);

// What lists, grid and workspace may need, from the number of a plan's rows alone.
constexpr uint32_t attention_max_decode(uint32_t n_rows) { return n_rows * attention_max_splits(n_rows); }
constexpr uint32_t attention_max_combine(uint32_t n_rows) { return n_rows; }
constexpr uint32_t attention_max_prefill(uint32_t n_rows) { return n_rows / (kDecodeRows + 1); }
// Of the partial results; at least 16, since the kernel's argument wants memory even where no row is split.
constexpr uint64_t attention_workspace_bytes(uint32_t n_rows, uint32_t n_head, uint32_t d_value) {
  if (attention_max_splits(n_rows) == 1) return 16;
  return uint64_t(attention_max_decode(n_rows)) * n_head * (d_value + kPartialExtra) * sizeof(float);
}

// The grid's extent over a list of n items: the next power of two, so that few different ones come up.
constexpr uint32_t attention_bucket(uint32_t n_items) {
  uint32_t bucket = n_items > 0;
  while (bucket < n_items) bucket *= 2;
  return bucket;
}

template <class Item>
constexpr size_t attention_list_bytes(size_t n_items) {
  return kAttentionListHead * sizeof(uint32_t) + n_items * sizeof(Item);
}
// Writes a list as the kernels read it; `to` has attention_list_bytes of it.
template <class Item>
void write_attention_list(std::span<const Item> items, std::span<std::byte> to) {
  const uint32_t head[kAttentionListHead] = {uint32_t(items.size())};
  std::memcpy(to.data(), head, sizeof head);
  if (!items.empty()) std::memcpy(to.data() + sizeof head, items.data(), items.size_bytes());
}

// kAttentionHeads of attention_decode_<d>: heads of a threadgroup; and threadgroups that all heads take.
constexpr uint32_t attention_decode_heads(uint32_t heads_of_kv) {
  uint32_t heads = 8;
  while (heads / 2 >= heads_of_kv) heads /= 2;
  return heads;
}
constexpr uint32_t attention_decode_grid(uint32_t n_head, uint32_t n_head_kv) {
  const uint32_t heads = attention_decode_heads(n_head / n_head_kv);
  return n_head_kv * ((n_head / n_head_kv + heads - 1) / heads);
}

// Lengths of threadgroup(0), by threads of a threadgroup where these are free.
uint32_t attention_any_threadgroup_bytes(uint32_t d_value, uint32_t threads);
uint32_t attention_decode_threadgroup_bytes(uint32_t d, uint32_t heads_of_kv, uint32_t threads);
uint32_t attention_prefill_threadgroup_bytes(uint32_t d);

}  // namespace argent::metal
