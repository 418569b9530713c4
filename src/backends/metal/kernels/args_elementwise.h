// Arguments of kernels for elements and rows, by value; the same for the host and the kernels.
#pragma once

#if defined(__METAL_VERSION__)
#include <metal_stdlib>
#else
#include <cstdint>
#endif

namespace argent {

// What the function constant kElementFunction says.
enum ElementFunction : uint32_t {
  // map_elements; p is the parameter
  kElementScale,    // x * p
  kElementSilu,     // x sigmoid(x)
  kElementGelu,     // 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
  kElementSigmoid,  // 1 / (1 + exp(-x))
  kElementSoftcap,  // p tanh(x / p); x where p is 0
  // zip_elements, and the first two also zip_vector
  kElementAdd,         // a + b
  kElementMul,         // a * b
  kElementMulSigmoid,  // a * sigmoid(b)
  kElementMulSilu,     // silu(a) * b: the gate is a
  kElementMulGelu,     // gelu(a) * b
};

struct ElementArgs {
  uint32_t n;       // elements in all: rows * width
  float parameter;  // of map_elements
};
static_assert(sizeof(ElementArgs) == 8, "the same for all compilers");

// y[r][i] = x[r][i] op v[i]. A vector that is repeated along the row makes more and shorter rows.
struct RowVectorArgs {
  uint32_t width;  // of the vector
  uint32_t rows;   // rows * (width of the row / width of the vector)
};
static_assert(sizeof(RowVectorArgs) == 8, "the same for all compilers");

struct GatherRowsArgs {
  uint32_t rows;  // of x; every id is less
  uint32_t width;
  uint32_t n_ids;  // rows of y
};
static_assert(sizeof(GatherRowsArgs) == 12, "the same for all compilers");

struct CopyArgs {
  uint32_t n;  // words of four bytes
};
static_assert(sizeof(CopyArgs) == 4, "the same for all compilers");

}  // namespace argent
