// select.h on AVX-512.
#pragma once

namespace argent::cpu::avx512 {
namespace {

typedef uint64_t U64Lanes __attribute__((vector_size(64)));

using Flags = uint32_t;
SIMD_FN Flags flag_nan(Flags flags, F32 a, F32 b) { return flags | _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q); }
SIMD_FN bool any(Flags flags) { return flags != 0; }
SIMD_FN uint32_t lanes_above(F32 a, F32 b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
SIMD_FN I32 truncate(F32 a) { return _mm512_cvttps_epi32(a); }
SIMD_FN void load_pairs(const void* p, I32& even, I32& odd) {
  const I32 a = load_i32(p), b = load_i32(static_cast<const char*>(p) + 64);
  const I32 index = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  even = _mm512_permutex2var_epi32(a, index, b);
  odd = _mm512_permutex2var_epi32(a, _mm512_add_epi32(index, _mm512_set1_epi32(1)), b);
}
SIMD_FN void store_pairs(void* p, I32 even, I32 odd) {
  const I32 low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  _mm512_storeu_si512(p, _mm512_permutex2var_epi32(even, low, odd));
  _mm512_storeu_si512(static_cast<char*>(p) + 64,
                      _mm512_permutex2var_epi32(even, _mm512_add_epi32(low, _mm512_set1_epi32(8)), odd));
}
SIMD_FN uint32_t pack_pairs(void* to, const void* from, uint32_t lanes) {
  const I32 low = load_i32(from), high = load_i32(static_cast<const char*>(from) + 64);
  const uint32_t n_low = uint32_t(__builtin_popcount(lanes & 255));
  _mm512_storeu_si512(to, _mm512_maskz_compress_epi64(__mmask8(lanes), low));
  _mm512_storeu_si512(static_cast<char*>(to) + 8 * n_low, _mm512_maskz_compress_epi64(__mmask8(lanes >> 8), high));
  return n_low + uint32_t(__builtin_popcount(lanes >> 8));
}
SIMD_FN U64Lanes mul_wide(U64Lanes a, U64Lanes b) { return U64Lanes(_mm512_mul_epu32(__m512i(a), __m512i(b))); }

}  // namespace
}  // namespace argent::cpu::avx512
