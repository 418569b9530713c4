// Everything on the CPU that is not a matrix product: norms, activations, rope, the KV cache and attention. One kernel
// text (vector-inl.h, attention-inl.h) is compiled for each ISA. Results depend on a row and its keys alone, not on how
// rows are tiled or threads divided, and have the same bits on all ISAs with FMA.
#pragma once

#include <cstdint>

#include "backends/backend.h"
#include "backends/cpu/matmul.h"

namespace argent::cpu {

// The KV cache of one layer in the pool. A block holds kKvBlockTokens positions of every KV head:
//   K        [block][n_head_kv][d_head][32]: transposed, so that one load takes an element of 16 keys
//   V        [block][n_head_kv][32][d_value]
//   K, q8_0  [block][n_head_kv]{ int8 [d_head / 2][32][2], half scales [d_head / 32][32] }: pairs, whose products sum
//            to int16
//   V, q8_0  [block][n_head_kv]{ int8 [32][d_value], half scales [d_value / 32][32] }
// A block of all layers of a group is one piece of memory: a new one touches few pages, and it is moved as a whole.
struct KvLayer {
  uint8_t *k, *v;
  KvType k_type, v_type;
  uint32_t n_head_kv, d_head, d_value;
  uint64_t k_stride, v_stride;  // bytes from a block to the next: other layers may lie between them
};

// Keys are taken in splits of 256 positions at multiples of 256. Each split is reduced on its own (maximum, sum of
// exponentials, weighted values); splits are merged in order, so any division of splits over calls gives the same bits.
inline constexpr uint32_t kSplitKeys = 256;

// The running state of one query head: maximum and sum of its softmax, then d_value accumulators.
constexpr uint64_t attention_state_floats(uint32_t d_value) { return (16 + uint64_t(d_value) + 15) / 16 * 16; }

// Rows of one sequence that attend with the query heads of one KV head.
struct AttentionTile {
  const KvLayer* layer;
  const int32_t* table;  // the sequence's blocks in this layer's group
  uint32_t head_kv;
  uint32_t n_group;         // query heads of this KV head
  uint32_t window;          // 0 = all
  float scale, softcap;     // softcap 0 = none
  uint32_t n_rows;          // at most kAttentionRows
  const float* const* q;    // by row: the first of its n_group query heads of d_head floats
  const int32_t* position;  // by row, ascending
  // Keys that the caller reads after this call, fetched meanwhile: n_next blocks (below 0: none) of one of the layer's
  // heads. Results do not depend on them.
  const int32_t* next = nullptr;
  uint32_t n_next = 0, next_head = 0;
  bool fetch_into_l1 = true;  // or into L2 only
};
inline constexpr uint32_t kAttentionRows = 16;
inline constexpr uint32_t kAttentionQueries = 8;  // query heads that meet a key at once, at most

struct VectorKernels {
  // n floats each; y may be one of the inputs
  void (*add)(const float* a, const float* b, float* y, uint64_t n);
  void (*mul)(const float* a, const float* b, float* y, uint64_t n);
  void (*scale)(const float* x, float s, float* y, uint64_t n);
  void (*silu)(const float* x, float* y, uint64_t n);
  void (*gelu)(const float* x, float* y, uint64_t n);  // tanh form
  void (*sigmoid)(const float* x, float* y, uint64_t n);
  void (*softcap)(const float* x, float c, float* y, uint64_t n);
  void (*silu_mul)(const float* x, const float* u, float* y, uint64_t n);  // silu(x) * u
  void (*gelu_mul)(const float* x, const float* u, float* y, uint64_t n);

  // A row of n floats in groups of `group`: x / sqrt(mean(x^2) + eps), times w[group] where w is not null.
  void (*rms_norm)(const float* x, const float* w, float* y, uint32_t n, uint32_t group, float eps);
  // A row: s = a + b, y = rms_norm(s) * w. s may be a.
  void (*add_rms_norm)(const float* a, const float* b, const float* w, float* s, float* y, uint32_t n, uint32_t group,
                       float eps);

  // A row of n_head heads; table is n_rot/2 pairs of cos, sin. y may be x.
  void (*rope)(const float* x, const float* table, float* y, uint32_t n_head, uint32_t d_head, uint32_t n_rot,
               bool interleaved);

  // Stores one position: k [n_head_kv*d_head], v [n_head_kv*d_value] into `block` at `slot` (0..31).
  void (*kv_store)(const KvLayer& layer, int32_t block, uint32_t slot, const float* k, const float* v);

  // Merges splits [split_begin, split_end) of the tile's keys into states[row * n_group + head] (attention_state_floats
  // apart), which attention_begin has emptied. Splits without visible keys change nothing. scratch: attention_scratch
  // bytes.
  void (*attention_begin)(float* states, uint32_t n_states, uint32_t d_value);
  void (*attention)(const AttentionTile& tile, uint32_t split_begin, uint32_t split_end, float* states,
                    uint8_t* scratch);
  // Merges `from` (later splits) into `into`.
  void (*attention_merge)(float* into, const float* from, uint32_t n_states, uint32_t d_value);
  // accumulators / sum of one state into d_value floats; zeros where no key was visible.
  void (*attention_end)(const float* state, float* out, uint32_t d_value);
};

// 64-byte aligned scratch of one thread's attention calls.
uint64_t attention_scratch(uint32_t n_group, uint32_t d_head, uint32_t d_value);

const VectorKernels& vector_kernels(Isa isa);

}  // namespace argent::cpu
