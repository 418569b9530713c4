// What the attention kernels read beside q, the cache and the block tables: arguments by value, and work lists that the
// host (attention_items.h) writes into memory for each step.
#pragma once

#if defined(__METAL_VERSION__)
#include <metal_stdlib>
#else
#include <cstdint>
#endif

namespace argent {

struct AttentionArgs {
  uint32_t n_head;  // a multiple of n_head_kv
  uint32_t n_head_kv;
  uint32_t d_head;       // the fast kernels have it in their name, and d_value is the same
  uint32_t d_value;      //
  uint32_t window;       // 0: none
  uint32_t block_bytes;  // from a block of the cache to the next; a multiple of 16
  float scale;
  float softcap;  // where kAttentionSoftcap is true
};
static_assert(sizeof(AttentionArgs) == 32, "the same for all compilers");

// A work list: the number of items, three words of nothing, the items. A grid may have more threadgroups than items.
enum : uint32_t { kAttentionListHead = 4 };

// attention_any and attention_decode: one row and positions [first, end) of its sequence, all visible to the row.
// attention_prefill: n_rows neighbouring rows and the positions that any of them sees.
struct AttentionItem {
  uint32_t row;       // the first, of the step
  uint32_t n_rows;    // at most kPrefillRows
  uint32_t position;  // of the first row
  uint32_t table;     // the sequence's block table begins here
  uint32_t first;
  uint32_t end;   // more than first
  uint32_t slot;  // attention_decode: of the partial results, or kAttentionWhole
  uint32_t unused;
};
static_assert(sizeof(AttentionItem) == 32, "the same for all compilers");
enum : uint32_t { kAttentionWhole = 0xffffffff };  // the item is all of its row: the result is final

// attention_combine: a row of which several items had a part.
struct AttentionCombineItem {
  uint32_t row;
  uint32_t slot;      // the first; the others follow
  uint32_t n_splits;  // 2 to kMaxSplits
  uint32_t unused;
};
static_assert(sizeof(AttentionCombineItem) == 16, "the same for all compilers");
enum : uint32_t { kMaxSplits = 64 };

// A partial result is of [slot][head]: d_value sums of weighted values, the maximum of the scores, the sum of weights,
// two floats of nothing.
enum : uint32_t { kPartialExtra = 4 };

// attention_prefill: five SIMD-groups of eight rows.
enum : uint32_t { kPrefillSimdgroups = 5, kPrefillRows = 40 };

}  // namespace argent
