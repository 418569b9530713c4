// dot() of simd.h with what AVX2 has: vpmaddubsw and vpmaddwd.
#pragma once

namespace argent::cpu::avx2 {
namespace {

// g++ takes chains of integer additions apart, then spills most of the terms (a third of the speed); not through this.
SIMD_FN I32 in_order(I32 a) {
  asm("" : "+x"(a));
  return a;
}

// vpmaddubsw saturates at 32767, so it takes quants up to 127 as they are and sums as many of its results in 16 bits as
// cannot overflow; bytes around zero point 128 are taken as signed, |w| times a with w's sign: at most 2 * 128 * 127.
template <int kMax, int kZero, int kVectors, int S, int T>
SIMD_FN void dot(const I32 (&w)[S][8], int first, const QuantGroup* acts, I32 (&sum)[S][T]) {
  constexpr bool kSigned = kMax > 127, kFromZero = kSigned || kZero == 0;
  static_assert(!kSigned || kZero == 128);
  constexpr int kFit = kSigned ? 1 : 32767 / (2 * 127 * kMax), kRun = kFit < kVectors ? kFit : kVectors;
  static_assert(kVectors % kRun == 0);
  const I32 ones = _mm256_set1_epi16(1);
#pragma GCC unroll 8
  for (int run = first; run < first + kVectors; run += kRun) {
    I32 pairs[S][T];
#pragma GCC unroll 8
    for (int i = run; i < run + kRun; ++i) {
      I32 level[S], magnitude[S];
#pragma GCC unroll 2
      for (int s = 0; s < S; ++s) {
        level[s] = _mm256_xor_si256(w[s][i], _mm256_set1_epi8(-128));
        magnitude[s] = kSigned ? _mm256_abs_epi8(level[s]) : w[s][i];
      }
#pragma GCC unroll 4
      for (int t = 0; t < T; ++t) {
        const I32 q = set_i32(load_dword(acts[t].q + 4 * i));
#pragma GCC unroll 2
        for (int s = 0; s < S; ++s) {
          const I32 products = _mm256_maddubs_epi16(magnitude[s], kSigned ? _mm256_sign_epi8(q, level[s]) : q);
          pairs[s][t] = i > run ? in_order(_mm256_add_epi16(pairs[s][t], products)) : products;
        }
      }
    }
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t)
#pragma GCC unroll 2
      for (int s = 0; s < S; ++s) {
        const I32 part = _mm256_madd_epi16(pairs[s][t], ones);
        if (run > first)
          sum[s][t] = in_order(add_i32(sum[s][t], part));
        else
          sum[s][t] = kFromZero ? part : add_i32(zero_point_sum<kZero, kVectors>(acts[t], first), part);
      }
  }
}

}  // namespace
}  // namespace argent::cpu::avx2
