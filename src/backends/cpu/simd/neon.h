// The vocabulary of simd.h on what every aarch64 has, NEON with FMA: 4 rows a vector. All ISAs of Arm share it but for
// dot().
#pragma once

namespace argent::cpu::ARGENT_ISA {
namespace {

inline constexpr int kLanes = 4, kVectorRegisters = 32;
// Two slices: 16 vectors of quants, 4 integer sums, activations, scales; sums of floats stay in memory. An activation
// is read once for both slices, and quants are unpacked once for 16 tokens.
inline constexpr int kSlicesQ8 = 2, kDotTokens = 2, kMaxTokensQ8 = 16;
inline constexpr bool kPanelPairs = false;
// 8 to 16 sums, two a slice and token: four FMA a cycle of four cycles each need as many. One slice and 8 tokens would
// load half as much again.
inline constexpr int kMaxTokensF32 = 4;
SIMD_FN constexpr int float_slices(int tokens) { return tokens <= 2 ? 4 : 2; }
using F32 = float32x4_t;
using I32 = int32x4_t;
typedef uint32_t U32Lanes __attribute__((vector_size(16)));

SIMD_FN uint8x16_t bytes_of(I32 a) { return vreinterpretq_u8_s32(a); }
SIMD_FN I32 words_of(uint8x16_t a) { return vreinterpretq_s32_u8(a); }

SIMD_FN I32 load_i32(const void* p) { return words_of(vld1q_u8(static_cast<const uint8_t*>(p))); }
SIMD_FN void store_i32(void* p, I32 a) { vst1q_u8(static_cast<uint8_t*>(p), bytes_of(a)); }
SIMD_FN void transpose_words(const uint8_t* rows, uint64_t stride, I32 (&w)[4]) {
  I32 z[4];  // lane i of z[k]: word i of row k
#pragma GCC unroll 4
  for (int k = 0; k < 4; ++k) z[k] = load_i32(rows + k * stride);
  const int64x2_t a = vreinterpretq_s64_s32(vtrn1q_s32(z[0], z[1])), b = vreinterpretq_s64_s32(vtrn2q_s32(z[0], z[1]));
  const int64x2_t c = vreinterpretq_s64_s32(vtrn1q_s32(z[2], z[3])), d = vreinterpretq_s64_s32(vtrn2q_s32(z[2], z[3]));
  w[0] = vreinterpretq_s32_s64(vzip1q_s64(a, c)), w[1] = vreinterpretq_s32_s64(vzip1q_s64(b, d));
  w[2] = vreinterpretq_s32_s64(vzip2q_s64(a, c)), w[3] = vreinterpretq_s32_s64(vzip2q_s64(b, d));
}
SIMD_FN I32 set_i32(uint32_t x) { return vdupq_n_s32(int32_t(x)); }
SIMD_FN I32 and_i32(I32 a, I32 b) { return vandq_s32(a, b); }
// One instruction, since no caller's `a` has a bit of the mask that b lacks.
SIMD_FN I32 or_and(I32 a, I32 b, I32 mask) { return vbslq_s32(vreinterpretq_u32_s32(mask), b, a); }
SIMD_FN I32 high_nibbles(I32 a) { return words_of(vshrq_n_u8(bytes_of(a), 4)); }
SIMD_FN I32 add_i32(I32 a, I32 b) { return vaddq_s32(a, b); }
SIMD_FN I32 sub_i32(I32 a, I32 b) { return vsubq_s32(a, b); }
SIMD_FN I32 max_i32(I32 a, I32 b) { return vmaxq_s32(a, b); }
SIMD_FN int32_t reduce_add(I32 a) { return vaddvq_s32(a); }
SIMD_FN int32_t reduce_max(I32 a) { return vmaxvq_s32(a); }
SIMD_FN void store_i8(int8_t* p, I32 a) {
  const int16x4_t half = vqmovn_s32(a);
  const int8x8_t four = vqmovn_s16(vcombine_s16(half, half));
  __builtin_memcpy(p, &four, 4);
}
SIMD_FN I32 lookup16(const uint8_t* table, I32 index) { return words_of(vqtbl1q_u8(vld1q_u8(table), bytes_of(index))); }

SIMD_FN F32 load_f32(const float* p) { return vld1q_f32(p); }
SIMD_FN F32 load_half(const void* p) {
  return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(static_cast<const uint8_t*>(p))));
}
SIMD_FN F32 load_bf16(const void* p) {
  return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(static_cast<const uint8_t*>(p))), 16));
}
SIMD_FN uint8x8_t load_four(const void* p) { return vcreate_u8(uint32_t(load_dword(p))); }
SIMD_FN I32 load_u8(const void* p) { return vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(vmovl_u8(load_four(p))))); }
SIMD_FN I32 load_i8(const void* p) { return vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u8(load_four(p))))); }
SIMD_FN F32 set_f32(float x) { return vdupq_n_f32(x); }
SIMD_FN F32 to_f32(I32 a) { return vcvtq_f32_s32(a); }
SIMD_FN F32 bits_f32(I32 a) { return vreinterpretq_f32_s32(a); }
SIMD_FN I32 f32_bits(F32 a) { return vreinterpretq_s32_f32(a); }
SIMD_FN I32 round_i32(F32 a) { return vcvtnq_s32_f32(a); }
SIMD_FN F32 add(F32 a, F32 b) { return vaddq_f32(a, b); }
SIMD_FN F32 sub(F32 a, F32 b) { return vsubq_f32(a, b); }
SIMD_FN F32 mul(F32 a, F32 b) { return vmulq_f32(a, b); }
SIMD_FN F32 fma(F32 a, F32 b, F32 c) { return vfmaq_f32(c, a, b); }
SIMD_FN void store_f32(float* p, F32 a, int n) {
  if (n >= 4) return vst1q_f32(p, a);
  for (int i = 0; i < n; ++i) p[i] = a[i];
}

// Quants as signed bytes: those up to 127 are, and those around zero point 128 become levels.
template <int kMax>
SIMD_FN int8x16_t signed_quants(I32 w) {
  if constexpr (kMax > 127) return vreinterpretq_s8_u8(veorq_u8(bytes_of(w), vdupq_n_u8(0x80)));
  return vreinterpretq_s8_s32(w);
}

}  // namespace
}  // namespace argent::cpu::ARGENT_ISA
