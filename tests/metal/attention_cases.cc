#include <fmt/format.h>

#include "backends/metal/kernels/args.h"
#include "base/half.h"
#include "metal/cases.h"

namespace argent::metal {

namespace {

constexpr uint32_t kHead = 128;

struct Shape {
  uint32_t kv_length, heads, kv_heads, simdgroups;
  float size = 1.0f;      // of queries; with large ones a few positions have all the weight
  bool opposite = false;  // keys point away from queries: all scores are so low that exp() of them is 0
};

std::string run(Device& device, const Shape& shape) {
  const float attention_scale = 1.0f / std::sqrt(float(kHead));
  const uint32_t stride = shape.kv_heads * kHead, heads_of_kv = shape.heads / shape.kv_heads;
  Numbers numbers(shape.kv_length * 101 + shape.heads);
  auto q = numbers.floats(shape.heads * kHead, shape.size);
  std::vector<uint16_t> k(size_t(shape.kv_length) * stride), v(k.size());
  for (uint16_t& e : k) e = float_to_half(shape.opposite ? -std::fabs(numbers.next()) : numbers.next());
  for (float& e : q) e = shape.opposite ? std::fabs(e) : e;
  for (uint16_t& e : v) e = float_to_half(numbers.next());
  std::vector<double> want(shape.heads * kHead), scale(want.size(), 1);
  std::vector<double> p(shape.kv_length);
  for (uint32_t h = 0; h < shape.heads; h++) {
    const uint32_t at = h / heads_of_kv * kHead;
    double maximum = -1e300, sum = 0;
    for (uint32_t t = 0; t < shape.kv_length; t++) {
      p[t] = 0;
      for (uint32_t d = 0; d < kHead; d++) p[t] += double(q[h * kHead + d]) * half_to_float(k[t * stride + at + d]);
      p[t] *= attention_scale;
      maximum = std::max(maximum, p[t]);
    }
    for (double& e : p) {
      e = std::exp(e - maximum);
      sum += e;
    }
    for (uint32_t d = 0; d < kHead; d++) {
      for (uint32_t t = 0; t < shape.kv_length; t++)
        want[h * kHead + d] += p[t] / sum * half_to_float(v[t * stride + at + d]);
    }
  }
  Bench bench(device);
  const Buffer& out = bench.upload(std::vector<float>(want.size(), kUntouched));
  Dispatch d = bench.dispatch("attention_decode_128", {}, {shape.heads}, {shape.simdgroups * kSimdWidth});
  d.value(0, AttentionDecodeArgs{shape.kv_length, heads_of_kv, stride, attention_scale});
  d.bind(1, bench.upload(q)).bind(2, bench.upload(k)).bind(3, bench.upload(v)).bind(4, out);
  d.threadgroup_bytes = {(shape.simdgroups * 130 * 4 + 15) / 16 * 16};
  bench.run({d});
  if (!bench.error().empty()) return bench.error();
  // Scores are sums of floats of the queries' size, and an error of a score is a relative error of its weight.
  return compare(bench.floats(out), want, scale, shape.heads, kHead, kHead, 2e-6 * double(std::max(1.0f, shape.size)));
}

std::vector<Case> attention_cases() {
  std::vector<Case> cases;
  for (const Shape& s : {Shape{1, 2, 1, 4},
                         {33, 3, 3, 1},
                         {100, 4, 2, 2},
                         {131, 3, 1, 4},
                         {70, 2, 1, 2, 400.0f},
                         {40, 2, 1, 2, 60.0f, true}}) {
    cases.push_back({"attention_decode_128",
                     fmt::format("attention_decode_128_kv_{}_heads_{}_{}_simdgroups_{}", s.kv_length, s.heads,
                                 s.kv_heads, s.simdgroups),
                     [=](Device& device) { return run(device, s); }});
  }
  return cases;
}

const CaseSet known(attention_cases);

}  // namespace

}  // namespace argent::metal
