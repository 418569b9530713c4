// Rotary position embedding, and rows of K and V to the cache: what heads.cu does in one launch, in parts.
#include "backends/cuda/part/kernels/kernels.h"
#include "backends/cuda/part/kernels/kv_write.cuh"
#include "backends/cuda/part/kernels/launch.cuh"

namespace argent::cuda {
namespace {

constexpr uint32_t kThreads = 128, kWarps = kThreads / kLanes;

// A thread a pair. In double, since angles reach 1e6. All but the store is done before the wait: positions are the
// step's own data, which copies write before the step's first kernel starts.
__global__ void __launch_bounds__(kThreads)
    table_kernel(const RopeFrequencies f, const int32_t* positions, float2* table) {
  let_next_start();
  const uint32_t i = blockIdx.y * kThreads + threadIdx.x, n_pairs = f.n_rot / 2;
  double sine = 0, cosine = 0;
  if (i < n_pairs) sincos(double(positions[blockIdx.x]) * f.base[i], &sine, &cosine);
  wait_for_previous();
  if (i >= n_pairs) return;
  table[uint64_t(blockIdx.x) * n_pairs + i] = make_float2(float(cosine * f.magnitude), float(sine * f.magnitude));
}

// A thread a pair, or an element behind the rotated ones, of a head; a CTA kThreads of them, all of one row.
__global__ void __launch_bounds__(kThreads) rope_kernel(const float* x, const float2* table, float* y, uint32_t n_head,
                                                        uint32_t d_head, uint32_t n_rot, bool interleaved) {
  let_next_start();
  wait_for_previous();
  const uint32_t n_pairs = n_rot / 2, of_head = d_head - n_pairs;
  const uint32_t at = blockIdx.y * kThreads + threadIdx.x, head = at / of_head, i = at % of_head;
  if (head >= n_head) return;
  const uint64_t begin = (uint64_t(blockIdx.x) * n_head + head) * d_head;
  if (i >= n_pairs) {
    y[begin + n_pairs + i] = x[begin + n_pairs + i];
    return;
  }
  const uint32_t first = interleaved ? 2 * i : i, second = interleaved ? first + 1 : i + n_pairs;
  const float2 turn = table[uint64_t(blockIdx.x) * n_pairs + i];
  const float x0 = x[begin + first], x1 = x[begin + second];
  y[begin + first] = turned_first(x0, x1, turn);
  y[begin + second] = turned_second(x0, x1, turn);
}

// A warp a head of K or V of a row.
__global__ void __launch_bounds__(kThreads)
    store_kernel(const float* k, const float* v, const StepRows step, const KvPlace kv) {
  const uint32_t lane = threadIdx.x % kLanes, at = blockIdx.y * kWarps + threadIdx.x / kLanes, row = blockIdx.x;
  let_next_start();
  const KvTarget target = kv_target(step, kv, row);
  wait_for_previous();
  if (at >= 2 * kv.n_head_kv) return;
  const bool is_k = at < kv.n_head_kv;
  const uint32_t head = is_k ? at : at - kv.n_head_kv, d = is_k ? kv.d_head : kv.d_value;
  const float* x = (is_k ? k : v) + (uint64_t(row) * kv.n_head_kv + head) * d;
  uint8_t* block = (is_k ? kv.k : kv.v) + target.block;
  for (uint32_t begin = 0; begin < d; begin += kLanes) {
    const uint32_t i = begin + lane;
    kv_write(is_k ? kv.type_k : kv.type_v, block, kv, head, target.within, d, i, i < d ? x[i] : 0.0f);
  }
}

uint32_t groups(uint32_t n, uint32_t of) { return (n + of - 1) / of; }

}  // namespace

void rope_table(Launch& launch, const RopeFrequencies& f, const int32_t* positions, uint32_t n_rows, float* table) {
  start(launch, "rope_table", table_kernel, dim3(n_rows, groups(f.n_rot / 2, kThreads)), kThreads, 0, f, positions,
        reinterpret_cast<float2*>(table));
}

void rope(Launch& launch, const float* x, const float* table, float* y, uint32_t n_rows, uint32_t n_head,
          uint32_t d_head, uint32_t n_rot, bool interleaved) {
  start(launch, "rope", rope_kernel, dim3(n_rows, groups(n_head * (d_head - n_rot / 2), kThreads)), kThreads, 0, x,
        reinterpret_cast<const float2*>(table), y, n_head, d_head, n_rot, interleaved);
}

void kv_store(Launch& launch, const float* k, const float* v, const StepRows& step, const KvPlace& kv,
              uint32_t n_rows) {
  start(launch, "kv_store", store_kernel, dim3(n_rows, groups(2 * kv.n_head_kv, kWarps)), kThreads, 0, k, v, step, kv);
}

}  // namespace argent::cuda
