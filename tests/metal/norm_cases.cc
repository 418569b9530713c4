#include <fmt/format.h>

#include "backends/metal/kernels/args.h"
#include "metal/cases.h"

namespace argent::metal {

namespace {

std::string run(Device& device, uint32_t rows, uint32_t cols, uint32_t threads, bool weighted) {
  constexpr float kEps = 1e-5f;
  Numbers numbers(rows * 1000003 + cols);
  const auto x = numbers.floats(size_t(rows) * cols), weight = numbers.floats(cols);
  std::vector<double> want, scale;
  for (uint32_t r = 0; r < rows; r++) {
    double squares = 0;
    for (uint32_t c = 0; c < cols; c++) squares += double(x[r * cols + c]) * x[r * cols + c];
    const double factor = 1 / std::sqrt(squares / cols + kEps);
    for (uint32_t c = 0; c < cols; c++) {
      want.push_back(x[r * cols + c] * factor * (weighted ? weight[c] : 1.0f));
      scale.push_back(std::fabs(want.back()));
    }
  }
  Bench bench(device);
  const Buffer& y = bench.upload(std::vector<float>(x.size(), kUntouched));
  Dispatch d = bench.dispatch("rms_norm", {{0, weighted}}, {rows}, {threads});
  d.value(0, RmsNormArgs{cols, kEps})
      .bind(1, bench.upload(x))
      .bind(2, bench.upload(weighted ? weight : std::vector<float>{0}))
      .bind(3, y);
  d.threadgroup_bytes = {(threads / kSimdWidth * 4 + 15) / 16 * 16};
  bench.run({d});
  if (!bench.error().empty()) return bench.error();
  // The square root and the division are off by a few units in the last place; sums of floats add a little.
  return compare(bench.floats(y), want, scale, rows, cols, cols, 2e-6);
}

std::vector<Case> norm_cases() {
  std::vector<Case> cases;
  struct Shape {
    uint32_t rows, cols, threads;
    bool weighted;
  };
  for (const Shape& s : {Shape{1, 1, 32, true},
                         {3, 576, 128, true},
                         {2, 577, 64, true},
                         {2, 130, 96, false},
                         {2, 128, 64, false},
                         {1, 6656, 1024, true}}) {
    cases.push_back({"rms_norm",
                     fmt::format("rms_norm_{}x{}_threads_{}{}", s.rows, s.cols, s.threads, s.weighted ? "" : "_plain"),
                     [=](Device& device) { return run(device, s.rows, s.cols, s.threads, s.weighted); }});
  }
  return cases;
}

const CaseSet known(norm_cases);

}  // namespace

}  // namespace argent::metal
