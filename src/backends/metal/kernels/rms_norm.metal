// RMS norms over groups of elements, which lie one after the other: whole rows, or the heads of a row. Function
// constants make of each kernel four ops:
//
//                 weight  before  after
//   rms_norm                               y = norm(x)
//   norm_mul        yes                    y = norm(x) * w
//   add_norm_mul    yes     yes            s = x + r, y = norm(s) * w
//   norm_mul_add    yes             yes    y = norm(x) * w + r
//
// Every element is read and written by one thread alone, so s and y may lie where x or r lies. Buffers that an op does
// not name are not touched, but bound all the same; s to one that may be written.
//
// rms_norm        a threadgroup a group, for rows: one barrier, whatever the width. Grid {n_groups}, threads {32 n} up
//                 to 1024, threadgroup(0): a float a SIMD-group, rounded up to 16 bytes.
// rms_norm_heads  a SIMD-group a group, for heads: no barrier, no threadgroup memory. Grid {n_groups / SIMD-groups of a
//                 threadgroup, rounded up}, threads {32 n}, 128 unless there are fewer groups.
//
// kNormFours of 1 to 8: a thread keeps that many float4 in registers between the two passes, so x is read once. Wants a
// group that is a multiple of 4, x, w, r, s, y at multiples of 16 bytes, and 4 * kNormFours * threads (of a SIMD-group
// in rms_norm_heads: 32) to be at least the group: up to 32768 elements of rows, 1024 of heads. 4 (16 registers) is a
// good choice where it suffices. 0: any group, and x is read twice.
#include "backends/metal/kernels/args_norm.h"
#include "backends/metal/kernels/dialect.h"

using namespace metal;
using namespace argent;

MTL_FC(bool, kNormHasWeight, 0);
MTL_FC(bool, kNormAddsBefore, 1);
MTL_FC(bool, kNormAddsAfter, 2);
MTL_FC(uint, kNormFours, 3);

enum : uint { kMostFours = 8 };

// What is normalised at i.
template <class T>
inline T norm_input(device const T* x, device const T* r, device T* s, uint i) {
  T v = x[i];
  if (kNormAddsBefore) {
    v += r[i];
    s[i] = v;
  }
  return v;
}

template <class T>
inline void norm_output(T v, float scale, device const T* w, device const T* r, device T* y, uint i) {
  v *= scale;
  if (kNormHasWeight) {
    v *= w[i];
  }
  if (kNormAddsAfter) {
    v += r[i];
  }
  y[i] = v;
}

// The sum of squares of this lane's part of a group of n elements.
inline float norm_read(device const float* x, device const float* r, device float* s, thread float4* kept, uint n,
                       uint lane, uint lanes) {
  float sum = 0.0f;
  if (kNormFours == 0) {
    for (uint i = lane; i < n; i += lanes) {
      const float v = norm_input(x, r, s, i);
      sum += v * v;
    }
    return sum;
  }
  MTL_UNROLL
  for (uint k = 0; k < kMostFours; k++) {
    if (k < kNormFours) {  // not mutated: the group's end holds as well; this says how many registers there are
      const uint i = lane + k * lanes;
      if (i < n / 4) {
        kept[k] = norm_input(reinterpret_cast<device const float4*>(x), reinterpret_cast<device const float4*>(r),
                             reinterpret_cast<device float4*>(s), i);
        sum += dot(kept[k], kept[k]);
      }
    }
  }
  return sum;
}

inline void norm_write(device const float* x, device const float* w, device const float* r, device float* y,
                       thread const float4* kept, float scale, uint n, uint lane, uint lanes) {
  if (kNormFours == 0) {
    for (uint i = lane; i < n; i += lanes) {
      norm_output(x[i], scale, w, r, y, i);
    }
    return;
  }
  MTL_UNROLL
  for (uint k = 0; k < kMostFours; k++) {
    if (k < kNormFours) {  // not mutated: as above
      const uint i = lane + k * lanes;
      if (i < n / 4) {
        norm_output(kept[k], scale, reinterpret_cast<device const float4*>(w),
                    reinterpret_cast<device const float4*>(r), reinterpret_cast<device float4*>(y), i);
      }
    }
  }
}

kernel void rms_norm(constant RmsNormArgs& args [[buffer(0)]],      //
                     device const float* x [[buffer(1)]],           // [n_groups][group]
                     device const float* w [[buffer(2)]],           // [group]
                     device const float* r [[buffer(3)]],           // [n_groups][group]
                     device float* s [[buffer(4)]],                 // [n_groups][group]
                     device float* y [[buffer(5)]],                 // [n_groups][group]
                     threadgroup float* partial MTL_TG(0),          //
                     uint3 group [[threadgroup_position_in_grid]],  //
                     uint3 size [[threads_per_threadgroup]],        //
                     uint index [[thread_index_in_threadgroup]],    //
                     uint simdgroup [[simdgroup_index_in_threadgroup]],
                     uint simdgroups [[simdgroups_per_threadgroup]],  //
                     uint lane [[thread_index_in_simdgroup]]) {
  const ulong first = ulong(group.x) * args.group;
  float4 kept[kMostFours];
  float sum = norm_read(x + first, r + first, s + first, kept, args.group, index, size.x);
  sum = simd_sum(sum);
  if (lane == 0) {
    partial[simdgroup] = sum;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float total = 0.0f;
  if (lane < simdgroups) {
    total = partial[lane];
  }
  total = simd_sum(total);
  const float scale = precise::rsqrt(total / float(args.group) + args.eps);
  device const float* from = kNormAddsBefore ? s : x;
  norm_write(from + first, w, r + first, y + first, kept, scale, args.group, index, size.x);
}

kernel void rms_norm_heads(constant RmsNormArgs& args [[buffer(0)]],      //
                           device const float* x [[buffer(1)]],           // as of rms_norm
                           device const float* w [[buffer(2)]],           //
                           device const float* r [[buffer(3)]],           //
                           device float* s [[buffer(4)]],                 //
                           device float* y [[buffer(5)]],                 //
                           uint3 group [[threadgroup_position_in_grid]],  //
                           uint simdgroup [[simdgroup_index_in_threadgroup]],
                           uint simdgroups [[simdgroups_per_threadgroup]],  //
                           uint lane [[thread_index_in_simdgroup]]) {
  const uint mine = group.x * simdgroups + simdgroup;
  const uint n = mine < args.n_groups ? args.group : 0;  // all lanes come to simd_sum
  const ulong first = ulong(mine) * args.group;
  float4 kept[kMostFours];
  float sum = norm_read(x + first, r + first, s + first, kept, n, lane, 32);
  sum = simd_sum(sum);
  const float scale = precise::rsqrt(sum / float(args.group) + args.eps);
  device const float* from = kNormAddsBefore ? s : x;
  norm_write(from + first, w, r + first, y + first, kept, scale, n, lane, 32);
}
