// The device's half of launch.h.
#pragma once

#include "backends/cuda/part/kernels/launch.h"

namespace argent::cuda {

// Before this, a kernel reads only what no kernel writes (weights, arguments); after it, everything earlier is done.
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// The next kernel may be started, as far as there is room beside this one.
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// cluster: CTAs of a cluster, along x.
template <class... Parameters, class... Arguments>
void start_clusters(Launch& launch, const char* name, void (*kernel)(Parameters...), uint32_t cluster, dim3 grid,
                    dim3 block, size_t shared, Arguments... arguments) {
  if (launch.error != cudaSuccess || grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid, config.blockDim = block, config.dynamicSmemBytes = shared, config.stream = launch.stream;
  cudaLaunchAttribute attributes[2] = {};
  if (launch.dependent) {
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (cluster > 1) {
    attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attributes[config.numAttrs++].val.clusterDim = {cluster, 1, 1};
  }
  config.attrs = attributes;
  launch.note(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...), name);
}

template <class... Parameters, class... Arguments>
void start(Launch& launch, const char* name, void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared,
           Arguments... arguments) {
  start_clusters(launch, name, kernel, 1, grid, block, shared, arguments...);
}

}  // namespace argent::cuda
