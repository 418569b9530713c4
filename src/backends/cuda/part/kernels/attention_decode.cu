// Attention of few rows: a cluster of CTAs has a split and up to 8 query heads of a KV head, a warp a block. What
// counts is latency: blocks are dealt to the CTAs in turn, a warp is alone until results are merged: those of a CTA's
// warps, then those of the CTAs. Very long rows and many rows go to attention_split.cu; what a row gives is the same
// there, to the bit.
#include "backends/cuda/part/kernels/attention_decode.cuh"

namespace argent::cuda {
namespace {

constexpr uint32_t kRanks = kDecodeParts;  // CTAs of a cluster
constexpr uint32_t kSplitBlocks = kFastSplitKeys / kBlockKeys;
constexpr uint32_t kWarps = kSplitBlocks / kRanks, kThreads = 32 * kWarps, kHeads = kDecodeHeads;

template <KvType kType, uint32_t kD>
struct Row : Decode<kType, kD> {
  using S = Decode<kType, kD>;
  static constexpr uint32_t kResident = (kD > 128 ? 8 : 16) / kWarps;  // CTAs on a multiprocessor
  // Shared memory, in bytes: queries; [kWarps]: V, then the warp's result.
  static constexpr uint32_t kValueAt = S::kQueryBytes;
  static constexpr uint32_t kStatAt = kValueAt + kWarps * S::kValueBytes;  // float2 [kWarps][kHeads]: maximum, sum
  // What other CTAs read: float4 [kHeads]: maximum, sum; float [kHeads][kD].
  static constexpr uint32_t kMergedAt = kStatAt + kWarps * kHeads * 8;
  static constexpr uint32_t kBytes = kMergedAt + kHeads * 16 + kHeads * kD * 4;
};

// Compiled for earlier devices too, which have no clusters and take attention_any.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define ARGENT_CLUSTER __cluster_dims__(kRanks, 1, 1)
#else
#define ARGENT_CLUSTER
#endif

template <KvType kType, uint32_t kD>
__global__ void ARGENT_CLUSTER __launch_bounds__(kThreads, Row<kType, kD>::kResident) decode_rows(const DecodeArgs a) {
  using S = Row<kType, kD>;
  extern __shared__ float4 shared4[];
  uint8_t* const shared = reinterpret_cast<uint8_t*>(shared4);
  uint4* const query = reinterpret_cast<uint4*>(shared);
  float2* const stats = reinterpret_cast<float2*>(shared + S::kStatAt);
  float4* const merged_stats = reinterpret_cast<float4*>(shared + S::kMergedAt);
  float4* const merged = merged_stats + kHeads;

  const uint32_t thread = threadIdx.x, lane = thread & 31, warp = thread / 32, g = lane / 4, t = lane % 4;
  uint8_t* const values = shared + S::kValueAt + warp * S::kValueBytes;
  const uint32_t kv_head = blockIdx.y, n_heads = min(a.group - blockIdx.z * kHeads, kHeads);
  const uint32_t first_head = kv_head * a.group + blockIdx.z * kHeads;
  // Block of the split: of the CTAs in turn.
  const uint32_t rank = blockIdx.x % kRanks, block_of_split = warp * kRanks + rank;
  // While the kernel before this one ends, the item is read, and of its keys and values what is older than the step.
  // Lists have room for what the grid is made for, so that they can be read before their length is known.
  let_next_start();
  const AttentionItem item = a.work.items[blockIdx.x / kRanks];
  const bool is_item = blockIdx.x / kRanks < a.work.counts[0];
  const uint32_t block = item.first / kFastSplitKeys * kSplitBlocks + block_of_split, first_key = block * kBlockKeys;
  // Visible keys of the warp's block.
  const uint32_t lo = max(item.first, first_key) - first_key;
  const uint32_t hi = min(max(item.end, first_key) - first_key, kBlockKeys);
  const bool active = is_item && lo < hi;
  typename S::Keys keys = {};
  const uint64_t at =
      (active ? uint32_t(a.tables[item.table + block]) : 0) * a.kv.block_bytes + kv_head * S::kHeadBytes;
  bool loaded = !active;
#pragma unroll 1
  for (uint32_t pass = 0; pass < 2; ++pass) {
    if (pass) wait_for_previous();
    if (!loaded && (pass || first_key + hi <= item.written)) {
      load_keys<S, kD>(a.kv.k + at, keys);
      load_values<S, kD>(a.kv.v + at, lo, hi, values);
      commit_copies();
      loaded = true;
    }
  }
  if (!is_item) return;

  put_queries<kType, kD, kWarps>(a.q + (uint64_t(item.q_row) * a.n_head + first_head) * kD, n_heads, a.scores, query);
  __syncthreads();
  float2 of_block = make_float2(-INFINITY, 0);  // of head g
  if (active) {
    uint4 p[kKeyTiles / 2];
    of_block = block_weights<kType, kD>(
        query, [&](uint32_t pair, uint32_t j) { return keys[pair][j]; }, a.scores, lo, hi, p);
    wait_copies<0>();
    __syncwarp();
    // Results go where the values of their columns were: float [kHeads][8] of a tile are 16 of its rows of 16 bytes.
    uint8_t* const to = values + (2 * g + t / 2) * S::kRowBytes + t % 2 * 8;
    weigh_values<kType, kD, false>(values, p,
                                   [&](uint32_t tile, float2 x) { *reinterpret_cast<float2*>(to + 16 * tile) = x; });
  }
  if (t == 0) stats[warp * kHeads + g] = of_block;
  __syncthreads();

  const uint32_t begin = item.first % kFastSplitKeys / kBlockKeys;
  const uint32_t end = (item.end - 1) % kFastSplitKeys / kBlockKeys + 1;
  const uint32_t n = n_heads * (kD / 4);
  for (uint32_t i = thread; i < n; i += kThreads) {
    const uint32_t h = i / (kD / 4), d = 4 * (i % (kD / 4));
    float4 y = make_float4(0, 0, 0, 0);
    float2 total = make_float2(-INFINITY, 0);
#pragma unroll
    for (uint32_t k = 0; k < kWarps; ++k) {
      const uint8_t* const from = shared + S::kValueAt + k * S::kValueBytes;
      float4 x = make_float4(0, 0, 0, 0);
      if (k * kRanks + rank >= begin && k * kRanks + rank < end)
        x = *reinterpret_cast<const float4*>(from + (2 * h + d / 4 % 2) * S::kRowBytes + d / 8 * 16);
      const float2 w = more(total, stats[k * kHeads + h]);
      y.x = fmaf(w.y, x.x, w.x * y.x), y.y = fmaf(w.y, x.y, w.x * y.y);
      y.z = fmaf(w.y, x.z, w.x * y.z), y.w = fmaf(w.y, x.w, w.x * y.w);
    }
    merged[i] = y;
    if (d == 0) merged_stats[h] = make_float4(total.x, total.y, 0, 0);
  }
  cluster_arrive();
  cluster_wait();

  // A CTA has its share of the columns, in groups of 32.
  const uint32_t share = ((n + 7) / 8 + kRanks - 1) / kRanks * 8, i = rank * share + thread;
  const bool mine = thread < share && i < n;
  float4 x[kRanks] = {};
  float2 stat[kRanks] = {};
  if (mine) {
#pragma unroll
    for (uint32_t k = 0; k < kRanks; ++k) {
      const float4 s = load_of_rank(merged_stats + i / (kD / 4), k);
      stat[k] = make_float2(s.x, s.y);
      x[k] = load_of_rank(merged + i, k);
    }
  }
  cluster_arrive();
  if (thread / 32 * 32 < share) {
    float2 total = make_float2(-INFINITY, 0);
    float4 y = make_float4(0, 0, 0, 0);
#pragma unroll
    for (uint32_t k = 0; k < kRanks; ++k) total.x = fmaxf(total.x, stat[k].x);
#pragma unroll
    for (uint32_t k = 0; k < kRanks; ++k) merge(x[k], stat[k], y, total);
    put_result(a, item, kD, first_head + i / (kD / 4), 4 * (i % (kD / 4)), y, total, mine);
  }
  cluster_wait();  // the others have read what is here
}

#undef ARGENT_CLUSTER

template <KvType kType, uint32_t kD>
void launch_decode(Launch& launch, const DecodeArgs& args, uint32_t max_items) {
  using S = Row<kType, kD>;
  const uint32_t parts = (args.group + kHeads - 1) / kHeads;
  allow_shared(launch, decode_rows<kType, kD>, S::kBytes);
  // Else a multiprocessor may be set up for the shared memory of one CTA.
  launch.note(cudaFuncSetAttribute(decode_rows<kType, kD>, cudaFuncAttributePreferredSharedMemoryCarveout,
                                   cudaSharedmemCarveoutMaxShared),
              "attention decode");
  start(launch, "attention decode", decode_rows<kType, kD>, dim3(kRanks * max_items, args.kv.n_head_kv, parts),
        kThreads, S::kBytes, args);
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
  // Of whole rows, no more than an H200 has room for at the same time (62; of d = 256 half as many). For 8 rows and 4
  // KV heads of d = 128 a CTA each is as fast (of 1000 positions: 12 us) or faster (of 100: 5.4 us for 7.1).
  const uint32_t few = kv.d_head > 128 || (kv.d_head == 128 && a.max_items > 4) ? 30 : 60;
  const uint32_t n_clusters = a.max_items * attention_ctas(a.n_head, kv.n_head_kv);
  const bool is_small = n_clusters <= (a.max_rows ? kMostClusters : few);
  if (kv.type_k == KvType::f16) {
    is_small ? launch_size<KvType::f16>(launch, args, a.max_items)
             : attention_splits<KvType::f16>(launch, args, a.max_items);
  } else {
    is_small ? launch_size<KvType::bf16>(launch, args, a.max_items)
             : attention_splits<KvType::bf16>(launch, args, a.max_items);
  }
}

}  // namespace argent::cuda
