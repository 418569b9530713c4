// vector_ext.h on SSE2.
#pragma once

namespace argent::cpu::baseline {
namespace {

constexpr int kAccumulators = 8, kMaxQueries = 4;

SIMD_FN F32 max_f32(F32 a, F32 b) { return _mm_max_ps(a, b); }
SIMD_FN F32 min_f32(F32 a, F32 b) { return _mm_min_ps(a, b); }
SIMD_FN F32 div(F32 a, F32 b) { return _mm_div_ps(a, b); }
SIMD_FN void store_all(float* p, F32 a) { _mm_storeu_ps(p, a); }
SIMD_FN uint16_t half_bits(float x) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, x), sign = bits >> 16 & 0x8000, a = bits & 0x7fffffff;
  if (a > 0x7f800000) return uint16_t(sign | 0x7e00 | (a >> 13 & 0x1ff));
  if (a >= 0x477ff000) return uint16_t(sign | 0x7c00);
  // Below the normal halves, adding 1/2 leaves the rounded multiple of 2^-24 in the last bits.
  if (a < 0x38800000)
    return uint16_t(sign | (__builtin_bit_cast(uint32_t, __builtin_bit_cast(float, a) + 0.5f) & 0xffff));
  return uint16_t(sign | ((a + 0xfff + (a >> 13 & 1) - 0x38000000) >> 13));
}
SIMD_FN void store_half(uint16_t* p, F32 a) {
  float lanes[4];
  _mm_storeu_ps(lanes, a);
  for (int i = 0; i < 4; ++i) p[i] = half_bits(lanes[i]);
}
SIMD_FN void store_i16(int16_t* p, I32 a) { _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi32(a, a)); }
SIMD_FN I32 load_pairs(const int8_t* p) {
  const __m128i x = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  return _mm_srai_epi16(_mm_unpacklo_epi8(x, x), 8);
}
SIMD_FN I32 dot_pairs(I32 a, I32 b, I32 c) { return _mm_add_epi32(c, _mm_madd_epi16(a, b)); }
SIMD_FN F32 load_part(const float* p, int n) {
  float lanes[4] = {};
  for (int i = 0; i < n; ++i) lanes[i] = p[i];
  return _mm_loadu_ps(lanes);
}
SIMD_FN F32 load_part(const uint16_t* p, int n) {
  uint16_t lanes[4] = {};
  for (int i = 0; i < n; ++i) lanes[i] = p[i];
  return load_half(lanes);
}
SIMD_FN F32 keep_lanes(F32 a, int lo, int hi, F32 other) {
  const I32 lane = _mm_setr_epi32(0, 1, 2, 3);
  const I32 below = _mm_cmpgt_epi32(_mm_set1_epi32(hi), lane), before = _mm_cmpgt_epi32(_mm_set1_epi32(lo), lane);
  const F32 keep = _mm_castsi128_ps(_mm_andnot_si128(before, below));
  return _mm_or_ps(_mm_and_ps(keep, a), _mm_andnot_ps(keep, other));
}
// In two steps, since 2^n alone may be no float; the first product is exact.
SIMD_FN F32 scale_by_power(F32 a, F32 n) {
  const I32 whole = _mm_cvtps_epi32(n), half = _mm_srai_epi32(whole, 1), bias = _mm_set1_epi32(127);
  const I32 first = _mm_slli_epi32(_mm_add_epi32(half, bias), 23);
  const I32 second = _mm_slli_epi32(_mm_add_epi32(_mm_sub_epi32(whole, half), bias), 23);
  return mul(mul(a, _mm_castsi128_ps(first)), _mm_castsi128_ps(second));
}
SIMD_FN F32 where_negative(F32 t, F32 a, F32 b) {
  const F32 mask = _mm_castsi128_ps(_mm_srai_epi32(f32_bits(t), 31));
  return _mm_or_ps(_mm_and_ps(mask, a), _mm_andnot_ps(mask, b));
}
SIMD_FN F32 swap_pairs(F32 a) { return _mm_shuffle_ps(a, a, 0xb1); }
SIMD_FN F32 even_lanes(F32 a) { return _mm_shuffle_ps(a, a, 0xa0); }
SIMD_FN F32 odd_lanes(F32 a) { return _mm_shuffle_ps(a, a, 0xf5); }
SIMD_FN float first_lane(F32 a) { return _mm_cvtss_f32(a); }
SIMD_FN float fold_sum(const F32 (&a)[4]) {
  return fold_sum_quad(_mm_add_ps(_mm_add_ps(a[0], a[2]), _mm_add_ps(a[1], a[3])));
}
SIMD_FN float fold_max(const F32 (&a)[4]) {
  return fold_max_quad(_mm_max_ps(_mm_max_ps(a[0], a[2]), _mm_max_ps(a[1], a[3])));
}

}  // namespace
}  // namespace argent::cpu::baseline
