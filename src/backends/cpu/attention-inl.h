// Attention over the paged KV cache, compiled once for each instruction set (simd/simd.h says how). For every query
// head and split of 256 keys the arithmetic is this, every operation rounded to f32, over the keys that the row sees:
//
//   s[key] = (chain of fma(q[d], k[key][d], .) over d, from 0) * scale, then softcap
//   K q8_0: the query is int16 in groups of 32 d (prepare_query), and s[key] = (chain of fma(float(exact integer sum of
//           q[d] * k[key][d]) * k's scale, q's scale, .) over groups, from 0) * scale
//   m = max s (0 if that is -infinity), p = exp(s - m)
//   sum of p in 16 lanes (key % 16), lanes folded 8, 4, 2, 1 apart
//   acc[d] = chain of fma(p, v[key][d], .) over keys, from 0;  V q8_0: of fma(p * v's scale, v[key][d], .)
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

// Elements of the cache. Loads take kLanes of them, or the first n < kLanes.
struct F16 {
  uint16_t bits;
};
struct Bf16 {
  uint16_t bits;
};
struct Q8 {
  int8_t q;
};
SIMD_FN F32 load_kv(const float* p) { return load_f32(p); }
SIMD_FN F32 load_kv(const F16* p) { return load_half(p); }
SIMD_FN F32 load_kv(const Bf16* p) { return load_bf16(p); }
SIMD_FN F32 load_kv(const Q8* p) { return to_f32(load_i8(p)); }
SIMD_FN F32 load_kv_part(const float* p, int n) { return load_part(p, n); }
SIMD_FN F32 load_kv_part(const F16* p, int n) { return load_part(&p->bits, n); }
SIMD_FN F32 load_kv_part(const Bf16* p, int n) {
  Bf16 lanes[kLanes] = {};
  for (int i = 0; i < n; ++i) lanes[i] = p[i];
  return load_bf16(lanes);
}

template <bool kPart, class T>
SIMD_FN F32 load_columns(const T* p, int part) {
  if constexpr (kPart)
    return load_kv_part(p, part);
  else
    return load_kv(p);
}

template <class T>
constexpr bool kIsQ8 = false;
template <>
constexpr bool kIsQ8<Q8> = true;

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
  const int16_t* q16[kMaxQueries];  // where K is q8_0: d_head words, and d_head / 32 scales
  const float* q_scale[kMaxQueries];
  float* state[kMaxQueries];
  int lo[kMaxQueries], hi[kMaxQueries];                 // keys of the split that each sees; lo = hi = 0: none
  uint32_t blocks;                                      // bit by block: some query sees some of its keys
  int first, last;                                      // keys that any sees lie in [first, last)
  int common_first, common_last;                        // all see [common_first, common_last)
  float into_factor[kMaxQueries], factor[kMaxQueries];  // of the state and of this split when they are merged
};

// One KV head's cache in one split, and the keys that are read after it.
struct Split {
  const AttentionTile& tile;
  const int32_t* table;  // of the split's first block
  const int32_t* next;
  int n_next;
  uint32_t next_head;
};

SIMD_FN const uint8_t* k_head(const KvLayer& layer, int32_t block, uint32_t head_kv) {
  return layer.k + uint64_t(uint32_t(block)) * layer.k_stride +
         head_kv * kv_bytes_of(layer.k_type, layer.d_head * kBlock);
}

SIMD_FN const uint8_t* k_block(const Split& split, int block) {
  return k_head(*split.tile.layer, split.table[block], split.tile.head_kv);
}

// Block `block` of the keys that are read next; `otherwise` where there is none.
SIMD_FN const uint8_t* next_k_block(const Split& split, int block, const uint8_t* otherwise) {
  return block < split.n_next && split.next[block] >= 0 ? k_head(*split.tile.layer, split.next[block], split.next_head)
                                                        : otherwise;
}

SIMD_FN const uint8_t* v_block(const Split& split, int block) {
  const KvLayer& layer = *split.tile.layer;
  return layer.v + uint64_t(uint32_t(split.table[block])) * layer.v_stride +
         split.tile.head_kv * kv_bytes_of(layer.v_type, layer.d_value * kBlock);
}

// Each pass over keys fetches what the next pass reads, in steps of `bytes`, so that memory is busy all the time.
SIMD_FN void fetch(const uint8_t* at, uint32_t bytes, bool into_l1) {
#pragma GCC unroll 1
  for (uint32_t i = 0; i < bytes || i == 0; i += 64) {
    if (into_l1)
      __builtin_prefetch(at + i, 0, 3);
    else
      __builtin_prefetch(at + i, 0, 2);
  }
}

// Products of Q queries with the keys of one block: scores[query][key of the split].
template <class T, int Q>
SIMD_FN void score_block(const Queries& queries, const uint8_t* keys, uint32_t d_head, const uint8_t* next_v,
                         uint32_t v_bytes, bool into_l1, float* scores) {
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
    const T* at = reinterpret_cast<const T*>(keys) + lane;
    for (uint32_t d = 0; d < d_head; ++d, at += kBlock) {
      fetch(next_v + d * v_bytes, v_bytes, into_l1);
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

// The same where keys are q8_0: exact sums of a group's 32 products, then its scales.
template <int Q>
SIMD_FN void score_block_q8(const Queries& queries, const uint8_t* keys, uint32_t d_head, const uint8_t* next_k,
                            const uint8_t* next_v, uint32_t v_bytes, bool into_l1, float* scores) {
  constexpr int N = smaller(vectors_at_once(Q), kBlock / kLanes), kPairs = kKvGroup / 2;
  const uint16_t* scales = reinterpret_cast<const uint16_t*>(keys + uint64_t(d_head) * kBlock);
  for (uint32_t group = 0; group < d_head / kKvGroup; ++group, scales += kBlock) {
    const uint8_t* next_k_part = next_k + group * kKvGroup * kBlock;
    const uint8_t* next_v_part = next_v + group * kKvGroup * v_bytes;
    for (int lane = 0; lane < kBlock; lane += N * kLanes) {
      I32 sums[Q][N];
#pragma GCC unroll 8
      for (int i = 0; i < Q; ++i)
#pragma GCC unroll 8
        for (int v = 0; v < N; ++v) sums[i][v] = set_i32(0);
      const int8_t* at = reinterpret_cast<const int8_t*>(keys) + uint64_t(group) * kKvGroup * kBlock + 2 * lane;
      const int16_t* q[Q];
#pragma GCC unroll 8
      for (int i = 0; i < Q; ++i) q[i] = queries.q16[i] + group * kKvGroup;
      for (int pair = 0; pair < kPairs; ++pair, at += 2 * kBlock) {
        fetch(next_k_part + pair * 2 * kBlock, 64, into_l1);
        fetch(next_v_part + pair * 2 * v_bytes, 2 * v_bytes, into_l1);
        I32 k[N];
#pragma GCC unroll 8
        for (int v = 0; v < N; ++v) k[v] = load_pairs(at + 2 * v * kLanes);
#pragma GCC unroll 8
        for (int i = 0; i < Q; ++i) {
          const I32 x = set_pairs(q[i] + 2 * pair);
#pragma GCC unroll 8
          for (int v = 0; v < N; ++v) sums[i][v] = dot_pairs(k[v], x, sums[i][v]);
        }
      }
#pragma GCC unroll 8
      for (int v = 0; v < N; ++v) {
        const F32 scale = load_half(scales + lane + v * kLanes);
#pragma GCC unroll 8
        for (int i = 0; i < Q; ++i) {
          float* to = scores + i * kSplitKeys + lane + v * kLanes;
          const F32 before = group ? load_f32(to) : set_f32(0.0f);
          store_all(to, fma(mul(to_f32(sums[i][v]), scale), set_f32(queries.q_scale[i][group]), before));
        }
      }
    }
  }
}

template <class T, int Q>
__attribute__((noinline)) void score(const Split& split, const Queries& queries, float* scores) {
  for (int block = queries.first / kBlock; block * kBlock < queries.last; ++block) {
    if (!(queries.blocks >> block & 1)) continue;
    const uint8_t* keys = k_block(split, block);
    const uint32_t d_head = split.tile.layer->d_head, v_bytes = uint32_t(kv_bytes_of(split.tile.layer->v_type, kBlock));
    const bool into_l1 = split.tile.fetch_into_l1;
    if constexpr (kIsQ8<T>) {
      // The first keys of a claim may not have been fetched (of f16 ones, 7 % slower so at d_head 256).
      const uint8_t* next_k = queries.blocks >> (block + 1) & 1 ? k_block(split, block + 1) : keys;
      score_block_q8<Q>(queries, keys, d_head, next_k, v_block(split, block), v_bytes, into_l1,
                        scores + block * kBlock);
    } else {
      score_block<T, Q>(queries, keys, d_head, v_block(split, block), v_bytes, into_l1, scores + block * kBlock);
    }
  }
}

// Scores of one query to exponentials; their maximum and sum.
SIMD_FN void softmax(float* scores, int lo, int hi, float scale, float softcap, const uint8_t* next, bool into_l1,
                     float& maximum, float& sum) {
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
    fetch(next + key * 8, 128, into_l1);
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
  for (int key = begin; key < end; key += 16) {
    fetch(next + kSplitKeys * 8 + key * 8, 128, into_l1);
#pragma GCC unroll 4
    for (int v = 0; v < kWide; ++v) {
      const int at = key + v * kLanes;
      const F32 p = exp_negative(sub(load_f32(scores + at), shift));
      store_all(scores + at, p);
      sums[v] = add(sums[v], p);
    }
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

// p * scale of V's q8_0 groups, for the keys of one block.
template <int Q, int kGroups>
SIMD_FN void scale_weights(const float* p, const uint16_t* scales, float* scaled) {
  for (int g = 0; g < kGroups; ++g)
    for (int key = 0; key < kBlock; key += kLanes) {
      const F32 scale = load_half(scales + g * kBlock + key);
#pragma GCC unroll 8
      for (int i = 0; i < Q; ++i)
        store_all(scaled + (i * kGroups + g) * kBlock + key, mul(load_f32(p + i * kSplitKeys + key), scale));
    }
}

// Weighted values of N vectors (or the first `part` lanes of one) from d on, merged into the states.
template <class T, int Q, int N, bool kPart>
SIMD_FN void mix_columns(const Split& split, const Queries& queries, const float* p, uint32_t d, int part) {
  // Of query i, vector v and a block's key: weights[(i * kGroups + group of v) * kStride + key].
  constexpr int kGroups = kIsQ8<T> ? larger(1, N * kLanes / int(kKvGroup)) : 1;
  constexpr int kStride = kIsQ8<T> ? kBlock : int(kSplitKeys);
  const KvLayer& layer = *split.tile.layer;
  const uint32_t d_value = layer.d_value;
  F32 sums[Q][N];
#pragma GCC unroll 8
  for (int i = 0; i < Q; ++i)
#pragma GCC unroll 8
    for (int v = 0; v < N; ++v) sums[i][v] = set_f32(0.0f);
  // These columns' share of K, a key's at a time, is fetched meanwhile.
  const uint32_t k_bytes = uint32_t(kv_bytes_of(layer.k_type, layer.d_head * kBlock));
  const uint32_t ahead = larger(1, int(k_bytes / kBlock * N * kLanes / d_value));
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
      const uint8_t* values = v_block(split, block);
      const T* at = reinterpret_cast<const T*>(values) + uint64_t(key % kBlock) * d_value + d;
      const float* weights = p + block * kBlock;
      float scaled[kIsQ8<T> ? Q * kGroups * kBlock : 1];
      if constexpr (kIsQ8<T>) {
        const uint16_t* scales = reinterpret_cast<const uint16_t*>(values + uint64_t(d_value) * kBlock);
        scale_weights<Q, kGroups>(weights, scales + uint64_t(d / kKvGroup) * kBlock, scaled);
        weights = scaled;
      }
      weights += key % kBlock;
      if (range == 1) {
        const uint8_t* next = next_k_block(split, block, values);
        next += uint64_t(k_bytes) * d / d_value + uint32_t(key % kBlock) * ahead;
        for (; key < end; ++key, ++weights, at += d_value, next += ahead) {
          fetch(next, ahead, split.tile.fetch_into_l1);
#pragma GCC unroll 8
          for (int v = 0; v < N; ++v) {
            const F32 x = load_columns<kPart>(at + v * kLanes, part);
            const int g = kIsQ8<T> ? v * kLanes / int(kKvGroup) : 0;
#pragma GCC unroll 8
            for (int i = 0; i < Q; ++i) sums[i][v] = fma(set_f32(weights[(i * kGroups + g) * kStride]), x, sums[i][v]);
          }
        }
      } else {
        for (; key < end; ++key, ++weights, at += d_value)
#pragma GCC unroll 8
          for (int v = 0; v < N; ++v) {
            const F32 x = load_columns<kPart>(at + v * kLanes, part);
            const int g = kIsQ8<T> ? v * kLanes / int(kKvGroup) : 0;
#pragma GCC unroll 8
            for (int i = 0; i < Q; ++i)
              if (key >= queries.lo[i] && key < queries.hi[i])
                sums[i][v] = fma(set_f32(weights[(i * kGroups + g) * kStride]), x, sums[i][v]);
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
  if constexpr (N > 1) {
    mix_from<T, Q, N / 2>(split, queries, p, d);
  } else if constexpr (!kIsQ8<T>) {  // whose heads are whole groups
    if (d < d_value) mix_columns<T, Q, 1, true>(split, queries, p, d, int(d_value - d));
  }
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

// A query as int16: by group of 32, with amax = max |x|, scale = amax / 32767 and q = round to nearest even
// (x * (32767 / amax)); amax below 2^-100: all 0; any x infinite or NaN: scale NaN.
SIMD_FN void prepare_query(const float* x, uint32_t d_head, int16_t* q, float* scale) {
  for (uint32_t d = 0; d < d_head; d += kKvGroup) {
    I32 most = set_i32(0);
    for (uint32_t i = 0; i < kKvGroup; i += kLanes)
      most = max_i32(most, and_i32(f32_bits(load_f32(x + d + i)), set_i32(0x7fffffff)));
    const int32_t bits = reduce_max(most);
    const float amax = __builtin_bit_cast(float, bits);
    const bool finite = bits < 0x7f800000, zero = !finite || amax < 0x1p-100f;
    scale[d / kKvGroup] = !finite ? __builtin_nanf("") : zero ? 0.0f : amax / 32767.0f;
    const F32 inverse = set_f32(zero ? 0.0f : 32767.0f / amax);
    for (uint32_t i = 0; i < kKvGroup; i += kLanes)
      store_i16(q + d + i, zero ? set_i32(0) : round_i32(mul(load_f32(x + d + i), inverse)));
  }
}

void prepare_queries(const AttentionTile& tile, uint8_t* scratch, Queries& queries) {
  const uint32_t d_head = tile.layer->d_head;
  for (int i = 0; i < queries.n; ++i) {
    int16_t* q = reinterpret_cast<int16_t*>(scratch) + uint64_t(i) * d_head;
    float* scale =
        reinterpret_cast<float*>(scratch + uint64_t(kAttentionQueries) * d_head * 2) + i * (d_head / kKvGroup);
    prepare_query(queries.q[i], d_head, q, scale);
    queries.q16[i] = q;
    queries.q_scale[i] = scale;
  }
}

// Calls f with an element of the type.
template <class Function>
SIMD_FN void with_type(KvType type, Function f) {
  switch (type) {
    case KvType::f16:
      return f(F16());
    case KvType::bf16:
      return f(Bf16());
    case KvType::f32:
      return f(float());
    case KvType::q8_0:
      return f(Q8());
  }
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
  const uint32_t n_blocks = uint32_t(tile.position[tile.n_rows - 1]) / kBlock + 1;
  for (uint32_t number = split_begin; number < split_end; ++number) {
    const uint32_t behind = (number + 1) * kBlocks;
    Split split = {tile, tile.table + uint64_t(number) * kBlocks, tile.next, int(tile.n_next), tile.next_head};
    if (number + 1 < split_end)
      split.next = tile.table + behind, split.n_next = n_blocks < behind ? 0 : int(n_blocks - behind),
      split.next_head = tile.head_kv;
    for (uint32_t begin = 0; begin < n_queries;) {
      const uint32_t left = n_queries - begin;
      const int n = left >= 2 * kMaxQueries || left == kMaxQueries ? kMaxQueries
                    : left > kMaxQueries                           ? int(left + 1) / 2
                                                                   : int(left);
      Queries queries;
      if (gather(tile, begin, n, int64_t(number) * kSplitKeys, states, queries)) {
        if (tile.layer->k_type == KvType::q8_0)
          prepare_queries(tile, scratch + kAttentionQueries * kSplitKeys * sizeof(float), queries);
        with_type(tile.layer->k_type,
                  [&](auto element) SIMD_LAMBDA { score_any<decltype(element)>(split, queries, scores); });
        for (int i = 0; i < n; ++i) {
          queries.into_factor[i] = 1;
          queries.factor[i] = 0;
          if (queries.lo[i] == queries.hi[i]) continue;
          float maximum, sum;
          // Some of the next keys: 4 KiB a query, so that memory is busy meanwhile.
          const uint8_t* next = next_k_block(split, i, scratch);
          softmax(scores + i * kSplitKeys, queries.lo[i], queries.hi[i], tile.scale, tile.softcap, next,
                  tile.fetch_into_l1, maximum, sum);
          if (sum != 0) merge_softmax(queries.state[i], maximum, sum, queries.into_factor[i], queries.factor[i]);
        }
        with_type(tile.layer->v_type,
                  [&](auto element) SIMD_LAMBDA { mix_any<decltype(element)>(split, queries, scores); });
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
