// Products of more than kWideAbove rows on sm_90a, by wgmma in f16: weights are its A operand, from registers, and
// activations (product_rows.cuh) its B operand, from shared memory.
//
// A warpgroup ("team") has 64 rows of weights, 16 a warp, as planes.cuh has them for mma.m16n8k32: a lane has the same
// rows here and there, and the order of columns is that of product_rows.cuh. Quants become halves without a conversion:
// as the low bits of a half they are q 2^-24, and one fused multiply-add makes q scale + min of two of them. Scales are
// times a power of two for each row of weights, which keeps them in range; it is taken off at the end, as that of the
// rows of activations is.
//
// Units of work are 64 columns of a tile of weight rows by activation rows. CTAs, one a multiprocessor, have equal
// shares of all units in a row, so that no multiprocessor is idle at the end whatever the shape. A tile that is in
// several shares is stored by the CTA that has its first columns, which adds the others' sums, in order, from device
// memory; all CTAs begin with the tile that they have the end of, and CTAs of later shares are started first, so that
// none waits for one that cannot run. With few tiles the teams of a CTA also share a tile's columns, and, where that is
// estimated to be faster, a cluster of CTAs has one tile: equal runs of its columns, whose sums meet in shared memory.
#pragma once

#include <algorithm>
#include <array>

#include "backends/cuda/part/kernels/product_wide_tiles.cuh"

namespace argent::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// What a flag says was written before it, by all threads that its writer has met.
__device__ __forceinline__ void store_flag(uint32_t* flag, uint32_t value) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}
__device__ __forceinline__ uint32_t load_flag(const uint32_t* flag) {
  uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
  return value;
}

// acc += a chunk's product. Only the last 16 columns' is on its way when this returns; used: the barrier of the chunk
// before, where there is one and the thread arrives there; look() sees to the next one. 16 columns at a time: a warp
// waits where it starts an instruction while another of its own runs, and converts the next weights meanwhile.
template <Format F, uint32_t kWidth, uint32_t kRegisters, class Look>
__device__ __forceinline__ void multiply_chunk(float (&acc)[kRegisters], const typename HalfWeights<F>::Chunk& k,
                                               uint32_t operand, uint32_t used, const Look& look) {
  uint32_t f[4][4];
  const auto part = [&]<uint32_t kPart>() {
    HalfWeights<F>::template convert<kPart>(k, f[kPart]);
    wgmma_fence();
    wgmma<kWidth>(acc, f[kPart], operand + 2 * kPart);  // 32 bytes of b's rows
    wgmma_commit();
    wgmma_wait<1>();
  };
  part.template operator()<0>();
  if (used) barrier_arrive(used);
  part.template operator()<1>();
  look();
  part.template operator()<2>();
  part.template operator()<3>();
}

// Where a team's activations are: of the next chunk, and of all of its stages.
struct StageWalk {
  uint32_t barrier, operand, parity = 0, used = 0;
  uint32_t first_barrier, first_operand, end_barrier;
  bool arrives;        // the lane does so for its warp
  bool ready = false;  // the stage was seen to be full
  template <uint32_t kEmpty, uint32_t kStage>
  __device__ __forceinline__ void next() {
    used = arrives ? barrier + kEmpty : 0;
    barrier += 8, operand += kStage / 16;
    if (barrier == end_barrier) barrier = first_barrier, operand = first_operand, parity ^= 1;
  }
};

// Chunks [begin, end) of a step. What a lane has of the next chunk is on its way while a chunk is multiplied.
template <Format F, uint32_t kWidth, uint32_t kEmpty, uint32_t kStage, uint32_t kRegisters>
__device__ __forceinline__ void multiply_step(float (&acc)[kRegisters], const HalfWeights<F>& w, uint32_t begin,
                                              uint32_t end, StageWalk& walk) {
  const auto one = [&](const typename HalfWeights<F>::Chunk& k) {
    if (!walk.ready) barrier_wait(walk.barrier, walk.parity);
    multiply_chunk<F, kWidth>(acc, k, walk.operand, walk.used, [&] {
      walk.template next<kEmpty, kStage>();
      walk.ready = barrier_is_done(walk.barrier, walk.parity);  // its latency passes beside products
    });
  };
  typename HalfWeights<F>::Chunk k[2];
  k[0] = w.chunk(begin);
  if (kWidth <= 64 && begin == 0 && end == kStepChunks) {
#pragma unroll
    for (uint32_t c = 0; c < kStepChunks; ++c) {
      if (c + 1 < kStepChunks) k[(c + 1) % 2] = w.chunk(c + 1);
      one(k[c % 2]);
    }
    return;
  }
#pragma unroll 1
  for (uint32_t c = begin;; c += 2) {  // a chunk beyond the end is loaded and not used
    k[1] = w.chunk((c + 1) % kStepChunks);
    one(k[0]);
    if (c + 1 >= end) return;
    k[0] = w.chunk((c + 2) % kStepChunks);
    one(k[1]);
    if (c + 2 >= end) return;
  }
}
template <Format F, uint32_t kMost, uint32_t kEmpty>
__device__ __forceinline__ void multiply_step(uint32_t width, float (&acc)[kMost / 2], const HalfWeights<F>& w,
                                              uint32_t begin, uint32_t end, StageWalk& walk) {
#define ARGENT_WIDE(n) \
  case n:              \
    return multiply_step<F, n, kEmpty, kMost * 128>(acc, w, begin, end, walk)
  if constexpr (kMost <= 64) {
    switch (width) {
      ARGENT_WIDE(32);
      ARGENT_WIDE(64);
    }
  } else {
    switch (width) {
      ARGENT_WIDE(96);
      ARGENT_WIDE(112);
      ARGENT_WIDE(128);
      ARGENT_WIDE(144);
      ARGENT_WIDE(160);
      ARGENT_WIDE(176);
      ARGENT_WIDE(192);
      ARGENT_WIDE(208);
      ARGENT_WIDE(224);
      ARGENT_WIDE(240);
      ARGENT_WIDE(256);
    }
  }
#undef ARGENT_WIDE
}

#endif

template <Format F, uint32_t kTeams, uint32_t kMost>
__global__ void __launch_bounds__(128 * (kTeams + 1), 1) wide_kernel(const __grid_constant__ WideArgs args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Shape = WideShape<F, kTeams, kMost>;
  constexpr uint32_t kStages = Shape::kStages, kSteps = Shape::kSteps, kEights = kMost / 8;
  extern __shared__ uint8_t wide_memory[];
  __shared__ uint64_t barriers[2 * kStages];  // that a stage is full, then that it is empty
  uint8_t* const stages = wide_memory + (-shared_address(wide_memory) & 1023);  // swizzling is by address
  uint8_t* const weights = stages + kStages * Shape::kStage;
  float4* const exchange = reinterpret_cast<float4*>(weights + Shape::weights(kSteps));

  // The shuffle tells the compiler that a warp agrees: a launch is 1 to 2 us shorter (6 of 41 of Q6_K's down).
  const uint32_t lane = threadIdx.x % 32, warp = __shfl_sync(~0u, threadIdx.x / 32, 0), team = warp / 4;
  const uint32_t groups = args.groups, slices = args.slices;
  const uint32_t n_shares = gridDim.x, share = n_shares - 1 - blockIdx.x;
  const uint32_t of_slice = kStages / slices;  // stages
  const uint32_t full = shared_address(barriers);
  constexpr uint32_t kEmpty = 8 * kStages;  // after the barrier of the same stage
  if (threadIdx.x == 0) {
    for (uint32_t i = 0; i < kStages; ++i)
      barrier_init(full + 8 * i, 1), barrier_init(full + 8 * i + kEmpty, 4 * groups);
    barriers_are_made();
  }
  __syncthreads();

  // Registers that the copying warps do without go to the teams.
  if (team == kTeams) {
    set_registers<false, 24>();
    if (warp == 4 * kTeams && lane < slices) {  // copies activations, a lane a slice
      wait_for_previous();
      let_next_start();
      Share left(args, share);
      uint32_t stage = 0, parity = 1;
      for (Segment s; left.next(s);) {
        const Segment own = slice_of(s, lane, slices);
        const uint32_t first = args.n_columns == 1 ? 0 : s.tile % args.n_columns * (args.width / 8);
        const uint32_t bytes = min(args.width / 8, args.rows.eights - first) * kWideAtom;
        for (uint32_t c = own.begin; c < own.end; ++c) {
          const uint32_t at = lane * of_slice + stage, barrier = full + 8 * at;
          barrier_wait(barrier + kEmpty, parity);
          barrier_expect(barrier, bytes);
          bulk_copy(shared_address(stages) + at * Shape::kStage,
                    args.rows.x + (uint64_t(c) * args.rows.eights + first) * kWideAtom, bytes, barrier);
          if (++stage == of_slice) stage = 0, parity ^= 1;
        }
      }
    }
  } else {
    set_registers<true, kTeams == 2 ? 240 : 112>();
    const uint32_t group = team % groups, slice = team / groups, thread = threadIdx.x % 128;
    const auto place = [&](uint32_t tile, uint32_t& index, uint32_t& panel) {
      panel_of(args, tile, group, warp % 4, index, panel);
    };
    // A panel beyond the last is the last: its sums are not stored.
    const auto there = [&](uint32_t index, uint32_t panel) { return min(panel, last_panel(args.parts[index])); };

    uint8_t* const ring = weights + warp * kSteps * StepBytes<F>::kAll;
    Share ahead(args, share);
    Segment copied = {0, 0, 0};
    PanelCopies<F> copies = {};
    uint32_t copy_slot = 0;
    const auto copy_next = [&] {
      while (copied.begin == copied.end) {
        Segment s;
        if (!ahead.next(s)) break;
        copied = slice_of(s, slice, slices);
        uint32_t index, panel;
        place(s.tile, index, panel);
        copies.go_to(args.parts[index], there(index, panel) * args.n_chunks, lane);
      }
      if (copied.begin < copied.end) {
        const uint32_t step = copied.begin / kStepChunks * kStepChunks, end = min(copied.end, step + kStepChunks);
        copies.copy(ring + copy_slot * StepBytes<F>::kAll + lane * 16, step, copied.begin - step, end - step, lane);
        copied.begin = end;
      }
      end_copies();
      if (++copy_slot == kSteps) copy_slot = 0;
    };
#pragma unroll 1
    for (uint32_t i = 0; i + 1 < kSteps; ++i) copy_next();
    // A segment's are on their way while the one before is multiplied.
    float next_factor[2] = {};
    const auto load_factors = [&](uint32_t tile) {
      uint32_t index, panel;
      place(tile, index, panel);
      const float* from = args.factors[index] + there(index, panel) * kPanelRows + lane / 4;
      next_factor[0] = from[0], next_factor[1] = from[8];
    };
    Share left(args, share);
    if (Segment first; Share(left).next(first)) load_factors(first.tile);
    wait_for_previous();
    let_next_start();

    StageWalk walk;
    walk.first_barrier = walk.barrier = full + 8 * slice * of_slice, walk.end_barrier = walk.barrier + 8 * of_slice;
    walk.operand = swizzled_operand(shared_address(stages) + slice * of_slice * Shape::kStage);
    walk.first_operand = walk.operand;
    walk.arrives = lane == 0;
    uint32_t slot = 0;
    for (Segment s; left.next(s);) {
      uint32_t index, panel;
      place(s.tile, index, panel);
      const PartArgs& part = args.parts[index];
      const float factor[2] = {next_factor[0], next_factor[1]};
      if (Segment after; Share(left).next(after)) load_factors(after.tile);
      float acc[kMost / 2];
#pragma unroll
      for (uint32_t i = 0; i < kMost / 2; ++i) acc[i] = 0;
      const Segment own = slice_of(s, slice, slices);
      for (uint32_t c = own.begin; c < own.end;) {
        __syncwarp();  // nobody reads what is written over now
        copy_next();
        wait_for_copies<kSteps - 1>();
        __syncwarp();
        const HalfWeights<F> w(ring + slot * StepBytes<F>::kAll, factor, lane);
        if (++slot == kSteps) slot = 0;
        const uint32_t end = min(own.end, c / kStepChunks * kStepChunks + kStepChunks);
        const uint32_t step = c / kStepChunks * kStepChunks;
        multiply_step<F, kMost, kEmpty>(args.width, acc, w, c - step, end - step, walk);
        c = end;
      }
      wgmma_wait<0>();
      if (walk.used) barrier_arrive(walk.used);
      walk.used = 0;

      if (args.ranks > 1) {
        store_together<kTeams, kMost>(args, s.tile, acc, reinterpret_cast<float4*>(stages));
        return;
      }

      // Slices meet in the first, a piece at a time.
      const uint32_t eights = args.width / 8;
      constexpr uint32_t kPieces = Shape::kPieces;
      if (slices == 2) {
#pragma unroll
        for (uint32_t first = 0; first < kEights; first += kPieces) {
          if (first >= eights) break;
          float4* const at = exchange + group * kPieces * 128 + thread;
          bar_sync<1>(group, 256);  // what was there is read
          if (slice == 1) {
#pragma unroll
            for (uint32_t i = 0; i < kPieces; ++i) {
              const float* a = acc + 4 * (first + i);
              at[i * 128] = make_float4(a[0], a[1], a[2], a[3]);
            }
          }
          bar_sync<1>(group, 256);
          if (slice == 0) {
#pragma unroll
            for (uint32_t i = 0; i < kPieces; ++i) {
              const float4 more = at[i * 128];
              float* a = acc + 4 * (first + i);
              a[0] += more.x, a[1] += more.y, a[2] += more.z, a[3] += more.w;
            }
          }
        }
        if (slice == 1) continue;
      }

      // Sums of a tile that another share has the beginning of go there.
      const auto partial_at = [&](uint32_t of) {
        return args.rows.partial + (of * kTeams + group) * (kEights * 128) + thread;
      };
      if (s.begin > 0) {
        float4* const to = partial_at(share);
#pragma unroll
        for (uint32_t i = 0; i < kEights; ++i) {
          if (i % 8 == 0 && i >= eights) break;
          to[i * 128] = make_float4(acc[4 * i], acc[4 * i + 1], acc[4 * i + 2], acc[4 * i + 3]);
        }
        __syncwarp();
        if (lane == 0) store_flag(args.rows.flags + share * kShareFlags + warp, 1);
        continue;
      }
      const uint32_t tile_end = (s.tile + 1) * args.n_chunks;
      uint32_t last = share + 1;  // the first share that has nothing of the tile
      while (last < n_shares && Share::first(args, last) < tile_end) ++last;
      for (uint32_t others = share + 1; others < last; others += 32) {
        if (others + lane < last) {
          uint32_t* const flag = args.rows.flags + (others + lane) * kShareFlags + warp;
          while (load_flag(flag) == 0) {
          }
          *static_cast<volatile uint32_t*>(flag) = 0;
        }
        __syncwarp();
        // Loads are on their way together: of eight eights of columns, and of two shares where registers suffice.
        constexpr uint32_t kTogether = kMost <= 64 ? 2 : 1;
#pragma unroll 1
        for (uint32_t other = others; other < min(others + 32, last); other += kTogether) {
          const bool two = other + 1 < min(others + 32, last);
#pragma unroll
          for (uint32_t first = 0; first < kEights; first += 8) {
            if (first >= eights) break;
            float4 more[kTogether][8];
#pragma unroll
            for (uint32_t k = 0; k < kTogether; ++k)
#pragma unroll
              for (uint32_t i = 0; i < 8; ++i)
                more[k][i] = k == 0 || two ? __ldcg(partial_at(other + k) + (first + i) * 128) : float4{};
#pragma unroll
            for (uint32_t k = 0; k < kTogether; ++k)
#pragma unroll
              for (uint32_t i = 0; i < 8; ++i) {
                float* a = acc + 4 * (first + i);
                a[0] += more[k][i].x, a[1] += more[k][i].y, a[2] += more[k][i].z, a[3] += more[k][i].w;
              }
          }
        }
      }

      // Scales come off; four eights of columns at a time, here and below, so that their loads are on their way
      // together. Columns beyond the width are anything.
      const uint32_t first_row = args.n_columns == 1 ? 0 : s.tile % args.n_columns * args.width;  // of activations
      const float2* const inverse = reinterpret_cast<const float2*>(args.rows.inverse + first_row) + lane % 4;
#pragma unroll
      for (uint32_t first = 0; first < kEights; first += 4) {
        if (first >= eights) break;
        float2 by[4];
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) by[i] = inverse[4 * (first + i)];
#pragma unroll
        for (uint32_t i = 0; i < 16; ++i) {
          float& a = acc[4 * first + i];
          a = unscaled(a, factor[i / 2 % 2], i % 2 ? by[i / 4].y : by[i / 4].x);
        }
      }
      const uint32_t row = panel * kPanelRows + lane / 4, column = first_row + 2 * (lane % 4);  // of acc[0]
      const uint32_t end_column = min(args.n_rows, first_row + args.width);
      const uint32_t at_first = column * part.n_out + row;
      float bias[2] = {};
      if (part.bias && row < part.n_out) bias[0] = part.bias[row];
      if (part.bias && row + 8 < part.n_out) bias[1] = part.bias[row + 8];
      const auto store = [&](uint32_t first) {
        const auto at = [&](uint32_t i) {
          return at_first + (8 * (first + i / 4) + i % 2) * part.n_out + 8 * (i / 2 % 2);
        };
        const auto in = [&](uint32_t i) {
          return column + 8 * (first + i / 4) + i % 2 < end_column && row + 8 * (i / 2 % 2) < part.n_out;
        };
        float more[16] = {};
        if (part.residual) {
#pragma unroll
          for (uint32_t i = 0; i < 16; ++i)
            if (in(i)) more[i] = part.residual[at(i)];
        }
#pragma unroll
        for (uint32_t i = 0; i < 16; ++i)
          if (in(i)) part.y[at(i)] = __fadd_rn(__fadd_rn(acc[4 * first + i], bias[i / 2 % 2]), more[i]);
      };
      if (!args.glu) {
#pragma unroll
        for (uint32_t first = 0; first < kEights; first += 4)
          if (first < eights) store(first);
        continue;
      }
      const uint32_t half = groups / 2, pair = group % half;
      float4* const gates = exchange + pair * kPieces * 128 + thread;
#pragma unroll
      for (uint32_t first = 0; first < kEights; first += kPieces) {
        if (first >= eights) break;
        if (index == 0) {
#pragma unroll
          for (uint32_t i = 0; i < kPieces; ++i) {
            const float* a = acc + 4 * (first + i);
            gates[i * 128] = make_float4(quick_activate(a[0], args.gelu), quick_activate(a[1], args.gelu),
                                         quick_activate(a[2], args.gelu), quick_activate(a[3], args.gelu));
          }
        }
        bar_sync<5>(pair, 256);
        if (index) {
#pragma unroll
          for (uint32_t i = 0; i < kPieces; ++i) {
            const float4 gate = gates[i * 128];
            float* a = acc + 4 * (first + i);
            a[0] *= gate.x, a[1] *= gate.y, a[2] *= gate.z, a[3] *= gate.w;
          }
        }
        bar_sync<5>(pair, 256);
        if (index) {
#pragma unroll
          for (uint32_t i = 0; i < kPieces; i += 4)
            if (first + i < eights) store(first + i);
        }
      }
    }
  }
#endif
}

inline constexpr uint32_t kMostRanks = 8;

// Clusters of so many CTAs that run at once.
template <Format F, uint32_t kTeams, uint32_t kMost>
uint32_t clusters_of(uint32_t ranks) {
  static const std::array<uint32_t, kMostRanks + 1> all = [] {
    std::array<uint32_t, kMostRanks + 1> of = {};
    for (uint32_t n = 2; n <= kMostRanks; ++n) {
      cudaLaunchAttribute cluster = {};
      cluster.id = cudaLaunchAttributeClusterDimension, cluster.val.clusterDim = {n, 1, 1};
      cudaLaunchConfig_t config = {};
      config.gridDim = dim3(n * kMostShares), config.blockDim = dim3(128 * (kTeams + 1));
      config.dynamicSmemBytes = WideShape<F, kTeams, kMost>::kShared, config.attrs = &cluster, config.numAttrs = 1;
      int clusters = 0;
      const cudaError_t error = cudaOccupancyMaxActiveClusters(
          &clusters, reinterpret_cast<const void*>(wide_kernel<F, kTeams, kMost>), &config);
      if (error == cudaSuccess)
        of[n] = uint32_t(clusters);
      else
        cudaGetLastError();
    }
    return of;
  }();
  return all[ranks];
}

template <Format F, uint32_t kTeams, uint32_t kMost>
void start_wide(Launch& launch, WideArgs& args, uint32_t groups, uint32_t slices) {
  const void* const kernel = reinterpret_cast<const void*>(wide_kernel<F, kTeams, kMost>);
  constexpr uint32_t kShared = WideShape<F, kTeams, kMost>::kShared;
  launch.note(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(kShared)), "products");
  int device = 0, n_multiprocessors = 1;
  launch.note(cudaGetDevice(&device), "products");
  launch.note(cudaDeviceGetAttribute(&n_multiprocessors, cudaDevAttrMultiProcessorCount, device), "products");
  args.groups = groups, args.slices = slices;
  const uint32_t panels = 4 * groups / (args.glu ? 2 : 1);
  uint32_t tiles = 0;
  for (uint32_t i = 0; i < (args.glu ? 1 : args.n_parts); ++i)
    args.ends[i] = tiles += ((args.parts[i].n_out + kPanelRows - 1) / kPanelRows + panels - 1) / panels;
  tiles *= args.n_columns;
  const uint32_t n_units = tiles * args.n_chunks;
  // Less than a few units are not worth a CTA.
  const uint32_t most = (n_units + 4 * slices - 1) / (4 * slices);
  const uint32_t grid = std::min({uint32_t(n_multiprocessors), kMostShares, most});
  // Cycles of a unit and of the end of a tile, as measured on the H200; between shares it is longer than in a cluster.
  // A function of the kernel alone, not of the rows: it decides the order of sums. Of several tiles of 256 activation
  // rows clusters were slower (o of the 7B, 512 rows: 37 us and not 32).
  constexpr uint32_t kEnd = 36 * kMost, kApart = kEnd + (kMost <= 64 ? 7000 : 2000 + 28 * kMost);
  const uint32_t unit = kMost <= 64 ? groups * (130 + 2 * kMost) : 200 + 4 * kMost;
  uint64_t least = uint64_t(n_units) * unit / grid + kApart;
  args.ranks = 1;
  for (uint32_t ranks = 2; args.n_columns == 1 && ranks <= kMostRanks; ++ranks) {
    const uint32_t chunks = (args.n_chunks + ranks - 1) / ranks;
    const uint64_t cycles = uint64_t(chunks) * unit + kEnd / ranks;
    if (chunks < 2 * slices || cycles >= least || tiles > clusters_of<F, kTeams, kMost>(ranks)) continue;
    args.ranks = ranks, least = cycles;
  }
  args.each = n_units / grid, args.rest = n_units % grid;
  start_clusters(launch, "products", wide_kernel<F, kTeams, kMost>, args.ranks,
                 dim3(args.ranks == 1 ? grid : tiles * args.ranks), dim3(128 * (kTeams + 1)), kShared, args);
}

// All rows of a product, where wide(); instantiated in product_wide_*.cu.
template <Format F>
void product_wide(Launch& launch, const ProductArgs& from) {
  WideArgs args = {};
  const Planes planes[3] = {planes_of(plane_shape<F>(), from.parts[0].n_out, from.n_in),
                            planes_of(plane_shape<F>(), from.parts[1].n_out, from.n_in),
                            planes_of(plane_shape<F>(), from.parts[2].n_out, from.n_in)};
  uint32_t n_out = 0;
  for (uint32_t i = 0; i < from.n_parts; ++i) {
    args.parts[i] = from.parts[i];
    args.factors[i] = reinterpret_cast<const float*>(from.parts[i].p8 + planes[i].factors);
    n_out += from.parts[i].n_out;
  }
  args.n_parts = from.n_parts, args.n_chunks = from.n_chunks, args.n_rows = from.n_rows;
  args.glu = from.glu, args.gelu = from.gelu;
  args.rows = WideRows(const_cast<uint8_t*>(from.q), from.n_rows, from.n_in);
  if (from.n_rows <= 64) {
    args.n_columns = 1, args.width = from.n_rows <= 32 ? 32 : 64;
    // Few tiles would each be in the shares of many CTAs.
    if (n_out < 8192) return start_wide<F, 4, 64>(launch, args, 2, 2);
    return start_wide<F, 4, 64>(launch, args, 4, 1);
  }
  args.n_columns = (from.n_rows + 255) / 256;
  args.width = std::max(96u, (from.n_rows + args.n_columns * 16 - 1) / (args.n_columns * 16) * 16);
  start_wide<F, 2, 256>(launch, args, 2, 1);
}

}  // namespace argent::cuda
