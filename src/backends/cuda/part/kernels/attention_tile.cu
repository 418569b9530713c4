// Attention of many rows of a sequence on tensor cores (FlashAttention-2, Dao 2023): a CTA has up to 64 neighbouring
// rows of a query head, a warp 16 of them, and walks the keys that any of them sees, 64 at a time (32 for heads of 256:
// shared memory then stays below the 99 KB of sm_86), the next ones on their way meanwhile (not for bfloat16 heads of
// 256). Keys outside a row's window and after its position count for nothing, whole pieces of them are passed by; so a
// row's result does not depend on where it is in its tile. Queries and weights are rounded to halves, or are sums of
// two terms of bfloat16.
#include <algorithm>

#include "backends/cuda/part/kernels/attention.cuh"
#include "backends/cuda/part/kernels/attention_mma.cuh"

namespace argent::cuda {
namespace {

constexpr uint32_t kThreads = 128, kWarps = 4, kWarpRows = 16;
static_assert(kWarps * kWarpRows == kTileRows);

struct TileArgs {
  const float* q;
  float* y;
  Q8 q8;
  AttentionWork work;
  const int32_t* tables;
  KvPlace kv;
  Scores scores;
  uint32_t n_head, window;
};

template <KvType kType, uint32_t kD>
struct Tile {
  static constexpr bool kSharedQueries = kD > 128;  // there are not enough registers for them
  // bfloat16 has 8 bits: one rounding of queries and weights would be seen.
  static constexpr uint32_t kTerms = kType == KvType::bf16 ? 2 : 1;
  static constexpr uint32_t kSteps = kD / 16, kKeys = kD > 128 ? 32 : 64, kBlocks = kKeys / kBlockKeys;
  static constexpr uint32_t kRowBytes = 2 * kD + 16;  // an odd number of 16 bytes, so that 8 rows are in all banks
  static constexpr uint32_t kSideBytes = kKeys * kRowBytes, kStageBytes = 2 * kSideBytes;  // K, then V
  static constexpr uint32_t kStages = kSharedQueries && kTerms > 1 ? 1 : 2;
  static constexpr uint32_t kQueryAt = kStages * kStageBytes;  // uint4 [kWarps][kSteps][kTerms][32]
  static constexpr uint32_t kBytes = kQueryAt + (kSharedQueries ? kWarps * kSteps * kTerms * 512 : 0);
  static_assert(kTileRows * kD * 4 <= kBytes && kBytes <= 99 * 1024);  // results take the place of everything
};

template <KvType kType, uint32_t kD>
__global__ void __launch_bounds__(kThreads, kType == KvType::f16 && kD <= 128 ? 3 : 1) tiles(const TileArgs a) {
  using S = Tile<kType, kD>;
  extern __shared__ float4 shared4[];
  uint8_t* const shared = reinterpret_cast<uint8_t*>(shared4);
  const uint32_t thread = threadIdx.x, lane = thread & 31, warp = thread / 32, g = lane / 4, t = lane % 4;
  uint4* const query = reinterpret_cast<uint4*>(shared + S::kQueryAt) + warp * S::kSteps * S::kTerms * 32 + lane;
  constexpr uint32_t kHeadBytes = kBlockKeys * kD * 2;
  const uint32_t n_work = a.work.counts[2] * a.n_head, group = a.n_head / a.kv.n_head_kv;
  // Rows that a lane's address is of, for load_matrices: keys and columns of products.
  const uint32_t key_row = (lane / 16 * 8 + lane % 8) * S::kRowBytes + lane / 8 % 2 * 16;
  const uint32_t value_row = (lane / 8 % 2 * 8 + lane % 8) * S::kRowBytes + lane / 16 * 16;
  let_next_start();
  wait_for_previous();

  for (uint32_t w = blockIdx.x; w < n_work; w += gridDim.x) {
    const AttentionTile tile = a.work.tiles[w / a.n_head];
    const uint32_t head = w % a.n_head, kv_head = head / group;
    const uint32_t first = a.window && tile.position >= a.window ? tile.position - a.window + 1 : 0;
    const uint32_t last = tile.position + tile.n_rows - 1;
    const uint8_t* const k = a.kv.k + kv_head * kHeadBytes;
    const uint8_t* const v = a.kv.v + kv_head * kHeadBytes;

    // Blocks are looked up one piece ahead of their copies.
    uint32_t blocks[S::kBlocks];
    const auto look_up = [&](uint32_t piece) {
#pragma unroll
      for (uint32_t i = 0; i < S::kBlocks; ++i) {
        const uint32_t b = piece * S::kBlocks + i;
        blocks[i] = b >= first / kBlockKeys && b <= last / kBlockKeys ? uint32_t(a.tables[tile.table + b]) : 0;
      }
    };
    // What no row sees becomes zeros: its memory may hold anything.
    const auto copy = [&](uint32_t piece) {
      uint8_t* const to = shared + piece % S::kStages * S::kStageBytes;
#pragma unroll
      for (uint32_t i = 0; i < S::kBlocks; ++i) {
        const uint64_t skip = blocks[i] * a.kv.block_bytes;
        for (uint32_t chunk = thread; chunk < kBlockKeys * kD / 8; chunk += kThreads) {
          const uint32_t row = i * kBlockKeys + chunk / (kD / 8), position = piece * S::kKeys + row;
          const bool wanted = position >= first && position <= last;
          uint8_t* const at = to + row * S::kRowBytes + chunk % (kD / 8) * 16;
          copy_async(at, k + skip + 16 * chunk, wanted);
          copy_async(at + S::kSideBytes, v + skip + 16 * chunk, wanted);
        }
      }
      commit_copies();
    };
    const uint32_t first_piece = first / S::kKeys, last_piece = last / S::kKeys;
    look_up(first_piece);
    copy(first_piece);
    look_up(first_piece + 1);

    // Rows g and g + 8 of the warp; rows past the last are zeros.
    uint4 in_registers[S::kSharedQueries ? 1 : S::kSteps][S::kTerms];
    {
      const float before = a.scores.before();
      const uint32_t row = warp * kWarpRows + g;
      const float* const q = a.q + (uint64_t(tile.q_row + row) * a.n_head + head) * kD + 2 * t;
      const uint64_t eight = uint64_t(8) * a.n_head * kD;
#pragma unroll
      for (uint32_t step = 0; step < S::kSteps; ++step) {
        uint32_t terms[4][S::kTerms];
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) {
          const bool there = row + i % 2 * 8 < tile.n_rows;
          const float* const from = q + 16 * step + i % 2 * eight + i / 2 * 8;
          const float2 x = there ? *reinterpret_cast<const float2*>(from) : make_float2(0, 0);
          split<kType>(x.x * before, x.y * before, terms[i]);
        }
#pragma unroll
        for (uint32_t k = 0; k < S::kTerms; ++k) {
          const uint4 x = make_uint4(terms[0][k], terms[1][k], terms[2][k], terms[3][k]);
          if constexpr (S::kSharedQueries) {
            query[(step * S::kTerms + k) * 32] = x;  // each lane reads its own again
          } else {
            in_registers[step][k] = x;
          }
        }
      }
    }

    const uint32_t low = tile.position + warp * kWarpRows, high = low + kWarpRows - 1;  // the warp's rows
    const bool has_rows = warp * kWarpRows < tile.n_rows;
    float sum_of[kD / 8][4] = {};
    float most[2] = {-INFINITY, -INFINITY}, total[2] = {};
    const auto attend = [&](uint32_t piece) {
      const uint32_t begin = piece * S::kKeys, end = begin + S::kKeys;
      if (!has_rows || begin > high || (a.window && end - 1 + a.window <= low)) return;
      const uint8_t* const keys = shared + piece % S::kStages * S::kStageBytes;
      const uint8_t* const values = keys + S::kSideBytes;

      float s[S::kKeys / 8][4] = {};
#pragma unroll
      for (uint32_t step = 0; step < S::kSteps; ++step) {
        uint4 x[S::kTerms];
#pragma unroll
        for (uint32_t k = 0; k < S::kTerms; ++k)
          x[k] = S::kSharedQueries ? query[(step * S::kTerms + k) * 32] : in_registers[S::kSharedQueries ? 0 : step][k];
#pragma unroll
        for (uint32_t j = 0; j < S::kKeys / 16; ++j) {
          const uint4 m = load_matrices(keys + key_row + j * 16 * S::kRowBytes + step * 32);
#pragma unroll
          for (uint32_t k = 0; k < S::kTerms; ++k) {
            mma<kType>(s[2 * j], x[k], m.x, m.y);
            mma<kType>(s[2 * j + 1], x[k], m.z, m.w);
          }
        }
      }
      if (a.scores.softcap != 0) {
#pragma unroll
        for (uint32_t j = 0; j < S::kKeys / 8; ++j)
#pragma unroll
          for (uint32_t e = 0; e < 4; ++e) s[j][e] = a.scores.after(s[j][e]);
      }
      if (end - 1 > low || (a.window && begin + a.window <= high)) {
#pragma unroll
        for (uint32_t j = 0; j < S::kKeys / 8; ++j)
#pragma unroll
          for (uint32_t e = 0; e < 4; ++e) {
            const uint32_t key = begin + 8 * j + 2 * t + (e & 1), position = low + g + e / 2 * 8;
            if (key > position || (a.window && key + a.window <= position)) s[j][e] = -INFINITY;
          }
      }

#pragma unroll
      for (uint32_t i = 0; i < 2; ++i) {
        float now = most[i];
#pragma unroll
        for (uint32_t j = 0; j < S::kKeys / 8; ++j) now = fmaxf(now, fmaxf(s[j][2 * i], s[j][2 * i + 1]));
        now = fmaxf(now, __shfl_xor_sync(~0u, now, 1));
        now = fmaxf(now, __shfl_xor_sync(~0u, now, 2));
        const float from = now == -INFINITY ? 0.0f : now;  // a row that has not seen a key yet: all weights are 0
        const float keep = exp2_flushed(most[i] - from);
        most[i] = now;
        total[i] *= keep;
#pragma unroll
        for (uint32_t j = 0; j < S::kKeys / 8; ++j)
#pragma unroll
          for (uint32_t e = 2 * i; e < 2 * i + 2; ++e) s[j][e] = exp2_flushed(s[j][e] - from), total[i] += s[j][e];
#pragma unroll
        for (uint32_t d = 0; d < kD / 8; ++d) sum_of[d][2 * i] *= keep, sum_of[d][2 * i + 1] *= keep;
      }

#pragma unroll
      for (uint32_t step = 0; step < S::kKeys / 16; ++step) {
        uint32_t p[4][S::kTerms];
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i)
          split<kType>(s[2 * step + i / 2][i % 2 * 2], s[2 * step + i / 2][i % 2 * 2 + 1], p[i]);
#pragma unroll
        for (uint32_t d = 0; d < kD / 16; ++d) {
          const uint4 m = load_matrices_transposed(values + value_row + step * 16 * S::kRowBytes + d * 32);
#pragma unroll
          for (uint32_t k = 0; k < S::kTerms; ++k) {
            const uint4 x = make_uint4(p[0][k], p[1][k], p[2][k], p[3][k]);
            mma<kType>(sum_of[2 * d], x, m.x, m.y);
            mma<kType>(sum_of[2 * d + 1], x, m.z, m.w);
          }
        }
      }
    };
    for (uint32_t piece = first_piece; piece <= last_piece; ++piece) {
      wait_copies<0>();
      __syncthreads();
      if (S::kStages == 1) {
        attend(piece);
        __syncthreads();
      }
      if (piece < last_piece) {
        copy(piece + 1);
        look_up(piece + 2);
      }
      if (S::kStages > 1) attend(piece);
    }

    __syncthreads();  // results take the place of keys and values
    float* const result = reinterpret_cast<float*>(shared) + warp * kWarpRows * kD;
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
      total[i] += __shfl_xor_sync(~0u, total[i], 1);
      total[i] += __shfl_xor_sync(~0u, total[i], 2);
      const float inverse = 1.0f / total[i];
#pragma unroll
      for (uint32_t d = 0; d < kD / 8; ++d)
        *reinterpret_cast<float2*>(result + (g + 8 * i) * kD + 8 * d + 2 * t) =
            make_float2(sum_of[d][2 * i] * inverse, sum_of[d][2 * i + 1] * inverse);
    }
    __syncwarp();
    for (uint32_t r = 0; r < kWarpRows && warp * kWarpRows + r < tile.n_rows; ++r) {
      const uint32_t row = tile.q_row + warp * kWarpRows + r;
      for (uint32_t d = lane; d / 32 * 32 < kD; d += 32) {
        const float x = d < kD ? result[r * kD + d] : 0.0f;
        if (a.y && d < kD) a.y[(uint64_t(row) * a.n_head + head) * kD + d] = x;
        if (a.q8.q) store_quantized(a.q8, row, (head * kD + d) / 32, x);
      }
    }
    __syncthreads();  // before the next tile's keys
  }
}

template <KvType kType, uint32_t kD>
void launch_tiles(Launch& launch, const TileArgs& args, uint32_t max_tiles) {
  allow_shared(launch, tiles<kType, kD>, Tile<kType, kD>::kBytes);
  start(launch, "attention tiles", tiles<kType, kD>, max_tiles * args.n_head, kThreads, Tile<kType, kD>::kBytes, args);
}

template <KvType kType>
void launch_size(Launch& launch, const TileArgs& args, uint32_t max_tiles) {
  switch (args.kv.d_head) {
    case 64:
      return launch_tiles<kType, 64>(launch, args, max_tiles);
    case 80:
      return launch_tiles<kType, 80>(launch, args, max_tiles);
    case 96:
      return launch_tiles<kType, 96>(launch, args, max_tiles);
    case 128:
      return launch_tiles<kType, 128>(launch, args, max_tiles);
    default:
      return launch_tiles<kType, 256>(launch, args, max_tiles);
  }
}

}  // namespace

void attention_tiles(Launch& launch, const Attention& a, const int32_t* tables, const KvPlace& kv) {
  const TileArgs args{a.q, a.y, a.q8, a.work, tables, kv, {a.scale, a.softcap}, a.n_head, a.window};
  if (kv.type_k == KvType::f16) {
    launch_size<KvType::f16>(launch, args, a.max_tiles);
  } else {
    launch_size<KvType::bf16>(launch, args, a.max_tiles);
  }
}

}  // namespace argent::cuda
