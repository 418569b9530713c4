// What differs between the three languages that the block-format headers are compiled as: C++20, CUDA C++ and MSL.
// A format header includes this file (or another format header) and nothing else, and tools/lint_formats.py holds it to
// the common subset: values in, values out; no pointers, references, templates, double, or names that MSL reserves.
//
// Words are little-endian: byte k of a u32 loaded from a block is bits 8k to 8k+7.
#pragma once

#if defined(__METAL_VERSION__)
#include <metal_stdlib>
#define QK_FN inline
#define QK_CONST constant constexpr
#elif defined(__CUDACC__)
#define QK_FN __host__ __device__ __attribute__((always_inline)) inline
#define QK_CONST constexpr
#else
// Always inlined: a copy that the linker shares between object files compiled for different instruction sets would be
// an illegal instruction on the lesser machine.
#define QK_FN __attribute__((always_inline)) constexpr
#define QK_CONST inline constexpr
#endif

namespace argent {

using u8 = unsigned char;
using i8 = signed char;
using u16 = unsigned short;
using u32 = unsigned int;
using i32 = int;

static_assert(sizeof(u8) == 1 && sizeof(u16) == 2 && sizeof(u32) == 4, "types of the block layouts");

// The float with these bits.
QK_FN float qk_float(u32 bits) {
#if defined(__METAL_VERSION__)
  using namespace metal;
  return as_type<float>(bits);
#elif defined(__CUDA_ARCH__)
  return __uint_as_float(bits);
#else
  return __builtin_bit_cast(float, bits);
#endif
}

// The value of IEEE half bits (the low 16 of the argument); exact, so the same everywhere but for the payload of a NaN.
QK_FN float qk_half(u32 bits) {
#if defined(__METAL_VERSION__)
  using namespace metal;
  return float(as_type<half>(u16(bits)));
#elif defined(__CUDA_ARCH__)
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(u16(bits)));
  return value;
#else
  // Masks, not branches, so that loops over F16 rows vectorise on any x86-64.
  const u32 magnitude = bits & 0x7fff;
  const u32 special = 0u - u32(magnitude >= 0x7c00);  // infinity and NaN: exponent 31 becomes 255
  const u32 normal = (magnitude << 13) + (112u << 23) + (special & 112u << 23);
  const u32 tiny = 0u - u32(magnitude < 0x400);
  const u32 subnormal = __builtin_bit_cast(u32, float(i32(magnitude)) * 0x1p-24f);
  return qk_float((subnormal & tiny) | (normal & ~tiny) | (bits & 0x8000) << 16);
#endif
}

// Byte k of a word.
QK_FN u32 qk_byte(u32 word, u32 k) { return word >> 8 * k & 255; }

// The low 8 bits as a signed value.
QK_FN i32 qk_signed(u32 byte) { return i32(i8(byte)); }

// Bits 0 to 3 to bit 0 of bytes 0 to 3: no two partial products meet, so one multiplication spreads them.
QK_FN u32 qk_spread(u32 bits) { return (bits & 15) * 0x00204081 & 0x01010101; }

// Four bytes minus `zero` each, as signed bytes; for bytes and zero below 128.
QK_FN u32 qk_subtract(u32 bytes, u32 zero) { return ((bytes | 0x80808080) - zero * 0x01010101) ^ 0x80808080; }

// Looks up four indices (0 to 15, one a byte) in a table of 16 bytes, held as four words.
QK_FN u32 qk_lookup(u32 indices, u32 t0, u32 t1, u32 t2, u32 t3) {
#if defined(__CUDA_ARCH__)
  const u32 nibbles = __byte_perm(indices | indices >> 4, 0, 0x4420);  // the four indices, 4 bits each
  const u32 low = __byte_perm(t0, t1, nibbles & 0x7777), high = __byte_perm(t2, t3, nibbles & 0x7777);
  return __byte_perm(low, high, 0x3210 | (nibbles & 0x8888) >> 1);
#elif defined(__METAL_VERSION__)
  // Selects rather than an indexed array, which would live in device memory.
  u32 result = 0;
  for (u32 k = 0; k < 4; k++) {
    const u32 i = qk_byte(indices, k);
    const u32 word = i & 8 ? (i & 4 ? t3 : t2) : (i & 4 ? t1 : t0);
    result |= qk_byte(word, i & 3) << 8 * k;
  }
  return result;
#else
  const u32 table[4] = {t0, t1, t2, t3};
  u32 result = 0;
  for (u32 k = 0; k < 4; k++) {
    const u32 i = qk_byte(indices, k);
    result |= qk_byte(table[i >> 2], i & 3) << 8 * k;
  }
  return result;
#endif
}

}  // namespace argent
