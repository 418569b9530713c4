// Which part of a product a CTA of product_wide.cuh has, and the end of a tile that a cluster of CTAs has.
#pragma once

#include "backends/cuda/part/kernels/product_halves.cuh"
#include "backends/cuda/part/kernels/product_rows.cuh"
#include "backends/cuda/part/kernels/wgmma.cuh"

namespace argent::cuda {

struct WideArgs {
  PartArgs parts[3];
  const float* factors[3];  // of the parts, by row
  uint32_t ends[3];         // tiles of weight rows of the parts up to this one
  uint32_t n_parts, n_chunks, n_rows;
  uint32_t n_columns, width;  // tiles of activation rows, and rows of one
  uint32_t groups, slices;    // teams: groups of 64 weight rows by slices of columns
  uint32_t ranks;             // CTAs of a cluster that share the columns of one tile; 1: shares are of all units
  uint32_t each, rest;        // units of a share; so many shares have one more
  WideRows rows{nullptr, 0, 0};
  bool glu, gelu;  // parts 0 and 1 are gate and up of one y: half of the groups each
};

// Runs of 64 columns of one tile.
struct Segment {
  uint32_t tile, begin, end;
};
// What is left of a share of the units.
struct Share {
  uint32_t unit, end, n_chunks;
  __device__ __forceinline__ Share(const WideArgs& args, uint32_t share) : n_chunks(args.n_chunks) {
    if (args.ranks == 1) {
      unit = first(args, share), end = first(args, share + 1);
    } else {
      const uint32_t rank = blockIdx.x % args.ranks, tile = blockIdx.x / args.ranks * n_chunks;
      unit = tile + n_chunks * rank / args.ranks, end = tile + n_chunks * (rank + 1) / args.ranks;
    }
  }
  static __device__ __forceinline__ uint32_t first(const WideArgs& args, uint32_t share) {
    return share * args.each + min(share, args.rest);
  }
  __device__ __forceinline__ bool next(Segment& s) {
    if (unit >= end) return false;
    s.tile = unit / n_chunks, s.begin = unit - s.tile * n_chunks, s.end = min(n_chunks, s.begin + end - unit);
    unit += s.end - s.begin;
    return true;
  }
};
// A slice's columns of a segment: there are one or two.
__device__ __forceinline__ Segment slice_of(const Segment& s, uint32_t slice, uint32_t slices) {
  const uint32_t n = s.end - s.begin;
  if (slices == 1) return s;
  return {s.tile, s.begin + (slice ? n / 2 : 0), slice ? s.end : s.begin + n / 2};
}

// The sizes of a kernel of kTeams teams and up to kMost rows of activations.
template <Format F, uint32_t kTeams, uint32_t kMost>
struct WideShape {
  static constexpr uint32_t kWarps = 4 * kTeams, kStage = kMost * 128, kRoom = 227 * 1024 - 2048;
  static constexpr uint32_t kPieces = 8;                              // eights of columns that teams exchange at a time
  static constexpr uint32_t kExchange = kTeams / 2 * kPieces * 2048;  // bytes: 16 a thread and eight columns
  static constexpr __host__ __device__ uint32_t weights(uint32_t steps) { return kWarps * steps * StepBytes<F>::kAll; }
  static constexpr uint32_t kSteps = weights(3) + (kMost <= 64 ? 6 : 4) * kStage + kExchange <= kRoom ? 3 : 2;
  static constexpr uint32_t kFit = (kRoom - kExchange - weights(kSteps)) / kStage;
  static constexpr uint32_t kMostStages = kMost <= 64 ? 8 : 4;
  static constexpr uint32_t kStages = kFit > kMostStages ? kMostStages : kFit / 2 * 2;
  static constexpr uint32_t kShared = 1024 + kStages * kStage + weights(kSteps) + kExchange;
  static_assert(kStages >= 2);
  static_assert(kShared - 1024 >= kTeams * 64 * kMost * 4);  // where the CTAs of a cluster leave their sums
};

// Where 16 rows of a group of a tile are.
__device__ __forceinline__ void panel_of(const WideArgs& args, uint32_t tile, uint32_t group, uint32_t of_group,
                                         uint32_t& index, uint32_t& panel) {
  uint32_t row_tile = args.n_columns == 1 ? tile : tile / args.n_columns;
  const uint32_t half = args.groups / 2;
  if (args.glu) {
    index = group >= half, panel = 4 * (row_tile * half + group - index * half) + of_group;
  } else {
    index = 0;
    while (index + 1 < args.n_parts && row_tile >= args.ends[index]) ++index;
    if (index) row_tile -= args.ends[index - 1];
    panel = 4 * (row_tile * args.groups + group) + of_group;
  }
}
__device__ __forceinline__ uint32_t last_panel(const PartArgs& part) {
  return (part.n_out + kPanelRows - 1) / kPanelRows - 1;
}

// What the scales of weights and activations were multiplied with comes off.
__device__ __forceinline__ float unscaled(float sum, float factor, float inverse) {
  const float up = __int_as_float((254 << 23) - __float_as_int(factor));  // 1 / the power of two
  return __fmul_rn(__fmul_rn(__fmul_rn(sum, 0x1p24f), up), inverse);
}

// As activate(), within a few units of the last place: products of f16 are off by more.
__device__ __forceinline__ float quick_activate(float x, bool is_gelu) {
  const float of = is_gelu ? x * (x * x * 0.044715f + 1.0f) * 1.5957691216f : x;
  return __fdividef(x, 1.0f + __expf(-of));
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// The end of a tile whose columns a cluster has shared: all sums to shared memory, and each CTA adds up and stores an
// equal part of the tile: a warp 16 weight rows by 8 activation rows at a time. By way of device memory, as between
// shares, this is 5 us longer.
template <uint32_t kTeams, uint32_t kMost>
__device__ __forceinline__ void store_together(const WideArgs& args, uint32_t tile, const float (&acc)[kMost / 2],
                                               float4* sums) {
  constexpr uint32_t kWarps = 4 * kTeams, kEight = 128 * kTeams;  // threads; of eight columns
  // So many parts of the tile, and sums of each, are on their way at once.
  constexpr uint32_t kAtOnce = kMost <= 64 ? 1 : 4, kRanks = kMost <= 64 ? 4 : 2, kSlices = kMost <= 64 ? 2 : 1;
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, eights = args.width / 8;
  const uint32_t ranks = args.ranks, rank = blockIdx.x % ranks;
  bar_sync<9>(0, kEight);  // nobody multiplies with what lies there
#pragma unroll
  for (uint32_t i = 0; i < kMost / 8; ++i) {
    if (i % 4 == 0 && i >= eights) break;
    sums[i * kEight + threadIdx.x] = make_float4(acc[4 * i], acc[4 * i + 1], acc[4 * i + 2], acc[4 * i + 3]);
  }
  cluster_arrive(), cluster_wait();

  const uint32_t panels = (args.glu ? 2 : 4) * args.groups, n_parts = panels * eights, stride = ranks * kWarps;
  const uint32_t first_row = args.n_columns == 1 ? 0 : tile % args.n_columns * args.width;  // of activations
  const uint32_t end_column = min(args.n_rows, first_row + args.width);
  for (uint32_t first = rank * kWarps + warp; first < n_parts; first += kAtOnce * stride) {
    float sum[2][kAtOnce][4] = {};  // of gates too
    const auto add_up = [&](float(&to)[kAtOnce][4], uint32_t group_offset) {
      for (uint32_t r = 0; r < ranks; r += kRanks) {
        float4 more[kRanks][kSlices][kAtOnce];
#pragma unroll
        for (uint32_t k = 0; k < kRanks; ++k)
#pragma unroll
          for (uint32_t slice = 0; slice < kSlices; ++slice)
#pragma unroll
            for (uint32_t i = 0; i < kAtOnce; ++i) {
              const uint32_t part = first + i * stride, p = part % panels, group = p / 4 + group_offset;
              const uint32_t thread = (slice * args.groups + group) * 128 + p % 4 * 32 + lane;
              more[k][slice][i] = make_float4(0, 0, 0, 0);
              if (part < n_parts && r + k < ranks && slice < args.slices)
                more[k][slice][i] = load_of_rank(sums + part / panels * kEight + thread, r + k);
            }
#pragma unroll
        for (uint32_t k = 0; k < kRanks; ++k)
#pragma unroll
          for (uint32_t slice = 0; slice < kSlices; ++slice)
#pragma unroll
            for (uint32_t i = 0; i < kAtOnce; ++i) {
              const float4& m = more[k][slice][i];
              to[i][0] += m.x, to[i][1] += m.y, to[i][2] += m.z, to[i][3] += m.w;
            }
      }
    };
    float by[kAtOnce][2], factor[2][kAtOnce][2], bias[kAtOnce][2] = {}, residual[kAtOnce][4] = {};
    uint32_t row[kAtOnce] = {}, column[kAtOnce] = {}, index[kAtOnce] = {};
    const auto in = [&](uint32_t i, uint32_t e) {
      return first + i * stride < n_parts && column[i] + e % 2 < end_column &&
             row[i] + e / 2 * 8 < args.parts[index[i]].n_out;
    };
    const auto at = [&](uint32_t i, uint32_t e) {
      return (column[i] + e % 2) * args.parts[index[i]].n_out + row[i] + e / 2 * 8;
    };
#pragma unroll
    for (uint32_t i = 0; i < kAtOnce; ++i) {
      const uint32_t part = min(first + i * stride, n_parts - 1), p = part % panels;
      uint32_t panel;
      panel_of(args, tile, p / 4, p % 4, index[i], panel);
      row[i] = panel * kPanelRows + lane / 4, column[i] = first_row + part / panels * 8 + 2 * (lane % 4);
      const auto load_factor = [&](float(&to)[2], uint32_t of) {
        const float* from = args.factors[of] + min(panel, last_panel(args.parts[of])) * kPanelRows + lane / 4;
        to[0] = from[0], to[1] = from[8];
      };
      load_factor(factor[0][i], index[i]);
      if (args.glu) load_factor(factor[1][i], 1);
      const float2 both = *reinterpret_cast<const float2*>(args.rows.inverse + column[i]);
      by[i][0] = both.x, by[i][1] = both.y;
      const PartArgs& to = args.parts[index[i]];
#pragma unroll
      for (uint32_t e = 0; e < 4; ++e) {
        if (to.bias && row[i] + e / 2 * 8 < to.n_out) bias[i][e / 2] = to.bias[row[i] + e / 2 * 8];
        if (to.residual && in(i, e)) residual[i][e] = to.residual[at(i, e)];
      }
    }
    add_up(sum[0], 0);
    if (args.glu) add_up(sum[1], args.groups / 2);
#pragma unroll
    for (uint32_t i = 0; i < kAtOnce; ++i)
#pragma unroll
      for (uint32_t e = 0; e < 4; ++e) {
        float y = unscaled(sum[0][i][e], factor[0][i][e / 2], by[i][e % 2]);
        if (args.glu)
          y = quick_activate(y, args.gelu) * unscaled(sum[1][i][e], factor[1][i][e / 2], by[i][e % 2]);
        else
          y = __fadd_rn(__fadd_rn(y, bias[i][e / 2]), residual[i][e]);
        if (in(i, e)) args.parts[index[i]].y[at(i, e)] = y;
      }
  }
  cluster_arrive(), cluster_wait();  // others read here
}

#endif

}  // namespace argent::cuda
