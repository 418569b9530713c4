// Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"): random words as a pure function of
// key and counter.
#pragma once

#include <array>
#include <cstdint>

namespace argent::sample {

using PhiloxCounter = std::array<uint32_t, 4>;
using PhiloxKey = std::array<uint32_t, 2>;

constexpr PhiloxCounter philox(PhiloxCounter c, PhiloxKey k) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t(0xD2511F53) * c[0], p1 = uint64_t(0xCD9E8D57) * c[2];
    c = {uint32_t(p1 >> 32) ^ c[1] ^ k[0], uint32_t(p1), uint32_t(p0 >> 32) ^ c[3] ^ k[1], uint32_t(p0)};
    k[0] += 0x9E3779B9;
    k[1] += 0xBB67AE85;
  }
  return c;
}

// 64 random bits of the draw at a position of one of n answers.
constexpr uint64_t draw_bits(uint64_t seed, uint32_t position, uint32_t sample_index) {
  const PhiloxCounter words = philox({position, sample_index, 0, 0}, {uint32_t(seed), uint32_t(seed >> 32)});
  return uint64_t(words[0]) << 32 | words[1];
}

}  // namespace argent::sample
