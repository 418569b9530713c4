// Which kernel computes a matrix product: plain numbers in, an answer out.
#pragma once

#include <cstdint>

#include "quant/formats.h"

namespace argent::metal {

enum class Product : uint8_t {
  plain,   // mul_mv_plain: float formats whose rows are no multiple of 8
  vector,  // mul_mv: one token
  tokens,  // mul_mv_tokens: up to 8 tokens, weights decoded once
  matrix,  // mul_mm: simdgroup_matrix, 16-bit factors
};

inline constexpr uint32_t kTokensAtOnce = 8;   // of mul_mv_tokens
inline constexpr uint32_t kMulMmBytes = 6656;  // threadgroup memory of mul_mm and glu_mm

// n_rows: of the activations; n_in: elements of a row. `matrix` off keeps to float factors. Weights of F32 and BF16 may
// be beyond the range of half.
constexpr Product product_kernel(Format format, uint32_t n_in, uint32_t n_rows, bool matrix) {
  if (n_in % 8) return Product::plain;
  if (n_rows == 1) return Product::vector;
  const bool fits_half = format != Format::f32 && format != Format::bf16;
  return n_rows <= kTokensAtOnce || !matrix || !fits_half || n_in % 32 ? Product::tokens : Product::matrix;
}

// Rows of a matrix that a threadgroup of mul_mv computes.
constexpr uint32_t rows_of_mul_mv(Format format) { return format == Format::q4_0 ? 8 : 4; }

}  // namespace argent::metal
