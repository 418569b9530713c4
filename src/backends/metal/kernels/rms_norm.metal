// RMS norm: a threadgroup a row. threadgroup(0) holds a float a SIMD-group.
#include "backends/metal/kernels/args.h"
#include "backends/metal/kernels/dialect.h"

using namespace metal;
using namespace argent;

MTL_FC(bool, kNormHasWeight, 0);

kernel void rms_norm(constant RmsNormArgs& args [[buffer(0)]],      //
                     device const float* x [[buffer(1)]],           //
                     device const float* weight [[buffer(2)]],      //
                     device float* y [[buffer(3)]],                 //
                     threadgroup float* partial MTL_TG(0),          //
                     uint3 group [[threadgroup_position_in_grid]],  //
                     uint3 size [[threads_per_threadgroup]],        //
                     uint index [[thread_index_in_threadgroup]],    //
                     uint simdgroup [[simdgroup_index_in_threadgroup]],
                     uint simdgroups [[simdgroups_per_threadgroup]],  //
                     uint lane [[thread_index_in_simdgroup]]) {
  device const float* row = x + ulong(group.x) * args.cols;
  device float* out = y + ulong(group.x) * args.cols;
  // Rows begin at a multiple of four floats only if the row's length is one.
  const uint fours = args.cols % 4 == 0 ? args.cols / 4 : 0;
  float sum = 0.0f;
  for (uint i = index; i < fours; i += size.x) {
    const float4 v = reinterpret_cast<device const float4*>(row)[i];
    sum += dot(v, v);
  }
  for (uint i = 4 * fours + index; i < args.cols; i += size.x) {
    sum += row[i] * row[i];
  }
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
  const float scale = rsqrt(total / float(args.cols) + args.eps);
  for (uint i = index; i < fours; i += size.x) {
    float4 v = reinterpret_cast<device const float4*>(row)[i] * scale;
    if (kNormHasWeight) {
      v *= reinterpret_cast<device const float4*>(weight)[i];
    }
    reinterpret_cast<device float4*>(out)[i] = v;
  }
  for (uint i = 4 * fours + index; i < args.cols; i += size.x) {
    out[i] = row[i] * scale * (kNormHasWeight ? weight[i] : 1.0f);
  }
}
