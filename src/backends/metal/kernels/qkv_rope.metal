// q, k and v of decode with all that follows until attention: bias, RMS norm of each head of q and k, RoPE, and the
// store of k and v to the cache. A threadgroup has a whole head of one of q, k and v: its SIMD-groups compute 2 rows at
// a time into threadgroup memory, then a SIMD-group finishes each token's head. Heads are of d_head or d_value, a
// multiple of 4.
//
// Grid: x of n_head + 2 n_head_kv threadgroups: heads of q, then k's, then v's. threads_per_threadgroup is a multiple
// of 32; best 16 d, at most what the pipeline allows: then a SIMD-group has 2 rows, and all loads are in flight at
// once. threadgroup(0): max(d_head, d_value) floats a token. Without biases, norm or n_rot something must still be
// bound in their places; it is not read.
#include "backends/metal/kernels/args_fused.h"
#include "backends/metal/kernels/dots.h"
#include "backends/metal/kernels/kv_write.h"

using namespace metal;
using namespace argent;

MTL_FC(uint, kKvTypeK, 10);
MTL_FC(uint, kKvTypeV, 11);
MTL_FC(uint, kFormatQ, 23);  // ids of quant/formats.def
MTL_FC(uint, kFormatK, 24);
MTL_FC(uint, kFormatV, 25);
MTL_FC(bool, kQkvBias, 26);
MTL_FC(bool, kQkNorm, 27);
MTL_FC(bool, kRopeInterleaved, 50);  // pairs are neighbours; else n_rot / 2 apart

// The head that a threadgroup works at.
struct QkvHead {
  uint which;  // q, k, v
  uint head;
  uint d;
};

inline QkvHead qkv_head(constant QkvRopeArgs& args, uint group) {
  if (group < args.n_head) {
    return {0, group, args.kv.d_head};
  }
  if (group - args.n_head < args.kv.n_head_kv) {
    return {1, group - args.n_head, args.kv.d_head};
  }
  return {2, group - args.n_head - args.kv.n_head_kv, args.kv.d_value};
}

// Norm and rotation of a head of q or k in place, by one SIMD-group; the order of operations is that of the kernels for
// either alone, with 32 threads a head.
inline void norm_and_rotate(constant QkvRopeArgs& args, threadgroup float* values, uint d, device const float* norm,
                            device const float* rope, uint lane) {
  float scale = 1.0f;
  if (kQkNorm) {
    float squares = 0.0f;
    for (uint i = lane; i < d / 4; i += 32) {
      const float4 v = reinterpret_cast<threadgroup const float4*>(values)[i];
      squares += dot(v, v);
    }
    scale = precise::rsqrt(simd_sum(squares) / float(d) + args.eps);
    simdgroup_barrier(mem_flags::mem_threadgroup);  // all have read before the first writes
  }
  for (uint p = lane; p < args.n_rot / 2; p += 32) {
    const uint first = kRopeInterleaved ? 2 * p : p;
    const uint second = kRopeInterleaved ? 2 * p + 1 : p + args.n_rot / 2;
    const float2 angle = reinterpret_cast<device const float2*>(rope)[p];  // cos, sin
    const float x0 = values[first] * scale * (kQkNorm ? norm[first] : 1.0f);
    const float x1 = values[second] * scale * (kQkNorm ? norm[second] : 1.0f);
    values[first] = x0 * angle.x - x1 * angle.y;
    values[second] = x0 * angle.y + x1 * angle.x;
  }
  for (uint i = args.n_rot + lane; i < d; i += 32) {
    values[i] = values[i] * scale * (kQkNorm ? norm[i] : 1.0f);
  }
  simdgroup_barrier(mem_flags::mem_threadgroup);
}

// Of one token's head, all that follows the products; values are the head's.
inline void finish_head(constant QkvRopeArgs& args, const QkvHead part, uint token, threadgroup float* values,
                        device const float* norm_q, device const float* norm_k, device const float* rope,
                        device float* q, device uchar* cache_k, device uchar* cache_v, device const int* positions,
                        device const uint* row_sequence, device const KvSequence* sequences, device const int* tables,
                        uint lane) {
  if (part.which < 2) {
    device const float* norm = part.which == 0 ? norm_q : norm_k;
    norm_and_rotate(args, values, part.d, norm, rope + ulong(token) * args.n_rot, lane);
  }
  if (part.which == 0) {
    for (uint i = lane; i < part.d; i += 32) {
      q[ulong(token) * args.q_stride + part.head * part.d + i] = values[i];
    }
    return;
  }
  const uint position = uint(positions[token]);
  const ulong place = kv_place(tables, sequences, row_sequence[token], position, args.kv.block_bytes);
  const uint type = part.which == 1 ? kKvTypeK : kKvTypeV;
  device uchar* block = (part.which == 1 ? cache_k : cache_v) + place;
  for (uint i = lane; i / 32 * 32 < part.d; i += 32) {
    const float value = i < part.d ? values[i] : 0.0f;
    kv_write(type, block, args.kv.n_head_kv, part.head, position, part.d, i, value, lane);
  }
}

// One token.
kernel void qkv_rope(constant QkvRopeArgs& args [[buffer(0)]],           //
                     device const uchar* w_q [[buffer(1)]],              //
                     device const uchar* w_k [[buffer(2)]],              //
                     device const uchar* w_v [[buffer(3)]],              //
                     device const float* x [[buffer(4)]],                //
                     device float* q [[buffer(5)]],                      // [token][n_head][d_head]
                     device uchar* cache_k [[buffer(6)]],                // at the layer's place in block 0
                     device uchar* cache_v [[buffer(7)]],                //
                     device const float* bias_q [[buffer(8)]],           // [row]
                     device const float* bias_k [[buffer(9)]],           //
                     device const float* bias_v [[buffer(10)]],          //
                     device const float* norm_q [[buffer(11)]],          // [d_head]
                     device const float* norm_k [[buffer(12)]],          //
                     device const float* rope [[buffer(13)]],            // [token][n_rot / 2]: cos, sin
                     device const int* positions [[buffer(14)]],         // [token]
                     device const uint* row_sequence [[buffer(15)]],     //
                     device const KvSequence* sequences [[buffer(16)]],  //
                     device const int* tables [[buffer(17)]],            // of the layer's group
                     threadgroup float* values MTL_TG(0),                // [token][d]
                     uint3 group [[threadgroup_position_in_grid]],       //
                     uint simdgroup [[simdgroup_index_in_threadgroup]],  //
                     uint simdgroups [[simdgroups_per_threadgroup]],     //
                     uint lane [[thread_index_in_simdgroup]]) {
  const QkvHead part = qkv_head(args, group.x);
  const uint first = part.head * part.d;
  for (uint row = 2 * simdgroup; row < part.d; row += 2 * simdgroups) {
    const uint2 rows = uint2(first + row, first + row + 1);
    float2 sums;
    device const float* bias = bias_v;
    if (part.which == 0) {
      sums = dots_of(kFormatQ, w_q, rows, args.cols, x, lane);
      bias = bias_q;
    } else if (part.which == 1) {
      sums = dots_of(kFormatK, w_k, rows, args.cols, x, lane);
      bias = bias_k;
    } else {
      sums = dots_of(kFormatV, w_v, rows, args.cols, x, lane);
    }
    const float product0 = simd_sum(sums.x);
    const float product1 = simd_sum(sums.y);
    if (lane < 2) {
      const float product = lane == 0 ? product0 : product1;
      values[row + lane] = kQkvBias ? product + bias[first + row + lane] : product;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint token = simdgroup; token < args.tokens; token += simdgroups) {
    finish_head(args, part, token, values + token * part.d, norm_q, norm_k, rope, q, cache_k, cache_v, positions,
                row_sequence, sequences, tables, lane);
  }
}

// 2 to 8 tokens that share one pass over the weights.
kernel void qkv_rope_tokens(constant QkvRopeArgs& args [[buffer(0)]],           //
                            device const uchar* w_q [[buffer(1)]],              //
                            device const uchar* w_k [[buffer(2)]],              //
                            device const uchar* w_v [[buffer(3)]],              //
                            device const float* x [[buffer(4)]],                //
                            device float* q [[buffer(5)]],                      // [token][n_head][d_head]
                            device uchar* cache_k [[buffer(6)]],                // at the layer's place in block 0
                            device uchar* cache_v [[buffer(7)]],                //
                            device const float* bias_q [[buffer(8)]],           // [row]
                            device const float* bias_k [[buffer(9)]],           //
                            device const float* bias_v [[buffer(10)]],          //
                            device const float* norm_q [[buffer(11)]],          // [d_head]
                            device const float* norm_k [[buffer(12)]],          //
                            device const float* rope [[buffer(13)]],            // [token][n_rot / 2]: cos, sin
                            device const int* positions [[buffer(14)]],         // [token]
                            device const uint* row_sequence [[buffer(15)]],     //
                            device const KvSequence* sequences [[buffer(16)]],  //
                            device const int* tables [[buffer(17)]],            // of the layer's group
                            threadgroup float* values MTL_TG(0),                // [token][d]
                            uint3 group [[threadgroup_position_in_grid]],       //
                            uint simdgroup [[simdgroup_index_in_threadgroup]],  //
                            uint simdgroups [[simdgroups_per_threadgroup]],     //
                            uint lane [[thread_index_in_simdgroup]]) {
  const QkvHead part = qkv_head(args, group.x);
  const uint first = part.head * part.d;
  const Tokens tokens = {args.tokens, args.x_stride};
  for (uint row = 2 * simdgroup; row < part.d; row += 2 * simdgroups) {
    const uint2 rows = uint2(first + row, first + row + 1);
    TokenSums sums;
    device const float* bias = bias_v;
    if (part.which == 0) {
      token_dots(kFormatQ, w_q, rows, args.cols, x, tokens, lane, sums);
      bias = bias_q;
    } else if (part.which == 1) {
      token_dots(kFormatK, w_k, rows, args.cols, x, tokens, lane, sums);
      bias = bias_k;
    } else {
      token_dots(kFormatV, w_v, rows, args.cols, x, tokens, lane, sums);
    }
    const float product = token_products(sums, args.tokens, lane);
    if (lane / 2 < args.tokens) {
      const uint at = row + lane % 2;
      values[lane / 2 * part.d + at] = kQkvBias ? product + bias[first + at] : product;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint token = simdgroup; token < args.tokens; token += simdgroups) {
    finish_head(args, part, token, values + token * part.d, norm_q, norm_k, rope, q, cache_k, cache_v, positions,
                row_sequence, sequences, tables, lane);
  }
}
