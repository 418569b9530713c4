// Fused matrix kernels: gated feed-forward, and q, k and v at once.
#include <fmt/format.h>

#include <numbers>

#include "backends/metal/kernels/args.h"
#include "backends/metal/kernels/args_fused.h"
#include "metal/cases.h"
#include "metal/matrices.h"
#include "metal/weights.h"

namespace argent::metal {

namespace {

struct Shape {
  uint32_t tokens;
  uint32_t cols;
  uint32_t x_gap = 0, y_gap = 0;  // x's a multiple of 4
  uint32_t large = UINT32_MAX;    // from this token on, some activations are beyond half's range
};

double activated(uint32_t act, double x) {
  return act == kActSilu ? x / (1 + std::exp(-x))
                         : 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}

std::string run_glu(Device& device, const std::string& kernel, Format of_gate, Format of_up, uint32_t act,
                    uint32_t rows, const Shape& shape) {
  Numbers numbers(rows * 1000003 + shape.tokens * 101 + uint32_t(of_gate));
  const Matrix gate(of_gate, rows, shape.cols, numbers), up(of_up, rows, shape.cols, numbers);
  const uint32_t x_stride = shape.cols + shape.x_gap, y_stride = rows + shape.y_gap;
  // So small that gates are where the activation bends.
  auto x = numbers.floats(size_t(shape.tokens - 1) * x_stride + shape.cols, 0.1f);
  enlarge(x, shape.large, shape.tokens, shape.cols, x_stride);
  const Products g(gate, x, shape.tokens, x_stride), u(up, x, shape.tokens, x_stride);
  std::vector<double> want, scale;
  for (size_t i = 0; i < g.sum.size(); i++) {
    const double a = activated(act, g.sum[i]);
    want.push_back(a * u.sum[i]);
    // Errors of both sums, the gate's times the activation's slope of at most 1.13; and of exp and tanh.
    scale.push_back(1.13 * g.magnitude[i] * std::fabs(u.sum[i]) + std::fabs(a) * u.magnitude[i] +
                    2 * std::fabs(want.back()));
  }
  Bench bench(device);
  const Buffer& y = bench.upload(std::vector<float>(size_t(shape.tokens - 1) * y_stride + rows, kUntouched));
  auto constants = format_constants(20, {&gate, &up});
  constants.push_back({22, act});
  const bool many = kernel == "glu_mm", few = kernel == "glu_tokens";
  const Size grid =
      many ? Size{mul_mm_token_tiles(shape.tokens), groups(rows, 32)} : Size{groups(rows, 4), few ? 1 : shape.tokens};
  Dispatch d = bench.dispatch(kernel, constants, grid, {128});
  d.value(0, MatmulArgs{rows, shape.cols, shape.tokens, x_stride, y_stride});
  d.bind(1, bench.upload(gate.bytes)).bind(2, bench.upload(up.bytes)).bind(3, bench.upload(x)).bind(4, y);
  d.threadgroup_bytes = {many ? 6656u : few ? 128u : 16u};
  bench.run({d});
  if (!bench.error().empty()) return bench.error();
  return compare(bench.floats(y), want, scale, shape.tokens, rows, y_stride, many ? kHalves : kFloatSums);
}

std::string run_qkv(Device& device, const std::string& kernel, const std::vector<Format>& formats,
                    const std::vector<uint32_t>& rows, bool biased, const Shape& shape) {
  Numbers numbers(rows[0] * 1000003 + shape.tokens * 101 + uint32_t(formats[0]));
  std::vector<Matrix> w;
  for (size_t i = 0; i < 3; i++) w.emplace_back(formats[i], rows[i], shape.cols, numbers);
  const uint32_t x_stride = shape.cols + shape.x_gap;
  const auto x = numbers.floats(size_t(shape.tokens - 1) * x_stride + shape.cols);
  Bench bench(device);
  auto constants = format_constants(23, {&w[0], &w[1], &w[2]});
  constants.push_back({26, biased});
  Dispatch d = bench.dispatch(
      kernel, constants,
      {groups(rows[0], 4) + groups(rows[1], 4) + groups(rows[2], 4), kernel == "qkv_tokens" ? 1 : shape.tokens}, {64});
  d.value(0, QkvArgs{rows[0], rows[1], rows[2], shape.cols, shape.tokens, x_stride}).bind(4, bench.upload(x));
  std::vector<const Buffer*> outputs;
  std::vector<std::vector<float>> biases;
  for (uint32_t i = 0; i < 3; i++) {
    biases.push_back(numbers.floats(rows[i]));
    outputs.push_back(&bench.upload(std::vector<float>(size_t(shape.tokens) * rows[i], kUntouched)));
    d.bind(1 + i, bench.upload(w[i].bytes)).bind(5 + i, *outputs[i]).bind(8 + i, bench.upload(biases[i]));
  }
  bench.run({d});
  if (!bench.error().empty()) return bench.error();
  for (uint32_t i = 0; i < 3; i++) {
    Products want(w[i], x, shape.tokens, x_stride);
    for (size_t e = 0; e < want.sum.size(); e++) {
      const double bias = biased ? double(biases[i][e % rows[i]]) : 0;
      want.sum[e] += bias;
      want.magnitude[e] += std::fabs(bias);
    }
    const std::string wrong =
        compare(bench.floats(*outputs[i]), want.sum, want.magnitude, shape.tokens, rows[i], rows[i], kFloatSums);
    if (!wrong.empty()) return fmt::format("{} of {}", wrong, "qkv"[i]);
  }
  return "";
}

std::vector<Case> fused_cases() {
  std::vector<Case> cases;
  std::vector<Format> formats;
  for (const FormatInfo& f : kFormats)
    if (f.format) formats.push_back(*f.format);
  const size_t n = formats.size();
  for (size_t i = 0; i < n; i++) {
    // Every format in every place, beside different ones, and now and then the same.
    const Format first = formats[i], second = formats[(i + i % 4) % n], third = formats[(i + 5) % n];
    const uint32_t act = i % 2, odd = uint32_t(i % 4), few = uint32_t(2 + i % 7);
    auto glu = [&](const std::string& kernel, uint32_t rows, const Shape& s) {
      cases.push_back({kernel,
                       fmt::format("{}_{}_{}_{}_{}x{}_tokens_{}", kernel, name_of(first), name_of(second),
                                   act ? "gelu" : "silu", rows, s.cols, s.tokens),
                       [=](Device& device) { return run_glu(device, kernel, first, second, act, rows, s); }});
    };
    glu("glu", 5 + odd, {1, 768});
    glu("glu_tokens", 4 + odd, {few, 256, 4, 3});
    glu("glu_mm", 30 + odd, {32 + 5 * odd, 256, 4, odd});
    auto qkv = [&](const std::string& kernel, const std::vector<uint32_t>& rows, bool biased, const Shape& s) {
      cases.push_back({kernel,
                       fmt::format("{}_{}_{}_{}_{}_{}_{}x{}_tokens_{}{}", kernel, name_of(first), name_of(third),
                                   name_of(second), rows[0], rows[1], rows[2], s.cols, s.tokens, biased ? "_bias" : ""),
                       [=](Device& device) {
                         return run_qkv(device, kernel, {first, third, second}, rows, biased, s);
                       }});
    };
    qkv("qkv", {9 + odd, 5 - odd, 4 + odd}, i % 3 > 0, {1, 512});
    qkv("qkv_tokens", {7 + odd, 4 - odd, 3 + odd}, i % 3 < 2, {few, 256, 4});
  }
  cases.push_back({"glu_mm", "glu_mm_q8_0_q5_0_silu_65x64_tokens_41", [](Device& device) {
                     return run_glu(device, "glu_mm", Format::q8_0, Format::q5_0, kActSilu, 65, {41, 64});
                   }});
  for (const uint32_t large : {0u, 33u})
    cases.push_back(
        {"glu_mm", fmt::format("glu_mm_q4_0_q8_0_silu_33x64_tokens_39_large_{}", large), [large](Device& device) {
           return run_glu(device, "glu_mm", Format::q4_0, Format::q8_0, kActSilu, 33, {39, 64, 4, 1, large});
         }});
  // More tokens in the grid, and lanes without columns.
  cases.push_back({"glu", "glu_q8_0_q8_0_silu_3x32_tokens_4", [](Device& device) {
                     return run_glu(device, "glu", Format::q8_0, Format::q8_0, kActSilu, 3, {4, 32, 4, 1});
                   }});
  cases.push_back(
      {"qkv", "qkv_f16_f16_f32_1_2_3x40_tokens_3_bias", [](Device& device) {
         return run_qkv(device, "qkv", {Format::f16, Format::f16, Format::f32}, {1, 2, 3}, true, {3, 40, 4});
       }});
  return cases;
}

const CaseSet known(fused_cases);

}  // namespace

}  // namespace argent::metal
