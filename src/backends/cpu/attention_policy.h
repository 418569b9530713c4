// How the attention of a step is shared out to threads: plain numbers in, plain numbers out. Results have the same bits
// whatever it says.
#pragma once

#include <algorithm>
#include <cstdint>

#include "backends/cpu/vector.h"

namespace argent::cpu {

inline constexpr uint32_t kSplitRows = 8;    // most rows whose keys are divided
inline constexpr uint32_t kSplitWave = 64;   // splits that are reduced before they are merged: 16,384 keys
inline constexpr uint32_t kEnoughTiles = 8;  // a thread: then whole tiles keep all threads busy to the end

// How many units a claim takes, one after the other; a unit is a split of one sequence's keys in one KV head. 0: a
// claim is a tile of rows with all its keys.
//   n_rows    of the step;   n_tiles   sequences with rows times KV heads
//   n_splits  that some row sees, at least 1
constexpr uint32_t units_a_claim(uint32_t n_rows, uint32_t n_tiles, uint32_t n_splits, uint32_t n_threads) {
  if (n_threads == 1 || n_splits == 1 || n_rows > kSplitRows || n_tiles >= kEnoughTiles * n_threads) return 0;
  // About 16 claims a thread in a wave: the last ones, which threads wait for, are 6 % of the work.
  return std::max(1u, n_tiles * std::min(n_splits, kSplitWave) / (16 * n_threads));
}

// Rows of a claim that is a tile. Fewer than kAttentionRows where that would leave threads idle at the end, but no less
// than fill the vector units: the keys are read again for each tile.
//   n_rows   of the step;   n_group   query heads of a KV head
constexpr uint32_t rows_a_tile(uint32_t n_rows, uint32_t n_head_kv, uint32_t n_group, uint32_t n_threads) {
  uint32_t rows = kAttentionRows;
  while (rows > 1 && rows / 2 * n_group >= kAttentionQueries &&
         uint64_t((n_rows + rows - 1) / rows) * n_head_kv < kEnoughTiles * n_threads)
    rows /= 2;
  return rows;
}

// Whether keys that are read next are fetched into L1, or into L2 only, where a small L1 would lose them before their
// use (docs/decisions/0006 has the figures). 0, a size that the system does not tell, counts as small.
constexpr bool fetch_into_l1(uint32_t l1_bytes) { return l1_bytes >= 48 << 10; }

// Whether threads take their next claim before they are done with the last, to fetch its first keys in time; of few
// claims the last would wait while other threads are idle.
constexpr bool claims_ahead(uint32_t n_claims, uint32_t n_threads) { return n_claims >= 4 * n_threads; }

}  // namespace argent::cpu
