// dot() of simd.h with what every aarch64 has: products of bytes in 16 bits.
#pragma once

namespace argent::cpu::baseline {
namespace {

// As many products are summed in 16 bits as cannot overflow.
template <int kMax, int kZero, int kVectors, int S, int T>
SIMD_FN void dot(const I32 (&w)[S][8], int first, const QuantGroup* acts, I32 (&sum)[S][T]) {
  constexpr bool kFromZero = kMax > 127 || kZero == 0;
  static_assert(kMax <= 127 || kZero == 128);
  constexpr int kFit = 32767 / (127 * (kMax > 127 ? 128 : kMax)), kRun = kFit < kVectors ? kFit : kVectors;
  static_assert(kVectors % kRun == 0);
#pragma GCC unroll 4
  for (int t = 0; t < T; ++t) {
    const I32 start = kFromZero ? set_i32(0) : zero_point_sum<kZero, kVectors>(acts[t], first);
#pragma GCC unroll 2
    for (int s = 0; s < S; ++s) sum[s][t] = start;
  }
#pragma GCC unroll 8
  for (int run = first; run < first + kVectors; run += kRun) {
    int16x8_t low[S][T], high[S][T];  // rows 0 and 1, 2 and 3
#pragma GCC unroll 8
    for (int i = run; i < run + kRun; ++i) {
#pragma GCC unroll 4
      for (int t = 0; t < T; ++t) {
        const int8x16_t q = vreinterpretq_s8_s32(set_i32(uint32_t(load_dword(acts[t].q + 4 * i))));
#pragma GCC unroll 2
        for (int s = 0; s < S; ++s) {
          const int8x16_t quants = signed_quants<kMax>(w[s][i]);
          if (i > run) {
            low[s][t] = vmlal_s8(low[s][t], vget_low_s8(quants), vget_low_s8(q));
            high[s][t] = vmlal_high_s8(high[s][t], quants, q);
          } else {
            low[s][t] = vmull_s8(vget_low_s8(quants), vget_low_s8(q));
            high[s][t] = vmull_high_s8(quants, q);
          }
        }
      }
    }
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t)
#pragma GCC unroll 2
      for (int s = 0; s < S; ++s)
        sum[s][t] = add_i32(sum[s][t], vpaddq_s32(vpaddlq_s16(low[s][t]), vpaddlq_s16(high[s][t])));
  }
}

}  // namespace
}  // namespace argent::cpu::baseline
