// Weights<F>: how kernels read a block of a panel (pack.cc has the layouts), for the kLanes rows from `lane` on.
//   kGroups   groups of 32 columns in a block            kBytes   bytes of a block of 16 rows
//   kMax      greatest code                              kZero    code of the value 0, where there are no mins
//   kHalves   scales are of 16 columns, not of 32        kMins    value = scale * code + min
//   codes(j, c)      group j of the block: c[i] has columns 4i to 4i+3 of each row in its four bytes
//   scales(j, s, m)  one or (kHalves) two scales and mins, exact as floats
#pragma once

#include "backends/cpu/simd/simd.h"
#include "quant/iq4_nl.h"
#include "quant/mxfp4.h"

namespace argent::cpu::ARGENT_ISA {
namespace {

SIMD_FN void read_nibbles(const uint8_t* p, I32 (&c)[8]) {
  const I32 mask = set_i32(0x0f0f0f0f);
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const I32 x = load_i32(p + 64 * i);
    c[i] = and_i32(x, mask);
    c[4 + i] = high_nibbles(x);
  }
}

// One more bit for each code, at place `to`.
SIMD_FN void read_bits(const uint8_t* p, int to, I32 (&c)[8]) {
  const I32 plane = load_i32(p), mask = set_i32(0x01010101u << to);
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) c[i] = or_and(c[i], shift(plane, to - i), mask);
}

// Two more bits for each code, at places `to` and `to` + 1.
SIMD_FN void read_pairs(const uint8_t* p, int to, I32 (&c)[8]) {
  const I32 mask = set_i32(0x03030303u << to);
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) c[i] = or_and(c[i], shift(load_i32(p + 64 * (i / 4)), to - 2 * (i % 4)), mask);
}

SIMD_FN void clear(I32 (&c)[8]) {
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) c[i] = set_i32(0);
}

SIMD_FN void look_up(const uint8_t (&table)[16], I32 (&c)[8]) {
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) c[i] = lookup16(table, c[i]);
}

struct LevelTable {
  uint8_t u[16];  // signed levels + zero
  constexpr LevelTable(int zero, uint32_t w0, uint32_t w1, uint32_t w2, uint32_t w3) : u() {
    const uint32_t words[4] = {w0, w1, w2, w3};
    for (int i = 0; i < 16; ++i) u[i] = uint8_t((words[i / 4] >> 8 * (i % 4)) + uint32_t(zero));
  }
};
constexpr LevelTable kIq4Levels(128, kIQ4_NLLevels0, kIQ4_NLLevels1, kIQ4_NLLevels2, kIQ4_NLLevels3);
constexpr LevelTable kMxfp4Levels(16, kMXFP4Levels0, kMXFP4Levels1, kMXFP4Levels2, kMXFP4Levels3);

template <Format F>
struct Weights;

#define KERNEL_FN __attribute__((always_inline)) KERNEL_UNSANITIZED

// Formats of 32 columns a block: nibbles, perhaps one more bit, then d, perhaps m.
template <int Max, int Zero, bool Bits, bool Mins>
struct SmallBlock {
  static constexpr int kGroups = 1, kMax = Max, kZero = Zero, kScalesAt = Bits ? 320 : 256;
  static constexpr int kBytes = kScalesAt + (Mins ? 64 : 32);
  static constexpr bool kHalves = false, kMins = Mins;
  const uint8_t* p;
  int lane;
  KERNEL_FN SmallBlock(const uint8_t* block, int lane) : p(block), lane(lane) {}
  KERNEL_FN void codes(int, I32 (&c)[8]) const {
    read_nibbles(p + 4 * lane, c);
    if constexpr (Bits) read_bits(p + 256 + 4 * lane, 4, c);
  }
  KERNEL_FN void scales(int, F32* s, F32* m) const {
    s[0] = load_half(p + kScalesAt + 2 * lane);
    if constexpr (Mins) m[0] = load_half(p + kScalesAt + 32 + 2 * lane);
  }
};
template <>
struct Weights<Format::q4_0> : SmallBlock<15, 8, false, false> {
  using SmallBlock::SmallBlock;
};
template <>
struct Weights<Format::q4_1> : SmallBlock<15, 0, false, true> {
  using SmallBlock::SmallBlock;
};
template <>
struct Weights<Format::q5_0> : SmallBlock<31, 16, true, false> {
  using SmallBlock::SmallBlock;
};
template <>
struct Weights<Format::q5_1> : SmallBlock<31, 0, true, true> {
  using SmallBlock::SmallBlock;
};

template <>
struct Weights<Format::iq4_nl> {
  static constexpr int kGroups = 1, kBytes = 288, kMax = 255, kZero = 128;
  static constexpr bool kHalves = false, kMins = false;
  const uint8_t* p;
  int lane;
  KERNEL_FN Weights(const uint8_t* block, int lane) : p(block), lane(lane) {}
  KERNEL_FN void codes(int, I32 (&c)[8]) const {
    read_nibbles(p + 4 * lane, c);
    look_up(kIq4Levels.u, c);
  }
  KERNEL_FN void scales(int, F32* s, F32*) const { s[0] = load_half(p + 256 + 2 * lane); }
};

template <>
struct Weights<Format::mxfp4> {
  static constexpr int kGroups = 1, kBytes = 272, kMax = 28, kZero = 16;  // twice the levels: -12 to 12
  static constexpr bool kHalves = false, kMins = false;
  const uint8_t* p;
  int lane;
  KERNEL_FN Weights(const uint8_t* block, int lane) : p(block), lane(lane) {}
  KERNEL_FN void codes(int, I32 (&c)[8]) const {
    read_nibbles(p + 4 * lane, c);
    look_up(kMxfp4Levels.u, c);
  }
  // 2^(e-128) as mxfp4_scale has it: 2^(f-127) by its exponent field, f = max(e, 2) - 1, halved by exact products for
  // the subnormal e = 0 and 1.
  KERNEL_FN void scales(int, F32* s, F32*) const {
    const I32 e = load_u8(p + 256 + lane), f = max_i32(e, set_i32(2));
    const F32 normal = bits_f32(shift(add_i32(f, set_i32(uint32_t(-1))), 23));
    s[0] = mul(normal, bits_f32(shift(add_i32(sub_i32(e, f), set_i32(127)), 23)));
  }
};

template <>
struct Weights<Format::q8_0> {
  static constexpr int kGroups = 1, kBytes = 544, kMax = 255, kZero = 128;
  static constexpr bool kHalves = false, kMins = false;
  const uint8_t* p;
  int lane;
  KERNEL_FN Weights(const uint8_t* block, int lane) : p(block), lane(lane) {}
  KERNEL_FN void codes(int, I32 (&c)[8]) const {
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) c[i] = load_i32(p + 64 * i + 4 * lane);
  }
  KERNEL_FN void scales(int, F32* s, F32*) const { s[0] = load_half(p + 512 + 2 * lane); }
};

// Q4_K and Q5_K: d, dmin, 8 x {16 scales, 16 mins}, 8 groups.
template <bool Bits>
struct KBlock {
  static constexpr int kGroups = 8, kMax = Bits ? 31 : 15, kZero = 0, kGroupBytes = Bits ? 320 : 256;
  static constexpr int kBytes = 320 + 8 * kGroupBytes;
  static constexpr bool kHalves = false, kMins = true;
  const uint8_t* p;
  int lane;
  F32 d, neg_dmin;
  KERNEL_FN KBlock(const uint8_t* block, int lane)
      : p(block),
        lane(lane),
        d(load_half(block + 2 * lane)),
        neg_dmin(sub(set_f32(-0.0f), load_half(block + 32 + 2 * lane))) {}
  KERNEL_FN void codes(int j, I32 (&c)[8]) const {
    const uint8_t* group = p + 320 + j * kGroupBytes;
    read_nibbles(group + 4 * lane, c);
    if constexpr (Bits) read_bits(group + 256 + 4 * lane, 4, c);
  }
  KERNEL_FN void scales(int j, F32* s, F32* m) const {
    s[0] = mul(d, to_f32(load_u8(p + 64 + 32 * j + lane)));
    m[0] = mul(neg_dmin, to_f32(load_u8(p + 80 + 32 * j + lane)));
  }
};
template <>
struct Weights<Format::q4_k> : KBlock<false> {
  using KBlock::KBlock;
};
template <>
struct Weights<Format::q5_k> : KBlock<true> {
  using KBlock::KBlock;
};

template <>
struct Weights<Format::q6_k> {
  static constexpr int kGroups = 8, kBytes = 3360, kMax = 63, kZero = 32;
  static constexpr bool kHalves = true, kMins = false;
  const uint8_t* p;
  int lane;
  F32 d;
  KERNEL_FN Weights(const uint8_t* block, int lane) : p(block), lane(lane), d(load_half(block + 2 * lane)) {}
  KERNEL_FN void codes(int j, I32 (&c)[8]) const {
    const uint8_t* group = p + 288 + 384 * j + 4 * lane;
    read_nibbles(group, c);
    read_pairs(group + 256, 4, c);
  }
  KERNEL_FN void scales(int j, F32* s, F32*) const {
    s[0] = mul(d, to_f32(load_i8(p + 32 + 32 * j + lane)));
    s[1] = mul(d, to_f32(load_i8(p + 48 + 32 * j + lane)));
  }
};

template <>
struct Weights<Format::q3_k> {
  static constexpr int kGroups = 8, kBytes = 1824, kMax = 7, kZero = 4;
  static constexpr bool kHalves = true, kMins = false;
  const uint8_t* p;
  int lane;
  F32 d;
  KERNEL_FN Weights(const uint8_t* block, int lane) : p(block), lane(lane), d(load_half(block + 2 * lane)) {}
  KERNEL_FN void codes(int j, I32 (&c)[8]) const {
    const uint8_t* group = p + 288 + 192 * j + 4 * lane;
    clear(c);
    read_pairs(group, 0, c);
    read_bits(group + 128, 2, c);
  }
  KERNEL_FN void scales(int j, F32* s, F32*) const {
    s[0] = mul(d, to_f32(load_i8(p + 32 + 32 * j + lane)));
    s[1] = mul(d, to_f32(load_i8(p + 48 + 32 * j + lane)));
  }
};

template <>
struct Weights<Format::q2_k> {
  static constexpr int kGroups = 8, kBytes = 1344, kMax = 3, kZero = 0;
  static constexpr bool kHalves = true, kMins = true;
  const uint8_t* p;
  int lane;
  F32 d, neg_dmin;
  KERNEL_FN Weights(const uint8_t* block, int lane)
      : p(block),
        lane(lane),
        d(load_half(block + 2 * lane)),
        neg_dmin(sub(set_f32(-0.0f), load_half(block + 32 + 2 * lane))) {}
  KERNEL_FN void codes(int j, I32 (&c)[8]) const {
    clear(c);
    read_pairs(p + 320 + 128 * j + 4 * lane, 0, c);
  }
  KERNEL_FN void scales(int j, F32* s, F32* m) const {
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      const I32 both = load_u8(p + 64 + 16 * (2 * j + h) + lane);
      s[h] = mul(d, to_f32(and_i32(both, set_i32(15))));
      m[h] = mul(neg_dmin, to_f32(shift(both, -4)));
    }
  }
};

template <>
struct Weights<Format::iq4_xs> {
  static constexpr int kGroups = 8, kBytes = 2208, kMax = 255, kZero = 128;
  static constexpr bool kHalves = false, kMins = false;
  const uint8_t* p;
  int lane;
  F32 d;
  KERNEL_FN Weights(const uint8_t* block, int lane) : p(block), lane(lane), d(load_half(block + 2 * lane)) {}
  KERNEL_FN void codes(int j, I32 (&c)[8]) const {
    read_nibbles(p + 160 + 256 * j + 4 * lane, c);
    look_up(kIq4Levels.u, c);
  }
  KERNEL_FN void scales(int j, F32* s, F32*) const { s[0] = mul(d, to_f32(load_i8(p + 32 + 16 * j + lane))); }
};

// Whether columns 4i to 4i+3 of a group's rows are the panel's bytes from 64i on, with nothing to unpack.
template <Format F>
constexpr bool kPlainCodes = F == Format::q8_0;

// Floats, no quants: column 0 or 1 of the pair of columns at p, 2 * kColumnBytes long.
template <>
struct Weights<Format::f32> {
  static constexpr int kColumnBytes = 64;
  KERNEL_FN static F32 column(const uint8_t* p, int k, int lane) {
    return load_f32(reinterpret_cast<const float*>(p + k * kColumnBytes) + lane);
  }
};
template <>
struct Weights<Format::f16> {
  static constexpr int kColumnBytes = 32;
  KERNEL_FN static F32 column(const uint8_t* p, int k, int lane) { return load_half(p + k * kColumnBytes + 2 * lane); }
};
template <>
struct Weights<Format::bf16> {
  static constexpr int kColumnBytes = 32;
  KERNEL_FN static F32 column(const uint8_t* p, int k, int lane) {
    const I32 both = load_i32(p + 4 * lane);
    return bits_f32(k == 0 ? shift(both, 16) : and_i32(both, set_i32(0xffff0000u)));
  }
};

// Bytes of a panel, as panel_bytes.
template <Format F>
SIMD_FN constexpr uint64_t panel_size(uint32_t n_cols) {
  if constexpr (F == Format::bf16)
    return (uint64_t(n_cols) + 1) / 2 * 2 * Weights<F>::kColumnBytes;
  else if constexpr (!quantized(F))
    return uint64_t(n_cols) * Weights<F>::kColumnBytes;
  else
    return uint64_t(n_cols / kGroup / Weights<F>::kGroups) * Weights<F>::kBytes;
}

}  // namespace
}  // namespace argent::cpu::ARGENT_ISA
