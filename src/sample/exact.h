// The arithmetic of sampling (rules.h) in integers, the same bits in C++20, CUDA C++ and MSL: weights, shares, random
// words, and f32 arithmetic for devices whose compiler may round, contract or flush as it likes (Metal's fast maths).
#pragma once

#include "quant/portable.h"

namespace argent {
namespace sample {

using u64 = unsigned long;
static_assert(sizeof(u64) == 8, "weights and their sums");

// 2^31 * 2^-(f / 2^32): minimax on [0, 1), exact at 0, with a relative error of 4e-9.
QK_FN u64 weight_step(u64 c, u64 f, u64 p) { return c - (f * p >> 32); }
QK_FN u64 weight_power(u64 f) {
  u64 p = 0x5b29;
  p = weight_step(0x4d4bf, f, p);
  p = weight_step(0x2b846e, f, p);
  p = weight_step(0x13b16c4, f, p);
  p = weight_step(0x71abd68, f, p);
  p = weight_step(0x1ebfbd73, f, p);
  p = weight_step(0x58b90bf6, f, p);
  return weight_step(0x80000000, f, p);
}

// Of the bits of a distance from the best logit (the sign of a zero says nothing): whole steps of 2^-26, less than
// 2^31; kNoWeight from 28 on and for NaN.
QK_CONST u32 kNoWeight = 0xffffffff;
QK_FN u32 weight_steps(u32 bits) {
  const u32 exponent = bits >> 23 & 255, m = (bits & 0x7fffff) | 0x800000;
  if ((bits & 0x7fffffff) >= 0x41e00000) return kNoWeight;
  if (exponent >= 124) return m << (exponent - 124);
  return exponent > 100 ? m >> (124 - exponent) : 0;
}

// exp(-below) * 2^40: below in steps of 2^-26, times log2(e), is n + f with 32 bits of fraction.
QK_FN u64 weight_of_steps(u32 steps) {
  if (steps == kNoWeight) return 0;
  const u64 exponent = u64(steps) * 1549082005 >> 24;  // log2(e) * 2^30
  return weight_power(exponent & 0xffffffff) << 9 >> (exponent >> 32);
}

// floor(sum * fraction / 2^32), at least 1.
QK_FN u64 share_of_fraction(u64 sum, u64 fraction) {
  const u64 share = (sum >> 32) * fraction + ((sum & 0xffffffff) * fraction >> 32);
  return share > 1 ? share : 1;
}

// The high half of the 128-bit product.
QK_FN u64 mul_high(u64 a, u64 b) {
  const u64 a_low = a & 0xffffffff, a_high = a >> 32, b_low = b & 0xffffffff, b_high = b >> 32;
  const u64 middle = a_high * b_low + (a_low * b_low >> 32);
  return a_high * b_high + (middle >> 32) + (((middle & 0xffffffff) + a_low * b_high) >> 32);
}

// Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3").
struct PhiloxWords {
  u32 x, y, z, w;
};
QK_FN PhiloxWords philox_words(PhiloxWords c, u32 k0, u32 k1) {
  for (u32 round = 0; round < 10; ++round) {
    const u64 p0 = u64(0xD2511F53) * c.x, p1 = u64(0xCD9E8D57) * c.z;
    c = PhiloxWords{u32(p1 >> 32) ^ c.y ^ k0, u32(p1), u32(p0 >> 32) ^ c.w ^ k1, u32(p0)};
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return c;
}

// 64 random bits of the draw at a position of one of n answers.
QK_FN u64 draw_bits(u64 seed, u32 position, u32 sample_index) {
  const PhiloxWords words = philox_words(PhiloxWords{position, sample_index, 0, 0}, u32(seed), u32(seed >> 32));
  return u64(words.x) << 32 | words.y;
}

// ---- f32 arithmetic on bits: IEEE 754, to nearest, ties to even, with subnormals; every NaN is 0x7fc00000

QK_CONST u32 kInfinityBits = 0x7f800000, kNanBits = 0x7fc00000, kMagnitudeBits = 0x7fffffff;

QK_FN bool f32_is_nan(u32 a) { return (a & kMagnitudeBits) > kInfinityBits; }

// The bits that a right shift loses stay as bit 0.
QK_FN u32 f32_shift(u32 m, u32 by) {
  if (by > 31) return m != 0;
  return m >> by | u32((m & ((1u << by) - 1)) != 0);
}

// A finite number but 0 as m * 2^(exponent - 150), m of 24 bits with the highest set.
struct F32Parts {
  i32 exponent;
  u32 m;
};
QK_FN F32Parts f32_parts(u32 a) {
  F32Parts parts = {i32(a >> 23 & 255), a & 0x7fffff};
  if (parts.exponent) {
    parts.m |= 0x800000;
    return parts;
  }
  parts.exponent = 1;
  while (!(parts.m & 0x800000)) {
    parts.m <<= 1;
    --parts.exponent;
  }
  return parts;
}

// m * 2^(exponent - 157), rounded; bit 30 of m is its highest, bit 0 also stands for all below it.
QK_FN u32 f32_round(u32 sign, i32 exponent, u32 m) {
  if (exponent >= 255) return sign | kInfinityBits;
  if (exponent < 1) {
    m = f32_shift(m, u32(1 - exponent));
    exponent = 1;
  }
  const u32 half_way = m & 127, low = m >> 7;
  const u32 up = half_way > 64 || (half_way == 64 && (low & 1));
  return sign | ((u32(exponent - 1) << 23) + low + up);
}

QK_FN u32 f32_add(u32 a, u32 b) {
  if ((a & kMagnitudeBits) < (b & kMagnitudeBits)) {
    const u32 larger = b;
    b = a;
    a = larger;
  }
  const u32 sign = a & 0x80000000;
  if ((a & kMagnitudeBits) >= kInfinityBits) return f32_is_nan(a) || (a ^ b) == 0x80000000 ? kNanBits : a;
  if ((b & kMagnitudeBits) == 0) return (a & kMagnitudeBits) == 0 ? a & b : a;
  const F32Parts x = f32_parts(a), y = f32_parts(b);
  i32 exponent = x.exponent;
  const u32 small = f32_shift(y.m << 7, u32(x.exponent - y.exponent));
  if (((a ^ b) & 0x80000000) == 0) {
    const u32 m = (x.m << 7) + small;
    return m >> 31 ? f32_round(sign, exponent + 1, f32_shift(m, 1)) : f32_round(sign, exponent, m);
  }
  u32 m = (x.m << 7) - small;
  if (m == 0) return 0;
  while (!(m & 0x40000000)) {
    m <<= 1;
    --exponent;
  }
  return f32_round(sign, exponent, m);
}
QK_FN u32 f32_sub(u32 a, u32 b) { return f32_add(a, b ^ 0x80000000); }

QK_FN u32 f32_mul(u32 a, u32 b) {
  const u32 sign = (a ^ b) & 0x80000000, a_size = a & kMagnitudeBits, b_size = b & kMagnitudeBits;
  if (f32_is_nan(a) || f32_is_nan(b)) return kNanBits;
  if (a_size == kInfinityBits || b_size == kInfinityBits) return a_size && b_size ? sign | kInfinityBits : kNanBits;
  if (a_size == 0 || b_size == 0) return sign;
  const F32Parts x = f32_parts(a), y = f32_parts(b);
  const u64 product = u64(x.m) * y.m;  // 47 or 48 bits
  const u32 m = u32(product >> 16) | u32((product & 0xffff) != 0);
  const i32 exponent = x.exponent + y.exponent - 127;
  return m >> 31 ? f32_round(sign, exponent + 1, f32_shift(m, 1)) : f32_round(sign, exponent, m);
}

QK_FN u32 f32_div(u32 a, u32 b) {
  const u32 sign = (a ^ b) & 0x80000000, a_size = a & kMagnitudeBits, b_size = b & kMagnitudeBits;
  if (f32_is_nan(a) || f32_is_nan(b)) return kNanBits;
  if (a_size == kInfinityBits || b_size == 0) return a_size == b_size ? kNanBits : sign | kInfinityBits;
  if (a_size == 0 || b_size == kInfinityBits) return sign;
  const F32Parts x = f32_parts(a), y = f32_parts(b);
  const u32 less = x.m < y.m;
  u32 rest = (x.m << less) - y.m, m = 1;  // the quotient is 1 and three times 8 bits behind the point
  for (u32 i = 0; i < 3; ++i) {
    m = m << 8 | (rest << 8) / y.m;
    rest = (rest << 8) % y.m;
  }
  return f32_round(sign, x.exponent - y.exponent + 127 - i32(less), m << 6 | u32(rest != 0));
}

}  // namespace sample
}  // namespace argent
