// Tensor cores for attention: m16n8k16 products of halves or bfloat16 with f32 sums (PTX ISA 9.7.14), and the copies
// that feed them. Lane l of a warp: row l / 4, pair l % 4.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "graph/kv_type.h"

namespace argent::cuda {

// c [16][8] += a [16][16] b [16][8]
template <KvType kType>
__device__ __forceinline__ void mma(float (&c)[4], const uint4& a, uint32_t b0, uint32_t b1) {
  if constexpr (kType == KvType::f16) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
  }
}

// Four matrices of 8 x 8, whose rows of 16 bytes are at the addresses that lanes 8 i ... 8 i + 7 give for matrix i.
__device__ __forceinline__ uint4 load_matrices(const void* row) {
  uint4 r;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
               : "r"(uint32_t(__cvta_generic_to_shared(row)))
               : "memory");
  return r;
}
__device__ __forceinline__ uint4 load_matrices_transposed(const void* row) {
  uint4 r;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
               : "r"(uint32_t(__cvta_generic_to_shared(row)))
               : "memory");
  return r;
}

// 16 bytes to shared memory; zeros, and nothing is read, where not wanted.
__device__ __forceinline__ void copy_async(void* to, const void* from, bool wanted) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(uint32_t(__cvta_generic_to_shared(to))),
               "l"(__cvta_generic_to_global(from)), "r"(wanted ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// All but the last kLeft groups of this thread's copies are there.
template <int kLeft>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

// Clusters of CTAs (sm_90): a barrier in two halves, and four floats at the same place in another CTA's shared memory.
__device__ __forceinline__ void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#endif
}
__device__ __forceinline__ void cluster_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
}
__device__ __forceinline__ float4 load_of_rank(const float4* at, uint32_t rank) {
  float4 x = make_float4(0, 0, 0, 0);
#if __CUDA_ARCH__ >= 900
  uint32_t from;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(from) : "r"(uint32_t(__cvta_generic_to_shared(at))), "r"(rank));
  asm volatile("ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
               : "r"(from)
               : "memory");
#endif
  return x;
}

// 2^x to 2 ulp, flushed to zero below 2^-126.
__device__ __forceinline__ float exp2_flushed(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

template <KvType kType>
__device__ __forceinline__ uint32_t pack(float low, float high) {
  if constexpr (kType == KvType::f16) {
    const __half2 h = __floats2half2_rn(low, high);
    return uint32_t(__half_as_ushort(__low2half(h))) | uint32_t(__half_as_ushort(__high2half(h))) << 16;
  } else {
    const __nv_bfloat162 h = __floats2bfloat162_rn(low, high);
    return uint32_t(__bfloat16_as_ushort(__low2bfloat16(h))) | uint32_t(__bfloat16_as_ushort(__high2bfloat16(h))) << 16;
  }
}

// Two floats as sums of kTerms rounded ones: 11 bits each of halves, 8 of bfloat16.
template <KvType kType, uint32_t kTerms>
__device__ __forceinline__ void split(float low, float high, uint32_t (&terms)[kTerms]) {
#pragma unroll
  for (uint32_t i = 0; i < kTerms; ++i) {
    terms[i] = pack<kType>(low, high);
    const uint16_t a = uint16_t(terms[i]), b = uint16_t(terms[i] >> 16);
    if constexpr (kType == KvType::f16) {
      low -= __half2float(__ushort_as_half(a)), high -= __half2float(__ushort_as_half(b));
    } else {
      low -= __uint_as_float(uint32_t(a) << 16), high -= __uint_as_float(uint32_t(b) << 16);
    }
  }
}

}  // namespace argent::cuda
