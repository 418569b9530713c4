// vector_ext.h on AVX-512.
#pragma once

namespace argent::cpu::avx512 {
namespace {

constexpr int kAccumulators = 24, kMaxQueries = 8;

SIMD_FN F32 max_f32(F32 a, F32 b) { return _mm512_max_ps(a, b); }
SIMD_FN F32 min_f32(F32 a, F32 b) { return _mm512_min_ps(a, b); }
SIMD_FN F32 div(F32 a, F32 b) { return _mm512_div_ps(a, b); }
SIMD_FN void store_all(float* p, F32 a) { _mm512_storeu_ps(p, a); }
SIMD_FN void store_half(uint16_t* p, F32 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
SIMD_FN void store_i16(int16_t* p, I32 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(a));
}
SIMD_FN I32 load_pairs(const int8_t* p) {
  return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
SIMD_FN I32 dot_pairs(I32 a, I32 b, I32 c) { return _mm512_dpwssd_epi32(c, a, b); }
SIMD_FN F32 load_part(const float* p, int n) { return _mm512_maskz_loadu_ps(__mmask16((1u << n) - 1), p); }
SIMD_FN F32 load_part(const uint16_t* p, int n) {
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(__mmask16((1u << n) - 1), p));
}
SIMD_FN F32 keep_lanes(F32 a, int lo, int hi, F32 other) {
  const I32 lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __mmask16 keep =
      _mm512_cmplt_epi32_mask(lane, _mm512_set1_epi32(hi)) & _mm512_cmpge_epi32_mask(lane, _mm512_set1_epi32(lo));
  return _mm512_mask_mov_ps(other, keep, a);
}
SIMD_FN F32 scale_by_power(F32 a, F32 n) { return _mm512_scalef_ps(a, n); }
SIMD_FN F32 where_negative(F32 t, F32 a, F32 b) { return _mm512_mask_mov_ps(b, _mm512_movepi32_mask(f32_bits(t)), a); }
SIMD_FN F32 swap_pairs(F32 a) { return _mm512_permute_ps(a, 0xb1); }
SIMD_FN F32 even_lanes(F32 a) { return _mm512_moveldup_ps(a); }
SIMD_FN F32 odd_lanes(F32 a) { return _mm512_movehdup_ps(a); }
SIMD_FN float first_lane(F32 a) { return _mm512_cvtss_f32(a); }
SIMD_FN __m128 quarter_sum(__m256 a) { return _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1)); }
SIMD_FN float fold_sum(const F32 (&a)[1]) {
  return fold_sum_quad(quarter_sum(_mm256_add_ps(_mm512_castps512_ps256(a[0]), _mm512_extractf32x8_ps(a[0], 1))));
}
SIMD_FN float fold_max(const F32 (&a)[1]) {
  const __m256 half = _mm256_max_ps(_mm512_castps512_ps256(a[0]), _mm512_extractf32x8_ps(a[0], 1));
  return fold_max_quad(_mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
}

}  // namespace
}  // namespace argent::cpu::avx512
