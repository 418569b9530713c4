// Products of quantised matrices: one token, a few, many.
#include <fmt/format.h>

#include "backends/metal/kernels/args.h"
#include "base/half.h"
#include "metal/cases.h"
#include "quant/formats.h"

namespace argent::metal {

namespace {

struct Shape {
  uint32_t rows, cols, tokens;
  uint32_t x_gap = 0, y_gap = 0;  // between a row and the next; x's a multiple of 4
};

// Random blocks with scales of a sensible size.
std::vector<uint8_t> random_rows(Format format, uint64_t rows, uint64_t cols, Numbers& numbers) {
  const FormatInfo& f = info(format);
  std::vector<uint8_t> bytes(rows * row_bytes(format, cols));
  for (uint8_t& b : bytes) b = uint8_t(numbers.bits());
  const size_t scales = format == Format::q4_k ? 2 : 1;
  for (size_t block = 0; block < bytes.size(); block += f.bytes) {
    for (size_t s = 0; s < scales; s++) {
      const uint16_t half = float_to_half(0.02f + 0.01f * numbers.next());
      std::memcpy(&bytes[block + 2 * s], &half, sizeof half);
    }
  }
  return bytes;
}

std::string run(Device& device, const std::string& kernel, Format format, const Shape& shape, Size grid, Size threads,
                std::vector<uint32_t> threadgroup_bytes, double tolerance) {
  Numbers numbers(shape.rows * 1000003 + shape.cols * 101 + shape.tokens);
  const auto weights = random_rows(format, shape.rows, shape.cols, numbers);
  const uint32_t x_stride = shape.cols + shape.x_gap, y_stride = shape.rows + shape.y_gap;
  // No bytes after the last row: reading on is out of bounds.
  const auto x = numbers.floats(size_t(shape.tokens - 1) * x_stride + shape.cols);
  std::vector<double> want, scale;
  std::vector<float> row(shape.cols);
  std::vector<std::vector<float>> w(shape.rows, row);
  for (uint32_t r = 0; r < shape.rows; r++)
    decode_row(format, weights.data() + r * row_bytes(format, shape.cols), w[r].data(), shape.cols);
  for (uint32_t t = 0; t < shape.tokens; t++) {
    for (uint32_t r = 0; r < shape.rows; r++) {
      double sum = 0, absolute = 0;
      for (uint32_t c = 0; c < shape.cols; c++) {
        const double product = double(w[r][c]) * x[size_t(t) * x_stride + c];
        sum += product;
        absolute += std::fabs(product);
      }
      want.push_back(sum);
      scale.push_back(absolute);
    }
  }
  Bench bench(device);
  const Buffer& y = bench.upload(std::vector<float>(size_t(shape.tokens - 1) * y_stride + shape.rows, kUntouched));
  Dispatch d = bench.dispatch(kernel, {}, grid, threads);
  d.value(0, MatmulArgs{shape.rows, shape.cols, shape.tokens, x_stride, y_stride});
  d.bind(1, bench.upload(weights)).bind(2, bench.upload(x)).bind(3, y);
  d.threadgroup_bytes = std::move(threadgroup_bytes);
  bench.run({d});
  if (!bench.error().empty()) return bench.error();
  return compare(bench.floats(y), want, scale, shape.tokens, shape.rows, y_stride, tolerance);
}

uint32_t groups(uint32_t n, uint32_t of) { return (n + of - 1) / of; }

}  // namespace

std::vector<Case> matmul_cases() {
  std::vector<Case> cases;
  // Sums of floats in 32 lanes: half a unit in the last place for each of the additions of a lane and of the lanes.
  constexpr double kFloatSums = 1e-6;
  struct Kind {
    Format format;
    std::string name;
    uint32_t rows_of_simdgroup;
    std::vector<Shape> shapes, shapes_of_tokens, shapes_of_tiles;
  };
  // Weights and activations are rounded to halves: half a unit in the last of 11 bits each.
  constexpr double kHalves = 2 * 0x1p-11;
  const std::vector<Kind> kinds = {
      {Format::q4_0,
       "q4_0",
       4,
       {{1, 32, 1}, {7, 96, 1}, {8, 544, 1}, {19, 1056, 2, 4, 3}},
       {{1, 32, 2}, {5, 288, 3, 4, 1}, {9, 96, 8}},
       {{64, 64, 32, 4, 0}, {65, 32, 33, 0, 3}, {3, 96, 5}, {128, 32, 31}}},
      {Format::q4_k,
       "q4_k",
       2,
       {{1, 256, 1}, {3, 768, 1}, {4, 1024, 1}, {9, 1280, 2, 4, 3}},
       {{1, 256, 2}, {5, 512, 3, 4, 1}, {6, 768, 8}},
       {{64, 256, 32}, {64, 256, 3}, {5, 512, 35, 4, 1}}},
  };
  for (const Kind& kind : kinds) {
    const Format format = kind.format;
    for (const Shape& s : kind.shapes) {
      const std::string kernel = "mul_mv_" + kind.name;
      const Size grid{groups(s.rows, 2 * kind.rows_of_simdgroup), s.tokens};
      cases.push_back({kernel, fmt::format("{}_{}x{}_tokens_{}", kernel, s.rows, s.cols, s.tokens),
                       [=](Device& device) { return run(device, kernel, format, s, grid, {64}, {}, kFloatSums); }});
    }
    for (const Shape& s : kind.shapes_of_tokens) {
      const std::string kernel = "mul_mv_tokens_" + kind.name;
      cases.push_back(
          {kernel, fmt::format("{}_{}x{}_tokens_{}", kernel, s.rows, s.cols, s.tokens),
           [=](Device& device) { return run(device, kernel, format, s, {groups(s.rows, 4)}, {64}, {}, kFloatSums); }});
    }
    for (const Shape& s : kind.shapes_of_tiles) {
      const std::string kernel = "mul_mm_" + kind.name;
      const Size grid{groups(s.rows, 64), groups(s.tokens, 32)};
      cases.push_back({kernel, fmt::format("{}_{}x{}_tokens_{}", kernel, s.rows, s.cols, s.tokens),
                       [=](Device& device) { return run(device, kernel, format, s, grid, {128}, {8192}, kHalves); }});
    }
  }
  return cases;
}

}  // namespace argent::metal
