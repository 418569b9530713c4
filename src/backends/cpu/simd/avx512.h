// The vocabulary of simd.h on AVX-512 F, BW, VL, DQ and VNNI: 16 rows a vector.
#pragma once

namespace argent::cpu::avx512 {
namespace {

inline constexpr int kLanes = 16, kVectorRegisters = 32;
// 16 sums, 8 vectors of quants, scale, min, three temporaries: 29 of 32 registers.
inline constexpr int kSlicesQ8 = 1, kDotTokens = 1, kMaxTokensQ8 = 16;
// Of two panels 24 sums of 6 tokens, two vectors of quants, scales, two temporaries: 30.
inline constexpr bool kPanelPairs = true;
inline constexpr int kMaxTokensF32 = 8;  // 16 sums, two a token
SIMD_FN constexpr int float_slices(int) { return 1; }
using F32 = __m512;
using I32 = __m512i;
typedef uint32_t U32Lanes __attribute__((vector_size(64)));

SIMD_FN I32 load_i32(const void* p) { return _mm512_loadu_si512(p); }
SIMD_FN void store_i32(void* p, I32 a) { _mm512_storeu_si512(p, a); }
SIMD_FN void transpose_words(const uint8_t* rows, uint64_t stride, I32 (&w)[4]) {
  I32 z[4];  // lane 4q + i of z[k]: word i of row 4q + k
#pragma GCC unroll 4
  for (int k = 0; k < 4; ++k) {
    const auto four = [&](int row) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows + row * stride)); };
    z[k] = _mm512_castsi128_si512(four(k));
    z[k] = _mm512_inserti32x4(z[k], four(4 + k), 1);
    z[k] = _mm512_inserti32x4(z[k], four(8 + k), 2);
    z[k] = _mm512_inserti32x4(z[k], four(12 + k), 3);
  }
  const I32 a = _mm512_unpacklo_epi32(z[0], z[1]), b = _mm512_unpackhi_epi32(z[0], z[1]);
  const I32 c = _mm512_unpacklo_epi32(z[2], z[3]), d = _mm512_unpackhi_epi32(z[2], z[3]);
  w[0] = _mm512_unpacklo_epi64(a, c), w[1] = _mm512_unpackhi_epi64(a, c);
  w[2] = _mm512_unpacklo_epi64(b, d), w[3] = _mm512_unpackhi_epi64(b, d);
}
SIMD_FN I32 set_i32(uint32_t x) { return _mm512_set1_epi32(int(x)); }
SIMD_FN I32 and_i32(I32 a, I32 b) { return _mm512_and_si512(a, b); }
SIMD_FN I32 or_and(I32 a, I32 b, I32 mask) { return _mm512_ternarylogic_epi32(a, b, mask, 0xf8); }
SIMD_FN I32 add_i32(I32 a, I32 b) { return _mm512_add_epi32(a, b); }
SIMD_FN I32 sub_i32(I32 a, I32 b) { return _mm512_sub_epi32(a, b); }
SIMD_FN I32 max_i32(I32 a, I32 b) { return _mm512_max_epi32(a, b); }
SIMD_FN int32_t reduce_add(I32 a) { return _mm512_reduce_add_epi32(a); }
SIMD_FN int32_t reduce_max(I32 a) { return _mm512_reduce_max_epi32(a); }
SIMD_FN void store_i8(int8_t* p, I32 a) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a)); }
SIMD_FN I32 lookup16(const uint8_t* table, I32 index) {
  const __m128i t = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(t), index);
}

SIMD_FN F32 load_f32(const float* p) { return _mm512_loadu_ps(p); }
SIMD_FN F32 load_half(const void* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p))); }
SIMD_FN F32 load_bf16(const void* p) {
  const I32 x = _mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
  return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
}
SIMD_FN I32 load_u8(const void* p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p))); }
SIMD_FN I32 load_i8(const void* p) { return _mm512_cvtepi8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p))); }
SIMD_FN F32 set_f32(float x) { return _mm512_set1_ps(x); }
SIMD_FN F32 to_f32(I32 a) { return _mm512_cvtepi32_ps(a); }
SIMD_FN F32 bits_f32(I32 a) { return _mm512_castsi512_ps(a); }
SIMD_FN I32 f32_bits(F32 a) { return _mm512_castps_si512(a); }
SIMD_FN I32 round_i32(F32 a) { return _mm512_cvtps_epi32(a); }
SIMD_FN F32 add(F32 a, F32 b) { return _mm512_add_ps(a, b); }
SIMD_FN F32 sub(F32 a, F32 b) { return _mm512_sub_ps(a, b); }
SIMD_FN F32 mul(F32 a, F32 b) { return _mm512_mul_ps(a, b); }
SIMD_FN F32 fma(F32 a, F32 b, F32 c) { return _mm512_fmadd_ps(a, b, c); }
SIMD_FN void store_f32(float* p, F32 a, int n) { _mm512_mask_storeu_ps(p, __mmask16((1u << n) - 1), a); }

}  // namespace
}  // namespace argent::cpu::avx512
