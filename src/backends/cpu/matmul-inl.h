// The matrix kernels, compiled once for each instruction set (simd/simd.h says how). For every output and any number of
// tokens, panels and threads the arithmetic is this, every operation rounded to f32:
//
//   q8, for each group of 32 columns in order, with the activations' q, scale d and sums (activations.h):
//     I = exact integer sum of (code - zero point) * q over the columns of one weight scale
//     v = float(I) * s                              one scale for 32 columns
//     v = fma(float(I1), s1, float(I0) * s0)        one scale for 16
//     v = fma(m, sum of q, v)                       formats with mins; for two halves m0, then m1
//     out = fma(v, d, out)                          starting at 0
//     s and m are exact products of the block's scale and the group's integer.
//   f32: w = s * (code - zero point), or fma(code, s, m): the decoded weight, exactly. Even columns are summed by one
//     chain of fma(w, x, sum), odd ones by another, both from 0; out = even + odd.
//   bf16: x rounded to bfloat16. Even pairs of columns (0 and 1, 4 and 5, ...) are summed by one chain, odd ones by
//     another, both from 0: sum = fma(w, x, sum) for the pair's second column, then for its first; out = first chain +
//     second. Subnormal operands count as zero and subnormal results become it: vdpbf16ps does so.
//
// The baseline of x86-64 rounds the product of every fma as well.
#pragma once

#include "backends/cpu/matmul_bf16-inl.h"

namespace argent::cpu::ARGENT_ISA {
namespace {

struct Q8Products {
  using Element = QuantGroup;
  static constexpr int kMaxTokens = kMaxTokensQ8;
  template <int T>
  static constexpr int kSlices = kSlicesQ8;
  template <Format F>
  static constexpr int kPairTokens = kPanelPairs&& kPlainCodes<F> ? 6 : 0;
  static constexpr uint32_t steps(uint32_t n_cols) { return n_cols / kGroup; }

  template <Format F, int T, int S>
  KERNEL_FN static void sums(const uint8_t* panel, int lane, const QuantGroup* acts, uint32_t stride, uint32_t n_cols,
                             F32 (&out)[S][T]) {
    using W = Weights<F>;
#pragma GCC unroll 4
    for (int s = 0; s < S; ++s)
#pragma GCC unroll 16
      for (int t = 0; t < T; ++t) out[s][t] = set_f32(0.0f);
    for (uint32_t block = 0; block < steps(n_cols) / W::kGroups; ++block, panel += W::kBytes) {
#pragma GCC unroll 1
      for (int j = 0; j < W::kGroups; ++j, acts += stride) {
        prefetch(panel + j * (W::kBytes / W::kGroups), W::kBytes / W::kGroups);
        I32 codes[S][8];
        F32 scale[S][2], min[S][2];
#pragma GCC unroll 2
        for (int s = 0; s < S; ++s) W(panel, lane + s * kLanes).codes(j, codes[s]);
        constexpr int kVectors = W::kHalves ? 4 : 8;
        constexpr int B = dot_tokens<T>();
#pragma GCC unroll 16
        for (int first = 0; first < T; first += B) {
          const QuantGroup* a = acts + first;
          I32 sum[S][B];
          F32 half[S][B];
          dot<W::kMax, W::kZero, kVectors, S, B>(codes, 0, a, sum);
#pragma GCC unroll 2
          for (int s = 0; s < S && first == 0; ++s) W(panel, lane + s * kLanes).scales(j, scale[s], min[s]);
          if constexpr (W::kHalves) {
#pragma GCC unroll 16
            for (int t = 0; t < B; ++t)
#pragma GCC unroll 2
              for (int s = 0; s < S; ++s) half[s][t] = mul(to_f32(sum[s][t]), scale[s][0]);
            dot<W::kMax, W::kZero, kVectors, S, B>(codes, 4, a, sum);
          }
#pragma GCC unroll 16
          for (int t = 0; t < B; ++t) {
#pragma GCC unroll 2
            for (int s = 0; s < S; ++s) {
              F32 v;
              if constexpr (W::kHalves) {
                v = fma(to_f32(sum[s][t]), scale[s][1], half[s][t]);
                if constexpr (W::kMins) {
                  v = fma(min[s][0], set_f32(a[t].half_sum[0]), v);
                  v = fma(min[s][1], set_f32(a[t].half_sum[1]), v);
                }
              } else {
                v = mul(to_f32(sum[s][t]), scale[s][0]);
                if constexpr (W::kMins) v = fma(min[s][0], set_f32(a[t].sum), v);
              }
              out[s][first + t] = fma(v, set_f32(a[t].scale), out[s][first + t]);
            }
          }
        }
      }
    }
  }

  template <Format F, int T>
  KERNEL_FN static void pair_sums(const uint8_t* panels, uint64_t panel_bytes, const QuantGroup* acts, uint32_t stride,
                                  uint32_t n_cols, F32 (&out)[2][T]) {
    using W = Weights<F>;
    static_assert(W::kGroups == 1 && !W::kHalves && !W::kMins);
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) out[0][t] = out[1][t] = set_f32(0.0f);
    for (uint32_t group = 0; group < steps(n_cols); ++group, panels += W::kBytes, acts += stride) {
      I32 sum[2][T];
      dot_panels<W::kZero, T>(panels, panel_bytes, acts, sum);
#pragma GCC unroll 2
      for (int s = 0; s < 2; ++s) {
        F32 scale;
        W(panels + s * panel_bytes, 0).scales(0, &scale, nullptr);
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) out[s][t] = fma(mul(to_f32(sum[s][t]), scale), set_f32(acts[t].scale), out[s][t]);
      }
    }
  }
};

struct F32Products {
  using Element = float;
  static constexpr int kMaxTokens = kMaxTokensF32;
  template <Format F>
  static constexpr int kPairTokens = 0;
  template <int T>
  static constexpr int kSlices = kFloatSlices<T>;
  static constexpr uint32_t steps(uint32_t n_cols) { return n_cols; }

  template <Format F, int T, int S>
  KERNEL_FN static void sums(const uint8_t* panel, int lane, const float* x, uint32_t stride, uint32_t n_cols,
                             F32 (&out)[S][T]) {
    using W = Weights<F>;
    F32 sum[2][S][T];
#pragma GCC unroll 2
    for (int chain = 0; chain < 2; ++chain)
#pragma GCC unroll 4
      for (int s = 0; s < S; ++s)
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) sum[chain][s][t] = set_f32(0.0f);
    if constexpr (!quantized(F)) {
      for (uint32_t k = 0; k < n_cols; k += 2, panel += 2 * W::kColumnBytes, x += 2 * uint64_t(stride)) {
        prefetch(panel, 2 * W::kColumnBytes);
#pragma GCC unroll 2
        for (int chain = 0; chain < 2; ++chain) {
          if (chain == 1 && k + 1 == n_cols) break;
#pragma GCC unroll 4
          for (int s = 0; s < S; ++s) {
            const F32 w = W::column(panel, chain, lane + s * kLanes);
#pragma GCC unroll 8
            for (int t = 0; t < T; ++t)
              sum[chain][s][t] = fma(w, set_f32(x[chain * uint64_t(stride) + t]), sum[chain][s][t]);
          }
        }
      }
    } else {
      for (uint32_t block = 0; block < n_cols / kGroup / W::kGroups; ++block, panel += W::kBytes) {
#pragma GCC unroll 1
        for (int j = 0; j < W::kGroups; ++j, x += kGroup * uint64_t(stride)) {
          prefetch(panel + j * (W::kBytes / W::kGroups), W::kBytes / W::kGroups);
#pragma GCC unroll 4
          for (int s = 0; s < S; ++s) {
            const W weights(panel, lane + s * kLanes);
            I32 codes[8];
            F32 scale[2], min[2];
            weights.codes(j, codes);
            weights.scales(j, scale, min);
            const float* at = x;
#pragma GCC unroll 1
            for (int i = 0; i < 8; ++i, at += 4 * uint64_t(stride)) {
              const int half = W::kHalves && i >= 4;
#pragma GCC unroll 4
              for (int b = 0; b < 4; ++b) {
                const F32 code = to_f32(and_i32(shift(codes[i], -8 * b), set_i32(255)));
                F32 w;
                if constexpr (W::kMins)
                  w = fma(code, scale[half], min[half]);
                else
                  w = mul(sub(code, set_f32(float(W::kZero))), scale[half]);
#pragma GCC unroll 8
                for (int t = 0; t < T; ++t)
                  sum[b & 1][s][t] = fma(w, set_f32(at[b * uint64_t(stride) + t]), sum[b & 1][s][t]);
              }
            }
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

void multiply_q8(const PackedMatrix& weights, uint32_t panel_begin, uint32_t panel_end, const QuantGroup* acts,
                 uint32_t n_tokens, float* out, uint64_t out_stride) {
  switch (weights.format) {
#define FORMAT(name, NAME, id, block, bytes)                                                                \
  case Format::name:                                                                                        \
    if constexpr (quantized(Format::name))                                                                  \
      multiply<Q8Products, Format::name>(weights, panel_begin, panel_end, acts, n_tokens, out, out_stride); \
    return;
#define KNOWN(NAME, id, block, bytes)
#include "quant/formats.def"
#undef FORMAT
#undef KNOWN
  }
}

void multiply_f32(const PackedMatrix& weights, uint32_t panel_begin, uint32_t panel_end, const float* acts,
                  uint32_t n_tokens, float* out, uint64_t out_stride) {
  switch (weights.format) {
#define FORMAT(name, NAME, id, block, bytes) \
  case Format::name:                         \
    return multiply<F32Products, Format::name>(weights, panel_begin, panel_end, acts, n_tokens, out, out_stride);
#define KNOWN(NAME, id, block, bytes)
#include "quant/formats.def"
#undef FORMAT
#undef KNOWN
  }
}

// Where an activation record or float is, as activation_index.
SIMD_FN uint64_t index_of(uint32_t token, uint32_t step, uint32_t width, uint32_t n_tokens) {
  const uint32_t first = token / kTileTokens * kTileTokens;
  const uint32_t tile_tokens = n_tokens - first < kTileTokens ? n_tokens - first : kTileTokens;
  return uint64_t(first) * width + uint64_t(step) * tile_tokens + (token - first);
}

SIMD_FN void quantize_group(const float* x, QuantGroup& a) {
  constexpr int kVectors = int(kGroup) / kLanes, kHalf = kVectors / 2;
  const I32 magnitude = set_i32(0x7fffffff);
  I32 top = set_i32(0);
#pragma GCC unroll 8
  for (int i = 0; i < kVectors; ++i) top = max_i32(top, and_i32(f32_bits(load_f32(x + i * kLanes)), magnitude));
  const int32_t bits = reduce_max(top);  // of non-negative floats, the order of the bits is that of the values
  const float amax = __builtin_bit_cast(float, bits);
  const bool finite = bits < 0x7f800000, zero = !finite || amax < 0x1p-100f;
  a.scale = !finite ? __builtin_nanf("") : zero ? 0.0f : amax / 127.0f;
  const F32 inverse = set_f32(zero ? 0.0f : 127.0f / amax);
  int32_t sums[2] = {0, 0};
  if (zero) {
    for (uint32_t i = 0; i < kGroup; ++i) a.q[i] = 0;
  } else {
    I32 half_sums[2] = {set_i32(0), set_i32(0)};
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; ++i) {
      const I32 q = round_i32(mul(load_f32(x + i * kLanes), inverse));
      store_i8(a.q + i * kLanes, q);
      half_sums[i / kHalf] = add_i32(half_sums[i / kHalf], q);
    }
    sums[0] = reduce_add(half_sums[0]), sums[1] = reduce_add(half_sums[1]);
  }
  a.half_sum[0] = float(sums[0]), a.half_sum[1] = float(sums[1]), a.sum = float(sums[0] + sums[1]);
  a.neg_half_sum[0] = -sums[0], a.neg_half_sum[1] = -sums[1], a.neg_sum = -(sums[0] + sums[1]);
  a.unused = 0;
}

void prepare_q8(const ActivationPart& part, const float* x, uint64_t x_stride, QuantGroup* acts) {
  for (uint32_t token = part.token_begin; token < part.token_end; ++token, x += x_stride)
    for (uint32_t group = part.col_begin / kGroup; group < part.col_end / kGroup; ++group)
      quantize_group(x + (group * kGroup - part.col_begin),
                     acts[index_of(token, group, part.n_cols / kGroup, part.n_tokens)]);
}

void prepare_f32(const ActivationPart& part, const float* x, uint64_t x_stride, float* acts) {
  for (uint32_t begin = part.token_begin, end; begin < part.token_end; x += x_stride * (end - begin), begin = end) {
    end = begin / kTileTokens * kTileTokens + kTileTokens;  // a tile at a time, so that stores are in order
    if (end > part.token_end) end = part.token_end;
    const uint64_t first = index_of(begin, 0, part.n_cols, part.n_tokens);
    const uint64_t step = index_of(begin, 1, part.n_cols, part.n_tokens) - first;
    for (uint32_t col = part.col_begin; col < part.col_end; ++col)
      for (uint32_t token = begin; token < end; ++token)
        acts[first + col * step + (token - begin)] = x[(token - begin) * x_stride + (col - part.col_begin)];
  }
}

// Rounded as base/half.h rounds: a NaN stays one.
SIMD_FN uint16_t brain(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, 4);
  if ((bits & 0x7fffffff) > 0x7f800000) return uint16_t(bits >> 16 | 64);
  return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

void prepare_bf16(const ActivationPart& part, const float* x, uint64_t x_stride, BrainPair* acts) {
  const uint32_t width = Bf16Products::steps(part.n_cols);
  const uint32_t n_cols = part.col_end - part.col_begin, n_pairs = n_cols / 2;
  for (uint32_t begin = part.token_begin, end; begin < part.token_end; x += x_stride * (end - begin), begin = end) {
    end = begin / kTileTokens * kTileTokens + kTileTokens;
    if (end > part.token_end) end = part.token_end;
    const uint64_t first = index_of(begin, part.col_begin / 2, width, part.n_tokens);
    const uint64_t step = index_of(begin, part.col_begin / 2 + 1, width, part.n_tokens) - first;
    BrainPair* to = acts + first;
    if (step == 1) {  // one token, as in decode: pairs follow one another
      for (uint32_t pair = 0; pair < n_pairs; ++pair) to[pair] = {brain(x[2 * pair]), brain(x[2 * pair + 1])};
    } else {
      for (uint32_t pair = 0; pair < n_pairs; ++pair)
        for (uint32_t token = 0; token < end - begin; ++token) {
          const float* at = x + token * x_stride + 2 * pair;
          to[pair * step + token] = {brain(at[0]), brain(at[1])};
        }
    }
    for (uint32_t token = 0; n_cols % 2 && token < end - begin; ++token)
      to[n_pairs * step + token] = {brain(x[token * x_stride + n_cols - 1]), 0};
  }
}

constexpr MatmulKernels kTable = {kIsa,        prepare_q8,   prepare_f32,  prepare_bf16,
                                  multiply_q8, multiply_f32, multiply_bf16};

}  // namespace

// The one name that leaves this object file.
extern const MatmulKernels kMatmulKernels;
const MatmulKernels kMatmulKernels = kTable;

}  // namespace argent::cpu::ARGENT_ISA
