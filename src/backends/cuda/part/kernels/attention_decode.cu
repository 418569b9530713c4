// Attention of few rows of a sequence on tensor cores: a cluster of CTAs has a split and up to 8 query heads of a KV
// head, a warp a block of 32 keys. What counts is latency: blocks are dealt to the CTAs in turn; a warp has all of its
// block's K on its way to registers and all of V to its own shared memory before anything is computed, and is alone
// until results are merged: those of a CTA's warps, then those of the CTAs.
//
// The 16 rows of the products are the rounded queries of 8 heads and what rounding left of them; the weights in the
// same way, so that the errors are those of f32 sums. K is taken as it lies (16 bytes a lane: 8 neighbouring elements;
// queries are put in the same order).
#include <algorithm>

#include "backends/cuda/part/kernels/attention.cuh"
#include "backends/cuda/part/kernels/attention_mma.cuh"

namespace argent::cuda {
namespace {

constexpr uint32_t kRanks = kSplitRanks;  // CTAs of a cluster
constexpr uint32_t kSplitBlocks = kFastSplitKeys / kBlockKeys;
constexpr uint32_t kWarps = kSplitBlocks / kRanks, kThreads = 32 * kWarps, kHeads = 8;
constexpr uint32_t kKeyTiles = kBlockKeys / 8;  // products' columns: 8 keys each

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
  static constexpr uint32_t kRowBytes = 2 * kD + 16;  // of V: an odd number of 16 bytes: 8 rows are in all banks
  static constexpr uint32_t kWarpBytes = kBlockKeys * kRowBytes;
  static constexpr uint32_t kResident = (kD > 128 ? 8 : 16) / kWarps;  // CTAs on a multiprocessor
  // Shared memory, in bytes.
  static constexpr uint32_t kQueryAt = 0;                              // uint4 [kSteps][kQueryParts][32]
  static constexpr uint32_t kValueAt = kSteps * kQueryParts * 512;     // [kWarps]: V, then the warp's result
  static constexpr uint32_t kStatAt = kValueAt + kWarps * kWarpBytes;  // float2 [kWarps][kHeads]: maximum, sum
  // What other CTAs read: float4 [kHeads]: maximum, sum; float [kHeads][kD].
  static constexpr uint32_t kMergedAt = kStatAt + kWarps * kHeads * 8;
  static constexpr uint32_t kBytes = kMergedAt + kHeads * 16 + kHeads * kD * 4;
};

// Loads that stay where they are written: before everything that is computed.
__device__ __forceinline__ uint4 load_now(const uint8_t* from) {
  uint4 x;
  asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "l"(__cvta_generic_to_global(from)));
  return x;
}

// Compiled for earlier devices too, which have no clusters and take attention_any.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define ARGENT_CLUSTER __cluster_dims__(kRanks, 1, 1)
#else
#define ARGENT_CLUSTER
#endif

template <KvType kType, uint32_t kD>
__global__ void ARGENT_CLUSTER __launch_bounds__(kThreads, Decode<kType, kD>::kResident)
    decode_items(const DecodeArgs a) {
  using S = Decode<kType, kD>;
  extern __shared__ float4 shared4[];
  uint8_t* const shared = reinterpret_cast<uint8_t*>(shared4);
  uint4* const query = reinterpret_cast<uint4*>(shared + S::kQueryAt);
  float2* const stats = reinterpret_cast<float2*>(shared + S::kStatAt);
  float4* const merged_stats = reinterpret_cast<float4*>(shared + S::kMergedAt);
  float4* const merged = merged_stats + kHeads;

  const uint32_t thread = threadIdx.x, lane = thread & 31, warp = thread / 32, g = lane / 4, t = lane % 4;
  uint8_t* const values = shared + S::kValueAt + warp * S::kWarpBytes;
  const uint32_t kv_head = blockIdx.y, n_heads = min(a.group - blockIdx.z * kHeads, kHeads);
  const uint32_t first_head = kv_head * a.group + blockIdx.z * kHeads;
  constexpr uint32_t kHeadBytes = kBlockKeys * kD * 2;
  // Block of the split: of the CTAs in turn.
  const uint32_t rank = blockIdx.x % kRanks, block_of_split = warp * kRanks + rank;
  // While the kernel before this one ends, the first item is read, and of its keys and values what is older than the
  // step. Lists have room for what the grid is made for, so that they can be read before their length is known.
  let_next_start();
  const uint32_t first_item = blockIdx.x / kRanks, n_clusters = gridDim.x / kRanks;
  AttentionItem item = a.work.items[first_item];
  const uint32_t n_items = a.work.counts[0];
  // Of the item that is next: the warp's block, its entry of the block table, its visible keys [lo, hi).
  uint32_t lo, hi, entry, first_key;
  const auto look = [&] {
    const uint32_t block = item.first / kFastSplitKeys * kSplitBlocks + block_of_split;
    first_key = block * kBlockKeys;
    lo = max(item.first, first_key) - first_key;
    hi = min(max(item.end, first_key) - first_key, kBlockKeys);
    entry = lo < hi ? uint32_t(a.tables[item.table + block]) : 0;
  };
  uint4 keys[S::kPairs][kKeyTiles] = {};
  const auto load = [&] {
    const uint64_t at = entry * a.kv.block_bytes + kv_head * kHeadBytes;
    const uint8_t* const from = a.kv.k + at + g * (2 * kD);
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
    // Values that are not visible are zeros: their memory may hold anything. (Keys may; their scores are not used.)
    constexpr uint32_t kRowChunks = kD / 8;
    const uint8_t* const value_from = a.kv.v + at + 16 * lane;
    if constexpr (32 % kRowChunks == 0) {
      constexpr uint32_t kRows = 32 / kRowChunks;
      const uint32_t row = lane / kRowChunks;
      uint8_t* const to = values + row * S::kRowBytes + 16 * (lane % kRowChunks);
#pragma unroll
      for (uint32_t i = 0; i < kRowChunks; ++i)
        copy_async(to + i * kRows * S::kRowBytes, value_from + 512 * i, row - lo + i * kRows < hi - lo);
    } else {
#pragma unroll
      for (uint32_t i = 0; i < kRowChunks; ++i) {
        const uint32_t chunk = lane + 32 * i, row = chunk / kRowChunks;
        copy_async(values + row * S::kRowBytes + 16 * (chunk % kRowChunks), value_from + 512 * i, row - lo < hi - lo);
      }
    }
    commit_copies();
  };
  if (first_item < n_items) look();
  bool loaded = first_item >= n_items || lo >= hi;
#pragma unroll 1
  for (uint32_t pass = 0; pass < 2; ++pass) {
    if (pass) wait_for_previous();
    if (!loaded && (pass || first_key + hi <= item.written)) {
      load();
      loaded = true;
    }
  }

  for (uint32_t w = first_item; w < n_items; w += n_clusters) {
    const bool active = lo < hi;
    // Queries: row g, in the order in which the products take them. Rows past the heads are zeros.
    constexpr uint32_t kQueryLoads = (S::kSteps * 32 + kThreads - 1) / kThreads;
    float4 queries[kQueryLoads];
    const float* const q = a.q + (uint64_t(item.q_row) * a.n_head + first_head) * kD;
#pragma unroll
    for (uint32_t i = 0; i < kQueryLoads; ++i) {
      const uint32_t step = warp + i * kWarps;
      const uint32_t d = (step | 1) < S::kSteps ? 32 * (step / 2) + 8 * t + 4 * (step & 1) : 16 * step + 4 * t;
      queries[i] = make_float4(0, 0, 0, 0);
      if ((S::kSteps % kWarps == 0 || step < S::kSteps) && g < n_heads)
        queries[i] = *reinterpret_cast<const float4*>(q + g * kD + d);
    }
    const float before = a.scores.before();
#pragma unroll
    for (uint32_t i = 0; i < kQueryLoads; ++i) {
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
    __syncthreads();

    float most = -INFINITY, sum = 0;  // of head g
    if (active) {
      float s[kKeyTiles][4] = {};
#pragma unroll
      for (uint32_t step = 0; step < S::kSteps; ++step)
#pragma unroll
        for (uint32_t k = 0; k < S::kQueryParts; ++k) {
          const uint4 x = query[(step * S::kQueryParts + k) * 32 + lane];
#pragma unroll
          for (uint32_t j = 0; j < kKeyTiles; ++j) {
            const uint4& key = keys[step / 2][j];
            mma<kType>(s[j], x, step & 1 ? key.z : key.x, step & 1 ? key.w : key.y);
          }
        }
        // Head g, keys 2 t and 2 t + 1 of each eight.
#pragma unroll
      for (uint32_t j = 0; j < kKeyTiles; ++j) s[j][0] += s[j][2], s[j][1] += s[j][3];
      if (a.scores.softcap != 0) {
        // One copy of the code: scores go round.
#pragma unroll 1
        for (uint32_t i = 0; i < 2 * kKeyTiles; ++i) {
          const float x = a.scores.after(s[0][0]);
#pragma unroll
          for (uint32_t j = 0; j < kKeyTiles; ++j) {
            s[j][0] = s[j][1];
            s[j][1] = j + 1 < kKeyTiles ? s[(j + 1) % kKeyTiles][0] : x;
          }
        }
      }
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
      uint4 p[kKeyTiles / 2];
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

      wait_copies<0>();
      __syncwarp();
      // Results go where the values of their columns were: float [kHeads][8] of a tile are 16 of its rows of 16 bytes.
      uint8_t* const to = values + (2 * g + t / 2) * S::kRowBytes + t % 2 * 8;
      constexpr uint32_t kAtOnce = S::kColumnTiles % 8 ? S::kColumnTiles / 2 : 8;
#pragma unroll 1
      for (uint32_t tile = 0; tile < S::kColumnTiles; tile += kAtOnce) {
        uint4 v[kAtOnce];
        float x[kAtOnce][4] = {};
#pragma unroll
        for (uint32_t i = 0; i < kAtOnce; ++i)
          v[i] = load_matrices_transposed(values + lane * S::kRowBytes + 16 * (tile + i));
#pragma unroll
        for (uint32_t i = 0; i < kAtOnce; ++i) mma<kType>(x[i], p[0], v[i].x, v[i].y);
#pragma unroll
        for (uint32_t i = 0; i < kAtOnce; ++i) mma<kType>(x[i], p[1], v[i].z, v[i].w);
        __syncwarp();  // all lanes have read these columns
#pragma unroll
        for (uint32_t i = 0; i < kAtOnce; ++i)
          *reinterpret_cast<float2*>(to + 16 * (tile + i)) = make_float2(x[i][0] + x[i][2], x[i][1] + x[i][3]);
      }
    }
    // Not to be kept until the next item's.
#pragma unroll
    for (uint32_t pair = 0; pair < S::kPairs; ++pair)
#pragma unroll
      for (uint32_t j = 0; j < kKeyTiles; ++j) keys[pair][j] = make_uint4(0, 0, 0, 0);
    if (t == 0) stats[warp * kHeads + g] = make_float2(most, sum);
    __syncthreads();

    const bool more = w + n_clusters < n_items;
    AttentionItem next = item;
    if (more) next = a.work.items[w + n_clusters];
    const uint32_t begin = item.first % kFastSplitKeys / kBlockKeys;
    const uint32_t end = (item.end - 1) % kFastSplitKeys / kBlockKeys + 1;
    const uint32_t n = n_heads * (kD / 4);
    // Sums of parts with these maxima and sums, relative to the greatest maximum.
    const auto merge = [](const auto& x, const auto& stat, float& maximum, float& total) {
      constexpr uint32_t kParts = sizeof(x) / sizeof(x[0]);
      maximum = -INFINITY, total = 0;
#pragma unroll
      for (uint32_t k = 0; k < kParts; ++k) maximum = fmaxf(maximum, stat[k].x);
      float4 y = make_float4(0, 0, 0, 0);
#pragma unroll
      for (uint32_t k = 0; k < kParts; ++k) {
        const float weight = stat[k].x == -INFINITY ? 0.0f : exp2_flushed(stat[k].x - maximum);
        total = fmaf(weight, stat[k].y, total);
        y.x = fmaf(weight, x[k].x, y.x), y.y = fmaf(weight, x[k].y, y.y);
        y.z = fmaf(weight, x[k].z, y.z), y.w = fmaf(weight, x[k].w, y.w);
      }
      return y;
    };
    for (uint32_t i = thread; i < n; i += kThreads) {
      const uint32_t h = i / (kD / 4), d = 4 * (i % (kD / 4));
      float4 x[kWarps];
      float2 stat[kWarps];
#pragma unroll
      for (uint32_t k = 0; k < kWarps; ++k) {
        const uint8_t* const from = shared + S::kValueAt + k * S::kWarpBytes;
        const uint32_t block = k * kRanks + rank;
        x[k] = make_float4(0, 0, 0, 0);
        if (block >= begin && block < end)
          x[k] = *reinterpret_cast<const float4*>(from + (2 * h + d / 4 % 2) * S::kRowBytes + d / 8 * 16);
        stat[k] = stats[k * kHeads + h];
      }
      float maximum, total;
      merged[i] = merge(x, stat, maximum, total);
      if (d == 0) merged_stats[h] = make_float4(maximum, total, 0, 0);
    }
    const uint32_t q_row = item.q_row, slot = item.slot;
    if (more) {
      item = next;
      look();
    }
    cluster_arrive();
    cluster_wait();

    // A CTA has its share of the columns, in groups of 32.
    const uint32_t share = ((n + 7) / 8 + kRanks - 1) / kRanks * 8, i = rank * share + thread;
    const bool mine = thread < share && i < n;
    float4 x[kRanks] = {}, stat[kRanks] = {};
    if (mine) {
#pragma unroll
      for (uint32_t k = 0; k < kRanks; ++k) {
        stat[k] = load_of_rank(merged_stats + i / (kD / 4), k);
        x[k] = load_of_rank(merged + i, k);
      }
    }
    cluster_arrive();
    float maximum = 0, total = 1;
    float4 y = make_float4(0, 0, 0, 0);
    if (mine) y = merge(x, stat, maximum, total);
    if (more && lo < hi) load();
    if (thread / 32 * 32 < share) {
      if (slot != kWholeRow) {
        const uint32_t h = i / (kD / 4), d = 4 * (i % (kD / 4));
        float* const to = a.partial + (uint64_t(slot) * a.n_head + first_head + h) * (kD + 4);
        if (mine) *reinterpret_cast<float4*>(to + d) = y;
        if (mine && d == 0) *reinterpret_cast<float2*>(to + kD) = make_float2(maximum, total);
      } else {
        if (mine) {
          const float inverse = __fdividef(1.0f, total);
          y.x *= inverse, y.y *= inverse, y.z *= inverse, y.w *= inverse;
        }
        const uint64_t column = uint64_t(first_head) * kD + 4 * i;
        if (a.y && mine) *reinterpret_cast<float4*>(a.y + uint64_t(q_row) * a.n_head * kD + column) = y;
        if (a.q8.q) store_quantized(a.q8, q_row, uint32_t(column / 32), y, mine);
      }
    }
    cluster_wait();  // what others read here is free again, and so are queries
  }
}

#undef ARGENT_CLUSTER

template <KvType kType, uint32_t kD>
void launch_decode(Launch& launch, const DecodeArgs& args, uint32_t max_items) {
  using S = Decode<kType, kD>;
  const uint32_t parts = (args.group + kHeads - 1) / kHeads, places = S::kResident * attention_processors() / kRanks;
  const uint32_t beside = args.kv.n_head_kv * parts;  // clusters of an item
  allow_shared(launch, decode_items<kType, kD>, S::kBytes);
  // Else a multiprocessor may be set up for the shared memory of one CTA.
  launch.note(cudaFuncSetAttribute(decode_items<kType, kD>, cudaFuncAttributePreferredSharedMemoryCarveout,
                                   cudaSharedmemCarveoutMaxShared),
              "attention decode");
  start(launch, "attention decode", decode_items<kType, kD>,
        dim3(kRanks * std::min(max_items, std::max(places / beside, 1u)), args.kv.n_head_kv, parts), kThreads,
        S::kBytes, args);
}

template <KvType kType>
void launch_size(Launch& launch, const DecodeArgs& args, uint32_t max_items) {
  switch (args.kv.d_head) {
    case 64:
      return launch_decode<kType, 64>(launch, args, max_items);
    case 80:
      return launch_decode<kType, 80>(launch, args, max_items);
    case 96:
      return launch_decode<kType, 96>(launch, args, max_items);
    case 128:
      return launch_decode<kType, 128>(launch, args, max_items);
    default:
      return launch_decode<kType, 256>(launch, args, max_items);
  }
}

}  // namespace

void attention_decode(Launch& launch, const Attention& a, const int32_t* tables, const KvPlace& kv) {
  if (!attention_has_clusters()) return attention_any(launch, a, tables, kv);
  const DecodeArgs args{
      a.q, a.y, a.q8, a.partial, a.work, tables, kv, {a.scale, a.softcap}, a.n_head, a.n_head / kv.n_head_kv};
  if (kv.type_k == KvType::f16) {
    launch_size<KvType::f16>(launch, args, a.max_items);
  } else {
    launch_size<KvType::bf16>(launch, args, a.max_items);
  }
}

}  // namespace argent::cuda
