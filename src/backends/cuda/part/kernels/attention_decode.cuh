// What the kernels of few rows of a sequence share: a warp takes blocks of 32 keys on tensor cores, for up to 8 query
// heads of a KV head. All of a block's K and V are on their way, to registers or the warp's own shared memory, before
// anything is computed.
//
// The 16 rows of the products are the rounded queries of 8 heads and what rounding left of them; the weights in the
// same way, so that the errors are those of f32 sums. K is taken as it lies (16 bytes a lane: 8 neighbouring elements;
// queries are put in the same order).
//
// Order of sums, whoever makes them: blocks n, n + 8, n + 16, ... of a sequence one after the other (more()), for n of
// 0 to 7; these eight (merge()); then the splits of a row (attention.cu).
#pragma once

#include "backends/cuda/part/kernels/attention.cuh"
#include "backends/cuda/part/kernels/attention_mma.cuh"

namespace argent::cuda {

constexpr uint32_t kDecodeHeads = 8, kDecodeParts = kSplitRanks;  // parts: of the sums over blocks
constexpr uint32_t kKeyTiles = kBlockKeys / 8;                    // products' columns: 8 keys each

struct DecodeArgs {
  const float* q;
  float* y;
  Q8 q8;
  float* partial;
  AttentionWork work;
  const int32_t* tables;
  KvPlace kv;
  Scores scores;
  uint32_t n_head, group;  // heads; of a KV head
};

template <KvType kType, uint32_t kD>
struct Decode {
  static constexpr uint32_t kSteps = kD / 16, kPairs = (kSteps + 1) / 2;  // of the scores' products; 64 bytes of a key
  static constexpr uint32_t kColumnTiles = kD / 8;
  // bfloat16 has 8 bits: queries are sums of three terms, the third of which is a product of its own.
  static constexpr uint32_t kQueryTerms = kType == KvType::bf16 ? 3 : 2, kQueryParts = kQueryTerms - 1;
  static constexpr uint32_t kQueryBytes = kSteps * kQueryParts * 512;  // uint4 [kSteps][kQueryParts][32]
  static constexpr uint32_t kRowBytes = 2 * kD + 16;  // of V: an odd number of 16 bytes: 8 rows are in all banks
  static constexpr uint32_t kValueBytes = kBlockKeys * kRowBytes;
  // Of K in shared memory: 64 bytes more than a multiple of 128: 4 lanes each of 2 rows are in all banks.
  static constexpr uint32_t kKeyRowBytes = 16 * ((kD / 8 + 3) / 8 * 8 + 4), kKeyBytes = kBlockKeys * kKeyRowBytes;
  static constexpr uint32_t kHeadBytes = kBlockKeys * kD * 2;  // of K or V in a block of the cache
  using Keys = uint4[kPairs][kKeyTiles];
};

// attention_split.cu: items of any length up to kMostSplitKeys.
template <KvType kType>
void attention_splits(Launch& launch, const DecodeArgs& args, uint32_t max_items);

// Loads that stay where they are written: before everything that is computed.
__device__ __forceinline__ uint4 load_now(const uint8_t* from) {
  uint4 x;
  asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "l"(__cvta_generic_to_global(from)));
  return x;
}

// Of a block's KV head, by a warp.
template <class S, uint32_t kD>
__device__ __forceinline__ void load_keys(const uint8_t* from, typename S::Keys& keys) {
  const uint32_t lane = threadIdx.x & 31, g = lane / 4, t = lane % 4;
  from += g * (2 * kD);
#pragma unroll
  for (uint32_t pair = 0; pair < S::kPairs; ++pair)
#pragma unroll
    for (uint32_t j = 0; j < kKeyTiles; ++j) {
      const uint8_t* const piece = from + 8 * j * (2 * kD) + 64 * pair;
      if (32 * pair + 32 <= kD) {
        keys[pair][j] = load_now(piece + 16 * t);
      } else {
        const uint2 half = *reinterpret_cast<const uint2*>(piece + 8 * t);
        keys[pair][j] = make_uint4(half.x, half.y, 0, 0);
      }
    }
}
// To shared memory, rows of kKeyRowBytes.
template <class S, uint32_t kD>
__device__ __forceinline__ void copy_keys(const uint8_t* from, uint8_t* keys) {
  constexpr uint32_t kRowChunks = kD / 8;
  const uint32_t lane = threadIdx.x & 31;
#pragma unroll
  for (uint32_t i = 0; i < kRowChunks; ++i) {
    const uint32_t chunk = lane + 32 * i;
    copy_async(keys + chunk / kRowChunks * S::kKeyRowBytes + 16 * (chunk % kRowChunks), from + 16 * chunk, true);
  }
}
// Values that are not visible are zeros: their memory may hold anything. (Keys may; their scores are not used.)
template <class S, uint32_t kD>
__device__ __forceinline__ void load_values(const uint8_t* from, uint32_t lo, uint32_t hi, uint8_t* values) {
  constexpr uint32_t kRowChunks = kD / 8;
  const uint32_t lane = threadIdx.x & 31;
  from += 16 * lane;
  if constexpr (32 % kRowChunks == 0) {
    constexpr uint32_t kRows = 32 / kRowChunks;
    const uint32_t row = lane / kRowChunks;
    uint8_t* const to = values + row * S::kRowBytes + 16 * (lane % kRowChunks);
#pragma unroll
    for (uint32_t i = 0; i < kRowChunks; ++i)
      copy_async(to + i * kRows * S::kRowBytes, from + 512 * i, row - lo + i * kRows < hi - lo);
  } else {
#pragma unroll
    for (uint32_t i = 0; i < kRowChunks; ++i) {
      const uint32_t chunk = lane + 32 * i, row = chunk / kRowChunks;
      copy_async(values + row * S::kRowBytes + 16 * (chunk % kRowChunks), from + 512 * i, row - lo < hi - lo);
    }
  }
}

// Queries of a row, by kWarps warps: row g of the products, in the order in which these take them. Rows past the heads
// are zeros.
template <KvType kType, uint32_t kD, uint32_t kWarps>
__device__ __forceinline__ void put_queries(const float* q, uint32_t n_heads, const Scores& scores, uint4* query) {
  using S = Decode<kType, kD>;
  const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  constexpr uint32_t kLoads = (S::kSteps + kWarps - 1) / kWarps;
  float4 queries[kLoads];
#pragma unroll
  for (uint32_t i = 0; i < kLoads; ++i) {
    const uint32_t step = warp + i * kWarps;
    const uint32_t d = (step | 1) < S::kSteps ? 32 * (step / 2) + 8 * t + 4 * (step & 1) : 16 * step + 4 * t;
    queries[i] = make_float4(0, 0, 0, 0);
    if ((S::kSteps % kWarps == 0 || step < S::kSteps) && g < n_heads)
      queries[i] = *reinterpret_cast<const float4*>(q + g * kD + d);
  }
  const float before = scores.before();
#pragma unroll
  for (uint32_t i = 0; i < kLoads; ++i) {
    const uint32_t step = warp + i * kWarps;
    if (S::kSteps % kWarps && step >= S::kSteps) continue;
    const float4 x = queries[i];
    uint32_t first[S::kQueryTerms], second[S::kQueryTerms];
    split<kType>(x.x * before, x.y * before, first);
    split<kType>(x.z * before, x.w * before, second);
    query[step * S::kQueryParts * 32 + lane] = make_uint4(first[0], first[1], second[0], second[1]);
    if constexpr (S::kQueryTerms == 3)
      query[(step * S::kQueryParts + 1) * 32 + lane] = make_uint4(first[2], 0, second[2], 0);
  }
}

// Weights of a block's visible keys [lo, hi), as operands; returns maximum and sum of head g. keys_of(pair, j): of key
// 8 j + g, elements 32 pair + 8 t ... + 7 (where these end half-way: 4 t ... + 3).
template <KvType kType, uint32_t kD, class Keys>
__device__ __forceinline__ float2 block_weights(const uint4* query, const Keys& keys_of, const Scores& scores,
                                                uint32_t lo, uint32_t hi, uint4 (&p)[kKeyTiles / 2]) {
  using S = Decode<kType, kD>;
  const uint32_t lane = threadIdx.x & 31, t = lane % 4;
  float s[kKeyTiles][4] = {};
#pragma unroll
  for (uint32_t pair = 0; pair < S::kPairs; ++pair) {
    uint4 keys[kKeyTiles];
#pragma unroll
    for (uint32_t j = 0; j < kKeyTiles; ++j) keys[j] = keys_of(pair, j);
#pragma unroll
    for (uint32_t step = 2 * pair; step < min(2 * pair + 2, S::kSteps); ++step)
#pragma unroll
      for (uint32_t k = 0; k < S::kQueryParts; ++k) {
        const uint4 x = query[(step * S::kQueryParts + k) * 32 + lane];
#pragma unroll
        for (uint32_t j = 0; j < kKeyTiles; ++j)
          mma<kType>(s[j], x, step & 1 ? keys[j].z : keys[j].x, step & 1 ? keys[j].w : keys[j].y);
      }
  }
  // Head g, keys 2 t and 2 t + 1 of each eight.
#pragma unroll
  for (uint32_t j = 0; j < kKeyTiles; ++j) s[j][0] += s[j][2], s[j][1] += s[j][3];
  if (scores.softcap != 0) {
    // One copy of the code: scores go round.
#pragma unroll 1
    for (uint32_t i = 0; i < 2 * kKeyTiles; ++i) {
      const float x = scores.after(s[0][0]);
#pragma unroll
      for (uint32_t j = 0; j < kKeyTiles; ++j) {
        s[j][0] = s[j][1];
        s[j][1] = j + 1 < kKeyTiles ? s[(j + 1) % kKeyTiles][0] : x;
      }
    }
  }
  float most = -INFINITY, sum = 0;
#pragma unroll
  for (uint32_t j = 0; j < kKeyTiles; ++j)
#pragma unroll
    for (uint32_t e = 0; e < 2; ++e) {
      const uint32_t key = 8 * j + 2 * t + e;
      s[j][e] = key - lo < hi - lo ? s[j][e] : -INFINITY;
      most = fmaxf(most, s[j][e]);
    }
  most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
  most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
#pragma unroll
  for (uint32_t step = 0; step < kKeyTiles / 2; ++step) {
    uint32_t terms[2][2];
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
      const float x = exp2_flushed(s[2 * step + i][0] - most), z = exp2_flushed(s[2 * step + i][1] - most);
      sum += x + z;
      split<kType>(x, z, terms[i]);
    }
    p[step] = make_uint4(terms[0][0], terms[0][1], terms[1][0], terms[1][1]);
  }
  sum += __shfl_xor_sync(~0u, sum, 1);
  sum += __shfl_xor_sync(~0u, sum, 2);
  return make_float2(most, sum);
}

// Sums of a block's weighted values: take(tile, x) is given columns 8 tile + 2 t and the next one of head g, once all
// lanes have read the values of these columns.
template <KvType kType, uint32_t kD, bool kUnrolled, class Take>
__device__ __forceinline__ void weigh_values(const uint8_t* values, const uint4 (&p)[kKeyTiles / 2], const Take& take) {
  using S = Decode<kType, kD>;
  const uint8_t* const row = values + (threadIdx.x & 31) * S::kRowBytes;
  constexpr uint32_t kAtOnce = S::kColumnTiles % 8 ? S::kColumnTiles / 2 : 8;
#pragma unroll(kUnrolled ? S::kColumnTiles / kAtOnce : 1)
  for (uint32_t tile = 0; tile < S::kColumnTiles; tile += kAtOnce) {
    uint4 v[kAtOnce];
    float x[kAtOnce][4] = {};
#pragma unroll
    for (uint32_t i = 0; i < kAtOnce; ++i) v[i] = load_matrices_transposed(row + 16 * (tile + i));
#pragma unroll
    for (uint32_t i = 0; i < kAtOnce; ++i) mma<kType>(x[i], p[0], v[i].x, v[i].y);
#pragma unroll
    for (uint32_t i = 0; i < kAtOnce; ++i) mma<kType>(x[i], p[1], v[i].z, v[i].w);
    __syncwarp();
#pragma unroll
    for (uint32_t i = 0; i < kAtOnce; ++i) take(tile + i, make_float2(x[i][0] + x[i][2], x[i][1] + x[i][3]));
  }
}

// Adds a part with this maximum and sum to `so_far`; the factors of what is so far and of the part.
__device__ __forceinline__ float2 more(float2& so_far, float2 part) {
  const float most = fmaxf(so_far.x, part.x);
  const float old = so_far.x == -INFINITY ? 0.0f : exp2_flushed(so_far.x - most);
  const float add = part.x == -INFINITY ? 0.0f : exp2_flushed(part.x - most);
  so_far = make_float2(most, fmaf(add, part.y, old * so_far.y));
  return make_float2(old, add);
}

// Adds a part with this maximum and sum, whose columns are x, to y and `all`, which has the greatest maximum of all
// parts.
__device__ __forceinline__ void merge(const float4& x, float2 stat, float4& y, float2& all) {
  const float weight = stat.x == -INFINITY ? 0.0f : exp2_flushed(stat.x - all.x);
  all.y = fmaf(weight, stat.y, all.y);
  y.x = fmaf(weight, x.x, y.x), y.y = fmaf(weight, x.y, y.y);
  y.z = fmaf(weight, x.z, y.z), y.w = fmaf(weight, x.w, y.w);
}

// Four columns of an item, of head `head` from d on, with their sum: of a row that is complete, or of a split. By whole
// warps, of which eight lanes have a group of 32.
__device__ __forceinline__ void put_result(const DecodeArgs& a, const AttentionItem& item, uint32_t d_head,
                                           uint32_t head, uint32_t d, float4 y, float2 total, bool wanted) {
  if (item.slot != kWholeRow) {
    float* const to = a.partial + (uint64_t(item.slot) * a.n_head + head) * (d_head + 4);
    if (wanted) *reinterpret_cast<float4*>(to + d) = y;
    if (wanted && d == 0) *reinterpret_cast<float2*>(to + d_head) = total;
    return;
  }
  const float inverse = wanted ? __fdividef(1.0f, total.y) : 0.0f;
  y.x *= inverse, y.y *= inverse, y.z *= inverse, y.w *= inverse;
  const uint64_t column = uint64_t(head) * d_head + d;
  if (a.y && wanted) *reinterpret_cast<float4*>(a.y + uint64_t(item.q_row) * a.n_head * d_head + column) = y;
  if (a.q8.q) store_quantized(a.q8, item.q_row, uint32_t(column / 32), y, wanted);
}

}  // namespace argent::cuda
