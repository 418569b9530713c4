// The CUDA backend: plans as kernel launches on one stream of an NVIDIA GPU.
#pragma once

#include "backends/backend.h"

namespace argent::cuda {

// On the device that options.index names. unsupported: there is no such device, or activations in f32, which these
// kernels do not have; invalid: the switch cuda_without names what is not there.
Result<std::unique_ptr<Backend>> make_backend(const BackendOptions& options);

}  // namespace argent::cuda
