// How the attention of a step is shared out to threads: plain numbers in, plain numbers out. Results have the same bits
// whatever it says.
#pragma once

#include <algorithm>
#include <cstdint>

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

// Whether threads take their next claim before they are done with the last, to fetch its first keys in time; of few
// claims the last would wait while other threads are idle.
constexpr bool claims_ahead(uint32_t n_claims, uint32_t n_threads) { return n_claims >= 4 * n_threads; }

}  // namespace argent::cpu
