// select.h on SSE2.
#pragma once

namespace argent::cpu::baseline {
namespace {

typedef uint64_t U64Lanes __attribute__((vector_size(16)));

using Flags = F32;
SIMD_FN Flags flag_nan(Flags flags, F32 a, F32 b) { return _mm_or_ps(flags, _mm_cmpunord_ps(a, b)); }
SIMD_FN bool any(Flags flags) { return _mm_movemask_ps(flags) != 0; }
SIMD_FN uint32_t lanes_above(F32 a, F32 b) { return uint32_t(_mm_movemask_ps(_mm_cmpgt_ps(a, b))); }
SIMD_FN I32 truncate(F32 a) { return _mm_cvttps_epi32(a); }
SIMD_FN void load_pairs(const void* p, I32& even, I32& odd) {
  const F32 a = bits_f32(load_i32(p)), b = bits_f32(load_i32(static_cast<const char*>(p) + 16));
  even = f32_bits(_mm_shuffle_ps(a, b, 0x88));
  odd = f32_bits(_mm_shuffle_ps(a, b, 0xdd));
}
SIMD_FN void store_pairs(void* p, I32 even, I32 odd) {
  _mm_storeu_si128(static_cast<__m128i*>(p), _mm_unpacklo_epi32(even, odd));
  _mm_storeu_si128(static_cast<__m128i*>(p) + 1, _mm_unpackhi_epi32(even, odd));
}
SIMD_FN uint32_t pack_pairs(void* to, const void* from, uint32_t lanes) {
  uint32_t n = 0;
  for (int i = 0; i < 4; ++i, lanes >>= 1) {
    uint64_t pair;
    __builtin_memcpy(&pair, static_cast<const char*>(from) + 8 * i, 8);
    __builtin_memcpy(static_cast<char*>(to) + 8 * n, &pair, 8);
    n += lanes & 1;
  }
  return n;
}
SIMD_FN U64Lanes mul_wide(U64Lanes a, U64Lanes b) { return U64Lanes(_mm_mul_epu32(__m128i(a), __m128i(b))); }

}  // namespace
}  // namespace argent::cpu::baseline
