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

template <class... Parameters, class... Arguments>
void start(Launch& launch, const char* name, void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared,
           Arguments... arguments) {
  if (launch.error != cudaSuccess || grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid, config.blockDim = block, config.dynamicSmemBytes = shared, config.stream = launch.stream;
  cudaLaunchAttribute dependent = {};
  dependent.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  dependent.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &dependent, config.numAttrs = launch.dependent ? 1 : 0;
  launch.note(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...), name);
}

}  // namespace argent::cuda
