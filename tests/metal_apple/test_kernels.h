// Arguments of test_kernels.metal, for the host and the kernels.
#pragma once

#if defined(__METAL_VERSION__)
#include <metal_stdlib>
#else
#include <cstdint>
#endif

namespace argent {

struct TestNormArgs {
  uint32_t cols;
  float eps;
};
static_assert(sizeof(TestNormArgs) == 8, "the same for all compilers");

}  // namespace argent
