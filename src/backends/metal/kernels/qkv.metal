// Products of three matrices with the same x in one dispatch, of any mix of formats, with or without biases: q, k and v
// of decode. A SIMD-group has 2 rows of one matrix, a threadgroup four: groups of q's rows first, then k's, then v's.
//
// Grid: x of rows / 4 threadgroups of each matrix, each rounded up; of qkv, y of a token each. threads_per_threadgroup
// is 64. No threadgroup memory. Without biases something must still be bound; it is not read.
#include "backends/metal/kernels/args_fused.h"
#include "backends/metal/kernels/dots.h"

using namespace metal;
using namespace argent;

MTL_FC(uint, kFormatQ, 23);  // ids of quant/formats.def
MTL_FC(uint, kFormatK, 24);
MTL_FC(uint, kFormatV, 25);
MTL_FC(bool, kQkvBias, 26);

// The matrix that a threadgroup works at, and its first row there.
struct QkvPart {
  uint which;  // q, k, v
  uint row;
  uint rows;  // of the matrix
};

inline QkvPart qkv_part(constant QkvArgs& args, uint group) {
  const uint groups_q = (args.rows_q + 3) / 4;
  const uint groups_k = (args.rows_k + 3) / 4;
  if (group < groups_q) {
    return {0, 4 * group, args.rows_q};
  }
  if (group - groups_q < groups_k) {
    return {1, 4 * (group - groups_q), args.rows_k};
  }
  return {2, 4 * (group - groups_q - groups_k), args.rows_v};
}

kernel void qkv(constant QkvArgs& args [[buffer(0)]],          //
                device const uchar* w_q [[buffer(1)]],         //
                device const uchar* w_k [[buffer(2)]],         //
                device const uchar* w_v [[buffer(3)]],         //
                device const float* x [[buffer(4)]],           //
                device float* q [[buffer(5)]],                 // [token][row]
                device float* k [[buffer(6)]],                 //
                device float* v [[buffer(7)]],                 //
                device const float* bias_q [[buffer(8)]],      // [row]
                device const float* bias_k [[buffer(9)]],      //
                device const float* bias_v [[buffer(10)]],     //
                uint3 group [[threadgroup_position_in_grid]],  //
                uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  const QkvPart part = qkv_part(args, group.x);
  const uint first = part.row + 2 * simdgroup;
  const uint2 rows = uint2(min(first, part.rows - 1), min(first + 1, part.rows - 1));
  device const float* row_x = x + ulong(group.y) * args.x_stride;
  float2 sums;
  device float* y = v;
  device const float* bias = bias_v;
  if (part.which == 0) {
    sums = dots_of(kFormatQ, w_q, rows, args.cols, row_x, lane);
    y = q;
    bias = bias_q;
  } else if (part.which == 1) {
    sums = dots_of(kFormatK, w_k, rows, args.cols, row_x, lane);
    y = k;
    bias = bias_k;
  } else {
    sums = dots_of(kFormatV, w_v, rows, args.cols, row_x, lane);
  }
  const float product0 = simd_sum(sums.x);
  const float product1 = simd_sum(sums.y);
  if (lane < 2 && first + lane < part.rows) {
    const float product = lane == 0 ? product0 : product1;
    y[ulong(group.y) * part.rows + first + lane] = kQkvBias ? product + bias[first + lane] : product;
  }
}

// 2 to 8 tokens that share one pass over the weights.
kernel void qkv_tokens(constant QkvArgs& args [[buffer(0)]],          //
                       device const uchar* w_q [[buffer(1)]],         //
                       device const uchar* w_k [[buffer(2)]],         //
                       device const uchar* w_v [[buffer(3)]],         //
                       device const float* x [[buffer(4)]],           //
                       device float* q [[buffer(5)]],                 // [token][row]
                       device float* k [[buffer(6)]],                 //
                       device float* v [[buffer(7)]],                 //
                       device const float* bias_q [[buffer(8)]],      // [row]
                       device const float* bias_k [[buffer(9)]],      //
                       device const float* bias_v [[buffer(10)]],     //
                       uint3 group [[threadgroup_position_in_grid]],  //
                       uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  const QkvPart part = qkv_part(args, group.x);
  const uint first = part.row + 2 * simdgroup;
  const uint2 rows = uint2(min(first, part.rows - 1), min(first + 1, part.rows - 1));
  const Tokens tokens = {args.tokens, args.x_stride};
  TokenSums sums;
  device float* y = v;
  device const float* bias = bias_v;
  if (part.which == 0) {
    token_dots(kFormatQ, w_q, rows, args.cols, x, tokens, lane, sums);
    y = q;
    bias = bias_q;
  } else if (part.which == 1) {
    token_dots(kFormatK, w_k, rows, args.cols, x, tokens, lane, sums);
    y = k;
    bias = bias_k;
  } else {
    token_dots(kFormatV, w_v, rows, args.cols, x, tokens, lane, sums);
  }
  const float product = token_products(sums, args.tokens, lane);
  const uint row = first + lane % 2;
  if (lane / 2 < args.tokens && row < part.rows) {
    y[ulong(lane / 2) * part.rows + row] = kQkvBias ? product + bias[row] : product;
  }
}
