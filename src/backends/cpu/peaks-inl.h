// The peaks of an instruction set, compiled once for each (simd/simd.h says how).
#include "backends/cpu/peaks.h"
#include "backends/cpu/simd/simd.h"

namespace argent::cpu::ARGENT_ISA {
namespace {

constexpr int kSums = kVectorRegisters / 2;  // enough to hide the latency of an FMA, and to stay in registers

// dot() of 4-bit quants as the matrix kernels call it: weights in registers, activations broadcast from L1.
KERNEL_UNSANITIZED int32_t int8_dot() {
  constexpr int S = kSlicesQ8, T = 4;
  constexpr uint64_t kOps = uint64_t(2) * 32 * kLanes * S * T;  // of a step
  QuantGroup acts[T];
  for (int t = 0; t < T; ++t)
    for (int i = 0; i < 32; ++i) acts[t].q[i] = int8_t(3 * i - 40 + t);
  I32 w[S][8], sums[S][T];
  for (int s = 0; s < S; ++s) {
    for (int i = 0; i < 8; ++i) w[s][i] = set_i32(0x01020304u + uint32_t(i));
    for (int t = 0; t < T; ++t) sums[s][t] = set_i32(0);
  }
  for (uint64_t step = 0; step < kPeakOps / kOps; ++step) {
    asm volatile("" : : "r"(acts) : "memory");  // nothing is known of the activations, they are loaded in each step
#pragma GCC unroll 4
    for (int t = 0; t < T; t += kDotTokens) {
      I32 dots[S][kDotTokens];
      dot<15, 0, 8, S, kDotTokens>(w, 0, acts + t, dots);
#pragma GCC unroll 2
      for (int s = 0; s < S; ++s)
#pragma GCC unroll 4
        for (int k = 0; k < kDotTokens; ++k) sums[s][t + k] = add_i32(sums[s][t + k], dots[s][k]);
    }
#pragma GCC unroll 2
    for (int s = 0; s < S; ++s)
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) asm volatile("" : "+" VECTOR_REGISTER(w[s][i]));
  }
  I32 sum = set_i32(0);
  for (int s = 0; s < S; ++s)
    for (int t = 0; t < T; ++t) sum = add_i32(sum, sums[s][t]);
  return reduce_add(sum);
}

KERNEL_UNSANITIZED int32_t f32_fma() {
  constexpr uint64_t kOps = uint64_t(2) * kLanes * kSums * 4;
  F32 sums[kSums], a = set_f32(0.5f);
  for (int i = 0; i < kSums; ++i) sums[i] = set_f32(float(i));
  for (uint64_t step = 0; step < kPeakOps / kOps; ++step) {
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k)
#pragma GCC unroll 16
      for (int i = 0; i < kSums; ++i) sums[i] = fma(a, a, sums[i]);
    asm volatile("" : "+" VECTOR_REGISTER(a));
  }
  for (int i = 1; i < kSums; ++i) sums[0] = add(sums[0], sums[i]);
  return reduce_add(round_i32(sums[0]));
}

}  // namespace

extern const PeakKernels kPeakKernels;
const PeakKernels kPeakKernels = {int8_dot, f32_fma};

}  // namespace argent::cpu::ARGENT_ISA
