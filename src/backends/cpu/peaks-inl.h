// The peaks of an instruction set, compiled once for each (simd/simd.h says how).
#include "backends/cpu/peaks.h"
#include "backends/cpu/simd/simd.h"

namespace argent::cpu::ARGENT_ISA {
namespace {

constexpr int kSums = kLanes == 16 ? 16 : 8;  // enough to hide the latency of an FMA, and to stay in registers

// dot() of 4-bit quants as the matrix kernels call it: weights in registers, activations broadcast from L1.
KERNEL_UNSANITIZED int32_t int8_dot() {
  constexpr uint64_t kOps = uint64_t(2) * 32 * kLanes * 4;  // of a step
  alignas(64) int8_t q[4][32];
  for (int t = 0; t < 4; ++t)
    for (int i = 0; i < 32; ++i) q[t][i] = int8_t(3 * i - 40 + t);
  I32 w[8], sums[4];
  for (int i = 0; i < 8; ++i) w[i] = set_i32(0x01020304u + uint32_t(i));
  for (int t = 0; t < 4; ++t) sums[t] = set_i32(0);
  for (uint64_t step = 0; step < kPeakOps / kOps; ++step) {
    asm volatile("" : : "r"(q) : "memory");  // nothing is known of the activations, they are loaded in each step
#pragma GCC unroll 4
    for (int t = 0; t < 4; ++t) sums[t] = add_i32(sums[t], dot<15, 0, 8>(w, q[t], 0));
    asm volatile("" : "+x"(w[0]), "+x"(w[1]), "+x"(w[2]), "+x"(w[3]), "+x"(w[4]), "+x"(w[5]), "+x"(w[6]), "+x"(w[7]));
  }
  return reduce_add(add_i32(add_i32(sums[0], sums[1]), add_i32(sums[2], sums[3])));
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
    asm volatile("" : "+x"(a));
  }
  for (int i = 1; i < kSums; ++i) sums[0] = add(sums[0], sums[i]);
  return reduce_add(round_i32(sums[0]));
}

}  // namespace

extern const PeakKernels kPeakKernels;
const PeakKernels kPeakKernels = {int8_dot, f32_fma};

}  // namespace argent::cpu::ARGENT_ISA
