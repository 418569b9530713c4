// A step's sampling as the kernels read it (sample/device_step.h), and how rows of logits are shared out.
#pragma once

#include <cstdint>

#include "backends/metal/kernels/args_sample.h"
#include "sample/device_step.h"

namespace argent::metal {

using SampleStep = sample::DeviceStep;

// Threadgroups of a row of argmax_parts and top_k_parts, and of adjust.
constexpr uint32_t sample_parts(uint32_t n_vocab) { return (n_vocab + kSamplePart - 1) / kSamplePart; }
constexpr uint32_t adjust_tiles(uint32_t n_vocab) { return (n_vocab + kAdjustTile - 1) / kAdjustTile; }

// Scratch of argmax (8 bytes a part) and of top_k (4), for n_rows.
constexpr uint64_t sample_scratch_bytes(uint32_t n_rows, uint32_t n_vocab) {
  return uint64_t(n_rows) * sample_parts(n_vocab) * 8;
}

}  // namespace argent::metal
