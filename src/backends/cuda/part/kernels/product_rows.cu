// Activations to the f16 rows of product_rows.cuh.
#include "backends/cuda/part/kernels/product_rows.cuh"

#include <cuda_fp16.h>

#include <algorithm>

#include "backends/cuda/part/kernels/launch.cuh"
#include "backends/cuda/part/kernels/warp.cuh"
#include "backends/cuda/part/kernels/wgmma.cuh"

namespace argent::cuda {
namespace {

constexpr uint32_t kPiece = 16;  // columns of a thread at a time
constexpr uint32_t kMostThreads = 512, kFewThreads = 256;
// CTAs of a long row, which meet in a cluster: one of 512 threads has the 18,944 columns of a down projection in three
// turns, and 64 rows leave half of the multiprocessors without one.
constexpr uint32_t kRanks = 8;

// Compiled for earlier devices too, which have no clusters and no products of such rows.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define ARGENT_CLUSTER __cluster_dims__(kRanks, 1, 1)
#else
#define ARGENT_CLUSTER
#endif

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// To where another CTA of the cluster has `at`.
__device__ __forceinline__ void store_of_rank(const uint32_t* at, uint32_t rank, uint32_t value) {
  uint32_t to;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(uint32_t(__cvta_generic_to_shared(at))), "r"(rank));
  asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(to), "r"(value) : "memory");
}

#endif

struct Piece {
  uint4 v[4];
};
__device__ __forceinline__ Piece load_piece(const float* from, uint32_t i) {
  Piece p;
#pragma unroll
  for (uint32_t k = 0; k < 4; ++k) p.v[k] = reinterpret_cast<const uint4*>(from + i * kPiece)[k];
  return p;
}
__device__ __forceinline__ uint32_t most_of(const Piece& p) {
  uint32_t most = 0;
#pragma unroll
  for (uint32_t k = 0; k < 4; ++k)
    most = max(max(most, max(p.v[k].x & 0x7fffffff, p.v[k].y & 0x7fffffff)),
               max(p.v[k].z & 0x7fffffff, p.v[k].w & 0x7fffffff));
  return most;
}

// kOf CTAs a row. A thread's first piece stays in its registers.
template <uint32_t kOf>
__device__ __forceinline__ void convert_row(const float* x, uint32_t n_in, const WideRows& to) {
  __shared__ uint32_t most_of_warp[kMostThreads / 32];
  [[maybe_unused]] __shared__ uint32_t most_of_rank[kOf];
  const uint32_t row = blockIdx.x / kOf, rank = blockIdx.x % kOf, stride = blockDim.x * kOf;
  const uint32_t n_pieces = (n_in + kWideChunk - 1) / kWideChunk * (kWideChunk / kPiece), n_full = n_in / kPiece;
  const float* from = x + uint64_t(row) * n_in;
  const uint32_t first = rank * blockDim.x + threadIdx.x;
  if (blockIdx.x == 0)
    for (uint32_t i = threadIdx.x; i < kMostShares * kShareFlags; i += blockDim.x) to.flags[i] = 0;
  Piece held = {};
  if (first < n_full) held = load_piece(from, first);
  uint32_t most = most_of(held);
  for (uint32_t i = first + stride; i < n_full; i += stride) most = max(most, most_of(load_piece(from, i)));
  most = __reduce_max_sync(kAllLanes, most);
  if (threadIdx.x % 32 == 0) most_of_warp[threadIdx.x / 32] = most;
  __syncthreads();
  const uint32_t warp = threadIdx.x % 32;
  most = __reduce_max_sync(kAllLanes, warp < blockDim.x / 32 ? most_of_warp[warp] : 0);
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  if constexpr (kOf > 1) {
    cluster_wait();  // all have started
    if (threadIdx.x < kOf) store_of_rank(most_of_rank + rank, threadIdx.x, most);
    cluster_arrive();
    cluster_wait();
    most = __reduce_max_sync(kAllLanes, most_of_rank[threadIdx.x % kOf]);
  }
#endif
  const RowScale of(most);
  if (first == 0) to.inverse[row] = of.inverse;
  for (uint32_t i = first; i < n_pieces; i += stride) {
    if (i != first) held = i < n_full ? load_piece(from, i) : Piece{};
    uint32_t even[4], odd[4];
#pragma unroll
    for (uint32_t k = 0; k < 4; ++k) {
      const auto scaled = [&](uint32_t bits) { return of.finite ? __uint_as_float(bits) * of.scale : 0.0f; };
      const __half2 e = __floats2half2_rn(scaled(held.v[k].x), scaled(held.v[k].z));
      const __half2 o = __floats2half2_rn(scaled(held.v[k].y), scaled(held.v[k].w));
      even[k] = reinterpret_cast<const uint32_t&>(e), odd[k] = reinterpret_cast<const uint32_t&>(o);
    }
    *wide_unit(to, row, i / 4, 2 * (i % 4)) = make_uint4(even[0], even[1], even[2], even[3]);
    *wide_unit(to, row, i / 4, 2 * (i % 4) + 1) = make_uint4(odd[0], odd[1], odd[2], odd[3]);
  }
}

__global__ void __launch_bounds__(kMostThreads) wide_rows_kernel(const float* x, uint32_t n_in, WideRows to) {
  let_next_start();
  wait_for_previous();
  convert_row<1>(x, n_in, to);
}

__global__ void ARGENT_CLUSTER __launch_bounds__(kMostThreads)
    long_rows_kernel(const float* x, uint32_t n_in, WideRows to) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  cluster_arrive();
  let_next_start();
  wait_for_previous();
  convert_row<kRanks>(x, n_in, to);
#endif
}
#undef ARGENT_CLUSTER

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
  const WideRows rows(to, n_rows, n_in);
  const uint32_t n_pieces = (n_in + kPiece - 1) / kPiece, of = n_pieces <= kFewThreads ? 1 : kRanks;
  const uint32_t threads = std::min(kMostThreads, (n_pieces + 32 * of - 1) / (32 * of) * 32);
  start(launch, "wide_rows", of == 1 ? wide_rows_kernel : long_rows_kernel, dim3(n_rows * of), dim3(threads), 0, x,
        n_in, rows);
}

}  // namespace argent::cuda
