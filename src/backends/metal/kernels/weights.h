// How kernels load and decode pieces of rows of every format: loads are here, the bits' meaning is in quant/<format>.h.
//
// A reader of a format has its Block, the elements of a block, and eight(): elements 8 i to 8 i + 7 of a block as
// floats, exactly as decode_row gives them. A tensor starts at a multiple of 16 bytes; its blocks follow without gaps,
// so a block's address is known to be a multiple of the largest power of two in the block's size, and no more.
#pragma once

#include "backends/metal/kernels/dialect.h"
#include "quant/bf16.h"
#include "quant/f16.h"
#include "quant/f32.h"
#include "quant/iq4_nl.h"
#include "quant/iq4_xs.h"
#include "quant/mxfp4.h"
#include "quant/q2_k.h"
#include "quant/q3_k.h"
#include "quant/q4_0.h"
#include "quant/q4_1.h"
#include "quant/q4_k.h"
#include "quant/q5_0.h"
#include "quant/q5_1.h"
#include "quant/q5_k.h"
#include "quant/q6_k.h"
#include "quant/q8_0.h"

namespace argent {

using namespace metal;

// Four bytes of a word as floats.
inline float4 bytes_to_floats(uint word) { return float4(as_type<uchar4>(word)); }
inline float4 signed_bytes_to_floats(uint word) { return float4(as_type<char4>(word)); }

// Bytes 4 i to 4 i + 3 as a word, at addresses that are multiples of 1, 2 and 4; words i and i + 1, of 8.
inline uint load_word_1(device const u8* bytes, uint i) {
  device const u8* from = bytes + 4 * i;
  return uint(from[0]) | uint(from[1]) << 8 | uint(from[2]) << 16 | uint(from[3]) << 24;
}
inline uint load_word_2(device const u8* bytes, uint i) {
  device const ushort* from = reinterpret_cast<device const ushort*>(bytes) + 2 * i;
  return uint(from[0]) | uint(from[1]) << 16;
}
inline uint load_word_4(device const u8* bytes, uint i) { return reinterpret_cast<device const uint*>(bytes)[i]; }
inline uint2 load_words_8(device const u8* bytes, uint i) {
  return *reinterpret_cast<device const uint2*>(reinterpret_cast<device const uint*>(bytes) + i);
}

// ---- blocks of 32. Those of 16 bytes of quants have elements 0 to 15 in the low nibbles, 16 to 31 in the high ones.

struct Q4_0Reader {
  using Block = block_q4_0;
  enum : uint { kElements = 32 };

  static inline void eight(device const Block* block, uint i, thread float4& low, thread float4& high) {
    const uint side = i / 2;
    const uint first = 2 * (i % 2);
    const float d = qk_half(block->d);
    low = d * signed_bytes_to_floats(q4_0_levels(load_word_2(block->qs, first), side));
    high = d * signed_bytes_to_floats(q4_0_levels(load_word_2(block->qs, first + 1), side));
  }
};

struct Q4_1Reader {
  using Block = block_q4_1;
  enum : uint { kElements = 32 };

  static inline void eight(device const Block* block, uint i, thread float4& low, thread float4& high) {
    const uint side = i / 2;
    const uint first = 2 * (i % 2);
    const float d = qk_half(block->d);
    const float m = qk_half(block->m);
    low = d * bytes_to_floats(q4_1_quants(load_word_4(block->qs, first), side)) + m;
    high = d * bytes_to_floats(q4_1_quants(load_word_4(block->qs, first + 1), side)) + m;
  }
};

struct Q5_0Reader {
  using Block = block_q5_0;
  enum : uint { kElements = 32 };

  static inline void eight(device const Block* block, uint i, thread float4& low, thread float4& high) {
    const uint side = i / 2;
    const uint first = 2 * (i % 2);
    const float d = qk_half(block->d);
    const uint qh = load_word_2(block->qh, 0);
    low = d * signed_bytes_to_floats(q5_0_levels(load_word_2(block->qs, first), qh, 4 * first, side));
    high = d * signed_bytes_to_floats(q5_0_levels(load_word_2(block->qs, first + 1), qh, 4 * first + 4, side));
  }
};

struct Q5_1Reader {
  using Block = block_q5_1;
  enum : uint { kElements = 32 };

  static inline void eight(device const Block* block, uint i, thread float4& low, thread float4& high) {
    const uint side = i / 2;
    const uint first = 2 * (i % 2);
    const float d = qk_half(block->d);
    const float m = qk_half(block->m);
    const uint qh = load_word_4(block->qh, 0);
    const uint2 words = load_words_8(block->qs, first);
    low = d * bytes_to_floats(q5_1_quants(words.x, qh, 4 * first, side)) + m;
    high = d * bytes_to_floats(q5_1_quants(words.y, qh, 4 * first + 4, side)) + m;
  }
};

struct Q8_0Reader {
  using Block = block_q8_0;
  enum : uint { kElements = 32 };

  static inline void eight(device const Block* block, uint i, thread float4& low, thread float4& high) {
    device const u8* bytes = reinterpret_cast<device const u8*>(block->qs);
    const float d = qk_half(block->d);
    low = d * signed_bytes_to_floats(load_word_2(bytes, 2 * i));
    high = d * signed_bytes_to_floats(load_word_2(bytes, 2 * i + 1));
  }
};

struct IQ4_NLReader {
  using Block = block_iq4_nl;
  enum : uint { kElements = 32 };

  static inline void eight(device const Block* block, uint i, thread float4& low, thread float4& high) {
    const uint side = i / 2;
    const uint first = 2 * (i % 2);
    const float d = qk_half(block->d);
    low = d * signed_bytes_to_floats(iq4_nl_levels(iq4_nl_quants(load_word_2(block->qs, first), side)));
    high = d * signed_bytes_to_floats(iq4_nl_levels(iq4_nl_quants(load_word_2(block->qs, first + 1), side)));
  }
};

struct MXFP4Reader {
  using Block = block_mxfp4;
  enum : uint { kElements = 32 };

  static inline void eight(device const Block* block, uint i, thread float4& low, thread float4& high) {
    const uint side = i / 2;
    const uint first = 2 * (i % 2);
    const float scale = mxfp4_scale(block->e);
    low = scale * signed_bytes_to_floats(mxfp4_levels(mxfp4_quants(load_word_1(block->qs, first), side)));
    high = scale * signed_bytes_to_floats(mxfp4_levels(mxfp4_quants(load_word_1(block->qs, first + 1), side)));
  }
};

// ---- blocks of 256: i is 16 h + 4 s + k of element 128 h + 32 s + 8 k

struct Q2_KReader {
  using Block = block_q2_k;
  enum : uint { kElements = 256 };

  static inline void eight(device const Block* block, uint i, thread float4& low, thread float4& high) {
    const uint s = i / 4 % 4;
    const uint first = i / 16 * 8 + 2 * (i % 4);
    const uint bits = block->scales[i / 2];
    const float scale = qk_half(block->d) * float(q2_k_scales(bits));
    const float min = qk_half(block->dmin) * float(q2_k_mins(bits));
    low = scale * bytes_to_floats(q2_k_quants(load_word_4(block->qs, first), s)) - min;
    high = scale * bytes_to_floats(q2_k_quants(load_word_4(block->qs, first + 1), s)) - min;
  }
};

struct Q3_KReader {
  using Block = block_q3_k;
  enum : uint { kElements = 256 };

  static inline void eight(device const Block* block, uint i, thread float4& low, thread float4& high) {
    const uint h = i / 16;
    const uint s = i / 4 % 4;
    const uint first = 2 * (i % 4);
    const uint s0 = load_word_2(block->scales, 0);
    const uint s1 = load_word_2(block->scales, 1);
    const uint s2 = load_word_2(block->scales, 2);
    const float scale = qk_half(block->d) * float(q3_k_scale(s0, s1, s2, i / 2));
    const uint near = load_word_2(block->hmask, first);
    const uint far = load_word_2(block->hmask, first + 1);
    low = scale * signed_bytes_to_floats(q3_k_levels(load_word_2(block->qs, 8 * h + first), near, h, s));
    high = scale * signed_bytes_to_floats(q3_k_levels(load_word_2(block->qs, 8 * h + first + 1), far, h, s));
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
    const uint2 bytes = load_words_8(block->qs, 8 * (group / 2) + 2 * (i % 4));
    low = scale * bytes_to_floats(q4_k_quants(bytes.x, side)) - min;
    high = scale * bytes_to_floats(q4_k_quants(bytes.y, side)) - min;
  }
};

struct Q5_KReader {
  using Block = block_q5_k;
  enum : uint { kElements = 256 };

  static inline void eight(device const Block* block, uint i, thread float4& low, thread float4& high) {
    device const uint* words = reinterpret_cast<device const uint*>(block);
    const uint group = i / 4;
    const float scale = qk_half(words[0] & 0xffff) * float(q5_k_scale(words[1], words[3], group));
    const float min = qk_half(words[0] >> 16) * float(q5_k_min(words[2], words[3], group));
    const uint2 bytes = load_words_8(block->qs, 8 * (group / 2) + 2 * (i % 4));
    const uint2 top = load_words_8(block->qh, 2 * (i % 4));
    low = scale * bytes_to_floats(q5_k_quants(bytes.x, top.x, group)) - min;
    high = scale * bytes_to_floats(q5_k_quants(bytes.y, top.y, group)) - min;
  }
};

struct Q6_KReader {
  using Block = block_q6_k;
  enum : uint { kElements = 256 };

  static inline void eight(device const Block* block, uint i, thread float4& low, thread float4& high) {
    const uint h = i / 16;
    const uint s = i / 4 % 4;
    const uint first = 2 * (i % 4);
    const uint lo = 16 * h + 8 * (s % 2) + first;
    const uint hi = 8 * h + first;
    const float scale = qk_half(block->d) * float(block->scales[i / 2]);
    low = scale * signed_bytes_to_floats(q6_k_levels(load_word_2(block->ql, lo), load_word_2(block->qh, hi), s));
    high =
        scale * signed_bytes_to_floats(q6_k_levels(load_word_2(block->ql, lo + 1), load_word_2(block->qh, hi + 1), s));
  }
};

struct IQ4_XSReader {
  using Block = block_iq4_xs;
  enum : uint { kElements = 256 };

  static inline void eight(device const Block* block, uint i, thread float4& low, thread float4& high) {
    const uint group = i / 4;
    const uint side = i % 4 / 2;
    const float scale =
        qk_half(block->d) * float(iq4_xs_scale(load_word_4(block->scales_l, 0), block->scales_h, group));
    const uint2 bytes = load_words_8(block->qs, 4 * group + 2 * (i % 2));
    low = scale * signed_bytes_to_floats(iq4_xs_levels(iq4_xs_quants(bytes.x, side)));
    high = scale * signed_bytes_to_floats(iq4_xs_levels(iq4_xs_quants(bytes.y, side)));
  }
};

// ---- formats without blocks: eight elements are read as one, so a row has a multiple of 8

struct F16Reader {
  struct Block {
    block_f16 elements[8];
  };
  enum : uint { kElements = 8 };

  static inline void eight(device const Block* block, uint, thread float4& low, thread float4& high) {
    const uint4 words = *reinterpret_cast<device const uint4*>(block);
    low = float4(f16_value(words.x & 0xffff), f16_value(words.x >> 16), f16_value(words.y & 0xffff),
                 f16_value(words.y >> 16));
    high = float4(f16_value(words.z & 0xffff), f16_value(words.z >> 16), f16_value(words.w & 0xffff),
                  f16_value(words.w >> 16));
  }
};

struct BF16Reader {
  struct Block {
    block_bf16 elements[8];
  };
  enum : uint { kElements = 8 };

  static inline void eight(device const Block* block, uint, thread float4& low, thread float4& high) {
    const uint4 words = *reinterpret_cast<device const uint4*>(block);
    low = float4(bf16_value(words.x & 0xffff), bf16_value(words.x >> 16), bf16_value(words.y & 0xffff),
                 bf16_value(words.y >> 16));
    high = float4(bf16_value(words.z & 0xffff), bf16_value(words.z >> 16), bf16_value(words.w & 0xffff),
                  bf16_value(words.w >> 16));
  }
};

struct F32Reader {
  struct Block {
    block_f32 elements[8];
  };
  enum : uint { kElements = 8 };

  static inline void eight(device const Block* block, uint, thread float4& low, thread float4& high) {
    device const uint4* words = reinterpret_cast<device const uint4*>(block);
    low = as_type<float4>(words[0]);
    high = as_type<float4>(words[1]);
  }
};

// Elements 8 i to 8 i + 7 of a row of a matrix whose rows have cols elements.
template <class Reader>
inline void eight_of_row(device const typename Reader::Block* w, uint row, uint cols, uint i, thread float4& low,
                         thread float4& high) {
  device const typename Reader::Block* blocks = w + ulong(row) * (cols / Reader::kElements);
  Reader::eight(blocks + i / (Reader::kElements / 8), i % (Reader::kElements / 8), low, high);
}

}  // namespace argent
