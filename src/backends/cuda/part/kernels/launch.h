// How kernels are started: one stream, each launch dependent on the one before (programmatic dependent launch, CUDA
// C++ programming guide 4.5), the first error kept.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace argent::cuda {

// What launches may do; switches turn it off.
struct LaunchOptions {
  bool dependent = true;  // kernels may start while the one before them ends; they wait before they read what it wrote
  bool wide = true;       // products of many rows by wgmma where it is there (kernels.h)
};

struct Launch : LaunchOptions {
  explicit Launch(cudaStream_t s = nullptr, const LaunchOptions& options = {}) : LaunchOptions(options), stream(s) {}

  cudaStream_t stream;
  cudaError_t error = cudaSuccess;
  const char* what = "";  // the kernel that failed first

  void note(cudaError_t e, const char* name) {
    if (error == cudaSuccess && e != cudaSuccess) error = e, what = name;
  }
};

}  // namespace argent::cuda
