// Walks the blocks of every format on the host, by the decoders of their headers: the quants in element order, and the
// scale and min of each group as floats. decode_row and uniform_row are loops over these. Little-endian hosts only.
#pragma once

#include <bit>
#include <cstring>

#include "quant/bf16.h"
#include "quant/f16.h"
#include "quant/f32.h"
#include "quant/formats.h"
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

static_assert(std::endian::native == std::endian::little, "blocks are read as little-endian words");

inline u32 load_word(const void* p) {
  u32 w;
  std::memcpy(&w, p, 4);
  return w;
}

inline void store_word(u8* p, u32 w) { std::memcpy(p, &w, 4); }

// Walk<F> of a block format has
//   Block; kGroup (elements that share a scale); kSigned (the bytes are signed); kHasMin, and there kMinSubtracted
//   (value() subtracts the min; otherwise it adds it); kZero (the zero_point of its UniformShape); quants(block, q): a
//   byte for each element, as value() takes it; scales(block, scale, min): for each group; min is written only where
//   kHasMin; value(scale, min, q).
// Not for files compiled for one instruction set: these functions are not always inlined (see portable.h).
template <Format F>
struct Walk;

template <>
struct Walk<Format::q4_0> {
  using Block = block_q4_0;
  static constexpr int kGroup = 32, kZero = kQ4_0Zero;
  static constexpr bool kHasMin = false, kSigned = false;
  static void quants(const Block& b, u8* q) {
    for (u32 side = 0; side < 2; side++)
      for (u32 i = 0; i < 16; i += 4) store_word(q + 16 * side + i, q4_0_quants(load_word(b.qs + i), side));
  }
  static void scales(const Block& b, float* scale, float*) { *scale = qk_half(b.d); }
  static float value(float scale, float, u8 q) { return q4_0_value(scale, q); }
};

template <>
struct Walk<Format::q4_1> {
  using Block = block_q4_1;
  static constexpr int kGroup = 32, kZero = 0;
  static constexpr bool kHasMin = true, kSigned = false, kMinSubtracted = false;
  static void quants(const Block& b, u8* q) {
    for (u32 side = 0; side < 2; side++)
      for (u32 i = 0; i < 16; i += 4) store_word(q + 16 * side + i, q4_1_quants(load_word(b.qs + i), side));
  }
  static void scales(const Block& b, float* scale, float* min) { *scale = qk_half(b.d), *min = qk_half(b.m); }
  static float value(float scale, float min, u8 q) { return q4_1_value(scale, min, q); }
};

template <>
struct Walk<Format::q5_0> {
  using Block = block_q5_0;
  static constexpr int kGroup = 32, kZero = kQ5_0Zero;
  static constexpr bool kHasMin = false, kSigned = false;
  static void quants(const Block& b, u8* q) {
    const u32 qh = load_word(b.qh);
    for (u32 side = 0; side < 2; side++)
      for (u32 i = 0; i < 16; i += 4) store_word(q + 16 * side + i, q5_0_quants(load_word(b.qs + i), qh, i, side));
  }
  static void scales(const Block& b, float* scale, float*) { *scale = qk_half(b.d); }
  static float value(float scale, float, u8 q) { return q5_0_value(scale, q); }
};

template <>
struct Walk<Format::q5_1> {
  using Block = block_q5_1;
  static constexpr int kGroup = 32, kZero = 0;
  static constexpr bool kHasMin = true, kSigned = false, kMinSubtracted = false;
  static void quants(const Block& b, u8* q) {
    const u32 qh = load_word(b.qh);
    for (u32 side = 0; side < 2; side++)
      for (u32 i = 0; i < 16; i += 4) store_word(q + 16 * side + i, q5_1_quants(load_word(b.qs + i), qh, i, side));
  }
  static void scales(const Block& b, float* scale, float* min) { *scale = qk_half(b.d), *min = qk_half(b.m); }
  static float value(float scale, float min, u8 q) { return q5_1_value(scale, min, q); }
};

template <>
struct Walk<Format::q8_0> {
  using Block = block_q8_0;
  static constexpr int kGroup = 32, kZero = 128;
  static constexpr bool kHasMin = false, kSigned = true;
  static void quants(const Block& b, u8* q) { std::memcpy(q, b.qs, 32); }
  static void scales(const Block& b, float* scale, float*) { *scale = qk_half(b.d); }
  static float value(float scale, float, u8 q) { return q8_0_value(scale, qk_signed(q)); }
};

template <>
struct Walk<Format::q2_k> {
  using Block = block_q2_k;
  static constexpr int kGroup = kQ2_KGroup, kZero = 0;
  static constexpr bool kHasMin = true, kSigned = false, kMinSubtracted = true;
  static void quants(const Block& b, u8* q) {
    for (u32 h = 0; h < 2; h++)
      for (u32 s = 0; s < 4; s++)
        for (u32 l = 0; l < 32; l += 4)
          store_word(q + 128 * h + 32 * s + l, q2_k_quants(load_word(b.qs + 32 * h + l), s));
  }
  static void scales(const Block& b, float* scale, float* min) {
    const float d = qk_half(b.d), dmin = qk_half(b.dmin);
    for (u32 j = 0; j < 16; j++) {
      scale[j] = d * float(q2_k_scales(b.scales[j]));
      min[j] = dmin * float(q2_k_mins(b.scales[j]));
    }
  }
  static float value(float scale, float min, u8 q) { return q2_k_value(scale, min, q); }
};

template <>
struct Walk<Format::q3_k> {
  using Block = block_q3_k;
  static constexpr int kGroup = kQ3_KGroup, kZero = kQ3_KZero;
  static constexpr bool kHasMin = false, kSigned = false;
  static void quants(const Block& b, u8* q) {
    for (u32 h = 0; h < 2; h++)
      for (u32 s = 0; s < 4; s++)
        for (u32 l = 0; l < 32; l += 4)
          store_word(q + 128 * h + 32 * s + l, q3_k_quants(load_word(b.qs + 32 * h + l), load_word(b.hmask + l), h, s));
  }
  static void scales(const Block& b, float* scale, float*) {
    const float d = qk_half(b.d);
    const u32 s0 = load_word(b.scales), s1 = load_word(b.scales + 4), s2 = load_word(b.scales + 8);
    for (u32 j = 0; j < 16; j++) scale[j] = d * float(q3_k_scale(s0, s1, s2, j));
  }
  static float value(float scale, float, u8 q) { return q3_k_value(scale, q); }
};

template <>
struct Walk<Format::q4_k> {
  using Block = block_q4_k;
  static constexpr int kGroup = kQ4_KGroup, kZero = 0;
  static constexpr bool kHasMin = true, kSigned = false, kMinSubtracted = true;
  static void quants(const Block& b, u8* q) {
    for (u32 c = 0; c < 4; c++)
      for (u32 side = 0; side < 2; side++)
        for (u32 l = 0; l < 32; l += 4)
          store_word(q + 64 * c + 32 * side + l, q4_k_quants(load_word(b.qs + 32 * c + l), side));
  }
  static void scales(const Block& b, float* scale, float* min) {
    const float d = qk_half(b.d), dmin = qk_half(b.dmin);
    const u32 s0 = load_word(b.scales), s1 = load_word(b.scales + 4), s2 = load_word(b.scales + 8);
    for (u32 j = 0; j < 8; j++) {
      scale[j] = d * float(i32(q4_k_scale(s0, s2, j)));
      min[j] = dmin * float(i32(q4_k_min(s1, s2, j)));
    }
  }
  static float value(float scale, float min, u8 q) { return q4_k_value(scale, min, q); }
};

template <>
struct Walk<Format::q5_k> {
  using Block = block_q5_k;
  static constexpr int kGroup = kQ5_KGroup, kZero = 0;
  static constexpr bool kHasMin = true, kSigned = false, kMinSubtracted = true;
  static void quants(const Block& b, u8* q) {
    for (u32 j = 0; j < 8; j++)
      for (u32 l = 0; l < 32; l += 4)
        store_word(q + 32 * j + l, q5_k_quants(load_word(b.qs + 32 * (j / 2) + l), load_word(b.qh + l), j));
  }
  static void scales(const Block& b, float* scale, float* min) {
    const float d = qk_half(b.d), dmin = qk_half(b.dmin);
    const u32 s0 = load_word(b.scales), s1 = load_word(b.scales + 4), s2 = load_word(b.scales + 8);
    for (u32 j = 0; j < 8; j++) {
      scale[j] = d * float(i32(q5_k_scale(s0, s2, j)));
      min[j] = dmin * float(i32(q5_k_min(s1, s2, j)));
    }
  }
  static float value(float scale, float min, u8 q) { return q5_k_value(scale, min, q); }
};

template <>
struct Walk<Format::q6_k> {
  using Block = block_q6_k;
  static constexpr int kGroup = kQ6_KGroup, kZero = kQ6_KZero;
  static constexpr bool kHasMin = false, kSigned = false;
  static void quants(const Block& b, u8* q) {
    for (u32 h = 0; h < 2; h++)
      for (u32 s = 0; s < 4; s++)
        for (u32 l = 0; l < 32; l += 4)
          store_word(q + 128 * h + 32 * s + l,
                     q6_k_quants(load_word(b.ql + 64 * h + 32 * (s & 1) + l), load_word(b.qh + 32 * h + l), s));
  }
  static void scales(const Block& b, float* scale, float*) {
    const float d = qk_half(b.d);
    for (u32 j = 0; j < 16; j++) scale[j] = d * float(b.scales[j]);
  }
  static float value(float scale, float, u8 q) { return q6_k_value(scale, q); }
};

template <>
struct Walk<Format::iq4_nl> {
  using Block = block_iq4_nl;
  static constexpr int kGroup = 32, kZero = 128;
  static constexpr bool kHasMin = false, kSigned = true;
  static void quants(const Block& b, u8* q) {
    for (u32 side = 0; side < 2; side++)
      for (u32 i = 0; i < 16; i += 4)
        store_word(q + 16 * side + i, iq4_nl_levels(iq4_nl_quants(load_word(b.qs + i), side)));
  }
  static void scales(const Block& b, float* scale, float*) { *scale = qk_half(b.d); }
  static float value(float scale, float, u8 q) { return iq4_nl_value(scale, qk_signed(q)); }
};

template <>
struct Walk<Format::iq4_xs> {
  using Block = block_iq4_xs;
  static constexpr int kGroup = kIQ4_XSGroup, kZero = 128;
  static constexpr bool kHasMin = false, kSigned = true;
  static void quants(const Block& b, u8* q) {
    for (u32 j = 0; j < 8; j++)
      for (u32 side = 0; side < 2; side++)
        for (u32 i = 0; i < 16; i += 4)
          store_word(q + 32 * j + 16 * side + i, iq4_xs_levels(iq4_xs_quants(load_word(b.qs + 16 * j + i), side)));
  }
  static void scales(const Block& b, float* scale, float*) {
    const float d = qk_half(b.d);
    for (u32 j = 0; j < 8; j++) scale[j] = d * float(iq4_xs_scale(load_word(b.scales_l), b.scales_h, j));
  }
  static float value(float scale, float, u8 q) { return iq4_xs_value(scale, qk_signed(q)); }
};

template <>
struct Walk<Format::mxfp4> {
  using Block = block_mxfp4;
  static constexpr int kGroup = 32, kZero = 128;
  static constexpr bool kHasMin = false, kSigned = true;
  static void quants(const Block& b, u8* q) {
    for (u32 side = 0; side < 2; side++)
      for (u32 i = 0; i < 16; i += 4)
        store_word(q + 16 * side + i, mxfp4_levels(mxfp4_quants(load_word(b.qs + i), side)));
  }
  static void scales(const Block& b, float* scale, float*) { *scale = mxfp4_scale(b.e); }
  static float value(float scale, float, u8 q) { return mxfp4_value(scale, qk_signed(q)); }
};

}  // namespace argent
