// Matrix times vector, one token a row of the grid. A SIMD-group computes 4 rows of Q4_0, 2 of every other format; no
// threadgroup memory. threads_per_threadgroup is 64: two SIMD-groups.
#include "backends/metal/kernels/args.h"
#include "backends/metal/kernels/weights.h"

using namespace metal;
using namespace argent;

// ---- loops of their own for Q4_0 and Q4_K

// A pair of lanes shares a block: each takes 8 of its 16 bytes, 16 elements. 16 blocks of a row are in flight.
kernel void mul_mv_q4_0(constant MatmulArgs& args [[buffer(0)]],       //
                        device const block_q4_0* w [[buffer(1)]],      //
                        device const float* x [[buffer(2)]],           //
                        device float* y [[buffer(3)]],                 //
                        uint3 group [[threadgroup_position_in_grid]],  //
                        uint simdgroup [[simdgroup_index_in_threadgroup]],
                        uint simdgroups [[simdgroups_per_threadgroup]],  //
                        uint lane [[thread_index_in_simdgroup]]) {
  const uint first = (group.x * simdgroups + simdgroup) * 4;
  const uint blocks = args.cols / 32;
  device const float* row_x = x + ulong(group.y) * args.x_stride;
  const uint part = lane % 2;
  float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  for (uint b = lane / 2; b < blocks; b += 16) {
    device const float4* x4 = reinterpret_cast<device const float4*>(row_x + 32 * b + 8 * part);
    const float4 x0 = x4[0];
    const float4 x1 = x4[1];
    const float4 x2 = x4[4];
    const float4 x3 = x4[5];
    const float4 total = x0 + x1 + x2 + x3;
    const float zero = float(kQ4_0Zero) * (total.x + total.y + total.z + total.w);
    MTL_UNROLL
    for (uint r = 0; r < 4; r++) {
      device const block_q4_0* block = w + ulong(min(first + r, args.rows - 1)) * blocks + b;
      const uint low = load_word_2(block->qs, 2 * part);
      const uint high = load_word_2(block->qs, 2 * part + 1);
      const float dots = dot(bytes_to_floats(q4_0_quants(low, 0)), x0) +
                         dot(bytes_to_floats(q4_0_quants(high, 0)), x1) +
                         dot(bytes_to_floats(q4_0_quants(low, 1)), x2) + dot(bytes_to_floats(q4_0_quants(high, 1)), x3);
      sum[r] += qk_half(block->d) * (dots - zero);
    }
  }
  for (uint r = 0; r < 4; r++) {
    const float total = simd_sum(sum[r]);
    if (lane == 0 && first + r < args.rows) {
      y[ulong(group.y) * args.y_stride + first + r] = total;
    }
  }
}

// Eight lanes share a block: lane 4 h + i of them takes bytes 8 i to 8 i + 7 of chunks h and h + 2, 32 elements. 4
// blocks of a row are in flight.
kernel void mul_mv_q4_k(constant MatmulArgs& args [[buffer(0)]],       //
                        device const block_q4_k* w [[buffer(1)]],      //
                        device const float* x [[buffer(2)]],           //
                        device float* y [[buffer(3)]],                 //
                        uint3 group [[threadgroup_position_in_grid]],  //
                        uint simdgroup [[simdgroup_index_in_threadgroup]],
                        uint simdgroups [[simdgroups_per_threadgroup]],  //
                        uint lane [[thread_index_in_simdgroup]]) {
  const uint first = (group.x * simdgroups + simdgroup) * 2;
  const uint blocks = args.cols / 256;
  device const float* row_x = x + ulong(group.y) * args.x_stride;
  const uint half_of = lane % 8 / 4;
  const uint part = lane % 4;
  float sum[2] = {0.0f, 0.0f};
  for (uint b = lane / 8; b < blocks; b += 4) {
    device const float4* x4 = reinterpret_cast<device const float4*>(row_x + 256 * b + 64 * half_of + 8 * part);
    float4 v[8];
    float4 sums;
    MTL_UNROLL
    for (uint g = 0; g < 4; g++) {  // groups 2 h, 2 h + 1, 2 h + 4, 2 h + 5
      v[2 * g] = x4[32 * (g / 2) + 8 * (g % 2)];
      v[2 * g + 1] = x4[32 * (g / 2) + 8 * (g % 2) + 1];
      const float4 both = v[2 * g] + v[2 * g + 1];
      sums[g] = both.x + both.y + both.z + both.w;
    }
    MTL_UNROLL
    for (uint r = 0; r < 2; r++) {
      device const uint* words =
          reinterpret_cast<device const uint*>(w + ulong(min(first + r, args.rows - 1)) * blocks + b);
      const uint4 head = *reinterpret_cast<device const uint4*>(words);
      const uint2 near = *reinterpret_cast<device const uint2*>(words + 4 + 8 * half_of + 2 * part);
      const uint2 far = *reinterpret_cast<device const uint2*>(words + 20 + 8 * half_of + 2 * part);
      const uint shift = 16 * half_of;
      const uint scale_bits = (q4_k_scales4(head.y, head.w, 0) >> shift & 0xffff) |
                              (q4_k_scales4(head.y, head.w, 1) >> shift & 0xffff) << 16;
      const uint min_bits =
          (q4_k_mins4(head.z, head.w, 0) >> shift & 0xffff) | (q4_k_mins4(head.z, head.w, 1) >> shift & 0xffff) << 16;
      const float4 dots = float4(
          dot(bytes_to_floats(q4_k_quants(near.x, 0)), v[0]) + dot(bytes_to_floats(q4_k_quants(near.y, 0)), v[1]),
          dot(bytes_to_floats(q4_k_quants(near.x, 1)), v[2]) + dot(bytes_to_floats(q4_k_quants(near.y, 1)), v[3]),
          dot(bytes_to_floats(q4_k_quants(far.x, 0)), v[4]) + dot(bytes_to_floats(q4_k_quants(far.y, 0)), v[5]),
          dot(bytes_to_floats(q4_k_quants(far.x, 1)), v[6]) + dot(bytes_to_floats(q4_k_quants(far.y, 1)), v[7]));
      sum[r] += qk_half(head.x & 0xffff) * dot(bytes_to_floats(scale_bits), dots) -
                qk_half(head.x >> 16) * dot(bytes_to_floats(min_bits), sums);
    }
  }
  for (uint r = 0; r < 2; r++) {
    const float total = simd_sum(sum[r]);
    if (lane == 0 && first + r < args.rows) {
      y[ulong(group.y) * args.y_stride + first + r] = total;
    }
  }
}

// ---- all other formats: a lane decodes eight weights of each of 2 rows, which meet the same eight values of x

template <class Reader>
inline void mul_mv(constant MatmulArgs& args, device const typename Reader::Block* w, device const float* x,
                   device float* y, uint token, uint first, uint lane) {
  device const float* row_x = x + ulong(token) * args.x_stride;
  float sum[2] = {0.0f, 0.0f};
  for (uint i = lane; i < args.cols / 8; i += 32) {
    device const float4* x4 = reinterpret_cast<device const float4*>(row_x + 8 * i);
    const float4 x0 = x4[0];
    const float4 x1 = x4[1];
    MTL_UNROLL
    for (uint r = 0; r < 2; r++) {
      float4 low;
      float4 high;
      eight_of_row<Reader>(w, min(first + r, args.rows - 1), args.cols, i, low, high);
      sum[r] += dot(low, x0) + dot(high, x1);
    }
  }
  for (uint r = 0; r < 2; r++) {
    const float total = simd_sum(sum[r]);
    if (lane == 0 && first + r < args.rows) {
      y[ulong(token) * args.y_stride + first + r] = total;
    }
  }
}

#define MUL_MV(name, NAME)                                                                                             \
  kernel void mul_mv_##name(constant MatmulArgs& args [[buffer(0)]],                                                   \
                            device const NAME##Reader::Block* w [[buffer(1)]], device const float* x [[buffer(2)]],    \
                            device float* y [[buffer(3)]], uint3 group [[threadgroup_position_in_grid]],               \
                            uint simdgroup [[simdgroup_index_in_threadgroup]],                                         \
                            uint simdgroups [[simdgroups_per_threadgroup]], uint lane [[thread_index_in_simdgroup]]) { \
    mul_mv<NAME##Reader>(args, w, x, y, group.y, (group.x * simdgroups + simdgroup) * 2, lane);                        \
  }
MUL_MV(f32, F32)
MUL_MV(f16, F16)
MUL_MV(bf16, BF16)
MUL_MV(q4_1, Q4_1)
MUL_MV(q5_0, Q5_0)
MUL_MV(q5_1, Q5_1)
MUL_MV(q8_0, Q8_0)
MUL_MV(q2_k, Q2_K)
MUL_MV(q3_k, Q3_K)
MUL_MV(q5_k, Q5_K)
MUL_MV(q6_k, Q6_K)
MUL_MV(iq4_nl, IQ4_NL)
MUL_MV(iq4_xs, IQ4_XS)
MUL_MV(mxfp4, MXFP4)
#undef MUL_MV
