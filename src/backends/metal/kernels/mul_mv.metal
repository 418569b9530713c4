// Matrix times vector, one token a row of the grid. A SIMD-group computes 4 rows of Q4_0, 2 of every other format; no
// threadgroup memory. threads_per_threadgroup is 64: two SIMD-groups.
#include "backends/metal/kernels/args.h"
#include "backends/metal/kernels/dots.h"

using namespace metal;
using namespace argent;

template <class Reader>
inline void mul_mv(constant MatmulArgs& args, device const typename Reader::Block* w, device const float* x,
                   device float* y, uint token, uint simdgroup, uint lane) {
  enum : uint { kRows = Dots<Reader>::kRows };
  const uint first = simdgroup * kRows;
  device const float* row_x = x + ulong(token) * args.x_stride;
  uint rows[kRows];
  float sum[kRows];
  MTL_UNROLL
  for (uint r = 0; r < kRows; r++) {
    rows[r] = min(first + r, args.rows - 1);
    sum[r] = 0.0f;
  }
  Dots<Reader>::add(w, rows, args.cols, row_x, lane, sum);
  MTL_UNROLL
  for (uint r = 0; r < kRows; r++) {
    const float total = simd_sum(sum[r]);
    if (lane == 0 && first + r < args.rows) {
      y[ulong(token) * args.y_stride + first + r] = total;
    }
  }
}

#define FORMAT(name, NAME, id, elements, bytes)                                                                        \
  kernel void mul_mv_##name(constant MatmulArgs& args [[buffer(0)]],                                                   \
                            device const NAME##Reader::Block* w [[buffer(1)]], device const float* x [[buffer(2)]],    \
                            device float* y [[buffer(3)]], uint3 group [[threadgroup_position_in_grid]],               \
                            uint simdgroup [[simdgroup_index_in_threadgroup]],                                         \
                            uint simdgroups [[simdgroups_per_threadgroup]], uint lane [[thread_index_in_simdgroup]]) { \
    mul_mv<NAME##Reader>(args, w, x, y, group.y, group.x * simdgroups + simdgroup, lane);                              \
  }
#define KNOWN(NAME, id, elements, bytes)
#include "quant/formats.def"
#undef FORMAT
#undef KNOWN
