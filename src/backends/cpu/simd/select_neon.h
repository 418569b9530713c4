// select.h on NEON.
#pragma once

namespace argent::cpu::ARGENT_ISA {
namespace {

typedef uint64_t U64Lanes __attribute__((vector_size(16)));

using Flags = uint32x4_t;
SIMD_FN Flags flag_nan(Flags flags, F32 a, F32 b) {
  const uint32x4_t ordered = vandq_u32(vceqq_f32(a, a), vceqq_f32(b, b));
  return vorrq_u32(flags, vmvnq_u32(ordered));
}
SIMD_FN bool any(Flags flags) { return vmaxvq_u32(flags) != 0; }
SIMD_FN uint32_t lanes_above(F32 a, F32 b) {
  const uint32x4_t bits = {1, 2, 4, 8};
  return vaddvq_u32(vandq_u32(vcgtq_f32(a, b), bits));
}
SIMD_FN I32 truncate(F32 a) { return vcvtq_s32_f32(a); }
SIMD_FN void load_pairs(const void* p, I32& even, I32& odd) {
  const I32 a = load_i32(p), b = load_i32(static_cast<const char*>(p) + 16);
  even = vuzp1q_s32(a, b), odd = vuzp2q_s32(a, b);
}
SIMD_FN void store_pairs(void* p, I32 even, I32 odd) {
  store_i32(p, vzip1q_s32(even, odd));
  store_i32(static_cast<char*>(p) + 16, vzip2q_s32(even, odd));
}
SIMD_FN uint32_t pack_pairs(void* to, const void* from, uint32_t lanes) {
  uint32_t n = 0;
  for (int i = 0; i < 4; ++i, lanes >>= 1) {
    uint64_t pair;
    __builtin_memcpy(&pair, static_cast<const char*>(from) + 8 * i, 8);
    __builtin_memcpy(static_cast<char*>(to) + 8 * n, &pair, 8);
    n += lanes & 1;
  }
  return n;
}
SIMD_FN U64Lanes mul_wide(U64Lanes a, U64Lanes b) {
  return U64Lanes(vmull_u32(vmovn_u64(uint64x2_t(a)), vmovn_u64(uint64x2_t(b))));
}

}  // namespace
}  // namespace argent::cpu::ARGENT_ISA
