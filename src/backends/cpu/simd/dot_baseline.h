// dot() of simd.h with SSE2: no product of bytes, so of 16 bits.
#pragma once

namespace argent::cpu::baseline {
namespace {

// Even and odd bytes widened to 16 bits.
template <int kMax, int kZero, int kVectors, int S, int T>
SIMD_FN void dot(const I32 (&w)[S][8], int first, const QuantGroup* acts, I32 (&sum)[S][T]) {
  static_assert(S == 1 && T == 1);
  const I32 even_mask = _mm_set1_epi16(255);
  sum[0][0] = zero_point_sum<kZero, kVectors>(acts[0], first);
#pragma GCC unroll 8
  for (int i = first; i < first + kVectors; ++i) {
    const I32 a = set_i32(load_dword(acts[0].q + 4 * i));
    const I32 a_even = _mm_srai_epi16(_mm_slli_epi16(a, 8), 8), a_odd = _mm_srai_epi16(a, 8);
    const I32 w_even = _mm_and_si128(w[0][i], even_mask), w_odd = _mm_srli_epi16(w[0][i], 8);
    sum[0][0] = add_i32(sum[0][0], add_i32(_mm_madd_epi16(w_even, a_even), _mm_madd_epi16(w_odd, a_odd)));
  }
}

}  // namespace
}  // namespace argent::cpu::baseline
