// Vectors of MSL for the host and CUDA: vec<T, N> with N of 2, 3, 4, swizzles, operators, packed vectors.
//
// The flavour defines MTL_FN, and whole<T, N>: a type as large as the vector that is loaded and stored in one piece, so
// that a load of a float4 is one access, with its alignment.
#pragma once

#include "backends/metal/shim/common/scalar.h"

namespace metal {

template <class T, int N>
struct vec;

// Some elements of a vector, named by letters; shares the memory of a vector of S elements. As in MSL it can be
// assigned to.
template <class T, int S, int... I>
struct swizzle {
  T d[S];

  MTL_FN operator vec<T, int(sizeof...(I))>() const;
  MTL_FN swizzle& operator=(const vec<T, int(sizeof...(I))>& v);
  MTL_FN swizzle& operator=(const swizzle& o) { return *this = vec<T, int(sizeof...(I))>(o); }
  template <class B>
  MTL_FN swizzle& operator+=(const B& b) {
    return *this = vec<T, int(sizeof...(I))>(*this) + b;
  }
  template <class B>
  MTL_FN swizzle& operator-=(const B& b) {
    return *this = vec<T, int(sizeof...(I))>(*this) - b;
  }
  template <class B>
  MTL_FN swizzle& operator*=(const B& b) {
    return *this = vec<T, int(sizeof...(I))>(*this) * b;
  }
};

template <class X>
struct shape {
  static constexpr int n = 0;
};
template <class T, int N>
struct shape<vec<T, N>> {
  static constexpr int n = N;
  using element = T;
};
template <class T, int S, int... I>
struct shape<swizzle<T, S, I...>> {
  static constexpr int n = int(sizeof...(I));
  using element = T;
};
template <class X>
concept vector_like = (shape<X>::n > 0);
template <class X>
using vector_of = vec<typename shape<X>::element, shape<X>::n>;

// Two letters in any order, and the few longer ones that kernels use; with others a kernel does not compile here.
#define MTL_PAIRS2(S, a, i) \
  swizzle<T, S, i, 0> a##x; \
  swizzle<T, S, i, 1> a##y;
#define MTL_PAIRS3(S, a, i) MTL_PAIRS2(S, a, i) swizzle<T, S, i, 2> a##z;
#define MTL_PAIRS4(S, a, i) MTL_PAIRS3(S, a, i) swizzle<T, S, i, 3> a##w;

template <class T, int N>
struct vec_storage;
template <class T>
struct alignas(2 * sizeof(T)) vec_storage<T, 2> {
  union {
    whole<T, 2> all;
    T d[2];
    struct {
      T x, y;
    };
    MTL_PAIRS2(2, x, 0)
    MTL_PAIRS2(2, y, 1)
    swizzle<T, 2, 0, 0, 0, 0> xxxx;
    swizzle<T, 2, 0, 1, 0, 1> xyxy;
  };
  MTL_FN vec_storage() {}
};
template <class T>
struct alignas(4 * sizeof(T)) vec_storage<T, 3> {
  union {
    whole<T, 3> all;
    T d[3];
    struct {
      T x, y, z;
    };
    MTL_PAIRS3(3, x, 0)
    MTL_PAIRS3(3, y, 1)
    MTL_PAIRS3(3, z, 2)
    swizzle<T, 3, 0, 1, 2> xyz;
    swizzle<T, 3, 2, 1, 0> zyx;
  };
  MTL_FN vec_storage() {}
};
template <class T>
struct alignas(4 * sizeof(T)) vec_storage<T, 4> {
  union {
    whole<T, 4> all;
    T d[4];
    struct {
      T x, y, z, w;
    };
    MTL_PAIRS4(4, x, 0)
    MTL_PAIRS4(4, y, 1)
    MTL_PAIRS4(4, z, 2)
    MTL_PAIRS4(4, w, 3)
    swizzle<T, 4, 0, 1, 2> xyz;
    swizzle<T, 4, 1, 2, 3> yzw;
    swizzle<T, 4, 2, 1, 0> zyx;
    swizzle<T, 4, 0, 1, 2, 3> xyzw;
    swizzle<T, 4, 3, 2, 1, 0> wzyx;
    swizzle<T, 4, 1, 2, 3, 0> yzwx;
    swizzle<T, 4, 2, 3, 0, 1> zwxy;
    swizzle<T, 4, 1, 0, 3, 2> yxwz;
    swizzle<T, 4, 0, 0, 0, 0> xxxx;
    swizzle<T, 4, 1, 1, 1, 1> yyyy;
    swizzle<T, 4, 2, 2, 2, 2> zzzz;
    swizzle<T, 4, 3, 3, 3, 3> wwww;
  };
  MTL_FN vec_storage() {}
};
#undef MTL_PAIRS2
#undef MTL_PAIRS3
#undef MTL_PAIRS4

template <class T, int N>
MTL_FN const vec<T, N>& value_of(const vec<T, N>& v) {
  return v;
}
template <class T, int S, int... I>
MTL_FN vec<T, int(sizeof...(I))> value_of(const swizzle<T, S, I...>& v) {
  return v;
}

template <class T, int N>
struct vec : vec_storage<T, N> {
  using vec_storage<T, N>::d;

  MTL_FN vec() {}
  MTL_FN vec(const vec& o) { this->all = o.all; }
  MTL_FN vec& operator=(const vec& o) {
    this->all = o.all;
    return *this;
  }
  // A scalar fills the vector, implicitly as in MSL.
  template <class A>
  requires scalar<A> MTL_FN vec(A a) {
    for (int i = 0; i < N; i++) d[i] = T(a);
  }
  // Other element types are converted, explicitly as in MSL.
  template <class V>
  requires(shape<V>::n == N) MTL_FN explicit vec(const V& from) {
    const auto& v = value_of(from);
    for (int i = 0; i < N; i++) d[i] = T(v.d[i]);
  }
  template <class A, class B, class... More>
  MTL_FN vec(const A& a, const B& b, const More&... more) {
    static_assert(((count<A>() + count<B>()) + ... + count<More>()) == N, "as many elements as the vector has");
    int at = 0;
    put(at, a);
    put(at, b);
    (put(at, more), ...);
  }
  MTL_FN T& operator[](int i) { return d[i]; }
  MTL_FN const T& operator[](int i) const { return d[i]; }
#define MTL_ASSIGN(op)                     \
  template <class B>                       \
  MTL_FN vec& operator op##=(const B& b) { \
    return *this = *this op b;             \
  }
  MTL_ASSIGN(+)
  MTL_ASSIGN(-)
  MTL_ASSIGN(*)
  MTL_ASSIGN(/)
  MTL_ASSIGN(&)
  MTL_ASSIGN(|)
  MTL_ASSIGN(^)
  MTL_ASSIGN(>>)
  MTL_ASSIGN(<<)
#undef MTL_ASSIGN

 private:
  template <class A>
  MTL_FN static constexpr int count() {
    return vector_like<A> ? shape<A>::n : 1;
  }
  template <class A>
  MTL_FN void put(int& at, const A& a) {
    if constexpr (vector_like<A>) {
      const auto& v = value_of(a);
      for (int i = 0; i < shape<A>::n; i++) d[at++] = T(v.d[i]);
    } else {
      d[at++] = T(a);
    }
  }
};

template <class T, int S, int... I>
MTL_FN swizzle<T, S, I...>::operator vec<T, int(sizeof...(I))>() const {
  vec<T, int(sizeof...(I))> r;
  int at = 0;
  ((r.d[at++] = d[I]), ...);
  return r;
}
template <class T, int S, int... I>
MTL_FN swizzle<T, S, I...>& swizzle<T, S, I...>::operator=(const vec<T, int(sizeof...(I))>& v) {
  const vec<T, int(sizeof...(I))> copy(v);
  int at = 0;
  ((d[I] = copy.d[at++]), ...);
  return *this;
}

// Two vectors of one type, or a vector and a scalar that fills one.
template <class A, class B>
struct operands {};
template <class A, class B>
requires(vector_like<A>&& vector_like<B>&& std::is_same_v<vector_of<A>, vector_of<B>>) struct operands<A, B> {
  using type = vector_of<A>;
};
template <class A, class B>
requires(vector_like<A>&& scalar<B>) struct operands<A, B> {
  using type = vector_of<A>;
};
template <class A, class B>
requires(scalar<A>&& vector_like<B>) struct operands<A, B> {
  using type = vector_of<B>;
};

#define MTL_OPERATOR(op, result)                                             \
  template <class A, class B, class V = typename operands<A, B>::type>       \
  MTL_FN vec<result, shape<V>::n> operator op(const A& a, const B& b) {      \
    const V x(a), y(b);                                                      \
    vec<result, shape<V>::n> r;                                              \
    for (int i = 0; i < shape<V>::n; i++) r.d[i] = result(x.d[i] op y.d[i]); \
    return r;                                                                \
  }
MTL_OPERATOR(+, typename shape<V>::element)
MTL_OPERATOR(-, typename shape<V>::element)
MTL_OPERATOR(*, typename shape<V>::element)
MTL_OPERATOR(/, typename shape<V>::element)
MTL_OPERATOR(%, typename shape<V>::element)
MTL_OPERATOR(&, typename shape<V>::element)
MTL_OPERATOR(|, typename shape<V>::element)
MTL_OPERATOR(^, typename shape<V>::element)
MTL_OPERATOR(>>, typename shape<V>::element)
MTL_OPERATOR(<<, typename shape<V>::element)
MTL_OPERATOR(==, bool)
MTL_OPERATOR(!=, bool)
MTL_OPERATOR(<, bool)
MTL_OPERATOR(<=, bool)
MTL_OPERATOR(>, bool)
MTL_OPERATOR(>=, bool)
MTL_OPERATOR(&&, bool)
MTL_OPERATOR(||, bool)
#undef MTL_OPERATOR

#define MTL_OPERATOR(op)                                                                  \
  template <class A>                                                                      \
  requires vector_like<A> MTL_FN vector_of<A>                                             \
  operator op(const A& a) {                                                               \
    vector_of<A> r(a);                                                                    \
    for (int i = 0; i < shape<A>::n; i++) r.d[i] = typename shape<A>::element(op r.d[i]); \
    return r;                                                                             \
  }
MTL_OPERATOR(-)
MTL_OPERATOR(~)
MTL_OPERATOR(!)
#undef MTL_OPERATOR

// Vectors without alignment, for structs in memory: converted to a vector to compute.
template <class T, int N>
struct packed_vec {
  T d[N];
  packed_vec() = default;
  MTL_FN packed_vec(const vec<T, N>& v) {
    for (int i = 0; i < N; i++) d[i] = v.d[i];
  }
  MTL_FN operator vec<T, N>() const {
    vec<T, N> r;
    for (int i = 0; i < N; i++) r.d[i] = d[i];
    return r;
  }
  MTL_FN T& operator[](int i) { return d[i]; }
  MTL_FN const T& operator[](int i) const { return d[i]; }
};
template <class T, int N>
struct shape<packed_vec<T, N>> {
  static constexpr int n = N;
  using element = T;
};
template <class T, int N>
MTL_FN vec<T, N> value_of(const packed_vec<T, N>& v) {
  return v;
}

// A matrix of C columns of R rows, as MSL's names count: half2x4 has two columns of four.
template <class T, int C, int R>
struct matrix {
  vec<T, R> columns[C];

  MTL_FN matrix() {}
  MTL_FN explicit matrix(T diagonal) {
    for (int c = 0; c < C; c++) {
      for (int r = 0; r < R; r++) columns[c].d[r] = c == r ? diagonal : T(0);
    }
  }
  template <class... V>
  requires(sizeof...(V) == C && (std::is_convertible_v<V, vec<T, R>> && ...)) MTL_FN matrix(const V&... column) {
    int at = 0;
    ((columns[at++] = vec<T, R>(column)), ...);
  }
  template <class U>
  requires(!std::is_same_v<T, U>) MTL_FN explicit matrix(const matrix<U, C, R>& m) {
    for (int c = 0; c < C; c++) columns[c] = vec<T, R>(m.columns[c]);
  }
  MTL_FN vec<T, R>& operator[](int c) { return columns[c]; }
  MTL_FN const vec<T, R>& operator[](int c) const { return columns[c]; }
};

template <class T, int C, int R>
MTL_FN matrix<T, C, R> operator+(const matrix<T, C, R>& a, const matrix<T, C, R>& b) {
  matrix<T, C, R> m;
  for (int c = 0; c < C; c++) m[c] = a[c] + b[c];
  return m;
}
template <class T, int C, int R>
MTL_FN matrix<T, C, R> operator-(const matrix<T, C, R>& a, const matrix<T, C, R>& b) {
  matrix<T, C, R> m;
  for (int c = 0; c < C; c++) m[c] = a[c] - b[c];
  return m;
}
template <class T, int C, int R>
MTL_FN matrix<T, C, R> operator*(const matrix<T, C, R>& a, T s) {
  matrix<T, C, R> m;
  for (int c = 0; c < C; c++) m[c] = a[c] * s;
  return m;
}
template <class T, int C, int R>
MTL_FN matrix<T, C, R> operator*(T s, const matrix<T, C, R>& a) {
  return a * s;
}
template <class T, int C, int R>
MTL_FN vec<T, R> operator*(const matrix<T, C, R>& a, const vec<T, C>& v) {
  vec<T, R> r = a[0] * v.d[0];
  for (int c = 1; c < C; c++) r = r + a[c] * v.d[c];
  return r;
}
template <class T, int C, int R, int K>
MTL_FN matrix<T, K, R> operator*(const matrix<T, C, R>& a, const matrix<T, K, C>& b) {
  matrix<T, K, R> m;
  for (int k = 0; k < K; k++) m[k] = a * b[k];
  return m;
}
template <class T, int C, int R>
MTL_FN matrix<T, R, C> transpose(const matrix<T, C, R>& a) {
  matrix<T, R, C> m;
  for (int c = 0; c < C; c++) {
    for (int r = 0; r < R; r++) m[r].d[c] = a[c].d[r];
  }
  return m;
}

}  // namespace metal
