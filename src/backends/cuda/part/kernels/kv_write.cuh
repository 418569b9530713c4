// How rows of K and V go to the cache: 32 neighbouring elements of a head at a time, one a lane. Layout: KvPlace in
// kernels.h; rules of the types: graph/kv_type.h.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "backends/cuda/part/kernels/kernels.h"
#include "backends/cuda/part/kernels/warp.cuh"

namespace argent::cuda {

inline constexpr uint32_t kKvPositions = 32;  // of a block, as kKvBlockTokens in backends/backend.h

// Where a row of the step goes.
struct KvTarget {
  uint64_t block;   // bytes from block 0 to the row's block
  uint32_t within;  // the row's position in the block
};
// Reads only the step's own data, which copies write before the step's first kernel starts: right before the wait too.
__device__ __forceinline__ KvTarget kv_target(const StepRows& step, const KvPlace& kv, uint32_t row) {
  const uint32_t position = uint32_t(step.positions[row]);
  const int32_t* table = step.tables + step.sequences[step.row_sequence[row]].table;
  return {uint64_t(uint32_t(table[position / kKvPositions])) * kv.block_bytes, position % kKvPositions};
}

// Stores x, element i = 32 g + lane of a head's d, at `block`, where K or V of the layer begins; i >= d stores nothing.
// All lanes call it, with the same g.
__device__ __forceinline__ void kv_write(KvType type, uint8_t* block, const KvPlace& kv, uint32_t head, uint32_t within,
                                         uint32_t d, uint32_t i, float x) {
  const uint64_t at = uint64_t(head * kKvPositions + within) * d + i;
  if (type == KvType::q8_0) {  // d is a multiple of 32
    // Magnitudes order as words, with infinities and NaN last.
    const uint32_t largest = __reduce_max_sync(kAllLanes, __float_as_uint(x) & 0x7fffffff);
    const bool finite = largest < 0x7f800000;
    const float amax = __uint_as_float(largest);
    const __half scale = finite ? __float2half_rn(__fdiv_rn(amax, 127.0f)) : __ushort_as_half(0x7e00);
    const bool zero = !finite || __half_as_ushort(scale) == 0;
    const int quant = zero ? 0 : __float2int_rn(__fmul_rn(x, __fdiv_rn(127.0f, amax)));
    block[at] = uint8_t(quant);
    __half* scales = reinterpret_cast<__half*>(block + uint64_t(kv.n_head_kv) * kKvPositions * d);
    if (i % kKvGroup == 0) scales[at / kKvGroup] = scale;
  } else if (i < d) {
    if (type == KvType::f32)
      reinterpret_cast<float*>(block)[at] = x;
    else if (type == KvType::f16)
      reinterpret_cast<__half*>(block)[at] = __float2half_rn(x);
    else
      reinterpret_cast<__nv_bfloat16*>(block)[at] = __float2bfloat16_rn(x);
  }
}

}  // namespace argent::cuda
