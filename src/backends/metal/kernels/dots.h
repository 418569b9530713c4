// Products of rows of a matrix with one token or a few, for mul_mv, mul_mv_tokens and the kernels that fuse something
// with them: one order of sums, so the same bits. In fused kernels a function constant says the format (the id of
// quant/formats.def); Apple's compiler folds the switch to one reader.
#pragma once

#include "backends/metal/kernels/weights.h"

namespace argent {

// Adds what a lane has of the products with one token; the sums over the lanes are the products. A lane decodes eight
// weights of each row, which meet the same eight values of x.
template <class Reader>
struct Dots {
  enum : uint { kRows = 2 };  // that a SIMD-group of mul_mv has

  template <uint n>
  static inline void add(device const typename Reader::Block* w, thread const uint (&rows)[n], uint cols,
                         device const float* x, uint lane, thread float (&sums)[n]) {
    for (uint i = lane; i < cols / 8; i += 32) {
      device const float4* x4 = reinterpret_cast<device const float4*>(x + 8 * i);
      const float4 x0 = x4[0];
      const float4 x1 = x4[1];
      MTL_UNROLL
      for (uint r = 0; r < n; r++) {
        float4 low;
        float4 high;
        eight_of_row<Reader>(w, rows[r], cols, i, low, high);
        sums[r] += dot(low, x0) + dot(high, x1);
      }
    }
  }
};

// A pair of lanes shares a block: each takes 8 of its 16 bytes, 16 elements. 16 blocks of a row are in flight.
template <>
struct Dots<Q4_0Reader> {
  enum : uint { kRows = 4 };  // that a SIMD-group of mul_mv has

  template <uint n>
  static inline void add(device const block_q4_0* w, thread const uint (&rows)[n], uint cols, device const float* x,
                         uint lane, thread float (&sums)[n]) {
    const uint blocks = cols / 32;
    const uint part = lane % 2;
    for (uint b = lane / 2; b < blocks; b += 16) {
      device const float4* x4 = reinterpret_cast<device const float4*>(x + 32 * b + 8 * part);
      const float4 x0 = x4[0];
      const float4 x1 = x4[1];
      const float4 x2 = x4[4];
      const float4 x3 = x4[5];
      const float4 total = x0 + x1 + x2 + x3;
      const float zero = float(kQ4_0Zero) * (total.x + total.y + total.z + total.w);
      MTL_UNROLL
      for (uint r = 0; r < n; r++) {
        device const block_q4_0* block = w + ulong(rows[r]) * blocks + b;
        const uint low = load_word_2(block->qs, 2 * part);
        const uint high = load_word_2(block->qs, 2 * part + 1);
        const float dots =
            dot(bytes_to_floats(q4_0_quants(low, 0)), x0) + dot(bytes_to_floats(q4_0_quants(high, 0)), x1) +
            dot(bytes_to_floats(q4_0_quants(low, 1)), x2) + dot(bytes_to_floats(q4_0_quants(high, 1)), x3);
        sums[r] += qk_half(block->d) * (dots - zero);
      }
    }
  }
};

// Eight lanes share a block: lane 4 h + i of them takes bytes 8 i to 8 i + 7 of chunks h and h + 2, 32 elements. 4
// blocks of a row are in flight.
template <>
struct Dots<Q4_KReader> {
  enum : uint { kRows = 2 };  // that a SIMD-group of mul_mv has

  template <uint n>
  static inline void add(device const block_q4_k* w, thread const uint (&rows)[n], uint cols, device const float* x,
                         uint lane, thread float (&sums)[n]) {
    const uint blocks = cols / 256;
    const uint half_of = lane % 8 / 4;
    const uint part = lane % 4;
    for (uint b = lane / 8; b < blocks; b += 4) {
      device const float4* x4 = reinterpret_cast<device const float4*>(x + 256 * b + 64 * half_of + 8 * part);
      float4 v[8];
      float4 x_sums;
      MTL_UNROLL
      for (uint g = 0; g < 4; g++) {  // groups 2 h, 2 h + 1, 2 h + 4, 2 h + 5
        v[2 * g] = x4[32 * (g / 2) + 8 * (g % 2)];
        v[2 * g + 1] = x4[32 * (g / 2) + 8 * (g % 2) + 1];
        const float4 both = v[2 * g] + v[2 * g + 1];
        x_sums[g] = both.x + both.y + both.z + both.w;
      }
      MTL_UNROLL
      for (uint r = 0; r < n; r++) {
        device const uint* words = reinterpret_cast<device const uint*>(w + ulong(rows[r]) * blocks + b);
        const uint4 head = *reinterpret_cast<device const uint4*>(words);
        const uint2 near = *reinterpret_cast<device const uint2*>(words + 4 + 8 * half_of + 2 * part);
        const uint2 far = *reinterpret_cast<device const uint2*>(words + 20 + 8 * half_of + 2 * part);
        const uint shift = 16 * half_of;
        const uint scale_bits = (q4_k_scales4(head.y, head.w, 0) >> shift & 0xffff) |
                                (q4_k_scales4(head.y, head.w, 1) >> shift & 0xffff) << 16;
        const uint min_bits =
            (q4_k_mins4(head.z, head.w, 0) >> shift & 0xffff) | (q4_k_mins4(head.z, head.w, 1) >> shift & 0xffff) << 16;
        const float4 dots = float4(
            dot(bytes_to_floats(q4_k_quants(near.x, 0)), v[0]) + dot(bytes_to_floats(q4_k_quants(near.y, 0)), v[1]),
            dot(bytes_to_floats(q4_k_quants(near.x, 1)), v[2]) + dot(bytes_to_floats(q4_k_quants(near.y, 1)), v[3]),
            dot(bytes_to_floats(q4_k_quants(far.x, 0)), v[4]) + dot(bytes_to_floats(q4_k_quants(far.y, 0)), v[5]),
            dot(bytes_to_floats(q4_k_quants(far.x, 1)), v[6]) + dot(bytes_to_floats(q4_k_quants(far.y, 1)), v[7]));
        sums[r] += qk_half(head.x & 0xffff) * dot(bytes_to_floats(scale_bits), dots) -
                   qk_half(head.x >> 16) * dot(bytes_to_floats(min_bits), x_sums);
      }
    }
  }
};

// Elements 8 i to 8 i + 7 of a row.
inline void eight_of(uint format, device const uchar* w, uint row, uint cols, uint i, thread float4& low,
                     thread float4& high) {
  switch (format) {
#define FORMAT(name, NAME, id, elements, bytes)                                                                  \
  case id:                                                                                                       \
    eight_of_row<NAME##Reader>(reinterpret_cast<device const NAME##Reader::Block*>(w), row, cols, i, low, high); \
    break;
#define KNOWN(NAME, id, elements, bytes)
#include "quant/formats.def"
#undef FORMAT
#undef KNOWN
  }
}

inline float2 dots_of(uint format, device const uchar* w, uint2 rows, uint cols, device const float* x, uint lane) {
  const uint two[2] = {rows.x, rows.y};
  float sums[2] = {0.0f, 0.0f};
  switch (format) {
#define FORMAT(name, NAME, id, elements, bytes)                                                                \
  case id:                                                                                                     \
    Dots<NAME##Reader>::add(reinterpret_cast<device const NAME##Reader::Block*>(w), two, cols, x, lane, sums); \
    break;
#define KNOWN(NAME, id, elements, bytes)
#include "quant/formats.def"
#undef FORMAT
#undef KNOWN
  }
  return float2(sums[0], sums[1]);
}

// A few tokens: x of token t begins at t * stride.
struct Tokens {
  uint count;  // at most 8
  uint stride;
};
struct TokenSums {
  float row0[8];
  float row1[8];
};

inline void clear(thread TokenSums& sums) {
  MTL_UNROLL
  for (uint t = 0; t < 8; t++) {
    sums.row0[t] = 0.0f;
    sums.row1[t] = 0.0f;
  }
}

template <class Reader>
inline void add_token_dots(device const typename Reader::Block* w, uint2 rows, uint cols, device const float* x,
                           const Tokens tokens, uint lane, thread TokenSums& sums) {
  for (uint i = lane; i < cols / 8; i += 32) {
    float4 low[2];
    float4 high[2];
    MTL_UNROLL
    for (uint r = 0; r < 2; r++) {
      eight_of_row<Reader>(w, rows[r], cols, i, low[r], high[r]);
    }
    MTL_UNROLL
    for (uint t = 0; t < 8; t++) {  // a constant bound keeps the sums in registers
      if (t < tokens.count) {
        device const float4* x4 = reinterpret_cast<device const float4*>(x + ulong(t) * tokens.stride + 8 * i);
        const float4 x0 = x4[0];
        const float4 x1 = x4[1];
        sums.row0[t] += dot(low[0], x0) + dot(high[0], x1);
        sums.row1[t] += dot(low[1], x0) + dot(high[1], x1);
      }
    }
  }
}

inline void token_dots(uint format, device const uchar* w, uint2 rows, uint cols, device const float* x,
                       const Tokens tokens, uint lane, thread TokenSums& sums) {
  clear(sums);
  switch (format) {
#define FORMAT(name, NAME, id, elements, bytes)                                                                       \
  case id:                                                                                                            \
    add_token_dots<NAME##Reader>(reinterpret_cast<device const NAME##Reader::Block*>(w), rows, cols, x, tokens, lane, \
                                 sums);                                                                               \
    break;
#define KNOWN(NAME, id, elements, bytes)
#include "quant/formats.def"
#undef FORMAT
#undef KNOWN
  }
}

// Products of all tokens over the lanes' sums: lane 2 t + r has that of token t and row r, so that they are stored
// together.
inline float token_products(thread const TokenSums& sums, uint tokens, uint lane) {
  float mine = 0.0f;
  MTL_UNROLL
  for (uint t = 0; t < 8; t++) {
    if (t < tokens) {  // the same in all lanes; not mutated: saves work, other sums are 0 and not stored
      const float product0 = simd_sum(sums.row0[t]);
      const float product1 = simd_sum(sums.row1[t]);
      const float product = lane % 2 == 0 ? product0 : product1;
      mine = lane / 2 == t ? product : mine;
    }
  }
  return mine;
}

}  // namespace argent
