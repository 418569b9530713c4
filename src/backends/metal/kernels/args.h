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

// y[t] = row ids[t] of a table, its elements as floats.
struct GetRowsArgs {
  uint32_t rows;      // of the table; every id is less
  uint32_t cols;      // a multiple of the format's block, of 8 where it has none
  uint32_t y_stride;  // a multiple of 4
};
static_assert(sizeof(GetRowsArgs) == 12, "the same for all compilers");

// y[r] = x[r] / sqrt(mean(x[r]^2) + eps), times the weight where there is one.
struct RmsNormArgs {
  uint32_t cols;
  float eps;
};
static_assert(sizeof(RmsNormArgs) == 8, "the same for all compilers");

// One query a head against the first kv_length rows of the cache.
struct AttentionDecodeArgs {
  uint32_t kv_length;
  uint32_t heads_of_kv;  // query heads that share a key head
  uint32_t kv_stride;    // from a position of the cache to the next; a multiple of 4
  float scale;
};
static_assert(sizeof(AttentionDecodeArgs) == 16, "the same for all compilers");

}  // namespace argent
