// Products of matrices of every format: one token, a few, many.
#include <fmt/format.h>

#include "backends/metal/kernels/args.h"
#include "metal/cases.h"
#include "metal/matrices.h"
#include "metal/weights.h"

namespace argent::metal {

namespace {

struct Shape {
  uint32_t rows, cols, tokens;
  uint32_t x_gap = 0, y_gap = 0;  // between a row and the next; x's a multiple of 4
  uint32_t large = UINT32_MAX;    // from this token on, some activations are beyond half's range
};

std::string run(Device& device, const std::string& kernel, Format format, const Shape& shape, Size grid, Size threads,
                std::vector<uint32_t> threadgroup_bytes, double tolerance) {
  Numbers numbers(shape.rows * 1000003 + shape.cols * 101 + shape.tokens);
  const Matrix w(format, shape.rows, shape.cols, numbers);
  const uint32_t x_stride = shape.cols + shape.x_gap, y_stride = shape.rows + shape.y_gap;
  // No bytes after the last row: reading on is out of bounds.
  auto x = numbers.floats(size_t(shape.tokens - 1) * x_stride + shape.cols);
  enlarge(x, shape.large, shape.tokens, shape.cols, x_stride);
  const Products want(w, x, shape.tokens, x_stride);
  Bench bench(device);
  const Buffer& y = bench.upload(std::vector<float>(size_t(shape.tokens - 1) * y_stride + shape.rows, kUntouched));
  Dispatch d = bench.dispatch(kernel, {}, grid, threads);
  d.value(0, MatmulArgs{shape.rows, shape.cols, shape.tokens, x_stride, y_stride});
  d.bind(1, bench.upload(w.bytes)).bind(2, bench.upload(x)).bind(3, y);
  d.threadgroup_bytes = std::move(threadgroup_bytes);
  bench.run({d});
  if (!bench.error().empty()) return bench.error();
  return compare(bench.floats(y), want.sum, want.magnitude, shape.tokens, shape.rows, y_stride, tolerance);
}

std::vector<Case> matmul_cases() {
  std::vector<Case> cases;
  for (const FormatInfo& f : kFormats) {
    if (!f.format) continue;
    const Format format = *f.format;
    const std::string name = name_of(format);
    auto add = [&](const std::string& family, const Shape& s, Size grid, Size threads, std::vector<uint32_t> shared,
                   double tolerance) {
      const std::string kernel = family + name;
      cases.push_back(
          {kernel,
           fmt::format("{}_{}x{}_tokens_{}{}", kernel, s.rows, s.cols, s.tokens,
                       s.large < s.tokens ? fmt::format("_large_{}", s.large) : ""),
           [=](Device& device) { return run(device, kernel, format, s, grid, threads, shared, tolerance); }});
    };
    // Rows are none or one more than a multiple of what a SIMD-group or tile has; columns one block, and numbers of
    // blocks that leave lanes without work.
    const uint32_t block = std::max(f.block, 8u), odd = f.block == 256 ? 3 : block == 32 ? 17 : 37;
    const uint32_t rows_of_simdgroup = format == Format::q4_0 ? 4 : 2;
    for (const Shape& s : {Shape{1, block, 1}, {7, odd * block, 1}, {4, 4 * block, 1}, {9, 5 * block, 9, 4, 3}})
      add("mul_mv_", s, {groups(s.rows, 2 * rows_of_simdgroup), s.tokens}, {64}, {}, kFloatSums);
    for (const Shape& s : {Shape{1, block, 2}, {5, odd * block, 3, 4, 1}, {6, 2 * block, 5}, {9, 3 * block, 8, 0, 2}})
      add("mul_mv_tokens_", s, {groups(s.rows, 4)}, {64}, {}, kFloatSums);
    const uint32_t step = std::max(f.block, 32u);
    // The last tile of tokens has 1 to 40, in groups of 8 that are full or not.
    for (const Shape& s : {Shape{64, step, 32, 4, 0},
                           {65, step, 33, 0, 3},
                           {3, 2 * step, 9},
                           {64, step, 3},
                           {64, step, 72},
                           {2, step, 41},
                           {65, step, 40, 4, 1, 0},
                           {2, step, 39, 0, 0, 33}})
      add("mul_mm_", s, {mul_mm_token_tiles(s.tokens), groups(s.rows, 64)}, {128}, {6656}, kHalves);
  }
  return cases;
}

const CaseSet known(matmul_cases);

}  // namespace

}  // namespace argent::metal
