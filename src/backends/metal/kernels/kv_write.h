// How rows of K and V are written to the cache: 32 neighbouring elements of a head at a time, one a lane.
#pragma once

#include "backends/metal/kernels/kv.h"

namespace argent {

// Bytes from block 0 of the pool to the block that has a position of a sequence.
inline ulong kv_place(device const int* tables, device const KvSequence* sequences, uint sequence, uint position,
                      uint block_bytes) {
  // Not a copy of the struct, whose address space the lints do not convert.
  const KvSequence of = {0, 0, 0, sequences[sequence].table};
  return kv_block(tables, of, position) * block_bytes;
}

// a / b to the nearest, also where `/` is an ulp off, as in Metal's fast mathematics: adds the exact remainder's share.
// 1 / b must be finite.
inline float kv_divide(float a, float b) {
  const float q = a / b;
  return fma(fma(-q, b, a), 1.0f / b, q);
}

// Bits of a bf16, rounded to nearest even; a NaN stays one. Words, since no clang here has bfloat vectors.
inline ushort kv_bf16(float x) {
  const uint bits = as_type<uint>(x);
  const uint rounded = bits + 0x7fff + (bits >> 16 & 1);
  return ushort(((bits & 0x7fffffff) > 0x7f800000 ? bits | 0x400000 : rounded) >> 16);
}

// The end of a group of q8_0 (graph/kv_type.h): a lane's quant and the group's scale. Magnitudes are compared as words,
// which order as the floats do, and infinities and NaN last: fast mathematics may assume that there are none.
inline int kv_quantize(float x, thread ushort& scale) {
  const uint largest = simd_max(as_type<uint>(x) & 0x7fffffff);
  // No NaN becomes an integer, which is undefined.
  const float amax = largest < 0x7f800000 ? as_type<float>(largest) : 0.0f;  // not mutated: x86 makes 0 of it as well
  const ushort bits = as_type<ushort>(half(kv_divide(amax, 127.0f)));
  scale = largest < 0x7f800000 ? bits : ushort(0x7e00);  // NaN; held by kv_store
  return bits == 0 ? 0 : int(rint(x * kv_divide(127.0f, amax)));
}

// Writes x, element i = 32 g + lane of a head at a position of a block, unless the head has no such element. All lanes
// call it, with the same g.
inline void kv_write(uint type, device uchar* block, uint n_head_kv, uint head_kv, uint position, uint d, uint i,
                     float x, uint lane) {
  const uint row = kv_element(head_kv, position, d);
  if (type == kKvQ8_0) {
    ushort scale;
    const int quant = kv_quantize(x, scale);
    block[row + i] = uchar(quant);
    if (lane == 0) {
      reinterpret_cast<device ushort*>(block + n_head_kv * kKvPositions * d)[(row + i) / 32] = scale;
    }
  } else if (i < d) {
    if (type == kKvF32) {
      reinterpret_cast<device float*>(block)[row + i] = x;
    } else {
      reinterpret_cast<device ushort*>(block)[row + i] = type == kKvF16 ? as_type<ushort>(half(x)) : kv_bf16(x);
    }
  }
}

}  // namespace argent
