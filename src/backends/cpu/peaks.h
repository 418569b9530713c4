// What this machine can do, measured: the denominators of every "% of peak" that the profile and the benches print.
#pragma once

#include <cstdint>

#include "backends/backend.h"
#include "backends/cpu/matmul.h"
#include "base/thread_pool.h"

namespace argent::cpu {

// Loops without memory, in the vocabulary that the kernels of the ISA are written in. A run does kPeakOps operations
// (a multiplication and an addition are two) and returns something that depends on all of them.
struct PeakKernels {
  int32_t (*int8_dot)();
  int32_t (*f32_fma)();
};
inline constexpr uint64_t kPeakOps = uint64_t(1) << 24;

// The kernels of a supported ISA.
const PeakKernels& peak_kernels(Isa isa);

// The rates of all threads of the pool together, in about 0.15 s (at most 1 s where others hold the cores): reading 256
// MiB that were written before, the best of pieces of 128 MiB (on a shared machine the best of 32 MiB is a burst, a
// fifth above what lasts), then the sum of the threads' best runs of each loop. The read rate is 0 where there is no
// memory for it.
DevicePeaks measure_peaks(ThreadPool& pool, Isa isa);

}  // namespace argent::cpu
