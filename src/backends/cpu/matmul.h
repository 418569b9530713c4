// Matrix products of the CPU backend: out[token][row] = sum over columns of weight[row][column] * x[token][column].
//
// Weights are re-laid once, at load, into panels of 16 rows (pack.h); activations are prepared once per group of
// matrices (activations.h). One kernel family serves any number of tokens, and an output's bits depend on its weights
// and its token only: not on the number of tokens, panels or threads, and not on the ISA where it has FMA. The
// arithmetic is fixed in matmul-inl.h; docs/decisions/0003-cpu-matrix-layout.md has the reasons and the figures.
#pragma once

#include <cstdint>

#include "backends/cpu/activations.h"
#include "backends/cpu/isa.h"
#include "backends/cpu/pack.h"
#include "base/cpu_features.h"
#include "quant/formats.h"

namespace argent::cpu {

// What the kernels of this format's weights multiply with unless asked for f32.
constexpr Activations native_activations(Format format) {
  if (format == Format::f32 || format == Format::f16) return Activations::f32;
  return format == Format::bf16 ? Activations::bf16 : Activations::q8;
}

constexpr bool quantized(Format format) { return native_activations(format) == Activations::q8; }

using MultiplyBf16 = void (*)(const PackedMatrix& weights, uint32_t panel_begin, uint32_t panel_end,
                              const BrainPair* acts, uint32_t n_tokens, float* out, uint64_t out_stride);

struct MatmulKernels {
  Isa isa;

  // Prepares x[token_begin..token_end)[col_begin..col_end) into `acts` (activation_bytes, 64-byte aligned). `x` points
  // at the part's first element (token_begin, col_begin); x_stride is in floats from token to token.
  void (*prepare_q8)(const ActivationPart& part, const float* x, uint64_t x_stride, QuantGroup* acts);
  void (*prepare_f32)(const ActivationPart& part, const float* x, uint64_t x_stride, float* acts);
  void (*prepare_bf16)(const ActivationPart& part, const float* x, uint64_t x_stride, BrainPair* acts);

  // The rows of panels [panel_begin, panel_end) for all n_tokens: out[token * out_stride + row], row < n_rows; nothing
  // else is written. multiply_q8 takes quantized formats only, multiply_bf16 bf16 only, multiply_f32 every format.
  void (*multiply_q8)(const PackedMatrix& weights, uint32_t panel_begin, uint32_t panel_end, const QuantGroup* acts,
                      uint32_t n_tokens, float* out, uint64_t out_stride);
  void (*multiply_f32)(const PackedMatrix& weights, uint32_t panel_begin, uint32_t panel_end, const float* acts,
                       uint32_t n_tokens, float* out, uint64_t out_stride);
  MultiplyBf16 multiply_bf16;
};

// The kernels of a supported ISA. With AVX-512, `features` says whether bf16 products may use AVX-512 BF16.
const MatmulKernels& matmul_kernels(Isa isa, const CpuFeatures& features = cpu_features());

}  // namespace argent::cpu
