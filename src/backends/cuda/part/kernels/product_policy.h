// Numbers that decide how products run; pure.
#pragma once

#include <cstdint>

namespace argent::cuda {

inline constexpr uint32_t kStepColumns = 256;  // of weights that a warp copies and multiplies at a time
inline constexpr uint32_t kMostWarps = 15;     // that share the columns of a tile

// Warps that share a tile's columns: a function of the columns alone, since it decides the order of sums. Long rows are
// those of matrices with few tiles (down projections), which want more warps a tile; then the number that leaves the
// fewest without a step, the greatest such. Two warps a tile for wide matrices lost: 29 us instead of 23 for 37,888
// rows of Q4_K.
constexpr uint32_t warps_of(uint32_t n_in) {
  const uint32_t n_steps = (n_in + kStepColumns - 1) / kStepColumns;
  const uint32_t least = n_steps < 32 ? 6 : 11, most = n_steps <= 20 ? 10 : n_steps < 32 ? 8 : kMostWarps;
  if (n_steps <= 8) return n_steps;
  uint32_t best = least, best_rounds = ~0u;
  for (uint32_t warps = least; warps <= most; ++warps) {
    const uint32_t rounded = (n_steps + warps - 1) / warps * warps;
    if (rounded <= best_rounds) best = warps, best_rounds = rounded;
  }
  return best;
}

// Shared memory that a CTA asks for so that a multiprocessor, which has `all` bytes and keeps `reserved` of each CTA's,
// takes no more than `most`. CTAs go where there is room first: without this the multiprocessors that the launch in
// front leaves free take up to three each and others none (56 tiles of 4,864 columns on 28 multiprocessors: 16.3 us a
// layer of a 0.5B instead of 14.7).
constexpr uint32_t bytes_to_spread(uint32_t most, uint32_t all, uint32_t reserved) {
  const uint32_t too_many = all / (most + 1) / 128 * 128 + 128;  // of each of most + 1, with what is kept
  return too_many > reserved ? too_many - reserved : 0;
}

}  // namespace argent::cuda
