// What a warp does together, in an order that is always the same.
#pragma once

#include <cstdint>

namespace argent::cuda {

inline constexpr uint32_t kLanes = 32, kAllLanes = 0xffffffff;

// The sum in all lanes, by a tree.
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (uint32_t step = kLanes / 2; step; step /= 2) x += __shfl_xor_sync(kAllLanes, x, step);
  return x;
}

// 1 / sqrt(mean of n squares + eps). An infinite or NaN sum gives 0 or NaN, as the division by the root would.
__device__ __forceinline__ float inverse_root(float squares, uint32_t n, float eps) {
  return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(squares, float(n)), eps)));
}

}  // namespace argent::cuda
