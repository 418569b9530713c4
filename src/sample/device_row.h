// What sampling kernels on a device read of a step: plain data that device_step.h packs before each step, the same
// bytes in C++20, CUDA C++ and MSL.
//
//   rows   SampleRow [n_outputs]
//   data   u32 words that the rows point into: masks, pairs of biases, pairs of tokens, pairs of slots
#pragma once

#if defined(__METAL_VERSION__)
#include <metal_stdlib>
#else
#include <cstdint>
#endif

namespace argent {

enum : uint32_t { kNowhere = 0xffffffff };  // no mask, no slot

// How an output row is sampled. Floats are their bits.
struct SampleRow {
  uint32_t temperature;
  uint32_t top_k;      // 0: all; 1 at temperature 0
  uint32_t top_p_on;   // 0: top_p keeps all
  uint32_t top_p;      // floor(p * 2^32)
  uint32_t min_p_low;  // the least weight that stays: floor(min_p * 2^40)
  uint32_t min_p_high;
  uint32_t repeat_penalty;
  uint32_t presence_penalty;
  uint32_t frequency_penalty;
  uint32_t seed_low;
  uint32_t seed_high;
  uint32_t position;
  uint32_t sample_index;
  uint32_t slot;  // that keeps the row's token; kNowhere: a later row of the slot's has the last word
  uint32_t mask;  // its first word; kNowhere: all tokens are allowed
  uint32_t bias;  // pairs (token, bias), by ascending tokens, those of a token in their order
  uint32_t n_bias;
  uint32_t tokens;  // pairs (token, uses), each token once, ascending
  uint32_t n_tokens;
  uint32_t slots;  // pairs (slot, uses), each slot once: history that is still on the device
  uint32_t n_slots;
  uint32_t unused;  // pairs are read as 8 bytes
};
static_assert(sizeof(SampleRow) == 88, "the same for all compilers");

// uses: bit 0, among the last repeat_last_n; the rest, how often it was generated.

}  // namespace argent
