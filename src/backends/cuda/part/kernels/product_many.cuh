// Products of more than 16 rows where there is no wgmma (product_wide.cuh), 64 at a time: the same integers as in
// product.cuh, but a warp has one sum for each of its 16 x 64 results, and activations are copied to shared memory once
// for all warps that want them.
//
// A CTA has kTiles tiles of 16 weight rows, and its 8 warps are kTiles times 8 / kTiles runs of columns ("slices"): the
// warps of a slice share its activations, each has its own weights. With glu half of the tiles are gate's, the other
// half the same rows of up.
#pragma once

#include "backends/cuda/part/kernels/product_few.cuh"

namespace argent::cuda {

// product_wide.cuh
template <Format F>
void product_wide(Launch& launch, const ProductArgs& args);

static_assert(kWideAbove == kSameSums);

inline constexpr uint32_t kManyRows = 64, kManyWarps = 8;

// Of a record of Q8 what is wanted: without the sums of halves where no scale is by 16 columns with a min.
template <Format F>
inline constexpr uint32_t kSlabRecord = plane_shape<F>().group == 16 && plane_shape<F>().min ? kQ8Record : 320;
// Activations of half a step, so that two CTAs fit a multiprocessor: [eight rows][group].
inline constexpr uint32_t kSlabGroups = kStepGroups / 2;
template <Format F>
inline constexpr uint32_t kSlabBytes = kManyRows / 8 * kSlabGroups* kSlabRecord<F>;

template <Format F, uint32_t kTiles>
constexpr uint32_t many_shared() {
  constexpr uint32_t kSlices = kManyWarps / kTiles;
  constexpr uint32_t kSteps = 2 * (kSlices * kSlabBytes<F> + kManyWarps * StepBytes<F>::kAll);
  constexpr uint32_t kSums = kSlices * kTiles * kPanelRows * kManyRows * sizeof(float);
  return kSteps > kSums ? kSteps : kSums;
}

template <Format F, uint32_t kTiles>
__global__ void __launch_bounds__(32 * kManyWarps) many_kernel(const __grid_constant__ ProductArgs args) {
  constexpr PlaneShape s = plane_shape<F>();
  constexpr uint32_t kSlices = kManyWarps / kTiles, kEights = kManyRows / 8;
  constexpr uint32_t kRows = kTiles * kPanelRows;  // of weights, of the CTA
  extern __shared__ __align__(16) uint8_t many_memory[];
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, slice = warp / kTiles, own = warp % kTiles;

  // Which tile: CTAs go through the parts one after the other.
  uint32_t index = 0, first_tile = blockIdx.x * (args.glu ? kTiles / 2 : kTiles);
  if (!args.glu) {
    uint32_t cta = blockIdx.x;
    for (; index + 1 < args.n_parts; ++index) {
      const uint32_t ctas = (args.parts[index].n_out + kRows - 1) / kRows;
      if (cta < ctas) break;
      cta -= ctas;
    }
    first_tile = cta * kTiles;
  } else {
    index = own / (kTiles / 2);
  }
  const PartArgs& part = args.parts[index];
  const uint32_t n_tiles = (part.n_out + kPanelRows - 1) / kPanelRows;
  // A tile beyond the last is the last: its sums are not stored.
  const uint32_t tile = min(first_tile + (args.glu ? own % (kTiles / 2) : own), n_tiles - 1);
  const uint32_t n_steps = (args.n_chunks + kStepChunks - 1) / kStepChunks;
  const uint32_t begin = n_steps * slice / kSlices, end = n_steps * (slice + 1) / kSlices;
  const uint32_t n_groups = args.n_in / 32, eights = (args.some + 7) / 8;
  const uint64_t eight = uint64_t(n_groups) * kQ8Record;
  const uint8_t* records = args.q + args.first_row / 8 * eight;
  uint8_t* weights = many_memory + warp * 2 * StepBytes<F>::kAll;
  uint8_t* slab = many_memory + kManyWarps * 2 * StepBytes<F>::kAll + slice * 2 * kSlabBytes<F>;

  const auto copy_weights = [&](uint32_t step) {
    copy_step<F>(weights + step % 2 * StepBytes<F>::kAll, part, tile * args.n_chunks + step * kStepChunks,
                 args.n_chunks - step * kStepChunks, lane);
  };
  const auto copy_slab = [&](uint32_t half) {
    constexpr uint32_t kPieces = kSlabRecord<F> / 16;
    const uint32_t first = half * kSlabGroups;
    for (uint32_t i = own * 32 + lane; i < eights * kSlabGroups * kPieces; i += kTiles * 32) {
      const uint32_t piece = i % kPieces, record = i / kPieces, group = first + record % kSlabGroups;
      if (group < n_groups)
        copy_16(slab + half % 2 * kSlabBytes<F> + i * 16,
                records + record / kSlabGroups * eight + group * kQ8Record + piece * 16);
    }
  };
  const auto meet = [&] { bar_sync<1>(slice, kTiles * 32); };  // the warps of a slice

  const int zero[4] = {kFloatBits, kFloatBits, kFloatBits, kFloatBits};
  float acc[kEights][4] = {};
  const auto multiply = [&]<uint32_t kHalf>(uint32_t step) {
    constexpr PlaneShape s = plane_shape<F>();
    constexpr uint32_t kSides = s.group == 16 ? 2 : 1;
    const StepWeights<F, false> w(weights + step % 2 * StepBytes<F>::kAll, lane);
    const uint8_t* x = slab + kHalf * kSlabBytes<F>;
    const uint32_t there = n_groups - min(n_groups, step * kStepGroups + kHalf * kSlabGroups);
    uint32_t both[2][4];
#pragma unroll
    for (uint32_t i = 0; i < kSlabGroups; ++i) {
      if (!by_256(s.scales) && i >= there) break;
      const uint32_t k = kHalf * kSlabGroups + i;  // of the step
      if (i % 2 == 0) w.operands(k / 2, both);
      const uint32_t(&a)[4] = both[i % 2];
      ScaleMin of[kSides][2];
#pragma unroll
      for (uint32_t side = 0; side < kSides; ++side)
#pragma unroll
        for (uint32_t upper = 0; upper < 2; ++upper) of[side][upper] = w.scale(k, side, upper);
#pragma unroll
      for (uint32_t n = 0; n < kEights; ++n) {
        if (n && n >= eights) break;
        const uint8_t* record = x + (n * kSlabGroups + i) * kSlabRecord<F>;
        const uint2 b = reinterpret_cast<const uint2*>(record)[lane];
        const float* scales = reinterpret_cast<const float*>(record + 256);
        const float2 scale = reinterpret_cast<const float2*>(scales)[lane % 4];
        [[maybe_unused]] float2 sums[kSides];
        if constexpr (s.min && kSides == 1) sums[0] = reinterpret_cast<const float2*>(scales + 8)[lane % 4];
        if constexpr (s.min && kSides == 2) {
          const float4 all = reinterpret_cast<const float4*>(scales + 16)[lane % 4];
          sums[0] = make_float2(all.x, all.z), sums[1] = make_float2(all.y, all.w);
        }
#pragma unroll
        for (uint32_t side = 0; side < kSides; ++side) {
          int d[4];
          if constexpr (kSides == 1)
            mma_32<s.min>(d, a, b, zero);
          else
            mma_16<s.min>(d, a[2 * side], a[2 * side + 1], side ? b.y : b.x, zero);
#pragma unroll
          for (uint32_t e = 0; e < 4; ++e) {
            const ScaleMin& r = of[side][e / 2];
            acc[n][e] = __fmaf_rn(as_sum(d[e]), __fmul_rn(r.scale, e % 2 ? scale.y : scale.x), acc[n][e]);
            if constexpr (s.min) acc[n][e] = __fmaf_rn(r.min, e % 2 ? sums[side].y : sums[side].x, acc[n][e]);
          }
        }
      }
    }
  };
  if (begin < end) copy_weights(begin);
  wait_for_previous();
  let_next_start();
  if (begin < end) copy_slab(2 * begin);
  end_copies();
  for (uint32_t half = 2 * begin; half < 2 * end; ++half) {
    if (half + 1 < 2 * end) copy_slab(half + 1);
    if (half % 2 && half + 1 < 2 * end) copy_weights(half / 2 + 1);
    end_copies();
    wait_for_copies<1>();
    meet();
    if (half % 2 == 0)
      multiply.template operator()<0>(half / 2);
    else
      multiply.template operator()<1>(half / 2);
    meet();
  }

  // The slices' sums meet in their order: [slice][column][row].
  wait_for_copies<0>();
  __syncthreads();
  float* shared = reinterpret_cast<float*>(many_memory);
#pragma unroll
  for (uint32_t n = 0; n < kEights; ++n) {
    float* to = shared + (slice * kManyRows + 8 * n + 2 * (lane % 4)) * kRows + own * kPanelRows + lane / 4;
    to[0] = acc[n][0], to[kRows] = acc[n][1], to[8] = acc[n][2], to[kRows + 8] = acc[n][3];
  }
  __syncthreads();
  const auto sum_at = [&](uint32_t column, uint32_t row) {
    float sum = shared[column * kRows + row];
#pragma unroll
    for (uint32_t other = 1; other < kSlices; ++other)
      sum = __fadd_rn(sum, shared[(other * kManyRows + column) * kRows + row]);
    return s.shift > 0 ? __fmul_rn(sum, 1.0f / float(1 << s.shift)) : sum;
  };
  const PartArgs& out = args.parts[args.glu ? 0 : index];
  const uint32_t rows = args.glu ? kRows / 2 : kRows;
  for (uint32_t i = threadIdx.x; i < args.some * rows; i += 32 * kManyWarps) {
    const uint32_t r = i % rows, column = i / rows, row = first_tile * kPanelRows + r;
    if (row >= out.n_out) continue;
    const uint64_t to = uint64_t(args.first_row + column) * out.n_out + row;
    float sum = sum_at(column, r);
    if (args.glu) {
      sum = activate(sum, args.gelu) * sum_at(column, r + rows);
    } else {
      if (out.bias) sum = __fadd_rn(sum, out.bias[row]);
      if (out.residual) sum = __fadd_rn(sum, out.residual[to]);
    }
    out.y[to] = sum;
  }
}

template <Format F, uint32_t kTiles>
void start_many(Launch& launch, const ProductArgs& args) {
  constexpr uint32_t kShared = many_shared<F, kTiles>();
  launch.note(cudaFuncSetAttribute(reinterpret_cast<const void*>(many_kernel<F, kTiles>),
                                   cudaFuncAttributeMaxDynamicSharedMemorySize, int(kShared)),
              "products");
  uint32_t grid = 0;
  for (uint32_t i = 0; i < (args.glu ? 1 : args.n_parts); ++i) {
    const uint32_t rows = kTiles * kPanelRows / (args.glu ? 2 : 1);
    grid += (args.parts[i].n_out + rows - 1) / rows;
  }
  start(launch, "products", many_kernel<F, kTiles>, dim3(grid), dim3(32 * kManyWarps), kShared, args);
}

// Up to 64 rows. Narrow matrices have too few tiles for all multiprocessors: fewer a CTA, more slices.
template <Format F>
void product_many(Launch& launch, const ProductArgs& args) {
  constexpr bool kFits = many_shared<F, 2>() <= 227 * 1024;
  if constexpr (kFits) {
    if (args.parts[0].n_out < 8192) return start_many<F, 2>(launch, args);
  }
  start_many<F, 4>(launch, args);
}

// Launches of at most 64 rows; instantiated in product_*.cu.
template <Format F>
void product_of(Launch& launch, ProductArgs args) {
  if (wide(launch, args.n_rows)) return product_wide<F>(launch, args);
  for (args.first_row = 0; args.first_row < args.n_rows; args.first_row += args.some) {
    args.some = min(kManyRows, args.n_rows - args.first_row);
    if (args.some == 1)
      start_product<F, 1>(launch, args);
    else if (args.some <= 4)
      start_few<F, 4>(launch, args);
    else if (args.some <= 8)
      start_few<F, 8>(launch, args);
    else if (args.n_rows <= kSameSums)
      start_few<F, 16>(launch, args);
    else
      product_many<F>(launch, args);
  }
}

}  // namespace argent::cuda
