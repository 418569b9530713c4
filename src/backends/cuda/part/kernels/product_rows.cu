// Activations to the f16 rows of product_rows.cuh.
#include "backends/cuda/part/kernels/product_rows.cuh"

#include <cuda_fp16.h>

#include <algorithm>

#include "backends/cuda/part/kernels/launch.cuh"
#include "backends/cuda/part/kernels/warp.cuh"
#include "backends/cuda/part/kernels/wgmma.cuh"

namespace argent::cuda {
namespace {

constexpr uint32_t kThreads = 512, kPiece = 16;  // columns of a thread at a time

// A CTA a row.
__global__ void __launch_bounds__(kThreads) wide_rows_kernel(const float* x, uint32_t n_in, WideRows to) {
  __shared__ uint32_t most_of[kThreads / 32];
  wait_for_previous();
  let_next_start();
  const uint32_t row = blockIdx.x, n_pieces = (n_in + kWideChunk - 1) / kWideChunk * (kWideChunk / kPiece);
  const float* from = x + uint64_t(row) * n_in;
  if (row == 0)
    for (uint32_t i = threadIdx.x; i < kMostShares * kShareFlags; i += kThreads) to.flags[i] = 0;
  // Magnitudes are ordered as their bits are; what is not finite is above all others. n_in is a multiple of 32.
  uint32_t most = 0;
  for (uint32_t i = threadIdx.x; i < n_in / 4; i += kThreads) {
    const uint4 v = reinterpret_cast<const uint4*>(from)[i];
    most = max(max(most, max(v.x & 0x7fffffff, v.y & 0x7fffffff)), max(v.z & 0x7fffffff, v.w & 0x7fffffff));
  }
  most = __reduce_max_sync(kAllLanes, most);
  if (threadIdx.x % 32 == 0) most_of[threadIdx.x / 32] = most;
  __syncthreads();
  most = __reduce_max_sync(kAllLanes, most_of[threadIdx.x % (kThreads / 32)]);
  const bool finite = most < 0x7f800000;
  // 2^(14 - exponent of the largest), as far as it and its inverse are normal floats.
  const int up = min(max(14 + 127 - int(most >> 23), -126), 126);
  const float scale = __int_as_float((127 + up) << 23);
  if (threadIdx.x == 0) to.inverse[row] = finite ? __int_as_float((127 - up) << 23) : __int_as_float(0x7fffffff);
  for (uint32_t i = threadIdx.x; i < n_pieces; i += kThreads) {
    uint32_t even[4] = {}, odd[4] = {};
    if (finite && i * kPiece < n_in) {
#pragma unroll
      for (uint32_t k = 0; k < 4; ++k) {
        const float4 v = reinterpret_cast<const float4*>(from + i * kPiece)[k];
        const __half2 e = __floats2half2_rn(v.x * scale, v.z * scale), o = __floats2half2_rn(v.y * scale, v.w * scale);
        even[k] = reinterpret_cast<const uint32_t&>(e), odd[k] = reinterpret_cast<const uint32_t&>(o);
      }
    }
    const uint32_t unit = 2 * (i % 4), r = row % 8;
    uint4* at = reinterpret_cast<uint4*>(to.x + (uint64_t(i / 4) * to.eights + row / 8) * kWideAtom + r * 128);
    at[unit ^ r] = make_uint4(even[0], even[1], even[2], even[3]);
    at[(unit + 1) ^ r] = make_uint4(odd[0], odd[1], odd[2], odd[3]);
  }
}

// Its attributes say what it was compiled for.
__global__ void __launch_bounds__(kHasWgmma ? 64 : 32) probe_kernel() {}

}  // namespace

bool wide_is_there() {
  cudaFuncAttributes attributes = {};
  if (cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(probe_kernel)) != cudaSuccess) {
    cudaGetLastError();
    return false;
  }
  return attributes.maxThreadsPerBlock == 64;
}

uint64_t product_rows_bytes(uint32_t n_rows, uint32_t n_in) {
  const uint64_t bytes = q8_bytes(n_rows, n_in);
  return n_rows > kWideAbove && wide_is_there() ? std::max(bytes, WideRows(nullptr, n_rows, n_in).bytes) : bytes;
}

void wide_rows(Launch& launch, const float* x, uint32_t n_rows, uint32_t n_in, uint8_t* to) {
  start(launch, "wide_rows", wide_rows_kernel, dim3(n_rows), dim3(kThreads), 0, x, n_in, WideRows(to, n_rows, n_in));
}

}  // namespace argent::cuda
