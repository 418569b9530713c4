// half and bfloat of MSL for the host and CUDA. The flavour defines MTL_FN, the qualifiers of a function, before this.
#pragma once

#include <cstdint>
#include <type_traits>

namespace metal {

// A float of 16 bits, held as bits and computed with as float: every operation of two such numbers rounds once, as on a
// GPU.
template <class Coding>
struct small_float {
  uint16_t bits;

  small_float() = default;
  template <class A>
  requires std::is_arithmetic_v<A> MTL_FN small_float(A a) : bits(Coding::encode(float(a))) {}
  template <class Other>
  requires(!std::is_same_v<Other, Coding>) MTL_FN explicit small_float(small_float<Other> a)
      : bits(Coding::encode(float(a))) {}
  MTL_FN operator float() const { return Coding::decode(bits); }
  MTL_FN small_float operator-() const {
    small_float r;
    r.bits = uint16_t(bits ^ 0x8000);
    return r;
  }
  template <class B>
  MTL_FN small_float& operator+=(B b) {
    return *this = small_float(float(*this) + float(b));
  }
  template <class B>
  MTL_FN small_float& operator-=(B b) {
    return *this = small_float(float(*this) - float(b));
  }
  template <class B>
  MTL_FN small_float& operator*=(B b) {
    return *this = small_float(float(*this) * float(b));
  }
  template <class B>
  MTL_FN small_float& operator/=(B b) {
    return *this = small_float(float(*this) / float(b));
  }
};

union float_bits {
  float f;
  uint32_t u;
};

struct half_coding {
  MTL_FN static float decode(uint16_t h) {
    float_bits x;
    x.u = uint32_t(h & 0x7fff) << 13;
    x.f *= 0x1p112f;  // moves the exponent, and makes subnormals normal
    if ((h & 0x7c00) == 0x7c00) x.u |= 0x7f800000;
    x.u |= uint32_t(h & 0x8000) << 16;
    return x.f;
  }
  MTL_FN static uint16_t encode(float f) {  // to nearest, ties to even
    float_bits x;
    x.f = f;
    const uint32_t sign = x.u >> 16 & 0x8000;
    x.u &= 0x7fffffff;
    if (x.u >= 0x47800000) return uint16_t(sign | (x.u > 0x7f800000 ? 0x7e00 : 0x7c00));
    if (x.u < 0x38800000) {  // subnormal: adding 0.5 leaves its bits at the end of the significand, rounded
      x.f += 0.5f;
      return uint16_t(sign | (x.u - 0x3f000000));
    }
    return uint16_t(sign | (x.u - 0x38000000 + 0xfff + (x.u >> 13 & 1)) >> 13);
  }
};

struct bfloat_coding {
  MTL_FN static float decode(uint16_t b) {
    float_bits x;
    x.u = uint32_t(b) << 16;
    return x.f;
  }
  MTL_FN static uint16_t encode(float f) {
    float_bits x;
    x.f = f;
    if ((x.u & 0x7fffffff) > 0x7f800000) return uint16_t(x.u >> 16 | 0x40);
    return uint16_t((x.u + 0x7fff + (x.u >> 16 & 1)) >> 16);
  }
};

using half_t = small_float<half_coding>;
using bfloat_t = small_float<bfloat_coding>;

template <class T>
constexpr bool is_small_float = false;
template <class C>
constexpr bool is_small_float<small_float<C>> = true;
template <class T>
concept floating = std::is_same_v<T, float> || is_small_float<T>;
template <class T>
concept scalar = std::is_arithmetic_v<T> || is_small_float<T>;

// Two of a kind, or one and an integer, give the kind; one and a float give a float.
#define MTL_OPERATOR(op)                                                              \
  template <class C>                                                                  \
  MTL_FN small_float<C> operator op(small_float<C> a, small_float<C> b) {             \
    return small_float<C>(float(a) op float(b));                                      \
  }                                                                                   \
  template <class C, class A>                                                         \
  requires std::is_integral_v<A> MTL_FN small_float<C>                                \
  operator op(small_float<C> a, A b) { return small_float<C>(float(a) op float(b)); } \
  template <class C, class A>                                                         \
  requires std::is_integral_v<A> MTL_FN small_float<C>                                \
  operator op(A a, small_float<C> b) { return small_float<C>(float(a) op float(b)); } \
  template <class C>                                                                  \
  MTL_FN float operator op(small_float<C> a, float b) {                               \
    return float(a) op b;                                                             \
  }                                                                                   \
  template <class C>                                                                  \
  MTL_FN float operator op(float a, small_float<C> b) {                               \
    return a op float(b);                                                             \
  }
MTL_OPERATOR(+)
MTL_OPERATOR(-)
MTL_OPERATOR(*)
MTL_OPERATOR(/)
#undef MTL_OPERATOR

}  // namespace metal
