#include "metal/weights.h"

#include <algorithm>
#include <cstddef>

#include "base/half.h"
#include "quant/walk.h"

namespace argent::metal {

namespace {

// Where a block has its scales, halves each.
std::vector<size_t> halves_of_block(Format format) {
  switch (format) {
    case Format::q4_1:
    case Format::q5_1:
    case Format::q4_k:
    case Format::q5_k:
      return {0, 2};
    case Format::q2_k:
      return {offsetof(block_q2_k, d), offsetof(block_q2_k, dmin)};
    case Format::q3_k:
      return {offsetof(block_q3_k, d)};
    case Format::q6_k:
      return {offsetof(block_q6_k, d)};
    default:
      return {0};
  }
}

}  // namespace

std::string name_of(Format format) {
  std::string name(info(format).name);
  std::transform(name.begin(), name.end(), name.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; });
  return name;
}

std::vector<uint8_t> random_rows(Format format, uint64_t rows, uint64_t cols, Numbers& numbers) {
  const FormatInfo& f = info(format);
  std::vector<uint8_t> bytes(rows * row_bytes(format, cols));
  for (uint8_t& b : bytes) b = uint8_t(numbers.bits());
  for (size_t block = 0; block < bytes.size(); block += f.bytes) {
    if (format == Format::mxfp4) {
      bytes[block] = uint8_t(118 + numbers.bits() % 8);
    } else if (format == Format::f32) {
      const float value = numbers.next();
      std::memcpy(&bytes[block], &value, sizeof value);
    } else if (f.block == 1) {
      const float value = numbers.next();
      const uint16_t bits = format == Format::f16 ? float_to_half(value) : float_to_bf16(value);
      std::memcpy(&bytes[block], &bits, sizeof bits);
    } else {
      for (size_t at : halves_of_block(format)) {
        const uint16_t half = float_to_half(0.02f + 0.01f * numbers.next());
        std::memcpy(&bytes[block + at], &half, sizeof half);
      }
    }
  }
  return bytes;
}

}  // namespace argent::metal
