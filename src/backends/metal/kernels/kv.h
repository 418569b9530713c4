// How the KV cache lies in memory, for every kernel that reads or writes it.
//
// A block holds kKvPositions positions of a layer: K as [n_head_kv][position][d_head], V as [n_head_kv][position]
// [d_value], elements of the cache's type without gaps. q8_0: all quants in that order, then the scales, [n_head_kv]
// [position][d / 32] halves. Blocks of a layer are KvArgs::block_bytes apart, since a block holds all layers of its
// group; the host binds `k` and `v` at the layer's place in block 0. A sequence's block table says which block of the
// pool has positions 32 i to 32 i + 31; entries before a window's first block may be -1 and are not read.
#pragma once

#include "backends/metal/kernels/args_step.h"
#include "backends/metal/kernels/dialect.h"

namespace argent {

using namespace metal;

// Types of the cache, as graph/kv_type.h numbers them. Every kernel that touches the cache says them as function
// constants: MTL_FC(uint, kKvTypeK, 10) and MTL_FC(uint, kKvTypeV, 11).
enum : uint { kKvF16 = 0, kKvBf16 = 1, kKvF32 = 2, kKvQ8_0 = 3 };

// The block that has a position of a sequence.
inline ulong kv_block(device const int* tables, const KvSequence sequence, uint position) {
  return ulong(tables[sequence.table + position / kKvPositions]);
}

// The first element of a head at a position, in elements from the block's begin; of q8_0, of its quants.
inline uint kv_element(uint head_kv, uint position, uint d) {
  return (head_kv * kKvPositions + position % kKvPositions) * d;
}

// Element i of the K or V of a layer's block, which has `elements` of them: the type is a function constant, so one
// branch is left.
inline float kv_one(device const uchar* block, uint type, uint i, uint elements) {
  if (type == kKvF16) {
    return float(reinterpret_cast<device const half*>(block)[i]);
  }
  if (type == kKvBf16) {
    return as_type<float>(uint(reinterpret_cast<device const ushort*>(block)[i]) << 16);
  }
  if (type == kKvF32) {
    return reinterpret_cast<device const float*>(block)[i];
  }
  return float(reinterpret_cast<device const half*>(block + elements)[i / 32]) * float(as_type<char>(block[i]));
}

// Elements i to i + 3; i is a multiple of 4.
inline float4 kv_four(device const uchar* block, uint type, uint i, uint elements) {
  if (type == kKvF16) {
    return float4(reinterpret_cast<device const half4*>(block)[i / 4]);
  }
  if (type == kKvBf16) {
    return as_type<float4>(uint4(reinterpret_cast<device const ushort4*>(block)[i / 4]) << 16);
  }
  if (type == kKvF32) {  // held by attention_decode_128: heads of 80 have no q8_0
    return reinterpret_cast<device const float4*>(block)[i / 4];
  }
  return float(reinterpret_cast<device const half*>(block + elements)[i / 32]) *
         float4(reinterpret_cast<device const char4*>(block)[i / 4]);
}

}  // namespace argent
