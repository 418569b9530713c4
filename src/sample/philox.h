// Philox4x32-10 (exact.h) in arrays: random words as a pure function of key and counter.
#pragma once

#include <array>
#include <cstdint>

#include "sample/exact.h"

namespace argent::sample {

using PhiloxCounter = std::array<uint32_t, 4>;
using PhiloxKey = std::array<uint32_t, 2>;

constexpr PhiloxCounter philox(PhiloxCounter c, PhiloxKey k) {
  const PhiloxWords words = philox_words({c[0], c[1], c[2], c[3]}, k[0], k[1]);
  return {words.x, words.y, words.z, words.w};
}

}  // namespace argent::sample
