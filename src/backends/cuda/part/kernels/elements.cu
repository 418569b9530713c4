// Elementwise functions and rows by index. Four elements a thread, in one load where pointers and lengths allow. add,
// mul and scale are the exact operations, nothing is contracted; functions use the accurate expf and tanhf.
#include "backends/cuda/part/kernels/activation.cuh"
#include "backends/cuda/part/kernels/kernels.h"
#include "backends/cuda/part/kernels/launch.cuh"

namespace argent::cuda {
namespace {

constexpr uint32_t kThreads = 256, kPerThread = 4;

__device__ __forceinline__ float apply(Unary f, float parameter, float x) {
  switch (f) {
    case Unary::copy:
      return x;
    case Unary::scale:
      return __fmul_rn(x, parameter);
    case Unary::silu:
      return silu(x);
    case Unary::gelu:
      return gelu(x);
    case Unary::sigmoid:
      return times_sigmoid(1.0f, x);
    case Unary::softcap:
      return parameter == 0.0f ? x : parameter * tanhf(x / parameter);
  }
  return x;
}

__device__ __forceinline__ float apply(Binary f, float x, float z) {
  switch (f) {
    case Binary::add:
      return __fadd_rn(x, z);
    case Binary::mul:
      return __fmul_rn(x, z);
    case Binary::mul_sigmoid:
      return x * times_sigmoid(1.0f, z);
    case Binary::silu_mul:
      return silu(x) * z;
    case Binary::gelu_mul:
      return gelu(x) * z;
  }
  return x;
}

struct Four {
  float v[kPerThread];
};

// Elements first to first + 3 of those below n. `wide`: the four are there and aligned.
__device__ __forceinline__ Four load(const float* x, uint64_t first, uint64_t n, bool wide) {
  Four four = {};
  if (wide) {
    const float4 all = *reinterpret_cast<const float4*>(x + first);
    return {{all.x, all.y, all.z, all.w}};
  }
#pragma unroll
  for (uint32_t k = 0; k < kPerThread; ++k)
    if (first + k < n) four.v[k] = x[first + k];
  return four;
}
__device__ __forceinline__ void store(float* y, const Four& four, uint64_t first, uint64_t n, bool wide) {
  if (wide) {
    *reinterpret_cast<float4*>(y + first) = make_float4(four.v[0], four.v[1], four.v[2], four.v[3]);
    return;
  }
#pragma unroll
  for (uint32_t k = 0; k < kPerThread; ++k)
    if (first + k < n) y[first + k] = four.v[k];
}
__device__ __forceinline__ uint64_t first_element() {
  return (uint64_t(blockIdx.x) * kThreads + threadIdx.x) * kPerThread;
}

__global__ void __launch_bounds__(kThreads)
    unary_kernel(Unary f, float parameter, const float* x, float* y, uint64_t n, bool aligned) {
  const uint64_t first = first_element();
  const bool wide = aligned && first + kPerThread <= n;
  let_next_start();
  wait_for_previous();
  Four four = load(x, first, n, wide);
#pragma unroll
  for (uint32_t k = 0; k < kPerThread; ++k) four.v[k] = apply(f, parameter, four.v[k]);
  store(y, four, first, n, wide);
}

__global__ void __launch_bounds__(kThreads)
    binary_kernel(Binary f, const float* x, const float* z, float* y, uint64_t n, bool aligned) {
  const uint64_t first = first_element();
  const bool wide = aligned && first + kPerThread <= n;
  let_next_start();
  wait_for_previous();
  Four four = load(x, first, n, wide);
  const Four other = load(z, first, n, wide);
#pragma unroll
  for (uint32_t k = 0; k < kPerThread; ++k) four.v[k] = apply(f, four.v[k], other.v[k]);
  store(y, four, first, n, wide);
}

// v is a weight: read before the wait.
__global__ void __launch_bounds__(kThreads)
    vector_kernel(Binary f, const float* x, const float* v, uint32_t n_v, float* y, uint64_t n, bool aligned) {
  const uint64_t first = first_element();
  const bool wide = aligned && first + kPerThread <= n;
  uint32_t column = first >> 32 ? uint32_t(first % n_v) : uint32_t(first) % n_v;
  Four other;
#pragma unroll
  for (uint32_t k = 0; k < kPerThread; ++k) {
    other.v[k] = v[column];
    column = column + 1 == n_v ? 0 : column + 1;
  }
  let_next_start();
  wait_for_previous();
  Four four = load(x, first, n, wide);
#pragma unroll
  for (uint32_t k = 0; k < kPerThread; ++k) four.v[k] = apply(f, four.v[k], other.v[k]);
  store(y, four, first, n, wide);
}

// A CTA has kThreads words of a row.
template <class Word>
__global__ void __launch_bounds__(kThreads)
    gather_kernel(const Word* x, const int32_t* index, uint32_t width, Word* y) {
  let_next_start();
  wait_for_previous();
  const uint32_t i = blockIdx.y * kThreads + threadIdx.x;
  if (i < width) y[uint64_t(blockIdx.x) * width + i] = x[uint64_t(uint32_t(index[blockIdx.x])) * width + i];
}

bool aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

uint32_t grid_of(uint64_t n) { return uint32_t((n + kThreads * kPerThread - 1) / (kThreads * kPerThread)); }

// Lets nobody start early: kernels take a step's data for something that none of them writes, and read it before they
// wait.
__global__ void __launch_bounds__(kThreads) words_kernel(const uint32_t* from, uint32_t* to, uint32_t n) {
  wait_for_previous();
  const uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  if (i < n) to[i] = from[i];
}

}  // namespace

void unary(Launch& launch, Unary f, float parameter, const float* x, float* y, uint64_t n) {
  start(launch, "unary", unary_kernel, grid_of(n), kThreads, 0, f, parameter, x, y, n, aligned(x) && aligned(y));
}

void binary(Launch& launch, Binary f, const float* x, const float* z, float* y, uint64_t n) {
  start(launch, "binary", binary_kernel, grid_of(n), kThreads, 0, f, x, z, y, n,
        aligned(x) && aligned(z) && aligned(y));
}

void with_vector(Launch& launch, Binary f, const float* x, const float* v, uint32_t n_v, float* y, uint64_t n) {
  start(launch, "with_vector", vector_kernel, grid_of(n), kThreads, 0, f, x, v, n_v, y, n, aligned(x) && aligned(y));
}

void copy_words(Launch& launch, const uint32_t* from, uint32_t* to, uint32_t n) {
  start(launch, "copy", words_kernel, dim3((n + kThreads - 1) / kThreads), dim3(kThreads), 0, from, to, n);
}

void gather(Launch& launch, const uint32_t* x, const int32_t* index, uint32_t n_out, uint32_t width, uint32_t* y) {
  if (width % 4 == 0 && aligned(x) && aligned(y))
    start(launch, "gather", gather_kernel<uint4>, dim3(n_out, (width / 4 + kThreads - 1) / kThreads), kThreads, 0,
          reinterpret_cast<const uint4*>(x), index, width / 4, reinterpret_cast<uint4*>(y));
  else
    start(launch, "gather", gather_kernel<uint32_t>, dim3(n_out, (width + kThreads - 1) / kThreads), kThreads, 0, x,
          index, width, y);
}

}  // namespace argent::cuda
