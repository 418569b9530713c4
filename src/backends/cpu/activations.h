// How the CPU's matrix kernels want their activations. One preparation serves every matrix that multiplies the same
// rows, whatever the formats of their weights: int8 for quantized weights, bfloat16 for bf16 weights, plain floats for
// f32 and f16 weights and for `--activations f32`.
//
// Tokens are in tiles of 16 (the last one narrower), and inside a tile a step along K holds all its tokens side by
// side, so that a kernel walks a tile with one pointer.
#pragma once

#include <cstdint>

namespace argent::cpu {

inline constexpr uint32_t kGroup = 32;       // columns that share one activation scale
inline constexpr uint32_t kTileTokens = 16;  // tokens of a tile

enum class Activations : uint8_t { q8, f32, bf16 };

// 32 columns of one token, one cache line. With amax = max |x|:
//   scale = amax / 127, q = round to nearest even (x * (127 / amax)), each operation rounded to f32;
//   amax < 2^-100: scale 0, all q 0;   any x infinite or NaN: scale NaN, all q 0, so every output of the token is NaN.
// All ISAs make the same bits.
struct alignas(64) QuantGroup {
  int8_t q[kGroup];  // -127 to 127
  float scale;
  float half_sum[2];        // sum of q[0..15], q[16..31]
  float sum;                // sum of q
  int32_t neg_half_sum[2];  // the same, negated: times the zero point it is where an integer sum starts
  int32_t neg_sum;
  uint32_t unused;
};
static_assert(sizeof(QuantGroup) == 64);

// Two columns of one token, rounded to bfloat16 (to nearest even; NaN stays NaN, subnormals stay). `odd` is 0 behind an
// odd last column.
struct BrainPair {
  uint16_t even, odd;
};
static_assert(sizeof(BrainPair) == 4);

// Where the record of (token, group), the float of (token, column) or the pair of (token, column / 2) is: `width` is
// n_cols / 32 groups, n_cols columns or (n_cols + 1) / 2 pairs.
inline uint64_t activation_index(uint32_t token, uint32_t step, uint32_t width, uint32_t n_tokens) {
  const uint32_t first = token / kTileTokens * kTileTokens;
  const uint32_t tile_tokens = n_tokens - first < kTileTokens ? n_tokens - first : kTileTokens;
  return uint64_t(first) * width + uint64_t(step) * tile_tokens + (token - first);
}

// Bytes of n_tokens x n_cols prepared activations (64-byte aligned by the caller). q8: n_cols is a multiple of 32.
constexpr uint64_t activation_bytes(Activations kind, uint32_t n_cols, uint32_t n_tokens) {
  if (kind == Activations::q8) return uint64_t(n_cols / kGroup) * n_tokens * sizeof(QuantGroup);
  if (kind == Activations::bf16) return (uint64_t(n_cols) + 1) / 2 * n_tokens * sizeof(BrainPair);
  return uint64_t(n_cols) * n_tokens * sizeof(float);
}

// The part of a [n_tokens][n_cols] activation matrix that one call prepares. Threads may prepare disjoint parts of one
// matrix at once; column bounds are multiples of 32 for q8, of 2 or the last column's end for bf16.
struct ActivationPart {
  uint32_t n_cols, n_tokens;  // of the whole matrix
  uint32_t token_begin, token_end;
  uint32_t col_begin, col_end;
};

}  // namespace argent::cpu
