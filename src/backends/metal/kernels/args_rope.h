// Arguments of RoPE, by value; the same for the host and the kernels.
#pragma once

#if defined(__METAL_VERSION__)
#include <metal_stdlib>
#else
#include <cstdint>
#endif

namespace argent {

struct RopeTableArgs {
  uint32_t n_rot;
  uint32_t rows;
  float magnitude;  // of cos and sin
};
static_assert(sizeof(RopeTableArgs) == 12, "the same for all compilers");

struct RopeArgs {
  uint32_t n_head;
  uint32_t n_head_kv;  // of rope_qk
  uint32_t d_head;
  uint32_t n_rot;   // leading elements of a head that rotate; even
  uint32_t copied;  // elements after them that are copied: d_head - n_rot, or 0 in place
};
static_assert(sizeof(RopeArgs) == 20, "the same for all compilers");

}  // namespace argent
