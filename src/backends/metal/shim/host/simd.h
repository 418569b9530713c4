// What the lanes of a SIMD-group do together, and atomics, by the emulator's hooks. The line of the caller's text tells
// one call from another: lanes that stand in different lines have diverged.
#pragma once

#include "backends/metal/emu/hooks.h"
#include "backends/metal/shim/common/math.h"

#define MTL_SITE int line = __builtin_LINE(), const char *file = __builtin_FILE()
// Not seen by the checks: the emulator's side of an operation, which reports its accesses itself.
#define MTL_UNSEEN __attribute__((no_sanitize("thread", "bounds", "shift")))

namespace metal {

MTL_FN void threadgroup_barrier(mem_flags flags, MTL_SITE) {
  argent::emu::threadgroup_barrier({"threadgroup_barrier", file, line}, uint32_t(flags));
}
MTL_FN void simdgroup_barrier(mem_flags flags, MTL_SITE) {
  argent::emu::simdgroup_barrier({"simdgroup_barrier", file, line}, uint32_t(flags));
}

// ---- SIMD-group functions: lanes hand in a value each, and all get theirs when the last one has come

namespace shim {
template <class T>
struct lane_values {
  T v[argent::emu::kLanes];
};
template <class T>
MTL_UNSEEN inline lane_values<T> values_in(const argent::emu::Exchange& x) {
  lane_values<T> r;
  for (int l = 0; l < argent::emu::kLanes; l++) __builtin_memcpy(static_cast<void*>(&r.v[l]), x.in[l], sizeof(T));
  return r;
}
template <class T>
MTL_UNSEEN inline void values_out(argent::emu::Exchange& x, const lane_values<T>& r) {
  for (int l = 0; l < argent::emu::kLanes; l++)
    __builtin_memcpy(x.out[l], static_cast<const void*>(&r.v[l]), sizeof(T));
}

template <class T>
struct add {
  MTL_FN static T of(T a, T b) { return T(a + b); }
};
template <class T>
struct multiply {
  MTL_FN static T of(T a, T b) { return T(a * b); }
};
template <class T>
struct larger {
  MTL_FN static T of(T a, T b) { return metal::max(a, b); }
};
template <class T>
struct smaller {
  MTL_FN static T of(T a, T b) { return metal::min(a, b); }
};
template <class T>
struct both {
  MTL_FN static T of(T a, T b) { return T(a & b); }
};
template <class T>
struct either {
  MTL_FN static T of(T a, T b) { return T(a | b); }
};

// In the order of a butterfly, as GPUs do it.
template <class T, class Op>
MTL_UNSEEN void reduce(argent::emu::Exchange& x) {
  lane_values<T> v = values_in<T>(x);
  for (int step = argent::emu::kLanes / 2; step; step /= 2) {
    const lane_values<T> from = v;
    for (int l = 0; l < argent::emu::kLanes; l++) v.v[l] = Op::of(from.v[l], from.v[l ^ step]);
  }
  values_out(x, v);
}
template <class T, class Op, bool inclusive>
MTL_UNSEEN void prefix(argent::emu::Exchange& x) {
  const lane_values<T> v = values_in<T>(x);
  lane_values<T> r;
  T sum = v.v[0];
  r.v[0] = inclusive ? v.v[0] : T(Op::of(T(1), T(0)) == T(1) ? 0 : 1);  // the neutral element of the operation
  for (int l = 1; l < argent::emu::kLanes; l++) {
    if (!inclusive) r.v[l] = sum;
    sum = Op::of(sum, v.v[l]);
    if (inclusive) r.v[l] = sum;
  }
  values_out(x, r);
}
// A value and the lane it is wanted from.
template <class T>
struct request {
  T value;
  uint16_t lane;
};
template <class T>
MTL_UNSEEN void fetch(argent::emu::Exchange& x) {
  const lane_values<request<T>> v = values_in<request<T>>(x);
  lane_values<T> r;
  for (int l = 0; l < argent::emu::kLanes; l++) r.v[l] = v.v[v.v[l].lane < argent::emu::kLanes ? v.v[l].lane : l].value;
  values_out(x, r);
}
template <class T>
MTL_UNSEEN void fetch_below(argent::emu::Exchange& x) {
  const lane_values<request<T>> v = values_in<request<T>>(x);
  lane_values<T> r;
  for (int l = 0; l < argent::emu::kLanes; l++) r.v[l] = v.v[l < v.v[l].lane ? l : l - v.v[l].lane].value;
  values_out(x, r);
}
template <class T>
MTL_UNSEEN void fetch_above(argent::emu::Exchange& x) {
  const lane_values<request<T>> v = values_in<request<T>>(x);
  lane_values<T> r;
  for (int l = 0; l < argent::emu::kLanes; l++) {
    r.v[l] = v.v[l + v.v[l].lane < argent::emu::kLanes ? l + v.v[l].lane : l].value;
  }
  values_out(x, r);
}
template <class T>
MTL_UNSEEN void fetch_xor(argent::emu::Exchange& x) {
  const lane_values<request<T>> v = values_in<request<T>>(x);
  lane_values<T> r;
  for (int l = 0; l < argent::emu::kLanes; l++) r.v[l] = v.v[(l ^ v.v[l].lane) & (argent::emu::kLanes - 1)].value;
  values_out(x, r);
}

template <class T>
MTL_UNSEEN T meet(const argent::emu::Site& site, T value, argent::emu::Combine combine) {
  static_assert(sizeof(T) <= argent::emu::kLaneBytes);
  T result;
  argent::emu::simd_function(site, &value, sizeof value, &result, sizeof result, combine);
  return result;
}
template <class T>
MTL_UNSEEN T meet_at(const argent::emu::Site& site, T value, uint16_t lane, argent::emu::Combine combine) {
  static_assert(sizeof(request<T>) <= argent::emu::kLaneBytes);
  const request<T> asked{value, lane};
  T result;
  argent::emu::simd_function(site, &asked, sizeof asked, &result, sizeof result, combine);
  return result;
}
}  // namespace shim

#define MTL_REDUCE(name, combine)                              \
  template <class T>                                           \
  MTL_FN T name(T value, MTL_SITE) {                           \
    return shim::meet<T>({#name, file, line}, value, combine); \
  }
MTL_REDUCE(simd_sum, (shim::reduce<T, shim::add<T>>))
MTL_REDUCE(simd_product, (shim::reduce<T, shim::multiply<T>>))
MTL_REDUCE(simd_max, (shim::reduce<T, shim::larger<T>>))
MTL_REDUCE(simd_min, (shim::reduce<T, shim::smaller<T>>))
MTL_REDUCE(simd_and, (shim::reduce<T, shim::both<T>>))
MTL_REDUCE(simd_or, (shim::reduce<T, shim::either<T>>))
MTL_REDUCE(simd_prefix_inclusive_sum, (shim::prefix<T, shim::add<T>, true>))
MTL_REDUCE(simd_prefix_exclusive_sum, (shim::prefix<T, shim::add<T>, false>))
MTL_REDUCE(simd_prefix_inclusive_product, (shim::prefix<T, shim::multiply<T>, true>))
MTL_REDUCE(simd_prefix_exclusive_product, (shim::prefix<T, shim::multiply<T>, false>))
#undef MTL_REDUCE

MTL_FN bool simd_any(bool value, MTL_SITE) {
  return shim::meet<unsigned char>({"simd_any", file, line}, value,
                                   shim::reduce<unsigned char, shim::either<unsigned char>>) != 0;
}
MTL_FN bool simd_all(bool value, MTL_SITE) {
  return shim::meet<unsigned char>({"simd_all", file, line}, value,
                                   shim::reduce<unsigned char, shim::both<unsigned char>>) != 0;
}

#define MTL_FETCH(name, combine)                                           \
  template <class T>                                                       \
  MTL_FN T name(T value, uint16_t lane, MTL_SITE) {                        \
    return shim::meet_at<T>({#name, file, line}, value, lane, combine<T>); \
  }
MTL_FETCH(simd_shuffle, shim::fetch)
MTL_FETCH(simd_broadcast, shim::fetch)
MTL_FETCH(simd_shuffle_xor, shim::fetch_xor)
MTL_FETCH(simd_shuffle_down, shim::fetch_above)
MTL_FETCH(simd_shuffle_up, shim::fetch_below)
#undef MTL_FETCH

// ---- simdgroup_matrix: lane 0's object holds the 8 x 8 values, as floats that are exact in T

template <class T, int Columns, int Rows>
struct simdgroup_matrix {
  static_assert(Columns == 8 && Rows == 8, "matrices are 8 x 8");
  float e[64];
};
using simdgroup_float8x8 = simdgroup_matrix<float, 8, 8>;
using simdgroup_half8x8 = simdgroup_matrix<half_t, 8, 8>;
using simdgroup_bfloat8x8 = simdgroup_matrix<bfloat_t, 8, 8>;

template <class T, int Columns, int Rows = Columns>
MTL_UNSEEN simdgroup_matrix<T, Columns, Rows> make_filled_simdgroup_matrix(T value, MTL_SITE) {
  simdgroup_matrix<T, Columns, Rows> m;
  if (argent::emu::matrix_operation({"simdgroup_make_filled", file, line}, false)) {
    for (float& e : m.e) e = float(value);
  }
  return m;
}
// origin: (column, row) in the memory of the first element.
template <class T>
MTL_UNSEEN __attribute__((noinline)) void simdgroup_load(simdgroup_matrix<T, 8, 8>& m, const T* from,
                                                         unsigned long stride = 8, vec<unsigned long, 2> origin = 0,
                                                         bool transpose = false, MTL_SITE) {
  if (!argent::emu::matrix_operation({"simdgroup_load", file, line}, false)) return;
  from += origin.d[1] * stride + origin.d[0];
  for (int r = 0; r < 8; r++) {
    argent::emu::matrix_access(from + r * stride, 8 * sizeof(T), false, __builtin_return_address(0));
    for (int c = 0; c < 8; c++) m.e[transpose ? c * 8 + r : r * 8 + c] = float(from[r * stride + c]);
  }
}
template <class T>
MTL_UNSEEN __attribute__((noinline)) void simdgroup_store(const simdgroup_matrix<T, 8, 8>& m, T* to,
                                                          unsigned long stride = 8, vec<unsigned long, 2> origin = 0,
                                                          bool transpose = false, MTL_SITE) {
  if (!argent::emu::matrix_operation({"simdgroup_store", file, line}, false)) return;
  to += origin.d[1] * stride + origin.d[0];
  for (int r = 0; r < 8; r++) {
    argent::emu::matrix_access(to + r * stride, 8 * sizeof(T), true, __builtin_return_address(0));
    for (int c = 0; c < 8; c++) to[r * stride + c] = T(m.e[transpose ? c * 8 + r : r * 8 + c]);
  }
}
// d = a * b + c, in float; rounded to d's type at the end.
template <class D, class A, class B, class C>
MTL_UNSEEN __attribute__((noinline)) void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8>& d,
                                                                        const simdgroup_matrix<A, 8, 8>& a,
                                                                        const simdgroup_matrix<B, 8, 8>& b,
                                                                        const simdgroup_matrix<C, 8, 8>& c, MTL_SITE) {
  if (!argent::emu::matrix_operation({"simdgroup_multiply_accumulate", file, line}, true)) return;
  typedef float row __attribute__((vector_size(32)));
  row y[8], sum[8];
  __builtin_memcpy(y, b.e, sizeof y);
  __builtin_memcpy(sum, c.e, sizeof sum);
  for (int r = 0; r < 8; r++) {
    for (int k = 0; k < 8; k++) sum[r] += a.e[r * 8 + k] * y[k];
  }
  __builtin_memcpy(d.e, sum, sizeof sum);
  if constexpr (!std::is_same_v<D, float>) {
    for (float& e : d.e) e = float(D(e));
  }
}
template <class D, class A, class B>
MTL_FN void simdgroup_multiply(simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a,
                               const simdgroup_matrix<B, 8, 8>& b, MTL_SITE) {
  simdgroup_matrix<D, 8, 8> zero = make_filled_simdgroup_matrix<D, 8>(D(0), line, file);
  simdgroup_multiply_accumulate(d, a, b, zero, line, file);
}

// ---- atomics: relaxed, as MSL has them; one fiber runs at a time, so plain operations are atomic

template <class T>
struct atomic {
  T value;
};
using atomic_int = atomic<int>;
using atomic_uint = atomic<unsigned int>;
using atomic_float = atomic<float>;

template <class T>
MTL_UNSEEN __attribute__((noinline)) T atomic_load_explicit(const atomic<T>* a, memory_order) {
  argent::emu::atomic_access(a, sizeof *a, false, __builtin_return_address(0));
  return a->value;
}
template <class T>
MTL_UNSEEN __attribute__((noinline)) void atomic_store_explicit(atomic<T>* a, std::type_identity_t<T> value,
                                                                memory_order) {
  argent::emu::atomic_access(a, sizeof *a, true, __builtin_return_address(0));
  a->value = value;
}
#define MTL_ATOMIC(name, expression)                                                      \
  template <class T>                                                                      \
  MTL_UNSEEN __attribute__((noinline))                                                    \
  T atomic_##name##_explicit(atomic<T>* a, std::type_identity_t<T> value, memory_order) { \
    argent::emu::atomic_access(a, sizeof *a, false, __builtin_return_address(0));         \
    argent::emu::atomic_access(a, sizeof *a, true, __builtin_return_address(0));          \
    const T old = a->value;                                                               \
    a->value = T(expression);                                                             \
    return old;                                                                           \
  }
MTL_ATOMIC(exchange, value)
MTL_ATOMIC(fetch_add, old + value)
MTL_ATOMIC(fetch_sub, old - value)
MTL_ATOMIC(fetch_max, old < value ? value : old)
MTL_ATOMIC(fetch_min, value < old ? value : old)
MTL_ATOMIC(fetch_or, uint32_t(old) | uint32_t(value))
MTL_ATOMIC(fetch_and, uint32_t(old) & uint32_t(value))
#undef MTL_ATOMIC

}  // namespace metal
