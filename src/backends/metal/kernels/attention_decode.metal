// Attention of few rows a sequence (decode, drafts), heads of 64 to 256: split-KV. A threadgroup has a row, a split of
// its keys, and up to kAttentionHeads query heads that share a KV head: they share the pass over K and V, which is what
// the time goes to. attention_combine joins the splits; a row with one split is written at once.
//
// attention_decode_*: grid n_head_kv * ceil(n_head / n_head_kv / kAttentionHeads) x items. Threads: any multiple of 64,
// 128 by default. kAttentionHeads is 1, 2, 4 or 8. SIMD-groups share the blocks of the split; a SIMD-group has up to
// four heads, so that sums and scores stay in registers, and of 8 heads, two SIMD-groups read the same block at about
// the same time, one of them from the cache.
//
// threadgroup(0): floats, max(kAttentionHeads * d + 32 * min(kAttentionHeads, 4) * simdgroups, simdgroups * (d + 4)):
// queries and weights, then the sums of a head. 6 KB for 8 heads of 128, so that some threadgroups fit on a core.
//
// attention_combine: grid n_head x items, 32 threads; d_value up to 256, a multiple of 4.
#include "backends/metal/kernels/args_attention.h"
#include "backends/metal/kernels/dialect.h"
#include "backends/metal/kernels/kv.h"

using namespace metal;
using namespace argent;

MTL_FC(uint, kKvTypeK, 10);
MTL_FC(uint, kKvTypeV, 11);
MTL_FC(bool, kAttentionSoftcap, 12);
MTL_FC(uint, kAttentionHeads, 13);

kernel void attention_combine(constant AttentionArgs& args [[buffer(0)]],    //
                              device const float* partial [[buffer(1)]],     // [slot][n_head][d_value + 4]
                              device const uint* list [[buffer(2)]],         // of AttentionCombineItem
                              device float* out [[buffer(3)]],               // [row][n_head][d_value]
                              uint3 group [[threadgroup_position_in_grid]],  //
                              uint lane [[thread_index_in_simdgroup]]) {
  if (group.y >= list[0]) {
    return;
  }
  device const AttentionCombineItem& item =
      reinterpret_cast<device const AttentionCombineItem*>(list + kAttentionListHead)[group.y];
  const uint stride = args.d_value + kPartialExtra;
  device const float* first = partial + ulong(item.slot * args.n_head + group.x) * stride;
  const ulong next = ulong(args.n_head) * stride;
  // A lane has the weights of splits lane and lane + 32; past the last, the last once more, as nothing.
  const uint one = min(lane, item.n_splits - 1);
  const uint two = min(lane + 32, item.n_splits - 1);
  const float maximum_one = first[one * next + args.d_value];
  const float maximum_two = first[two * next + args.d_value];
  const float maximum = simd_max(max(maximum_one, maximum_two));  // not mutated: cancels, but for overflow
  const float weight_one = exp(maximum_one - maximum);
  const float weight_two = exp(maximum_two - maximum);
  float sum = lane == one ? weight_one * first[one * next + args.d_value + 1] : 0.0f;
  sum += lane + 32 == two ? weight_two * first[two * next + args.d_value + 1] : 0.0f;
  const float inverse = 1.0f / simd_sum(sum);
  float4 output[2] = {float4(0.0f), float4(0.0f)};
  for (uint s = 0; s < item.n_splits; s++) {  // the same in all lanes
    const float weight = simd_shuffle(s < 32 ? weight_one : weight_two, ushort(s % 32));
    device const float4* from = reinterpret_cast<device const float4*>(first + s * next);
    for (uint d = lane; d < args.d_value / 4; d += 32) {
      output[d / 32] += from[d] * weight;
    }
  }
  device float4* to = reinterpret_cast<device float4*>(out + ulong(item.row * args.n_head + group.x) * args.d_value);
  for (uint d = lane; d < args.d_value / 4; d += 32) {
    to[d] = output[d / 32] * inverse;
  }
}

// Sets of Heads heads, each set for other SIMD-groups, are kAttentionHeads, as constant expressions: arrays stay in
// registers.
template <uint D, uint Sets, uint Heads>
inline void attention_decode(constant AttentionArgs& args, device const float* q, device const uchar* k,
                             device const uchar* v, device const uint* list, device const int* tables,
                             device float* out, device float* partial, threadgroup float* shared, uint3 group,
                             uint3 size, uint index, uint simdgroup, uint simdgroups, uint lane) {
  if (group.y >= list[0]) {  // the same in the whole threadgroup
    return;
  }
  device const AttentionItem& item = reinterpret_cast<device const AttentionItem*>(list + kAttentionListHead)[group.y];
  const float lowest = -1.0e30f;  // finite: Metal's default mathematics may assume that there are no infinities
  const uint heads_of_kv = args.n_head / args.n_head_kv;
  const uint parts = (heads_of_kv + Sets * Heads - 1) / (Sets * Heads);
  const uint head_kv = group.x / parts;
  const uint head0 = head_kv * heads_of_kv + group.x % parts * (Sets * Heads);
  const uint n_heads = (head_kv + 1) * heads_of_kv - head0;  // if less, the others repeat the last, and are not written
  const uint elements = args.n_head_kv * kKvPositions * D;

  threadgroup float4* queries = reinterpret_cast<threadgroup float4*>(shared);
  device const float4* q4 = reinterpret_cast<device const float4*>(q + ulong(item.row * args.n_head + head0) * D);
  for (uint i = index; i < Sets * Heads * (D / 4); i += size.x) {
    queries[i] = q4[min(i / (D / 4), n_heads - 1) * (D / 4) + i % (D / 4)] * args.scale;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const uint set = simdgroup % Sets;
  threadgroup const float4* my_queries = queries + set * (Heads * (D / 4));
  threadgroup float* weights = shared + Heads * (Sets * D + kKvPositions * simdgroup);  // [head][position of the block]

  // For scores, four lanes share a position, every fourth float4 of it each; for the sums, a lane has the float4
  // `column` (of 256 dimensions, also that + 32), of 64 dimensions of every other four positions.
  const uint part = lane % 4;
  const uint place = 8 * part + lane / 4;  // of the position whose score the lane ends with
  const uint kFours = D > 128 ? 2 : 1;
  const uint kSides = D > 64 ? 1 : 2;
  const uint column = D > 96 ? lane : lane % (D / 4);
  const uint side = D > 64 ? 0 : lane / 16;
  float maximum[Heads];
  float sum[Heads];  // of the lane's positions
  float4 output[Heads][D > 128 ? 2 : 1];
  MTL_UNROLL
  for (uint h = 0; h < Heads; h++) {
    maximum[h] = lowest;
    sum[h] = 0.0f;
    MTL_UNROLL
    for (uint f = 0; f < kFours; f++) {
      output[h][f] = float4(0.0f);
    }
  }
  for (uint b = item.first / kKvPositions + simdgroup / Sets; b * kKvPositions < item.end; b += simdgroups / Sets) {
    const ulong block = ulong(tables[item.table + b]) * args.block_bytes;
    const uint position0 = b * kKvPositions;
    // What the row does not see may never have been written: the nearest position that it sees is read in its place.
    const uint low = max(position0, item.first) - position0;
    const uint last = min(position0 + kKvPositions, item.end) - 1 - position0;
    float score[Heads][4];
    uint key[4];
    MTL_UNROLL
    for (uint s = 0; s < 4; s++) {
      key[s] = kv_element(head_kv, clamp(8 * s + lane / 4, low, last), D) + 4 * part;
      MTL_UNROLL
      for (uint h = 0; h < Heads; h++) {
        score[h][s] = 0.0f;
      }
    }
    MTL_UNROLL
    for (uint i = 0; i < D / 16; i++) {
      float4 keys[4];
      MTL_UNROLL
      for (uint s = 0; s < 4; s++) {
        keys[s] = kv_four(k + block, kKvTypeK, key[s] + 16 * i, elements);
      }
      MTL_UNROLL
      for (uint h = 0; h < Heads; h++) {
        const float4 query = my_queries[h * (D / 4) + 4 * i + part];
        MTL_UNROLL
        for (uint s = 0; s < 4; s++) {
          score[h][s] += dot(query, keys[s]);
        }
      }
    }
    MTL_UNROLL
    for (uint h = 0; h < Heads; h++) {
      // Sums over the four lanes, each of which keeps one of the four positions.
      const bool upper = part / 2 != 0;
      const bool odd = part % 2 != 0;
      const float even_pair = simd_shuffle_xor(upper ? score[h][0] : score[h][2], 2);
      const float odd_pair = simd_shuffle_xor(upper ? score[h][1] : score[h][3], 2);
      const float even_sum = (upper ? score[h][2] : score[h][0]) + even_pair;
      const float odd_sum = (upper ? score[h][3] : score[h][1]) + odd_pair;
      const float other = simd_shuffle_xor(odd ? even_sum : odd_sum, 1);
      float mine = (odd ? odd_sum : even_sum) + other;
      if (kAttentionSoftcap) {
        mine = args.softcap * precise::tanh(mine / args.softcap);
      }
      const float grown = max(maximum[h], simd_max(mine));
      const float rescale = exp(maximum[h] - grown);
      const float p = place == clamp(place, low, last) ? exp(mine - grown) : 0.0f;
      maximum[h] = grown;
      sum[h] = sum[h] * rescale + p;
      MTL_UNROLL
      for (uint f = 0; f < kFours; f++) {
        output[h][f] *= rescale;
      }
      weights[h * kKvPositions + place] = p;
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    for (uint j = low / (4 * kSides); j <= last / (4 * kSides); j++) {
      const uint four = j * kSides + side;  // positions 4 four to 4 four + 3
      MTL_UNROLL
      for (uint f = 0; f < kFours; f++) {
        float4 values[4];
        MTL_UNROLL
        for (uint s = 0; s < 4; s++) {
          const uint value = kv_element(head_kv, clamp(4 * four + s, low, last), D) + 4 * column + 128 * f;
          values[s] = kv_four(v + block, kKvTypeV, value, elements);
        }
        MTL_UNROLL
        for (uint h = 0; h < Heads; h++) {
          const float4 p = reinterpret_cast<threadgroup const float4*>(weights)[h * (kKvPositions / 4) + four];
          output[h][f] += values[0] * p.x + values[1] * p.y + values[2] * p.z + values[3] * p.w;
        }
      }
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
  }

  // Head after head, so that little memory is needed: each SIMD-group's sums, maximum and sum of weights.
  const uint stride = D + kPartialExtra;
  MTL_UNROLL
  for (uint h = 0; h < Heads; h++) {
    const float total = simd_sum(sum[h]);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    MTL_UNROLL
    for (uint f = 0; f < kFours; f++) {
      float4 whole = output[h][f];
      if (kSides > 1) {  // not mutated: the same for heads of 64
        whole += simd_shuffle_xor(whole, 16);
      }
      if (lane == column) {  // not mutated: the other lanes have the same values
        reinterpret_cast<threadgroup float4*>(shared + simdgroup * stride)[column + 32 * f] = whole;
      }
    }
    if (lane == 0) {
      shared[simdgroup * stride + D] = maximum[h];
      shared[simdgroup * stride + D + 1] = total;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = index; i < Sets * (D / 4); i += size.x) {
      const uint of_set = i / (D / 4);
      const uint d = i % (D / 4);
      float all_maximum = lowest;
      for (uint s = of_set; s < simdgroups; s += Sets) {
        all_maximum = max(all_maximum, shared[s * stride + D]);
      }
      float4 numerator = float4(0.0f);
      float denominator = 0.0f;
      for (uint s = of_set; s < simdgroups; s += Sets) {
        const float weight = exp(shared[s * stride + D] - all_maximum);
        numerator += reinterpret_cast<threadgroup const float4*>(shared + s * stride)[d] * weight;
        denominator += shared[s * stride + D + 1] * weight;
      }
      const uint place_of_head = of_set * Heads + h;
      if (place_of_head < n_heads) {
        const ulong head = head0 + place_of_head;
        if (item.slot == kAttentionWhole) {
          reinterpret_cast<device float4*>(out + (item.row * args.n_head + head) * D)[d] = numerator / denominator;
        } else {
          device float* to = partial + (item.slot * args.n_head + head) * stride;
          reinterpret_cast<device float4*>(to)[d] = numerator;
          if (d == 0) {
            to[D] = all_maximum;
            to[D + 1] = denominator;
          }
        }
      }
    }
  }
}

template <uint D>
inline void attention_decode_heads(constant AttentionArgs& args, device const float* q, device const uchar* k,
                                   device const uchar* v, device const uint* list, device const int* tables,
                                   device float* out, device float* partial, threadgroup float* shared, uint3 group,
                                   uint3 size, uint index, uint simdgroup, uint simdgroups, uint lane) {
  if (kAttentionHeads == 1) {
    attention_decode<D, 1, 1>(args, q, k, v, list, tables, out, partial, shared, group, size, index, simdgroup,
                              simdgroups, lane);
  } else if (kAttentionHeads == 2) {
    attention_decode<D, 1, 2>(args, q, k, v, list, tables, out, partial, shared, group, size, index, simdgroup,
                              simdgroups, lane);
  } else if (kAttentionHeads == 4) {
    attention_decode<D, 1, 4>(args, q, k, v, list, tables, out, partial, shared, group, size, index, simdgroup,
                              simdgroups, lane);
  } else {
    attention_decode<D, 2, 4>(args, q, k, v, list, tables, out, partial, shared, group, size, index, simdgroup,
                              simdgroups, lane);
  }
}

#define ATTENTION_DECODE(D)                                                                                            \
  kernel void attention_decode_##D(                                                                                    \
      constant AttentionArgs& args [[buffer(0)]], device const float* q [[buffer(1)]],                                 \
      device const uchar* k [[buffer(2)]], device const uchar* v [[buffer(3)]], device const uint* list [[buffer(4)]], \
      device const int* tables [[buffer(5)]], device float* out [[buffer(6)]], device float* partial [[buffer(7)]],    \
      threadgroup float* shared MTL_TG(0), uint3 group [[threadgroup_position_in_grid]],                               \
      uint3 size [[threads_per_threadgroup]], uint index [[thread_index_in_threadgroup]],                              \
      uint simdgroup [[simdgroup_index_in_threadgroup]], uint simdgroups [[simdgroups_per_threadgroup]],               \
      uint lane [[thread_index_in_simdgroup]]) {                                                                       \
    attention_decode_heads<D>(args, q, k, v, list, tables, out, partial, shared, group, size, index, simdgroup,        \
                              simdgroups, lane);                                                                       \
  }
ATTENTION_DECODE(64)
ATTENTION_DECODE(80)
ATTENTION_DECODE(96)
ATTENTION_DECODE(128)
ATTENTION_DECODE(256)
#undef ATTENTION_DECODE
