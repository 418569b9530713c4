// The row of a product that has only one, in shared memory as int8: a warp brings the columns that it multiplies. It
// copies them from records of Q8, or makes them from f32, with the norm before them where there is one: then the norm
// and the rounding need no launch of their own, whose start and end cost more than doing the work in each CTA. The bits
// are those of norm() and quantize(): the same sums in the same order. Everything that a warp loads is on its way at
// once: one latency, not one a step.
#pragma once

#include "backends/cuda/part/kernels/kernels.h"
#include "backends/cuda/part/kernels/launch.cuh"
#include "backends/cuda/part/kernels/product_policy.h"
#include "backends/cuda/part/kernels/warp.cuh"

namespace argent::cuda {

struct SharedRow {
  uint8_t* quants;  // [n_steps][256], words of a group in the order of Q8
  float4* scales;   // [n_steps][8]: of a group: scale; scale * sum of the quants; the same of the first and last 16
};
__host__ __device__ constexpr uint32_t shared_row_bytes(uint32_t n_steps) { return n_steps * (256 + 8 * 16); }

class RowStage {
 public:
  // Steps [begin, end) of the row, of which a warp brings its own.
  __device__ __forceinline__ RowStage(const SharedRow& to, const OwnRow& own, uint32_t n_in, uint32_t begin,
                                      uint32_t end)
      : to_(to), own_(own), n_in_(n_in), begin_(begin), end_(end), lane_(threadIdx.x % kLanes) {}

  // Before the wait: what no kernel writes.
  __device__ __forceinline__ void fetch_weights() {
#pragma unroll
    for (uint32_t h = 0; h < kNormed; ++h) load(w_[h], own_.norm, begin_ + h, 1.0f);
  }

  // From f32.
  __device__ __forceinline__ void make() {
    if (own_.squares != nullptr)
      make_normed();
    else
      make_rounded();
    __syncwarp();
  }

  // From the first row of the records of Q8.
  __device__ __forceinline__ void copy(const uint8_t* records) {
    const uint32_t n_groups = n_in_ / 32;
    for (uint32_t first = begin_; first < end_; first += kHeld) {
      uint2 quants[kHeld];
      float4 scales[kHeld];
#pragma unroll
      for (uint32_t h = 0; h < kHeld; ++h) {
        const uint32_t step = first + h, group = 8 * step + lane_ / 4, of_scales = 8 * step + lane_ % 8;
        quants[h] = make_uint2(0, 0), scales[h] = make_float4(0, 0, 0, 0);
        if (step < end_ && group < n_groups)
          quants[h] = reinterpret_cast<const uint2*>(records + group * kQ8Record)[lane_ % 4];
        if (step < end_ && lane_ < 8 && of_scales < n_groups) {
          const float* from = reinterpret_cast<const float*>(records + of_scales * kQ8Record + 256);
          scales[h] = make_float4(from[0], from[8], from[16], from[17]);
        }
      }
#pragma unroll
      for (uint32_t h = 0; h < kHeld; ++h) {
        if (first + h >= end_) break;
        reinterpret_cast<uint2*>(to_.quants + 256 * (first + h))[lane_] = quants[h];
        if (lane_ < 8) to_.scales[8 * (first + h) + lane_] = scales[h];
      }
    }
    __syncwarp();
  }

 private:
  // Steps whose elements a lane holds at a time: with the norm's weights beside them; without.
  static constexpr uint32_t kNormed = 2, kHeld = 4;

  // A lane has eight neighbouring columns of a step.
  __device__ __forceinline__ void load(float (&to)[8], const float* from, uint32_t step, float otherwise) const {
    const uint32_t column = 256 * step + 8 * lane_;
    float4 low = make_float4(otherwise, otherwise, otherwise, otherwise), high = low;
    if (from != nullptr && step < end_ && column < n_in_) {
      low = reinterpret_cast<const float4*>(from + column)[0];
      high = reinterpret_cast<const float4*>(from + column)[1];
    }
    to[0] = low.x, to[1] = low.y, to[2] = low.z, to[3] = low.w;
    to[4] = high.x, to[5] = high.y, to[6] = high.z, to[7] = high.w;
  }

  __device__ __forceinline__ void make_rounded() const {
    for (uint32_t first = begin_; first < end_; first += kHeld) {
      float x[kHeld][8];
#pragma unroll
      for (uint32_t h = 0; h < kHeld; ++h) load(x[h], own_.x, first + h, 0.0f);
#pragma unroll
      for (uint32_t h = 0; h < kHeld; ++h)
        if (first + h < end_) round(first + h, x[h]);
    }
  }

  __device__ __forceinline__ void make_normed() {
    float x[kNormed][8];
#pragma unroll
    for (uint32_t h = 0; h < kNormed; ++h) load(x[h], own_.x, begin_ + h, 0.0f);
    const float inverse =
        inverse_root(sum_of_pieces(own_.squares, (n_in_ + kNormPiece - 1) / kNormPiece), n_in_, own_.eps);
    for (uint32_t first = begin_;;) {
#pragma unroll
      for (uint32_t h = 0; h < kNormed; ++h) {
        if (first + h >= end_) break;
#pragma unroll
        for (uint32_t k = 0; k < 8; ++k) x[h][k] = __fmul_rn(__fmul_rn(x[h][k], inverse), w_[h][k]);
        round(first + h, x[h]);
      }
      if ((first += kNormed) >= end_) break;
#pragma unroll
      for (uint32_t h = 0; h < kNormed; ++h)
        load(w_[h], own_.norm, first + h, 1.0f), load(x[h], own_.x, first + h, 0.0f);
    }
  }

  // Eight groups to int8, four lanes each, as store_quantized() does.
  __device__ __forceinline__ void round(uint32_t step, const float (&x)[8]) const {
    // Magnitudes are ordered as their bits are; what is not finite is above all others.
    uint32_t most = 0;
#pragma unroll
    for (uint32_t k = 0; k < 8; ++k) most = max(most, __float_as_uint(x[k]) & 0x7fffffff);
    most = max(most, __shfl_xor_sync(~0u, most, 1));
    most = max(most, __shfl_xor_sync(~0u, most, 2));
    const bool finite = most < 0x7f800000;
    const float amax = __uint_as_float(most);
    const bool tiny = amax < 0x1p-100f;
    const float scale = !finite ? __int_as_float(0x7fffffff) : tiny ? 0.0f : __fdiv_rn(amax, 127.0f);
    const float factor = finite && !tiny ? __fdiv_rn(127.0f, amax) : 0.0f;
    // To the nearest integer by a sum whose last bit is 1: a conversion takes eight times as long.
    uint32_t q[8];
#pragma unroll
    for (uint32_t k = 0; k < 8; ++k) q[k] = __float_as_uint(__fadd_rn(__fmul_rn(x[k], factor), 12582912.0f));
    uint32_t words[2];
#pragma unroll
    for (uint32_t k = 0; k < 2; ++k)
      words[k] = finite ? __byte_perm(__byte_perm(q[4 * k], q[4 * k + 1], 0x40),
                                      __byte_perm(q[4 * k + 2], q[4 * k + 3], 0x40), 0x5410)
                        : 0;
    // Lanes 0 and 1 of four have a group's first 16, words 0 to 3, which go to places 0, 2, 4 and 6.
    const uint32_t of_four = lane_ % 4, place = of_four < 2 ? 4 * of_four : 4 * of_four - 7;
    uint32_t* const to = reinterpret_cast<uint32_t*>(to_.quants + 256 * step + 8 * (lane_ - of_four));
    to[place] = words[0], to[place + 2] = words[1];
    int half = __dp4a(int(words[0]), 0x01010101, __dp4a(int(words[1]), 0x01010101, 0));
    half += __shfl_xor_sync(~0u, half, 1);
    const int other = __shfl_xor_sync(~0u, half, 2);
    if (of_four == 0)
      to_.scales[8 * step + lane_ / 4] =
          make_float4(scale, scale * float(half + other), scale * float(half), scale * float(other));
  }

  const SharedRow& to_;
  const OwnRow& own_;
  const uint32_t n_in_, begin_, end_, lane_;
  float w_[kNormed][8];
};

}  // namespace argent::cuda
