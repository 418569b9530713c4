// Every block format as one shape: unsigned byte quants with a scale, and for some a min, a group. Packers of kernels
// read tensors through it, and packed kernels are tested against it. C++ only.
#pragma once

#include <cstdint>

#include "quant/formats.h"

namespace argent {

struct UniformShape {
  int group;       // elements that share a scale: 16 or 32
  bool has_min;    // value = scale * q + min; otherwise value = scale * (q - zero_point)
  int zero_point;  // 0 where has_min; 128 where the format's own quants are signed bytes or levels
};

// The shape of a block format; F32, F16 and BF16 have none, and asking is a programming error (aborts).
UniformShape uniform_shape(Format format);

// Splits n elements (a multiple of the block) of a row: q has n bytes, scale and min n / group floats; min is not
// touched, and may be null, where the format has none. For Q2_K, Q4_K and Q5_K scale is d * scale and min is
// -(dmin * min) of the group; both products are exact in float, and so is scale * (q - zero_point) for every format.
// So value as above is decode_row's bit for bit (NaNs aside), whether or not the sum is a fused multiply-add.
void uniform_row(Format format, const void* row, uint64_t n, uint8_t* q, float* scale, float* min);

}  // namespace argent
