// Arguments of kernels that are passed by value: one struct for the host and the kernels. Fixed-width scalars only, so
// that all compilers lay them out alike; sizes and strides are in elements unless a name says bytes.
#pragma once

#if defined(__METAL_VERSION__)
#include <metal_stdlib>
#else
#include <cstdint>
#endif

namespace argent {

// y[t][r] = sum over c of w[r][c] * x[t][c]. A row of w has cols elements in blocks of its format without gaps.
struct MatmulArgs {
  uint32_t rows;      // of w
  uint32_t cols;      // a multiple of the format's block, of 8 where it has none; of 32 for mul_mm
  uint32_t tokens;    // rows of x and y
  uint32_t x_stride;  // from a row of x to the next; a multiple of 4
  uint32_t y_stride;
};
static_assert(sizeof(MatmulArgs) == 20, "the same for all compilers");

// Tiles of tokens of mul_mm: of 32, but the last takes up to 40.
inline uint32_t mul_mm_token_tiles(uint32_t tokens) { return tokens <= 8 ? 1 : (tokens + 23) / 32; }

// y[t] = row ids[t] of a table, its elements as floats.
struct GetRowsArgs {
  uint32_t rows;      // of the table; every id is less
  uint32_t cols;      // a multiple of the format's block, of 8 where it has none
  uint32_t y_stride;  // a multiple of 4
};
static_assert(sizeof(GetRowsArgs) == 12, "the same for all compilers");

}  // namespace argent
