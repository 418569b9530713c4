// Gated feed-forward, y = act(x Wg^T) * (x Wu^T), of decode: gate and up are read in one dispatch. Of a threadgroup's
// four SIMD-groups, 0 and 1 compute 2 rows each of gate, 2 and 3 the same rows of up: as many loads are in flight as
// with two dispatches, and no lane holds sums of both matrices. The formats may differ.
//
// Grid: x of rows / 4 threadgroups, rounded up; of glu, y of a token each. threads_per_threadgroup is 128.
// threadgroup(0): 16 bytes for glu, 128 for glu_tokens: products of gate.
#include "backends/metal/kernels/activation.h"
#include "backends/metal/kernels/args.h"
#include "backends/metal/kernels/dots.h"

using namespace metal;
using namespace argent;

MTL_FC(uint, kFormatGate, 20);  // ids of quant/formats.def
MTL_FC(uint, kFormatUp, 21);
MTL_FC(uint, kGluAct, 22);  // kActSilu, kActGelu

kernel void glu(constant MatmulArgs& args [[buffer(0)]],       //
                device const uchar* gate [[buffer(1)]],        //
                device const uchar* up [[buffer(2)]],          //
                device const float* x [[buffer(3)]],           //
                device float* y [[buffer(4)]],                 //
                threadgroup float* gates MTL_TG(0),            // [row]
                uint3 group [[threadgroup_position_in_grid]],  //
                uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  const uint pair = simdgroup % 2 * 2;
  const uint first = group.x * 4 + pair;
  const uint2 rows = uint2(min(first, args.rows - 1), min(first + 1, args.rows - 1));
  device const float* row_x = x + ulong(group.y) * args.x_stride;
  float2 sums;
  if (simdgroup < 2) {
    sums = dots_of(kFormatGate, gate, rows, args.cols, row_x, lane);
  } else {
    sums = dots_of(kFormatUp, up, rows, args.cols, row_x, lane);
  }
  const float product0 = simd_sum(sums.x);
  const float product1 = simd_sum(sums.y);
  const float product = lane == 0 ? product0 : product1;
  if (simdgroup < 2 && lane < 2) {
    gates[pair + lane] = product;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (simdgroup >= 2 && lane < 2 && first + lane < args.rows) {
    y[ulong(group.y) * args.y_stride + first + lane] = activate(kGluAct, gates[pair + lane]) * product;
  }
}

// 2 to 8 tokens that share one pass over the weights.
kernel void glu_tokens(constant MatmulArgs& args [[buffer(0)]],       //
                       device const uchar* gate [[buffer(1)]],        //
                       device const uchar* up [[buffer(2)]],          //
                       device const float* x [[buffer(3)]],           //
                       device float* y [[buffer(4)]],                 //
                       threadgroup float* gates MTL_TG(0),            // [SIMD-group][token][2 rows]
                       uint3 group [[threadgroup_position_in_grid]],  //
                       uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  const uint pair = simdgroup % 2;
  const uint first = group.x * 4 + 2 * pair;
  const uint2 rows = uint2(min(first, args.rows - 1), min(first + 1, args.rows - 1));
  const Tokens tokens = {args.tokens, args.x_stride};
  TokenSums sums;
  if (simdgroup < 2) {
    token_dots(kFormatGate, gate, rows, args.cols, x, tokens, lane, sums);
  } else {
    token_dots(kFormatUp, up, rows, args.cols, x, tokens, lane, sums);
  }
  const float product = token_products(sums, args.tokens, lane);
  if (simdgroup < 2 && lane < 16) {
    gates[16 * pair + lane] = product;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const uint row = first + lane % 2;
  if (simdgroup >= 2 && lane / 2 < args.tokens && row < args.rows) {
    y[ulong(lane / 2) * args.y_stride + row] = activate(kGluAct, gates[16 * pair + lane]) * product;
  }
}
