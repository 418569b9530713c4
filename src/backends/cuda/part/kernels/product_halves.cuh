// Weights of product_wide.cuh: copies of a warp's panel of 16 rows to shared memory, and from there halves in
// registers.
#pragma once

#include <cuda_fp16.h>

#include "backends/cuda/part/kernels/product.cuh"

namespace argent::cuda {

// Where a lane copies a panel's weights from, 16 bytes of each plane; and its copies of chunks [begin, end) of a step.
template <Format F>
struct PanelCopies {
  using B = StepBytes<F>;
  const uint8_t *p8, *p4, *p2, *p1, *scales;
  __device__ __forceinline__ void go_to(const PartArgs& part, uint32_t unit, uint32_t lane) {
    const auto at = [&](const uint8_t* plane, uint32_t bytes) { return plane + uint64_t(unit) * bytes + lane * 16; };
    if constexpr (B::kP8 > 0) p8 = at(part.p8, B::kP8);
    if constexpr (B::kP4 > 0) p4 = at(part.p4, B::kP4);
    if constexpr (B::kP2 > 0) p2 = at(part.p2, B::kP2);
    if constexpr (B::kP1 > 0) p1 = at(part.p1, B::kP1);
    scales = at(part.scales, B::kScales);
  }
  // to: of the step's room, and the lane; step: its first chunk.
  __device__ __forceinline__ void copy(uint8_t* to, uint32_t step, uint32_t begin, uint32_t end, uint32_t lane) const {
    const bool whole = begin == 0 && end == kStepChunks;
    const auto plane = [&]<uint32_t kBytes>(uint32_t first, const uint8_t* of_lane, bool all) {
      if constexpr (kBytes > 0) {
        const uint8_t* from = of_lane + step * kBytes;
        uint8_t* own = to + first;
        if (all || whole) {
#pragma unroll
          for (uint32_t i = 0; i < kStepChunks * kBytes; i += 512)
            if (i + 512 <= kStepChunks * kBytes || i + lane * 16 < kStepChunks * kBytes) copy_16(own + i, from + i);
        } else {
#pragma unroll 1
          for (uint32_t i = 0; i < kStepChunks * kBytes; i += 512)
            if (i + lane * 16 >= begin * kBytes && i + lane * 16 < end * kBytes) copy_16(own + i, from + i);
        }
      }
    };
    plane.template operator()<B::kP8>(0, p8, false);
    plane.template operator()<B::kP4>(B::kFirstP4, p4, false);
    plane.template operator()<B::kP2>(B::kFirstP2, p2, false);
    plane.template operator()<B::kP1>(B::kFirstP1, p1, false);
    plane.template operator()<B::kScales>(B::kFirstScales, scales, by_256(B::s.scales));
  }
};

__device__ __forceinline__ uint32_t bits_of(__half2 x) { return reinterpret_cast<const uint32_t&>(x); }
__device__ __forceinline__ __half2 halves_of(uint32_t x) { return reinterpret_cast<const __half2&>(x); }

// How a lane's quants of a chunk become halves.
template <Format F>
struct HalfWeights {
  using B = StepBytes<F>;
  static constexpr PlaneShape s = plane_shape<F>();
  static constexpr bool kNibbles = s.p4 && !s.p2 && !s.p1 && !s.lookup;  // taken from p4 as they are
  static constexpr uint32_t kSides = 32 / s.group;
  // Quants are unsigned; those of formats without mins are kZero too large.
  static constexpr uint32_t kZero = s.min ? 0 : kNibbles ? 8 : 128;
  static constexpr float kDown = s.min || kNibbles ? 1.0f : 1.0f / float(1 << s.shift);
  // In the middle of the quants, where the rounding of a scale shall change nothing.
  static constexpr float kMiddle = s.p4 ? (s.p1 ? 15.5f : 7.5f) : 1.5f;

  uint32_t packed[2][2][kSides];  // of chunk lane % 4 of the step: [group][row of the lane][side]
  const uint8_t* at;
  uint32_t lane;

  // factor: of the lane's rows.
  __device__ __forceinline__ HalfWeights(const uint8_t* step, const float (&factor)[2], uint32_t of_lane)
      : at(step), lane(of_lane) {
    const StepWeights<F, true> w(step, lane);
#pragma unroll
    for (uint32_t group = 0; group < 2; ++group)
#pragma unroll
      for (uint32_t upper = 0; upper < 2; ++upper)
#pragma unroll
        for (uint32_t side = 0; side < kSides; ++side) {
          const ScaleMin of = w.scale(2 * (lane % 4) + group, side, upper);
          const float scale = __fmul_rn(of.scale, factor[upper] * kDown);
          const __half rounded = __float2half_rn(scale);
          float min;
          if constexpr (s.min)
            min = __fmaf_rn(of.min, factor[upper], __fmul_rn(kMiddle, __fsub_rn(scale, __half2float(rounded))));
          else
            min = __fmul_rn(-float(kZero), __half2float(rounded));
          packed[group][upper][side] = bits_of(__halves2half2(rounded, __float2half_rn(__fmul_rn(min, 0x1p-24f))));
        }
  }

  // What a lane has of chunk c of the step.
  struct Chunk {
    uint4 p4 = {}, p8[s.p8 ? 2 : 1] = {};
    uint2 p2 = {};
    uint32_t p1 = 0, scales[2][2][kSides];
  };
  __device__ __forceinline__ Chunk chunk(uint32_t c) const {
    Chunk k;
    if constexpr (s.p8)
      for (uint32_t group = 0; group < 2; ++group)
        k.p8[group] = reinterpret_cast<const uint4*>(at + c * B::kP8)[32 * group + lane];
    if constexpr (s.p4) k.p4 = reinterpret_cast<const uint4*>(at + B::kFirstP4 + c * B::kP4)[lane];
    if constexpr (s.p2) k.p2 = reinterpret_cast<const uint2*>(at + B::kFirstP2 + c * B::kP2)[lane];
    if constexpr (s.p1) k.p1 = reinterpret_cast<const uint32_t*>(at + B::kFirstP1 + c * B::kP1)[lane];
#pragma unroll
    for (uint32_t group = 0; group < 2; ++group)
#pragma unroll
      for (uint32_t upper = 0; upper < 2; ++upper)
#pragma unroll
        for (uint32_t side = 0; side < kSides; ++side)
          k.scales[group][upper][side] = __shfl_sync(~0u, packed[group][upper][side], (lane & 28) | c);
    return k;
  }

  // The A operand of the chunk's columns 16 kPart to 16 kPart + 15.
  template <uint32_t kPart>
  static __device__ __forceinline__ void convert(const Chunk& k, uint32_t (&f)[4]) {
    constexpr uint32_t kGroup = kPart / 2, kHalf = kPart % 2;
    const auto pair = [&](uint32_t quants, __half2 times, __half2 plus) {
      return bits_of(__hfma2(halves_of(quants), times, plus));
    };
#pragma unroll
    for (uint32_t upper = 0; upper < 2; ++upper) {
      const __half2 both = halves_of(k.scales[kGroup][upper][kSides == 2 ? kHalf : 0]);
      const __half2 scale = __low2half2(both), min = __high2half2(both);
      const uint32_t p4 = kGroup ? (upper ? k.p4.w : k.p4.z) : (upper ? k.p4.y : k.p4.x);
      if constexpr (kNibbles) {
        constexpr uint32_t kMask = kHalf ? 0x00f000f0 : 0x000f000f, kFlip = s.min ? 0 : kMask & 0x00880088;
        // The high nibble is 16 times as much where it is.
        const __half2 times = kHalf ? __hmul2(scale, __float2half2_rn(0.0625f)) : scale;
        f[upper] = pair((p4 & kMask) ^ kFlip, times, min);
        f[2 + upper] = pair((p4 >> 8 & kMask) ^ kFlip, times, min);
      } else {
        constexpr uint32_t i = 2 * kHalf;  // of the words a0 to a3, + upper
        uint32_t word;
        if constexpr (s.p8) {
          const uint4& p8 = k.p8[kGroup];
          word = kHalf ? (upper ? p8.w : p8.z) : (upper ? p8.y : p8.x);
        } else {
          word = levels<F>(kHalf ? p4 >> 4 : p4, (kGroup ? k.p2.y : k.p2.x) >> 2 * (i + upper),
                           k.p1 >> (4 * kGroup + i + upper));
        }
        if constexpr (!s.min) word ^= 0x80808080;
        f[upper] = pair(word & 0x00ff00ff, scale, min);
        f[2 + upper] = pair(word >> 8 & 0x00ff00ff, scale, min);
      }
    }
  }
};

}  // namespace argent::cuda
