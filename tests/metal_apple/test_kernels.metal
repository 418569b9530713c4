// Kernels for tests of the host layer, which shall not change with those of the backend.
#include "backends/metal/kernels/dialect.h"
#include "metal_apple/test_kernels.h"

using namespace metal;
using namespace argent;

MTL_FC(bool, kTestHasWeight, 60);

// RMS norm of a row, by one threadgroup. threadgroup(0) holds a float a SIMD-group.
kernel void test_norm(constant TestNormArgs& args [[buffer(0)]],  //
                      device const float* x [[buffer(1)]],        //
                      device const float* weight [[buffer(2)]],   //
                      device float* y [[buffer(3)]],              //
                      threadgroup float* partial MTL_TG(0),       //
                      uint3 size [[threads_per_threadgroup]],     //
                      uint index [[thread_index_in_threadgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]],
                      uint simdgroups [[simdgroups_per_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  float sum = 0.0f;
  for (uint i = index; i < args.cols; i += size.x) {
    sum += x[i] * x[i];
  }
  sum = simd_sum(sum);
  if (lane == 0) {
    partial[simdgroup] = sum;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float total = 0.0f;
  for (uint i = 0; i < simdgroups; i++) {
    total += partial[i];
  }
  const float scale = rsqrt(total / float(args.cols) + args.eps);
  for (uint i = index; i < args.cols; i += size.x) {
    y[i] = x[i] * scale * (kTestHasWeight ? weight[i] : 1.0f);
  }
}

kernel void test_copy(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                      uint index [[thread_index_in_threadgroup]]) {
  y[index] = x[index];
}
