// select.h on AVX2.
#pragma once

namespace argent::cpu::avx2 {
namespace {

typedef uint64_t U64Lanes __attribute__((vector_size(32)));

using Flags = F32;
SIMD_FN Flags flag_nan(Flags flags, F32 a, F32 b) { return _mm256_or_ps(flags, _mm256_cmp_ps(a, b, _CMP_UNORD_Q)); }
SIMD_FN bool any(Flags flags) { return _mm256_movemask_ps(flags) != 0; }
SIMD_FN uint32_t lanes_above(F32 a, F32 b) { return uint32_t(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ))); }
SIMD_FN I32 truncate(F32 a) { return _mm256_cvttps_epi32(a); }
SIMD_FN void load_pairs(const void* p, I32& even, I32& odd) {
  const F32 a = bits_f32(load_i32(p)), b = bits_f32(load_i32(static_cast<const char*>(p) + 32));
  even = _mm256_permute4x64_epi64(f32_bits(_mm256_shuffle_ps(a, b, 0x88)), 0xd8);
  odd = _mm256_permute4x64_epi64(f32_bits(_mm256_shuffle_ps(a, b, 0xdd)), 0xd8);
}
SIMD_FN void store_pairs(void* p, I32 even, I32 odd) {
  const I32 a = _mm256_unpacklo_epi32(even, odd), b = _mm256_unpackhi_epi32(even, odd);
  _mm256_storeu_si256(static_cast<__m256i*>(p), _mm256_permute2x128_si256(a, b, 0x20));
  _mm256_storeu_si256(static_cast<__m256i*>(p) + 1, _mm256_permute2x128_si256(a, b, 0x31));
}
SIMD_FN U64Lanes mul_wide(U64Lanes a, U64Lanes b) { return U64Lanes(_mm256_mul_epu32(__m256i(a), __m256i(b))); }

}  // namespace
}  // namespace argent::cpu::avx2
