// Arguments of the KV store and of the fused matrix kernels: one struct for the host and the kernels. Sizes and strides
// are in elements unless a name says bytes; glu takes MatmulArgs.
#pragma once

#if defined(__METAL_VERSION__)
#include <metal_stdlib>
#else
#include <cstdint>
#endif

namespace argent {

enum : uint32_t { kActSilu = 0, kActGelu = 1 };  // of MTL_FC(uint, kGluAct, 22)

// Rows of K and V of a step to their places in the cache.
struct KvStoreArgs {
  uint32_t n_head_kv;
  uint32_t d_head;       // of K; a multiple of 32 where the cache is q8_0
  uint32_t d_value;      // of V, likewise
  uint32_t block_bytes;  // from a block of the pool to the next
};
static_assert(sizeof(KvStoreArgs) == 16, "the same for all compilers");

// Three products with the same x. Rows of q, k and v follow without gaps.
struct QkvArgs {
  uint32_t rows_q;  // of the matrices
  uint32_t rows_k;
  uint32_t rows_v;
  uint32_t cols;  // a multiple of each format's block, of 8 where it has none
  uint32_t tokens;
  uint32_t x_stride;  // a multiple of 4
};
static_assert(sizeof(QkvArgs) == 24, "the same for all compilers");

// The same, then norm and RoPE of q and k, and the store of k and v.
struct QkvRopeArgs {
  uint32_t n_head;
  uint32_t cols;
  uint32_t tokens;
  uint32_t x_stride;  // a multiple of 4
  uint32_t q_stride;  // from a token's q to the next
  uint32_t n_rot;     // elements of a head that are rotated: even, at most d_head
  float eps;
  KvStoreArgs kv;
};
static_assert(sizeof(QkvRopeArgs) == 44, "the same for all compilers");

}  // namespace argent
