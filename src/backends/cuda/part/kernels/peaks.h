// Kernels that do nothing but what a device is fast at, to be timed (part/peaks.cc).
#pragma once

#include <cstdint>

#include "backends/cuda/part/kernels/launch.h"

namespace argent::cuda {

// Reads device memory once. bytes: a multiple of 16, and data too. sink: device memory of a word, hardly ever written.
void read_all(Launch& launch, const void* data, uint64_t bytes, uint32_t* sink);

// Products of matrices by tensor cores, in sums of i32 or f32, of what is in shared memory or in registers. Returns how
// many operations they are; a multiplication and an addition are two.
enum class Factors : uint8_t { int8, half };
uint64_t multiply_all(Launch& launch, Factors factors, uint32_t n_rounds, uint32_t* sink);

}  // namespace argent::cuda
