// dot() of simd.h with AVX-VNNI: vpdpbusd in 256 bits.
#pragma once

namespace argent::cpu::avxvnni {
namespace {

template <int kMax, int kZero, int kVectors, int S, int T>
SIMD_FN void dot(const I32 (&w)[S][8], int first, const QuantGroup* acts, I32 (&sum)[S][T]) {
#pragma GCC unroll 4
  for (int t = 0; t < T; ++t) {
    const I32 start = zero_point_sum<kZero, kVectors>(acts[t], first);
#pragma GCC unroll 2
    for (int s = 0; s < S; ++s) sum[s][t] = start;
  }
#pragma GCC unroll 8
  for (int i = first; i < first + kVectors; ++i)
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t) {
      const I32 q = set_i32(load_dword(acts[t].q + 4 * i));
#pragma GCC unroll 2
      for (int s = 0; s < S; ++s) sum[s][t] = _mm256_dpbusd_avx_epi32(sum[s][t], w[s][i], q);
    }
}

}  // namespace
}  // namespace argent::cpu::avxvnni
