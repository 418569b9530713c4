// Attention of one query a head against a cache of halves, heads of 128: a threadgroup a head, its SIMD-groups take
// every n-th tile of 32 positions and combine at the end. Softmax runs along: maximum, sum and output are rescaled when
// the maximum grows.
//
// threadgroup(0): simdgroups * 130 floats, rounded up to 16 bytes: outputs, then maximum and sum of each SIMD-group.
#include "backends/metal/kernels/args.h"
#include "backends/metal/kernels/dialect.h"

using namespace metal;
using namespace argent;

kernel void attention_decode_128(constant AttentionDecodeArgs& args [[buffer(0)]],  //
                                 device const float* q [[buffer(1)]],               // [head][128]
                                 device const half* k [[buffer(2)]],                // [position][kv head][128]
                                 device const half* v [[buffer(3)]],                //
                                 device float* out [[buffer(4)]],                   // [head][128]
                                 threadgroup float* shared MTL_TG(0),               //
                                 uint3 group [[threadgroup_position_in_grid]],      //
                                 uint3 size [[threads_per_threadgroup]],            //
                                 uint index [[thread_index_in_threadgroup]],        //
                                 uint simdgroup [[simdgroup_index_in_threadgroup]],
                                 uint simdgroups [[simdgroups_per_threadgroup]],  //
                                 uint lane [[thread_index_in_simdgroup]]) {
  // For scores, eight lanes share a position, 16 dimensions each; for the output, a lane has 4 dimensions.
  const uint head = group.x;
  const ulong head_kv = ulong(head / args.heads_of_kv) * 128;
  const uint part = lane % 8;
  const float lowest = -1.0e30f;  // finite: Metal's default mathematics may assume that there are no infinities
  float4 mine[4];
  MTL_UNROLL
  for (uint d = 0; d < 4; d++) {
    mine[d] = reinterpret_cast<device const float4*>(q + head * 128 + part * 16)[d] * args.scale;
  }
  float maximum = lowest;
  float sum = 0.0f;
  float4 output = float4(0.0f);
  for (uint t0 = simdgroup * 32; t0 < args.kv_length; t0 += simdgroups * 32) {
    float score = lowest;  // of position t0 + lane; past the end, of the last one, which leaves the maximum as it is
    for (uint step = 0; step < 8; step++) {
      const uint position = t0 + 4 * step + lane / 8;
      device const half4* key = reinterpret_cast<device const half4*>(
          k + ulong(min(position, args.kv_length - 1)) * args.kv_stride + head_kv + part * 16);
      float s = 0.0f;
      MTL_UNROLL
      for (uint d = 0; d < 4; d++) {
        s += dot(float4(key[d]), mine[d]);
      }
      s += simd_shuffle_xor(s, 1);
      s += simd_shuffle_xor(s, 2);
      s += simd_shuffle_xor(s, 4);
      const float of_lane = simd_shuffle(s, ushort(lane % 4 * 8));
      if (lane / 4 == step) {
        score = of_lane;
      }
    }
    const float tile_maximum = simd_max(score);
    const float grown = max(maximum, tile_maximum);
    const float rescale = exp(maximum - grown);
    const float p = t0 + lane < args.kv_length ? exp(score - grown) : 0.0f;
    const float tile_sum = simd_sum(p);
    sum = sum * rescale + tile_sum;
    output *= rescale;
    maximum = grown;
    const uint count = min(args.kv_length - t0, 32u);
    for (uint j = 0; j < count; j++) {  // the same in all lanes
      device const half4* value = reinterpret_cast<device const half4*>(v + ulong(t0 + j) * args.kv_stride + head_kv);
      const float weight = simd_shuffle(p, ushort(j));
      output += float4(value[lane]) * weight;
    }
  }
  threadgroup float* state = shared + simdgroups * 128;
  reinterpret_cast<threadgroup float4*>(shared + simdgroup * 128)[lane] = output;
  if (lane == 0) {
    state[2 * simdgroup] = maximum;
    state[2 * simdgroup + 1] = sum;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint d = index; d < 128; d += size.x) {
    float all_maximum = lowest;
    for (uint s = 0; s < simdgroups; s++) {
      all_maximum = max(all_maximum, state[2 * s]);
    }
    float numerator = 0.0f;
    float denominator = 0.0f;
    for (uint s = 0; s < simdgroups; s++) {
      const float scale = exp(state[2 * s] - all_maximum);
      numerator += scale * shared[s * 128 + d];
      denominator += scale * state[2 * s + 1];
    }
    out[head * 128 + d] = numerator / denominator;
  }
}
