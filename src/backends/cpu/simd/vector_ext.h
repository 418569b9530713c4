// What vector-inl.h and attention-inl.h need beyond simd.h:
//
//   max_f32(a, b), min_f32(a, b)   b where either is NaN
//   div(a, b)
//   store_all(p, v)                kLanes floats; store_half: kLanes halves, rounded to nearest even, NaN quieted
//   store_i16(p, v)                kLanes words, each within int16
//   load_pairs(p)                  2 * kLanes int8 as pairs of int16;   set_pairs(p): the pair at p in every lane
//   dot_pairs(a, b, c)             c + products of pairs, in 32 bits
//   load_part(p, n)                the first n < kLanes floats or halves, zeros behind them, which are not read
//   keep_lanes(v, lo, hi, other)   v in lanes lo <= lane < hi, `other` elsewhere
//   where_negative(t, a, b)        a in lanes where t's sign bit is set, b elsewhere
//   scale_by_power(p, n)           p * 2^n, rounded once; n is an integer from -252 to 252
//   swap_pairs, even_lanes, odd_lanes   neighbours swapped; each pair's first or second lane twice
//   negate_even(v)                 sign changed in lanes 0, 2, 4, ...
//   first_lane(v), root(x)
//   fold_sum, fold_max of F32[kWide]    16 lanes to one: i and i + 8, then 4, 2, 1 apart, on every ISA
//   kAccumulators   vectors of sums that a kernel keeps in registers;   kMaxQueries   of which queries take part at
//   most
#pragma once

#include "backends/cpu/simd/simd.h"

namespace argent::cpu::ARGENT_ISA {
namespace {

constexpr int kWide = 16 / kLanes;  // vectors that hold 16 lanes

// Rounded to nearest even, NaN quieted.
SIMD_FN uint16_t bf16_bits(float x) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, x);
  return uint16_t((bits & 0x7fffffff) > 0x7f800000 ? bits >> 16 | 64 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace
}  // namespace argent::cpu::ARGENT_ISA

#if defined(__aarch64__)
#include "backends/cpu/simd/vector_ext_neon.h"
#elif defined(__AVX512VNNI__)
#include "backends/cpu/simd/vector_ext_avx512.h"
#elif defined(__AVX2__)
#include "backends/cpu/simd/vector_ext_avx2.h"
#else
#include "backends/cpu/simd/vector_ext_baseline.h"
#endif

namespace argent::cpu::ARGENT_ISA {
namespace {

SIMD_FN F32 negate_even(F32 a) {
  U32Lanes bits = U32Lanes(f32_bits(a));
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; i += 2) bits[i] ^= 0x80000000u;
  return bits_f32(I32(bits));
}

SIMD_FN I32 set_pairs(const int16_t* p) { return set_i32(uint32_t(load_dword(p))); }

}  // namespace
}  // namespace argent::cpu::ARGENT_ISA
