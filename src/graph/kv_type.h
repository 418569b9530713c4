// What the KV cache's elements are stored as, and the bytes that takes: the one place that says so.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "quant/portable.h"

namespace argent {

// f16, bf16: rounded to nearest even. f32: as they are. q8_0: int8 in groups of 32 elements of one head and position,
// each group with a half as scale (quant/q8_0.h). With amax = max |x|, each operation rounded to f32:
//   scale = half(amax / 127), q = round to nearest even (x * (127 / amax)), value = scale * q
//   scale 0 (amax up to 3.7e-6): all q 0;   any x infinite or NaN: scale NaN, all q 0
enum class KvType : uint8_t { f16, bf16, f32, q8_0 };

inline constexpr std::array<std::string_view, 4> kKvTypeNames = {"f16", "bf16", "f32", "q8_0"};
constexpr std::string_view name_of(KvType type) { return kKvTypeNames[size_t(type)]; }

inline constexpr uint32_t kKvGroup = 32;  // elements that share a scale of q8_0

// Bytes of n elements of one or more whole heads, scales included. q8_0: n is a multiple of kKvGroup.
QK_FN uint64_t kv_bytes_of(KvType type, uint64_t n) {
  return type == KvType::f32 ? 4 * n : type == KvType::q8_0 ? n / kKvGroup * (kKvGroup + 2) : 2 * n;
}

}  // namespace argent
