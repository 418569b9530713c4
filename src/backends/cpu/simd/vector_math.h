// exp and what is built on it, a vector at a time; the same bits on every ISA with FMA. NaN stays NaN.
#pragma once

#include "backends/cpu/simd/vector_ext.h"

namespace argent::cpu::ARGENT_ISA {
namespace {

// x = n ln 2 + r with |r| <= ln(2)/2.
struct Reduced {
  F32 n, r;
};

SIMD_FN Reduced reduce_ln2(F32 x) {
  const F32 shifter = set_f32(0x1.8p23f);  // leaves the nearest integer
  const F32 n = sub(fma(x, set_f32(0x1.715476p0f), shifter), shifter);
  // ln 2 in two parts; the first has 15 bits, so that n times it is exact even without FMA.
  F32 r = fma(n, set_f32(-0x1.62e4p-1f), x);
  r = fma(n, set_f32(-0x1.7f7d1cp-20f), r);
  return {n, r};
}

// exp(r) - 1 for |r| <= ln(2)/2: r + r^2 p(r), where p is minimax for exp's relative error, 3e-9.
SIMD_FN F32 expm1_reduced(F32 r) {
  F32 p = set_f32(0x1.6a243ap-10f);
  p = fma(p, r, set_f32(0x1.1239ep-7f));
  p = fma(p, r, set_f32(0x1.5558f2p-5f));
  p = fma(p, r, set_f32(0x1.555492p-3f));
  p = fma(p, r, set_f32(0x1.fffffcp-2f));
  return fma(mul(r, r), p, r);
}

// exp(x) for x <= 0, within 2 ulp, subnormal results included; 0 from -104 down.
SIMD_FN F32 exp_negative(F32 x) {
  const Reduced a = reduce_ln2(max_f32(set_f32(-104.0f), x));
  return scale_by_power(add(expm1_reduced(a.r), set_f32(1.0f)), a.n);
}

// x / (1 + exp(-t)), with exp(-|t|) so that nothing overflows and small results keep their relative accuracy.
SIMD_FN F32 times_sigmoid(F32 x, F32 t) {
  const F32 e = exp_negative(bits_f32(or_and(f32_bits(t), set_i32(0x80000000u), set_i32(0x80000000u))));
  return div(where_negative(t, mul(x, e), x), add(set_f32(1.0f), e));
}

SIMD_FN F32 sigmoid_f32(F32 x) { return times_sigmoid(set_f32(1.0f), x); }

SIMD_FN F32 silu_f32(F32 x) { return times_sigmoid(x, x); }

// 0.5 x (1 + tanh(u)) = x / (1 + exp(-2u)), without the cancellation of the left side at negative x.
SIMD_FN F32 gelu_f32(F32 x) {
  const F32 inner = fma(mul(x, x), set_f32(0.044715f), set_f32(1.0f));
  return times_sigmoid(x, mul(mul(x, set_f32(1.5957691216057308f)), inner));
}

// expm1(2|x|) / (expm1(2|x|) + 2): relative accuracy down to the smallest x.
SIMD_FN F32 tanh_f32(F32 x) {
  const I32 sign = and_i32(f32_bits(x), set_i32(0x80000000u));
  const F32 magnitude = bits_f32(and_i32(f32_bits(x), set_i32(0x7fffffffu)));
  const F32 doubled = min_f32(set_f32(20.0f), add(magnitude, magnitude));
  const Reduced a = reduce_ln2(doubled);
  const F32 power = scale_by_power(set_f32(1.0f), a.n);
  const F32 e = fma(power, expm1_reduced(a.r), sub(power, set_f32(1.0f)));
  const F32 y = div(e, add(e, set_f32(2.0f)));
  return bits_f32(or_and(f32_bits(y), sign, set_i32(0x80000000u)));
}

SIMD_FN F32 softcap_f32(F32 x, F32 c, F32 inverse) { return mul(c, tanh_f32(mul(x, inverse))); }

}  // namespace
}  // namespace argent::cpu::ARGENT_ISA
