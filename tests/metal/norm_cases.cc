// RMS norms of rows and heads, alone and with what is fused to them, also where outputs lie on inputs.
#include <fmt/format.h>

#include <algorithm>

#include "backends/metal/kernels/args_norm.h"
#include "metal/cases.h"

namespace argent::metal {

namespace {

enum class Fused { none, mul, add_mul, mul_add };
constexpr const char* kFused[] = {"alone", "mul", "add_mul", "mul_add"};
// The input that the first output (s of add_mul, else y) lies on.
enum class Place { apart, x, r };
constexpr const char* kPlace[] = {"", "_on_x", "_on_r"};

struct Shape {
  uint32_t n_groups, group, threads, fours;
  Fused fused = Fused::mul;
  Place place = Place::apart;
  float scale = 1.0f;
};

std::string run(Device& device, const std::string& kernel, const Shape& s) {
  constexpr float kEps = 1e-5f;
  const bool weighted = s.fused != Fused::none, before = s.fused == Fused::add_mul, after = s.fused == Fused::mul_add;
  Numbers numbers(s.n_groups * 1000003 + s.group);
  const size_t n = size_t(s.n_groups) * s.group;
  const auto x = numbers.floats(n, s.scale), w = numbers.floats(s.group), r = numbers.floats(n, s.scale);
  std::vector<double> want, scale, sums;
  for (uint32_t g = 0; g < s.n_groups; g++) {
    double squares = 0, largest = 0;
    for (uint32_t i = g * s.group; i < (g + 1) * s.group; i++) {
      sums.push_back(before ? x[i] + r[i] : x[i]);  // the sum is rounded to f32, and then normalised
      squares += sums[i] * sums[i];
    }
    const double root = std::sqrt(squares / s.group + kEps);
    for (uint32_t i = g * s.group; i < (g + 1) * s.group; i++) {
      want.push_back(sums[i] / root * (weighted ? w[i % s.group] : 1.0) + (after ? r[i] : 0.0));
      largest = std::max(largest, std::fabs(want.back()));
    }
    scale.resize(want.size(), largest);
  }

  Bench bench(device);
  const std::vector<float> nothing = {0}, untouched(n, kUntouched);
  const Buffer& x_buffer = bench.upload(x);
  const Buffer& r_buffer = bench.upload(before || after ? r : nothing);
  const auto first_output = [&]() -> const Buffer& {
    return s.place == Place::x ? x_buffer : s.place == Place::r ? r_buffer : bench.upload(untouched);
  };
  const Buffer& sum = before ? first_output() : bench.upload(nothing);
  const Buffer& y = before ? bench.upload(untouched) : first_output();
  const bool heads = kernel == "rms_norm_heads";
  const uint32_t simdgroups = s.threads / kSimdWidth;
  Dispatch d = bench.dispatch(kernel, {{0, weighted}, {1, before}, {2, after}, {3, s.fours}},
                              {heads ? (s.n_groups + simdgroups - 1) / simdgroups : s.n_groups}, {s.threads});
  d.value(0, RmsNormArgs{s.group, s.n_groups, kEps}).bind(1, x_buffer);
  d.bind(2, bench.upload(weighted ? w : nothing)).bind(3, r_buffer).bind(4, sum).bind(5, y);
  if (!heads) d.threadgroup_bytes = {(simdgroups * 4 + 15) / 16 * 16};
  bench.run({d});
  if (!bench.error().empty()) return bench.error();
  if (before) {
    // One addition of f32: exact.
    const std::string wrong = compare(bench.floats(sum), sums, scale, s.n_groups, s.group, s.group, 0);
    if (!wrong.empty()) return "sum: " + wrong;
  }
  // The sum of squares in f32, the root, and a rounding for each factor and term: tests/ops' bound for all backends.
  return compare(bench.floats(y), want, scale, s.n_groups, s.group, s.group, 1e-6);
}

// The norms around a residual. on_r: s lies where r lies, as it does in a plan.
std::string run_twice(Device& device, uint32_t n_groups, uint32_t group, uint32_t threads, bool on_r) {
  constexpr float kEps = 1e-8f, kEps2 = 1e-5f;
  Numbers numbers(n_groups * 77777 + group);
  const size_t n = size_t(n_groups) * group;
  const auto x = numbers.floats(n, 0.01f), w = numbers.floats(group), r = numbers.floats(n), w2 = numbers.floats(group);
  std::vector<double> sums, want, sum_scale, scale;
  for (uint32_t g = 0; g < n_groups; g++) {
    double squares = 0, again = 0, largest_sum = 0, largest = 0;
    const uint32_t begin = g * group, end = begin + group;
    for (uint32_t i = begin; i < end; i++) squares += double(x[i]) * x[i];
    for (uint32_t i = begin; i < end; i++) {
      sums.push_back(x[i] / std::sqrt(squares / group + kEps) * w[i - begin] + r[i]);
      again += sums[i] * sums[i];
      largest_sum = std::max(largest_sum, std::fabs(sums[i]));
    }
    for (uint32_t i = begin; i < end; i++) {
      want.push_back(sums[i] / std::sqrt(again / group + kEps2) * w2[i - begin]);
      largest = std::max(largest, std::fabs(want[i]));
    }
    scale.resize(want.size(), largest);
    sum_scale.resize(want.size(), largest_sum);
  }
  Bench bench(device);
  const std::vector<float> untouched(n, kUntouched);
  const Buffer& r_buffer = bench.upload(r);
  const Buffer& s = on_r ? r_buffer : bench.upload(untouched);
  const Buffer& y = bench.upload(untouched);
  Dispatch d = bench.dispatch("rms_norm_twice", {}, {n_groups}, {threads});
  d.value(0, NormTwiceArgs{group, kEps, kEps2}).bind(1, bench.upload(x)).bind(2, bench.upload(w)).bind(3, r_buffer);
  d.bind(4, bench.upload(w2)).bind(5, s).bind(6, y);
  d.threadgroup_bytes = {(threads / kSimdWidth * 8 + 15) / 16 * 16};
  bench.run({d});
  if (!bench.error().empty()) return bench.error();
  // Sums of squares in f32, the roots, and a rounding for each factor and term, as for one norm.
  const std::string wrong = compare(bench.floats(s), sums, sum_scale, n_groups, group, group, 1e-6);
  return !wrong.empty() ? "sum: " + wrong : compare(bench.floats(y), want, scale, n_groups, group, group, 2e-6);
}

std::vector<Case> norm_cases() {
  std::vector<Case> cases;
  struct Twice {
    uint32_t n_groups, group, threads;
    bool on_r;
  };
  for (const Twice& t : {Twice{3, 577, 96, false}, {2, 640, 160, true}, {1, 6656, 1024, true}, {5, 12, 32, false}})
    cases.push_back(
        {"rms_norm_twice",
         fmt::format("rms_norm_twice_{}x{}_threads_{}{}", t.n_groups, t.group, t.threads, t.on_r ? "_on_r" : ""),
         [=](Device& device) { return run_twice(device, t.n_groups, t.group, t.threads, t.on_r); }});
  const auto add = [&](const std::string& kernel, const Shape& s) {
    const size_t number = cases.size();
    cases.push_back({kernel,
                     fmt::format("{}_{}_{}x{}_threads_{}_fours_{}_{}{}", kernel, number, s.n_groups, s.group, s.threads,
                                 s.fours, kFused[size_t(s.fused)], kPlace[size_t(s.place)]),
                     [=](Device& device) { return run(device, kernel, s); }});
  };
  const auto add_every_op = [&](const std::string& kernel, Shape s) {
    for (const Fused fused : {Fused::none, Fused::mul, Fused::add_mul, Fused::mul_add})
      for (const Place place : {Place::apart, Place::x, Place::r}) {
        if (place == Place::r && fused < Fused::add_mul) continue;
        s.fused = fused, s.place = place;
        add(kernel, s);
      }
  };
  add_every_op("rms_norm", {2, 130, 96, 0});
  add_every_op("rms_norm", {3, 132, 32, 2});  // the second float4 of all lanes but one is past the end
  add_every_op("rms_norm_heads", {5, 37, 64, 0});
  add_every_op("rms_norm_heads", {7, 80, 128, 1});
  for (const Shape& s : {Shape{1, 1, 32, 0},
                         {2, 3, 32, 0},
                         {3, 576, 160, 1},
                         {2, 577, 64, 0},
                         {1, 6656, 416, 4},
                         {1, 6660, 256, 7},
                         {1, 6657, 1024, 0, Fused::add_mul, Place::x},
                         {1, 32768, 1024, 8, Fused::add_mul, Place::x},
                         {1, 32764, 1024, 8, Fused::mul_add},
                         {1, 40000, 1024, 0},
                         {2, 1152, 96, 3, Fused::mul, Place::apart, 3000.0f},
                         {2, 1152, 96, 3, Fused::mul, Place::apart, 1e-4f}})
    add("rms_norm", s);
  for (const Shape& s : {Shape{3, 1, 64, 0},
                         {9, 64, 128, 1},
                         {4, 96, 32, 1, Fused::none, Place::x},
                         {6, 128, 128, 1, Fused::mul, Place::x},
                         {3, 256, 64, 2, Fused::mul, Place::x},
                         {2, 516, 64, 5, Fused::add_mul}})
    add("rms_norm_heads", s);
  return cases;
}

const CaseSet known(norm_cases);

}  // namespace

}  // namespace argent::metal
