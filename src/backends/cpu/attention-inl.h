// Attention over the paged KV cache, compiled once for each instruction set (simd/simd.h says how). For every query
// head and split of 256 keys the arithmetic is this, every operation rounded to f32, over the keys that the row sees:
//
//   s[key] = (chain of fma(q[d], k[key][d], .) over d, from 0) * scale, then softcap
//   m = max s (0 if that is -infinity), p = exp(s - m)
//   sum of p in 16 lanes (key % 16), lanes folded 8, 4, 2, 1 apart
//   acc[d] = chain of fma(p, v[key][d], .) over keys, from 0
//
// and splits are merged into the state in order. Up to kMaxQueries query heads, of one row or of several, share each
// key that is read; what a row does not see is selected away, never multiplied by 0, so it may be NaN or not be there.
#pragma once

#include "backends/cpu/simd/vector_math.h"
#include "backends/cpu/vector.h"

namespace argent::cpu::ARGENT_ISA {
namespace {

constexpr int kBlock = int(kKvBlockTokens), kBlocks = int(kSplitKeys) / kBlock;
constexpr uint32_t kStateHeader = 16;

SIMD_FN constexpr uint64_t attention_state_stride(uint32_t d_value) {
  return (kStateHeader + uint64_t(d_value) + 15) / 16 * 16;
}
static_assert(attention_state_stride(65) == attention_state_floats(65));

static_assert(kMaxQueries <= int(kAttentionQueries));

SIMD_FN F32 load_kv(const float* p) { return load_f32(p); }
SIMD_FN F32 load_kv(const uint16_t* p) { return load_half(p); }

SIMD_FN constexpr int smaller(int a, int b) { return a < b ? a : b; }
SIMD_FN constexpr int larger(int a, int b) { return a > b ? a : b; }

// Vectors of a row that Q queries take at once: a power of two whose sums fit the registers.
SIMD_FN constexpr int vectors_at_once(int queries) {
  int n = 8;
  while (n > 1 && n * queries > kAccumulators) n /= 2;
  return n;
}

// Query heads that meet one split together.
struct Queries {
  int n;
  const float* q[kMaxQueries];
  float* state[kMaxQueries];
  int lo[kMaxQueries], hi[kMaxQueries];                 // keys of the split that each sees; lo = hi = 0: none
  uint32_t blocks;                                      // bit by block: some query sees some of its keys
  int first, last;                                      // keys that any sees lie in [first, last)
  int common_first, common_last;                        // all see [common_first, common_last)
  float into_factor[kMaxQueries], factor[kMaxQueries];  // of the state and of this split when they are merged
};

// One KV head's cache in one split.
struct Split {
  const AttentionTile& tile;
  const int32_t* table;  // of the split's first block
  int n_blocks;          // from there on, that rows of the tile may see
};

SIMD_FN uint32_t element_bytes(KvType type) { return type == KvType::f32 ? 4 : 2; }

SIMD_FN const uint8_t* k_block(const Split& split, int block) {
  const KvLayer& layer = *split.tile.layer;
  const uint64_t head = uint64_t(uint32_t(split.table[block])) * layer.n_head_kv + split.tile.head_kv;
  return layer.k + head * layer.d_head * kBlock * element_bytes(layer.k_type);
}

SIMD_FN const uint8_t* v_block(const Split& split, int block) {
  const KvLayer& layer = *split.tile.layer;
  const uint64_t head = uint64_t(uint32_t(split.table[block])) * layer.n_head_kv + split.tile.head_kv;
  return layer.v + head * layer.d_value * kBlock * element_bytes(layer.v_type);
}

// Row `row` (a line, of floats two) of a block of 32 keys, or of as much of its values, that is read soon: each pass
// over keys fetches what the next pass reads, so that memory is busy all the time.
template <class T>
SIMD_FN void fetch(const uint8_t* block, uint32_t row_bytes, uint32_t row) {
  const uint8_t* at = block + uint64_t(row) * row_bytes;
  __builtin_prefetch(at, 0, 3);
  if constexpr (sizeof(T) == 4) __builtin_prefetch(at + 64, 0, 3);
}

SIMD_FN uint32_t fetch_bytes(KvType type) { return kBlock * element_bytes(type); }

// Products of Q queries with the keys of one block: scores[query][key of the split].
template <class T, int Q>
SIMD_FN void score_block(const Queries& queries, const T* keys, uint32_t d_head, const uint8_t* next_k,
                         const uint8_t* next_v, uint32_t v_bytes, float* scores) {
  constexpr int N = smaller(vectors_at_once(Q), kBlock / kLanes);
  const float* q[Q];
#pragma GCC unroll 8
  for (int i = 0; i < Q; ++i) q[i] = queries.q[i];
  for (int lane = 0; lane < kBlock; lane += N * kLanes) {
    F32 sums[Q][N];
#pragma GCC unroll 8
    for (int i = 0; i < Q; ++i)
#pragma GCC unroll 8
      for (int v = 0; v < N; ++v) sums[i][v] = set_f32(0.0f);
    const T* at = keys + lane;
    for (uint32_t d = 0; d < d_head; ++d, at += kBlock) {
      fetch<T>(next_k, kBlock * sizeof(T), d);
      fetch<T>(next_v, v_bytes, d);
      F32 k[N];
#pragma GCC unroll 8
      for (int v = 0; v < N; ++v) k[v] = load_kv(at + v * kLanes);
#pragma GCC unroll 8
      for (int i = 0; i < Q; ++i) {
        const F32 x = set_f32(q[i][d]);
#pragma GCC unroll 8
        for (int v = 0; v < N; ++v) sums[i][v] = fma(x, k[v], sums[i][v]);
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < Q; ++i)
#pragma GCC unroll 8
      for (int v = 0; v < N; ++v) store_all(scores + i * kSplitKeys + lane + v * kLanes, sums[i][v]);
  }
}

template <class T, int Q>
__attribute__((noinline)) void score(const Split& split, const Queries& queries, float* scores) {
  for (int block = queries.first / kBlock; block * kBlock < queries.last; ++block) {
    if (!(queries.blocks >> block & 1)) continue;
    const uint8_t* keys = k_block(split, block);
    const uint8_t* next = queries.blocks >> (block + 1) & 1 ? k_block(split, block + 1) : keys;
    score_block<T, Q>(queries, reinterpret_cast<const T*>(keys), split.tile.layer->d_head, next, v_block(split, block),
                      fetch_bytes(split.tile.layer->v_type), scores + block * kBlock);
  }
}

// Scores of one query to exponentials; their maximum and sum.
SIMD_FN void softmax(float* scores, int lo, int hi, float scale, float softcap, float& maximum, float& sum) {
  const F32 factor = set_f32(scale), cap = set_f32(softcap), inverse_cap = set_f32(1.0f / softcap);
  const F32 nothing = set_f32(-__builtin_inff());
  const int begin = lo / 16 * 16, end = (hi + 15) / 16 * 16;
  F32 best[kWide], sums[kWide];
#pragma GCC unroll 4
  for (int v = 0; v < kWide; ++v) {
    best[v] = nothing;
    sums[v] = set_f32(0.0f);
  }
  for (int key = begin; key < end; key += 16) {
    const bool whole = key >= lo && key + 16 <= hi;
#pragma GCC unroll 4
    for (int v = 0; v < kWide; ++v) {
      const int at = key + v * kLanes;
      F32 s = mul(load_f32(scores + at), factor);
      if (softcap != 0) s = softcap_f32(s, cap, inverse_cap);
      if (!whole) s = keep_lanes(s, lo - at, hi - at, nothing);
      store_all(scores + at, s);
      best[v] = max_f32(s, best[v]);
    }
  }
  maximum = fold_max(best);
  const F32 shift = set_f32(maximum == -__builtin_inff() ? 0.0f : maximum);
  for (int key = begin; key < end; key += 16)
#pragma GCC unroll 4
    for (int v = 0; v < kWide; ++v) {
      const int at = key + v * kLanes;
      const F32 p = exp_negative(sub(load_f32(scores + at), shift));
      store_all(scores + at, p);
      sums[v] = add(sums[v], p);
    }
  sum = fold_sum(sums);
}

// Merges a softmax's maximum and sum into a state's; the factors that both sides' accumulators take.
SIMD_FN void merge_softmax(float* state, float maximum, float sum, float& into_factor, float& factor) {
  float best = maximum, a = 0.0f, b = 1.0f;
  if (state[1] != 0) {
    best = state[0] > maximum ? state[0] : maximum;
    a = first_lane(exp_negative(set_f32(state[0] - best)));
    b = first_lane(exp_negative(set_f32(maximum - best)));
  }
  state[0] = best;
  state[1] = first_lane(fma(set_f32(state[1]), set_f32(a), set_f32(sum * b)));
  into_factor = a;
  factor = b;
}

// What has no weight beside the state leaves its accumulators alone, be it infinite.
SIMD_FN bool no_weight(float into_factor, float factor) { return into_factor == 1 && factor == 0; }

// Weighted values of N vectors (or the first `part` lanes of one) from d on, merged into the states.
template <class T, int Q, int N, bool kPart>
SIMD_FN void mix_columns(const Split& split, const Queries& queries, const float* p, uint32_t d, int part) {
  const uint32_t d_value = split.tile.layer->d_value;
  F32 sums[Q][N];
#pragma GCC unroll 8
  for (int i = 0; i < Q; ++i)
#pragma GCC unroll 8
    for (int v = 0; v < N; ++v) sums[i][v] = set_f32(0.0f);
  // Keys that only some of the queries see lie before and behind those that all see.
  const int bounds[4] = {queries.first, queries.common_first, queries.common_last, queries.last};
#pragma GCC unroll 1
  for (int range = 0; range < 3; ++range) {
    for (int key = bounds[range]; key < bounds[range + 1];) {
      const int block = key / kBlock, end = smaller(bounds[range + 1], (block + 1) * kBlock);
      if (!(queries.blocks >> block & 1)) {
        key = end;
        continue;
      }
      const T* at = reinterpret_cast<const T*>(v_block(split, block)) + uint64_t(key % kBlock) * d_value + d;
      if (range == 1) {
        const uint32_t k_bytes = fetch_bytes(split.tile.layer->k_type);
        const float* weights = p + key;
        const uint8_t* next =
            block + kBlocks < split.n_blocks ? k_block(split, block + kBlocks) : k_block(split, block);
        uint32_t line = d + uint32_t(key % kBlock) * N * kLanes / kBlock;
        for (; key < end; ++key, ++weights, at += d_value) {
#pragma GCC unroll 4
          for (int i = 0; i < N * kLanes / kBlock; ++i) fetch<T>(next, k_bytes, line++);
#pragma GCC unroll 8
          for (int v = 0; v < N; ++v) {
            const F32 x = kPart ? load_part(at, part) : load_kv(at + v * kLanes);
#pragma GCC unroll 8
            for (int i = 0; i < Q; ++i) sums[i][v] = fma(set_f32(weights[i * kSplitKeys]), x, sums[i][v]);
          }
        }
      } else {
        for (; key < end; ++key, at += d_value)
#pragma GCC unroll 8
          for (int v = 0; v < N; ++v) {
            const F32 x = kPart ? load_part(at, part) : load_kv(at + v * kLanes);
#pragma GCC unroll 8
            for (int i = 0; i < Q; ++i)
              if (key >= queries.lo[i] && key < queries.hi[i])
                sums[i][v] = fma(set_f32(p[i * kSplitKeys + key]), x, sums[i][v]);
          }
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < Q; ++i) {
    if (no_weight(queries.into_factor[i], queries.factor[i])) continue;
    const F32 into = set_f32(queries.into_factor[i]), factor = set_f32(queries.factor[i]);
    float* state = queries.state[i] + kStateHeader + d;
#pragma GCC unroll 8
    for (int v = 0; v < N; ++v) {
      if constexpr (kPart)
        store_f32(state, fma(load_part(state, part), into, mul(sums[i][v], factor)), part);
      else
        store_all(state + v * kLanes, fma(load_f32(state + v * kLanes), into, mul(sums[i][v], factor)));
    }
  }
}

template <class T, int Q, int N>
SIMD_FN void mix_from(const Split& split, const Queries& queries, const float* p, uint32_t d) {
  const uint32_t d_value = split.tile.layer->d_value;
  for (; d + N * kLanes <= d_value; d += N * kLanes) mix_columns<T, Q, N, false>(split, queries, p, d, 0);
  if constexpr (N > 1)
    mix_from<T, Q, N / 2>(split, queries, p, d);
  else if (d < d_value)
    mix_columns<T, Q, 1, true>(split, queries, p, d, int(d_value - d));
}

template <class T, int Q>
__attribute__((noinline)) void mix(const Split& split, const Queries& queries, const float* p) {
  mix_from<T, Q, vectors_at_once(Q)>(split, queries, p, 0);
}

#define EACH_NUMBER_OF_QUERIES(CALL) \
  switch (queries.n) { CALL(1) CALL(2) CALL(3) CALL(4) CALL(5) CALL(6) CALL(7) CALL(8) }

template <class T>
SIMD_FN void score_any(const Split& split, const Queries& queries, float* scores) {
#define CALL(Q)                                                          \
  case Q:                                                                \
    if constexpr (Q <= kMaxQueries) score<T, Q>(split, queries, scores); \
    break;
  EACH_NUMBER_OF_QUERIES(CALL)
#undef CALL
}

template <class T>
SIMD_FN void mix_any(const Split& split, const Queries& queries, const float* p) {
#define CALL(Q)                                                   \
  case Q:                                                         \
    if constexpr (Q <= kMaxQueries) mix<T, Q>(split, queries, p); \
    break;
  EACH_NUMBER_OF_QUERIES(CALL)
#undef CALL
}
#undef EACH_NUMBER_OF_QUERIES

// Queries [begin, begin + n) of the tile (row by row) in the split that starts at position `base`. False: they see none
// of it.
bool gather(const AttentionTile& tile, uint32_t begin, int n, int64_t base, float* states, Queries& out) {
  const uint64_t state_floats = attention_state_stride(tile.layer->d_value);
  out.n = n;
  out.blocks = 0;
  out.first = out.common_first = out.common_last = kSplitKeys;
  out.last = 0;
  int least_hi = kSplitKeys, most_lo = 0;
  out.first = kSplitKeys;
  for (int i = 0; i < n; ++i) {
    const uint32_t query = begin + i, row = query / tile.n_group, head = query % tile.n_group;
    out.q[i] = tile.q[row] + uint64_t(head) * tile.layer->d_head;
    out.state[i] = states + query * state_floats;
    const int64_t end = int64_t(tile.position[row]) + 1 - base;
    const int64_t start = tile.window ? end - int64_t(tile.window) : 0;
    int lo = start < 0 ? 0 : start > kSplitKeys ? int(kSplitKeys) : int(start);
    int hi = end < 0 ? 0 : end > kSplitKeys ? int(kSplitKeys) : int(end);
    if (lo >= hi) lo = hi = 0;
    out.lo[i] = lo;
    out.hi[i] = hi;
    most_lo = larger(most_lo, lo);
    least_hi = smaller(least_hi, hi);
    if (lo == hi) continue;
    out.first = smaller(out.first, lo);
    out.last = larger(out.last, hi);
    for (int block = lo / kBlock; block <= (hi - 1) / kBlock; ++block) out.blocks |= 1u << block;
  }
  if (out.last == 0) return false;
  out.common_first = most_lo < least_hi ? most_lo : out.last;
  out.common_last = most_lo < least_hi ? least_hi : out.last;
  return true;
}

}  // namespace

void attention_begin(float* states, uint32_t n_states, uint32_t d_value) {
  const uint64_t n = attention_state_stride(d_value);
  for (uint32_t i = 0; i < n_states; ++i, states += n) {
    for (uint64_t k = 0; k < n; k += kLanes) store_all(states + k, set_f32(0.0f));
    states[0] = -__builtin_inff();
  }
}

void attention(const AttentionTile& tile, uint32_t split_begin, uint32_t split_end, float* states, uint8_t* scratch) {
  const uint32_t n_queries = tile.n_rows * tile.n_group;
  float* scores = reinterpret_cast<float*>(scratch);
  const uint32_t last = tile.position[tile.n_rows - 1] / kBlock;
  const uint32_t n_blocks = last < split_end * kBlocks ? last + 1 : split_end * kBlocks;
  for (uint32_t number = split_begin; number < split_end; ++number) {
    const Split split = {tile, tile.table + uint64_t(number) * kBlocks, int(n_blocks - number * kBlocks)};
    for (uint32_t begin = 0; begin < n_queries;) {
      const uint32_t left = n_queries - begin;
      const int n = left >= 2 * kMaxQueries || left == kMaxQueries ? kMaxQueries
                    : left > kMaxQueries                           ? int(left + 1) / 2
                                                                   : int(left);
      Queries queries;
      if (gather(tile, begin, n, int64_t(number) * kSplitKeys, states, queries)) {
        if (tile.layer->k_type == KvType::f16)
          score_any<uint16_t>(split, queries, scores);
        else
          score_any<float>(split, queries, scores);
        for (int i = 0; i < n; ++i) {
          queries.into_factor[i] = 1;
          queries.factor[i] = 0;
          if (queries.lo[i] == queries.hi[i]) continue;
          float maximum, sum;
          softmax(scores + i * kSplitKeys, queries.lo[i], queries.hi[i], tile.scale, tile.softcap, maximum, sum);
          if (sum != 0) merge_softmax(queries.state[i], maximum, sum, queries.into_factor[i], queries.factor[i]);
        }
        if (tile.layer->v_type == KvType::f16)
          mix_any<uint16_t>(split, queries, scores);
        else
          mix_any<float>(split, queries, scores);
      }
      begin += n;
    }
  }
}

void attention_merge(float* into, const float* from, uint32_t n_states, uint32_t d_value) {
  const uint64_t n = attention_state_stride(d_value);
  for (uint32_t i = 0; i < n_states; ++i, into += n, from += n) {
    if (from[1] == 0) continue;
    float a, b;
    merge_softmax(into, from[0], from[1], a, b);
    if (no_weight(a, b)) continue;
    const F32 into_factor = set_f32(a), factor = set_f32(b);
    for (uint64_t k = kStateHeader; k < n; k += kLanes)
      store_all(into + k, fma(load_f32(into + k), into_factor, mul(load_f32(from + k), factor)));
  }
}

void attention_end(const float* state, float* out, uint32_t d_value) {
  const F32 inverse = set_f32(state[1] == 0 ? 0.0f : 1.0f / state[1]);
  for (uint32_t d = 0; d < d_value; d += kLanes)
    store_f32(out + d, mul(load_f32(state + kStateHeader + d), inverse), smaller(int(d_value - d), kLanes));
}

}  // namespace argent::cpu::ARGENT_ISA
