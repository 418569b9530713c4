// What a device can do at most, measured by itself.
#pragma once

#include "backends/backend.h"
#include "backends/cuda/part/device.h"

namespace argent::cuda {

// When nothing is under way. 0 where it cannot be measured: memory is short, or a call fails. f32_ops: by tensor cores,
// of halves, which is how attention and products of many rows multiply floats.
DevicePeaks measure_peaks(Device& device);

}  // namespace argent::cuda
