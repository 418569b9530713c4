// Products of bfloat16 weights and activations (matmul-inl.h states the arithmetic), in vdpbf16ps where the compiler's
// flags name it and in two fma elsewhere: the same bits, since both round after each product and flush subnormals, fma
// as the control register says.
#pragma once

#include "backends/cpu/matmul_walk-inl.h"

namespace argent::cpu::ARGENT_ISA {
namespace {

// Subnormal operands and results are zero while it lives. vdpbf16ps does so anyway.
class FlushSubnormals {
 public:
  KERNEL_FN FlushSubnormals() : saved_(float_control()) { set_float_control(saved_ | kFlushSubnormals); }
  KERNEL_FN ~FlushSubnormals() { set_float_control(saved_); }
  FlushSubnormals(const FlushSubnormals&) = delete;

 private:
  FloatControl saved_;
};

SIMD_FN F32 dot_pairs(F32 sum, I32 w, I32 x) {
#if defined(__AVX512BF16__)
  return _mm512_dpbf16_ps(sum, (__m512bh)w, (__m512bh)x);
#else
  const I32 odd = set_i32(0xffff0000u);
  sum = fma(bits_f32(and_i32(w, odd)), bits_f32(and_i32(x, odd)), sum);
  return fma(bits_f32(shift(w, 16)), bits_f32(shift(x, 16)), sum);
#endif
}

struct Bf16Products {
  using Element = BrainPair;
  static constexpr int kMaxTokens = kMaxTokensF32;
  template <Format F>
  static constexpr int kPairTokens = 0;
  template <int T>
  static constexpr int kSlices = kFloatSlices<T>;
  static constexpr uint32_t steps(uint32_t n_cols) { return n_cols / 2 + n_cols % 2; }

  template <Format F, int T, int S>
  KERNEL_FN static void sums(const uint8_t* panel, int lane, const BrainPair* x, uint32_t stride, uint32_t n_cols,
                             F32 (&out)[S][T]) {
    constexpr int kPairBytes = 4 * int(kPanelRows);
    F32 sum[2][S][T];
#pragma GCC unroll 2
    for (int chain = 0; chain < 2; ++chain)
#pragma GCC unroll 4
      for (int s = 0; s < S; ++s)
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) sum[chain][s][t] = set_f32(0.0f);
    const uint32_t n_pairs = steps(n_cols);
    for (uint32_t pair = 0; pair < n_pairs; pair += 2, panel += 2 * kPairBytes, x += 2 * uint64_t(stride)) {
      prefetch(panel, 2 * kPairBytes);
#pragma GCC unroll 2
      for (int chain = 0; chain < 2; ++chain) {
        if (chain == 1 && pair + 1 == n_pairs) break;
#pragma GCC unroll 4
        for (int s = 0; s < S; ++s) {
          const I32 w = load_i32(panel + chain * kPairBytes + 4 * (lane + s * kLanes));
#pragma GCC unroll 8
          for (int t = 0; t < T; ++t) {
            const I32 both = set_i32(uint32_t(load_dword(x + chain * uint64_t(stride) + t)));
            sum[chain][s][t] = dot_pairs(sum[chain][s][t], w, both);
          }
        }
      }
    }
#pragma GCC unroll 4
    for (int s = 0; s < S; ++s)
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) out[s][t] = add(sum[0][s][t], sum[1][s][t]);
  }
};

void multiply_bf16(const PackedMatrix& weights, uint32_t panel_begin, uint32_t panel_end, const BrainPair* acts,
                   uint32_t n_tokens, float* out, uint64_t out_stride) {
  const FlushSubnormals flush;
  multiply<Bf16Products, Format::bf16>(weights, panel_begin, panel_end, acts, n_tokens, out, out_stride);
}

}  // namespace
}  // namespace argent::cpu::ARGENT_ISA
