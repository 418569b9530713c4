// Attention: which kernels a call takes, and the sums over splits.
#include "backends/cuda/part/kernels/attention.cuh"

#include <algorithm>

namespace argent::cuda {
namespace {

constexpr uint32_t kWarps = 8, kColumns = 128;  // columns of a pass: a float4 a lane
constexpr uint32_t kAhead = 4;

struct CombineArgs {
  const uint32_t* counts;
  const AttentionRow* rows;
  const float* partial;
  float* y;
  Q8 q8;
  uint32_t n_head, d_value;
};

// A CTA has a head of a row. Warp w adds up splits w, w + 8, ..., the first kAhead of them loaded before their weights
// are known; then the warps' sums are added in order. Lanes hold maximum and sum of the first 32 splits.
__global__ void __launch_bounds__(32 * kWarps) combine_splits(const CombineArgs a) {
  alignas(16) __shared__ float sums[kWarps][kColumns];
  const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x / 32, head = blockIdx.x, stride = a.d_value + 4;
  const uint64_t next = uint64_t(a.n_head) * stride;
  let_next_start();
  AttentionRow row = a.rows[blockIdx.y];  // there is room for as many
  const uint32_t n_rows = a.counts[1];
  wait_for_previous();
  for (uint32_t r = blockIdx.y; r < n_rows; r += gridDim.y) {
    if (r != blockIdx.y) row = a.rows[r];
    const float* const first = a.partial + (uint64_t(row.first_slot) * a.n_head + head) * stride;
    const auto values = [&](uint32_t s, uint32_t d) {
      const float* const from = first + s * next + d;
      if (s >= row.n_splits || d >= a.d_value) return make_float4(0, 0, 0, 0);
      if (a.d_value % 4 == 0) return *reinterpret_cast<const float4*>(from);
      const uint32_t n = a.d_value - d;
      return make_float4(from[0], n > 1 ? from[1] : 0, n > 2 ? from[2] : 0, n > 3 ? from[3] : 0);
    };
    // The vectors of partial results are aligned to 8 bytes where d_value is even.
    const auto stat_of = [&](uint32_t s) {
      const float* const from = first + s * next + a.d_value;
      return a.d_value % 2 == 0 ? *reinterpret_cast<const float2*>(from) : make_float2(from[0], from[1]);
    };
    const float2 stat = lane < row.n_splits ? stat_of(lane) : make_float2(-INFINITY, 0);
    float maximum = 0, inverse = 0, weight = 0;
    for (uint32_t column = 0; column < a.d_value; column += kColumns) {
      const uint32_t d = column + 4 * lane;
      float4 ahead[kAhead];
#pragma unroll
      for (uint32_t i = 0; i < kAhead; ++i) ahead[i] = values(warp + i * kWarps, d);
      if (column == 0) {
        maximum = stat.x;
        for (uint32_t s = lane + 32; s < row.n_splits; s += 32) maximum = fmaxf(maximum, stat_of(s).x);
#pragma unroll
        for (uint32_t step = 16; step; step /= 2) maximum = fmaxf(maximum, __shfl_xor_sync(~0u, maximum, step));
        weight = exp2f(stat.x - maximum);
        float sum = weight * stat.y;
        for (uint32_t s = lane + 32; s < row.n_splits; s += 32) {
          const float2 more = stat_of(s);
          sum += exp2f(more.x - maximum) * more.y;
        }
#pragma unroll
        for (uint32_t step = 16; step; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
        inverse = 1.0f / sum;
      }
      float4 mine = make_float4(0, 0, 0, 0);
      const auto add = [&](float w, const float4& x) {
        mine.x = fmaf(w, x.x, mine.x), mine.y = fmaf(w, x.y, mine.y);
        mine.z = fmaf(w, x.z, mine.z), mine.w = fmaf(w, x.w, mine.w);
      };
      static_assert(kAhead * kWarps == 32);
#pragma unroll
      for (uint32_t i = 0; i < kAhead; ++i) {
        const float w = __shfl_sync(~0u, weight, warp + i * kWarps);
        if (warp + i * kWarps < row.n_splits) add(w, ahead[i]);
      }
#pragma unroll 4
      for (uint32_t s = warp + kAhead * kWarps; s < row.n_splits; s += kWarps)
        add(exp2f(stat_of(s).x - maximum), values(s, d));
      *reinterpret_cast<float4*>(&sums[warp][4 * lane]) = mine;
      __syncthreads();
      if (warp == 0) {
        float4 y = make_float4(0, 0, 0, 0);
#pragma unroll
        for (uint32_t w = 0; w < kWarps; ++w) {
          const float4 x = *reinterpret_cast<const float4*>(&sums[w][4 * lane]);
          y.x += x.x, y.y += x.y, y.z += x.z, y.w += x.w;
        }
        y.x *= inverse, y.y *= inverse, y.z *= inverse, y.w *= inverse;
        const uint64_t at = (uint64_t(row.q_row) * a.n_head + head) * a.d_value + d;
        if (a.y && a.d_value % 4 == 0) {
          if (d < a.d_value) *reinterpret_cast<float4*>(a.y + at) = y;
        } else if (a.y) {
          const float of[] = {y.x, y.y, y.z, y.w};
#pragma unroll
          for (uint32_t e = 0; e < 4; ++e)
            if (d + e < a.d_value) a.y[at + e] = of[e];
        }
        if (a.q8.q) store_quantized(a.q8, row.q_row, (head * a.d_value + d) / 32, y, d < a.d_value);
      }
      __syncthreads();
    }
  }
}

}  // namespace

uint32_t attention_processors() {
  int device = 0, n = 1;
  if (cudaGetDevice(&device) == cudaSuccess) cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device);
  return uint32_t(std::max(n, 1));
}

bool attention_has_clusters() {
  int device = 0, major = 0, shared = 0;
  if (cudaGetDevice(&device) == cudaSuccess) {
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  }
  return major >= 9 && shared >= 227 << 10;
}

void attention(Launch& launch, const Attention& a, const StepRows& step, const KvPlace& kv) {
  const bool fast = attention_is_fast(kv.type_k, kv.type_v, kv.d_head, kv.d_value);
  if (a.max_tiles) attention_tiles(launch, a, step.tables, kv);
  if (a.max_items) fast ? attention_decode(launch, a, step.tables, kv) : attention_any(launch, a, step.tables, kv);
  if (a.max_rows)
    start(launch, "attention combine", combine_splits, dim3(a.n_head, std::min(a.max_rows, 1024u)), 32 * kWarps, 0,
          CombineArgs{a.work.counts, a.work.rows, a.partial, a.y, a.q8, a.n_head, kv.d_value});
}

}  // namespace argent::cuda
