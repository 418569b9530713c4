// Products and table rows of float formats whose rows are no multiple of eight elements: one element at a time. Models
// have no such shapes; files may.
#include "backends/metal/kernels/args.h"
#include "backends/metal/kernels/dialect.h"

using namespace metal;
using namespace argent;

inline float plain_f32(device const void* w, ulong i) { return static_cast<device const float*>(w)[i]; }
inline float plain_f16(device const void* w, ulong i) { return float(static_cast<device const half*>(w)[i]); }
inline float plain_bf16(device const void* w, ulong i) {
  return as_type<float>(uint(static_cast<device const ushort*>(w)[i]) << 16);
}

// Which of the three `w` is: 0 f32, 1 f16, 2 bf16.
MTL_FC(uint, kPlainFormat, 60);

inline float plain_element(device const void* w, ulong i) {
  if (kPlainFormat == 0) {
    return plain_f32(w, i);
  }
  return kPlainFormat == 1 ? plain_f16(w, i) : plain_bf16(w, i);
}

// A SIMD-group a row of w and token: grid (ceil(rows / SIMD-groups), tokens).
kernel void mul_mv_plain(constant MatmulArgs& args [[buffer(0)]],  //
                         device const void* w [[buffer(1)]],       //
                         device const float* x [[buffer(2)]],      //
                         device float* y [[buffer(3)]],            //
                         uint3 group [[threadgroup_position_in_grid]],
                         uint simdgroup [[simdgroup_index_in_threadgroup]],
                         uint simdgroups [[simdgroups_per_threadgroup]],  //
                         uint lane [[thread_index_in_simdgroup]]) {
  const uint row = group.x * simdgroups + simdgroup;
  const ulong first = ulong(min(row, args.rows - 1)) * args.cols;
  device const float* row_x = x + ulong(group.y) * args.x_stride;
  float sum = 0.0f;
  for (uint c = lane; c < args.cols; c += 32) {
    sum += plain_element(w, first + c) * row_x[c];
  }
  const float total = simd_sum(sum);
  if (lane == 0 && row < args.rows) {
    y[ulong(group.y) * args.y_stride + row] = total;
  }
}

// A thread an element: grid (ceil(cols / threads), ids).
kernel void get_rows_plain(constant GetRowsArgs& args [[buffer(0)]],  //
                           device const void* w [[buffer(1)]],        //
                           device const uint* ids [[buffer(2)]],      //
                           device float* y [[buffer(3)]],             //
                           uint3 position [[thread_position_in_grid]]) {
  if (position.x < args.cols) {
    const ulong row = ulong(min(ids[position.y], args.rows - 1));
    y[ulong(position.y) * args.y_stride + position.x] = plain_element(w, row * args.cols + position.x);
  }
}
