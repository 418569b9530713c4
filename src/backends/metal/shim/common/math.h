// Math of MSL for the host and CUDA, scalars and vectors. The flavour defines MTL_FN and MTL_LIBM(name), the function
// of that name of the C library in float.
#pragma once

#include "backends/metal/shim/common/vector.h"

namespace metal {

// Of floating types: computed in float, rounded to the type.
#define MTL_UNARY(name, expression)                                     \
  template <class T>                                                    \
  requires floating<T> MTL_FN T name(T a) {                             \
    const float x = float(a);                                           \
    return T(expression);                                               \
  }                                                                     \
  template <class V>                                                    \
  requires(vector_like<V>) MTL_FN vector_of<V> name(const V& v) {       \
    vector_of<V> r(value_of(v));                                        \
    for (int i = 0; i < shape<V>::n; i++) r.d[i] = metal::name(r.d[i]); \
    return r;                                                           \
  }
MTL_UNARY(fabs, MTL_LIBM(fabsf)(x))
MTL_UNARY(exp, MTL_LIBM(expf)(x))
MTL_UNARY(exp2, MTL_LIBM(exp2f)(x))
MTL_UNARY(log, MTL_LIBM(logf)(x))
MTL_UNARY(log2, MTL_LIBM(log2f)(x))
MTL_UNARY(log10, MTL_LIBM(log10f)(x))
MTL_UNARY(sqrt, MTL_LIBM(sqrtf)(x))
MTL_UNARY(rsqrt, 1.0f / MTL_LIBM(sqrtf)(x))
MTL_UNARY(sin, MTL_LIBM(sinf)(x))
MTL_UNARY(cos, MTL_LIBM(cosf)(x))
MTL_UNARY(tanh, MTL_LIBM(tanhf)(x))
MTL_UNARY(floor, MTL_LIBM(floorf)(x))
MTL_UNARY(ceil, MTL_LIBM(ceilf)(x))
MTL_UNARY(round, MTL_LIBM(roundf)(x))
MTL_UNARY(rint, MTL_LIBM(rintf)(x))
MTL_UNARY(trunc, MTL_LIBM(truncf)(x))
MTL_UNARY(sign, x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : 0.0f)
#undef MTL_UNARY

// Two of one type.
#define MTL_BINARY(name, constraint, expression)                                \
  template <class T>                                                            \
  requires constraint<T> MTL_FN T name(T a, T b) { return T(expression); }      \
  template <class A, class B, class V = typename operands<A, B>::type>          \
  MTL_FN V name(const A& a, const B& b) {                                       \
    V r(a);                                                                     \
    const V y(b);                                                               \
    for (int i = 0; i < shape<V>::n; i++) r.d[i] = metal::name(r.d[i], y.d[i]); \
    return r;                                                                   \
  }
MTL_BINARY(max, scalar, a < b ? b : a)
MTL_BINARY(min, scalar, b < a ? b : a)
MTL_BINARY(fmax, floating, a < b ? b : a)
MTL_BINARY(fmin, floating, b < a ? b : a)
MTL_BINARY(pow, floating, MTL_LIBM(powf)(float(a), float(b)))
MTL_BINARY(powr, floating, MTL_LIBM(powf)(float(a), float(b)))
MTL_BINARY(fmod, floating, MTL_LIBM(fmodf)(float(a), float(b)))
MTL_BINARY(step, floating, b < a ? 0.0f : 1.0f)
#undef MTL_BINARY

template <class T>
requires floating<T> MTL_FN T fma(T a, T b, T c) { return T(MTL_LIBM(fmaf)(float(a), float(b), float(c))); }
template <class T, int N>
MTL_FN vec<T, N> fma(const vec<T, N>& a, const vec<T, N>& b, const vec<T, N>& c) {
  vec<T, N> r;
  for (int i = 0; i < N; i++) r.d[i] = metal::fma(a.d[i], b.d[i], c.d[i]);
  return r;
}
template <class T>
MTL_FN T clamp(T x, T low, T high) {
  return metal::min(metal::max(x, low), high);
}
template <class T, int N>
MTL_FN vec<T, N> clamp(const vec<T, N>& x, T low, T high) {
  return metal::min(metal::max(x, low), high);
}
template <class T>
MTL_FN T mix(T a, T b, T t) {
  return a + (b - a) * t;
}
// The second where the condition holds.
template <class T>
MTL_FN T select(T a, T b, bool condition) {
  return condition ? b : a;
}
template <class T, int N>
MTL_FN vec<T, N> select(const vec<T, N>& a, const vec<T, N>& b, const vec<bool, N>& condition) {
  vec<T, N> r;
  for (int i = 0; i < N; i++) r.d[i] = condition.d[i] ? b.d[i] : a.d[i];
  return r;
}
template <int N>
MTL_FN bool any(const vec<bool, N>& v) {
  bool r = false;
  for (int i = 0; i < N; i++) r = r || v.d[i];
  return r;
}
template <int N>
MTL_FN bool all(const vec<bool, N>& v) {
  bool r = true;
  for (int i = 0; i < N; i++) r = r && v.d[i];
  return r;
}
template <class A, class B>
requires(vector_like<A>&& vector_like<B>&& std::is_same_v<vector_of<A>, vector_of<B>>) MTL_FN typename shape<A>::element
    dot(const A& a, const B& b) {
  const vector_of<A> x(a), y(b);
  typename shape<A>::element sum = x.d[0] * y.d[0];
  for (int i = 1; i < shape<A>::n; i++) sum = sum + x.d[i] * y.d[i];
  return sum;
}
template <class T>
requires std::is_integral_v<T> MTL_FN T abs(T a) { return a < 0 ? T(-a) : a; }
template <class T>
requires floating<T> MTL_FN T abs(T a) { return metal::fabs(a); }
MTL_FN uint32_t popcount(uint32_t x) {
  uint32_t n = 0;
  for (; x; x &= x - 1) n++;
  return n;
}
MTL_FN uint32_t clz(uint32_t x) {
  uint32_t n = 32;
  for (; x; x >>= 1) n--;
  return n;
}

namespace precise {
using metal::cos;
using metal::exp;
using metal::exp2;
using metal::log;
using metal::pow;
using metal::rsqrt;
using metal::sin;
using metal::sqrt;
using metal::tanh;
}  // namespace precise
namespace fast = precise;

// The same bits as another type.
template <class To, class From>
MTL_FN To as_type(const From& from) {
  static_assert(sizeof(To) == sizeof(From), "as_type keeps the size");
  To to;
  __builtin_memcpy(static_cast<void*>(&to), static_cast<const void*>(&from), sizeof to);
  return to;
}

enum class mem_flags : uint32_t { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };
MTL_FN mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(uint32_t(a) | uint32_t(b)); }
enum memory_order { memory_order_relaxed };

}  // namespace metal
