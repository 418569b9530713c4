#include "metal/matrices.h"

#include "metal/weights.h"

namespace argent::metal {

Matrix::Matrix(Format format, uint32_t rows, uint32_t cols, Numbers& numbers)
    : format(format),
      rows(rows),
      cols(cols),
      bytes(random_rows(format, rows, cols, numbers)),
      values(size_t(rows) * cols) {
  for (uint32_t r = 0; r < rows; r++)
    decode_row(format, bytes.data() + r * row_bytes(format, cols), &values[size_t(r) * cols], cols);
}

Products::Products(const Matrix& w, const std::vector<float>& x, uint32_t tokens, uint32_t x_stride) {
  for (uint32_t t = 0; t < tokens; t++) {
    for (uint32_t r = 0; r < w.rows; r++) {
      double products = 0, absolute = 0;
      for (uint32_t c = 0; c < w.cols; c++) {
        const double product = double(w.values[size_t(r) * w.cols + c]) * x[size_t(t) * x_stride + c];
        products += product;
        absolute += std::fabs(product);
      }
      sum.push_back(products);
      magnitude.push_back(absolute);
    }
  }
}

void enlarge(std::vector<float>& x, uint32_t first, uint32_t tokens, uint32_t cols, uint32_t x_stride) {
  for (uint32_t t = first; t < tokens; t++)
    if (t % 3) x[size_t(t) * x_stride + 11 * t % cols] = (t % 2 ? -1.0f : 1.0f) * std::ldexp(1.3f, int(16 + t % 7));
}

}  // namespace argent::metal
