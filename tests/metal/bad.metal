// Kernels with one fault each, which the emulator must find: bad_test.cc says which.
#include "backends/metal/kernels/dialect.h"

using namespace metal;

// A SIMD-group reduction in the branch of a partial tile: the lanes past the end never come.
kernel void bad_partial_reduction(constant uint& n [[buffer(0)]], device const float* x [[buffer(1)]],
                                  device float* y [[buffer(2)]], uint i [[thread_index_in_threadgroup]]) {
  float m = 0.0f;
  if (i < n) {
    m = simd_max(x[i]);
  }
  y[i] = m;
}

// A partial tile of a matrix product goes through threadgroup memory; nothing waits for the matrix store.
kernel void bad_partial_tile(constant uint& n [[buffer(0)]], device float* y [[buffer(1)]],
                             threadgroup float* tile MTL_TG(0), uint i [[thread_index_in_threadgroup]]) {
  simdgroup_float8x8 m = make_filled_simdgroup_matrix<float, 8>(1.0f);
  simdgroup_store(m, tile, 8);
  for (uint e = i; e < 64; e += 32) {
    if (e % 8 < n) {
      y[e] = tile[e];
    }
  }
}

// A matrix loaded from what the lanes wrote just before.
kernel void bad_matrix_load(device float* y [[buffer(0)]], threadgroup float* tile MTL_TG(0),
                            uint i [[thread_index_in_threadgroup]]) {
  tile[i] = 1.0f;
  tile[i + 32] = 2.0f;
  simdgroup_float8x8 m;
  simdgroup_load(m, tile, 8);
  simdgroup_store(m, y, 8);
}

// A matrix stored and loaded again: which lane holds which element may differ.
kernel void bad_matrix_again(device float* y [[buffer(0)]], threadgroup float* tile MTL_TG(0)) {
  simdgroup_float8x8 m = make_filled_simdgroup_matrix<float, 8>(1.0f);
  simdgroup_store(m, tile, 8);
  simdgroup_load(m, tile, 8, 0, true);
  simdgroup_store(m, y, 8);
}

// A matrix operation that only some lanes come by.
kernel void bad_matrix_divergence(device float* y [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
  if (i < 16) {
    simdgroup_float8x8 m = make_filled_simdgroup_matrix<float, 8>(1.0f);
    simdgroup_store(m, y, 8);
  }
}

// Two dispatches that depend on each other: right, if there is a barrier between them.
kernel void bad_chain_first(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                            uint i [[thread_position_in_grid]]) {
  y[i] = x[i] + 1.0f;
}
kernel void bad_chain_second(device const float* y [[buffer(0)]], device float* z [[buffer(1)]],
                             uint i [[thread_position_in_grid]]) {
  z[i] = y[i] * 2.0f;
}

// 32 floats to a buffer of 8.
kernel void bad_overflow(device float* y [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) { y[i] = 1.0f; }

kernel void bad_threadgroup_overflow(device float* y [[buffer(0)]], threadgroup float* shared MTL_TG(0),
                                     uint i [[thread_index_in_threadgroup]]) {
  shared[i + 1] = 1.0f;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[i] = shared[max(i, 1u)];
}

// Threads without work leave before the barrier.
kernel void bad_early_return(constant uint& n [[buffer(0)]], device float* y [[buffer(1)]],
                             threadgroup float* shared MTL_TG(0), uint i [[thread_index_in_threadgroup]]) {
  if (i >= n) {
    return;
  }
  shared[i] = 1.0f;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[i] = shared[n - 1 - i];
}

// Two SIMD-groups at two barriers.
kernel void bad_two_barriers(device float* y [[buffer(0)]], uint i [[thread_index_in_threadgroup]],
                             uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  if (simdgroup == 0) {
    threadgroup_barrier(mem_flags::mem_device);
  } else {
    threadgroup_barrier(mem_flags::mem_device);
  }
  y[i] = 1.0f;
}

kernel void bad_missing_barrier(device float* y [[buffer(0)]], threadgroup float* shared MTL_TG(0),
                                uint i [[thread_index_in_threadgroup]]) {
  shared[i] = 1.0f;
  y[i] = shared[i ^ 1];
}

// A barrier of the SIMD-group for what goes to another one.
kernel void bad_simdgroup_barrier(device float* y [[buffer(0)]], threadgroup float* shared MTL_TG(0),
                                  uint i [[thread_index_in_threadgroup]]) {
  shared[i] = 1.0f;
  simdgroup_barrier(mem_flags::mem_threadgroup);
  y[i] = shared[63 - i];
}

// Readers 63 and 3 of one byte, then 63 writes it: only the reader of the other SIMD-group is not ordered before.
kernel void bad_reader_race(device float* y [[buffer(0)]], threadgroup float* shared MTL_TG(0),
                            uint i [[thread_index_in_threadgroup]]) {
  if (i == 0) {
    shared[0] = 1.0f;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float seen = 0.0f;
  if (i == 40 || i == 63) {
    seen = shared[0];
  }
  simdgroup_barrier(mem_flags::mem_threadgroup);
  if (i == 3) {
    seen = shared[0];
  }
  simdgroup_barrier(mem_flags::mem_threadgroup);
  if (i == 63) {
    shared[0] = 2.0f;
  }
  y[i] = seen;
}

// All lanes read a byte, then one of them writes it: simd_sum waits for the lanes, but orders no memory.
kernel void bad_sum_for_barrier(device float* y [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
  const float total = simd_sum(y[0]);
  if (i == 0) {
    y[0] = total;
  }
}

// Three threadgroups read a byte; the first one then writes it, after a barrier that orders only its own readers.
kernel void bad_reader_of_other_group(device float* y [[buffer(0)]], uint i [[thread_index_in_threadgroup]],
                                      uint3 group [[threadgroup_position_in_grid]]) {
  const float seen = y[0];
  threadgroup_barrier(mem_flags::mem_device);
  if (i == 63 && group.x == 2) {
    y[0] = seen;
  }
}

kernel void bad_flags_threadgroup(device float* y [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
  y[i] = 1.0f;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[i + 64] = y[63 - i];
}

kernel void bad_flags_device(device float* y [[buffer(0)]], threadgroup float* shared MTL_TG(0),
                             uint i [[thread_index_in_threadgroup]]) {
  shared[i] = 1.0f;
  threadgroup_barrier(mem_flags::mem_device);
  y[i] = shared[63 - i];
}

kernel void bad_uninitialised(device float* y [[buffer(0)]], threadgroup float* shared MTL_TG(0),
                              uint i [[thread_index_in_threadgroup]]) {
  if (i != 7) {
    shared[i] = 1.0f;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[i] = shared[i];
}

// Only the first threadgroup fills its memory.
kernel void bad_uninitialised_group(device float* y [[buffer(0)]], threadgroup float* shared MTL_TG(0),
                                    uint i [[thread_index_in_threadgroup]],
                                    uint3 group [[threadgroup_position_in_grid]]) {
  if (group.x == 0) {
    shared[i] = 1.0f;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[group.x * 64 + i] = shared[i];
}

// Accumulates into memory that nobody set to zero.
kernel void bad_uninitialised_device(device float* y [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
  y[i] += 1.0f;
}

kernel void bad_write_const(device const float* x [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
  ((device float*)x)[i] = 1.0f;
}

kernel void bad_write_constant(constant float* x [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
  ((device float*)x)[i] = 1.0f;
}

// Threadgroups of 64 threads, 32 elements apart.
kernel void bad_groups_overlap(device float* y [[buffer(0)]], uint i [[thread_index_in_threadgroup]],
                               uint3 group [[threadgroup_position_in_grid]]) {
  y[group.x * 32 + i] = 1.0f;
}

// A plain store beside atomic ones.
kernel void bad_half_atomic(device atomic_uint* y [[buffer(0)]], device uint* same [[buffer(1)]],
                            uint i [[thread_index_in_threadgroup]]) {
  if (i == 0) {
    same[0] = 0;
  } else {
    atomic_fetch_add_explicit(y, 1u, memory_order_relaxed);
  }
}

// A plain load between atomic loads and an atomic store.
kernel void bad_plain_reader(device atomic_uint* y [[buffer(0)]], device uint* same [[buffer(1)]],
                             device uint* out [[buffer(2)]], uint i [[thread_index_in_threadgroup]]) {
  uint seen = 0;
  if (i < 8) {
    seen = atomic_load_explicit(y, memory_order_relaxed);
  } else if (i == 8) {
    seen = same[0];
  } else if (i == 9) {
    atomic_store_explicit(y, 7u, memory_order_relaxed);
  }
  out[i] = seen;
}

// Four floats at an address that is a multiple of 4 bytes only.
kernel void bad_misaligned(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                           uint i [[thread_index_in_threadgroup]]) {
  const float4 v = *(device const float4*)(x + i + 1);
  y[i] = v.x + v.y + v.z + v.w;
}

kernel void bad_index(constant uint& n [[buffer(0)]], device float* y [[buffer(1)]],
                      uint i [[thread_index_in_threadgroup]]) {
  float v[4] = {1.0f, 2.0f, 3.0f, 4.0f};
  for (uint k = 0; k < n; k++) {
    v[k] += float(i);
  }
  y[i] = v[i % 4];
}

kernel void bad_shift(constant uint& n [[buffer(0)]], device uint* y [[buffer(1)]],
                      uint i [[thread_index_in_threadgroup]]) {
  y[i] = 1u << (n + i);
}
