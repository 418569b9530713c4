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
// Words of the chosen pairs among four, three bits each.
constexpr uint32_t packing(uint32_t lanes) {
  uint32_t words = 0, n = 0;
  for (uint32_t i = 0; i < 4; ++i)
    if (lanes >> i & 1) words |= (2 * i | (2 * i + 1) << 3) << 6 * n++;
  return words;
}
constexpr uint32_t kPackings[16] = {packing(0),  packing(1),  packing(2),  packing(3), packing(4),  packing(5),
                                    packing(6),  packing(7),  packing(8),  packing(9), packing(10), packing(11),
                                    packing(12), packing(13), packing(14), packing(15)};
SIMD_FN uint32_t pack_pairs(void* to, const void* from, uint32_t lanes) {
  const I32 low = load_i32(from), high = load_i32(static_cast<const char*>(from) + 32);
  const I32 shifts = _mm256_setr_epi32(0, 3, 6, 9, 12, 15, 18, 21);  // the permutation looks at three bits
  const auto order = [&](uint32_t four) SIMD_LAMBDA { return _mm256_srlv_epi32(set_i32(kPackings[four]), shifts); };
  const uint32_t n_low = uint32_t(__builtin_popcount(lanes & 15));
  _mm256_storeu_si256(static_cast<__m256i*>(to), _mm256_permutevar8x32_epi32(low, order(lanes & 15)));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(static_cast<char*>(to) + 8 * n_low),
                      _mm256_permutevar8x32_epi32(high, order(lanes >> 4)));
  return n_low + uint32_t(__builtin_popcount(lanes >> 4));
}
SIMD_FN U64Lanes mul_wide(U64Lanes a, U64Lanes b) { return U64Lanes(_mm256_mul_epu32(__m256i(a), __m256i(b))); }

}  // namespace
}  // namespace argent::cpu::avx2
