// Attention of few rows of a sequence on tensor cores: a CTA has a split (256 keys) and up to 16 query heads of a KV
// head, which are the 16 rows of its products. What counts is bytes in flight: all of V is on its way to shared memory
// and 64 bytes of each key to registers before anything is computed, and the split's blocks are brought into the L2
// cache before the wait.
//
// Scores: a warp has 64 keys, whose pieces it loads as they lie (16 bytes a lane: 8 neighbouring elements; queries are
// put in the same order). Values: a warp has a quarter of the columns and goes through all keys, so that nothing is
// merged but maxima and sums. Queries and weights are sums of two or three rounded terms, so that the errors are those
// of f32 sums.
#include <algorithm>

#include "backends/cuda/part/kernels/attention.cuh"
#include "backends/cuda/part/kernels/attention_mma.cuh"

namespace argent::cuda {
namespace {

constexpr uint32_t kThreads = 128, kWarps = 4, kHeads = 16, kWarpKeys = kSplitKeys / kWarps;
constexpr uint32_t kKeyTiles = kWarpKeys / 8;  // products' columns: 8 keys each
constexpr uint32_t kBlocks = kSplitKeys / kBlockKeys;
constexpr uint32_t kWeightTerms = 2;

struct DecodeArgs {
  const float* q;
  float* y;
  Q8 q8;
  float* partial;
  AttentionWork work;
  const int32_t* tables;
  KvPlace kv;
  Scores scores;
  uint32_t n_head;
};

template <KvType kType, uint32_t kD>
struct Decode {
  static constexpr uint32_t kSteps = kD / 16;  // of the scores' products
  static constexpr uint32_t kQueryTerms = kType == KvType::bf16 ? 3 : 2;
  static constexpr uint32_t kColumnTiles = kD / 8, kWarpTiles = (kColumnTiles + kWarps - 1) / kWarps;
  static constexpr uint32_t kStageBlocks = kD > 128 ? kBlocks / 2 : kBlocks;  // of V at once: at most 68 KB
  static constexpr uint32_t kRowBytes =
      2 * kD + 16;  // of V: an odd number of 16 bytes, so that 8 rows are in all banks
  // Shared memory, in bytes.
  static constexpr uint32_t kQueryAt = 0;                            // uint4 [kSteps][terms][32]
  static constexpr uint32_t kWeightAt = kSteps * kQueryTerms * 512;  // uint4 [16][terms][32], then results
  static constexpr uint32_t kValueAt = kWeightAt + kSplitKeys / 16 * kWeightTerms * 512;
  static constexpr uint32_t kStatAt = kValueAt + kStageBlocks * kBlockKeys * kRowBytes;  // maxima, sums [kWarps][16]
  static constexpr uint32_t kBytes = kStatAt + 2 * kWarps * kHeads * 4;
  static_assert(kHeads * kD * 4 <= kValueAt - kWeightAt);
};

template <KvType kType, uint32_t kD>
__global__ void __launch_bounds__(kThreads) decode_items(const DecodeArgs a) {
  using S = Decode<kType, kD>;
  extern __shared__ float4 shared4[];
  uint8_t* const shared = reinterpret_cast<uint8_t*>(shared4);
  uint4* const query = reinterpret_cast<uint4*>(shared + S::kQueryAt);
  uint4* const weights = reinterpret_cast<uint4*>(shared + S::kWeightAt);
  uint8_t* const values = shared + S::kValueAt;
  float* const maxima = reinterpret_cast<float*>(shared + S::kStatAt);
  float* const sums = maxima + kWarps * kHeads;

  const uint32_t thread = threadIdx.x, lane = thread & 31, warp = thread / 32, g = lane / 4, t = lane % 4;
  const uint32_t n_kv = a.kv.n_head_kv, group = a.n_head / n_kv, parts = (group + kHeads - 1) / kHeads;
  const uint32_t n_work = a.work.counts[0] * n_kv * parts;
  constexpr uint32_t kHeadBytes = kBlockKeys * kD * 2;
  // Items and their tables are read an item ahead, the first one while the kernel before this one ends. Lists have room
  // for what the grid is made for, so that the first item can be read before their length is known.
  const auto item_at = [&](uint32_t w) { return a.work.items[w / (n_kv * parts)]; };
  const auto prefetch = [&](const AttentionItem& item, uint32_t entry, uint32_t w) {
    prefetch_split(item, entry, a.kv, w / parts % n_kv, kHeadBytes, kHeadBytes);
  };
  let_next_start();
  AttentionItem next = item_at(blockIdx.x);
  uint32_t next_entry = 0;
  if (blockIdx.x < n_work) {
    next_entry = split_entry(next, a.tables);
    if (warp == 0) prefetch(next, next_entry, blockIdx.x);
  }
  wait_for_previous();

  for (uint32_t w = blockIdx.x; w < n_work; w += gridDim.x) {
    const AttentionItem item = next;
    const uint32_t entry = next_entry;
    const bool more = w + gridDim.x < n_work;
    if (more) next = item_at(w + gridDim.x);
    const uint32_t kv_head = w / parts % n_kv, part = w % parts;
    const uint32_t n_heads = min(group - part * kHeads, kHeads), first_head = kv_head * group + part * kHeads;
    const uint32_t base = item.first / kSplitKeys * kSplitKeys, lo = item.first - base, hi = item.end - base;
    const uint32_t first_block = lo / kBlockKeys, end_block = (hi + kBlockKeys - 1) / kBlockKeys;

    const uint8_t* key_block[2];  // of this warp's 64 keys
    const uint8_t* value_block[kBlocks];
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i)
      key_block[i] = a.kv.k + __shfl_sync(~0u, entry, 2 * warp + i) * a.kv.block_bytes + kv_head * kHeadBytes;
#pragma unroll
    for (uint32_t b = 0; b < kBlocks; ++b)
      value_block[b] = a.kv.v + __shfl_sync(~0u, entry, b) * a.kv.block_bytes + kv_head * kHeadBytes;

    // Keys that are not visible are zeros: their memory may hold anything.
    uint32_t seen = 0;  // bit j: key 8 j + g of the warp
#pragma unroll
    for (uint32_t j = 0; j < kKeyTiles; ++j) {
      const uint32_t key = warp * kWarpKeys + 8 * j + g;
      seen |= uint32_t(key >= lo && key < hi) << j;
    }
    const bool active = warp * kWarpKeys < hi && (warp + 1) * kWarpKeys > lo;
    uint4 keys[2][kKeyTiles];
    const auto load_keys = [&](uint32_t pair) {
#pragma unroll
      for (uint32_t j = 0; j < kKeyTiles; ++j) {
        const uint8_t* from = key_block[j / 4] + (8 * (j % 4) + g) * (2 * kD) + 64 * pair;
        uint4 x = make_uint4(0, 0, 0, 0);
        if (seen >> j & 1) {
          if (32 * pair + 32 <= kD) {
            x = *reinterpret_cast<const uint4*>(from + 16 * t);
          } else {
            const uint2 half = *reinterpret_cast<const uint2*>(from + 8 * t);
            x.x = half.x, x.y = half.y;
          }
        }
        keys[pair & 1][j] = x;
      }
    };
    const auto copy_values = [&](uint32_t stage) {
#pragma unroll
      for (uint32_t i = 0; i < S::kStageBlocks; ++i) {
        const uint32_t b = stage * S::kStageBlocks + i;
        if (b < first_block || b >= end_block) continue;
        for (uint32_t chunk = thread; chunk < kBlockKeys * kD / 8; chunk += kThreads) {
          const uint32_t row = chunk / (kD / 8), at = chunk % (kD / 8), key = b * kBlockKeys + row;
          copy_async(values + (i * kBlockKeys + row) * S::kRowBytes + 16 * at, value_block[b] + 16 * chunk,
                     key >= lo && key < hi);
        }
      }
      commit_copies();
    };
    if (active) load_keys(0);
    copy_values(0);

    // Queries in the order in which the products take them; rows past the heads are zeros.
    const float* const q = a.q + (uint64_t(item.q_row) * a.n_head + first_head) * kD;
    const float before = a.scores.before();
    for (uint32_t i = thread; i < S::kSteps * 32; i += kThreads) {
      const uint32_t step = i / 32,
                     d = (step | 1) < S::kSteps ? 32 * (step / 2) + 8 * t + 4 * (step & 1) : 16 * step + 4 * t;
      float4 x = make_float4(0, 0, 0, 0), z = x;
      if (g < n_heads) x = *reinterpret_cast<const float4*>(q + g * kD + d);
      if (g + 8 < n_heads) z = *reinterpret_cast<const float4*>(q + (g + 8) * kD + d);
      uint32_t terms[4][S::kQueryTerms];
      split<kType>(x.x * before, x.y * before, terms[0]);
      split<kType>(z.x * before, z.y * before, terms[1]);
      split<kType>(x.z * before, x.w * before, terms[2]);
      split<kType>(z.z * before, z.w * before, terms[3]);
#pragma unroll
      for (uint32_t k = 0; k < S::kQueryTerms; ++k)
        query[(step * S::kQueryTerms + k) * 32 + lane] = make_uint4(terms[0][k], terms[1][k], terms[2][k], terms[3][k]);
    }
    if (more) next_entry = split_entry(next, a.tables);
    __syncthreads();

    float s[kKeyTiles][4] = {};
    if (active) {
      constexpr uint32_t kPairs = (S::kSteps + 1) / 2;
#pragma unroll
      for (uint32_t pair = 0; pair < kPairs; ++pair) {
        if (pair + 1 < kPairs) load_keys(pair + 1);
#pragma unroll
        for (uint32_t step = 2 * pair; step < min(2 * pair + 2, S::kSteps); ++step)
#pragma unroll
          for (uint32_t k = 0; k < S::kQueryTerms; ++k) {
            const uint4 x = query[(step * S::kQueryTerms + k) * 32 + lane];
#pragma unroll
            for (uint32_t j = 0; j < kKeyTiles; ++j) {
              const uint4& key = keys[pair & 1][j];
              mma<kType>(s[j], x, step & 1 ? key.z : key.x, step & 1 ? key.w : key.y);
            }
          }
      }
    }

    if (more && warp == 0) prefetch(next, next_entry, w + gridDim.x);

    // Rows g and g + 8; columns 2 t and 2 t + 1 of each eight keys.
    float most[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (uint32_t j = 0; j < kKeyTiles; ++j)
#pragma unroll
      for (uint32_t e = 0; e < 4; ++e) {
        const uint32_t key = warp * kWarpKeys + 8 * j + 2 * t + (e & 1);
        s[j][e] = key >= lo && key < hi ? a.scores.after(s[j][e]) : -INFINITY;
        most[e / 2] = fmaxf(most[e / 2], s[j][e]);
      }
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
      most[i] = fmaxf(most[i], __shfl_xor_sync(~0u, most[i], 1));
      most[i] = fmaxf(most[i], __shfl_xor_sync(~0u, most[i], 2));
      if (t == 0) maxima[warp * kHeads + g + 8 * i] = most[i];
    }
    __syncthreads();
    float sum[2] = {};
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i)
      for (uint32_t other = 0; other < kWarps; ++other) most[i] = fmaxf(most[i], maxima[other * kHeads + g + 8 * i]);
#pragma unroll
    for (uint32_t j = 0; j < kKeyTiles; ++j)
#pragma unroll
      for (uint32_t e = 0; e < 4; ++e) {
        const uint32_t key = warp * kWarpKeys + 8 * j + 2 * t + (e & 1);
        s[j][e] = key >= lo && key < hi ? exp2f(s[j][e] - most[e / 2]) : 0.0f;
        sum[e / 2] += s[j][e];
      }
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
      sum[i] += __shfl_xor_sync(~0u, sum[i], 1);
      sum[i] += __shfl_xor_sync(~0u, sum[i], 2);
      if (t == 0) sums[warp * kHeads + g + 8 * i] = sum[i];
    }
    if (active) {
#pragma unroll
      for (uint32_t step = 0; step < kWarpKeys / 16; ++step) {
        uint32_t terms[4][kWeightTerms];
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i)
          split<kType>(s[2 * step + i / 2][i % 2 * 2], s[2 * step + i / 2][i % 2 * 2 + 1], terms[i]);
#pragma unroll
        for (uint32_t k = 0; k < kWeightTerms; ++k)
          weights[((warp * kWarpKeys / 16 + step) * kWeightTerms + k) * 32 + lane] =
              make_uint4(terms[0][k], terms[1][k], terms[2][k], terms[3][k]);
      }
    }

    float sum_of[kWeightTerms][S::kWarpTiles][4] = {};
#pragma unroll
    for (uint32_t stage = 0; stage < kBlocks / S::kStageBlocks; ++stage) {
      if (stage) {
        __syncthreads();  // all have read what is overwritten
        copy_values(stage);
      }
      wait_copies<0>();
      __syncthreads();
      const uint32_t stage_block = stage * S::kStageBlocks;
      for (uint32_t b = max(first_block, stage_block); b < min(end_block, stage_block + S::kStageBlocks); ++b) {
        uint4 p[2][kWeightTerms];
#pragma unroll
        for (uint32_t step = 0; step < 2; ++step)
#pragma unroll
          for (uint32_t k = 0; k < kWeightTerms; ++k)
            p[step][k] = weights[((2 * b + step) * kWeightTerms + k) * 32 + lane];
        const uint8_t* row = values + ((b - stage_block) * kBlockKeys + lane) * S::kRowBytes;
#pragma unroll
        for (uint32_t i = 0; i < S::kWarpTiles; ++i) {
          const uint32_t tile = warp + kWarps * i;
          if (tile >= S::kColumnTiles) continue;
          const uint4 v = load_matrices_transposed(row + 16 * tile);
#pragma unroll
          for (uint32_t k = 0; k < kWeightTerms; ++k) {
            mma<kType>(sum_of[k][i], p[0][k], v.x, v.y);
            mma<kType>(sum_of[k][i], p[1][k], v.z, v.w);
          }
        }
      }
    }

    float total[2] = {};
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i)
      for (uint32_t other = 0; other < kWarps; ++other) total[i] += sums[other * kHeads + g + 8 * i];
    const bool whole = item.slot == kWholeRow;
    float* const partial = a.partial + (uint64_t(item.slot) * a.n_head + first_head) * (kD + 4);
    float* const result = reinterpret_cast<float*>(weights);
    if (whole) __syncthreads();  // results go where the weights were
#pragma unroll
    for (uint32_t i = 0; i < S::kWarpTiles; ++i)
#pragma unroll
      for (uint32_t half = 0; half < 2; ++half) {
        const uint32_t tile = warp + kWarps * i, h = g + 8 * half, d = 8 * tile + 2 * t;
        if (tile >= S::kColumnTiles || h >= n_heads) continue;
        float2 x = make_float2(sum_of[0][i][2 * half] + sum_of[1][i][2 * half],
                               sum_of[0][i][2 * half + 1] + sum_of[1][i][2 * half + 1]);
        if (whole) x.x /= total[half], x.y /= total[half];
        *reinterpret_cast<float2*>(whole ? result + h * kD + d : partial + h * (kD + 4) + d) = x;
      }
    if (!whole) {
      if (warp == 0 && t == 0)
#pragma unroll
        for (uint32_t half = 0; half < 2; ++half)
          if (g + 8 * half < n_heads)
            *reinterpret_cast<float2*>(partial + (g + 8 * half) * (kD + 4) + kD) = make_float2(most[half], total[half]);
    } else {
      __syncthreads();
      const uint32_t n = n_heads * kD;
      float* const y = a.y + (uint64_t(item.q_row) * a.n_head + first_head) * kD;
      for (uint32_t i = thread; i / 32 * 32 < n; i += kThreads) {
        const float x = i < n ? result[i] : 0.0f;
        if (a.y && i < n) y[i] = x;
        if (a.q8.q) store_quantized(a.q8, item.q_row, (first_head * kD + i) / 32, x);
      }
    }
    __syncthreads();  // before the next item's queries
  }
}

template <KvType kType, uint32_t kD>
void launch_decode(Launch& launch, const DecodeArgs& args, uint32_t max_items) {
  using S = Decode<kType, kD>;
  const uint32_t group = args.n_head / args.kv.n_head_kv;
  const uint64_t work = uint64_t(max_items) * args.kv.n_head_kv * ((group + kHeads - 1) / kHeads);
  constexpr uint32_t kResident = std::min(4u, 224 * 1024 / S::kBytes);  // CTAs that a multiprocessor of sm_90 holds
  allow_shared(launch, decode_items<kType, kD>, S::kBytes);
  start(launch, "attention decode", decode_items<kType, kD>,
        uint32_t(std::min<uint64_t>(work, kResident * attention_processors())), kThreads, S::kBytes, args);
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
  const DecodeArgs args{a.q, a.y, a.q8, a.partial, a.work, tables, kv, {a.scale, a.softcap}, a.n_head};
  if (kv.type_k == KvType::f16) {
    launch_size<KvType::f16>(launch, args, a.max_items);
  } else {
    launch_size<KvType::bf16>(launch, args, a.max_items);
  }
}

}  // namespace argent::cuda
