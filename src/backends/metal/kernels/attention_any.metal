// Attention for every shape: any d_head and d_value up to 512, also different and odd ones. Simple and right; the host
// takes it where no attention_decode_* or attention_prefill_* fits.
//
// Grid: n_head x items; items are whole rows (slot is not read). Threads: any multiple of 32, 128 by default:
// SIMD-groups share the blocks of the row's keys and combine at the end. Each lane has a position for the scores, and
// for the sums dimensions lane, lane + 32 and so on.
//
// threadgroup(0): simdgroups * (d_value + 2) floats, rounded up to 16 bytes.
#include "backends/metal/kernels/args_attention.h"
#include "backends/metal/kernels/dialect.h"
#include "backends/metal/kernels/kv.h"

using namespace metal;
using namespace argent;

MTL_FC(uint, kKvTypeK, 10);
MTL_FC(uint, kKvTypeV, 11);
MTL_FC(bool, kAttentionSoftcap, 12);

kernel void attention_any(constant AttentionArgs& args [[buffer(0)]],    //
                          device const float* q [[buffer(1)]],           // [row][n_head][d_head]
                          device const uchar* k [[buffer(2)]],           // the layer's place in block 0
                          device const uchar* v [[buffer(3)]],           //
                          device const uint* list [[buffer(4)]],         // of AttentionItem
                          device const int* tables [[buffer(5)]],        //
                          device float* out [[buffer(6)]],               // [row][n_head][d_value]
                          threadgroup float* shared MTL_TG(0),           //
                          uint3 group [[threadgroup_position_in_grid]],  //
                          uint3 size [[threads_per_threadgroup]],        //
                          uint index [[thread_index_in_threadgroup]],    //
                          uint simdgroup [[simdgroup_index_in_threadgroup]],
                          uint simdgroups [[simdgroups_per_threadgroup]],  //
                          uint lane [[thread_index_in_simdgroup]]) {
  if (group.y >= list[0]) {  // the same in the whole threadgroup
    return;
  }
  device const AttentionItem& item = reinterpret_cast<device const AttentionItem*>(list + kAttentionListHead)[group.y];
  const float lowest = -1.0e30f;  // finite: Metal's default mathematics may assume that there are no infinities
  const uint head_kv = group.x / (args.n_head / args.n_head_kv);
  const uint k_elements = args.n_head_kv * kKvPositions * args.d_head;
  const uint v_elements = args.n_head_kv * kKvPositions * args.d_value;
  const uint row_head = item.row * args.n_head + group.x;
  device const float* query = q + ulong(row_head) * args.d_head;
  float maximum = lowest;
  float sum = 0.0f;
  float output[16];
  for (uint i = 0; i < 16; i++) {
    output[i] = 0.0f;
  }
  for (uint b = item.first / kKvPositions + simdgroup; b * kKvPositions < item.end; b += simdgroups) {
    const ulong block = ulong(tables[item.table + b]) * args.block_bytes;
    // Lanes whose position the row does not see take the nearest that it sees: unseen ones may never have been written.
    const uint mine = b * kKvPositions + lane;
    const uint seen = clamp(mine, item.first, item.end - 1);
    const uint key = kv_element(head_kv, seen, args.d_head);
    float score = 0.0f;
    for (uint d = 0; d < args.d_head; d++) {
      score += query[d] * kv_one(k + block, kKvTypeK, key + d, k_elements);
    }
    score *= args.scale;
    if (kAttentionSoftcap) {
      score = args.softcap * precise::tanh(score / args.softcap);
    }
    const float grown = max(maximum, simd_max(score));
    const float rescale = exp(maximum - grown);
    const float p = mine == seen ? exp(score - grown) : 0.0f;
    sum = sum * rescale + simd_sum(p);
    maximum = grown;
    for (uint i = 0; i < 16; i++) {
      output[i] *= rescale;
    }
    const uint low = max(b * kKvPositions, item.first);
    const uint high = min((b + 1) * kKvPositions, item.end);
    for (uint position = low; position < high; position++) {  // the same in all lanes
      const float weight = simd_shuffle(p, ushort(position % kKvPositions));
      const uint value = kv_element(head_kv, position, args.d_value);
      for (uint d = lane; d < args.d_value; d += 32) {
        output[d / 32] += weight * kv_one(v + block, kKvTypeV, value + d, v_elements);
      }
    }
  }
  threadgroup float* state = shared + simdgroups * args.d_value;  // maximum and sum of each SIMD-group
  for (uint d = lane; d < args.d_value; d += 32) {
    shared[simdgroup * args.d_value + d] = output[d / 32];
  }
  if (lane == 0) {
    state[2 * simdgroup] = maximum;
    state[2 * simdgroup + 1] = sum;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float all_maximum = lowest;
  for (uint s = 0; s < simdgroups; s++) {
    all_maximum = max(all_maximum, state[2 * s]);
  }
  for (uint d = index; d < args.d_value; d += size.x) {
    float numerator = 0.0f;
    float denominator = 0.0f;
    for (uint s = 0; s < simdgroups; s++) {
      const float scale = exp(state[2 * s] - all_maximum);
      numerator += scale * shared[s * args.d_value + d];
      denominator += scale * state[2 * s + 1];
    }
    out[ulong(row_head) * args.d_value + d] = numerator / denominator;
  }
}
