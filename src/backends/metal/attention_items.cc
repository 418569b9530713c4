#include "backends/metal/attention_items.h"

#include <algorithm>

namespace argent::metal {
namespace {

uint32_t first_visible(uint32_t position, uint32_t window) {
  return window && position >= window ? position - window + 1 : 0;
}

// Splits are runs of whole blocks, as even as can be.
void add_row(uint32_t row, uint32_t position, uint32_t table, const AttentionPolicy& policy, uint32_t& slots,
             AttentionLists& lists) {
  const uint32_t first = first_visible(position, policy.window), end = position + 1;
  const uint32_t block = first / kKvPositions, n_blocks = (end + kKvPositions - 1) / kKvPositions - block;
  const uint32_t n_splits = policy.fast ? std::clamp(n_blocks / kSplitBlocks, 1u, policy.max_splits) : 1;
  for (uint32_t s = 0; s < n_splits; ++s) {
    const auto edge = [&](uint32_t i) { return (block + uint32_t(uint64_t(n_blocks) * i / n_splits)) * kKvPositions; };
    lists.decode.push_back({row, 1, position, table, std::max(first, edge(s)), std::min(end, edge(s + 1)),
                            n_splits == 1 ? uint32_t(kAttentionWhole) : slots + s, 0});
  }
  if (n_splits == 1) return;
  lists.combine.push_back({row, slots, n_splits, 0});
  slots += n_splits;
}

// Eights of rows dealt out evenly, so that a row more asks for a further tile as rarely as can be.
void add_tiles(const KvSequence& sequence, uint32_t window, AttentionLists& lists) {
  const uint32_t eights = (sequence.n_rows + 7) / 8, tiles = (8 * eights + kPrefillRows - 1) / kPrefillRows;
  for (uint32_t t = 0; t < tiles; ++t) {
    const auto edge = [&](uint32_t i) { return std::min(8 * (eights * i / tiles), sequence.n_rows); };
    const uint32_t position = sequence.length + edge(t), end = sequence.length + edge(t + 1);
    lists.prefill.push_back({sequence.first_row + edge(t), end - position, position, sequence.table,
                             first_visible(position, window), end, kAttentionWhole, 0});
  }
}

uint32_t blocks(const AttentionItem& item) { return (item.end - 1) / kKvPositions - item.first / kKvPositions; }

constexpr uint32_t round16(uint32_t bytes) { return (bytes + 15) / 16 * 16; }

}  // namespace

AttentionLists attention_items(std::span<const KvSequence> sequences, const AttentionPolicy& policy) {
  AttentionLists lists;
  uint32_t slots = 0;
  for (const KvSequence& s : sequences) {
    if (policy.fast && s.n_rows > kDecodeRows) {
      add_tiles(s, policy.window, lists);
    } else {
      for (uint32_t r = 0; r < s.n_rows; ++r) add_row(s.first_row + r, s.length + r, s.table, policy, slots, lists);
    }
  }
  const auto longer = [](const AttentionItem& a, const AttentionItem& b) { return blocks(a) > blocks(b); };
  std::stable_sort(lists.decode.begin(), lists.decode.end(), longer);
  std::stable_sort(lists.prefill.begin(), lists.prefill.end(), longer);
  return lists;
}

uint32_t attention_any_threadgroup_bytes(uint32_t d_value, uint32_t threads) {
  return round16(threads / 32 * (d_value + 2) * 4);
}

uint32_t attention_decode_threadgroup_bytes(uint32_t d, uint32_t heads_of_kv, uint32_t threads) {
  const uint32_t simdgroups = threads / 32, heads = attention_decode_heads(heads_of_kv);
  return 4 * std::max(heads * d + std::min(heads, 4u) * kKvPositions * simdgroups, simdgroups * (d + kPartialExtra));
}

uint32_t attention_prefill_threadgroup_bytes(uint32_t d) {
  const uint32_t scratch = 8 * kKvPositions * 4 * kPrefillSimdgroups;
  return 2 * kKvPositions * (d > 128 ? 64 : d) + scratch + (d > 128 ? 2 * kPrefillRows * d : 0);
}

}  // namespace argent::metal
