// Functions of single elements; kElementFunction (args_elementwise.h) says which.
//
// map_elements  a thread four elements, or one of the n % 4 last: n / 4 + n % 4 threads. Grid {that / 256, rounded up},
// zip_elements  threads {256}.
// zip_vector    a thread a column of a row, columns being width / 4 where that is whole, else width. Grid {columns /
//               threads.x, rows / threads.y}, rounded up; threads {x, 256 / x}, x the power of two from columns on, at
//               most 64: lanes lie side by side in memory without a division.
//
// Buffers begin at multiples of 16 bytes. No threadgroup memory. Each thread reads only what it writes: y may lie where
// an input lies.
#include "backends/metal/kernels/args_elementwise.h"
#include "backends/metal/kernels/dialect.h"

using namespace metal;
using namespace argent;

MTL_FC(uint, kElementFunction, 52);

// exp gets at most 80, so that no infinity arises, which fast mathematics may take for impossible: sigmoid is 2e-35 and
// not 0 below -80.
template <class T>
inline T one_and_exp_minus(T x) {
  return T(1.0f) + exp(-max(x, T(-80.0f)));
}

template <class T>
inline T silu(T x) {
  return x / one_and_exp_minus(x);
}

// 0.5 (1 + tanh(u)) = sigmoid(2 u); 1.5957... is 2 sqrt(2 / pi).
template <class T>
inline T gelu(T x) {
  return x / one_and_exp_minus(x * (x * x * 0.044715f + 1.0f) * 1.5957691216f);
}

template <class T>
inline T map_one(T x, float parameter) {
  if (kElementFunction == kElementScale) {
    return x * parameter;
  }
  if (kElementFunction == kElementSilu) {
    return silu(x);
  }
  if (kElementFunction == kElementGelu) {
    return gelu(x);
  }
  if (kElementFunction == kElementSigmoid) {
    return T(1.0f) / one_and_exp_minus(x);
  }
  // Precise: the fast tanh of Metal may be built from exp(2 x), which overflows.
  return parameter == 0.0f ? x : precise::tanh(x / parameter) * parameter;
}

template <class T>
inline T zip_one(T a, T b) {
  if (kElementFunction == kElementAdd) {
    return a + b;
  }
  if (kElementFunction == kElementMul) {
    return a * b;
  }
  if (kElementFunction == kElementMulSigmoid) {
    return a * (T(1.0f) / one_and_exp_minus(b));  // as sigmoid and a product give it
  }
  if (kElementFunction == kElementMulSilu) {
    return silu(a) * b;
  }
  return gelu(a) * b;
}

kernel void map_elements(constant ElementArgs& args [[buffer(0)]],  //
                         device const float* x [[buffer(1)]],       // [n]
                         device float* y [[buffer(2)]],             // [n]
                         uint i [[thread_position_in_grid]]) {
  const uint fours = args.n / 4;
  if (i < fours) {
    const float4 v = reinterpret_cast<device const float4*>(x)[i];
    reinterpret_cast<device float4*>(y)[i] = map_one(v, args.parameter);
  } else if (i < fours + args.n % 4) {
    y[3 * fours + i] = map_one(x[3 * fours + i], args.parameter);
  }
}

kernel void zip_elements(constant ElementArgs& args [[buffer(0)]],  //
                         device const float* a [[buffer(1)]],       // [n]
                         device const float* b [[buffer(2)]],       // [n]
                         device float* y [[buffer(3)]],             // [n]
                         uint i [[thread_position_in_grid]]) {
  const uint fours = args.n / 4;
  if (i < fours) {
    const float4 v = reinterpret_cast<device const float4*>(a)[i];
    reinterpret_cast<device float4*>(y)[i] = zip_one(v, reinterpret_cast<device const float4*>(b)[i]);
  } else if (i < fours + args.n % 4) {
    y[3 * fours + i] = zip_one(a[3 * fours + i], b[3 * fours + i]);
  }
}

template <class T>
inline void zip_column(device const T* x, device const T* v, device T* y, uint columns, uint column, uint row) {
  if (column < columns) {
    const ulong at = ulong(row) * columns + column;
    const T a = x[at];
    const T b = v[column];
    y[at] = kElementFunction == kElementAdd ? a + b : a * b;
  }
}

kernel void zip_vector(constant RowVectorArgs& args [[buffer(0)]],    //
                       device const float* x [[buffer(1)]],           // [rows][width]
                       device const float* v [[buffer(2)]],           // [width]
                       device float* y [[buffer(3)]],                 // [rows][width]
                       uint3 position [[thread_position_in_grid]]) {  //
  if (position.y < args.rows) {
    if (args.width % 4 == 0) {
      zip_column(reinterpret_cast<device const float4*>(x), reinterpret_cast<device const float4*>(v),
                 reinterpret_cast<device float4*>(y), args.width / 4, position.x, position.y);
    } else {
      zip_column(x, v, y, args.width, position.x, position.y);
    }
  }
}
