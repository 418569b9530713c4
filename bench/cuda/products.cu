// Times the matrix products of the CUDA backend over the shapes of real models, each as a chain of launches over
// distinct weights (cold caches) in one graph, beside a plain read of as many bytes; and checks each format against
// sums in double, and the bits of 2 to 16 rows against those of each row alone. A JSON line each.
//   argent_bench_cuda [--check] [--rows 1,4,8,16,64,512] [--only PART_OF_A_NAME]
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "backends/cuda/part/kernels/kernels.h"
#include "backends/cuda/part/kernels/launch.cuh"
#include "quant/uniform.h"

namespace argent::cuda {
namespace {

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

template <class T>
T* allocate(uint64_t n) {
  T* p;
  check(cudaMalloc(&p, n * sizeof(T)), "cudaMalloc");
  return p;
}

__global__ void read_kernel(const uint4* from, uint64_t n, uint32_t* sink) {
  uint32_t x = 0;
  const uint64_t stride = uint64_t(gridDim.x) * blockDim.x;
  uint64_t i = uint64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  for (; i + 3 * stride < n; i += 4 * stride) {
    const uint4 a = __ldcs(from + i), b = __ldcs(from + i + stride), c = __ldcs(from + i + 2 * stride),
                d = __ldcs(from + i + 3 * stride);
    x ^= a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w ^ c.x ^ c.y ^ c.z ^ c.w ^ d.x ^ d.y ^ d.z ^ d.w;
  }
  if (x == 0x12345678) *sink = x;
}

// Blocks of any bits whose scales are small numbers.
std::vector<uint8_t> random_rows(Format format, uint64_t n_rows, uint32_t n_in, std::mt19937& random) {
  std::vector<uint8_t> bytes(row_bytes(format, n_in) * n_rows);
  for (uint64_t i = 0; i + 4 <= bytes.size(); i += 4) {
    const uint32_t word = random();
    std::memcpy(&bytes[i], &word, 4);
  }
  const uint32_t block = info(format).bytes;
  const auto half_at = [&](uint64_t at) {
    const uint16_t half = uint16_t(0x2000 + random() % 0x800);
    std::memcpy(&bytes[at], &half, 2);
  };
  for (uint64_t at = 0; at < bytes.size(); at += block) switch (format) {
      case Format::q4_1:
      case Format::q5_1:
      case Format::q4_k:
      case Format::q5_k:
        half_at(at), half_at(at + 2);
        break;
      case Format::q2_k:
        half_at(at + 80), half_at(at + 82);
        break;
      case Format::q3_k:
        half_at(at + 108);
        break;
      case Format::q6_k:
        half_at(at + 208);
        break;
      case Format::mxfp4:
        bytes[at] = uint8_t(118 + random() % 4);
        break;
      default:
        half_at(at);
    }
  return bytes;
}

// Largest difference from the sums in double over the largest magnitude of a row.
double worst(Format format, uint32_t n_out, uint32_t n_in, uint32_t n_rows, std::mt19937& random) {
  const std::vector<uint8_t> rows = random_rows(format, n_out, n_in, random);
  uint8_t* file = allocate<uint8_t>(rows.size());
  check(cudaMemcpy(file, rows.data(), rows.size(), cudaMemcpyHostToDevice), "copy");
  Matrix w{allocate<uint8_t>(matrix_bytes(format, n_out, n_in)), format, n_out, n_in};
  Launch launch;
  relay(launch, w, file, 0, n_out);
  std::vector<float> x(uint64_t(n_rows) * n_in), y(uint64_t(n_rows) * n_out);
  std::normal_distribution<float> normal;
  for (float& v : x) v = normal(random);
  float *dx = allocate<float>(x.size()), *dy = allocate<float>(y.size());
  check(cudaMemcpy(dx, x.data(), 4 * x.size(), cudaMemcpyHostToDevice), "copy");
  const uint64_t groups = uint64_t(n_rows) * n_in / 32;
  uint8_t* q8 = allocate<uint8_t>(product_rows_bytes(n_rows, n_in));
  const Q8 q{q8, n_rows, n_in};
  quantize(launch, dx, n_rows, n_in, q);
  const ProductPart part{w, dy, nullptr, nullptr};
  products(launch, &part, 1, dx, q, {}, n_rows);
  check(launch.error, launch.what);
  check(cudaDeviceSynchronize(), "products");
  check(cudaMemcpy(y.data(), dy, 4 * y.size(), cudaMemcpyDeviceToHost), "copy");

  const UniformShape shape = uniform_shape(format);
  std::vector<uint8_t> codes(n_in);
  std::vector<float> scale(n_in / shape.group), min(n_in / shape.group);
  std::vector<double> sums(y.size());
  std::vector<int> quants(x.size());
  std::vector<float> act(groups);
  for (uint64_t g = 0; g < groups; ++g) {
    float amax = 0;
    for (int i = 0; i < 32; ++i) amax = std::max(amax, std::fabs(x[32 * g + i]));
    act[g] = amax / 127;
    for (int i = 0; i < 32; ++i) quants[32 * g + i] = int(std::nearbyint(x[32 * g + i] * (127 / amax)));
  }
  const bool as_f16 = wide(launch, n_rows);
  for (uint32_t n = 0; n < n_out; ++n) {
    uniform_row(format, rows.data() + n * row_bytes(format, n_in), n_in, codes.data(), scale.data(), min.data());
    for (uint32_t r = 0; r < n_rows; ++r) {
      double sum = 0;
      for (uint32_t i = 0; i < n_in; ++i) {
        const double value = shape.has_min ? double(scale[i / shape.group]) * codes[i] + min[i / shape.group]
                                           : double(scale[i / shape.group]) * (codes[i] - shape.zero_point);
        const uint64_t at = uint64_t(r) * n_in + i;
        sum += value * (as_f16 ? x[at] : double(quants[at]) * act[at / 32]);
      }
      sums[uint64_t(r) * n_out + n] = sum;
    }
  }
  double most = 0, off = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    most = std::max(most, std::fabs(sums[i]));
    off = std::max(off, std::isfinite(y[i]) ? std::fabs(sums[i] - y[i]) : INFINITY);
  }
  cudaFree(file), cudaFree(const_cast<uint8_t*>(w.data)), cudaFree(dx), cudaFree(dy), cudaFree(q8);
  return off / most;
}

// Rows of 2 to 16 whose bits are not those that each row gives alone, with bias and residual, and with glu.
uint32_t rows_that_differ(Format format, uint32_t n_out, uint32_t n_in, std::mt19937& random) {
  const uint64_t one = matrix_bytes(format, n_out, n_in);
  Matrix w[2];
  Launch launch;
  for (Matrix& m : w) {
    const std::vector<uint8_t> rows = random_rows(format, n_out, n_in, random);
    uint8_t* file = allocate<uint8_t>(rows.size());
    check(cudaMemcpy(file, rows.data(), rows.size(), cudaMemcpyHostToDevice), "copy");
    m = {allocate<uint8_t>(one), format, n_out, n_in};
    relay(launch, m, file, 0, n_out);
    check(cudaDeviceSynchronize(), "relay");
    cudaFree(file);
  }
  std::vector<float> x(uint64_t(kWideAbove) * n_in), added(uint64_t(kWideAbove + 1) * n_out);
  std::normal_distribution<float> normal;
  for (float& v : x) v = normal(random);
  for (float& v : added) v = normal(random);
  float *dx = allocate<float>(x.size()), *dadded = allocate<float>(added.size());
  float* dy = allocate<float>(2ull * kWideAbove * n_out);
  check(cudaMemcpy(dx, x.data(), 4 * x.size(), cudaMemcpyHostToDevice), "copy");
  check(cudaMemcpy(dadded, added.data(), 4 * added.size(), cudaMemcpyHostToDevice), "copy");
  uint8_t* q8 = allocate<uint8_t>(product_rows_bytes(kWideAbove, n_in));
  // Results of rows [first, first + n): products, then glu.
  const auto results = [&](uint32_t first, uint32_t n) {
    const Q8 q{q8, n, n_in};
    const float *from = dx + uint64_t(first) * n_in, *residual = dadded + uint64_t(first + 1) * n_out;
    quantize(launch, from, n, n_in, q);
    const ProductPart part{w[0], dy, dadded, residual};
    products(launch, &part, 1, from, q, {}, n);
    glu(launch, w[0], w[1], Act::silu, q, {}, dy + uint64_t(kWideAbove) * n_out, n);
    check(launch.error, launch.what);
    check(cudaDeviceSynchronize(), "products");
    std::vector<uint32_t> both(2ull * n * n_out);
    for (uint32_t i = 0; i < 2; ++i)
      check(cudaMemcpy(&both[uint64_t(i) * n * n_out], dy + uint64_t(i) * kWideAbove * n_out, 4ull * n * n_out,
                       cudaMemcpyDeviceToHost),
            "copy");
    return both;
  };
  std::vector<std::vector<uint32_t>> alone;
  for (uint32_t r = 0; r < kWideAbove; ++r) alone.push_back(results(r, 1));
  uint32_t differ = 0;
  for (uint32_t n = 2; n <= kWideAbove; ++n) {
    const std::vector<uint32_t> all = results(0, n);
    for (uint32_t r = 0; r < n; ++r)
      for (uint32_t i = 0; i < 2; ++i)
        differ += std::memcmp(&all[(uint64_t(i) * n + r) * n_out], &alone[r][uint64_t(i) * n_out], 4ull * n_out) != 0;
  }
  for (const Matrix& m : w) cudaFree(const_cast<uint8_t*>(m.data));
  cudaFree(dx), cudaFree(dadded), cudaFree(dy), cudaFree(q8);
  return differ;
}

struct Shape {
  const char* name;
  Format format;
  uint32_t n_out, n_in;
  bool glu;
};

// Microseconds a launch of a graph of many, each over its own weights.
double time_graph(cudaStream_t stream, uint32_t n, const std::function<void(Launch&, uint32_t)>& add) {
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  Launch launch(stream);
  for (uint32_t i = 0; i < n; ++i) add(launch, i);
  check(launch.error, launch.what);
  check(cudaStreamEndCapture(stream, &graph), "capture");
  check(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin), "event"), check(cudaEventCreate(&end), "event");
  std::vector<float> times;
  for (int i = 0; i < 9; ++i) {
    check(cudaEventRecord(begin, stream), "event");
    check(cudaGraphLaunch(exec, stream), "graph");
    check(cudaEventRecord(end, stream), "event");
    check(cudaEventSynchronize(end), "graph");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin, end), "event");
    times.push_back(ms);
  }
  std::sort(times.begin(), times.end());
  cudaGraphExecDestroy(exec), cudaGraphDestroy(graph);
  return times[times.size() / 2] * 1e3 / n;
}

constexpr unsigned long kMostRows = 1024;

int usage(const std::string& seen) {
  std::fprintf(stderr, "%s: wanted --check, --rows with numbers from 1 to %lu and commas, or --only PART_OF_A_NAME\n",
               seen.c_str(), kMostRows);
  return 2;
}

int run(int argc, char** argv) {
  bool checks = false;
  std::vector<uint32_t> rows = {1, 4, 8, 16, 32, 64, 512};
  std::string only;
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    if (option == "--check") {
      checks = true;
      continue;
    }
    if ((option != "--only" && option != "--rows") || i + 1 == argc) return usage(option);
    const char* value = argv[++i];
    if (option == "--only") {
      only = value;
      continue;
    }
    rows.clear();
    do {
      char* end;
      rows.push_back(uint32_t(std::min(std::strtoul(value, &end, 10), kMostRows + 1)));
      if (end == value || (*end && *end != ',') || rows.back() == 0 || rows.back() > kMostRows) return usage(option);
      value = end + (*end == ',');
    } while (*value);
  }
  std::mt19937 random(1);
  if (checks) {
    for (int f = 0; f <= int(Format::mxfp4); ++f) {
      if (is_float(Format(f))) continue;
      for (const uint32_t n : {1u, 3u, 9u, 33u, 70u}) {
        const double off = worst(Format(f), 37, 1280, n, random);
        std::printf("{\"check\": \"%s\", \"rows\": %u, \"worst\": %.2e, \"ok\": %s}\n",
                    std::string(info(Format(f)).name).c_str(), n, off,
                    off < (n > kWideAbove && wide_is_there() ? 2e-3 : 1e-5) ? "true" : "false");
      }
      // Steps that are not whole; rows that are kept in shared memory and longer ones.
      for (const uint32_t n_in : {info(Format(f)).block == 256 ? 1280u : 1312u, 18944u}) {
        const uint32_t differ = rows_that_differ(Format(f), 2133, n_in, random);
        std::printf("{\"check\": \"%s\", \"columns\": %u, \"rows that differ\": %u, \"ok\": %s}\n",
                    std::string(info(Format(f)).name).c_str(), n_in, differ, differ ? "false" : "true");
      }
    }
  }
  cudaStream_t stream;
  check(cudaStreamCreate(&stream), "stream");
  uint32_t* sink = allocate<uint32_t>(1);
  const uint64_t pool_bytes = 3ull << 30;
  uint8_t* pool = allocate<uint8_t>(pool_bytes);
  {
    // Small random scales everywhere: time does not depend on what weights say.
    std::vector<uint8_t> some(64 << 20);
    for (size_t i = 0; i < some.size(); i += 4) {
      const uint32_t word = random() & 0x1fff1fff;
      std::memcpy(&some[i], &word, 4);
    }
    for (uint64_t at = 0; at < pool_bytes; at += some.size())
      check(cudaMemcpy(pool + at, some.data(), some.size(), cudaMemcpyHostToDevice), "copy");
  }
  const double read_us = time_graph(stream, 4, [&](Launch& l, uint32_t) {
    read_kernel<<<264, 512, 0, l.stream>>>(reinterpret_cast<const uint4*>(pool), pool_bytes / 16, sink);
  });
  const double peak = pool_bytes / read_us * 1e-3;  // GB/s
  std::printf("{\"read\": \"3 GiB\", \"GB/s\": %.0f}\n", peak);
  const Shape shapes[] = {
      {"7b qkv q4_k", Format::q4_k, 4608, 3584, false},     {"7b o q4_k", Format::q4_k, 3584, 3584, false},
      {"7b gate_up q4_k", Format::q4_k, 18944, 3584, true}, {"7b down q4_k", Format::q4_k, 3584, 18944, false},
      {"7b down q6_k", Format::q6_k, 3584, 18944, false},   {"7b head q6_k", Format::q6_k, 152064, 3584, false},
      {"7b qkv q8_0", Format::q8_0, 4608, 3584, false},     {"7b gate_up q8_0", Format::q8_0, 18944, 3584, true},
      {"7b down q8_0", Format::q8_0, 3584, 18944, false},   {"0.5b qkv q5_0", Format::q5_0, 1152, 896, false},
      {"0.5b o q5_0", Format::q5_0, 896, 896, false},       {"0.5b gate_up q5_0", Format::q5_0, 4864, 896, true},
      {"0.5b down q6_k", Format::q6_k, 896, 4864, false},   {"0.5b head q8_0", Format::q8_0, 151936, 896, false},
      {"0.6b qkv q8_0", Format::q8_0, 4096, 1024, false},   {"0.6b gate_up q8_0", Format::q8_0, 3072, 1024, true},
      {"0.6b down q8_0", Format::q8_0, 1024, 3072, false},  {"30b gate_up q4_k", Format::q4_k, 19968, 6656, true},
      {"30b down q4_k", Format::q4_k, 6656, 19968, false},
  };
  uint8_t* q8 = allocate<uint8_t>(product_rows_bytes(kMostRows, 20480));
  float* y = allocate<float>(uint64_t(kMostRows) * 152064);
  float* x = allocate<float>(20480);
  check(cudaMemset(x, 0, 4 * 20480), "memset");
  for (const Shape& s : shapes) {
    if (!only.empty() && std::string(s.name).find(only) == std::string::npos) continue;
    // What a row comes as: one row may be rounded, or normed and rounded, by the product.
    struct Form {
      uint32_t n_rows;
      const char* name;
    };
    std::vector<Form> forms;
    for (const uint32_t n : rows) {
      forms.push_back({n, "int8"});
      if (n == 1) forms.push_back({n, "f32"});
      if (n == 1) forms.push_back({n, "before norm"});
    }
    for (const auto& [n_rows, form] : forms) {
      OwnRow own;
      if (form[0] != 'i') own.x = x;
      if (form[0] == 'b') own.norm = own.squares = x, own.eps = 1e-5f;
      const uint64_t one = matrix_bytes(s.format, s.n_out, s.n_in), bytes = one * (s.glu ? 2 : 1);
      const uint32_t n = uint32_t(std::min<uint64_t>(64, pool_bytes / bytes));
      const Q8 q{q8, n_rows, s.n_in};
      check(cudaMemset(q8, 0, product_rows_bytes(n_rows, s.n_in)), "memset");
      const double us = time_graph(stream, n, [&](Launch& launch, uint32_t i) {
        const Matrix w{pool + i * bytes, s.format, s.n_out, s.n_in},
            up{pool + i * bytes + one, s.format, s.n_out, s.n_in};
        const ProductPart part{w, y, nullptr, nullptr};
        if (s.glu)
          glu(launch, w, up, Act::silu, q, own, y, n_rows);
        else
          products(launch, &part, 1, nullptr, q, own, n_rows);
      });
      const double gbs = bytes / us * 1e-3;
      std::printf(
          "{\"product\": \"%s\", \"rows\": %u, \"of\": \"%s\", \"MB\": %.1f, \"us\": %.2f, \"GB/s\": %.0f, \"%% of "
          "read\": %.0f, "
          "\"TOP/s\": %.1f}\n",
          s.name, n_rows, form, bytes * 1e-6, us, gbs, 100 * gbs / peak,
          2e-6 * n_rows * s.n_out * s.n_in * (s.glu ? 2 : 1) / us);
    }
  }
  return 0;
}

}  // namespace
}  // namespace argent::cuda

int main(int argc, char** argv) { return argent::cuda::run(argc, argv); }
