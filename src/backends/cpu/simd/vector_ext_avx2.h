// vector_ext.h on AVX2 and F16C.
#pragma once

namespace argent::cpu::avx2 {
namespace {

constexpr int kAccumulators = 12, kMaxQueries = 6;

SIMD_FN F32 max_f32(F32 a, F32 b) { return _mm256_max_ps(a, b); }
SIMD_FN F32 min_f32(F32 a, F32 b) { return _mm256_min_ps(a, b); }
SIMD_FN F32 div(F32 a, F32 b) { return _mm256_div_ps(a, b); }
SIMD_FN void store_all(float* p, F32 a) { _mm256_storeu_ps(p, a); }
SIMD_FN void store_half(uint16_t* p, F32 a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
SIMD_FN void store_i16(int16_t* p, I32 a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm_packs_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1)));
}
SIMD_FN I32 load_pairs(const int8_t* p) {
  return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
SIMD_FN I32 dot_pairs(I32 a, I32 b, I32 c) { return _mm256_add_epi32(c, _mm256_madd_epi16(a, b)); }
SIMD_FN I32 lane_numbers() { return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7); }
SIMD_FN F32 load_part(const float* p, int n) {
  return _mm256_maskload_ps(p, _mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane_numbers()));
}
SIMD_FN F32 load_part(const uint16_t* p, int n) {
  uint16_t lanes[8] = {};
  for (int i = 0; i < n; ++i) lanes[i] = p[i];
  return load_half(lanes);
}
SIMD_FN F32 keep_lanes(F32 a, int lo, int hi, F32 other) {
  const I32 below = _mm256_cmpgt_epi32(_mm256_set1_epi32(hi), lane_numbers());
  const I32 before = _mm256_cmpgt_epi32(_mm256_set1_epi32(lo), lane_numbers());
  return _mm256_blendv_ps(other, a, _mm256_castsi256_ps(_mm256_andnot_si256(before, below)));
}
// In two steps, since 2^n alone may be no float; the first product is exact.
SIMD_FN F32 scale_by_power(F32 a, F32 n) {
  const I32 whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1);
  const I32 bias = _mm256_set1_epi32(127);
  const I32 first = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
  const I32 second = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(whole, half), bias), 23);
  return mul(mul(a, _mm256_castsi256_ps(first)), _mm256_castsi256_ps(second));
}
SIMD_FN F32 where_negative(F32 t, F32 a, F32 b) { return _mm256_blendv_ps(b, a, t); }
SIMD_FN F32 swap_pairs(F32 a) { return _mm256_permute_ps(a, 0xb1); }
SIMD_FN F32 even_lanes(F32 a) { return _mm256_moveldup_ps(a); }
SIMD_FN F32 odd_lanes(F32 a) { return _mm256_movehdup_ps(a); }
SIMD_FN float first_lane(F32 a) { return _mm256_cvtss_f32(a); }
SIMD_FN float fold_sum(const F32 (&a)[2]) {
  const F32 half = _mm256_add_ps(a[0], a[1]);
  return fold_sum_quad(_mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
}
SIMD_FN float fold_max(const F32 (&a)[2]) {
  const F32 half = _mm256_max_ps(a[0], a[1]);
  return fold_max_quad(_mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
}

}  // namespace
}  // namespace argent::cpu::avx2
