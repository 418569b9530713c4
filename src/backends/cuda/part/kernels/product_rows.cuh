// Rows of activations as products of more than kWideAbove rows read them on sm_90a (product_wide.cuh): f16, each row
// times a power of two that brings its largest magnitude to 2^14, in the order in which wgmma reads its B operand.
//
//   64 columns of 8 rows are 1024 bytes, at (column / 64 * eights + row / 8) * 1024, so that neighbouring rows of a
//   chunk are one run of bytes: [row % 8][16 bytes j at j ^ row % 8]; 16 bytes 2i are the even ones of columns 16i to
//   16i + 15 of the chunk, 16 bytes 2i + 1 the odd ones: a mask and a shift of a word of four quants give these pairs.
//   Columns beyond n_in are zero; rows beyond n_rows are anything: a column of B touches no other column of the result.
//
// After them: what a row is to be multiplied with to have its size back, f32; flags of partial sums, 0 between
// launches; partial sums.
#pragma once

#include "backends/cuda/part/kernels/kernels.h"

namespace argent::cuda {

inline constexpr uint32_t kMostShares = 160;                  // CTAs of a product
inline constexpr uint32_t kWideChunk = 64, kWideAtom = 1024;  // columns; bytes of 8 rows of them
// Flags of a CTA, one a warp; bytes of its partial sums: 128 weight rows by 256 or 256 by 64, f32.
inline constexpr uint32_t kShareFlags = 16, kSharePartial = 128 * 256 * 4;

struct WideRows {
  uint8_t* x = nullptr;
  float* inverse = nullptr;
  uint32_t* flags = nullptr;
  float4* partial = nullptr;
  uint32_t eights = 0;
  uint64_t bytes = 0;

  __host__ __device__ WideRows(uint8_t* base, uint32_t n_rows, uint32_t n_in) : x(base), eights((n_rows + 7) / 8) {
    uint64_t at = uint64_t((n_in + kWideChunk - 1) / kWideChunk) * eights * kWideAtom;
    inverse = reinterpret_cast<float*>(base + at), at += (eights * 8 * 4 + 127) / 128 * 128;
    flags = reinterpret_cast<uint32_t*>(base + at), at += kMostShares * kShareFlags * 4;
    partial = reinterpret_cast<float4*>(base + at), at += uint64_t(kMostShares) * kSharePartial;
    bytes = at;
  }
};

#ifdef __CUDACC__

// What a row is multiplied with; most: the largest of its magnitudes as bits, which are ordered as the magnitudes are.
// What is not finite is above all others: such a row is zero, and NaN times that.
struct RowScale {
  float scale, inverse;
  bool finite;
  __device__ __forceinline__ explicit RowScale(uint32_t most) : finite(most < 0x7f800000) {
    // 2^(14 - exponent of the largest), as far as it and its inverse are normal floats.
    const int up = min(max(14 + 127 - int(most >> 23), -126), 126);
    scale = __int_as_float((127 + up) << 23);
    inverse = finite ? __int_as_float((127 - up) << 23) : __int_as_float(0x7fffffff);
  }
};

// The 16 bytes `unit` of eight of a row's chunk.
__device__ __forceinline__ uint4* wide_unit(const WideRows& rows, uint32_t row, uint32_t chunk, uint32_t unit) {
  const uint32_t r = row % 8;
  return reinterpret_cast<uint4*>(rows.x + (uint64_t(chunk) * rows.eights + row / 8) * kWideAtom + r * 128) +
         (unit ^ r);
}

#endif

// to: product_rows_bytes() bytes, a multiple of 128.
void wide_rows(Launch& launch, const float* x, uint32_t n_rows, uint32_t n_in, uint8_t* to);

}  // namespace argent::cuda
