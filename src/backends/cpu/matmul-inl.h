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
//
// The baseline rounds the product of every fma as well.
#pragma once

#include "backends/cpu/matmul_weights-inl.h"

namespace argent::cpu::ARGENT_ISA {
namespace {

constexpr int kSlices = int(kPanelRows) / kLanes;

// Panels that are multiplied with one tile of tokens after the other: half of a typical L2 cache, so that neither they
// nor the tile leave it.
constexpr uint64_t kPanelsBytes = 512 << 10;

// Bytes ahead of the load. On a Zen 5 core 8 KiB read 40 GB/s with 1 to 4 tokens; 2 KiB 36 to 23, 16 KiB 37 to 40.
constexpr uint32_t kPrefetch = 8192;

template <int T>
SIMD_FN void prefetch(const uint8_t* p, int bytes) {
  if constexpr (T <= 8)
    for (int i = 0; i < bytes; i += 64) __builtin_prefetch(p + kPrefetch + i, 0, 3);
}

// Slices a kernel takes at once. For floats, both of 8 rows for one token, where memory is the limit, so that a line is
// read once.
template <class Element, int T>
constexpr int kSlicesAtOnce = sizeof(Element) == sizeof(QuantGroup) ? kSlicesQ8
                              : T == 1 && kSlices == 2              ? 2
                                                                    : 1;

// T tokens of a tile (whose groups are `stride` records apart) times S slices of one panel.
template <Format F, int T, int S>
SIMD_FN void multiply_groups(const uint8_t* panel, int lane, const QuantGroup* acts, uint32_t stride, uint32_t n_groups,
                             F32 (&out)[S][T]) {
  using W = Weights<F>;
#pragma GCC unroll 4
  for (int s = 0; s < S; ++s)
#pragma GCC unroll 16
    for (int t = 0; t < T; ++t) out[s][t] = set_f32(0.0f);
  for (uint32_t block = 0; block < n_groups / W::kGroups; ++block, panel += W::kBytes) {
#pragma GCC unroll 1
    for (int j = 0; j < W::kGroups; ++j, acts += stride) {
      prefetch<T>(panel + j * (W::kBytes / W::kGroups), W::kBytes / W::kGroups);
      I32 codes[S][8];
      F32 scale[S][2], min[S][2];
#pragma GCC unroll 2
      for (int s = 0; s < S; ++s) W(panel, lane + s * kLanes).codes(j, codes[s]);
      constexpr int kVectors = W::kHalves ? 4 : 8;
      constexpr int B = T < kDotTokens ? T : kDotTokens;
      static_assert(T % B == 0);
#pragma GCC unroll 16
      for (int first = 0; first < T; first += B) {
        const QuantGroup* a = acts + first;
        I32 sums[S][B];
        F32 half[S][B];
        dot<W::kMax, W::kZero, kVectors, S, B>(codes, 0, a, sums);
#pragma GCC unroll 2
        for (int s = 0; s < S && first == 0; ++s) W(panel, lane + s * kLanes).scales(j, scale[s], min[s]);
        if constexpr (W::kHalves) {
#pragma GCC unroll 16
          for (int t = 0; t < B; ++t)
#pragma GCC unroll 2
            for (int s = 0; s < S; ++s) half[s][t] = mul(to_f32(sums[s][t]), scale[s][0]);
          dot<W::kMax, W::kZero, kVectors, S, B>(codes, 4, a, sums);
        }
#pragma GCC unroll 16
        for (int t = 0; t < B; ++t) {
#pragma GCC unroll 2
          for (int s = 0; s < S; ++s) {
            F32 v;
            if constexpr (W::kHalves) {
              v = fma(to_f32(sums[s][t]), scale[s][1], half[s][t]);
              if constexpr (W::kMins) {
                v = fma(min[s][0], set_f32(a[t].half_sum[0]), v);
                v = fma(min[s][1], set_f32(a[t].half_sum[1]), v);
              }
            } else {
              v = mul(to_f32(sums[s][t]), scale[s][0]);
              if constexpr (W::kMins) v = fma(min[s][0], set_f32(a[t].sum), v);
            }
            out[s][first + t] = fma(v, set_f32(a[t].scale), out[s][first + t]);
          }
        }
      }
    }
  }
}

// As above with the floats of a tile, `stride` apart from column to column.
template <Format F, int T, int S>
SIMD_FN void multiply_columns(const uint8_t* panel, int lane, const float* x, uint32_t stride, uint32_t n_cols,
                              F32 (&out)[S][T]) {
  using W = Weights<F>;
  F32 sum[2][S][T];
#pragma GCC unroll 2
  for (int chain = 0; chain < 2; ++chain)
#pragma GCC unroll 4
    for (int s = 0; s < S; ++s)
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) sum[chain][s][t] = set_f32(0.0f);
  if constexpr (native_activations(F) == Activations::f32) {
    for (uint32_t k = 0; k < n_cols; k += 2, panel += 2 * W::kColumnBytes, x += 2 * uint64_t(stride)) {
      prefetch<T>(panel, 2 * W::kColumnBytes);
#pragma GCC unroll 2
      for (int chain = 0; chain < 2; ++chain) {
        if (chain == 1 && k + 1 == n_cols) break;
#pragma GCC unroll 4
        for (int s = 0; s < S; ++s) {
          const F32 w = W::column(panel + chain * W::kColumnBytes, lane + s * kLanes);
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
        prefetch<T>(panel + j * (W::kBytes / W::kGroups), W::kBytes / W::kGroups);
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

// One panel times T tokens: rows of `out` from the panel's first, n_rows (1 to 16) of them.
template <Format F, int T, class Element>
__attribute__((noinline)) KERNEL_UNSANITIZED void multiply_panel(const uint8_t* panel, const Element* acts,
                                                                 uint32_t stride, uint32_t n_cols, int n_rows,
                                                                 float* out, uint64_t out_stride) {
  constexpr int S = kSlicesAtOnce<Element, T>;
  for (int lane = 0; lane < n_rows; lane += S * kLanes) {
    F32 sums[S][T];
    if constexpr (sizeof(Element) == sizeof(QuantGroup))
      multiply_groups<F, T, S>(panel, lane, acts, stride, n_cols / kGroup, sums);
    else
      multiply_columns<F, T, S>(panel, lane, acts, stride, n_cols, sums);
#pragma GCC unroll 4
    for (int s = 0; s < S; ++s) {
      const int rows = n_rows - lane - s * kLanes;
#pragma GCC unroll 16
      for (int t = 0; t < T; ++t)
        if (rows > 0) store_f32(out + t * out_stride + lane + s * kLanes, sums[s][t], rows < kLanes ? rows : kLanes);
    }
  }
}

// How many of the n tokens that are left the next kernel takes: all if it can; 9 to 15 as two like parts.
template <int kMax>
SIMD_FN constexpr int tokens_at_once(int n) {
  if (n >= kMax) return kMax;
  return n > 8 ? (n + 1) / 2 : n;
}

template <Format F, class Element, int kMax>
void multiply_tile(const uint8_t* panel, const Element* acts, uint32_t tile_tokens, uint32_t n_cols, int n_rows,
                   float* out, uint64_t out_stride) {
  for (int first = 0; first < int(tile_tokens);) {
    const int n = tokens_at_once<kMax>(int(tile_tokens) - first);
    const Element* a = acts + first;
    float* o = out + first * out_stride;
    switch (n) {
#define CASE(T)                                                                                                   \
  case T:                                                                                                         \
    if constexpr (T <= kMax) multiply_panel<F, T, Element>(panel, a, tile_tokens, n_cols, n_rows, o, out_stride); \
    break;
      CASE(1)
      CASE(2)
      CASE(3)
      CASE(4)
      CASE(5)
      CASE(6)
      CASE(7)
      CASE(8)
      CASE(16)
#undef CASE
    }
    first += n;
  }
}

template <Format F, class Element, int kMax>
void multiply(const PackedMatrix& weights, uint32_t panel_begin, uint32_t panel_end, const Element* acts,
              uint32_t n_tokens, float* out, uint64_t out_stride) {
  const uint32_t n_cols = weights.n_cols;
  const uint64_t panel_bytes = panel_size<F>(n_cols);
  const uint64_t width = sizeof(Element) == sizeof(QuantGroup) ? n_cols / kGroup : n_cols;  // of one token
  uint64_t at_once = panel_bytes ? kPanelsBytes / panel_bytes : 1;
  if (at_once == 0) at_once = 1;
  for (uint64_t begin = panel_begin; begin < panel_end; begin += at_once) {
    const uint64_t end = begin + at_once < panel_end ? begin + at_once : panel_end;
    for (uint32_t token = 0; token < n_tokens; token += kTileTokens) {
      const uint32_t tile_tokens = n_tokens - token < kTileTokens ? n_tokens - token : kTileTokens;
      for (uint64_t panel = begin; panel < end; ++panel) {
        const uint64_t row = panel * kPanelRows;
        const int n_rows = weights.n_rows - row < kPanelRows ? int(weights.n_rows - row) : int(kPanelRows);
        multiply_tile<F, Element, kMax>(weights.data + panel * panel_bytes, acts + token * width, tile_tokens, n_cols,
                                        n_rows, out + token * out_stride + row, out_stride);
      }
    }
  }
}

void multiply_q8(const PackedMatrix& weights, uint32_t panel_begin, uint32_t panel_end, const QuantGroup* acts,
                 uint32_t n_tokens, float* out, uint64_t out_stride) {
  switch (weights.format) {
#define FORMAT(name, NAME, id, block, bytes)                                                                 \
  case Format::name:                                                                                         \
    if constexpr (native_activations(Format::name) == Activations::q8)                                       \
      multiply<Format::name, QuantGroup, kMaxTokensQ8>(weights, panel_begin, panel_end, acts, n_tokens, out, \
                                                       out_stride);                                          \
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
#define FORMAT(name, NAME, id, block, bytes)                                                                  \
  case Format::name:                                                                                          \
    return multiply<Format::name, float, kMaxTokensF32>(weights, panel_begin, panel_end, acts, n_tokens, out, \
                                                        out_stride);
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

constexpr MatmulKernels kTable = {kIsa, prepare_q8, prepare_f32, multiply_q8, multiply_f32};

}  // namespace

// The one name that leaves this object file.
extern const MatmulKernels kMatmulKernels;
const MatmulKernels kMatmulKernels = kTable;

}  // namespace argent::cpu::ARGENT_ISA
