// Shares the attention of a step out: from the sequences of a layer group to the lists of kernels.h. Plain numbers in,
// plain numbers out.
//
// Of a sequence, runs of more than kDecodeRows neighbouring rows become tiles (fast) or whole rows; other rows are cut
// into splits of kSplitKeys or kFastSplitKeys positions. What a row gives depends on its position, the window and which
// of the two it goes to, not on other sequences or how a prompt's rows fall into tiles.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "backends/cuda/part/kernels/kernels.h"

namespace argent::cuda {

inline constexpr uint32_t kDecodeRows = 8;

struct AttentionLists {
  std::vector<AttentionItem> items;  // most keys first
  std::vector<AttentionRow> rows;
  std::vector<AttentionTile> tiles;  // most keys first
  uint32_t n_slots = 0;              // of partial results
};

// q_rows: the rows of the step that q has, ascending; absent: all of them. window 0: none. fast: attention_is_fast.
AttentionLists attention_lists(std::span<const KvSequence> sequences, std::optional<std::span<const int32_t>> q_rows,
                               uint32_t window, bool fast);

// What the lists may hold, from the rows of a plan and the most positions that a row may see.
constexpr uint32_t attention_max_splits(uint32_t n_positions, uint32_t window) {
  // A window that does not begin at a split's edge reaches into one more.
  const uint64_t seen = window && window < n_positions ? uint64_t(window) + kSplitKeys - 1 : n_positions;
  return uint32_t((seen + kSplitKeys - 1) / kSplitKeys);
}
// n_split_rows: rows that are not in runs, at most n_rows and kDecodeRows for each run.
constexpr uint64_t attention_max_items(uint32_t n_rows, uint32_t n_split_rows, uint32_t max_splits) {
  return n_rows + uint64_t(n_split_rows) * (max_splits - 1);
}
constexpr uint32_t attention_max_tiles(uint32_t n_rows) { return n_rows / (kDecodeRows + 1); }

}  // namespace argent::cuda
