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
// are known; then the warps' sums are added in order.
__global__ void __launch_bounds__(32 * kWarps) combine_splits(const CombineArgs a) {
  alignas(16) __shared__ float sums[kWarps][kColumns];
  const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x / 32, head = blockIdx.x, stride = a.d_value + 4;
  const uint32_t n_rows = a.counts[1];
  let_next_start();
  AttentionRow row = a.rows[blockIdx.y];  // there is room for as many
  wait_for_previous();
  for (uint32_t r = blockIdx.y; r < n_rows; r += gridDim.y) {
    if (r != blockIdx.y) row = a.rows[r];
    const float* const first = a.partial + (uint64_t(row.first_slot) * a.n_head + head) * stride;
    const uint64_t next = uint64_t(a.n_head) * stride;
    const auto values = [&](uint32_t s, uint32_t d) {
      const float* const from = first + s * next + d;
      if (s >= row.n_splits || d >= a.d_value) return make_float4(0, 0, 0, 0);
      if (a.d_value % 4 == 0) return *reinterpret_cast<const float4*>(from);
      const uint32_t n = a.d_value - d;
      return make_float4(from[0], n > 1 ? from[1] : 0, n > 2 ? from[2] : 0, n > 3 ? from[3] : 0);
    };
    float maximum = -INFINITY, sum = 0, inverse = 0;
    for (uint32_t column = 0; column < a.d_value; column += kColumns) {
      const uint32_t d = column + 4 * lane;
      float4 ahead[kAhead];
#pragma unroll
      for (uint32_t i = 0; i < kAhead; ++i) ahead[i] = values(warp + i * kWarps, d);
      if (column == 0) {
        for (uint32_t s = lane; s < row.n_splits; s += 32) maximum = fmaxf(maximum, first[s * next + a.d_value]);
        for (uint32_t step = 16; step; step /= 2) maximum = fmaxf(maximum, __shfl_xor_sync(~0u, maximum, step));
        for (uint32_t s = lane; s < row.n_splits; s += 32)
          sum += exp2f(first[s * next + a.d_value] - maximum) * first[s * next + a.d_value + 1];
        for (uint32_t step = 16; step; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
        inverse = 1.0f / sum;
      }
      float4 mine = make_float4(0, 0, 0, 0);
      const auto add = [&](uint32_t s, const float4& x) {
        const float weight = exp2f(first[s * next + a.d_value] - maximum);
        mine.x = fmaf(weight, x.x, mine.x), mine.y = fmaf(weight, x.y, mine.y);
        mine.z = fmaf(weight, x.z, mine.z), mine.w = fmaf(weight, x.w, mine.w);
      };
#pragma unroll
      for (uint32_t i = 0; i < kAhead; ++i)
        if (warp + i * kWarps < row.n_splits) add(warp + i * kWarps, ahead[i]);
#pragma unroll 4
      for (uint32_t s = warp + kAhead * kWarps; s < row.n_splits; s += kWarps) add(s, values(s, d));
      *reinterpret_cast<float4*>(&sums[warp][4 * lane]) = mine;
      __syncthreads();
      // Warps 0 to 3: a column a thread, so that a warp has a group of the int8 row.
      const uint32_t c = column + threadIdx.x;
      if (threadIdx.x < kColumns && c / 32 * 32 < a.d_value) {
        float total = 0;
        for (uint32_t w = 0; w < kWarps; ++w) total += sums[w][threadIdx.x];
        total *= inverse;
        const uint64_t at = uint64_t(row.q_row) * a.n_head * a.d_value + head * a.d_value + c;
        if (a.y && c < a.d_value) a.y[at] = total;
        if (a.q8.q) store_quantized(a.q8, row.q_row, (head * a.d_value + c) / 32, total);
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

void attention(Launch& launch, const Attention& a, const StepRows& step, const KvPlace& kv) {
  const bool fast = attention_is_fast(kv.type_k, kv.type_v, kv.d_head, kv.d_value);
  if (a.max_tiles) attention_tiles(launch, a, step.tables, kv);
  if (a.max_items) fast ? attention_decode(launch, a, step.tables, kv) : attention_any(launch, a, step.tables, kv);
  if (a.max_rows)
    start(launch, "attention combine", combine_splits, dim3(a.n_head, std::min(a.max_rows, 1024u)), 32 * kWarps, 0,
          CombineArgs{a.work.counts, a.work.rows, a.partial, a.y, a.q8, a.n_head, kv.d_value});
}

}  // namespace argent::cuda
