// Activations to int8 in groups of 32: the rule of backends/cpu/activations.h, the layout of Q8 (kernels.h).
#pragma once

#include "backends/cuda/part/kernels/kernels.h"

namespace argent::cuda {

// A group of a row, held by one whole warp: lane l has element l. A group with a value that is not finite has the scale
// NaN and quants 0.
__device__ __forceinline__ void store_quantized(const Q8& to, uint32_t row, uint32_t group, float value) {
  const uint32_t lane = threadIdx.x & 31;
  // Magnitudes are ordered as their bits are; what is not finite is above all others.
  const uint32_t most = __reduce_max_sync(~0u, __float_as_uint(value) & 0x7fffffff);
  const bool finite = most < 0x7f800000;
  const float amax = __uint_as_float(most);
  const bool tiny = amax < 0x1p-100f;
  const float scale = !finite ? __int_as_float(0x7fffffff) : tiny ? 0.0f : __fdiv_rn(amax, 127.0f);
  const float inverse = finite && !tiny ? __fdiv_rn(127.0f, amax) : 0.0f;
  const int q = finite ? __float2int_rn(__fmul_rn(value, inverse)) : 0;
  // Of both halves at once: a half's sum has 13 bits.
  const int sums = __reduce_add_sync(~0u, lane < 16 ? q : q * 65536);
  const int first = int16_t(sums), last = (sums - first) / 65536;
  uint8_t* record = to.q + (uint64_t(row / kQ8Rows) * (to.n_in / 32) + group) * kQ8Record;
  const uint32_t word = lane / 4, place = word < 4 ? 2 * word : 2 * word - 7, r = row % kQ8Rows;
  record[r * 32 + place * 4 + lane % 4] = uint8_t(q);
  if (lane == 0) {
    float* scales = reinterpret_cast<float*>(record + 256);
    scales[r] = scale, scales[8 + r] = scale * float(first + last);
    reinterpret_cast<float2*>(scales + 16)[r] = make_float2(scale * float(first), scale * float(last));
  }
}

}  // namespace argent::cuda
