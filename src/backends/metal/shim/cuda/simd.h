// What the lanes of a SIMD-group do together, barriers and atomics, as CUDA has them: a SIMD-group is a warp. For right
// results, not for speed; simdgroup_matrix is made of shuffles, not of tensor cores.
#pragma once

#include "backends/metal/shim/common/math.h"

namespace metal {

// mem_flags cannot be told apart: __syncthreads orders all memory, so a wrong flag shows in the emulator only.
MTL_FN void threadgroup_barrier(mem_flags) { __syncthreads(); }
MTL_FN void simdgroup_barrier(mem_flags) { __syncwarp(); }

namespace shim {
constexpr unsigned kAll = 0xffffffff;
MTL_FN unsigned lane() {
  unsigned l;
  asm("mov.u32 %0, %%laneid;" : "=r"(l));
  return l;
}
// The value of another lane, of any type of up to 32 bytes.
template <class T>
MTL_FN T from_lane(const T& value, unsigned source) {
  constexpr int kWords = (sizeof(T) + 3) / 4;
  unsigned words[kWords] = {};
  memcpy(words, static_cast<const void*>(&value), sizeof(T));
  for (int i = 0; i < kWords; i++) words[i] = __shfl_sync(kAll, words[i], source & 31);
  T result;
  memcpy(static_cast<void*>(&result), words, sizeof(T));
  return result;
}
}  // namespace shim

#define MTL_REDUCE(name, expression)                       \
  template <class T>                                       \
  MTL_FN T name(T a) {                                     \
    for (unsigned step = 16; step; step /= 2) {            \
      const T b = shim::from_lane(a, shim::lane() ^ step); \
      a = T(expression);                                   \
    }                                                      \
    return a;                                              \
  }
MTL_REDUCE(simd_sum, a + b)
MTL_REDUCE(simd_product, a* b)
MTL_REDUCE(simd_max, metal::max(a, b))
MTL_REDUCE(simd_min, metal::min(a, b))
MTL_REDUCE(simd_and, a& b)
MTL_REDUCE(simd_or, a | b)
#undef MTL_REDUCE

#define MTL_PREFIX(name, neutral, expression)                                         \
  template <class T>                                                                  \
  MTL_FN T simd_prefix_inclusive_##name(T b) {                                        \
    for (unsigned step = 1; step < 32; step *= 2) {                                   \
      const T a = shim::from_lane(b, shim::lane() - step);                            \
      if (shim::lane() >= step) b = T(expression);                                    \
    }                                                                                 \
    return b;                                                                         \
  }                                                                                   \
  template <class T>                                                                  \
  MTL_FN T simd_prefix_exclusive_##name(T b) {                                        \
    const T all = shim::from_lane(simd_prefix_inclusive_##name(b), shim::lane() - 1); \
    return shim::lane() ? all : T(neutral);                                           \
  }
MTL_PREFIX(sum, 0, a + b)
MTL_PREFIX(product, 1, a* b)
#undef MTL_PREFIX

MTL_FN bool simd_any(bool value) { return __any_sync(shim::kAll, value); }
MTL_FN bool simd_all(bool value) { return __all_sync(shim::kAll, value); }
template <class T>
MTL_FN T simd_shuffle(T value, uint16_t lane) {
  const T other = shim::from_lane(value, lane);
  return lane < 32 ? other : value;
}
template <class T>
MTL_FN T simd_broadcast(T value, uint16_t lane) {
  return shim::from_lane(value, lane);
}
template <class T>
MTL_FN T simd_shuffle_xor(T value, uint16_t mask) {
  return shim::from_lane(value, shim::lane() ^ mask);
}
template <class T>
MTL_FN T simd_shuffle_down(T value, uint16_t delta) {
  const T other = shim::from_lane(value, shim::lane() + delta);
  return shim::lane() + delta < 32 ? other : value;
}
template <class T>
MTL_FN T simd_shuffle_up(T value, uint16_t delta) {
  const T other = shim::from_lane(value, shim::lane() - delta);
  return shim::lane() >= delta ? other : value;
}

// A lane holds row lane / 4, columns 2 (lane % 4) and the next.
template <class T, int Columns, int Rows>
struct simdgroup_matrix {
  static_assert(Columns == 8 && Rows == 8, "matrices are 8 x 8");
  T e[2];
};
using simdgroup_float8x8 = simdgroup_matrix<float, 8, 8>;
using simdgroup_half8x8 = simdgroup_matrix<half_t, 8, 8>;
using simdgroup_bfloat8x8 = simdgroup_matrix<bfloat_t, 8, 8>;

template <class T, int Columns, int Rows = Columns>
MTL_FN simdgroup_matrix<T, Columns, Rows> make_filled_simdgroup_matrix(T value) {
  return {{value, value}};
}
template <class T>
MTL_FN void simdgroup_load(simdgroup_matrix<T, 8, 8>& m, const T* from, unsigned long stride = 8,
                           vec<unsigned long, 2> origin = 0, bool transpose = false) {
  const unsigned r = shim::lane() / 4, c = shim::lane() % 4 * 2;
  from += origin.d[1] * stride + origin.d[0];
  for (unsigned i = 0; i < 2; i++) m.e[i] = transpose ? from[(c + i) * stride + r] : from[r * stride + c + i];
}
template <class T>
MTL_FN void simdgroup_store(const simdgroup_matrix<T, 8, 8>& m, T* to, unsigned long stride = 8,
                            vec<unsigned long, 2> origin = 0, bool transpose = false) {
  const unsigned r = shim::lane() / 4, c = shim::lane() % 4 * 2;
  to += origin.d[1] * stride + origin.d[0];
  for (unsigned i = 0; i < 2; i++) (transpose ? to[(c + i) * stride + r] : to[r * stride + c + i]) = m.e[i];
}
template <class D, class A, class B, class C>
MTL_FN void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a,
                                          const simdgroup_matrix<B, 8, 8>& b, const simdgroup_matrix<C, 8, 8>& c) {
  const unsigned r = shim::lane() / 4, column = shim::lane() % 4;
  float sum[2] = {float(c.e[0]), float(c.e[1])};
  for (unsigned k = 0; k < 8; k++) {
    const float a0 = shim::from_lane(float(a.e[0]), r * 4 + k / 2), a1 = shim::from_lane(float(a.e[1]), r * 4 + k / 2);
    const float b0 = shim::from_lane(float(b.e[0]), k * 4 + column),
                b1 = shim::from_lane(float(b.e[1]), k * 4 + column);
    sum[0] += (k % 2 ? a1 : a0) * b0;
    sum[1] += (k % 2 ? a1 : a0) * b1;
  }
  d.e[0] = D(sum[0]);
  d.e[1] = D(sum[1]);
}
template <class D, class A, class B>
MTL_FN void simdgroup_multiply(simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a,
                               const simdgroup_matrix<B, 8, 8>& b) {
  simdgroup_multiply_accumulate(d, a, b, make_filled_simdgroup_matrix<D, 8>(D(0)));
}

template <class T>
struct atomic {
  T value;
};
using atomic_int = atomic<int>;
using atomic_uint = atomic<unsigned int>;
using atomic_float = atomic<float>;
template <class T>
MTL_FN T atomic_load_explicit(const atomic<T>* a, memory_order) {
  return *const_cast<const volatile T*>(&a->value);
}
template <class T>
MTL_FN void atomic_store_explicit(atomic<T>* a, std::type_identity_t<T> value, memory_order) {
  atomicExch(&a->value, value);
}
#define MTL_ATOMIC(name, function, argument)                                                     \
  template <class T>                                                                             \
  MTL_FN T atomic_##name##_explicit(atomic<T>* a, std::type_identity_t<T> value, memory_order) { \
    return function(&a->value, argument);                                                        \
  }
MTL_ATOMIC(exchange, atomicExch, value)
MTL_ATOMIC(fetch_add, atomicAdd, value)
MTL_ATOMIC(fetch_sub, atomicAdd, T(-value))
MTL_ATOMIC(fetch_max, atomicMax, value)
MTL_ATOMIC(fetch_min, atomicMin, value)
MTL_ATOMIC(fetch_or, atomicOr, value)
MTL_ATOMIC(fetch_and, atomicAnd, value)
#undef MTL_ATOMIC

}  // namespace metal
