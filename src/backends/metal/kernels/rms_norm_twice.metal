// The norms around a residual: s = norm(x) * w + r, y = norm(s) * w2. A threadgroup a group; each element is read and
// written by one thread alone, so s may lie where x or r lies, and y where the other one lies.
//
// Grid {n_groups}, threads {32 n} up to 1024; threadgroup(0): two floats a SIMD-group, rounded up to 16 bytes. Two
// barriers, whatever the width; the second pass reads x and writes s, the third reads s, by the thread that has them in
// its cache.
#include "backends/metal/kernels/args_norm.h"
#include "backends/metal/kernels/dialect.h"

using namespace metal;
using namespace argent;

inline float square(float v) { return v * v; }
inline float square(float4 v) { return dot(v, v); }

// What the threads of a threadgroup have, together. `partial` is this sum's own.
inline float over_threadgroup(float mine, threadgroup float* partial, uint simdgroup, uint simdgroups, uint lane) {
  const float sum = simd_sum(mine);
  if (lane == 0) {
    partial[simdgroup] = sum;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float total = 0.0f;
  if (lane < simdgroups) {
    total = partial[lane];
  }
  return simd_sum(total);
}

template <class T>
inline void norm_twice(constant NormTwiceArgs& args, device const T* x, device const T* w, device const T* r,
                       device const T* w2, device T* s, device T* y, threadgroup float* partial, uint n, uint index,
                       uint threads, uint simdgroup, uint simdgroups, uint lane) {
  float squares = 0.0f;
  for (uint i = index; i < n; i += threads) {
    squares += square(x[i]);
  }
  squares = over_threadgroup(squares, partial, simdgroup, simdgroups, lane);
  const float first = precise::rsqrt(squares / float(args.group) + args.eps);
  float again = 0.0f;
  for (uint i = index; i < n; i += threads) {
    const T v = x[i] * first * w[i] + r[i];
    s[i] = v;
    again += square(v);
  }
  again = over_threadgroup(again, partial + simdgroups, simdgroup, simdgroups, lane);
  const float second = precise::rsqrt(again / float(args.group) + args.eps2);
  for (uint i = index; i < n; i += threads) {
    y[i] = s[i] * second * w2[i];
  }
}

kernel void rms_norm_twice(constant NormTwiceArgs& args [[buffer(0)]],    //
                           device const float* x [[buffer(1)]],           // [n_groups][group]
                           device const float* w [[buffer(2)]],           // [group]
                           device const float* r [[buffer(3)]],           // [n_groups][group]
                           device const float* w2 [[buffer(4)]],          // [group]
                           device float* s [[buffer(5)]],                 // [n_groups][group]
                           device float* y [[buffer(6)]],                 // [n_groups][group]
                           threadgroup float* partial MTL_TG(0),          //
                           uint3 group [[threadgroup_position_in_grid]],  //
                           uint3 size [[threads_per_threadgroup]],        //
                           uint index [[thread_index_in_threadgroup]],    //
                           uint simdgroup [[simdgroup_index_in_threadgroup]],
                           uint simdgroups [[simdgroups_per_threadgroup]],  //
                           uint lane [[thread_index_in_simdgroup]]) {
  const ulong first = ulong(group.x) * args.group;
  if (args.group % 4 == 0) {
    norm_twice(args, reinterpret_cast<device const float4*>(x + first), reinterpret_cast<device const float4*>(w),
               reinterpret_cast<device const float4*>(r + first), reinterpret_cast<device const float4*>(w2),
               reinterpret_cast<device float4*>(s + first), reinterpret_cast<device float4*>(y + first), partial,
               args.group / 4, index, size.x, simdgroup, simdgroups, lane);
  } else {
    norm_twice(args, x + first, w, r + first, w2, s + first, y + first, partial, args.group, index, size.x, simdgroup,
               simdgroups, lane);
  }
}
