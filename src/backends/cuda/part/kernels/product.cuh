// Products of quantized weights and rows of int8 activations, by int8 tensor cores (mma.m16n8k32, PTX ISA), of up to 16
// rows where there is wgmma: the dot of a group is an exact integer, so one row, eight neighbours or a draft give the
// same bits, and up to 16 rows the sums of floats are in one order that depends on the matrix alone: a warp has a sum
// of the groups 0, 1, 8, 9, 16, ... of its columns, one of 2, 3, 10, ..., and so on, four in all, added up as a tree.
//
// With fewer than eight rows the eight columns of the B operand are rows times groups: of each product of 32 columns
// only the columns of its own group are looked at, the lanes keep those of different groups, and scales are decoded and
// multiplied once a group, by one lane.
//
// A CTA has a tile of 16 weight rows at a time and its warps share the columns, each a run of steps. A warp has a ring
// of steps in shared memory and copies ahead of what it computes with, also where the next step is of another tile, and
// the first ones before it waits for the kernel that makes the activations. Partial sums go to shared memory, from
// where one more warp adds them up in the order of the warps while the others are at the next tile.
#pragma once

#include "backends/cuda/part/kernels/activation.cuh"
#include "backends/cuda/part/kernels/launch.cuh"
#include "backends/cuda/part/kernels/own_row.cuh"
#include "backends/cuda/part/kernels/planes.cuh"

namespace argent::cuda {

struct PartArgs {
  const uint8_t *p8, *p4, *p2, *p1, *scales;  // planes.cuh; float formats: p8 has all
  uint32_t n_out, tiles_end;                  // tiles of the parts up to this one
  float* y;
  const float *bias, *residual;
  float* squares;  // ProductPart
};
struct ProductArgs {
  PartArgs parts[3];
  uint32_t n_parts, n_in, n_chunks;
  uint32_t n_rows, first_row, some;  // of q and y; this launch has rows [first_row, first_row + some)
  const uint8_t* q;
  OwnRow own;
  bool glu, gelu;  // parts 0 and 1 are gate and up of one y
  // Everything that is read is there before the launch in front began, and that one waited for what was before it: this
  // one waits at its end only, so that the two run beside each other.
  bool waits_last;
  bool alone;  // none runs beside this one: the next launch may be started before what this one waits for is done
};

static_assert(kPanelRows == kNormPiece, "a tile has the sum of a piece");
inline constexpr uint32_t kStepChunks = kStepColumns / kChunk, kStepGroups = 2 * kStepChunks;

// How a step's weights lie in shared memory: those of each plane as in memory, one after the other.
template <Format F>
struct StepBytes {
  static constexpr PlaneShape s = plane_shape<F>();
  static constexpr uint32_t kP8 = s.p8 ? 1024 : 0, kP4 = s.p4 ? 512 : 0, kP2 = s.p2 ? 256 : 0, kP1 = s.p1 ? 128 : 0;
  static constexpr uint32_t kScales = by_256(s.scales) ? scale_bytes(s.scales) / kStepChunks : scale_bytes(s.scales);
  static constexpr uint32_t kFirstP4 = kStepChunks * kP8, kFirstP2 = kFirstP4 + kStepChunks * kP4;
  static constexpr uint32_t kFirstP1 = kFirstP2 + kStepChunks * kP2, kFirstScales = kFirstP1 + kStepChunks * kP1;
  static constexpr uint32_t kAll = kFirstScales + kStepChunks * kScales;
  static_assert(kStepChunks * kScales % 16 == 0 && kAll % 16 == 0, "copied 16 bytes at a time");
  // Of a step's place in a ring: whole lines, which copies want (64 bytes off: 41 us instead of 34 for 144 MB of Q8_0).
  static constexpr uint32_t kPlace = (kAll + 127) / 128 * 128;
};

__device__ __forceinline__ void copy_16(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(uint32_t(__cvta_generic_to_shared(to))), "l"(from));
}
__device__ __forceinline__ void end_copies() { asm volatile("cp.async.commit_group;"); }
template <uint32_t kLeft>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

// Has a warp copy a step's weights: `chunks` of them from chunk `unit` of the matrix on.
template <Format F>
__device__ __forceinline__ void copy_step(uint8_t* to, const PartArgs& part, uint32_t unit, uint32_t chunks,
                                          uint32_t lane) {
  using B = StepBytes<F>;
  const auto copy = [&]<uint32_t kBytes>(uint32_t first, const uint8_t* plane) {  // kBytes: of a chunk
    if constexpr (kBytes > 0) {
      const uint8_t* from = plane + uint64_t(unit) * kBytes + lane * 16;
#pragma unroll
      for (uint32_t i = 0; i < kStepChunks * kBytes; i += 512) {
        const uint32_t at = i + lane * 16;
        if ((kStepChunks * kBytes % 512 == 0 || at < kStepChunks * kBytes) &&
            (by_256(B::s.scales) || at < chunks * kBytes))
          copy_16(to + first + lane * 16 + i, from + i);
      }
    }
  };
  copy.template operator()<B::kP8>(0, part.p8);
  copy.template operator()<B::kP4>(B::kFirstP4, part.p4);
  copy.template operator()<B::kP2>(B::kFirstP2, part.p2);
  copy.template operator()<B::kP1>(B::kFirstP1, part.p1);
  copy.template operator()<B::kScales>(B::kFirstScales, part.scales);
}

// A step's weights in shared memory. kOne: of scales by 64 columns a lane has only those of chunk lane % 4.
template <Format F, bool kOne>
struct StepWeights {
  using B = StepBytes<F>;
  static constexpr PlaneShape s = plane_shape<F>();
  const uint8_t* at;
  uint32_t lane;
  SuperScales<s.scales> super[by_256(s.scales) ? 2 : 1];
  ChunkScales<s.scales> chunk[by_256(s.scales) ? 1 : kOne ? 1 : kStepChunks];

  __device__ __forceinline__ StepWeights(const uint8_t* step, uint32_t of_lane) : at(step), lane(of_lane) {
    const uint8_t* scales = at + B::kFirstScales;
    if constexpr (by_256(s.scales)) {
      super[0].load(scales, lane / 4), super[1].load(scales, lane / 4 + 8);
    } else if constexpr (kOne) {
      chunk[0].load(scales + lane % 4 * B::kScales, lane / 4);
    } else {
#pragma unroll
      for (uint32_t c = 0; c < kStepChunks; ++c) chunk[c].load(scales + c * B::kScales, lane / 4);
    }
  }

  // The A operands of a chunk's groups: words a0 to a3 of each.
  __device__ __forceinline__ void operands(uint32_t c, uint32_t (&a)[2][4]) const {
    if constexpr (s.p8) {
#pragma unroll
      for (uint32_t group = 0; group < 2; ++group) {
        const uint4 all = reinterpret_cast<const uint4*>(at + c * B::kP8)[32 * group + lane];
        a[group][0] = all.x, a[group][1] = all.y, a[group][2] = all.z, a[group][3] = all.w;
      }
    } else {
      uint4 low = {};
      uint2 two = {};
      uint32_t one = 0;
      if constexpr (s.p4) low = reinterpret_cast<const uint4*>(at + B::kFirstP4 + c * B::kP4)[lane];
      if constexpr (s.p2) two = reinterpret_cast<const uint2*>(at + B::kFirstP2 + c * B::kP2)[lane];
      if constexpr (s.p1) one = reinterpret_cast<const uint32_t*>(at + B::kFirstP1 + c * B::kP1)[lane];
#pragma unroll
      for (uint32_t i = 0; i < 8; ++i) {
        const uint32_t group = i / 4;
        const uint32_t word = group ? (i % 2 ? low.w : low.z) : (i % 2 ? low.y : low.x);
        a[group][i % 4] = levels<F>(i % 4 / 2 ? word >> 4 : word, (group ? two.y : two.x) >> 2 * (i % 4), one >> i);
      }
    }
  }
  // Of group k of the step and row lane / 4 + 8 * upper; kOne: k is 2 (lane % 4) or the next.
  __device__ __forceinline__ ScaleMin scale(uint32_t k, uint32_t side, uint32_t upper) const {
    if constexpr (by_256(s.scales))
      return super[upper].at(k, side);
    else
      return chunk[kOne ? 0 : k / 2].at(k % 2, upper);
  }
};

// Sums start at 1.5 * 2^23 as a float's bits, so that the integer result is a float but for that constant, which is
// cheaper to take off than a conversion; dots are below 2^22.
inline constexpr int kFloatBits = 0x4b400000;
__device__ __forceinline__ float as_sum(int bits) { return __fsub_rn(__int_as_float(bits), 12582912.0f); }

template <bool kUnsigned>
__device__ __forceinline__ void mma_32(int (&d)[4], const uint32_t (&a)[4], uint2 b, const int* c) {
  if constexpr (kUnsigned) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
  } else {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
  }
}
template <bool kUnsigned>
__device__ __forceinline__ void mma_16(int (&d)[4], uint32_t a0, uint32_t a1, uint32_t b, const int* c) {
  if constexpr (kUnsigned) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%8,%9,%10};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a0), "r"(a1), "r"(b), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%8,%9,%10};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a0), "r"(a1), "r"(b), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
  }
}

// Up to so many rows a product's sums are those of one row.
inline constexpr uint32_t kSameSums = 16;

// Activations of a step: records of its groups, those that are there, and rows. One row: as in SharedRow.
struct StepRecords {
  const uint8_t* record;
  const float4* scales;
  uint32_t n_groups, some;
};

// Sums of up to 8 rows, four a row: of the groups 0 and 1 of each eight, of 2 and 3, and so on.
template <Format F, uint32_t kRows>
struct FewSums {
  static constexpr PlaneShape s = plane_shape<F>();
  static constexpr uint32_t kSides = s.group == 16 ? 2 : 1;
  static constexpr uint32_t kWide = kRows;                     // rows of a result
  static constexpr uint32_t kTogether = 8 / kWide;             // groups of a result
  float acc[kWide == 8 ? 4 : kWide][kWide == 8 ? 4 : 2] = {};  // [sum][row of weights, + 8][row]

  // Element 0 and 1: weight row lane / 4; 2 and 3: + 8. Columns 2 (lane % 4) and the next are row column / kTogether,
  // group column % kTogether of the result's.
  __device__ __forceinline__ void add(const StepWeights<F, kRows == 1>& w, const StepRecords& x, uint32_t lane) {
    const int zero[4] = {kFloatBits, kFloatBits, kFloatBits, kFloatBits};
    const uint32_t slot = lane / 4 % kTogether, first = 2 * (lane % 4);
    const uint8_t* records = x.record;
    const uint32_t last = x.some - 1;  // rows beyond it read it: nobody looks at their sums
    const uint32_t row = min(lane / 4 / kTogether, last);
    uint32_t a[2][4];  // of two groups
#pragma unroll
    for (uint32_t t = 0; t < kWide; ++t) {
      const uint32_t own = t * kTogether + slot;
      const bool own_there = by_256(s.scales) || own < x.n_groups;
      const uint2 mine =
          kWide == 1 ? reinterpret_cast<const uint2*>(records)[lane]
                     : reinterpret_cast<const uint2*>(records + (own_there ? own * kQ8Record : 0))[row * 4 + lane % 4];
      int d[kSides][4];
#pragma unroll
      for (uint32_t j = 0; j < kTogether; ++j) {
        const uint32_t k = t * kTogether + j;
        if (k % 2 == 0) w.operands(k / 2, a);
        int of[kSides][4];
        if constexpr (kSides == 1) {
          mma_32<s.min>(of[0], a[k % 2], mine, zero);
        } else {
          mma_16<s.min>(of[0], a[k % 2][0], a[k % 2][1], mine.x, zero);
          mma_16<s.min>(of[1], a[k % 2][2], a[k % 2][3], mine.y, zero);
        }
        // Columns of other groups have nothing to do with this one's weights.
#pragma unroll
        for (uint32_t side = 0; side < kSides; ++side)
#pragma unroll
          for (uint32_t i = 0; i < 4; ++i)
            if (kTogether == 1 || i % 2 == j % 2)
              if (kTogether <= 2 || j < 2 || lane % 4 == j / 2) d[side][i] = of[side][i];
      }
#pragma unroll
      for (uint32_t e = 0; e < 2; ++e) {
        const uint32_t group = t * kTogether + (first + e) % kTogether;
        const uint32_t r = min((first + e) / kTogether, last);
        const bool there = by_256(s.scales) || group < x.n_groups;
        float scale, sums[kSides] = {};
        if constexpr (kWide == 1) {
          const float4 all = x.scales[group];
          scale = all.x;
          if constexpr (s.min && kSides == 1) sums[0] = all.y;
          if constexpr (s.min && kSides == 2) sums[0] = all.z, sums[1] = all.w;
        } else {
          const float* scales = reinterpret_cast<const float*>(records + (there ? group * kQ8Record : 0) + 256);
          scale = scales[r];
          if constexpr (s.min && kSides == 1) sums[0] = scales[8 + r];
          if constexpr (s.min && kSides == 2) sums[0] = scales[16 + 2 * r], sums[1] = scales[17 + 2 * r];
        }
#pragma unroll
        for (uint32_t side = 0; side < kSides; ++side)
#pragma unroll
          for (uint32_t upper = 0; upper < 2; ++upper) {
            ScaleMin of = w.scale(group, side, upper);
            if (!there) of = {0, 0};
            float& sum = kWide == 8 ? acc[t / 2][2 * upper + e] : acc[t][upper];
            sum = __fmaf_rn(as_sum(d[side][2 * upper + e]), __fmul_rn(of.scale, scale), sum);
            if constexpr (s.min) sum = __fmaf_rn(of.min, sums[side], sum);
          }
      }
    }
  }

  // to: [column][kPanelRows].
  __device__ __forceinline__ void store(float* to, uint32_t lane) const {
#pragma unroll
    for (uint32_t upper = 0; upper < 2; ++upper) {
      float* at = to + lane / 4 + 8 * upper;
      if constexpr (kWide == 1) {
        float sum = acc[0][upper];
        sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 1));
        sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 2));
        if (lane % 4 == 0) *at = sum;
      } else {
        constexpr uint32_t kOf = kWide == 8 ? 2 : 1;
#pragma unroll
        for (uint32_t e = 0; e < kOf; ++e)
          at[(kOf * (lane % 4) + e) * kPanelRows] =
              __fadd_rn(__fadd_rn(acc[0][kOf * upper + e], acc[1][kOf * upper + e]),
                        __fadd_rn(acc[2][kOf * upper + e], acc[3][kOf * upper + e]));
      }
    }
  }
};

__device__ __forceinline__ float activate(float x, bool is_gelu) { return is_gelu ? gelu(x) : silu(x); }

template <uint32_t kId>
__device__ __forceinline__ void bar_sync(uint32_t id, uint32_t n) {
  asm volatile("bar.sync %0, %1;" ::"r"(id + kId), "r"(n) : "memory");
}
template <uint32_t kId>
__device__ __forceinline__ void bar_arrive(uint32_t id, uint32_t n) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id + kId), "r"(n) : "memory");
}

// Steps whose weights a warp has or waits for: about 10 KB of them, so that those of 14 and more warps keep the memory
// busy, which wants 48 to 64 KB in flight a multiprocessor. With more rows fewer, beside the rows (kMostShared).
template <Format F, uint32_t kRows>
inline constexpr uint32_t kRing = StepBytes<F>::kAll > 4400   ? 2
                                  : StepBytes<F>::kAll > 3200 ? (kRows == 1 ? 3 : 2)
                                                              : (kRows == 1 ? 4 : 3);
// Of partial sums, so that a warp need not wait until those of the tile before are added up.
inline constexpr uint32_t kPartBuffers = 2;

// Floats of a warp's partial sums: [column][row].
template <uint32_t kRows>
inline constexpr uint32_t kPartSums = kRows* kPanelRows;

// Rows are in shared memory too: one always, more where they are short: their records, of up to so many bytes, so that
// two CTAs of 256 threads fit a multiprocessor.
inline constexpr uint32_t kMostShared = 48 * 1024;
template <uint32_t kRows>
__host__ __device__ constexpr uint32_t rows_bytes(uint32_t n_steps) {
  if (kRows == 1) return shared_row_bytes(n_steps);
  const uint32_t bytes = n_steps * kStepGroups * kQ8Record;
  return bytes <= kMostShared ? bytes : 0;
}
template <uint32_t kRows>
__host__ __device__ constexpr uint32_t before_rings(uint32_t n_steps, uint32_t n_warps) {
  const uint32_t sums = (kPartBuffers * n_warps + 1) * kPartSums<kRows> * sizeof(float);
  return (sums + rows_bytes<kRows>(n_steps) + 127) / 128 * 128;
}
template <Format F, uint32_t kRows>
constexpr uint32_t product_shared(uint32_t n_in, uint32_t n_warps) {
  return before_rings<kRows>((n_in + kStepColumns - 1) / kStepColumns, n_warps) +
         n_warps * kRing<F, kRows> * StepBytes<F>::kPlace;
}

// Threads: 32 a warp, warps_of(...) warps and one to add up. Shared memory: product_shared<F, kRows>(n_in, warps).
// Threads are at most 512; with one row as if they were 768, so that the registers of three CTAs of 256 fit a
// multiprocessor.
template <Format F, uint32_t kRows>
__global__ void __launch_bounds__(kRows == 1 ? 768 : 32 * (kMostWarps + 1))
    product_kernel(const __grid_constant__ ProductArgs args) {
  constexpr PlaneShape s = plane_shape<F>();
  using Sums = FewSums<F, kRows>;
  constexpr uint32_t kPart = kPartSums<kRows>;
  constexpr uint32_t kBuffers = kPartBuffers, kFull = 1, kEmpty = 3;  // barriers of the buffers
  // [buffer][warp][kPart], what the gate gave, the rows, [warp][kRing] steps
  extern __shared__ __align__(128) float shared[];
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, n_warps = blockDim.x / 32 - 1;
  const uint32_t n_items = args.parts[args.n_parts - 1].tiles_end;  // with glu: gate and up of a tile are neighbours
  const uint32_t each = args.glu ? 2 : 1;
  const auto place = [&](uint32_t item, uint32_t& part, uint32_t& tile) {
    part = args.glu ? item % 2
                    : (args.n_parts > 1 && item >= args.parts[0].tiles_end) +
                          (args.n_parts > 2 && item >= args.parts[1].tiles_end);
    tile = args.glu ? item / 2 : item - (part ? args.parts[part - 1].tiles_end : 0);
  };
  const auto next_item = [&](uint32_t item) {
    return args.glu && item % 2 == 0 ? item + 1 : item + 1 + (gridDim.x - 1) * each;
  };
  uint32_t item = blockIdx.x * each;

  if (warp == n_warps) {  // adds up
    if (!args.waits_last) wait_for_previous();
    float* gate = shared + kBuffers * n_warps * kPart;
    for (uint32_t k = 0; item < n_items; ++k) {
      const uint32_t next = next_item(item);
      uint32_t index, tile;
      place(item, index, tile);
      const PartArgs& part = args.parts[index];
      // One row's addends are on their way while the sums are made.
      float bias = 0, residual = 0;
      if (kRows == 1 && lane < kPanelRows && tile * kPanelRows + lane < part.n_out) {
        if (part.bias) bias = part.bias[tile * kPanelRows + lane];
        if (part.residual) residual = part.residual[uint64_t(args.first_row) * part.n_out + tile * kPanelRows + lane];
      }
      bar_sync<kFull>(k % kBuffers, blockDim.x);
      const float* from = shared + k % kBuffers * n_warps * kPart;
      for (uint32_t i = lane; i < args.some * kPanelRows; i += 32) {
        float sum = from[i];
#pragma unroll 4
        for (uint32_t other = 1; other < n_warps; ++other) sum = __fadd_rn(sum, from[other * kPart + i]);
        if constexpr (s.shift > 0) sum = __fmul_rn(sum, 1.0f / float(1 << s.shift));
        const uint32_t row = tile * kPanelRows + i % kPanelRows, column = args.first_row + i / kPanelRows;
        const bool there = row < part.n_out;
        const uint64_t to = uint64_t(column) * part.n_out + row;
        if (args.glu && index == 0) {
          gate[i] = activate(sum, args.gelu);
          continue;
        }
        if (args.glu) {
          sum = __fmul_rn(gate[i], sum);
        } else if (there) {
          if (part.bias) sum = __fadd_rn(sum, kRows == 1 ? bias : part.bias[row]);
          if (part.residual) sum = __fadd_rn(sum, kRows == 1 ? residual : part.residual[to]);
        }
        if (there) part.y[to] = sum;
        if (kRows == 1 && part.squares) {
          float squares = there ? __fmul_rn(sum, sum) : 0.0f;
#pragma unroll
          for (uint32_t step = kNormPiece / 2; step; step /= 2)
            squares = __fadd_rn(squares, __shfl_xor_sync(0xffff, squares, step));
          if (lane == 0) part.squares[tile] = squares;
        }
      }
      // Where the buffer is used once more, somebody waits for it.
      if (next < n_items && next_item(next) < n_items) bar_arrive<kEmpty>(k % kBuffers, blockDim.x);
      item = next;
    }
    if (args.waits_last) wait_for_previous();
    return;
  }

  const uint32_t n_steps = (args.n_chunks + kStepChunks - 1) / kStepChunks;
  const uint32_t begin = n_steps * warp / n_warps, end = n_steps * (warp + 1) / n_warps;
  const uint32_t n_groups = args.n_in / 32;
  const uint64_t eight = uint64_t(n_groups) * kQ8Record;
  const uint8_t* records = args.q + args.first_row / 8 * eight;
  Sums sums;
  uint8_t* const behind = reinterpret_cast<uint8_t*>(shared + (kBuffers * n_warps + 1) * kPart);
  const SharedRow row = {behind, reinterpret_cast<float4*>(behind + n_steps * 256)};
  uint8_t* const ring = reinterpret_cast<uint8_t*>(shared) + before_rings<kRows>(n_steps, n_warps) +
                        warp * kRing<F, kRows> * StepBytes<F>::kPlace;
  // Copies run ahead of what is computed with, over the tiles too.
  uint32_t copy_item = item, copy_step_at = begin, copy_slot = 0, index = 0, unit = 0;
  const auto copy_next = [&] {
    if (copy_item < n_items) {
      if (copy_step_at == begin) {
        uint32_t tile;
        place(copy_item, index, tile);
        unit = tile * args.n_chunks + begin * kStepChunks;
      }
      copy_step<F>(ring + copy_slot * StepBytes<F>::kPlace, args.parts[index], unit,
                   args.n_chunks - copy_step_at * kStepChunks, lane);
      unit += kStepChunks;
      if (++copy_step_at == end) copy_step_at = begin, copy_item = next_item(copy_item);
    }
    end_copies();
    if (++copy_slot == kRing<F, kRows>) copy_slot = 0;
  };
  for (uint32_t i = 0; i + 1 < kRing<F, kRows>; ++i) copy_next();
  const uint8_t* first_record = records + begin * kStepGroups * kQ8Record;
  if constexpr (kRows == 1) {
    RowStage stage(row, args.own, args.n_in, begin, end);
    if (args.own.squares != nullptr) stage.fetch_weights();
    if (args.alone) let_next_start();
    if (!args.waits_last) wait_for_previous();
    if (!args.alone) let_next_start();
    if (args.own.x != nullptr)
      stage.make();
    else
      stage.copy(records);
    first_record = row.quants + begin * kStepColumns;
  } else {
    if (!args.waits_last) wait_for_previous();
    let_next_start();
    if (rows_bytes<kRows>(n_steps)) {
      const uint32_t first = begin * kStepGroups * kQ8Record, last = min(end * kStepGroups, n_groups) * kQ8Record;
      for (uint32_t at = first + lane * 16; at < last; at += 512) copy_16(behind + at, records + at);
      end_copies();
      wait_for_copies<0>();
      __syncwarp();
      first_record = behind + first;
    }
  }
  constexpr uint32_t kStepRecord = kRows == 1 ? kStepColumns : kStepGroups * kQ8Record;
  const uint8_t* record = first_record;
  const auto multiply = [&](uint32_t step, uint32_t slot) {
    sums.add({ring + slot * StepBytes<F>::kPlace, lane},
             {record, row.scales + step * kStepGroups, n_groups - step * kStepGroups, args.some}, lane);
    record += kStepRecord;
  };
  for (uint32_t step = begin, slot = 0, n_done = 0; item < n_items;) {
    __syncwarp();  // nobody reads what is written over now
    copy_next();
    wait_for_copies<kRing<F, kRows> - 1>();
    __syncwarp();
    multiply(step, slot);
    if (++slot == kRing<F, kRows>) slot = 0;
    ++step;
    if (step < end) continue;
    const uint32_t buffer = n_done % kBuffers;
    if (n_done >= kBuffers) bar_sync<kEmpty>(buffer, blockDim.x);
    sums.store(shared + (buffer * n_warps + warp) * kPart, lane);
    bar_arrive<kFull>(buffer, blockDim.x);
    sums = {};
    ++n_done, step = begin, record = first_record, item = next_item(item);
  }
}

template <Format F, uint32_t kRows>
void start_product(Launch& launch, const ProductArgs& args) {
  const auto kernel = product_kernel<F, kRows>;
  const uint32_t n_warps = warps_of(args.n_in), threads = n_warps * 32 + 32;
  const uint32_t n_items = args.parts[args.n_parts - 1].tiles_end / (args.glu ? 2 : 1);
  int device = 0, n_multiprocessors = 1, each = 1;
  launch.note(cudaGetDevice(&device), "product");
  launch.note(cudaDeviceGetAttribute(&n_multiprocessors, cudaDevAttrMultiProcessorCount, device), "product");
  uint32_t shared = product_shared<F, kRows>(args.n_in, n_warps);
  if (kRows == 1 && args.alone) {
    int all = 0, reserved = 0;
    launch.note(cudaDeviceGetAttribute(&all, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device), "product");
    launch.note(cudaDeviceGetAttribute(&reserved, cudaDevAttrReservedSharedMemoryPerBlock, device), "product");
    const uint32_t share = (n_items + n_multiprocessors - 1) / n_multiprocessors;
    shared = max(shared, bytes_to_spread(share, uint32_t(all), uint32_t(reserved)));
  }
  if (shared > 48 * 1024)
    launch.note(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared)), "product");
  launch.note(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, int(threads), shared), "product");
  const uint32_t grid = min(n_items, uint32_t(n_multiprocessors * max(each, 1)));
  start(launch, "product", kernel, dim3(grid), dim3(threads), shared, args);
}

}  // namespace argent::cuda
