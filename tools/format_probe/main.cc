// argent_format_probe: decodes blocks on stdin for tests/quant/formats_test.py.
//   argent_format_probe NAME            floats as decode_row gives them, little-endian, on stdout
//   argent_format_probe NAME uniform    floats put together from uniform_row
//   argent_format_probe NAME bench      decodes the input repeatedly; prints the time, beside a hand-written
//                                     decoder's where there is one
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "base/half.h"
#include "hand_written.h"
#include "quant/formats.h"
#include "quant/q4_0.h"
#include "quant/q4_k.h"
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

// Q4_0 and Q4_K by the decoders of hand_written.h; false for other formats.
bool decode_by_hand(Format format, const char* row, float* out, uint64_t n) {
  if (format == Format::q4_0) {
    for (uint64_t at = 0; at < n; at += kQ4_0Block, row += sizeof(block_q4_0)) {
      block_q4_0 b;
      std::memcpy(&b, row, sizeof b);
      hand::q4_0_block(b.qs, half_to_float(b.d), out + at);
    }
    return true;
  }
  if (format == Format::q4_k) {
    for (uint64_t at = 0; at < n; at += kQ4_KBlock, row += sizeof(block_q4_k)) {
      block_q4_k b;
      std::memcpy(&b, row, sizeof b);
      hand::q4_k_block(b.scales, b.qs, half_to_float(b.d), half_to_float(b.dmin), out + at);
    }
    return true;
  }
  return false;
}

// The best of 30 rounds, in ns.
template <class F>
double best_time(F f) {
  double best = 1e30;
  for (int round = 0; round < 30; round++) {
    const auto start = std::chrono::steady_clock::now();
    f();
    best = std::min(best, std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

int bench(const FormatInfo& format, const std::vector<char>& bytes, std::vector<float>& out) {
  const uint64_t n = out.size();
  const auto report = [&](double ns, std::string_view how) {
    fmt::print("{:7} {:.3f} ns an element, {:.2f} GB/s of blocks{}\n", format.name, ns / double(n),
               double(bytes.size()) / ns, how);
  };
  report(best_time([&] { decode_row(*format.format, bytes.data(), out.data(), n); }), "");
  std::vector<float> other(n);
  if (!decode_by_hand(*format.format, bytes.data(), other.data(), n)) return 0;
  for (uint64_t i = 0; i < n; i++)
    if (other[i] != out[i] && other[i] == other[i]) {
      fmt::print(stderr, "element {}: {} from the header, {} by hand\n", i, out[i], other[i]);
      return 1;
    }
  report(best_time([&] { decode_by_hand(*format.format, bytes.data(), other.data(), n); }), "  (by hand)");
  return 0;
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
  if (mode == "bench") return bench(*format, bytes, out);
  return std::fwrite(out.data(), sizeof(float), n, stdout) == n ? 0 : 1;
}

}  // namespace
}  // namespace argent

int main(int argc, char** argv) { return argent::run(argc, argv); }
