// What the ISAs of aarch64 share below the vocabulary of simd.h.
#pragma once

#include <arm_neon.h>

// The constraint of a vector register in inline assembly.
#define VECTOR_REGISTER "w"

namespace argent::cpu {

// FPCR, and its bit FZ. It takes a result for subnormal before it is rounded, x86-64 after: where one rounds up to
// 2^-126, FZ makes it 0.
using FloatControl = uint64_t;
constexpr FloatControl kFlushSubnormals = uint64_t(1) << 24;
SIMD_FN FloatControl float_control() {
  FloatControl control;
  asm volatile("mrs %0, fpcr" : "=r"(control) : : "memory");
  return control;
}
SIMD_FN void set_float_control(FloatControl control) { asm volatile("msr fpcr, %0" : : "r"(control) : "memory"); }

SIMD_FN float root(float x) { return vget_lane_f32(vsqrt_f32(vdup_n_f32(x)), 0); }

}  // namespace argent::cpu
