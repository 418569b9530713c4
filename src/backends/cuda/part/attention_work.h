// Shares the attention of a step out: from the sequences of a layer group to the lists of kernels.h. Plain numbers in,
// plain numbers out.
//
// Of a sequence, runs of more than kDecodeRows neighbouring rows become tiles (fast) or whole rows; other rows are cut
// into splits of attention_split_keys(). What a row gives depends on its position, the window and which of the two it
// goes to, not on other sequences or how a prompt's rows fall into tiles.
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

// Positions of the splits of a row that sees positions [first, end); splits are at multiples of it. ctas: what
// attention_ctas gives. Where fast, a row within one run of kFastSplitKeys is whole, others are cut at its multiples
// while an H200 has room for all their clusters; longer ones, which take more than kMostClusters, into as many splits
// as there are multiprocessors for.
uint32_t attention_split_keys(uint32_t first, uint32_t end, bool fast, uint32_t ctas);

// q_rows: the rows of the step that q has, ascending; absent: all of them. window 0: none. fast: attention_is_fast.
AttentionLists attention_lists(std::span<const KvSequence> sequences, std::optional<std::span<const int32_t>> q_rows,
                               uint32_t window, bool fast, uint32_t ctas);

}  // namespace argent::cuda
