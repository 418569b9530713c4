// 2 to 8 tokens that share one pass over the weights: 2 rows a SIMD-group; eight weights are decoded once and meet all
// tokens. threads_per_threadgroup is 64: two SIMD-groups; no threadgroup memory.
#include "backends/metal/kernels/args.h"
#include "backends/metal/kernels/dots.h"

using namespace metal;
using namespace argent;

template <class Reader>
inline void mul_mv_tokens(constant MatmulArgs& args, device const typename Reader::Block* w, device const float* x,
                          device float* y, uint first, uint lane) {
  const uint2 rows = uint2(min(first, args.rows - 1), min(first + 1, args.rows - 1));
  const Tokens tokens = {args.tokens, args.x_stride};
  TokenSums sums;
  clear(sums);
  add_token_dots<Reader>(w, rows, args.cols, x, tokens, lane, sums);
  const float product = token_products(sums, args.tokens, lane);
  const uint row = first + lane % 2;
  if (lane / 2 < args.tokens && row < args.rows) {
    y[ulong(lane / 2) * args.y_stride + row] = product;
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
