// What the ISAs of x86-64 share below the vocabulary of simd.h.
#pragma once

#include <immintrin.h>

// The constraint of a vector register in inline assembly.
#define VECTOR_REGISTER "x"

namespace argent::cpu {

// MXCSR, and its bits denormals-are-zero and flush-to-zero.
using FloatControl = unsigned;
constexpr FloatControl kFlushSubnormals = 0x8040;
SIMD_FN FloatControl float_control() { return _mm_getcsr(); }
SIMD_FN void set_float_control(FloatControl control) { _mm_setcsr(control); }

SIMD_FN float fold_sum_quad(__m128 a) {
  a = _mm_add_ps(a, _mm_movehl_ps(a, a));
  return _mm_cvtss_f32(_mm_add_ss(a, _mm_shuffle_ps(a, a, 1)));
}
SIMD_FN float fold_max_quad(__m128 a) {
  a = _mm_max_ps(a, _mm_movehl_ps(a, a));
  return _mm_cvtss_f32(_mm_max_ss(a, _mm_shuffle_ps(a, a, 1)));
}
SIMD_FN float root(float x) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x))); }

}  // namespace argent::cpu
