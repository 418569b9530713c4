// dot() of simd.h with the matrix extension: USMMLA, eight columns of two rows times those of two tokens; a token that
// is left alone by USDOT.
#pragma once

namespace argent::cpu::i8mm {
namespace {

template <int kZero, int kVectors>
SIMD_FN I32 pair_start(const QuantGroup* a, int first) {
  if constexpr (kZero == 0) return set_i32(0);
  const int32_t start[2] = {kVectors == 8 ? a[0].neg_sum : a[0].neg_half_sum[first / 4],
                            kVectors == 8 ? a[1].neg_sum : a[1].neg_half_sum[first / 4]};
  const int32x2_t both = vld1_s32(start);
  return shift(vcombine_s32(both, both), log2_of(kZero ? kZero : 1));
}

template <int i, int S>
SIMD_FN void dot_word(const I32 (&w)[S][8], int first, int8x16_t a, I32 (&sum)[S]) {
#pragma GCC unroll 2
  for (int s = 0; s < S; ++s) sum[s] = vusdotq_laneq_s32(sum[s], bytes_of(w[s][first + i]), a, i);
}

template <int kMax, int kZero, int kVectors, int S, int T>
SIMD_FN void dot(const I32 (&w)[S][8], int first, const QuantGroup* acts, I32 (&sum)[S][T]) {
#pragma GCC unroll 2
  for (int t = 0; t + 1 < T; t += 2) {
    I32 upper[S], lower[S];  // of rows 0 and 1, 2 and 3: row 0 and both tokens, row 1 and both tokens
    const I32 start = pair_start<kZero, kVectors>(acts + t, first);
#pragma GCC unroll 2
    for (int s = 0; s < S; ++s) upper[s] = lower[s] = start;
#pragma GCC unroll 2
    for (int four = first; four < first + kVectors; four += 4) {
      const int64x2_t one = vreinterpretq_s64_s8(vld1q_s8(acts[t].q + 4 * four));
      const int64x2_t other = vreinterpretq_s64_s8(vld1q_s8(acts[t + 1].q + 4 * four));
      const int8x16_t a[2] = {vreinterpretq_s8_s64(vzip1q_s64(one, other)),
                              vreinterpretq_s8_s64(vzip2q_s64(one, other))};
#pragma GCC unroll 2
      for (int k = 0; k < 2; ++k)
#pragma GCC unroll 2
        for (int s = 0; s < S; ++s) {
          const I32 even = w[s][four + 2 * k], odd = w[s][four + 2 * k + 1];
          upper[s] = vusmmlaq_s32(upper[s], bytes_of(vzip1q_s32(even, odd)), a[k]);
          lower[s] = vusmmlaq_s32(lower[s], bytes_of(vzip2q_s32(even, odd)), a[k]);
        }
    }
#pragma GCC unroll 2
    for (int s = 0; s < S; ++s) {
      sum[s][t] = vuzp1q_s32(upper[s], lower[s]);
      sum[s][t + 1] = vuzp2q_s32(upper[s], lower[s]);
    }
  }
  if constexpr (T % 2) {
    const QuantGroup* last = acts + (T - 1);
    I32 own[S];
#pragma GCC unroll 2
    for (int s = 0; s < S; ++s) own[s] = zero_point_sum<kZero, kVectors>(*last, first);
#pragma GCC unroll 2
    for (int four = first; four < first + kVectors; four += 4) {
      const int8x16_t a = vld1q_s8(last->q + 4 * four);
      dot_word<0>(w, four, a, own);
      dot_word<1>(w, four, a, own);
      dot_word<2>(w, four, a, own);
      dot_word<3>(w, four, a, own);
    }
#pragma GCC unroll 2
    for (int s = 0; s < S; ++s) sum[s][T - 1] = own[s];
  }
}

}  // namespace
}  // namespace argent::cpu::i8mm
