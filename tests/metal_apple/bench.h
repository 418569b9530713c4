// Times of kernels by the GPU's own clock.
#pragma once

#include <string>
#include <vector>

#include "backends/metal/apple/metal_device.h"

namespace argent::metal {

struct BenchResult {
  std::string kernel, shape, error;
  double microseconds = 0;     // of one dispatch, the best of the lists
  double gigabytes_per_s = 0;  // of weights, once a dispatch
  double gigaflops_per_s = 0;
};

// small: shapes for the emulator, whose times mean nothing.
std::vector<BenchResult> run_bench(MetalDevice& device, bool small);

}  // namespace argent::metal
