// Attention of many rows a sequence (prompts), heads of 64 to 256: flash attention with simdgroup_matrix. A threadgroup
// has a head and a tile of up to 40 rows of one sequence, and walks over the blocks of 32 positions that they see;
// causal, windowed, and any number of sequences are items of one dispatch.
//
// Grid: n_head x items. Threads: 160, five SIMD-groups of eight rows each. Tiles of 32 rows would be the obvious
// choice; with 40 the rows of a sequence are dealt out evenly in eights, so that one row more than 256 or 512 asks for
// no further pass over the keys. A SIMD-group leaves out blocks that none of its rows sees, and masks on edge blocks
// alone.
//
// K, then V, of a block is staged as halves by all threads, whatever the cache's type; what no row of the tile sees may
// never have been written, and becomes 0. Queries stay in registers; of heads of 256, whose sums fill these, in
// threadgroup memory, and K and V are staged 64 dimensions at a time.
//
// threadgroup(0): 64 * d + 5120 bytes for d up to 128 (two threadgroups on a core), 29696 bytes for 256.
//
// Accuracy: queries, weights of softmax, K and V are rounded to half (11 bits; f16 K and V are exact), scores, sums and
// the softmax are floats. The sum of weights is that of the rounded ones. K and V beyond 65504 become infinite.
#include "backends/metal/kernels/args_attention.h"
#include "backends/metal/kernels/dialect.h"
#include "backends/metal/kernels/kv.h"

using namespace metal;
using namespace argent;

MTL_FC(uint, kKvTypeK, 10);
MTL_FC(uint, kKvTypeV, 11);
MTL_FC(bool, kAttentionSoftcap, 12);

enum : uint { kThreads = 32 * kPrefillSimdgroups, kScratch = 8 * kKvPositions };

// 8 x 8 pieces lie one after the other, so that a matrix load reads 128 bytes in a row.
inline uint attention_piece(uint row, uint d, uint width) { return (row / 8 * (width / 8) + d / 8) * 64 + row % 8 * 8; }

// Dimensions d0 to d0 + Width - 1 of the block's positions [low, high), the others as 0.
template <uint D, uint Width>
inline void attention_stage(device const uchar* block, uint type, uint head_kv, uint n_head_kv, uint d0, uint low,
                            uint high, threadgroup half* tile, uint index) {
  for (uint i = index; i < kKvPositions * Width / 4; i += kThreads) {
    const uint position = i / (Width / 4);
    const uint d = i % (Width / 4) * 4;
    float4 x = float4(0.0f);
    if (position >= low && position < high) {
      x = kv_four(block, type, kv_element(head_kv, position, D) + d0 + d, n_head_kv * kKvPositions * D);
    }
    *reinterpret_cast<threadgroup half4*>(tile + attention_piece(position, d, Width) + d % 8) = half4(x);
  }
}

template <uint D>
inline void attention_prefill(constant AttentionArgs& args, device const float* q, device const uchar* k,
                              device const uchar* v, device const uint* list, device const int* tables,
                              device float* out, threadgroup half* shared, uint3 group, uint index, uint simdgroup,
                              uint lane) {
  if (group.y >= list[0]) {  // the same in the whole threadgroup
    return;
  }
  device const AttentionItem& item = reinterpret_cast<device const AttentionItem*>(list + kAttentionListHead)[group.y];
  const float lowest = -1.0e30f;  // finite: Metal's default mathematics may assume that there are no infinities
  const float slack = 4.0f;       // a maximum may be exceeded by this before sums are rescaled: weights up to e^4
  const uint kWidth = D > 128 ? 64 : D;    // of what is staged at a time
  const uint kHeld = D > 128 ? 1 : D / 8;  // matrices of queries in registers
  threadgroup half* tile = shared;         // 32 positions of kWidth dimensions
  threadgroup float* scratch =
      reinterpret_cast<threadgroup float*>(tile + kKvPositions * kWidth) + kScratch * simdgroup;
  threadgroup half* queries = D > 128 ? tile + kKvPositions * kWidth + 2 * kScratch * kPrefillSimdgroups : shared;
  const uint head_kv = group.x / (args.n_head / args.n_head_kv);

  device const float4* q4 = reinterpret_cast<device const float4*>(q + ulong(item.row * args.n_head + group.x) * D);
  for (uint i = index; i < kPrefillRows * (D / 4); i += kThreads) {
    const uint row = i / (D / 4);
    const uint d = i % (D / 4);
    float4 x = float4(0.0f);
    if (row < item.n_rows) {
      x = q4[ulong(row) * args.n_head * (D / 4) + d];
    }
    *reinterpret_cast<threadgroup half4*>(queries + attention_piece(row, 4 * d, D) + 4 * d % 8) = half4(x);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  threadgroup half* my_queries = queries + attention_piece(8 * simdgroup, 0, D);
  simdgroup_half8x8 query[D > 128 ? 1 : D / 8];
  MTL_UNROLL
  for (uint i = 0; i < kHeld; i++) {
    simdgroup_load(query[i], my_queries + 64 * i, 8);
  }
  simdgroup_float8x8 output[D / 8];
  MTL_UNROLL
  for (uint i = 0; i < D / 8; i++) {
    output[i] = make_filled_simdgroup_matrix<float, 8>(0.0f);
  }
  const simdgroup_float8x8 zero = make_filled_simdgroup_matrix<float, 8>(0.0f);
  threadgroup_barrier(mem_flags::mem_threadgroup);

  // Of the eight rows' scores, a lane has those of row lane / 4 for eight positions.
  const uint row = 8 * simdgroup + lane / 4;
  const uint position = item.position + row;
  const uint hidden = args.window != 0 ? args.window - 1 : 0xffffffff;  // positions before its own that a row sees
  const uint first_seen = position - min(position, hidden);
  const uint position_a = item.position + 8 * simdgroup;  // of the SIMD-group's first row, and its last
  const uint position_z = position_a + 7;
  float maximum = lowest;
  float sum = 0.0f;  // of the lane's positions
  for (uint b = item.first / kKvPositions; b * kKvPositions < item.end; b++) {
    const ulong block = ulong(tables[item.table + b]) * args.block_bytes;
    const uint position0 = b * kKvPositions;
    const uint low = max(position0, item.first) - position0;
    const uint high = min(position0 + kKvPositions, item.end) - position0;
    // Some row of the SIMD-group sees something of the block; all see all of it.
    const uint from = position_a - min(position_a, hidden);  // not mutated: saves work
    const bool some = 8 * simdgroup < item.n_rows && position0 <= position_z && position0 + kKvPositions > from;
    const bool all = position0 + kKvPositions - 1 <= position_a && position0 >= position_z - min(position_z, hidden);
    simdgroup_float8x8 scores[4];
    MTL_UNROLL
    for (uint j = 0; j < 4; j++) {
      scores[j] = make_filled_simdgroup_matrix<float, 8>(0.0f);
    }
    MTL_UNROLL
    for (uint d0 = 0; d0 < D; d0 += kWidth) {
      attention_stage<D, kWidth>(k + block, kKvTypeK, head_kv, args.n_head_kv, d0, low, high, tile, index);
      threadgroup_barrier(mem_flags::mem_threadgroup);
      if (some) {  // not mutated: saves work, what is masked weighs 0
        MTL_UNROLL
        for (uint i = 0; i < kWidth / 8; i++) {
          const uint held = D > 128 ? 0 : i;
          if (D > 128) {  // not mutated: the same for heads of 256
            simdgroup_load(query[held], my_queries + 8 * d0 + 64 * i, 8);
          }
          MTL_UNROLL
          for (uint j = 0; j < 4; j++) {
            simdgroup_half8x8 keys;
            simdgroup_load(keys, tile + attention_piece(8 * j, 8 * i, kWidth), 8, 0, true);
            simdgroup_multiply_accumulate(scores[j], query[held], keys, scores[j]);
          }
        }
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    simdgroup_half8x8 weights[4];
    if (some) {  // not mutated: as above
      MTL_UNROLL
      for (uint j = 0; j < 4; j++) {
        simdgroup_store(scores[j], scratch + 8 * j, kKvPositions);
      }
      simdgroup_barrier(mem_flags::mem_threadgroup);
      float s[8];
      const float4 of_lane[2] = {reinterpret_cast<threadgroup const float4*>(scratch)[2 * lane],
                                 reinterpret_cast<threadgroup const float4*>(scratch)[2 * lane + 1]};
      float top = lowest;
      MTL_UNROLL
      for (uint e = 0; e < 8; e++) {
        s[e] = of_lane[e / 4][e % 4] * args.scale;
        if (kAttentionSoftcap) {
          s[e] = args.softcap * precise::tanh(s[e] / args.softcap);
        }
        const uint key = position0 + lane % 4 * 8 + e;
        const bool visible = all || (key >= first_seen && key <= position);
        s[e] = visible ? s[e] : lowest;
        top = max(top, s[e]);
      }
      top = max(top, simd_shuffle_xor(top, 1));
      top = max(top, simd_shuffle_xor(top, 2));
      const float grown = top > maximum + slack ? top : maximum;
      const float rescale = exp(maximum - grown);
      const bool moved = grown > maximum && maximum > lowest;  // before the first visible key the sums are 0
      half4 p[2];
      sum *= rescale;
      MTL_UNROLL
      for (uint e = 0; e < 8; e++) {
        const half weight = half(s[e] > lowest ? exp(s[e] - grown) : 0.0f);
        p[e / 4][e % 4] = weight;
        sum += float(weight);
      }
      maximum = grown;
      simdgroup_barrier(mem_flags::mem_threadgroup);
      threadgroup half4* to = reinterpret_cast<threadgroup half4*>(scratch) + 2 * lane;
      to[0] = p[0];
      to[1] = p[1];
      simdgroup_barrier(mem_flags::mem_threadgroup);
      if (simd_any(moved)) {  // not mutated: saves work, factors are 1
        // A matrix with the eight rows' factors along its diagonal rescales the sums.
        threadgroup float* factors = scratch + kScratch / 2;
        const uint corner = 2 * (lane % 4);
        factors[2 * lane] = corner == lane / 4 ? rescale : 0.0f;
        factors[2 * lane + 1] = corner + 1 == lane / 4 ? rescale : 0.0f;
        simdgroup_barrier(mem_flags::mem_threadgroup);
        simdgroup_float8x8 factor;
        simdgroup_load(factor, factors, 8);
        MTL_UNROLL
        for (uint i = 0; i < D / 8; i++) {
          simdgroup_multiply_accumulate(output[i], factor, output[i], zero);
        }
      }
      MTL_UNROLL
      for (uint j = 0; j < 4; j++) {
        simdgroup_load(weights[j], reinterpret_cast<threadgroup half*>(scratch) + 8 * j, kKvPositions);
      }
    }
    MTL_UNROLL
    for (uint d0 = 0; d0 < D; d0 += kWidth) {
      attention_stage<D, kWidth>(v + block, kKvTypeV, head_kv, args.n_head_kv, d0, low, high, tile, index);
      threadgroup_barrier(mem_flags::mem_threadgroup);
      if (some) {  // not mutated: as above
        MTL_UNROLL
        for (uint i = 0; i < kWidth / 8; i++) {
          MTL_UNROLL
          for (uint j = 0; j < 4; j++) {
            simdgroup_half8x8 values;
            simdgroup_load(values, tile + attention_piece(8 * j, 8 * i, kWidth), 8);
            simdgroup_multiply_accumulate(output[d0 / 8 + i], weights[j], values, output[d0 / 8 + i]);
          }
        }
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
  }

  sum += simd_shuffle_xor(sum, 1);
  sum += simd_shuffle_xor(sum, 2);
  const float inverse = 1.0f / sum;
  device float4* to = reinterpret_cast<device float4*>(out + (ulong(item.row + row) * args.n_head + group.x) * D);
  MTL_UNROLL
  for (uint i = 0; i < D / 16; i++) {
    simdgroup_store(output[2 * i], scratch, 16);
    simdgroup_store(output[2 * i + 1], scratch + 8, 16);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    if (row < item.n_rows) {
      to[4 * i + lane % 4] = reinterpret_cast<threadgroup const float4*>(scratch)[lane] * inverse;
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
  }
}

#define ATTENTION_PREFILL(D)                                                                                           \
  kernel void attention_prefill_##D(                                                                                   \
      constant AttentionArgs& args [[buffer(0)]], device const float* q [[buffer(1)]],                                 \
      device const uchar* k [[buffer(2)]], device const uchar* v [[buffer(3)]], device const uint* list [[buffer(4)]], \
      device const int* tables [[buffer(5)]], device float* out [[buffer(6)]], threadgroup half* shared MTL_TG(0),     \
      uint3 group [[threadgroup_position_in_grid]], uint index [[thread_index_in_threadgroup]],                        \
      uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {                    \
    attention_prefill<D>(args, q, k, v, list, tables, out, shared, group, index, simdgroup, lane);                     \
  }
ATTENTION_PREFILL(64)
ATTENTION_PREFILL(80)
ATTENTION_PREFILL(96)
ATTENTION_PREFILL(128)
ATTENTION_PREFILL(256)
#undef ATTENTION_PREFILL
