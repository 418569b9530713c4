// 2 to 8 tokens that share one pass over the weights: 2 rows a SIMD-group; eight weights are decoded once and meet all
// tokens. threads_per_threadgroup is 64: two SIMD-groups; no threadgroup memory.
#include "backends/metal/kernels/args.h"
#include "backends/metal/kernels/weights.h"

using namespace metal;
using namespace argent;

template <class Reader>
inline void mul_mv_tokens(constant MatmulArgs& args, device const typename Reader::Block* w, device const float* x,
                          device float* y, uint first, uint lane) {
  float sum[2][8];
  MTL_UNROLL
  for (uint t = 0; t < 8; t++) {
    sum[0][t] = 0.0f;
    sum[1][t] = 0.0f;
  }
  for (uint i = lane; i < args.cols / 8; i += 32) {
    float4 low[2];
    float4 high[2];
    MTL_UNROLL
    for (uint r = 0; r < 2; r++) {
      eight_of_row<Reader>(w, min(first + r, args.rows - 1), args.cols, i, low[r], high[r]);
    }
    MTL_UNROLL
    for (uint t = 0; t < 8; t++) {  // a constant bound keeps the sums in registers
      if (t < args.tokens) {
        device const float4* x4 = reinterpret_cast<device const float4*>(x + ulong(t) * args.x_stride + 8 * i);
        const float4 x0 = x4[0];
        const float4 x1 = x4[1];
        sum[0][t] += dot(low[0], x0) + dot(high[0], x1);
        sum[1][t] += dot(low[1], x0) + dot(high[1], x1);
      }
    }
  }
  MTL_UNROLL
  for (uint t = 0; t < 8; t++) {
    if (t < args.tokens) {  // the same in all lanes
      const float total0 = simd_sum(sum[0][t]);
      const float total1 = simd_sum(sum[1][t]);
      if (lane < 2 && first + lane < args.rows) {
        y[ulong(t) * args.y_stride + first + lane] = lane == 0 ? total0 : total1;
      }
    }
  }
}

#define FORMAT(name, NAME, id, elements, bytes)                                                        \
  kernel void mul_mv_tokens_##name(                                                                    \
      constant MatmulArgs& args [[buffer(0)]], device const NAME##Reader::Block* w [[buffer(1)]],      \
      device const float* x [[buffer(2)]], device float* y [[buffer(3)]],                              \
      uint3 group [[threadgroup_position_in_grid]], uint simdgroup [[simdgroup_index_in_threadgroup]], \
      uint simdgroups [[simdgroups_per_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {       \
    mul_mv_tokens<NAME##Reader>(args, w, x, y, (group.x * simdgroups + simdgroup) * 2, lane);          \
  }
#define KNOWN(NAME, id, elements, bytes)
#include "quant/formats.def"
#undef FORMAT
#undef KNOWN
