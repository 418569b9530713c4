// dot() of simd.h with the dot-product extension: SDOT, a word of activations out of a register of four.
#pragma once

namespace argent::cpu::neon {
namespace {

// Word i of the quants, word i of the four in `a`.
template <int kMax, int i, int S, int T>
SIMD_FN void dot_word(const I32 (&w)[S][8], int first, const int8x16_t (&a)[T], I32 (&sum)[S][T]) {
#pragma GCC unroll 2
  for (int s = 0; s < S; ++s) {
    const int8x16_t quants = signed_quants<kMax>(w[s][first + i]);
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t) sum[s][t] = vdotq_laneq_s32(sum[s][t], quants, a[t], i);
  }
}

template <int kMax, int kZero, int kVectors, int S, int T>
SIMD_FN void dot(const I32 (&w)[S][8], int first, const QuantGroup* acts, I32 (&sum)[S][T]) {
  constexpr bool kFromZero = kMax > 127 || kZero == 0;
  static_assert(kMax <= 127 || kZero == 128);
#pragma GCC unroll 4
  for (int t = 0; t < T; ++t) {
    const I32 start = kFromZero ? set_i32(0) : zero_point_sum<kZero, kVectors>(acts[t], first);
#pragma GCC unroll 2
    for (int s = 0; s < S; ++s) sum[s][t] = start;
  }
#pragma GCC unroll 2
  for (int four = first; four < first + kVectors; four += 4) {
    int8x16_t a[T];
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t) a[t] = vld1q_s8(acts[t].q + 4 * four);
    dot_word<kMax, 0>(w, four, a, sum);
    dot_word<kMax, 1>(w, four, a, sum);
    dot_word<kMax, 2>(w, four, a, sum);
    dot_word<kMax, 3>(w, four, a, sum);
  }
}

}  // namespace
}  // namespace argent::cpu::neon
