// Attention of items for any type and size, in f32: a CTA has an item and up to kHeads query heads of a KV head. It
// goes through the keys 256 at a time: a thread has two keys for the scores; then lanes have four columns of V each and
// warps share the keys. q8_0 and the float types where rows are a multiple of 8 elements take vector loads.
#include <cuda_fp16.h>

#include <algorithm>

#include "backends/cuda/part/kernels/attention.cuh"

namespace argent::cuda {
namespace {

constexpr uint32_t kThreads = 128, kWarps = kThreads / 32, kColumns = 128;

struct AnyArgs {
  const float* q;
  float* y;
  Q8 q8;
  float* partial;
  AttentionWork work;
  const int32_t* tables;
  KvPlace kv;
  Scores scores;
  uint32_t n_head;
  bool rounded_queries;
};

// A half of the cache as one KV head sees it: rows of d elements.
struct Side {
  const uint8_t* base;  // of the head in block 0
  const uint8_t* scales;
  uint64_t block_bytes;
  uint32_t d;

  __device__ Side(const KvPlace& kv, bool v, uint32_t head)
      : base(v ? kv.v : kv.k), scales(nullptr), block_bytes(kv.block_bytes), d(v ? kv.d_value : kv.d_head) {
    const KvType type = v ? kv.type_v : kv.type_k;
    const uint32_t size = type == KvType::f32 ? 4 : type == KvType::q8_0 ? 1 : 2;
    scales = base + uint64_t(kv.n_head_kv) * kBlockKeys * d + uint64_t(head) * kBlockKeys * (d / kKvGroup) * 2;
    base += uint64_t(head) * kBlockKeys * d * size;
  }
};

__device__ __forceinline__ float half_bits(uint32_t bits) { return __half2float(__ushort_as_half(uint16_t(bits))); }

// N (4 or 8) elements from d on of a row of a block; d is a multiple of N, rows of 8.
template <KvType kType, uint32_t N>
__device__ __forceinline__ void load(const Side& side, uint32_t block, uint32_t row, uint32_t d, float (&x)[N]) {
  const uint64_t at = uint64_t(row) * side.d + d, skip = block * side.block_bytes;
  if constexpr (kType == KvType::f32) {
    const float4* from = reinterpret_cast<const float4*>(side.base + skip + at * 4);
#pragma unroll
    for (uint32_t i = 0; i < N / 4; ++i) {
      const float4 v = from[i];
      x[4 * i] = v.x, x[4 * i + 1] = v.y, x[4 * i + 2] = v.z, x[4 * i + 3] = v.w;
    }
  } else if constexpr (kType == KvType::q8_0) {
    uint32_t words[N / 4];
    if constexpr (N == 8) {
      const uint2 w = *reinterpret_cast<const uint2*>(side.base + skip + at);
      words[0] = w.x, words[N / 4 - 1] = w.y;
    } else {
      words[0] = *reinterpret_cast<const uint32_t*>(side.base + skip + at);
    }
    const float scale = half_bits(
        *reinterpret_cast<const uint16_t*>(side.scales + skip + 2 * (row * (side.d / kKvGroup) + d / kKvGroup)));
#pragma unroll
    for (uint32_t i = 0; i < N; ++i) x[i] = scale * float(int8_t(words[i / 4] >> (8 * (i % 4))));
  } else {
    uint32_t words[N / 2];
    const uint8_t* from = side.base + skip + at * 2;
    if constexpr (N == 8) {
      const uint4 w = *reinterpret_cast<const uint4*>(from);
      words[0] = w.x, words[1] = w.y, words[N / 2 - 2] = w.z, words[N / 2 - 1] = w.w;
    } else {
      const uint2 w = *reinterpret_cast<const uint2*>(from);
      words[0] = w.x, words[1] = w.y;
    }
#pragma unroll
    for (uint32_t i = 0; i < N; ++i) {
      const uint32_t bits = i % 2 ? words[i / 2] >> 16 : words[i / 2] & 0xffff;
      x[i] = kType == KvType::f16 ? half_bits(bits) : __uint_as_float(bits << 16);
    }
  }
}

// The same for rows of any length: elements past the end are 0.
template <uint32_t N>
__device__ void load_any(KvType type, const Side& side, uint32_t block, uint32_t row, uint32_t d, float (&x)[N]) {
#pragma unroll
  for (uint32_t i = 0; i < N; ++i) {
    x[i] = 0;
    if (d + i >= side.d) continue;
    const uint64_t at = uint64_t(row) * side.d + d + i, skip = block * side.block_bytes;
    if (type == KvType::f32) {
      x[i] = *reinterpret_cast<const float*>(side.base + skip + at * 4);
    } else {
      const uint32_t bits = *reinterpret_cast<const uint16_t*>(side.base + skip + at * 2);
      x[i] = type == KvType::f16 ? half_bits(bits) : __uint_as_float(bits << 16);
    }
  }
}

// load<> for each type, and load_any: calls f with what loads N elements.
template <uint32_t N, class F>
__device__ __forceinline__ void with_loader(KvType type, uint32_t d, F f) {
  using Values = float[N];
  if (d % 8) {
    f([type](const Side& s, uint32_t block, uint32_t row, uint32_t at, Values& x) {
      load_any<N>(type, s, block, row, at, x);
    });
  } else if (type == KvType::f32) {
    f([](const Side& s, uint32_t block, uint32_t row, uint32_t at, Values& x) {
      load<KvType::f32, N>(s, block, row, at, x);
    });
  } else if (type == KvType::q8_0) {
    f([](const Side& s, uint32_t block, uint32_t row, uint32_t at, Values& x) {
      load<KvType::q8_0, N>(s, block, row, at, x);
    });
  } else if (type == KvType::f16) {
    f([](const Side& s, uint32_t block, uint32_t row, uint32_t at, Values& x) {
      load<KvType::f16, N>(s, block, row, at, x);
    });
  } else {
    f([](const Side& s, uint32_t block, uint32_t row, uint32_t at, Values& x) {
      load<KvType::bf16, N>(s, block, row, at, x);
    });
  }
}

// Shared memory, in floats: queries [kHeads][d_head to 8], results [kHeads][d_value to 128], weights [kHeads][256],
// sums of warps [kWarps][kHeads][128], and of each head maximum, sum, what older results are multiplied with.
__host__ __device__ constexpr uint32_t padded(uint32_t n, uint32_t to) { return (n + to - 1) / to * to; }
constexpr uint32_t shared_floats(uint32_t heads, uint32_t d_head, uint32_t d_value) {
  return heads * (padded(d_head, 8) + padded(d_value, kColumns) + kSplitKeys + kWarps * kColumns + 3);
}

// A group of 32 of a query as reference/attention.cc has it, lane = element.
__device__ __forceinline__ float to_int16_and_back(float x) {
  float amax = fabsf(x);
  const bool finite = __all_sync(~0u, isfinite(x));
  for (uint32_t step = 16; step; step /= 2) amax = fmaxf(amax, __shfl_xor_sync(~0u, amax, step));
  if (!finite) return __int_as_float(0x7fffffff);
  if (amax < 0x1p-100f) return 0.0f;
  return __fdiv_rn(amax, 32767.0f) * rintf(__fmul_rn(x, __fdiv_rn(32767.0f, amax)));
}

template <uint32_t kHeads>
__global__ void __launch_bounds__(kThreads) any_items(const AnyArgs a) {
  extern __shared__ float4 shared4[];
  const uint32_t d_head = a.kv.d_head, d_value = a.kv.d_value;
  const uint32_t d_query = padded(d_head, 8), d_result = padded(d_value, kColumns);
  float* const query = reinterpret_cast<float*>(shared4);
  float* const result = query + kHeads * d_query;
  float* const weight = result + kHeads * d_result;
  float* const sums = weight + kHeads * kSplitKeys;
  float *const maximum = sums + kWarps * kHeads * kColumns, *const total = maximum + kHeads;
  float* const older = total + kHeads;

  const uint32_t thread = threadIdx.x, lane = thread & 31, warp = thread / 32;
  const uint32_t group = a.n_head / a.kv.n_head_kv, parts = (group + kHeads - 1) / kHeads;
  const uint32_t n_work = a.work.counts[0] * a.kv.n_head_kv * parts;
  let_next_start();
  if (warp == 0 && blockIdx.x < n_work) {
    const auto head_bytes = [](KvType type, uint32_t d) {
      return kBlockKeys * d * (type == KvType::f32 ? 4 : type == KvType::q8_0 ? 1 : 2);
    };
    const AttentionItem item = a.work.items[blockIdx.x / (a.kv.n_head_kv * parts)];
    prefetch_split(item, split_entry(item, a.tables), a.kv, blockIdx.x / parts % a.kv.n_head_kv,
                   head_bytes(a.kv.type_k, d_head), head_bytes(a.kv.type_v, d_value));
  }
  wait_for_previous();
  for (uint32_t w = blockIdx.x; w < n_work; w += gridDim.x) {
    const AttentionItem item = a.work.items[w / (a.kv.n_head_kv * parts)];
    const uint32_t kv_head = w / parts % a.kv.n_head_kv, part = w % parts;
    const uint32_t n_heads = min(group - part * kHeads, kHeads), first_head = kv_head * group + part * kHeads;
    const int32_t* const table = a.tables + item.table;
    const Side k(a.kv, false, kv_head), v(a.kv, true, kv_head);

    // Queries; absent heads are 0. Whole warps for a group of 32, for its rounding.
    const float* const q = a.q + (uint64_t(item.q_row) * a.n_head + first_head) * d_head;
    for (uint32_t h = 0; h < kHeads; ++h)
      for (uint32_t d = thread; d < padded(d_query, 32); d += kThreads) {
        float x = h < n_heads && d < d_head ? q[h * d_head + d] : 0.0f;
        if (a.rounded_queries) x = to_int16_and_back(x);
        if (d < d_query) query[h * d_query + d] = x;
      }
    for (uint32_t i = thread; i < kHeads * d_result; i += kThreads) result[i] = 0;
    if (thread < kHeads) maximum[thread] = -INFINITY, total[thread] = 0;
    __syncthreads();

    for (uint32_t base = item.first / kSplitKeys * kSplitKeys; base < item.end; base += kSplitKeys) {
      const auto visible = [&](uint32_t position) { return position >= item.first && position < item.end; };

      float dots[2][kHeads] = {};
      const uint32_t row = lane;  // of the blocks of keys base + thread and base + thread + 128
      bool sees[2];
      uint32_t block[2];
      for (uint32_t i = 0; i < 2; ++i) {
        const uint32_t position = base + thread + i * kThreads;
        sees[i] = visible(position);
        block[i] = sees[i] ? uint32_t(table[position / kBlockKeys]) : 0;
      }
      if (sees[0] || sees[1])
        with_loader<8>(a.kv.type_k, d_head, [&](auto load_keys) {
#pragma unroll 2
          for (uint32_t d = 0; d < d_query; d += 8) {
            float x[2][8] = {};
            if (sees[0]) load_keys(k, block[0], row, d, x[0]);
            if (sees[1]) load_keys(k, block[1], row, d, x[1]);
#pragma unroll
            for (uint32_t h = 0; h < kHeads; ++h) {
              const float4* from = reinterpret_cast<const float4*>(query + h * d_query + d);
              const float4 q0 = from[0], q1 = from[1];
              const float qs[8] = {q0.x, q0.y, q0.z, q0.w, q1.x, q1.y, q1.z, q1.w};
#pragma unroll
              for (uint32_t i = 0; i < 8; ++i)
                dots[0][h] = fmaf(qs[i], x[0][i], dots[0][h]), dots[1][h] = fmaf(qs[i], x[1][i], dots[1][h]);
            }
          }
        });
#pragma unroll
      for (uint32_t h = 0; h < kHeads; ++h)
#pragma unroll
        for (uint32_t i = 0; i < 2; ++i)
          weight[h * kSplitKeys + thread + i * kThreads] =
              sees[i] ? a.scores.after(dots[i][h] * a.scores.before()) : -INFINITY;
      __syncthreads();

      for (uint32_t h = warp; h < n_heads; h += kWarps) {
        float* const mine = weight + h * kSplitKeys;
        const float old = maximum[h];
        float most = old, sum = 0;
        for (uint32_t i = lane; i < kSplitKeys; i += 32) most = fmaxf(most, mine[i]);
        for (uint32_t step = 16; step; step /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
        for (uint32_t i = lane; i < kSplitKeys; i += 32) {
          const float p = visible(base + i) ? exp2f(mine[i] - most) : 0.0f;
          mine[i] = p, sum += p;
        }
        for (uint32_t step = 16; step; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
        __syncwarp();  // all have read the maximum
        if (lane == 0) {
          const float keep = old == -INFINITY ? 0.0f : exp2f(old - most);
          older[h] = keep, maximum[h] = most, total[h] = total[h] * keep + sum;
        }
      }
      __syncthreads();

      for (uint32_t column = 0; column < d_value; column += kColumns) {
        const uint32_t d = column + 4 * lane;
        float acc[kHeads][4] = {};
        if (d < d_value)
          with_loader<4>(a.kv.type_v, d_value, [&](auto load_values) {
            for (uint32_t b = 0; b < 2; ++b) {
              const uint32_t begin = warp * 64 + b * kBlockKeys, position = base + begin;
              if (position + kBlockKeys <= item.first || position >= item.end) continue;
              const uint32_t block = uint32_t(table[position / kBlockKeys]);
#pragma unroll 2
              for (uint32_t i = 0; i < kBlockKeys; i += 4) {
                float x[4][4] = {};
#pragma unroll
                for (uint32_t j = 0; j < 4; ++j)
                  if (visible(position + i + j)) load_values(v, block, i + j, d, x[j]);
#pragma unroll
                for (uint32_t h = 0; h < kHeads; ++h) {
                  const float4 p = *reinterpret_cast<const float4*>(weight + h * kSplitKeys + begin + i);
                  const float ps[4] = {p.x, p.y, p.z, p.w};
#pragma unroll
                  for (uint32_t j = 0; j < 4; ++j)
#pragma unroll
                    for (uint32_t c = 0; c < 4; ++c) acc[h][c] = fmaf(ps[j], x[j][c], acc[h][c]);
                }
              }
            }
          });
#pragma unroll
        for (uint32_t h = 0; h < kHeads; ++h)
          *reinterpret_cast<float4*>(sums + (warp * kHeads + h) * kColumns + 4 * lane) =
              make_float4(acc[h][0], acc[h][1], acc[h][2], acc[h][3]);
        __syncthreads();
        for (uint32_t h = 0; h < n_heads; ++h) {
          float sum = 0;
          for (uint32_t w2 = 0; w2 < kWarps; ++w2) sum += sums[(w2 * kHeads + h) * kColumns + thread];
          float& to = result[h * d_result + column + thread];
          to = fmaf(to, older[h], sum);
        }
        __syncthreads();
      }
    }

    for (uint32_t h = 0; h < n_heads; ++h) {
      const uint32_t head = first_head + h;
      float* const partial = a.partial + (uint64_t(item.slot) * a.n_head + head) * (d_value + 4);
      const float inverse = 1.0f / total[h];
      // d / 32 * 32: whole warps, for the int8 groups.
      for (uint32_t d = thread; d / 32 * 32 < d_value; d += kThreads) {
        const float x = result[h * d_result + d];
        if (item.slot != kWholeRow) {
          if (d < d_value) partial[d] = x;
          continue;
        }
        if (a.y && d < d_value) a.y[(uint64_t(item.q_row) * a.n_head + head) * d_value + d] = x * inverse;
        if (a.q8.q) store_quantized(a.q8, item.q_row, (head * d_value + d) / 32, x * inverse);
      }
      if (item.slot != kWholeRow && thread == 0) partial[d_value] = maximum[h], partial[d_value + 1] = total[h];
    }
    __syncthreads();  // before the next queries
  }
}

template <uint32_t kHeads>
void launch_any(Launch& launch, const AnyArgs& args, uint32_t max_items) {
  const uint32_t parts = (args.n_head / args.kv.n_head_kv + kHeads - 1) / kHeads;
  const uint64_t work = uint64_t(max_items) * args.kv.n_head_kv * parts;
  const uint32_t shared = 4 * shared_floats(kHeads, args.kv.d_head, args.kv.d_value);
  if (shared > 48 * 1024) allow_shared(launch, any_items<kHeads>, shared);
  start(launch, "attention any", any_items<kHeads>, uint32_t(std::min<uint64_t>(work, 4 * attention_processors())),
        kThreads, shared, args);
}

}  // namespace

void attention_any(Launch& launch, const Attention& a, const int32_t* tables, const KvPlace& kv) {
  const AnyArgs args{a.q,      a.y,
                     a.q8,     a.partial,
                     a.work,   tables,
                     kv,       {a.scale, a.softcap},
                     a.n_head, a.rounded_queries && kv.type_k == KvType::q8_0};
  const uint32_t group = a.n_head / kv.n_head_kv;
  if (group == 1) {
    launch_any<1>(launch, args, a.max_items);
  } else if (group <= 4) {
    launch_any<4>(launch, args, a.max_items);
  } else {
    launch_any<8>(launch, args, a.max_items);
  }
}

}  // namespace argent::cuda
