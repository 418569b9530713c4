// Products of quantized weights and 2 to 16 rows: weights are read once, and each row has the bits that it has alone
// (product.cuh): the same integers, the same runs of steps a warp, four sums of groups a warp, added up in one order.
//
// A multiprocessor has one CTA, of up to kMostTeams teams, or, where tiles are few, CTAs of one team. A team has a tile
// of 16 weight rows at a time, its warps share the columns, one more adds up. The teams share the activations: all of
// them in shared memory where they fit
// ("kept"), else each warp has a ring of two units of them, which come with the weights.
#pragma once

#include <type_traits>

#include "backends/cuda/part/kernels/product.cuh"

namespace argent::cuda {

// Activations of a group in shared memory: what is wanted of a record of Q8, rows beyond the fourth only where there
// are as many, in the order of the record.
template <Format F, uint32_t kRows>
struct FewRecord {
  static constexpr PlaneShape s = plane_shape<F>();
  static constexpr uint32_t kWide = kRows < 8 ? kRows : 8;  // rows of it
  static constexpr uint32_t kEights = kRows > 8 ? 2 : 1;    // records of a group
  // Of a row: scale; sum; sums of halves.
  static constexpr uint32_t kRowTail = !s.min ? 4 : s.group == 32 ? 8 : 16;
  static constexpr uint32_t kTail = kWide * kRowTail;
  // Four rows: two groups are read at once, which are 64 bytes apart from whole lines, for the banks.
  static constexpr uint32_t kBytes = kWide == 4 ? 192 : kWide * 32 + kTail;
  // Eight records are copied at a time, a unit: eight groups, or four of 16 rows.
  static constexpr uint32_t kGroups = 8 / kEights, kUnit = 8 * kBytes, kUnits = kStepGroups / kGroups;
  static_assert(kTail % 16 == 0 && kWide * 32 + kTail <= kBytes);

  // Has a warp copy a unit: groups from `group` on, zeros where there are none. from: record of the first group.
  static __device__ __forceinline__ void copy(uint8_t* to, const uint8_t* from, uint64_t eight, uint32_t group,
                                              uint32_t n_groups, uint32_t lane) {
    constexpr uint32_t kPieces = 2 * kWide, kAtOnce = 32 / kPieces, kTails = kTail / 16;
    const uint32_t g = lane / kPieces, at = lane % kPieces * 16;
    const uint8_t* quants = from + g * kQ8Record + at;
#pragma unroll
    for (uint32_t first = 0; first < 8; first += kAtOnce)
      piece(to + g * kBytes + at + first * kBytes, quants + first / kGroups * eight + first % kGroups * kQ8Record,
            group + first % kGroups + g < n_groups);
    // Of at most four records at a time, so that they are of the same rows.
    constexpr uint32_t kTailsAtOnce = 32 / kTails < 4 ? 32 / kTails : 4;
    const uint32_t tail = lane / kTails, part = lane % kTails,
                   of_tail = kWide == 8 ? 16 * part
                             : part < 3 ? 32 * part
                                        : 80;
    const uint8_t* tails = from + tail * kQ8Record + 256 + of_tail;
    if (tail >= kTailsAtOnce) return;
#pragma unroll
    for (uint32_t first = 0; first < 8; first += kTailsAtOnce)
      piece(to + tail * kBytes + kWide * 32 + part * 16 + first * kBytes,
            tails + first / kGroups * eight + first % kGroups * kQ8Record, group + first % kGroups + tail < n_groups);
  }

 private:
  static __device__ __forceinline__ void piece(uint8_t* to, const uint8_t* from, bool there) {
    if constexpr (by_256(s.scales))
      copy_16(to, from);
    else
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(uint32_t(__cvta_generic_to_shared(to))),
                   "l"(from), "r"(there ? 16 : 0));
  }
};

// Scales of a step's weights as floats, of a warp, in shared memory: a lane decodes those of two groups and all read
// them, where decoding costs more than that.
template <Format F>
struct StepScales {
  static constexpr PlaneShape s = plane_shape<F>();
  static constexpr bool kThere = by_256(s.scales);
  static constexpr uint32_t kSides = s.group == 16 ? 2 : 1, kOf = kSides * (s.min ? 2 : 1);
  // [group][row % 8][row / 8][side] scale, min; groups 16 bytes apart from whole lines, for the banks.
  static constexpr uint32_t kGroup = 16 * kOf + 4;
  static constexpr uint32_t kBytes = kThere ? (kStepGroups * kGroup * 4 + 127) / 128 * 128 : 0;

  struct Pair {
    ScaleMin of[2][kSides];  // [row, + 8]
  };
  static __device__ __forceinline__ void store(float* to, const StepWeights<F, false>& w, uint32_t lane) {
#pragma unroll
    for (uint32_t e = 0; e < 2; ++e) {
      const uint32_t group = 2 * (lane % 4) + e;
      float all[2 * kOf];
#pragma unroll
      for (uint32_t upper = 0; upper < 2; ++upper)
#pragma unroll
        for (uint32_t side = 0; side < kSides; ++side) {
          const ScaleMin of = w.scale(group, side, upper);
          const uint32_t at = upper * kOf + side * (s.min ? 2 : 1);
          all[at] = of.scale;
          if constexpr (s.min) all[at + 1] = of.min;
        }
      float* at = to + group * kGroup + lane / 4 * 2 * kOf;
      if constexpr (kOf == 1) {
        *reinterpret_cast<float2*>(at) = make_float2(all[0], all[1]);
      } else {
#pragma unroll
        for (uint32_t i = 0; i < 2 * kOf; i += 4)
          *reinterpret_cast<float4*>(at + i) = make_float4(all[i], all[i + 1], all[i + 2], all[i + 3]);
      }
    }
  }
  static __device__ __forceinline__ Pair load(const float* from, uint32_t group, uint32_t lane) {
    const float* at = from + group * kGroup + lane / 4 * 2 * kOf;
    float all[2 * kOf];
    if constexpr (kOf == 1) {
      const float2 both = *reinterpret_cast<const float2*>(at);
      all[0] = both.x, all[1] = both.y;
    } else {
#pragma unroll
      for (uint32_t i = 0; i < 2 * kOf; i += 4) {
        const float4 four = *reinterpret_cast<const float4*>(at + i);
        all[i] = four.x, all[i + 1] = four.y, all[i + 2] = four.z, all[i + 3] = four.w;
      }
    }
    Pair pair;
#pragma unroll
    for (uint32_t upper = 0; upper < 2; ++upper)
#pragma unroll
      for (uint32_t side = 0; side < kSides; ++side) {
        const uint32_t i = upper * kOf + side * (s.min ? 2 : 1);
        pair.of[upper][side] = {all[i], s.min ? all[i + (s.min ? 1 : 0)] : 0.0f};
      }
    return pair;
  }
};

// Where a warp's weights of a tile come from, one step after the other: as copy_step(), with less arithmetic a step.
template <Format F>
struct StepSource {
  using B = StepBytes<F>;
  const uint8_t *p8, *p4, *p2, *p1, *scales;  // of the lane's first 16 bytes

  __device__ __forceinline__ void begin(const PartArgs& part, uint32_t chunk, uint32_t lane) {
    if constexpr (B::s.p8) p8 = part.p8 + uint64_t(chunk) * B::kP8 + lane * 16;
    if constexpr (B::s.p4) p4 = part.p4 + uint64_t(chunk) * B::kP4 + lane * 16;
    if constexpr (B::s.p2) p2 = part.p2 + uint64_t(chunk) * B::kP2 + lane * 16;
    if constexpr (B::s.p1) p1 = part.p1 + uint64_t(chunk) * B::kP1 + lane * 16;
    scales = part.scales + uint64_t(chunk) * B::kScales + lane * 16;
  }
  // chunks: that there are from the step on.
  __device__ __forceinline__ void copy(uint8_t* to, uint32_t chunks, uint32_t lane) {
    to += lane * 16;
    const auto plane = [&]<uint32_t kBytes>(uint32_t first, const uint8_t*& from) {  // kBytes: of a chunk
      if constexpr (kBytes > 0) {
#pragma unroll
        for (uint32_t i = 0; i < kStepChunks * kBytes; i += 512)
          if ((kStepChunks * kBytes % 512 == 0 || i + lane * 16 < kStepChunks * kBytes) &&
              (by_256(B::s.scales) || i + lane * 16 < chunks * kBytes))
            copy_16(to + first + i, from + i);
        from += kStepChunks * kBytes;
      }
    };
    plane.template operator()<B::kP8>(0, p8);
    plane.template operator()<B::kP4>(B::kFirstP4, p4);
    plane.template operator()<B::kP2>(B::kFirstP2, p2);
    plane.template operator()<B::kP1>(B::kFirstP1, p1);
    plane.template operator()<B::kScales>(B::kFirstScales, scales);
  }
};

// A warp's sums of up to kRows rows: 4, 8 or 16. Elements 0 and 1 of a result are of weight row lane / 4, 2 and 3 of
// row + 8; columns 2 (lane % 4) and the next are rows, or, with four rows, two groups of a row.
template <Format F, uint32_t kRows>
struct FewRowsSums {
  using Record = FewRecord<F, kRows>;
  using Scales = StepScales<F>;
  static constexpr PlaneShape s = plane_shape<F>();
  static constexpr uint32_t kSides = s.group == 16 ? 2 : 1, kEights = Record::kEights;
  static constexpr bool kFour = kRows == 4;
  static constexpr uint32_t kOf = kFour ? 1 : 2;  // rows of a lane
  float acc[kEights][4][2 * kOf] = {};            // [sum][row of weights, + 8][row]

  // Results of a chunk, i.e. two groups.
  struct Dots {
    int d[kFour ? 1 : 2][kEights][kSides][4];
  };
  static __device__ __forceinline__ void multiply(Dots& to, const StepWeights<F, false>& w, const uint8_t* records,
                                                  uint32_t c, uint32_t lane) {
    const int zero[4] = {kFloatBits, kFloatBits, kFloatBits, kFloatBits};
    uint32_t a[2][4];
    w.operands(c, a);
#pragma unroll
    for (uint32_t g = 0; g < 2; ++g)
#pragma unroll
      for (uint32_t n = 0; n < kEights; ++n) {
        const uint32_t record = n * Record::kGroups + 2 * c % Record::kGroups;
        const uint2 mine = kFour ? reinterpret_cast<const uint2*>(records + (record + lane / 4 % 2) *
                                                                                Record::kBytes)[lane / 8 * 4 + lane % 4]
                                 : reinterpret_cast<const uint2*>(records + (record + g) * Record::kBytes)[lane];
        int of[kSides][4];
        if constexpr (kSides == 1) {
          mma_32<s.min>(of[0], a[g], mine, zero);
        } else {
          mma_16<s.min>(of[0], a[g][0], a[g][1], mine.x, zero);
          mma_16<s.min>(of[1], a[g][2], a[g][3], mine.y, zero);
        }
        // With four rows columns of the other group have nothing to do with this one's weights.
#pragma unroll
        for (uint32_t side = 0; side < kSides; ++side)
#pragma unroll
          for (uint32_t i = 0; i < 4; ++i)
            if (!kFour || i % 2 == g) to.d[kFour ? 0 : g][n][side][i] = of[side][i];
      }
  }

  // n_groups: of the step, that are there.
  __device__ __forceinline__ void add(const Dots& dots, const StepWeights<F, false>& w, const float* scales,
                                      const uint8_t* records, uint32_t c, uint32_t n_groups, uint32_t lane) {
    const auto pair_of = [&](uint32_t k) {
      typename Scales::Pair pair;
      if constexpr (Scales::kThere) {
        pair = Scales::load(scales, k, lane);
      } else {
#pragma unroll
        for (uint32_t upper = 0; upper < 2; ++upper)
          pair.of[upper][0] = k < n_groups ? w.scale(k, 0, upper) : ScaleMin{};
      }
      return pair;
    };
#pragma unroll
    for (uint32_t g = 0; g < 2; ++g) {
      const typename Scales::Pair pair = pair_of(2 * c + g);
#pragma unroll
      for (uint32_t n = 0; n < kEights; ++n) {
        const uint32_t record = n * Record::kGroups + (2 * c + g) % Record::kGroups;
        const float* tail = reinterpret_cast<const float*>(records + record * Record::kBytes + Record::kWide * 32);
        float scale[kOf], sums[kOf][kSides] = {};
        if constexpr (kFour) {
          scale[0] = tail[lane % 4];
          if constexpr (s.min && kSides == 1) sums[0][0] = tail[4 + lane % 4];
          if constexpr (s.min && kSides == 2) {
            const float2 all = reinterpret_cast<const float2*>(tail + 8)[lane % 4];
            sums[0][0] = all.x, sums[0][1] = all.y;
          }
        } else {
          const float2 both = reinterpret_cast<const float2*>(tail)[lane % 4];
          scale[0] = both.x, scale[1] = both.y;
          if constexpr (s.min && kSides == 1) {
            const float2 all = reinterpret_cast<const float2*>(tail + 8)[lane % 4];
            sums[0][0] = all.x, sums[1][0] = all.y;
          }
          if constexpr (s.min && kSides == 2) {
            const float4 all = reinterpret_cast<const float4*>(tail + 16)[lane % 4];
            sums[0][0] = all.x, sums[0][1] = all.y, sums[1][0] = all.z, sums[1][1] = all.w;
          }
        }
#pragma unroll
        for (uint32_t e = 0; e < kOf; ++e)
#pragma unroll
          for (uint32_t side = 0; side < kSides; ++side)
#pragma unroll
            for (uint32_t upper = 0; upper < 2; ++upper) {
              const ScaleMin& of = pair.of[upper][side];
              const int d = dots.d[kFour ? 0 : g][n][side][2 * upper + (kFour ? g : e)];
              float& sum = acc[n][c][kOf * upper + e];
              sum = __fmaf_rn(as_sum(d), __fmul_rn(of.scale, scale[e]), sum);
              if constexpr (s.min) sum = __fmaf_rn(of.min, sums[e][side], sum);
            }
      }
    }
  }

  // Chunks [kBegin, kEnd) of a step, of one unit of activations; dots of a chunk are under way while those of the one
  // before are scaled.
  template <uint32_t kBegin, uint32_t kEnd>
  __device__ __forceinline__ void add_unit(const StepWeights<F, false>& w, const float* scales, const uint8_t* records,
                                           uint32_t n_groups, uint32_t lane) {
    Dots dots[2];
    multiply(dots[kBegin % 2], w, records, kBegin, lane);
#pragma unroll
    for (uint32_t c = kBegin; c < kEnd; ++c) {
      if (c + 1 < kEnd) multiply(dots[(c + 1) % 2], w, records, c + 1, lane);
      add(dots[c % 2], w, scales, records, c, n_groups, lane);
    }
  }

  // What a lane of the warp that adds up wants is in vectors: of column 2 i + lane / 16 and row lane % 16 the sums
  // i = 4 j to 4 j + 3, or both of four rows.
  static constexpr uint32_t kVector = kFour ? 2 : 4;
  // to: [j][lane that adds][kVector].
  __device__ __forceinline__ void store(float* to, uint32_t lane) const {
#pragma unroll
    for (uint32_t n = 0; n < kEights; ++n)
#pragma unroll
      for (uint32_t upper = 0; upper < 2; ++upper)
#pragma unroll
        for (uint32_t e = 0; e < kOf; ++e) {
          const uint32_t i = kOf * upper + e;
          const uint32_t at =
              kFour ? lane % 2 * 32 + upper * 16 + lane / 4 * 2 + lane / 2 % 2 : n * 128 + e * 64 + upper * 32 + lane;
          to[at] = __fadd_rn(__fadd_rn(acc[n][0][i], acc[n][1][i]), __fadd_rn(acc[n][2][i], acc[n][3][i]));
        }
  }
};

inline constexpr uint32_t kMostTeams = 3;                              // four barriers each, one of all
inline constexpr uint32_t kFewMostRing = 4, kFewInFlight = 40 * 1024;  // bytes of weights, of a multiprocessor
// How a launch is shaped: what fits a multiprocessor.
struct FewShape {
  uint32_t n_warps, n_teams;  // warps of a team without the one that adds up
  uint32_t ring;              // steps whose weights a warp has or waits for
  bool kept;
  uint32_t shared;  // bytes
};

template <Format F, uint32_t kRows>
struct FewLayout {
  using Record = FewRecord<F, kRows>;
  static constexpr uint32_t kSums = kRows * kPanelRows;  // floats of a warp's partial sums, as FewRowsSums stores them
  // Of a multiprocessor: with up to 8 rows 80 registers a thread are enough, with 16 rows 128 are wanted.
  static constexpr uint32_t kThreads = kRows == 16 ? 512 : 768;
  // Of a team: [buffer][warp] partial sums, [warp] ring of weights, scales of a step, ring of activations.
  static constexpr __host__ __device__ uint32_t of_warp(uint32_t ring, bool kept) {
    return kPartBuffers * kSums * 4 + ring * StepBytes<F>::kPlace + StepScales<F>::kBytes +
           (kept ? 0 : 2 * Record::kUnit);
  }
  static constexpr __host__ __device__ uint32_t kept_bytes(uint32_t n_steps) {
    return n_steps * Record::kUnits * Record::kUnit;
  }
  // The most teams that fit `most` bytes, the activations kept if they leave room for in_flight bytes of weights;
  // one team with two activations in turn may not fit.
  static FewShape shape(uint32_t n_in, uint32_t most_teams, uint32_t most, uint32_t in_flight) {
    const uint32_t n_steps = (n_in + kStepColumns - 1) / kStepColumns, n_warps = warps_of(n_in);
    FewShape shape = {n_warps, min(most_teams, kThreads / 32 / (n_warps + 1))};
    for (;; --shape.n_teams)
      for (const bool kept : {true, false})
        for (uint32_t ring = kFewMostRing; ring >= 2; --ring) {
          const uint32_t all_warps = shape.n_teams * n_warps;
          shape.ring = ring, shape.kept = kept;
          shape.shared = all_warps * of_warp(ring, kept) + (kept ? kept_bytes(n_steps) : 0);
          const bool last = ring == 2 && !kept;
          if (shape.n_teams == 1 && last) return shape;
          if (shape.shared <= most &&
              (last || ring == kFewMostRing || (ring - 1) * all_warps * StepBytes<F>::kAll >= in_flight))
            return shape;
        }
  }
};

// An address in shared memory that is kept in a register: the compiler would work it out anew at each use.
__device__ __forceinline__ uint32_t keep(uint32_t address) {
  asm volatile("" : "+r"(address));
  return address;
}
__device__ __forceinline__ uint8_t* in_shared(uint32_t address) {
  return static_cast<uint8_t*>(__cvta_shared_to_generic(address));
}
__device__ __forceinline__ uint32_t shared_address(const void* at) { return uint32_t(__cvta_generic_to_shared(at)); }

// At most `left` groups of copies are under way.
__device__ __forceinline__ void wait_until_left(uint32_t left) {
  if (left == 1)
    wait_for_copies<1>();
  else if (left == 2)
    wait_for_copies<2>();
  else
    wait_for_copies<3>();
}

template <Format F, uint32_t kRows>
__global__ void __launch_bounds__(FewLayout<F, kRows>::kThreads, 1)
    few_kernel(const __grid_constant__ ProductArgs args, const FewShape shape) {
  using Layout = FewLayout<F, kRows>;
  using Record = FewRecord<F, kRows>;
  constexpr PlaneShape s = plane_shape<F>();
  constexpr uint32_t kSums = Layout::kSums, kBuffers = kPartBuffers, kFull = 1, kEmpty = kFull + kBuffers;
  extern __shared__ __align__(128) uint8_t few_memory[];
  const uint32_t lane = threadIdx.x % 32, n_warps = shape.n_warps;
  const uint32_t team = threadIdx.x / 32 / (n_warps + 1), warp = threadIdx.x / 32 % (n_warps + 1);
  const uint32_t n_threads = 32 * (n_warps + 1), barrier = 2 * kBuffers * team;  // of the team
  const uint32_t n_steps = (args.n_chunks + kStepChunks - 1) / kStepChunks;
  uint8_t* const rows = few_memory;
  uint8_t* const own = few_memory + (shape.kept ? Layout::kept_bytes(n_steps) : 0) +
                       team * n_warps * Layout::of_warp(shape.ring, shape.kept);
  float* const parts = reinterpret_cast<float*>(own);

  const uint32_t n_items = args.parts[args.n_parts - 1].tiles_end;  // with glu: gate and up of a tile are neighbours
  const uint32_t each = args.glu ? 2 : 1;
  const auto place = [&](uint32_t item, uint32_t& part, uint32_t& tile) {
    part = args.glu ? item % 2
                    : (args.n_parts > 1 && item >= args.parts[0].tiles_end) +
                          (args.n_parts > 2 && item >= args.parts[1].tiles_end);
    tile = args.glu ? item / 2 : item - (part ? args.parts[part - 1].tiles_end : 0);
  };
  const auto next_item = [&](uint32_t item) {
    return args.glu && item % 2 == 0 ? item + 1 : item + 1 + (gridDim.x * shape.n_teams - 1) * each;
  };
  uint32_t item = (blockIdx.x + team * gridDim.x) * each;

  if (warp == n_warps) {                  // adds up
    constexpr uint32_t kOf = kSums / 32;  // sums of a lane
    if (!args.waits_last) wait_for_previous();
    float gate[kOf];
    for (uint32_t k = 0; item < n_items; ++k) {
      const uint32_t next = next_item(item);
      uint32_t index, tile;
      place(item, index, tile);
      const PartArgs& part = args.parts[index];
      const uint32_t row = tile * kPanelRows + lane % kPanelRows;
      const auto column = [&](uint32_t j) { return 2 * j + lane / kPanelRows; };
      const auto there = [&](uint32_t j) { return row < part.n_out && column(j) < args.some; };
      const auto to = [&](uint32_t j) { return uint64_t(args.first_row + column(j)) * part.n_out + row; };
      // Addends are on their way while the sums are made.
      const float bias = part.bias && row < part.n_out ? part.bias[row] : 0.0f;
      float residual[kOf], sum[kOf];
#pragma unroll
      for (uint32_t j = 0; j < kOf; ++j) residual[j] = part.residual && there(j) ? part.residual[to(j)] : 0.0f;
      bar_sync<kFull>(barrier + k % kBuffers, n_threads);
      using Vector = std::conditional_t<FewRowsSums<F, kRows>::kVector == 2, float2, float4>;
      constexpr uint32_t kVectors = kSums * 4 / sizeof(Vector);
      const Vector* from = reinterpret_cast<const Vector*>(parts + k % kBuffers * n_warps * kSums) + lane;
#pragma unroll 4
      for (uint32_t other = 0; other < n_warps; ++other)
#pragma unroll
        for (uint32_t j = 0; j < kVectors / 32; ++j) {
          const Vector v = from[other * kVectors + 32 * j];
          float of[sizeof(Vector) / 4];
          *reinterpret_cast<Vector*>(of) = v;
#pragma unroll
          for (uint32_t i = 0; i < sizeof(Vector) / 4; ++i) {
            float& to = sum[sizeof(Vector) / 4 * j + i];
            to = other == 0 ? of[i] : __fadd_rn(to, of[i]);
          }
        }
      // Where the buffer is used once more, somebody waits for it.
      if (next < n_items && next_item(next) < n_items) bar_arrive<kEmpty>(barrier + k % kBuffers, n_threads);
#pragma unroll
      for (uint32_t j = 0; j < kOf; ++j) {
        if constexpr (s.shift > 0) sum[j] = __fmul_rn(sum[j], 1.0f / float(1 << s.shift));
        if (args.glu && index == 0) {
          gate[j] = activate(sum[j], args.gelu);
          continue;
        }
        if (args.glu) {
          sum[j] = __fmul_rn(gate[j], sum[j]);
        } else {
          if (part.bias) sum[j] = __fadd_rn(sum[j], bias);
          if (part.residual) sum[j] = __fadd_rn(sum[j], residual[j]);
        }
        if (there(j)) part.y[to(j)] = sum[j];
      }
      item = next;
    }
    if (args.waits_last) wait_for_previous();
    return;
  }

  const uint32_t begin = n_steps * warp / n_warps, end = n_steps * (warp + 1) / n_warps;
  const uint32_t n_groups = args.n_in / 32;
  const uint64_t eight = uint64_t(n_groups) * kQ8Record;
  const uint8_t* records = args.q + args.first_row / 8 * eight;
  const uint32_t ring = keep(shared_address(own) + kBuffers * n_warps * kSums * 4 +
                             warp * (Layout::of_warp(shape.ring, shape.kept) - kBuffers * kSums * 4));
  const uint32_t ring_end = ring + shape.ring * StepBytes<F>::kPlace;
  // Two units, where they are not kept; scales of a step; those of all columns.
  const uint32_t units = keep(ring_end), scales = keep(ring_end + (shape.kept ? 0 : 2 * Record::kUnit));
  const uint32_t first_row = shared_address(rows) + begin * Record::kUnits * Record::kUnit;
  // Copies run ahead of what is computed with, over the tiles too.
  uint32_t copy_item = item, copy_step_at = begin, copy_to = ring;
  StepSource<F> source;
  const auto copy_weights = [&] {
    if (copy_item < n_items) {
      if (copy_step_at == begin) {
        uint32_t index, tile;
        place(copy_item, index, tile);
        source.begin(args.parts[index], tile * args.n_chunks + begin * kStepChunks, lane);
      }
      source.copy(in_shared(copy_to), args.n_chunks - copy_step_at * kStepChunks, lane);
      if (++copy_step_at == end) copy_step_at = begin, copy_item = next_item(copy_item);
    }
    end_copies();
    copy_to += StepBytes<F>::kPlace;
    if (copy_to == ring_end) copy_to = ring;
  };
  const auto copy_unit = [&](uint32_t to, uint32_t u) {
    Record::copy(in_shared(to), records + uint64_t(u) * Record::kGroups * kQ8Record, eight, u * Record::kGroups,
                 n_groups, lane);
  };
  const uint32_t first_unit = begin * Record::kUnits, end_unit = end * Record::kUnits;
  uint32_t next_unit = first_unit, unit_to = units, now = shape.kept ? first_row : units;
  const auto other_unit = [&](uint32_t unit) { return units + (unit == units ? Record::kUnit : 0); };
  const auto copy_next_unit = [&] {
    copy_unit(unit_to, next_unit);
    end_copies();
    unit_to = other_unit(unit_to);
    if (++next_unit == end_unit) next_unit = first_unit;
  };

  for (uint32_t i = 0; i + 1 < shape.ring; ++i) copy_weights();
  if (!args.waits_last) wait_for_previous();
  let_next_start();
  if (shape.kept) {
    for (uint32_t u = first_unit + team; u < end_unit; u += shape.n_teams)
      copy_unit(first_row + (u - first_unit) * Record::kUnit, u);
    end_copies();
    wait_for_copies<0>();
    if (shape.n_teams > 1)
      bar_sync<0>(0, shape.n_teams * n_warps * 32);
    else
      __syncwarp();
  } else {
    copy_next_unit();
    end_copies();  // so that as many groups of copies come after each unit's
  }
  const uint32_t left = shape.kept ? shape.ring - 1 : Record::kUnits == 2 || shape.ring == 2 ? 2 : 3;

  const auto next_of = [&](uint32_t unit) { return shape.kept ? unit + Record::kUnit : other_unit(unit); };
  FewRowsSums<F, kRows> sums;
  for (uint32_t step = begin, n_done = 0, slot = ring; item < n_items;) {
    __syncwarp();  // nobody reads what is written over now
    if (!shape.kept) copy_next_unit();
    copy_weights();
    wait_until_left(left);
    __syncwarp();
    const StepWeights<F, false> w(in_shared(slot), lane);
    float* const decoded = reinterpret_cast<float*>(in_shared(scales));
    const uint32_t there = n_groups - step * kStepGroups;
    if constexpr (StepScales<F>::kThere) {
      StepScales<F>::store(decoded, w, lane);
      __syncwarp();
    }
    if constexpr (Record::kUnits == 1) {
      sums.template add_unit<0, kStepChunks>(w, decoded, in_shared(now), there, lane);
    } else {
      sums.template add_unit<0, kStepChunks / 2>(w, decoded, in_shared(now), there, lane);
      now = next_of(now);
      if (!shape.kept) {
        __syncwarp();
        copy_next_unit();
        wait_for_copies<2>();
        __syncwarp();
      }
      sums.template add_unit<kStepChunks / 2, kStepChunks>(w, decoded, in_shared(now), there, lane);
    }
    now = next_of(now), slot += StepBytes<F>::kPlace;
    if (slot == ring_end) slot = ring;
    if (++step < end) continue;
    const uint32_t buffer = n_done % kBuffers;
    if (n_done >= kBuffers) bar_sync<kEmpty>(barrier + buffer, n_threads);
    sums.store(parts + (buffer * n_warps + warp) * kSums, lane);
    bar_arrive<kFull>(barrier + buffer, n_threads);
    sums = {};
    ++n_done, step = begin, item = next_item(item);
    if (shape.kept) now = first_row;
  }
  wait_for_copies<0>();
}

template <Format F, uint32_t kRows>
void start_few(Launch& launch, const ProductArgs& args) {
  using Layout = FewLayout<F, kRows>;
  int device = 0, multiprocessors = 1, shared = 0;
  launch.note(cudaGetDevice(&device), "product");
  launch.note(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device), "product");
  launch.note(cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "product");
  const uint32_t n_items = args.parts[args.n_parts - 1].tiles_end / (args.glu ? 2 : 1), most = uint32_t(shared);
  FewShape shape = Layout::shape(args.n_in, kMostTeams, most, kFewInFlight);
  uint32_t n_ctas = uint32_t(multiprocessors);
  // Few tiles: two or four CTAs of a team, whose warps bring their own activations only and do not wait for each other
  // (6.9 us instead of 7.7 for 224 tiles of 3,584 columns of Q4_K and 16 rows).
  const uint32_t of_threads = Layout::kThreads / 32 / (shape.n_warps + 1), some = of_threads < 4 ? of_threads & ~1u : 4;
  if (n_items <= 4 * n_ctas && some >= 2) {
    const uint32_t each = max(most / some, 1024u) - 1024;
    const FewShape small = Layout::shape(args.n_in, 1, each, kFewInFlight / some);
    if (small.shared <= each) shape = small, n_ctas *= some;
  }
  launch.note(cudaFuncSetAttribute(reinterpret_cast<const void*>(few_kernel<F, kRows>),
                                   cudaFuncAttributeMaxDynamicSharedMemorySize, int(shape.shared)),
              "product");
  start(launch, "product", few_kernel<F, kRows>, dim3(min(n_items, n_ctas)),
        dim3(shape.n_teams * (shape.n_warps + 1) * 32), shape.shared, args, shape);
}

}  // namespace argent::cuda
