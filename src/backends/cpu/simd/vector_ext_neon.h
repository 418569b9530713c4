// vector_ext.h on NEON.
#pragma once

namespace argent::cpu::ARGENT_ISA {
namespace {

constexpr int kAccumulators = 24, kMaxQueries = 8;

// Selected, since FMAX and FMIN give NaN where either is one.
SIMD_FN F32 max_f32(F32 a, F32 b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
SIMD_FN F32 min_f32(F32 a, F32 b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
SIMD_FN F32 div(F32 a, F32 b) { return vdivq_f32(a, b); }
SIMD_FN void store_all(float* p, F32 a) { vst1q_f32(p, a); }
SIMD_FN void store_half(uint16_t* p, F32 a) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(a))); }
SIMD_FN void store_i16(int16_t* p, I32 a) { vst1_s16(p, vqmovn_s32(a)); }
SIMD_FN I32 load_pairs(const int8_t* p) { return vreinterpretq_s32_s16(vmovl_s8(vld1_s8(p))); }
SIMD_FN I32 dot_pairs(I32 a, I32 b, I32 c) {
  const int16x8_t x = vreinterpretq_s16_s32(a), y = vreinterpretq_s16_s32(b);
  return vaddq_s32(c, vpaddq_s32(vmull_s16(vget_low_s16(x), vget_low_s16(y)), vmull_high_s16(x, y)));
}
SIMD_FN F32 load_part(const float* p, int n) {
  float lanes[4] = {};
  for (int i = 0; i < n; ++i) lanes[i] = p[i];
  return vld1q_f32(lanes);
}
SIMD_FN F32 load_part(const uint16_t* p, int n) {
  uint16_t lanes[4] = {};
  for (int i = 0; i < n; ++i) lanes[i] = p[i];
  return load_half(lanes);
}
SIMD_FN F32 keep_lanes(F32 a, int lo, int hi, F32 other) {
  const I32 lane = {0, 1, 2, 3};
  const uint32x4_t keep = vandq_u32(vcltq_s32(lane, vdupq_n_s32(hi)), vcgeq_s32(lane, vdupq_n_s32(lo)));
  return vbslq_f32(keep, a, other);
}
// In two steps, since 2^n alone may be no float; the first product is exact.
SIMD_FN F32 scale_by_power(F32 a, F32 n) {
  const I32 whole = vcvtnq_s32_f32(n), half = vshrq_n_s32(whole, 1), bias = vdupq_n_s32(127);
  const I32 first = vshlq_n_s32(vaddq_s32(half, bias), 23);
  const I32 second = vshlq_n_s32(vaddq_s32(vsubq_s32(whole, half), bias), 23);
  return mul(mul(a, bits_f32(first)), bits_f32(second));
}
SIMD_FN F32 where_negative(F32 t, F32 a, F32 b) { return vbslq_f32(vcltzq_s32(f32_bits(t)), a, b); }
SIMD_FN F32 swap_pairs(F32 a) { return vrev64q_f32(a); }
SIMD_FN F32 even_lanes(F32 a) { return vtrn1q_f32(a, a); }
SIMD_FN F32 odd_lanes(F32 a) { return vtrn2q_f32(a, a); }
SIMD_FN float first_lane(F32 a) { return vgetq_lane_f32(a, 0); }
SIMD_FN float fold_sum(const F32 (&a)[4]) {
  const F32 four = add(add(a[0], a[2]), add(a[1], a[3]));
  return vpadds_f32(vadd_f32(vget_low_f32(four), vget_high_f32(four)));
}
SIMD_FN float fold_max(const F32 (&a)[4]) {
  const F32 four = max_f32(max_f32(a[0], a[2]), max_f32(a[1], a[3]));
  const F32 two = max_f32(four, vextq_f32(four, four, 2));
  return vgetq_lane_f32(max_f32(two, vextq_f32(two, two, 1)), 0);
}

}  // namespace
}  // namespace argent::cpu::ARGENT_ISA
