// The vocabulary of simd.h on AVX2, FMA and F16C: 8 rows a vector. avx2 and avxvnni share it but for dot().
#pragma once

namespace argent::cpu::ARGENT_ISA {
namespace {

inline constexpr int kLanes = 8, kVectorRegisters = 16;
// 16 registers: 8 integer sums, the vector of quants of both slices, an activation, temporaries; sums of floats stay in
// memory. An activation's broadcast serves both slices: with one slice, loads are the limit.
inline constexpr int kSlicesQ8 = 2, kDotTokens = 4, kMaxTokensQ8 = 4;
inline constexpr bool kPanelPairs = false;
inline constexpr int kMaxTokensF32 = 4;
// Both slices for one token, where memory is the limit, so that a line is read once.
SIMD_FN constexpr int float_slices(int tokens) { return tokens == 1 ? 2 : 1; }
using F32 = __m256;
using I32 = __m256i;
typedef uint32_t U32Lanes __attribute__((vector_size(32)));

SIMD_FN I32 load_i32(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
SIMD_FN void store_i32(void* p, I32 a) { _mm256_storeu_si256(static_cast<__m256i*>(p), a); }
SIMD_FN void transpose_words(const uint8_t* rows, uint64_t stride, I32 (&w)[4]) {
  I32 z[4];  // lane 4q + i of z[k]: word i of row 4q + k
#pragma GCC unroll 4
  for (int k = 0; k < 4; ++k) {
    const auto four = [&](int row) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows + row * stride)); };
    z[k] = _mm256_inserti128_si256(_mm256_castsi128_si256(four(k)), four(4 + k), 1);
  }
  const I32 a = _mm256_unpacklo_epi32(z[0], z[1]), b = _mm256_unpackhi_epi32(z[0], z[1]);
  const I32 c = _mm256_unpacklo_epi32(z[2], z[3]), d = _mm256_unpackhi_epi32(z[2], z[3]);
  w[0] = _mm256_unpacklo_epi64(a, c), w[1] = _mm256_unpackhi_epi64(a, c);
  w[2] = _mm256_unpacklo_epi64(b, d), w[3] = _mm256_unpackhi_epi64(b, d);
}
SIMD_FN I32 set_i32(uint32_t x) { return _mm256_set1_epi32(int(x)); }
SIMD_FN I32 and_i32(I32 a, I32 b) { return _mm256_and_si256(a, b); }
SIMD_FN I32 or_and(I32 a, I32 b, I32 mask) { return _mm256_or_si256(a, _mm256_and_si256(b, mask)); }
SIMD_FN I32 add_i32(I32 a, I32 b) { return _mm256_add_epi32(a, b); }
SIMD_FN I32 sub_i32(I32 a, I32 b) { return _mm256_sub_epi32(a, b); }
SIMD_FN I32 max_i32(I32 a, I32 b) { return _mm256_max_epi32(a, b); }
SIMD_FN int32_t reduce_add(I32 a) {
  __m128i x = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  x = _mm_add_epi32(x, _mm_shuffle_epi32(x, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(x, _mm_shuffle_epi32(x, 0xb1)));
}
SIMD_FN int32_t reduce_max(I32 a) {
  __m128i x = _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  x = _mm_max_epi32(x, _mm_shuffle_epi32(x, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(x, _mm_shuffle_epi32(x, 0xb1)));
}
SIMD_FN void store_i8(int8_t* p, I32 a) {
  const __m128i x = _mm_packs_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(x, x));
}
SIMD_FN I32 lookup16(const uint8_t* table, I32 index) {
  const __m128i t = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(t), index);
}

SIMD_FN F32 load_f32(const float* p) { return _mm256_loadu_ps(p); }
SIMD_FN F32 load_half(const void* p) { return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p))); }
SIMD_FN F32 load_bf16(const void* p) {
  const I32 x = _mm256_cvtepu16_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16));
}
SIMD_FN I32 load_u8(const void* p) { return _mm256_cvtepu8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p))); }
SIMD_FN I32 load_i8(const void* p) { return _mm256_cvtepi8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p))); }
SIMD_FN F32 set_f32(float x) { return _mm256_set1_ps(x); }
SIMD_FN F32 to_f32(I32 a) { return _mm256_cvtepi32_ps(a); }
SIMD_FN F32 bits_f32(I32 a) { return _mm256_castsi256_ps(a); }
SIMD_FN I32 f32_bits(F32 a) { return _mm256_castps_si256(a); }
SIMD_FN I32 round_i32(F32 a) { return _mm256_cvtps_epi32(a); }
SIMD_FN F32 add(F32 a, F32 b) { return _mm256_add_ps(a, b); }
SIMD_FN F32 sub(F32 a, F32 b) { return _mm256_sub_ps(a, b); }
SIMD_FN F32 mul(F32 a, F32 b) { return _mm256_mul_ps(a, b); }
SIMD_FN F32 fma(F32 a, F32 b, F32 c) { return _mm256_fmadd_ps(a, b, c); }
SIMD_FN void store_f32(float* p, F32 a, int n) {
  const I32 lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  _mm256_maskstore_ps(p, _mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane), a);
}

}  // namespace
}  // namespace argent::cpu::ARGENT_ISA
