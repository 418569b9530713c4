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
inline constexpr uint64_t kPeakOps = uint64_t(1) << 22;

// The kernels of a supported ISA.
const PeakKernels& peak_kernels(Isa isa);

// The rates of all threads of the pool together, in about 0.25 s: reading 256 MiB that were written before in pieces of
// 32 MiB, as short as the passes that are compared with it; then each loop. The best piece and the best run count. The
// read rate is 0 where there is no memory for it.
DevicePeaks measure_peaks(ThreadPool& pool, Isa isa);

}  // namespace argent::cpu
