// The KV store, to the bit.
#include <fmt/format.h>

#include <bit>

#include "metal/cases.h"
#include "metal/kv_pool.h"

namespace argent::metal {

namespace {

struct Shape {
  KvShape kv;
  std::vector<std::pair<uint32_t, uint32_t>> sequences;  // length, rows
};

// Magnitudes from 2^-40 to 2^8, so that halves are also subnormal and 0, and now and then a tie of a half or bf16; in
// groups of 32, since a group of q8_0 has one scale. Every tenth group holds what is no ordinary number; the NaN is one
// that rounding would carry into the sign, but for f16, where its payload is the hardware's affair.
std::vector<float> values(size_t n, KvType type, Numbers& numbers) {
  const float nan = type == KvType::f16 ? NAN : std::bit_cast<float>(0x7fffffff);
  const float odd_values[] = {INFINITY, -INFINITY, nan,   3.4e38f,  -3.0e38f,
                              65519.0f, 65520.0f,  -0.0f, 1.0e-40f, 3.7e-6f};
  std::vector<float> x(n);
  float size = 1;
  bool odd = false;
  for (size_t i = 0; i < n; i++) {
    if (i % 32 == 0) {
      size = std::ldexp(1.0f, int(numbers.bits() % 48) - 40);
      odd = numbers.bits() % 10 == 0;
    }
    x[i] = size * numbers.next();
    if (numbers.bits() % 16 == 0) x[i] = size * (1 + float(numbers.bits() % 1024) * 0x1p-10f + 0x1p-11f);
    if (numbers.bits() % 16 == 0) x[i] = size * (1 + float(numbers.bits() % 128) * 0x1p-7f + 0x1p-8f);
    if (odd && numbers.bits() % 16 == 0) x[i] = odd_values[numbers.bits() % std::size(odd_values)];
  }
  return x;
}

std::string run(Device& device, const Shape& shape) {
  const KvShape& kv = shape.kv;
  Numbers numbers(kv.n_head_kv * 1000003 + kv.d_head * 101 + uint32_t(kv.type_k) * 4 + uint32_t(kv.type_v));
  const KvStep step(shape.sequences, numbers);
  const uint32_t tokens = uint32_t(step.positions.size());
  const auto k = values(size_t(tokens) * kv.n_head_kv * kv.d_head, kv.type_k, numbers);
  const auto v = values(size_t(tokens) * kv.n_head_kv * kv.d_value, kv.type_v, numbers);
  KvPool want(kv, step);
  Bench bench(device);
  const Buffer& pool = bench.upload(want.bytes());
  want.store(k, v);
  Dispatch d = bench.dispatch("kv_store", {{10, uint32_t(kv.type_k)}, {11, uint32_t(kv.type_v)}},
                              {(2 * kv.n_head_kv + 3) / 4, tokens}, {128});
  d.value(0, want.args()).bind(1, bench.upload(k)).bind(2, bench.upload(v));
  d.bind(3, pool, want.offset_k()).bind(4, pool, want.offset_v());
  d.bind(5, bench.upload(step.positions)).bind(6, bench.upload(step.row_sequence));
  d.bind(7, bench.upload(step.sequences)).bind(8, bench.upload(step.tables));
  bench.run({d});
  return bench.error().empty() ? want.compare(pool.bytes()) : bench.error();
}

std::vector<Case> kv_cases() {
  std::vector<Case> cases;
  using enum KvType;
  for (const Shape& s : {Shape{{1, 1, 3, f16, f32}, {{0, 1}}},
                         {{3, 67, 33, f16, bf16}, {{5, 1}, {31, 3}}},
                         {{2, 80, 128, bf16, f16}, {{64, 2}, {0, 34}}},
                         {{5, 33, 40, f32, f32}, {{95, 2}}},
                         {{3, 128, 64, q8_0, q8_0}, {{30, 4}, {70, 1}, {0, 2}}},
                         {{1, 256, 32, q8_0, f16}, {{32, 3}}},
                         {{2, 32, 96, bf16, q8_0}, {{127, 2}}}}) {
    const uint32_t rows = s.sequences[0].second + (s.sequences.size() > 1 ? s.sequences[1].second : 0);
    cases.push_back({"kv_store",
                     fmt::format("kv_store_{}_{}_heads_{}_{}x{}_tokens_{}", name_of(s.kv.type_k), name_of(s.kv.type_v),
                                 s.kv.n_head_kv, s.kv.d_head, s.kv.d_value, rows),
                     [=](Device& device) { return run(device, s); }});
  }
  return cases;
}

const CaseSet known(kv_cases);

}  // namespace

}  // namespace argent::metal
