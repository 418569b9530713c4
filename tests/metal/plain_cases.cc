// Products and rows of float formats of any length, one element at a time.
#include <fmt/format.h>

#include "backends/metal/kernels/args.h"
#include "base/half.h"
#include "metal/cases.h"

namespace argent::metal {

namespace {

constexpr const char* kNames[] = {"f32", "f16", "bf16"};

// Elements as kPlainFormat `format` stores them, and what they then are.
std::vector<std::byte> encode(uint32_t format, std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() * (format == 0 ? 4 : 2));
  for (size_t i = 0; i < values.size(); i++) {
    if (format == 0) {
      std::memcpy(bytes.data() + 4 * i, &values[i], 4);
      continue;
    }
    const uint16_t bits = format == 1 ? float_to_half(values[i]) : float_to_bf16(values[i]);
    std::memcpy(bytes.data() + 2 * i, &bits, 2);
    values[i] = format == 1 ? half_to_float(bits) : bf16_to_float(bits);
  }
  return bytes;
}

std::string run_product(Device& device, uint32_t format, uint32_t rows, uint32_t cols, uint32_t tokens) {
  Numbers numbers(rows * 31 + cols);
  auto w = numbers.floats(size_t(rows) * cols);
  const auto x = numbers.floats(size_t(tokens) * cols);
  Bench bench(device);
  const Buffer& weights = bench.upload(encode(format, w));
  std::vector<double> want, scale;
  for (uint32_t t = 0; t < tokens; t++)
    for (uint32_t r = 0; r < rows; r++) {
      double sum = 0, size = 0;
      for (uint32_t c = 0; c < cols; c++) {
        const double term = double(w[r * cols + c]) * x[t * cols + c];
        sum += term, size += std::fabs(term);
      }
      want.push_back(sum), scale.push_back(size);
    }
  const Buffer& y = bench.upload(std::vector<float>(size_t(tokens) * rows, kUntouched));
  Dispatch d = bench.dispatch("mul_mv_plain", {{60, format}}, {(rows + 1) / 2, tokens}, {64});
  d.value(0, MatmulArgs{rows, cols, tokens, cols, rows}).bind(1, weights).bind(2, bench.upload(x)).bind(3, y);
  bench.run({d});
  if (!bench.error().empty()) return bench.error();
  // A sum of floats in 32 parts.
  return compare(bench.floats(y), want, scale, tokens, rows, rows, 1e-6);
}

std::string run_rows(Device& device, uint32_t format, uint32_t rows, uint32_t cols) {
  Numbers numbers(rows * 37 + cols);
  auto w = numbers.floats(size_t(rows) * cols);
  Bench bench(device);
  const Buffer& weights = bench.upload(encode(format, w));
  const std::vector<uint32_t> ids = {rows - 1, 0, rows / 2, 0xffffffff};
  std::vector<double> want;
  for (const uint32_t id : ids) {  // one outside of the table reads the last row
    const uint32_t row = std::min(id, rows - 1);
    want.insert(want.end(), w.begin() + row * cols, w.begin() + (row + 1) * cols);
  }
  const std::vector<double> scale(want.size(), 1);
  const Buffer& y = bench.upload(std::vector<float>(want.size(), kUntouched));
  Dispatch d = bench.dispatch("get_rows_plain", {{60, format}}, {(cols + 63) / 64, uint32_t(ids.size())}, {64});
  d.value(0, GetRowsArgs{rows, cols, cols}).bind(1, weights).bind(2, bench.upload(ids)).bind(3, y);
  bench.run({d});
  if (!bench.error().empty()) return bench.error();
  return compare(bench.floats(y), want, scale, ids.size(), cols, cols, 0);
}

std::vector<Case> plain_cases() {
  std::vector<Case> cases;
  for (uint32_t format = 0; format < 3; format++) {
    for (const auto& [rows, cols, tokens] :
         {std::tuple(1u, 1u, 1u), std::tuple(5u, 37u, 3u), std::tuple(34u, 131u, 2u), std::tuple(3u, 64u, 1u)})
      cases.push_back({"mul_mv_plain",
                       fmt::format("mul_mv_plain_{}_{}x{}_tokens_{}", kNames[format], rows, cols, tokens),
                       [=](Device& device) { return run_product(device, format, rows, cols, tokens); }});
    for (const auto& [rows, cols] : {std::pair(1u, 1u), std::pair(9u, 37u), std::pair(4u, 67u)})
      cases.push_back({"get_rows_plain", fmt::format("get_rows_plain_{}_{}x{}", kNames[format], rows, cols),
                       [=](Device& device) { return run_rows(device, format, rows, cols); }});
  }
  return cases;
}

const CaseSet known(plain_cases);

}  // namespace

}  // namespace argent::metal
