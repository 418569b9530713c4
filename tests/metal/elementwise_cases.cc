// Functions of elements, vectors along rows, and rows moved as they are.
#include <fmt/format.h>

#include <bit>
#include <cfenv>
#include <numbers>

#include "backends/metal/kernels/args_elementwise.h"
#include "metal/cases.h"

namespace argent::metal {

namespace {

// Absolute + relative * the magnitude of the element: the bounds of tests/ops, but for each element and not for its
// row.
struct Tolerance {
  double absolute, relative;
};
constexpr Tolerance kExact{0, 0};            // one operation of f32
constexpr Tolerance kFunctions{1e-7, 2e-6};  // exp and tanh in f32

enum class Place { apart, a, b };  // the input that the output lies on
constexpr const char* kPlace[] = {"", "_on_a", "_on_b"};

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double silu(double x) { return x * sigmoid(x); }
double gelu(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}

struct Function {
  ElementFunction function;
  const char* name;
  Tolerance tolerance;
  double (*of)(double a, double b);  // b is map_elements' parameter
};
constexpr Function kMaps[] = {
    {kElementScale, "scale", kExact, [](double x, double p) { return x * p; }},
    {kElementSilu, "silu", kFunctions, [](double x, double) { return silu(x); }},
    {kElementGelu, "gelu", kFunctions, [](double x, double) { return gelu(x); }},
    {kElementSigmoid, "sigmoid", kFunctions, [](double x, double) { return sigmoid(x); }},
    {kElementSoftcap, "softcap", kFunctions, [](double x, double p) { return p == 0 ? x : p * std::tanh(x / p); }}};
constexpr Function kZips[] = {
    {kElementAdd, "add", kExact, [](double a, double b) { return a + b; }},
    {kElementMul, "mul", kExact, [](double a, double b) { return a * b; }},
    {kElementMulSigmoid, "mul_sigmoid", kFunctions, [](double a, double b) { return a * sigmoid(b); }},
    {kElementMulSilu, "mul_silu", kFunctions, [](double a, double b) { return silu(a) * b; }},
    {kElementMulGelu, "mul_gelu", kFunctions, [](double a, double b) { return gelu(a) * b; }}};

// Compares with f of each element, rounded to f32: an exact function gives that very float.
std::string check(const Bench& bench, const Buffer& y, const std::vector<double>& exact, const Tolerance& tolerance) {
  std::vector<double> want, allowed;
  for (double v : exact) {
    want.push_back(float(v));
    allowed.push_back(tolerance.absolute + tolerance.relative * std::fabs(v));
  }
  return compare(bench.floats(y), want, allowed, 1, want.size(), want.size(), 1);
}

// Fast mathematics may take infinities for impossible: none may arise, not even on the way. The emulator computes on
// this thread, whose flags tell; on a GPU they stay clear.
std::string run_finite(Bench& bench, const Dispatch& d) {
  std::feclearexcept(FE_ALL_EXCEPT);
  bench.run({d});
  if (!bench.error().empty()) return bench.error();
  return std::fetestexcept(FE_OVERFLOW | FE_DIVBYZERO) ? "an infinity arose on the way" : "";
}

// Arguments of every size that matters: around zero, where exp saturates, and where it would overflow.
std::vector<float> arguments(uint32_t n, float size, Numbers& numbers) {
  std::vector<float> x = numbers.floats(n, size);
  const float far[] = {60, -60, 1000, -1000, 0, 88, -88, 89, -104, 20, -20};
  for (size_t i = 0; i < std::size(far) && i < n && size > 1; i++) x[n - 1 - i] = far[i];
  return x;
}

std::string run_map(Device& device, const Function& f, uint32_t n, float size, float parameter, Place place) {
  Numbers numbers(n);
  const auto x = arguments(n, size, numbers);
  std::vector<double> want;
  for (float v : x) want.push_back(f.of(v, parameter));
  Bench bench(device);
  const Buffer& from = bench.upload(x);
  const Buffer& y = place == Place::apart ? bench.upload(std::vector<float>(n, kUntouched)) : from;
  Dispatch d = bench.dispatch("map_elements", {{52, uint32_t(f.function)}}, {(n / 4 + n % 4 + 255) / 256}, {256});
  d.value(0, ElementArgs{n, parameter}).bind(1, from).bind(2, y);
  const std::string wrong = run_finite(bench, d);
  return wrong.empty() ? check(bench, y, want, f.tolerance) : wrong;
}

std::string run_zip(Device& device, const Function& f, uint32_t n, float size, Place place) {
  Numbers numbers(n);
  // The arguments that are far are the gate's: those of the exponential function.
  const bool gate_b = f.function == kElementMulSigmoid;
  const auto a = arguments(n, gate_b ? 1 : size, numbers), b = arguments(n, gate_b ? size : 1, numbers);
  std::vector<double> want;
  for (uint32_t i = 0; i < n; i++) want.push_back(f.of(a[i], b[i]));
  Bench bench(device);
  const Buffer &a_buffer = bench.upload(a), &b_buffer = bench.upload(b);
  const Buffer& y = place == Place::a   ? a_buffer
                    : place == Place::b ? b_buffer
                                        : bench.upload(std::vector<float>(n, kUntouched));
  Dispatch d = bench.dispatch("zip_elements", {{52, uint32_t(f.function)}}, {(n / 4 + n % 4 + 255) / 256}, {256});
  d.value(0, ElementArgs{n, 0}).bind(1, a_buffer).bind(2, b_buffer).bind(3, y);
  const std::string wrong = run_finite(bench, d);
  return wrong.empty() ? check(bench, y, want, f.tolerance) : wrong;
}

// Threads of a kernel that has a column a thread, and the grid for them.
struct Columns {
  Columns(uint32_t width, uint32_t rows) {
    const uint32_t columns = width % 4 ? width : width / 4;
    threads = {std::min(64u, std::bit_ceil(columns))};
    threads.y = 256 / threads.x;
    grid = {(columns + threads.x - 1) / threads.x, (rows + threads.y - 1) / threads.y};
  }
  Size threads, grid;
};

// x [rows][width], v [n]: v repeated along the row.
std::string run_vector(Device& device, const Function& f, uint32_t rows, uint32_t width, uint32_t n, Place place) {
  Numbers numbers(width * 1000003 + n);
  const auto x = numbers.floats(size_t(rows) * width), v = numbers.floats(n);
  std::vector<double> want;
  for (size_t i = 0; i < x.size(); i++) want.push_back(f.of(x[i], v[i % width % n]));
  Bench bench(device);
  const Buffer& from = bench.upload(x);
  const Buffer& y = place == Place::apart ? bench.upload(std::vector<float>(x.size(), kUntouched)) : from;
  const RowVectorArgs args{n, rows * (width / n)};
  const Columns columns(n, args.rows);
  Dispatch d = bench.dispatch("zip_vector", {{52, uint32_t(f.function)}}, columns.grid, columns.threads);
  d.value(0, args).bind(1, from).bind(2, bench.upload(v)).bind(3, y);
  bench.run({d});
  return bench.error().empty() ? check(bench, y, want, f.tolerance) : bench.error();
}

// Bits of any kind: numbers that are none, infinities, subnormals.
std::vector<uint32_t> words(size_t n, Numbers& numbers) {
  std::vector<uint32_t> v(n);
  for (uint32_t& w : v) w = uint32_t(numbers.bits());
  if (n > 2) v[0] = 0x7fa00001, v[1] = 0x00000001, v[2] = 0xff800000;
  return v;
}

std::string same_words(const Buffer& got, const std::vector<uint32_t>& want, uint32_t width) {
  for (size_t i = 0; i < want.size(); i++) {
    uint32_t g;
    std::memcpy(&g, got.bytes().data() + 4 * i, 4);
    if (g != want[i]) return fmt::format("row {} column {} is {:08x}, wanted {:08x}", i / width, i % width, g, want[i]);
  }
  return "";
}

std::string run_gather(Device& device, uint32_t rows, uint32_t width, const std::vector<uint32_t>& ids) {
  Numbers numbers(rows * 1000003 + width);
  const auto x = words(size_t(rows) * width, numbers);
  std::vector<uint32_t> want;
  for (uint32_t id : ids) {
    const auto row = x.begin() + size_t(std::min(id, rows - 1)) * width;
    want.insert(want.end(), row, row + width);
  }
  Bench bench(device);
  const Buffer& y = bench.alloc(want.size() * 4);
  const Columns columns(width, uint32_t(ids.size()));
  Dispatch d = bench.dispatch("gather_rows", {}, columns.grid, columns.threads);
  d.value(0, GatherRowsArgs{rows, width, uint32_t(ids.size())});
  d.bind(1, bench.upload(x)).bind(2, bench.upload(ids)).bind(3, y);
  bench.run({d});
  return bench.error().empty() ? same_words(y, want, width) : bench.error();
}

std::string run_copy(Device& device, uint32_t n) {
  Numbers numbers(n);
  const auto x = words(n, numbers);
  Bench bench(device);
  const Buffer& y = bench.alloc(n * 4);
  Dispatch d = bench.dispatch("copy_words", {}, {(n / 4 + n % 4 + 255) / 256}, {256});
  d.value(0, CopyArgs{n}).bind(1, bench.upload(x)).bind(2, y);
  bench.run({d});
  return bench.error().empty() ? same_words(y, x, n) : bench.error();
}

std::vector<Case> elementwise_cases() {
  std::vector<Case> cases;
  // 1030: more than a threadgroup's 256 threads of four, and a tail of two.
  struct Shape {
    uint32_t n;
    float size;
    Place place;
  };
  for (const Function& f : kMaps)
    for (const Shape& s : {Shape{1, 1, Place::apart},
                           {37, 1, Place::a},
                           {64, 60, Place::apart},
                           {1030, 1000, Place::apart},
                           {1027, 10, Place::a}})
      for (const float parameter : {0.3f, 0.0f, 30.0f}) {
        const bool takes_one = f.function == kElementScale || f.function == kElementSoftcap;
        if (!takes_one && parameter != 0.3f) continue;
        cases.push_back({"map_elements",
                         fmt::format("map_elements_{}_{}_size_{}{}_parameter_{}", f.name, s.n, s.size,
                                     kPlace[size_t(s.place)], int(10 * parameter)),
                         [=](Device& device) { return run_map(device, f, s.n, s.size, parameter, s.place); }});
      }
  for (const Function& f : kZips)
    for (const Shape& s : {Shape{3, 1, Place::apart},
                           {37, 1, Place::a},
                           {64, 60, Place::apart},
                           {1030, 1000, Place::apart},
                           {1027, 10, Place::b}})
      cases.push_back({"zip_elements",
                       fmt::format("zip_elements_{}_{}_size_{}{}", f.name, s.n, s.size, kPlace[size_t(s.place)]),
                       [=](Device& device) { return run_zip(device, f, s.n, s.size, s.place); }});
  struct Vector {
    uint32_t rows, width, n;
    Place place;
  };
  for (const Function& f : {kZips[0], kZips[1]})
    for (const Vector& s : {Vector{3, 37, 37, Place::apart},
                            {5, 576, 576, Place::a},
                            {2, 9 * 64, 64, Place::apart},
                            {3, 33, 1, Place::a},
                            {2, 30, 10, Place::apart},
                            {11, 260, 260, Place::apart}})
      cases.push_back(
          {"zip_vector",
           fmt::format("zip_vector_{}_{}x{}_by_{}{}", f.name, s.rows, s.width, s.n, kPlace[size_t(s.place)]),
           [=](Device& device) { return run_vector(device, f, s.rows, s.width, s.n, s.place); }});
  struct Gather {
    uint32_t rows, width;
    std::vector<uint32_t> ids;
  };
  for (const Gather& s : {Gather{1, 1, {0}},
                          {5, 37, {4, 0, 2, 2, 1, 4, 4}},
                          {3, 1152, {2, 0xffffffff, 3}},  // ids outside read the last row
                          {4, 260, {3, 1, 0, 1, 2}}})
    cases.push_back({"gather_rows", fmt::format("gather_rows_{}x{}_ids_{}", s.rows, s.width, s.ids.size()),
                     [=](Device& device) { return run_gather(device, s.rows, s.width, s.ids); }});
  for (const uint32_t n : {1u, 3u, 64u, 1031u})
    cases.push_back(
        {"copy_words", fmt::format("copy_words_{}", n), [=](Device& device) { return run_copy(device, n); }});
  return cases;
}

const CaseSet known(elementwise_cases);

}  // namespace

}  // namespace argent::metal
