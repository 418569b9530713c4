// How far a tiny model's logits on the emulated backend may be from the reference's.
#pragma once

#include <string_view>

#include "ops/harness.h"

namespace argent::ops_test {

inline constexpr std::string_view kExactFactors = "matrix,flash";  // left out: products and attention with 16-bit factors

// Logits of tiny models come through a dozen roundings of sums; those stored in the cache may round to another half.
inline constexpr Tolerance kModel{"sums in f32, and halves in the cache, through all layers", 2e-3, 2e-3};
// Factors of 11 bits in every product, through all layers.
inline constexpr Tolerance kHalfModel{"factors rounded to half in all products and scores", 3e-2, 3e-2};

}  // namespace argent::ops_test
