// Attention of very long rows and of many rows: a CTA has an item and up to 8 query heads of a KV head.
// Its warps take blocks in turn, each adding up its own; what is loaded next is asked for as soon as a block is done,
// the next item's before this one's warps meet. What a row gives is what attention_decode.cu gives, to the bit.
#include <algorithm>

#include "backends/cuda/part/kernels/attention_decode.cuh"

namespace argent::cuda {
namespace {

constexpr uint32_t kWarps = kDecodeParts, kThreads = 32 * kWarps, kHeads = kDecodeHeads;

template <KvType kType, uint32_t kD>
struct Splits : Decode<kType, kD> {
  using S = Decode<kType, kD>;
  static constexpr bool kInTurn = kD > 128;   // K and V of a warp have the same place: there is no room for both
  static constexpr uint32_t kPitch = kD + 8;  // floats of a head's sums: heads are in different banks
  // Shared memory, in bytes: queries; a warp's K and V [kWarps]; sums, float [kWarps][kHeads][kPitch]; maximum and sum,
  // float2 [kWarps][kHeads].
  static constexpr uint32_t kBlockAt = S::kQueryBytes, kBlockBytes = S::kKeyBytes + (kInTurn ? 0 : S::kValueBytes);
  static constexpr uint32_t kSumAt = kBlockAt + kWarps * kBlockBytes;
  static constexpr uint32_t kStatAt = kSumAt + kWarps * kHeads * kPitch * 4;
  static constexpr uint32_t kBytes = kStatAt + kWarps * kHeads * 8;
  static constexpr uint32_t kResident = kBytes <= 112 << 10 ? 2 : 1;  // CTAs on a multiprocessor: of 227 KB
  static_assert(kBytes <= 227 << 10 && kMostSplitKeys <= 32 * kWarps * kBlockKeys);  // lanes have the entries
  static_assert(S::kKeyBytes >= S::kValueBytes || !kInTurn);
};

template <KvType kType, uint32_t kD>
__global__ void __launch_bounds__(kThreads, Splits<kType, kD>::kResident) split_items(const DecodeArgs a) {
  using S = Splits<kType, kD>;
  extern __shared__ float4 shared4[];
  uint8_t* const shared = reinterpret_cast<uint8_t*>(shared4);
  uint4* const query = reinterpret_cast<uint4*>(shared);
  float* const sums = reinterpret_cast<float*>(shared + S::kSumAt);
  float2* const stats = reinterpret_cast<float2*>(shared + S::kStatAt);

  const uint32_t thread = threadIdx.x, lane = thread & 31, warp = thread / 32, g = lane / 4, t = lane % 4;
  uint8_t* const keys = shared + S::kBlockAt + warp * S::kBlockBytes;
  uint8_t* const values = keys + (S::kInTurn ? 0 : S::kKeyBytes);
  const uint32_t kv_head = blockIdx.y, n_heads = min(a.group - blockIdx.z * kHeads, kHeads);
  const uint32_t first_head = kv_head * a.group + blockIdx.z * kHeads;

  // While the kernel before this one ends, the first item is read, and of its keys and values what is older than the
  // step. Lists have room for what the grid is made for, so that they can be read before their length is known.
  let_next_start();
  AttentionItem item = a.work.items[blockIdx.x], next = item;
  const uint32_t n_items = a.work.counts[0];
  // The warp's blocks of an item: the first one, where they end, and a lane each the entries of the block table.
  const auto first_block = [&](const AttentionItem& of) {
    const uint32_t first = of.first / kBlockKeys;
    return first + (warp - first) % kWarps;
  };
  const auto end_block = [&](const AttentionItem& of) { return (of.end - 1) / kBlockKeys + 1; };
  const auto entries_of = [&](const AttentionItem& of) {
    const uint32_t block = first_block(of) + kWarps * lane;
    return block < end_block(of) ? uint32_t(a.tables[of.table + block]) : 0;
  };
  uint32_t block = first_block(item), end = end_block(item);
  uint32_t entries = blockIdx.x < n_items ? entries_of(item) : 0;
  struct Visible {
    uint32_t lo, hi;  // keys of a block; none: lo >= hi
  };
  const auto visible = [](const AttentionItem& of, uint32_t block) {
    const uint32_t first_key = block * kBlockKeys;
    return Visible{max(of.first, first_key) - first_key, min(max(of.end, first_key) - first_key, kBlockKeys)};
  };
  const auto place = [&](uint32_t entry) { return entry * a.kv.block_bytes + kv_head * S::kHeadBytes; };
  // Groups of copies are K and V of blocks in turn, whether or not there is a block.
  const auto load_k = [&](const Visible& of, uint64_t at) {
    if (of.lo < of.hi) copy_keys<S, kD>(a.kv.k + at, keys);
    commit_copies();
  };
  const auto load_v = [&](const Visible& of, uint64_t at) {
    if (of.lo < of.hi) load_values<S, kD>(a.kv.v + at, of.lo, of.hi, values);
    commit_copies();
  };
  Visible now = visible(item, block);
  if (blockIdx.x >= n_items) now.hi = 0;
  uint64_t at = place(__shfl_sync(~0u, entries, 0));
  bool waits = true;
#pragma unroll 1
  for (uint32_t pass = 0; pass < 2; ++pass) {
    if (pass) wait_for_previous();
    if (waits && (pass || block * kBlockKeys + now.hi <= item.written)) {
      load_k(now, at);
      if (!S::kInTurn) load_v(now, at);
      waits = false;
    }
  }

  for (uint32_t w = blockIdx.x; w < n_items; w += gridDim.x) {
    const bool is_last = w + gridDim.x >= n_items;
    if (!is_last) next = a.work.items[w + gridDim.x];
    put_queries<kType, kD, kWarps>(a.q + (uint64_t(item.q_row) * a.n_head + first_head) * kD, n_heads, a.scores, query);
    __syncthreads();
    uint32_t next_entries = 0;
    if (!is_last) next_entries = entries_of(next);

    float2 total = make_float2(-INFINITY, 0);  // of head g
    float2 y[S::kColumnTiles] = {};            // its columns 8 i + 2 t and the next one
    bool is_done = false;
#pragma unroll 1
    for (uint32_t i = 0; !is_done; ++i) {
      is_done = block + kWarps >= end;
      const uint32_t next_block = is_done ? first_block(next) : block + kWarps;
      const uint64_t next_at = place(__shfl_sync(~0u, is_done ? next_entries : entries, is_done ? 0 : i + 1));
      Visible after = visible(is_done ? next : item, next_block);
      if (is_done && is_last) after.hi = 0;
      const bool active = now.lo < now.hi;
      uint4 p[kKeyTiles / 2];
      float2 factors;
      if (active) {
        wait_copies<S::kInTurn ? 0 : 1>();
        __syncwarp();
        const auto keys_of = [&](uint32_t pair, uint32_t j) {
          const uint8_t* const piece = keys + (8 * j + g) * S::kKeyRowBytes + 64 * pair;
          if (32 * pair + 32 <= kD) return *reinterpret_cast<const uint4*>(piece + 16 * t);
          const uint2 half = *reinterpret_cast<const uint2*>(piece + 8 * t);
          return make_uint4(half.x, half.y, 0, 0);
        };
        factors = more(total, block_weights<kType, kD>(query, keys_of, a.scores, now.lo, now.hi, p));
        __syncwarp();
      }
      S::kInTurn ? load_v(now, at) : load_k(after, next_at);
      if (active) {
        wait_copies<S::kInTurn ? 0 : 1>();
        __syncwarp();
        weigh_values<kType, kD, true>(values, p, [&](uint32_t tile, float2 x) {
          y[tile] =
              make_float2(fmaf(factors.y, x.x, factors.x * y[tile].x), fmaf(factors.y, x.y, factors.x * y[tile].y));
        });
      }
      S::kInTurn ? load_k(after, next_at) : load_v(after, next_at);
      block = next_block, now = after, at = next_at;
    }
    end = end_block(next), entries = next_entries;
#pragma unroll
    for (uint32_t tile = 0; tile < S::kColumnTiles; ++tile)
      *reinterpret_cast<float2*>(sums + (warp * kHeads + g) * S::kPitch + 8 * tile + 2 * t) = y[tile];
    if (t == 0) stats[warp * kHeads + g] = total;
    __syncthreads();

    const uint32_t n = n_heads * (kD / 4);
    for (uint32_t i = thread; i / 32 * 32 < n; i += kThreads) {
      const bool mine = i < n;
      const uint32_t h = i / (kD / 4), d = 4 * (i % (kD / 4));
      float2 sum = make_float2(-INFINITY, 0);
      float4 y = make_float4(0, 0, 0, 0);
      if (mine) {
#pragma unroll
        for (uint32_t k = 0; k < kWarps; ++k) sum.x = fmaxf(sum.x, stats[k * kHeads + h].x);
#pragma unroll
        for (uint32_t k = 0; k < kWarps; ++k) {
          const float4 x = *reinterpret_cast<const float4*>(sums + (k * kHeads + h) * S::kPitch + d);
          merge(x, stats[k * kHeads + h], y, sum);
        }
      }
      put_result(a, item, kD, first_head + h, d, y, sum, mine);
    }
    item = next;
  }
}

template <KvType kType, uint32_t kD>
void launch_splits(Launch& launch, const DecodeArgs& args, uint32_t max_items) {
  using S = Splits<kType, kD>;
  const uint32_t parts = (args.group + kHeads - 1) / kHeads, places = S::kResident * attention_processors();
  allow_shared(launch, split_items<kType, kD>, S::kBytes);
  // Else a multiprocessor may be set up for the shared memory of one CTA.
  launch.note(cudaFuncSetAttribute(split_items<kType, kD>, cudaFuncAttributePreferredSharedMemoryCarveout,
                                   cudaSharedmemCarveoutMaxShared),
              "attention splits");
  start(launch, "attention splits", split_items<kType, kD>,
        dim3(std::min(max_items, std::max(places / (args.kv.n_head_kv * parts), 1u)), args.kv.n_head_kv, parts),
        kThreads, S::kBytes, args);
}

}  // namespace

template <KvType kType>
void attention_splits(Launch& launch, const DecodeArgs& args, uint32_t max_items) {
  switch (args.kv.d_head) {
    case 64:
      return launch_splits<kType, 64>(launch, args, max_items);
    case 80:
      return launch_splits<kType, 80>(launch, args, max_items);
    case 96:
      return launch_splits<kType, 96>(launch, args, max_items);
    case 128:
      return launch_splits<kType, 128>(launch, args, max_items);
    default:
      return launch_splits<kType, 256>(launch, args, max_items);
  }
}
template void attention_splits<KvType::f16>(Launch& launch, const DecodeArgs& args, uint32_t max_items);
template void attention_splits<KvType::bf16>(Launch& launch, const DecodeArgs& args, uint32_t max_items);

}  // namespace argent::cuda
