// RMS norms over groups of a row, with what stands before and after them in a model: one kernel, whose optional
// operands are null where they are absent.
//
//   s = a (+ b)          b: add_norm
//   y = norm(s)
//   s = y + r, y = norm2(s)   r: norm_add (without the second norm) and norm_add_norm
//
// A group is held in registers, kPer elements a lane, element 32 k + lane of a warp's share: loads are coalesced, rows
// may have any width and alignment, and 32 lanes hold a group of Q8. Rows, and groups of more than 512, have a CTA each
// and one barrier a norm; heads have a warp each and none. The order of a sum depends on the width alone (warp.cuh), so
// a row's result never depends on the others.
#include <cuda_fp16.h>

#include "backends/cuda/part/kernels/kernels.h"
#include "backends/cuda/part/kernels/launch.cuh"
#include "backends/cuda/part/kernels/product_rows.cuh"
#include "backends/cuda/part/kernels/quantize.cuh"
#include "backends/cuda/part/kernels/warp.cuh"

namespace argent::cuda {
namespace {

constexpr uint32_t kMostThreads = 1024, kMostWarps = kMostThreads / kLanes;
constexpr uint32_t kHeadWarps = 4;   // groups of a CTA where a warp has one
constexpr uint32_t kMostHead = 512;  // elements of a group that one warp holds

struct Operands {
  const float *a, *b, *r;        // b and r may be null
  const float *w, *w2;           // null: no weight
  float *s, *y;                  // s: a + b, or what the second norm reads; either may be null
  Q8 q;                          // of y
  WideRows rows{nullptr, 0, 0};  // of y; x is null where q is the form
  uint64_t n_groups;             // of all rows
  uint32_t group, groups_of_row;
  uint32_t n_w, n_w2;  // weights repeat along the row
  float eps, eps2;
  bool again;  // there is a second norm
};

// A row of f16, held by a CTA: element 32 k + lane of those from `begin` on is x[k] of a lane. The same bits as
// wide_rows() makes.
template <uint32_t kPer>
__device__ __forceinline__ void store_wide(const WideRows& to, uint32_t row, uint32_t n, uint32_t begin,
                                           const float (&x)[kPer], uint32_t (&most_of_warp)[kMostWarps]) {
  const uint32_t lane = threadIdx.x % kLanes;
  uint32_t most = 0;
#pragma unroll
  for (uint32_t k = 0; k < kPer; ++k) most = max(most, begin + k * kLanes < n ? __float_as_uint(x[k]) & 0x7fffffff : 0);
  most = __reduce_max_sync(kAllLanes, most);
  if (lane == 0) most_of_warp[threadIdx.x / kLanes] = most;
  if (row == 0)
    for (uint32_t i = threadIdx.x; i < kMostShares * kShareFlags; i += blockDim.x) to.flags[i] = 0;
  __syncthreads();
  const RowScale of(__reduce_max_sync(kAllLanes, lane < blockDim.x / kLanes ? most_of_warp[lane] : 0));
  if (threadIdx.x == 0) to.inverse[row] = of.inverse;
  const auto scaled = [&](uint32_t k) { return of.finite && begin + k * kLanes < n ? x[k] * of.scale : 0.0f; };
  // Neighbours of 32 bits are columns c and c + 2, of lanes that differ in bit 1: one of them has those of k, the other
  // those of k + 1.
  const bool second = lane & 2;
#pragma unroll
  for (uint32_t k = 0; k < kPer; k += 2) {
    const float a = scaled(k), b = scaled(k + 1), other = __shfl_xor_sync(kAllLanes, second ? a : b, 2);
    const __half2 pair = second ? __floats2half2_rn(other, b) : __floats2half2_rn(a, other);
    const uint32_t column = begin + (k + second) * kLanes + (lane & ~2u), chunk = column / kWideChunk;
    if (chunk * kWideChunk < n)  // columns beyond n are zero
      reinterpret_cast<__half2*>(
          wide_unit(to, row, chunk, column % kWideChunk / 16 * 2 + column % 2))[column % 16 / 4] = pair;
  }
}

template <uint32_t kPer, bool kOwnWarp>
__global__ void __launch_bounds__(kOwnWarp ? kHeadWarps* kLanes : kMostThreads) norm_kernel(const Operands o) {
  __shared__ float pieces[2][kOwnWarp ? 1 : kPer * kMostThreads / kNormPiece];
  const uint32_t lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes;
  const uint64_t at = kOwnWarp ? uint64_t(blockIdx.x) * kHeadWarps + warp : blockIdx.x;
  const uint32_t begin = kOwnWarp ? 0 : warp * kPer * kLanes;  // of the warp's elements in the group
  const uint32_t first = begin + lane;
  const uint32_t of_row = uint32_t(at % o.groups_of_row) * o.group;  // the group's first element in its row
  const uint64_t base = at * o.group;
  // Weights and addends: all of a lane's at once, on their way before they are wanted, or, where registers do not
  // suffice for that, four at a time.
  constexpr bool kEarly = kPer <= 8;
  constexpr uint32_t kHeld = kEarly ? kPer : 4;
  float x[kPer], w[kHeld], w2[kHeld], r[kHeld];
  const auto weights = [&](float(&to)[kHeld], const float* from, uint32_t n_w, uint32_t k0) {
#pragma unroll
    for (uint32_t k = 0; k < kHeld; ++k) {
      const uint32_t i = first + (k0 + k) * kLanes, column = of_row + i;
      to[k] = from != nullptr && i < o.group ? from[column < n_w ? column : column % n_w] : 1.0f;
    }
  };
  const auto addends = [&](const float* from, uint32_t k0) {
#pragma unroll
    for (uint32_t k = 0; k < kHeld; ++k) {
      const uint32_t i = first + (k0 + k) * kLanes;
      r[k] = i < o.group ? from[base + i] : 0.0f;
    }
  };
  const auto add = [&](const float* from, bool read) {
#pragma unroll
    for (uint32_t k0 = 0; k0 < kPer; k0 += kHeld) {
      if (read) addends(from, k0);
#pragma unroll
      for (uint32_t k = 0; k < kHeld; ++k) x[k0 + k] = __fadd_rn(x[k0 + k], r[k]);
    }
  };
  const auto squares = [&](float* shared) {
    if constexpr (kOwnWarp) return warp_sum(sum_of_squares(x));
#pragma unroll
    for (uint32_t k = 0; k < kPer; ++k) {
      const float piece = piece_of_squares(x[k]);
      if (lane % kNormPiece == 0) shared[(begin + k * kLanes + lane) / kNormPiece] = piece;
    }
    __syncthreads();
    return sum_of_pieces(shared, (o.group + kNormPiece - 1) / kNormPiece);
  };
  const auto normalize = [&](float(&weight)[kHeld], const float* from, uint32_t n_w, float eps, float* shared) {
    const float inverse = inverse_root(squares(shared), o.group, eps);
#pragma unroll
    for (uint32_t k0 = 0; k0 < kPer; k0 += kHeld) {
      if (!kEarly) weights(weight, from, n_w, k0);
#pragma unroll
      for (uint32_t k = 0; k < kHeld; ++k) x[k0 + k] = __fmul_rn(__fmul_rn(x[k0 + k], inverse), weight[k]);
    }
  };
  const auto store = [&](float* to) {
#pragma unroll
    for (uint32_t k = 0; k < kPer; ++k) {
      const uint32_t i = first + k * kLanes;
      if (to != nullptr && i < o.group) to[base + i] = x[k];
    }
  };

  if (kEarly) weights(w, o.w, o.n_w, 0);
  if (kEarly && o.again) weights(w2, o.w2, o.n_w2, 0);
  let_next_start();
  wait_for_previous();
  if (kOwnWarp && at >= o.n_groups) return;
#pragma unroll
  for (uint32_t k = 0; k < kPer; ++k) {
    const uint32_t i = first + k * kLanes;
    x[k] = i < o.group ? o.a[base + i] : 0.0f;
  }
  if (o.b != nullptr) {
    add(o.b, true);
    store(o.s);
  }
  if (kEarly && o.r != nullptr) addends(o.r, 0);
  normalize(w, o.w, o.n_w, o.eps, pieces[0]);
  if (o.r != nullptr) add(o.r, !kEarly);
  if (o.again) {
    store(o.s);
    normalize(w2, o.w2, o.n_w2, o.eps2, pieces[1]);
  }
  store(o.y);
  if (o.q.q != nullptr)  // the group is the row, a multiple of 32: whole warps
#pragma unroll
    for (uint32_t k = 0; k < kPer; ++k)
      if (begin + k * kLanes < o.group) store_quantized(o.q, uint32_t(at), begin / kLanes + k, x[k]);
  if constexpr (!kOwnWarp) {
    __shared__ uint32_t most_of_warp[kMostWarps];
    if (o.rows.x != nullptr) store_wide(o.rows, uint32_t(at), o.group, begin, x, most_of_warp);
  }
}

void launch_norm(Launch& launch, const char* name, const Norm& n, Operands o) {
  o.group = n.group, o.groups_of_row = n.width / n.group, o.n_groups = uint64_t(n.n_rows) * o.groups_of_row;
  o.w = n.w, o.n_w = n.w == nullptr ? 1 : n.n_w, o.eps = n.eps;
  if (o.n_groups == 0) return;
  if (o.q.q != nullptr && wide(launch, n.n_rows)) o.rows = WideRows(o.q.q, n.n_rows, n.width), o.q = {};
  if (n.group != n.width && n.group <= kMostHead) {
    const uint32_t grid = uint32_t((o.n_groups + kHeadWarps - 1) / kHeadWarps);
    start(launch, name, n.group <= 128 ? norm_kernel<4, true> : norm_kernel<16, true>, grid, kHeadWarps * kLanes, 0, o);
    return;
  }
  // One element a thread would be a barrier of more warps; four are the loads that a thread has under way anyway.
  const uint32_t per = n.group <= 4 * kMostThreads    ? 4
                       : n.group <= 8 * kMostThreads  ? 8
                       : n.group <= 16 * kMostThreads ? 16
                                                      : 32;
  const uint32_t warps = (n.group + per * kLanes - 1) / (per * kLanes);
  if (warps > kMostWarps) return launch.note(cudaErrorInvalidValue, name);
  start(launch, name,
        per == 4    ? norm_kernel<4, false>
        : per == 8  ? norm_kernel<8, false>
        : per == 16 ? norm_kernel<16, false>
                    : norm_kernel<32, false>,
        uint32_t(o.n_groups), warps * kLanes, 0, o);
}

}  // namespace

void norm(Launch& launch, const Norm& n, const float* x, float* y, const Q8& to) {
  Operands o = {};
  o.a = x, o.y = y, o.q = to;
  launch_norm(launch, "norm", n, o);
}

void add_norm(Launch& launch, const Norm& n, const float* a, const float* b, float* s, float* y, const Q8& to) {
  Operands o = {};
  o.a = a, o.b = b, o.s = s, o.y = y, o.q = to;
  launch_norm(launch, "add_norm", n, o);
}

void norm_add(Launch& launch, const Norm& n, const float* x, const float* r, float* y) {
  Operands o = {};
  o.a = x, o.r = r, o.y = y;
  launch_norm(launch, "norm_add", n, o);
}

void norm_add_norm(Launch& launch, const Norm& n, const Norm& n2, const float* x, const float* r, float* s, float* y,
                   const Q8& to) {
  Operands o = {};
  o.a = x, o.r = r, o.s = s, o.y = y, o.q = to;
  o.again = true, o.w2 = n2.w, o.n_w2 = n2.w == nullptr ? 1 : n2.n_w, o.eps2 = n2.eps;
  launch_norm(launch, "norm_add_norm", n, o);
}

}  // namespace argent::cuda
