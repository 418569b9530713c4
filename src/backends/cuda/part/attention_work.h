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

}  // namespace argent::cuda
