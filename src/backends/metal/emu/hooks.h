// What kernels that are compiled for the emulator see of it: the calls behind the shim's SIMD-group functions, barriers
// and memory checks, and the tables that tools/metal/gen.py writes for each .metal file. Included by shim/host only.
#pragma once

#include <cstddef>
#include <cstdint>

namespace argent::emu {

// What the attributes of kernel parameters read, of one thread.
struct ThreadContext {
  uint32_t threadgroup_position_in_grid[3];
  uint32_t thread_position_in_threadgroup[3];
  uint32_t thread_position_in_grid[3];
  uint32_t threads_per_threadgroup[3];
  uint32_t threadgroups_per_grid[3];
  uint32_t thread_index_in_threadgroup;
  uint32_t simdgroup_index_in_threadgroup;
  uint32_t thread_index_in_simdgroup;
  uint32_t simdgroups_per_threadgroup;
};

// Addresses of the arguments of one dispatch.
struct Arguments {
  void* buffer[31];
  void* shared[8];  // not named as the word of MSL, which is an empty macro in the kernels' files
};

// ---- tables that gen.py writes

struct Parameter {
  char kind;  // 'b' device buffer, 'c' constant buffer, 't' threadgroup memory
  uint8_t index;
  bool writable;
  uint32_t size;  // of the struct behind a reference; 0 for a pointer
  const char* name;
};
struct Kernel {
  const char* name;
  void (*run)(const Arguments&, const ThreadContext&);
  const Parameter* parameters;
  int parameter_count;
  const uint8_t* constants;  // indices of the function constants that it reaches
  int constant_count;
};
struct Constant {
  const char* name;
  uint8_t index;
  char type;  // 'b' bool, 'i' int, 'u' uint, 'f' float
  void* value;
};
struct Library {
  const char* source;
  int variant;  // 0: the kernels as written; above: a mutant of tools/metal/mutate.py
  const Kernel* kernels;
  int kernel_count;
  const Constant* constants;
  int constant_count;
};
// Makes a library's kernels known; called by static initialisers, so also when a shared object of kernels is loaded.
int add_library(const Library* library);

// ---- calls of the running kernel; a site is where the kernel's text calls

struct Site {
  const char* what;
  const char* file;
  int line;
};

enum : uint32_t { kMemNone = 0, kMemDevice = 1, kMemThreadgroup = 2 };

constexpr int kLanes = 32;
constexpr size_t kLaneBytes = 32;
// In and out values of a SIMD-group function, a slot a lane.
struct Exchange {
  alignas(16) unsigned char in[kLanes][kLaneBytes];
  alignas(16) unsigned char out[kLanes][kLaneBytes];
};
using Combine = void (*)(Exchange&);

// Waits for the other lanes of the SIMD-group; `combine` then turns their values into everyone's results.
void simd_function(const Site& site, const void* in, size_t in_size, void* out, size_t out_size, Combine combine);
void threadgroup_barrier(const Site& site, uint32_t flags);
void simdgroup_barrier(const Site& site, uint32_t flags);

// simdgroup_matrix operations do not wait: lane 0 holds the matrix and works for all, the others note that they came
// by, and their notes are compared when the lanes next meet. True in lane 0.
bool matrix_operation(const Site& site, bool multiply);
// An access by lane 0 on behalf of the SIMD-group; all rows of one operation follow one matrix_operation.
void matrix_access(const void* address, size_t size, bool write, const void* pc);
// Before an atomic operation: checked like any access, but atomic operations do not race with each other.
void atomic_access(const void* address, size_t size, bool write, const void* pc);

}  // namespace argent::emu
