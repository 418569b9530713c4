// Rows of K and V of a step to their places in the cache. A SIMD-group has one head of one token, of K or of V, and
// takes 32 elements at a time: loads of 128 bytes in a row, stores of 32 to 128.
//
// Grid: x of 2 n_head_kv / 4 threadgroups, rounded up; y of a token each. threads_per_threadgroup is 128: four
// SIMD-groups, the last of which may have nothing to do. No threadgroup memory.
#include "backends/metal/kernels/args_fused.h"
#include "backends/metal/kernels/kv_write.h"

using namespace metal;
using namespace argent;

MTL_FC(uint, kKvTypeK, 10);
MTL_FC(uint, kKvTypeV, 11);

kernel void kv_store(constant KvStoreArgs& args [[buffer(0)]],           //
                     device const float* k [[buffer(1)]],                // [token][n_head_kv][d_head]
                     device const float* v [[buffer(2)]],                // [token][n_head_kv][d_value]
                     device uchar* cache_k [[buffer(3)]],                // at the layer's place in block 0
                     device uchar* cache_v [[buffer(4)]],                //
                     device const int* positions [[buffer(5)]],          // [token]
                     device const uint* row_sequence [[buffer(6)]],      // [token]
                     device const KvSequence* sequences [[buffer(7)]],   //
                     device const int* tables [[buffer(8)]],             // of the layer's group
                     uint3 group [[threadgroup_position_in_grid]],       //
                     uint simdgroup [[simdgroup_index_in_threadgroup]],  //
                     uint simdgroups [[simdgroups_per_threadgroup]],     //
                     uint lane [[thread_index_in_simdgroup]]) {
  const uint head = group.x * simdgroups + simdgroup;
  if (head >= 2 * args.n_head_kv) {  // the same in all lanes
    return;
  }
  const uint position = uint(positions[group.y]);
  const ulong place = kv_place(tables, sequences, row_sequence[group.y], position, args.block_bytes);
  const bool is_k = head < args.n_head_kv;
  const uint head_kv = is_k ? head : head - args.n_head_kv;
  const uint d = is_k ? args.d_head : args.d_value;
  const uint type = is_k ? kKvTypeK : kKvTypeV;
  device const float* row = (is_k ? k : v) + (ulong(group.y) * args.n_head_kv + head_kv) * d;
  device uchar* block = (is_k ? cache_k : cache_v) + place;
  for (uint i = lane; i / 32 * 32 < d; i += 32) {
    kv_write(type, block, args.n_head_kv, head_kv, position, d, i, i < d ? row[i] : 0.0f, lane);
  }
}
