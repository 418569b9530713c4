// Arguments of the norms, by value; the same for the host and the kernels.
#pragma once

#if defined(__METAL_VERSION__)
#include <metal_stdlib>
#else
#include <cstdint>
#endif

namespace argent {

// y = x / sqrt(mean(x^2) + eps) in each group; groups lie one after the other without gaps.
struct RmsNormArgs {
  uint32_t group;     // elements normalised together: a row, or a head
  uint32_t n_groups;  // rows * width / group
  float eps;
};
static_assert(sizeof(RmsNormArgs) == 12, "the same for all compilers");

// s = norm(x) * w + r with eps, y = norm(s) * w2 with eps2, in each group.
struct NormTwiceArgs {
  uint32_t group;
  float eps;
  float eps2;
};
static_assert(sizeof(NormTwiceArgs) == 12, "the same for all compilers");

}  // namespace argent
