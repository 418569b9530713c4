// What a warp does together, in an order that is always the same.
#pragma once

#include "backends/cuda/part/kernels/kernels.h"

namespace argent::cuda {

inline constexpr uint32_t kLanes = 32, kAllLanes = 0xffffffff;

// The sum in all lanes, by a tree.
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (uint32_t step = kLanes / 2; step; step /= 2) x += __shfl_xor_sync(kAllLanes, x, step);
  return x;
}

// Of a lane's elements: fours by a tree, then one after the other; elements of zero at the end change no bit.
template <uint32_t kPer>
__device__ __forceinline__ float sum_of_squares(const float (&x)[kPer]) {
  float sum = 0;
#pragma unroll
  for (uint32_t k = 0; k < kPer; k += 4)
    sum = __fadd_rn(sum, __fadd_rn(__fmaf_rn(x[k], x[k], __fmul_rn(x[k + 1], x[k + 1])),
                                   __fmaf_rn(x[k + 2], x[k + 2], __fmul_rn(x[k + 3], x[k + 3]))));
  return sum;
}

// The sum of squares of a row that a CTA, or none alone, has: of pieces of elements by a tree, which products add up
// where they write a row that is normed next; then lane l takes pieces l, l + 32, ...; then the lanes by a tree.
// Each half of the warp has a piece, a lane an element.
__device__ __forceinline__ float piece_of_squares(float x) {
  float sum = __fmul_rn(x, x);
#pragma unroll
  for (uint32_t step = kNormPiece / 2; step; step /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(kAllLanes, sum, step));
  return sum;
}
__device__ __forceinline__ float sum_of_pieces(const float* pieces, uint32_t n) {
  constexpr uint32_t kHeld = 8;  // on their way at once
  float sum = 0;
  for (uint32_t first = threadIdx.x % kLanes; first < n; first += kHeld * kLanes) {
    float held[kHeld];
#pragma unroll
    for (uint32_t k = 0; k < kHeld; ++k) held[k] = first + k * kLanes < n ? pieces[first + k * kLanes] : 0.0f;
#pragma unroll
    for (uint32_t k = 0; k < kHeld; ++k) sum = __fadd_rn(sum, held[k]);
  }
  return warp_sum(sum);
}

// A pair turned by an angle (cos, sin): the first and the second element.
__device__ __forceinline__ float turned_first(float first, float second, float2 turn) {
  return __fmaf_rn(first, turn.x, -__fmul_rn(second, turn.y));
}
__device__ __forceinline__ float turned_second(float first, float second, float2 turn) {
  return __fmaf_rn(first, turn.y, __fmul_rn(second, turn.x));
}

// 1 / sqrt(mean of n squares + eps). An infinite or NaN sum gives 0 or NaN, as the division by the root would.
__device__ __forceinline__ float inverse_root(float squares, uint32_t n, float eps) {
  return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(squares, float(n)), eps)));
}

}  // namespace argent::cuda
