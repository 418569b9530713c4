// IEEE half and bfloat16 to and from float, exact, round to nearest even; no intrinsics, so any x86-64 and any host
// compiler gives the same bits. Kernels use the hardware's conversions, which agree with these.
#pragma once

#include <bit>
#include <cstdint>

namespace argent {

inline float half_to_float(uint16_t h) {
  const uint32_t sign = uint32_t(h & 0x8000) << 16;
  const uint32_t exponent = (h >> 10) & 31;
  const uint32_t mantissa = h & 0x3ff;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000 | mantissa << 13);
  if (exponent) return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
  const float subnormal = float(mantissa) * 0x1p-24f;  // exact: 10 bits times a power of two
  return sign ? -subnormal : subnormal;
}

inline uint16_t float_to_half(float f) {
  const uint32_t x = std::bit_cast<uint32_t>(f);
  const uint16_t sign = uint16_t(x >> 16 & 0x8000);
  const uint32_t a = x & 0x7fffffff;
  if (a > 0x7f800000) return sign | 0x7e00 | uint16_t(a >> 13 & 0x1ff);  // NaN, quiet
  if (a >= 0x477ff000) return sign | 0x7c00;                             // rounds past 65504: infinity
  if (a < 0x33000001) return sign;                                       // rounds to zero
  if (a < 0x38800000) {                                                  // subnormal half
    const uint32_t shift = 126 - (a >> 23);                              // 14 to 24
    const uint32_t m = (a & 0x7fffff) | 0x800000;
    const uint32_t q = m >> shift, rest = m & ((1u << shift) - 1), half = 1u << (shift - 1);
    return uint16_t(sign | (q + (rest > half || (rest == half && (q & 1)))));
  }
  const uint32_t rounded = a + 0xfff + (a >> 13 & 1);
  return uint16_t(sign | ((rounded - 0x38000000) >> 13));
}

inline float bf16_to_float(uint16_t b) { return std::bit_cast<float>(uint32_t(b) << 16); }

inline uint16_t float_to_bf16(float f) {
  const uint32_t x = std::bit_cast<uint32_t>(f);
  if ((x & 0x7fffffff) > 0x7f800000) return uint16_t(x >> 16 | 64);  // NaN, quiet
  return uint16_t((x + 0x7fff + (x >> 16 & 1)) >> 16);
}

}  // namespace argent
