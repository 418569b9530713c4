// argent_format_probe: decodes blocks on stdin for tests/quant/formats_test.py.
//   argent_format_probe NAME            floats as decode_row gives them, little-endian, on stdout
//   argent_format_probe NAME uniform    floats put together from uniform_row
//   argent_format_probe NAME bench      decodes the input repeatedly; prints ns an element
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <iterator>
#include <string>
#include <vector>

#include "quant/formats.h"
#include "quant/uniform.h"

namespace argent {
namespace {

std::vector<char> read_all(FILE* file) {
  std::vector<char> bytes;
  char part[1 << 16];
  while (size_t n = std::fread(part, 1, sizeof part, file)) bytes.insert(bytes.end(), part, part + n);
  return bytes;
}

std::vector<float> join_uniform(Format format, const char* row, uint64_t n) {
  const UniformShape shape = uniform_shape(format);
  std::vector<uint8_t> q(n);
  std::vector<float> scale(n / shape.group), min(shape.has_min ? n / shape.group : 0), out(n);
  uniform_row(format, row, n, q.data(), scale.data(), shape.has_min ? min.data() : nullptr);
  for (uint64_t i = 0; i < n; i++) {
    const uint64_t g = i / shape.group;
    out[i] = scale[g] * float(int(q[i]) - shape.zero_point);
    if (shape.has_min) out[i] += min[g];
  }
  return out;
}

int run(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "", mode = argc > 2 ? argv[2] : "";
  const FormatInfo* format = nullptr;
  for (const FormatInfo& f : kFormats)
    if (f.name == name && f.format) format = &f;
  if (!format || argc > 3 || (mode != "" && mode != "uniform" && mode != "bench")) {
    fmt::print(stderr, "usage: argent_format_probe NAME [uniform|bench] < blocks; no format '{}'\n", name);
    return 2;
  }
  if (mode == "uniform" && format->block == 1) {
    fmt::print(stderr, "{} has no blocks, so no uniform shape\n", name);
    return 2;
  }
  const std::vector<char> bytes = read_all(stdin);
  if (bytes.size() % format->bytes) {
    fmt::print(stderr, "{} bytes of input, not a multiple of the {} of a {} block\n", bytes.size(), format->bytes,
               name);
    return 2;
  }
  const uint64_t n = bytes.size() / format->bytes * format->block;
  std::vector<float> out(n);
  if (mode == "uniform") {
    out = join_uniform(*format->format, bytes.data(), n);
  } else {
    decode_row(*format->format, bytes.data(), out.data(), n);
  }
  if (mode == "bench") {
    double best = 1e30;
    for (int round = 0; round < 20; round++) {
      const auto start = std::chrono::steady_clock::now();
      decode_row(*format->format, bytes.data(), out.data(), n);
      best = std::min(best, std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count());
    }
    fmt::print("{:8} {:.3f} ns an element, {:.2f} GB/s of blocks\n", name, best / double(n),
               double(bytes.size()) / best);
    return 0;
  }
  return std::fwrite(out.data(), sizeof(float), n, stdout) == n ? 0 : 1;
}

}  // namespace
}  // namespace argent

int main(int argc, char** argv) { return argent::run(argc, argv); }
