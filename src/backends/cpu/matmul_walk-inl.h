// How matrix kernels walk panels and tiles of tokens, whatever they multiply. A kernel K of a format F has
//   Element                 what a tile holds; `steps(n_cols)` of them a token
//   kMaxTokens, kSlices<T>  tokens, and slices (kLanes rows) of a panel with T tokens, that it takes at once
//   sums<F, T, S>(panel, lane, acts, stride, n_cols, out)   out[s][t]: S slices from row `lane` of the panel on times T
//       tokens of a tile, whose steps along K are `stride` elements apart
//   kPairTokens<F>          tokens at once of two whole panels, where that is faster; else 0
//   pair_sums<F, T>(panels, panel_bytes, acts, stride, n_cols, out)   of two panels on AVX-512, a slice each
#pragma once

#include "backends/cpu/matmul_weights-inl.h"

namespace argent::cpu::ARGENT_ISA {
namespace {

constexpr int kSlices = int(kPanelRows) / kLanes;

// Panels that are multiplied with one tile of tokens after the other: a quarter of a typical L2 cache, so that neither
// they nor the tile leave it even where another program works on the core's sibling thread (512 KiB: as fast on a quiet
// machine, 2 to 5 % slower on a busy one).
constexpr uint64_t kPanelsBytes = 256 << 10;

// Bytes ahead of the load. On a Zen 5 core 8 KiB read 40 GB/s with 1 to 4 tokens; 2 KiB 36 to 23, 16 KiB 37 to 40.
constexpr uint32_t kPrefetch = 8192;

// For any number of tokens: of more than a tile the first reads the panel from memory, and to the others, whose panels
// are in L2, it costs nothing (16 tokens: 1.8 to 3 times as fast; 512: 0.98 to 1.04).
SIMD_FN void prefetch(const uint8_t* p, int bytes) {
  for (int i = 0; i < bytes; i += 64) __builtin_prefetch(p + kPrefetch + i, 0, 3);
}

template <int T>
constexpr int kFloatSlices = float_slices(T);

// One panel or two times T tokens: rows of `out` from the first panel's first, n_rows (1 to 16 each) of them.
template <class K, Format F, int T, int P>
__attribute__((noinline)) KERNEL_UNSANITIZED void multiply_panels(const uint8_t* panels,
                                                                  const typename K::Element* acts, uint32_t stride,
                                                                  uint32_t n_cols, int n_rows, float* out,
                                                                  uint64_t out_stride) {
  constexpr int S = P == 2 ? 2 : K::template kSlices<T>;
  for (int lane = 0; lane < n_rows; lane += S * kLanes) {
    F32 sums[S][T];
    if constexpr (P == 2)
      K::template pair_sums<F, T>(panels, panel_size<F>(n_cols), acts, stride, n_cols, sums);
    else
      K::template sums<F, T, S>(panels, lane, acts, stride, n_cols, sums);
#pragma GCC unroll 4
    for (int s = 0; s < S; ++s) {
      const int rows = n_rows - lane - s * kLanes;
#pragma GCC unroll 16
      for (int t = 0; t < T; ++t)
        if (rows > 0) store_f32(out + t * out_stride + lane + s * kLanes, sums[s][t], rows < kLanes ? rows : kLanes);
    }
  }
}

// How many of the n tokens that are left the next kernel takes: all if it can, else of like parts.
template <int kMax>
SIMD_FN constexpr int tokens_at_once(int n) {
  if (n >= kMax && kTileTokens % kMax == 0) return kMax;
  const int most = kMax < 8 ? kMax : 8, parts = (n + most - 1) / most;
  return (n + parts - 1) / parts;
}

template <class K, Format F, int P>
void multiply_tile(const uint8_t* panels, const typename K::Element* acts, uint32_t tile_tokens, uint32_t n_cols,
                   int n_rows, float* out, uint64_t out_stride) {
  constexpr int kMax = P == 2 ? K::template kPairTokens<F> : K::kMaxTokens;
  for (int first = 0; first < int(tile_tokens);) {
    const int n = tokens_at_once<kMax>(int(tile_tokens) - first);
    const typename K::Element* a = acts + first;
    float* o = out + first * out_stride;
    switch (n) {
#define CASE(T)                                                                                                  \
  case T:                                                                                                        \
    if constexpr (T <= kMax) multiply_panels<K, F, T, P>(panels, a, tile_tokens, n_cols, n_rows, o, out_stride); \
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

template <class K, Format F>
void multiply(const PackedMatrix& weights, uint32_t panel_begin, uint32_t panel_end, const typename K::Element* acts,
              uint32_t n_tokens, float* out, uint64_t out_stride) {
  const uint32_t n_cols = weights.n_cols;
  const uint64_t panel_bytes = panel_size<F>(n_cols), width = K::steps(n_cols);
  uint64_t at_once = panel_bytes ? kPanelsBytes / panel_bytes : 1;
  if (at_once == 0) at_once = 1;
  if (K::template kPairTokens<F> && at_once > 1) at_once -= at_once % 2;
  for (uint64_t begin = panel_begin; begin < panel_end; begin += at_once) {
    const uint64_t end = begin + at_once < panel_end ? begin + at_once : panel_end;
    for (uint32_t token = 0; token < n_tokens; token += kTileTokens) {
      const uint32_t tile_tokens = n_tokens - token < kTileTokens ? n_tokens - token : kTileTokens;
      for (uint64_t panel = begin, count; panel < end; panel += count) {
        const uint64_t row = panel * kPanelRows;
        // The first tile reads panels from memory, for which two streams are too many (16 tokens: 0.65 of the speed).
        count = token > 0 && end - panel > 1 && K::template kPairTokens<F> ? 2 : 1;
        const uint64_t most = count * kPanelRows, left = weights.n_rows - row;
        const int n_rows = int(left < most ? left : most);
        const uint8_t* at = weights.data + panel * panel_bytes;
        const typename K::Element* a = acts + token * width;
        float* o = out + token * out_stride + row;
        if constexpr (K::template kPairTokens<F>) {
          if (count == 2) {
            multiply_tile<K, F, 2>(at, a, tile_tokens, n_cols, n_rows, o, out_stride);
            continue;
          }
        }
        multiply_tile<K, F, 1>(at, a, tile_tokens, n_cols, n_rows, o, out_stride);
      }
    }
  }
}

}  // namespace
}  // namespace argent::cpu::ARGENT_ISA
