// Brings weights from the file's mapping into panels (pack.h) on all threads.
#pragma once

#include <functional>
#include <vector>

#include "backends/backend.h"
#include "backends/cpu/tasks.h"

namespace argent::cpu {

struct PackJob {
  Matrix* matrix;   // `rows` is where it lies in the file; packed.data is set, rows cleared
  uint64_t offset;  // of its panels from `out`
};

// Packs all jobs to `out`, reading the file once and in order. `total`: bytes of all panels, for `progress`, which the
// calling thread hears every few megabytes; false stops with Code::cancelled.
Status pack_weights(std::vector<PackJob> jobs, uint8_t* out, uint64_t total, const PackKernels& kernels,
                    ThreadPool& pool, const std::function<bool(const Progress&)>& progress);

}  // namespace argent::cpu
