#include "metal_apple/bench.h"

#include <fmt/format.h>

#include <algorithm>

#include "backends/metal/kernels/args.h"
#include "metal/cases.h"
#include "metal/weights.h"

namespace argent::metal {

namespace {

struct Product {
  const char* family;
  Format format;
  uint32_t rows, cols, tokens;
};

Size grid_of(const Product& p) {
  const std::string family = p.family;
  if (family == "mul_mm_") return {mul_mm_token_tiles(p.tokens), (p.rows + 63) / 64};
  if (family == "mul_mv_tokens_") return {(p.rows + 3) / 4};
  const uint32_t rows = p.format == Format::q4_0 ? 8 : 4;
  return {(p.rows + rows - 1) / rows, p.tokens};
}

// A list of several dispatches that take turns with copies of the weights, so that no cache holds them all.
Result<double> best_seconds(MetalDevice& device, const Product& p, uint32_t dispatches, uint32_t lists) {
  const std::string kernel = p.family + name_of(p.format);
  const bool mm = std::string_view(p.family) == "mul_mm_";
  ARGENT_LET(const Pipeline* pipeline, device.pipeline(kernel, {}));
  Numbers numbers(1);
  const auto weights = random_rows(p.format, p.rows, p.cols, numbers);
  constexpr size_t kBeyondCaches = size_t(128) << 20;
  const size_t copies = std::clamp<size_t>(kBeyondCaches / weights.size(), 1, dispatches);
  std::vector<std::unique_ptr<Buffer>> w;
  for (size_t i = 0; i < copies; i++) {
    ARGENT_LET(auto buffer, device.alloc(weights.size()));
    std::copy_n(reinterpret_cast<const std::byte*>(weights.data()), weights.size(),
                buffer->fill(0, weights.size()).data());
    w.push_back(std::move(buffer));
  }
  const auto x_values = numbers.floats(size_t(p.tokens) * p.cols);
  ARGENT_LET(auto x, device.alloc(x_values.size() * sizeof(float)));
  std::memcpy(x->fill(0, x_values.size() * sizeof(float)).data(), x_values.data(), x_values.size() * sizeof(float));
  ARGENT_LET(auto y, device.alloc(size_t(p.tokens) * p.rows * sizeof(float)));
  CommandList list;
  for (uint32_t i = 0; i < dispatches; i++) {
    Dispatch d;
    d.pipeline = pipeline;
    d.grid = grid_of(p);
    d.threads = {mm ? 128u : 64u};
    if (mm) d.threadgroup_bytes = {6656};
    d.barrier = i > 0;
    d.value(0, MatmulArgs{p.rows, p.cols, p.tokens, p.cols, p.rows}).bind(1, *w[i % copies]).bind(2, *x).bind(3, *y);
    list.dispatches.push_back(std::move(d));
  }
  double best = 1e9;
  for (uint32_t i = 0; i < lists; i++) {
    const double before = device.counts().gpu_seconds;
    ARGENT_TRY(device.submit(list));
    ARGENT_TRY(device.wait());
    best = std::min(best, device.counts().gpu_seconds - before);
  }
  return best / dispatches;
}

}  // namespace

std::vector<BenchResult> run_bench(MetalDevice& device, bool small) {
  std::vector<BenchResult> results;
  for (const Format format : {Format::q4_0, Format::q4_k, Format::q6_k, Format::q8_0, Format::f16}) {
    for (const auto& [family, tokens] : {std::pair("mul_mv_", 1), {"mul_mv_tokens_", 4}, {"mul_mm_", 512}}) {
      const Product p = small ? Product{family, format, 64, 256, uint32_t(std::min(tokens, 32))}
                              : Product{family, format, 4096, 4096, uint32_t(tokens)};
      BenchResult r{family + name_of(format), fmt::format("{} x {}, {} tokens", p.rows, p.cols, p.tokens), {}};
      const auto seconds = best_seconds(device, p, small ? 2 : 32, small ? 1 : 10);
      if (!seconds) {
        r.error = seconds.error().message;
      } else if (*seconds > 0) {
        r.microseconds = *seconds * 1e6;
        r.gigabytes_per_s = double(p.rows) * double(row_bytes(format, p.cols)) / *seconds * 1e-9;
        r.gigaflops_per_s = 2.0 * p.rows * p.cols * p.tokens / *seconds * 1e-9;
      }
      results.push_back(std::move(r));
    }
  }
  return results;
}

}  // namespace argent::metal
