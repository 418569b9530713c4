// What the attention kernels share: where keys and values are, how work is walked, how results leave.
#pragma once

#include "backends/cuda/part/kernels/kernels.h"
#include "backends/cuda/part/kernels/launch.cuh"
#include "backends/cuda/part/kernels/quantize.cuh"

namespace argent::cuda {

constexpr uint32_t kBlockKeys = 32;  // positions of a block of the cache

// attention_any.cu: items, any sizes. attention_decode.cu, attention_tile.cu: attention_is_fast.
void attention_any(Launch& launch, const Attention& a, const int32_t* tables, const KvPlace& kv);
void attention_decode(Launch& launch, const Attention& a, const int32_t* tables, const KvPlace& kv);
void attention_tiles(Launch& launch, const Attention& a, const int32_t* tables, const KvPlace& kv);

// Multiprocessors of the device; 1 where that cannot be asked (the launch then reports why).
uint32_t attention_processors();
// True where CTAs may be clusters and have 227 KB of shared memory: sm_90, sm_100.
bool attention_has_clusters();
// Lets a kernel have more than 48 KB of shared memory.
template <class Kernel>
void allow_shared(Launch& launch, Kernel* kernel, uint32_t bytes) {
  launch.note(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(bytes)), "attention");
}

constexpr float kLog2e = 1.4426950408889634f;

// Scores are kept times log2(e), for exp2: q is multiplied with before(), after() does the rest.
struct Scores {
  float scale, softcap;
  __device__ float before() const { return softcap != 0 ? scale : scale * kLog2e; }
  __device__ float after(float s) const { return softcap != 0 ? softcap * kLog2e * tanhf(s / softcap) : s; }
};

// Entry of the block table for the lane's block of the split in which the item begins; 0 for blocks without visible
// keys, whose entries need not exist.
__device__ __forceinline__ uint32_t split_entry(const AttentionItem& item, const int32_t* tables) {
  const uint32_t lane = threadIdx.x & 31, block = item.first / kSplitKeys * (kSplitKeys / kBlockKeys) + lane;
  const bool seen =
      lane < kSplitKeys / kBlockKeys && block >= item.first / kBlockKeys && block <= (item.end - 1) / kBlockKeys;
  return seen ? uint32_t(tables[item.table + block]) : 0;
}

// Brings the blocks of these entries into the L2 cache, which may be done before the wait: nothing is taken from it
// yet. Called by a whole warp; K and V of a head and block are one run each (but for the scales of q8_0, which stay
// out).
__device__ __forceinline__ void prefetch_split(const AttentionItem& item, uint32_t entry, const KvPlace& kv,
                                               uint32_t head, uint32_t k_bytes, uint32_t v_bytes) {
#if __CUDA_ARCH__ >= 900
  const uint32_t lane = threadIdx.x & 31, block = item.first / kSplitKeys * (kSplitKeys / kBlockKeys) + lane;
  if (lane >= kSplitKeys / kBlockKeys || block < item.first / kBlockKeys || block > (item.end - 1) / kBlockKeys) return;
  const uint64_t skip = entry * kv.block_bytes;
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(
                   __cvta_generic_to_global(kv.k + skip + uint64_t(head) * k_bytes)),
               "r"(k_bytes));
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(
                   __cvta_generic_to_global(kv.v + skip + uint64_t(head) * v_bytes)),
               "r"(v_bytes));
#endif
}

// Four neighbouring values of a row, held by a lane; eight lanes have a group. The same bits as the other one's.
__device__ __forceinline__ void store_quantized(const Q8& to, uint32_t row, uint32_t group, const float4& x,
                                                bool wanted) {
  uint32_t bits = max(max(__float_as_uint(fabsf(x.x)), __float_as_uint(fabsf(x.y))),
                      max(__float_as_uint(fabsf(x.z)), __float_as_uint(fabsf(x.w))));  // NaN is more than infinity
#pragma unroll
  for (uint32_t step = 1; step < 8; step *= 2) bits = max(bits, __shfl_xor_sync(~0u, bits, step));
  const float amax = __uint_as_float(bits);
  const bool finite = bits < 0x7f800000, tiny = amax < 0x1p-100f;
  const float scale = !finite ? __int_as_float(0x7fffffff) : tiny ? 0.0f : __fdiv_rn(amax, 127.0f);
  const float inverse = finite && !tiny ? __fdiv_rn(127.0f, amax) : 0.0f;
  const auto rounded = [&](float v) { return finite ? __float2int_rn(__fmul_rn(v, inverse)) : 0; };
  const int q0 = rounded(x.x), q1 = rounded(x.y), q2 = rounded(x.z), q3 = rounded(x.w);
  int sum = q0 + q1 + q2 + q3;
  sum += __shfl_xor_sync(~0u, sum, 1);
  sum += __shfl_xor_sync(~0u, sum, 2);
  const int other = __shfl_xor_sync(~0u, sum, 4);
  if (!wanted) return;
  uint8_t* const record = to.q + (uint64_t(row / kQ8Rows) * (to.n_in / 32) + group) * kQ8Record;
  const uint32_t word = threadIdx.x & 7, place = word < 4 ? 2 * word : 2 * word - 7, r = row % kQ8Rows;
  *reinterpret_cast<uint32_t*>(record + r * 32 + place * 4) =
      uint32_t(q0 & 255) | uint32_t(q1 & 255) << 8 | uint32_t(q2 & 255) << 16 | uint32_t(q3) << 24;
  if (word == 0) {
    float* const scales = reinterpret_cast<float*>(record + 256);
    scales[r] = scale, scales[8 + r] = scale * float(sum + other);
    reinterpret_cast<float2*>(scales + 16)[r] = make_float2(scale * float(sum), scale * float(other));
  }
}

}  // namespace argent::cuda
