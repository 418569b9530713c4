// How kernels load and decode pieces of quantised rows: loads are here, the bits' meaning is in quant/<format>.h.
//
// A reader of a format has its Block, the elements of a block, and eight(): elements 8 i to 8 i + 7 of a block as
// floats. Blocks come at any address that is a multiple of the format's own alignment.
#pragma once

#include "backends/metal/kernels/dialect.h"
#include "quant/q4_0.h"
#include "quant/q4_k.h"

namespace argent {

using namespace metal;

// Four bytes of a word as floats.
inline float4 bytes_to_floats(uint word) { return float4(as_type<uchar4>(word)); }
inline float4 signed_bytes_to_floats(uint word) { return float4(as_type<char4>(word)); }

struct Q4_0Reader {
  using Block = block_q4_0;
  enum : uint { kElements = 32 };

  // Bytes 4 i to 4 i + 3 of qs; the block is a multiple of 2 bytes from the start.
  static inline uint word(device const Block* block, uint i) {
    device const ushort* half_words = reinterpret_cast<device const ushort*>(block->qs) + 2 * i;
    return uint(half_words[0]) | uint(half_words[1]) << 16;
  }
  static inline void eight(device const Block* block, uint i, thread float4& low, thread float4& high) {
    const uint side = i / 2;
    const uint first = 2 * (i % 2);
    const float d = qk_half(block->d);
    low = d * signed_bytes_to_floats(q4_0_levels(word(block, first), side));
    high = d * signed_bytes_to_floats(q4_0_levels(word(block, first + 1), side));
  }
};

struct Q4_KReader {
  using Block = block_q4_k;
  enum : uint { kElements = 256 };

  static inline void eight(device const Block* block, uint i, thread float4& low, thread float4& high) {
    device const uint* words = reinterpret_cast<device const uint*>(block);
    const uint group = i / 4;
    const uint side = group % 2;
    const float scale = qk_half(words[0] & 0xffff) * float(q4_k_scale(words[1], words[3], group));
    const float min = qk_half(words[0] >> 16) * float(q4_k_min(words[2], words[3], group));
    const uint2 bytes = *reinterpret_cast<device const uint2*>(words + 4 + 8 * (group / 2) + 2 * (i % 4));
    low = scale * bytes_to_floats(q4_k_quants(bytes.x, side)) - min;
    high = scale * bytes_to_floats(q4_k_quants(bytes.y, side)) - min;
  }
};

}  // namespace argent
