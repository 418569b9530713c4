// From the projections to the cache in one launch: norms of the heads of q and k, rope of both, k and v stored. A warp
// a head of a row, which it holds in registers: element 32 k + lane is x[k] of a lane. The partner of a rotated element
// is mostly another lane's, so heads go through shared memory once, between the norm and the rope.
#include "backends/cuda/part/kernels/kernels.h"
#include "backends/cuda/part/kernels/kv_write.cuh"
#include "backends/cuda/part/kernels/launch.cuh"

namespace argent::cuda {
namespace {

constexpr uint32_t kWarps = 4;

// Heads of up to 32 kPer elements. Shared memory: kWarps * 32 kPer floats.
template <uint32_t kPer>
__global__ void __launch_bounds__(kWarps* kLanes) heads_kernel(const Heads h, const StepRows step, const KvPlace kv) {
  __shared__ float shared[kWarps][kPer * kLanes];
  const uint32_t lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes, row = blockIdx.x;
  const uint32_t at = blockIdx.y * kWarps + warp, n_kv = kv.n_head_kv;
  const bool is_q = at < h.n_head, is_k = !is_q && at < h.n_head + n_kv, is_v = !is_q && !is_k;
  const uint32_t head = is_q ? at : is_k ? at - h.n_head : at - h.n_head - n_kv;
  const uint32_t d = is_v ? kv.d_value : kv.d_head;
  const float* norm = is_q ? h.norm_q : is_k ? h.norm_k : nullptr;
  const bool rotates = h.table != nullptr && !is_v;

  // What no kernel writes: weights, and the step's data, which copies have written.
  let_next_start();
  float w[kPer], x[kPer];
#pragma unroll
  for (uint32_t k = 0; k < kPer; ++k) {
    const uint32_t i = k * kLanes + lane;
    w[k] = norm != nullptr && i < d ? norm[i] : 1.0f;
  }
  const KvTarget target = kv_target(step, kv, row);
  wait_for_previous();
  if (is_v && head >= n_kv) return;

  float* from = (is_q ? h.q : is_k ? h.k : h.v) + (uint64_t(row) * (is_q ? h.n_head : n_kv) + head) * d;
#pragma unroll
  for (uint32_t k = 0; k < kPer; ++k) {
    const uint32_t i = k * kLanes + lane;
    x[k] = i < d ? from[i] : 0.0f;
  }
  const uint32_t n_pairs = h.n_rot / 2;
  float2 turn[kPer];
#pragma unroll
  for (uint32_t k = 0; k < kPer; ++k) {  // on its way during the norm
    const uint32_t i = k * kLanes + lane, pair = h.interleaved ? i / 2 : i < n_pairs ? i : i - n_pairs;
    if (rotates && i < h.n_rot) turn[k] = reinterpret_cast<const float2*>(h.table)[uint64_t(row) * n_pairs + pair];
  }
  if (norm != nullptr) {
    const float inverse = inverse_root(warp_sum(sum_of_squares(x)), d, h.eps);
#pragma unroll
    for (uint32_t k = 0; k < kPer; ++k) x[k] = __fmul_rn(__fmul_rn(x[k], inverse), w[k]);
  }
  if (rotates) {
#pragma unroll
    for (uint32_t k = 0; k < kPer; ++k) shared[warp][k * kLanes + lane] = x[k];
    __syncwarp();
#pragma unroll
    for (uint32_t k = 0; k < kPer; ++k) {
      const uint32_t i = k * kLanes + lane;
      if (i >= h.n_rot) continue;
      const bool is_first = h.interleaved ? i % 2 == 0 : i < n_pairs;
      const uint32_t apart = h.interleaved ? 1 : n_pairs;
      const float other = shared[warp][is_first ? i + apart : i - apart];
      x[k] = is_first ? turned_first(x[k], other, turn[k]) : turned_second(other, x[k], turn[k]);
    }
  }
  if (is_q) {
    if (norm == nullptr && !rotates) return;
#pragma unroll
    for (uint32_t k = 0; k < kPer; ++k) {
      const uint32_t i = k * kLanes + lane;
      if (i < d) from[i] = x[k];
    }
    return;
  }
  uint8_t* block = (is_k ? kv.k : kv.v) + target.block;
#pragma unroll
  for (uint32_t k = 0; k < kPer; ++k)
    if (k * kLanes < d)
      kv_write(is_k ? kv.type_k : kv.type_v, block, kv, head, target.within, d, k * kLanes + lane, x[k]);
}

}  // namespace

void heads(Launch& launch, const Heads& h, const StepRows& step, const KvPlace& kv) {
  const uint32_t most = kv.d_head > kv.d_value ? kv.d_head : kv.d_value;
  if (most > 512) return launch.note(cudaErrorInvalidValue, "heads");
  const dim3 grid(h.n_rows, (h.n_head + 2 * kv.n_head_kv + kWarps - 1) / kWarps);
  start(launch, "heads",
        most <= 128   ? heads_kernel<4>
        : most <= 256 ? heads_kernel<8>
                      : heads_kernel<16>,
        grid, kWarps * kLanes, 0, h, step, kv);
}

}  // namespace argent::cuda
