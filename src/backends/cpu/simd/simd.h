// The small vocabulary that matrix kernels are written in, once for each instruction set: a vector is kLanes rows of a
// panel, as floats (F32) or as 32-bit words (I32) of one number or of four quants. Kernel text is compiled in the
// namespace of the ISA that the compiler's flags name (ARGENT_ISA), and everything in it has internal linkage: a
// function that the linker shared with code for lesser processors would be an illegal instruction there. For the same
// reason kernel text calls nothing of the standard library and no inline function of other headers (those of quant/ are
// always inlined).
//
//   dot<kMax, kZero, kVectors>(w, first, acts, sum)   sum[s][t]: for each row of slice s and token t, the exact sum of
//       (u - kZero) * q over the quants u (at most kMax) of vectors [first, first + kVectors) of w[s] and their
//       activations acts[t].q; kVectors is 8, or 4 with first 0 or 4; kZero is 0 or a power of 2
//   kSlicesQ8, kDotTokens   slices (kLanes rows each) and tokens that dot takes at once, at most
//   high_nibbles(a)   of every byte
//   float_slices(T)   slices that products of floats with T tokens take at once
//   kVectorRegisters  of the processor
//   fma(a, b, c)   a * b + c, rounded once but in the baseline of x86-64
//   load_half, load_bf16, load_u8, load_i8   kLanes numbers from memory
//   or_and(a, b, mask)   a | (b & mask), where a has no bit of the mask that b lacks
//   transpose_words(rows, stride, w)   words 0 to 3 of kLanes rows that begin `stride` bytes apart: w[i] has word i of
//       each
//   store_f32(p, v, n)   the first min(n, kLanes) lanes, nothing behind them
#pragma once

#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 takes the undefined operands of its own intrinsics for uninitialized variables (its bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#include <cstdint>

#include "backends/cpu/matmul.h"
#include "quant/portable.h"

// Sanitizers leave kernel text alone: instrumented, an ISA takes ten minutes to compile. Its reads and writes are held
// to their bounds by tests that put inaccessible pages behind every buffer.
#define KERNEL_UNSANITIZED __attribute__((no_sanitize("address", "undefined")))
#define SIMD_FN __attribute__((always_inline)) KERNEL_UNSANITIZED static inline
#define SIMD_LAMBDA __attribute__((always_inline)) KERNEL_UNSANITIZED

namespace argent::cpu {

SIMD_FN int32_t load_dword(const void* p) {
  int32_t x;
  __builtin_memcpy(&x, p, 4);
  return x;
}

SIMD_FN constexpr int log2_of(int power) { return 31 - __builtin_clz(unsigned(power)); }

}  // namespace argent::cpu

#if defined(__aarch64__)
#include "backends/cpu/simd/arm.h"
#else
#include "backends/cpu/simd/x86.h"
#endif

#if defined(ARGENT_I8MM)
#define ARGENT_ISA i8mm
#include "backends/cpu/simd/neon.h"
#elif defined(ARGENT_DOTPROD)
#define ARGENT_ISA neon
#include "backends/cpu/simd/neon.h"
#elif defined(__aarch64__)
#define ARGENT_ISA baseline
#include "backends/cpu/simd/neon.h"
#elif defined(__AVX512VNNI__)
#define ARGENT_ISA avx512
#include "backends/cpu/simd/avx512.h"
#elif defined(__AVXVNNI__)
#define ARGENT_ISA avxvnni
#include "backends/cpu/simd/avx2.h"
#elif defined(__AVX2__)
#define ARGENT_ISA avx2
#include "backends/cpu/simd/avx2.h"
#else
#define ARGENT_ISA baseline
#include "backends/cpu/simd/baseline.h"
#endif

namespace argent::cpu::ARGENT_ISA {
namespace {

constexpr Isa kIsa = Isa::ARGENT_ISA;

// By a constant once loops are unrolled; lanes are whole words, so masks clear what crosses a byte.
SIMD_FN I32 shift(I32 a, int left) {
  const U32Lanes u = U32Lanes(a);
  return left >= 0 ? I32(u << left) : I32(u >> -left);
}

#if !defined(__aarch64__)
SIMD_FN I32 high_nibbles(I32 a) { return and_i32(shift(a, -4), set_i32(0x0f0f0f0f)); }
#endif

// dot() of eight vectors that lie as they are in two panels, p and p + panel_bytes: sum[panel][token] for T tokens.
// Where a vector is a panel's 16 rows (kPanelPairs).
template <int kZero, int T>
SIMD_FN void dot_panels(const uint8_t* p, uint64_t panel_bytes, const QuantGroup* acts, I32 (&sum)[2][T]);

// Where dot() starts: the zero point's share of the sum.
template <int kZero, int kVectors>
SIMD_FN I32 zero_point_sum(const QuantGroup& a, int first) {
  if constexpr (kZero == 0) return set_i32(0);
  return shift(set_i32(uint32_t(kVectors == 8 ? a.neg_sum : a.neg_half_sum[first / 4])), log2_of(kZero ? kZero : 1));
}

// Of T tokens, how many dot() takes at once: a divisor.
template <int T>
SIMD_FN constexpr int dot_tokens() {
  int n = T < kDotTokens ? T : kDotTokens;
  while (T % n) --n;
  return n;
}

}  // namespace
}  // namespace argent::cpu::ARGENT_ISA

#if defined(ARGENT_I8MM)
#include "backends/cpu/simd/dot_i8mm.h"
#elif defined(ARGENT_DOTPROD)
#include "backends/cpu/simd/dot_neon.h"
#elif defined(__aarch64__)
#include "backends/cpu/simd/dot_arm.h"
#elif defined(__AVX512VNNI__)
#include "backends/cpu/simd/dot_avx512.h"
#elif defined(__AVXVNNI__)
#include "backends/cpu/simd/dot_avxvnni.h"
#elif defined(__AVX2__)
#include "backends/cpu/simd/dot_avx2.h"
#else
#include "backends/cpu/simd/dot_baseline.h"
#endif
