// The library as declarations, for the two lints by clang: nothing is compiled to code. The flavour defines
// MTL_DEVICE_SPACE and MTL_THREADGROUP_SPACE, clang's address spaces, and has scalars, vectors and mathematics.
#pragma once

namespace metal {

template <class To, class From>
To as_type(From);

enum class mem_flags : uint { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };
mem_flags operator|(mem_flags, mem_flags);
void threadgroup_barrier(mem_flags);
void simdgroup_barrier(mem_flags);

#define MTL_REDUCE(name) \
  template <class T>     \
  T name(T);
MTL_REDUCE(simd_sum)
MTL_REDUCE(simd_product)
MTL_REDUCE(simd_max)
MTL_REDUCE(simd_min)
MTL_REDUCE(simd_and)
MTL_REDUCE(simd_or)
MTL_REDUCE(simd_prefix_inclusive_sum)
MTL_REDUCE(simd_prefix_exclusive_sum)
MTL_REDUCE(simd_prefix_inclusive_product)
MTL_REDUCE(simd_prefix_exclusive_product)
#undef MTL_REDUCE
bool simd_any(bool);
bool simd_all(bool);
#define MTL_FETCH(name) \
  template <class T>    \
  T name(T, ushort);
MTL_FETCH(simd_shuffle)
MTL_FETCH(simd_broadcast)
MTL_FETCH(simd_shuffle_xor)
MTL_FETCH(simd_shuffle_down)
MTL_FETCH(simd_shuffle_up)
#undef MTL_FETCH

template <class T, int Columns, int Rows>
struct simdgroup_matrix {
  T e[2];
};
using simdgroup_float8x8 = simdgroup_matrix<float, 8, 8>;
using simdgroup_half8x8 = simdgroup_matrix<half, 8, 8>;
template <class T, int Columns, int Rows = Columns>
simdgroup_matrix<T, Columns, Rows> make_filled_simdgroup_matrix(T);
#define MTL_SPACE(space)                                                                                   \
  template <class T>                                                                                       \
  void simdgroup_load(MTL_THREAD_SPACE simdgroup_matrix<T, 8, 8>&, const space T*, ulong = 8, ulong2 = 0,  \
                      bool = false);                                                                       \
  template <class T>                                                                                       \
  void simdgroup_store(MTL_THREAD_SPACE const simdgroup_matrix<T, 8, 8>&, space T*, ulong = 8, ulong2 = 0, \
                       bool = false);
MTL_SPACE(MTL_DEVICE_SPACE)
MTL_SPACE(MTL_THREADGROUP_SPACE)
#undef MTL_SPACE
template <class D, class A, class B, class C>
void simdgroup_multiply_accumulate(MTL_THREAD_SPACE simdgroup_matrix<D, 8, 8>&,
                                   MTL_THREAD_SPACE const simdgroup_matrix<A, 8, 8>&,
                                   MTL_THREAD_SPACE const simdgroup_matrix<B, 8, 8>&,
                                   MTL_THREAD_SPACE const simdgroup_matrix<C, 8, 8>&);

template <class T>
struct atomic {
  T value;
};
#define MTL_ATOMIC(name, space) \
  template <class T>            \
  T name(volatile space atomic<T>*, T, int);
#define MTL_ATOMICS(space)                                      \
  template <class T>                                            \
  T atomic_load_explicit(const volatile space atomic<T>*, int); \
  MTL_ATOMIC(atomic_store_explicit, space)                      \
  MTL_ATOMIC(atomic_exchange_explicit, space)                   \
  MTL_ATOMIC(atomic_fetch_add_explicit, space)                  \
  MTL_ATOMIC(atomic_fetch_sub_explicit, space)                  \
  MTL_ATOMIC(atomic_fetch_max_explicit, space)                  \
  MTL_ATOMIC(atomic_fetch_min_explicit, space)                  \
  MTL_ATOMIC(atomic_fetch_or_explicit, space)                   \
  MTL_ATOMIC(atomic_fetch_and_explicit, space)

// Matrices and packed vectors, as far as their element types go.
template <class T, class Column, int C>
struct matrix {
  Column columns[C];
  MTL_THREAD_SPACE Column& operator[](int c) MTL_THREAD_METHOD { return columns[c]; }
};
using float2x4 = matrix<float, float4, 2>;
using float4x4 = matrix<float, float4, 4>;
using half2x4 = matrix<half, half4, 2>;
using half4x4 = matrix<half, half4, 4>;

}  // namespace metal

#define MTL_SHIM 1
#define MTL_TG(n)
#define MTL_TABLE(T, name, n) constant T name[n]
#define MTL_UNROLL

// clang's vectors have no constructors: a macro that takes arguments leaves `float4 v` and `float4*` alone. What a
// vector is made from is not checked, what it is assigned to is.
#define MTL_MAKE(name)  \
  template <class... A> \
  name mtl_make_##name(A...);
namespace metal {
MTL_MAKE(float2)
MTL_MAKE(float3)
MTL_MAKE(float4)
MTL_MAKE(half2)
MTL_MAKE(half3)
MTL_MAKE(half4)
MTL_MAKE(int2)
MTL_MAKE(int4)
MTL_MAKE(uint2)
MTL_MAKE(uint3)
MTL_MAKE(uint4)
MTL_MAKE(ushort2)
MTL_MAKE(ushort4)
MTL_MAKE(char4)
MTL_MAKE(uchar2)
MTL_MAKE(uchar4)
MTL_MAKE(ulong2)
}  // namespace metal
#undef MTL_MAKE
#define float2(...) metal::mtl_make_float2(__VA_ARGS__)
#define float3(...) metal::mtl_make_float3(__VA_ARGS__)
#define float4(...) metal::mtl_make_float4(__VA_ARGS__)
#define half2(...) metal::mtl_make_half2(__VA_ARGS__)
#define half3(...) metal::mtl_make_half3(__VA_ARGS__)
#define half4(...) metal::mtl_make_half4(__VA_ARGS__)
#define int2(...) metal::mtl_make_int2(__VA_ARGS__)
#define int4(...) metal::mtl_make_int4(__VA_ARGS__)
#define uint2(...) metal::mtl_make_uint2(__VA_ARGS__)
#define uint3(...) metal::mtl_make_uint3(__VA_ARGS__)
#define uint4(...) metal::mtl_make_uint4(__VA_ARGS__)
#define ushort2(...) metal::mtl_make_ushort2(__VA_ARGS__)
#define ushort4(...) metal::mtl_make_ushort4(__VA_ARGS__)
#define char4(...) metal::mtl_make_char4(__VA_ARGS__)
#define uchar2(...) metal::mtl_make_uchar2(__VA_ARGS__)
#define uchar4(...) metal::mtl_make_uchar4(__VA_ARGS__)
#define ulong2(...) metal::mtl_make_ulong2(__VA_ARGS__)
