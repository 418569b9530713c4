// The small vocabulary that matrix kernels are written in, once for each instruction set: a vector is kLanes rows of a
// panel, as floats (F32) or as 32-bit words (I32) of one number or of four quants. Kernel text is compiled in the
// namespace of the ISA that the compiler's flags name (ARGENT_ISA), and everything in it has internal linkage: a
// function that the linker shared with code for lesser processors would be an illegal instruction there. For the same
// reason kernel text calls nothing of the standard library and no inline function of other headers (those of quant/ are
// always inlined).
//
//   dot<kMax, kZero, kVectors>(w, q, neg_sum)   for each row, the exact sum over the 4 * kVectors quants u of the
//       row (at most kMax) and activations q of (u - kZero) * q; neg_sum is minus the sum of q; kZero is 0 or a power
//       of 2
//   fma(a, b, c)   a * b + c, rounded once but in the baseline
//   load_half, load_bf16, load_u8, load_i8   kLanes numbers from memory; or_and(a, b, mask) = a | (b & mask)
//   transpose_words(rows, offset, w)   words 0 to 3 from byte `offset` on of kLanes rows: w[i] has word i of each
//   store_f32(p, v, n)   the first min(n, kLanes) lanes, nothing behind them
#pragma once

#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 takes the undefined operands of its own intrinsics for uninitialized variables (its bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#include <cstdint>

#include "backends/cpu/matmul.h"
#include "quant/portable.h"

// Sanitizers leave kernel text alone: instrumented, an ISA takes ten minutes to compile. Its reads and writes are held
// to their bounds by tests that put inaccessible pages behind every buffer.
#define KERNEL_UNSANITIZED __attribute__((no_sanitize("address", "undefined")))
#define SIMD_FN __attribute__((always_inline)) KERNEL_UNSANITIZED static inline

namespace argent::cpu {

SIMD_FN int32_t load_dword(const void* p) {
  int32_t x;
  __builtin_memcpy(&x, p, 4);
  return x;
}

SIMD_FN constexpr int log2_of(int power) { return 31 - __builtin_clz(unsigned(power)); }

}  // namespace argent::cpu

#if defined(__AVX512VNNI__)
#define ARGENT_ISA avx512
#include "backends/cpu/simd/avx512.h"
#elif defined(__AVX2__)
#define ARGENT_ISA avx2
#include "backends/cpu/simd/avx2.h"
#else
#define ARGENT_ISA baseline
#include "backends/cpu/simd/baseline.h"
#endif

namespace argent::cpu::ARGENT_ISA {
namespace {

// By a constant once loops are unrolled; lanes are whole words, so masks clear what crosses a byte.
SIMD_FN I32 shift(I32 a, int left) {
  const U32Lanes u = U32Lanes(a);
  return left >= 0 ? I32(u << left) : I32(u >> -left);
}

}  // namespace
}  // namespace argent::cpu::ARGENT_ISA
