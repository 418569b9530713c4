// The vocabulary of simd.h on what every x86-64 has, SSE2: 4 rows a vector, and products rounded before sums.
#pragma once

namespace argent::cpu::baseline {
namespace {

inline constexpr int kLanes = 4, kVectorRegisters = 16;
inline constexpr int kSlicesQ8 = 1, kDotTokens = 1, kMaxTokensQ8 = 4;
inline constexpr bool kPanelPairs = false;
inline constexpr int kMaxTokensF32 = 4;
SIMD_FN constexpr int float_slices(int) { return 1; }
using F32 = __m128;
using I32 = __m128i;
typedef uint32_t U32Lanes __attribute__((vector_size(16)));

SIMD_FN I32 load_i32(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
SIMD_FN void store_i32(void* p, I32 a) { _mm_storeu_si128(static_cast<__m128i*>(p), a); }
SIMD_FN void transpose_words(const uint8_t* rows, uint64_t stride, I32 (&w)[4]) {
  I32 z[4];  // lane i of z[k]: word i of row k
#pragma GCC unroll 4
  for (int k = 0; k < 4; ++k) z[k] = load_i32(rows + k * stride);
  const I32 a = _mm_unpacklo_epi32(z[0], z[1]), b = _mm_unpackhi_epi32(z[0], z[1]);
  const I32 c = _mm_unpacklo_epi32(z[2], z[3]), d = _mm_unpackhi_epi32(z[2], z[3]);
  w[0] = _mm_unpacklo_epi64(a, c), w[1] = _mm_unpackhi_epi64(a, c);
  w[2] = _mm_unpacklo_epi64(b, d), w[3] = _mm_unpackhi_epi64(b, d);
}
SIMD_FN I32 set_i32(uint32_t x) { return _mm_set1_epi32(int(x)); }
SIMD_FN I32 and_i32(I32 a, I32 b) { return _mm_and_si128(a, b); }
SIMD_FN I32 or_and(I32 a, I32 b, I32 mask) { return _mm_or_si128(a, _mm_and_si128(b, mask)); }
SIMD_FN I32 add_i32(I32 a, I32 b) { return _mm_add_epi32(a, b); }
SIMD_FN I32 sub_i32(I32 a, I32 b) { return _mm_sub_epi32(a, b); }
SIMD_FN I32 max_i32(I32 a, I32 b) {
  const I32 greater = _mm_cmpgt_epi32(a, b);
  return _mm_or_si128(_mm_and_si128(greater, a), _mm_andnot_si128(greater, b));
}
SIMD_FN int32_t reduce_add(I32 a) {
  a = _mm_add_epi32(a, _mm_shuffle_epi32(a, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(a, _mm_shuffle_epi32(a, 0xb1)));
}
SIMD_FN int32_t reduce_max(I32 a) {
  a = max_i32(a, _mm_shuffle_epi32(a, 0x4e));
  return _mm_cvtsi128_si32(max_i32(a, _mm_shuffle_epi32(a, 0xb1)));
}
SIMD_FN void store_i8(int8_t* p, I32 a) {
  a = _mm_packs_epi32(a, a);
  const int four = _mm_cvtsi128_si32(_mm_packs_epi16(a, a));
  __builtin_memcpy(p, &four, 4);
}
SIMD_FN I32 lookup16(const uint8_t* table, I32 index) {
  alignas(16) uint8_t bytes[16];
  _mm_store_si128(reinterpret_cast<__m128i*>(bytes), index);
  for (int i = 0; i < 16; ++i) bytes[i] = table[bytes[i]];
  return _mm_load_si128(reinterpret_cast<const __m128i*>(bytes));
}

SIMD_FN F32 load_f32(const float* p) { return _mm_loadu_ps(p); }
// As qk_half: exponent 31 becomes 255, subnormals are exact products.
SIMD_FN F32 load_half(const void* p) {
  const I32 h = _mm_unpacklo_epi16(_mm_loadl_epi64(static_cast<const __m128i*>(p)), _mm_setzero_si128());
  const I32 magnitude = _mm_and_si128(h, _mm_set1_epi32(0x7fff)), bias = _mm_set1_epi32(112 << 23);
  const I32 special = _mm_and_si128(_mm_cmpgt_epi32(magnitude, _mm_set1_epi32(0x7bff)), bias);
  const I32 normal = _mm_add_epi32(_mm_slli_epi32(magnitude, 13), _mm_add_epi32(bias, special));
  const I32 subnormal = _mm_castps_si128(_mm_mul_ps(_mm_cvtepi32_ps(magnitude), _mm_set1_ps(0x1p-24f)));
  const I32 is_normal = _mm_cmpgt_epi32(magnitude, _mm_set1_epi32(0x3ff));
  const I32 value = _mm_or_si128(_mm_and_si128(is_normal, normal), _mm_andnot_si128(is_normal, subnormal));
  return _mm_castsi128_ps(_mm_or_si128(value, _mm_slli_epi32(_mm_and_si128(h, _mm_set1_epi32(0x8000)), 16)));
}
SIMD_FN F32 load_bf16(const void* p) {
  return _mm_castsi128_ps(_mm_unpacklo_epi16(_mm_setzero_si128(), _mm_loadl_epi64(static_cast<const __m128i*>(p))));
}
SIMD_FN I32 load_u8(const void* p) {
  const I32 zero = _mm_setzero_si128();
  return _mm_unpacklo_epi16(_mm_unpacklo_epi8(_mm_cvtsi32_si128(load_dword(p)), zero), zero);
}
SIMD_FN I32 load_i8(const void* p) {
  const I32 x = _mm_cvtsi32_si128(load_dword(p)), pairs = _mm_unpacklo_epi8(x, x);
  return _mm_srai_epi32(_mm_unpacklo_epi16(pairs, pairs), 24);
}
SIMD_FN F32 set_f32(float x) { return _mm_set1_ps(x); }
SIMD_FN F32 to_f32(I32 a) { return _mm_cvtepi32_ps(a); }
SIMD_FN F32 bits_f32(I32 a) { return _mm_castsi128_ps(a); }
SIMD_FN I32 f32_bits(F32 a) { return _mm_castps_si128(a); }
SIMD_FN I32 round_i32(F32 a) { return _mm_cvtps_epi32(a); }
SIMD_FN F32 add(F32 a, F32 b) { return _mm_add_ps(a, b); }
SIMD_FN F32 sub(F32 a, F32 b) { return _mm_sub_ps(a, b); }
SIMD_FN F32 mul(F32 a, F32 b) { return _mm_mul_ps(a, b); }
SIMD_FN F32 fma(F32 a, F32 b, F32 c) { return _mm_add_ps(_mm_mul_ps(a, b), c); }
SIMD_FN void store_f32(float* p, F32 a, int n) {
  alignas(16) float lanes[4];
  _mm_store_ps(lanes, a);
  for (int i = 0; i < n && i < 4; ++i) p[i] = lanes[i];
}

}  // namespace
}  // namespace argent::cpu::baseline
