// What the sampling kernels read beside the step's rows and data (sample/device_row.h), the same for the host and the
// kernels.
#pragma once

#if defined(__METAL_VERSION__)
#include <metal_stdlib>
#else
#include <cstdint>
#endif

#include "sample/device_row.h"

namespace argent {

// Passed by value to every sampling kernel.
struct SampleArgs {
  uint32_t n_vocab;
  uint32_t n_slots;  // entries of the slots' buffer
};
static_assert(sizeof(SampleArgs) == 8, "the same for all compilers");

// Passed to resolve_tokens and store_tokens.
struct TokensArgs {
  uint32_t n_rows;
  uint32_t n_slots;
};
static_assert(sizeof(TokensArgs) == 8, "the same for all compilers");

enum : uint32_t {
  kSamplePart = 8192,  // logits of a row that one threadgroup of argmax_parts and top_k_parts takes
  kAdjustTile = 4096,  // logits of a row that one threadgroup of adjust takes
  // threadgroup(0) of each kernel; it does not depend on the number of threads.
  kSelectBytes = 8768,  // top_k_parts, top_k_join, top_p, min_p, temperature, draw
  kArgmaxBytes = 256,   // argmax_parts
  kAdjustBytes = 4 * kAdjustTile,
};

}  // namespace argent
