// dot() of simd.h with AVX-512 VNNI: vpdpbusd.
#pragma once

namespace argent::cpu::avx512 {
namespace {

struct Dword {
  char bytes[4];
};

// Two chains of at most four: with one of eight, as many tokens as hide its latency overflow the scheduler (8 to 12 %).
template <int kMax, int kZero, int kVectors, int S, int T>
SIMD_FN void dot(const I32 (&w)[S][8], int first, const QuantGroup* acts, I32 (&sum)[S][T]) {
  static_assert(S == 1 && T == 1);
  I32 chains[2] = {zero_point_sum<kZero, kVectors>(acts[0], first), _mm512_setzero_si512()};
#pragma GCC unroll 8
  for (int i = 0; i < kVectors; ++i) {
    I32& chain = chains[kVectors > 4 && i % 2];
    chain = _mm512_dpbusd_epi32(chain, w[0][first + i], set_i32(load_dword(acts[0].q + 4 * (first + i))));
  }
  sum[0][0] = kVectors > 4 ? add_i32(chains[0], chains[1]) : chains[0];
}

// Every word of activations is read once for both panels: reading it for each takes as long as multiplying.
template <int kZero, int T>
SIMD_FN void dot_panels(const uint8_t* p, uint64_t panel_bytes, const QuantGroup* acts, I32 (&sum)[2][T]) {
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) sum[0][t] = sum[1][t] = zero_point_sum<kZero, 8>(acts[t], 0);
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    const I32 w[2] = {load_i32(p + 64 * i), load_i32(p + panel_bytes + 64 * i)};
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      I32 q;
      asm("vpbroadcastd %1, %0" : "=v"(q) : "m"(*reinterpret_cast<const Dword*>(acts[t].q + 4 * i)));
      sum[0][t] = _mm512_dpbusd_epi32(sum[0][t], w[0], q);
      sum[1][t] = _mm512_dpbusd_epi32(sum[1][t], w[1], q);
    }
  }
}

}  // namespace
}  // namespace argent::cpu::avx512
