// Matrices of every format with their values as floats, and exact products.
#pragma once

#include <vector>

#include "metal/cases.h"
#include "quant/formats.h"

namespace argent::metal {

struct Matrix {
  Matrix(Format format, uint32_t rows, uint32_t cols, Numbers& numbers);
  uint32_t id() const { return info(format).gguf_id; }  // as the kernels' function constants want it
  Format format;
  uint32_t rows, cols;
  std::vector<uint8_t> bytes;  // as in a file, nothing behind the last row
  std::vector<float> values;
};

// Products of tokens of x, x_stride apart, with every row, and the sums of the magnitudes that they are made of.
struct Products {
  Products(const Matrix& w, const std::vector<float>& x, uint32_t tokens, uint32_t x_stride);
  std::vector<double> sum, magnitude;  // [token][row]
};

// Gives two of three tokens from the first on an activation beyond half's range, at any of their columns.
void enlarge(std::vector<float>& x, uint32_t first, uint32_t tokens, uint32_t cols, uint32_t x_stride);

// Sums of floats in 32 lanes: half a unit in the last place for each of the additions of a lane and of the lanes.
constexpr double kFloatSums = 1e-6;
// Weights and activations are rounded to halves: half a unit in the last of 11 bits each.
constexpr double kHalves = 2 * 0x1p-11;

// Function constants of kernels that take a format for each matrix.
inline std::vector<FunctionConstant> format_constants(uint32_t first, const std::vector<const Matrix*>& matrices) {
  std::vector<FunctionConstant> constants;
  for (const Matrix* m : matrices) constants.push_back({first++, m->id()});
  return constants;
}

inline uint32_t groups(uint32_t n, uint32_t of) { return (n + of - 1) / of; }

}  // namespace argent::metal
