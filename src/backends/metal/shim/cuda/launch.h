// What generated CUDA wrappers of kernels need, and the tables by which a host finds them. No word of MSL is used here.
#pragma once

namespace argent_cuda {

struct Arguments {
  void* buffer[31];
  unsigned shared[8];  // offsets in the block's shared memory
};

struct ThreadContext {
  unsigned threadgroup_position_in_grid[3];
  unsigned thread_position_in_threadgroup[3];
  unsigned thread_position_in_grid[3];
  unsigned threads_per_threadgroup[3];
  unsigned threadgroups_per_grid[3];
  unsigned thread_index_in_threadgroup;
  unsigned simdgroup_index_in_threadgroup;
  unsigned thread_index_in_simdgroup;
  unsigned simdgroups_per_threadgroup;
};

// As in emu/hooks.h.
struct Parameter {
  char kind;
  unsigned char index;
  bool writable;
  unsigned size;
  const char* name;
};
struct Kernel {
  const char* name;
  const void* function;  // of cudaLaunchKernel; takes Arguments
  const Parameter* parameters;
  int parameter_count;
};
struct Constant {
  int index;
  int (*set)(const void* value);  // a cudaError_t
};
struct Library {
  const Kernel* kernels;
  int kernel_count;
  const Constant* constants;
  int constant_count;
};
int add_library(const Library* library);

#if defined(__CUDACC__)
__device__ __forceinline__ ThreadContext here() {
  ThreadContext c;
  const unsigned group[3] = {blockIdx.x, blockIdx.y, blockIdx.z}, local[3] = {threadIdx.x, threadIdx.y, threadIdx.z};
  const unsigned size[3] = {blockDim.x, blockDim.y, blockDim.z}, groups[3] = {gridDim.x, gridDim.y, gridDim.z};
  for (int d = 0; d < 3; d++) {
    c.threadgroup_position_in_grid[d] = group[d];
    c.thread_position_in_threadgroup[d] = local[d];
    c.thread_position_in_grid[d] = group[d] * size[d] + local[d];
    c.threads_per_threadgroup[d] = size[d];
    c.threadgroups_per_grid[d] = groups[d];
  }
  c.thread_index_in_threadgroup = (local[2] * size[1] + local[1]) * size[0] + local[0];
  c.simdgroup_index_in_threadgroup = c.thread_index_in_threadgroup / 32;
  c.thread_index_in_simdgroup = c.thread_index_in_threadgroup % 32;
  c.simdgroups_per_threadgroup = size[0] * size[1] * size[2] / 32;
  return c;
}
#endif

}  // namespace argent_cuda
