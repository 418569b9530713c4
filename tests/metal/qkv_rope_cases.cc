// q, k and v with bias, norm, RoPE and the KV store in one kernel.
#include <fmt/format.h>

#include "backends/metal/kernels/args_fused.h"
#include "metal/cases.h"
#include "metal/kv_pool.h"
#include "metal/matrices.h"
#include "metal/weights.h"

namespace argent::metal {

namespace {

struct Shape {
  Format format_q, format_k, format_v;
  uint32_t n_head, cols;
  KvShape kv;
  uint32_t n_rot;
  bool interleaved, biased, normed;
  std::vector<std::pair<uint32_t, uint32_t>> sequences;  // length, rows
  uint32_t threads;
  uint32_t x_gap = 0, q_gap = 0;
};

constexpr float kEps = 1e-5f;

// Values [token][head][d] and the errors that float sums leave in them.
struct Heads {
  std::vector<double> value, error;

  Heads(const Products& products, const std::vector<float>& bias, bool biased) {
    for (size_t i = 0; i < products.sum.size(); i++) {
      const double b = biased ? double(bias[i % bias.size()]) : 0;
      value.push_back(products.sum[i] + b);
      error.push_back(kFloatSums * (products.magnitude[i] + std::fabs(b)));
    }
  }
  void norm(uint32_t d, const std::vector<float>& weight) {
    for (size_t first = 0; first < value.size(); first += d) {
      double squares = 0, worst = 0;
      for (size_t i = first; i < first + d; i++) {
        squares += value[i] * value[i];
        worst = std::max(worst, error[i]);
      }
      const double scale = 1 / std::sqrt(squares / d + kEps);
      for (size_t i = first; i < first + d; i++) {
        const double w = double(weight[i - first]);
        // Its own error, the root's, and a few units in the last place of the root and the products.
        error[i] = scale * std::fabs(w) * (error[i] + std::fabs(value[i]) * (worst * scale + 1e-6));
        value[i] *= scale * w;
      }
    }
  }
  void rotate(uint32_t d, size_t heads, uint32_t n_rot, bool interleaved, const std::vector<float>& table) {
    for (size_t h = 0; h < value.size() / d; h++) {
      for (uint32_t p = 0; p < n_rot / 2; p++) {
        const size_t first = h * d + (interleaved ? 2 * p : p), second = first + (interleaved ? 1 : n_rot / 2);
        const float* angle = &table[h / heads * n_rot + 2 * p];
        const double x0 = value[first], x1 = value[second], e0 = error[first], e1 = error[second];
        const double cos = angle[0], sin = angle[1], rounding = 3e-7 * (std::fabs(x0) + std::fabs(x1));
        value[first] = x0 * cos - x1 * sin;
        value[second] = x0 * sin + x1 * cos;
        error[first] = std::fabs(cos) * e0 + std::fabs(sin) * e1 + rounding;
        error[second] = std::fabs(sin) * e0 + std::fabs(cos) * e1 + rounding;
      }
    }
  }
  std::vector<float> floats() const { return {value.begin(), value.end()}; }
};

std::string run(Device& device, const std::string& kernel, const Shape& s) {
  Numbers numbers(s.n_head * 1000003 + s.cols * 101 + s.kv.d_head);
  const KvStep step(s.sequences, numbers);
  const uint32_t tokens = uint32_t(step.positions.size()), x_stride = s.cols + s.x_gap;
  const uint32_t rows_q = s.n_head * s.kv.d_head, q_stride = rows_q + s.q_gap;
  const Matrix w_q(s.format_q, rows_q, s.cols, numbers);
  const Matrix w_k(s.format_k, s.kv.n_head_kv * s.kv.d_head, s.cols, numbers);
  const Matrix w_v(s.format_v, s.kv.n_head_kv * s.kv.d_value, s.cols, numbers);
  const auto x = numbers.floats(size_t(tokens - 1) * x_stride + s.cols);
  const auto bias_q = numbers.floats(w_q.rows), bias_k = numbers.floats(w_k.rows), bias_v = numbers.floats(w_v.rows);
  const auto norm_q = numbers.floats(s.kv.d_head), norm_k = numbers.floats(s.kv.d_head);
  std::vector<float> table;
  for (uint32_t i = 0; i < tokens * s.n_rot / 2; i++) {
    const float angle = 4 * numbers.next();
    table.push_back(1.1f * std::cos(angle));
    table.push_back(1.1f * std::sin(angle));
  }
  Heads q(Products(w_q, x, tokens, x_stride), bias_q, s.biased);
  Heads k(Products(w_k, x, tokens, x_stride), bias_k, s.biased);
  const Heads v(Products(w_v, x, tokens, x_stride), bias_v, s.biased);
  if (s.normed) {
    q.norm(s.kv.d_head, norm_q);
    k.norm(s.kv.d_head, norm_k);
  }
  q.rotate(s.kv.d_head, s.n_head, s.n_rot, s.interleaved, table);
  k.rotate(s.kv.d_head, s.kv.n_head_kv, s.n_rot, s.interleaved, table);

  KvPool want(s.kv, step);
  Bench bench(device);
  const Buffer& pool = bench.upload(want.bytes());
  want.store(k.floats(), v.floats());
  const Buffer& out = bench.upload(std::vector<float>(size_t(tokens - 1) * q_stride + rows_q, kUntouched));
  const Buffer& unused = bench.upload(std::vector<float>{7.0f});
  auto or_unused = [&](bool used, const std::vector<float>& data) -> const Buffer& {
    return used ? bench.upload(data) : unused;
  };
  auto constants = format_constants(23, {&w_q, &w_k, &w_v});
  constants.insert(
      constants.end(),
      {{10, uint32_t(s.kv.type_k)}, {11, uint32_t(s.kv.type_v)}, {26, s.biased}, {27, s.normed}, {50, s.interleaved}});
  Dispatch d = bench.dispatch(kernel, constants, {s.n_head + 2 * s.kv.n_head_kv}, {s.threads});
  d.value(0, QkvRopeArgs{s.n_head, s.cols, tokens, x_stride, q_stride, s.n_rot, kEps, want.args()});
  d.bind(1, bench.upload(w_q.bytes)).bind(2, bench.upload(w_k.bytes)).bind(3, bench.upload(w_v.bytes));
  d.bind(4, bench.upload(x)).bind(5, out).bind(6, pool, want.offset_k()).bind(7, pool, want.offset_v());
  d.bind(8, or_unused(s.biased, bias_q)).bind(9, or_unused(s.biased, bias_k)).bind(10, or_unused(s.biased, bias_v));
  d.bind(11, or_unused(s.normed, norm_q)).bind(12, or_unused(s.normed, norm_k));
  d.bind(13, or_unused(s.n_rot > 0, table));
  d.bind(14, bench.upload(step.positions)).bind(15, bench.upload(step.row_sequence));
  d.bind(16, bench.upload(step.sequences)).bind(17, bench.upload(step.tables));
  d.threadgroup_bytes = {groups(4 * tokens * std::max(s.kv.d_head, s.kv.d_value), 16) * 16};
  bench.run({d});
  if (!bench.error().empty()) return bench.error();
  const std::string wrong = compare(bench.floats(out), q.value, q.error, tokens, rows_q, q_stride, 1);
  return wrong.empty() ? want.compare_values(pool.bytes(), k.error, v.error) : wrong;
}

std::vector<Case> qkv_rope_cases() {
  std::vector<Case> cases;
  using enum Format;
  constexpr KvType half = KvType::f16, word = KvType::f32, bfloat = KvType::bf16, quants = KvType::q8_0;
  auto add = [&](const std::string& kernel, const Shape& s) {
    uint32_t tokens = 0;
    for (const auto& sequence : s.sequences) tokens += sequence.second;
    cases.push_back(
        {kernel,
         fmt::format("{}_{}_{}_{}_heads_{}_{}_{}x{}_rot_{}{}{}{}_{}_{}_tokens_{}", kernel, name_of(s.format_q),
                     name_of(s.format_k), name_of(s.format_v), s.n_head, s.kv.n_head_kv, s.kv.d_head, s.kv.d_value,
                     s.n_rot, s.interleaved ? "_interleaved" : "", s.biased ? "_bias" : "", s.normed ? "_norm" : "",
                     name_of(s.kv.type_k), name_of(s.kv.type_v), tokens),
         [=](Device& device) { return run(device, kernel, s); }});
  };
  add("qkv_rope", {q4_k, q4_k, q6_k, 3, 512, {1, 64, 64, half, half}, 64, false, false, true, {{37, 1}}, 256});
  add("qkv_rope", {q4_0, q8_0, q4_1, 4, 96, {2, 32, 96, quants, quants}, 20, true, true, false, {{95, 1}}, 96, 4, 5});
  add("qkv_rope", {f16, f32, bf16, 1, 40, {1, 12, 20, bfloat, word}, 8, true, true, true, {{32, 1}}, 32});
  add("qkv_rope", {q5_k, q3_k, iq4_xs, 1, 256, {1, 256, 128, quants, half}, 128, false, false, true, {{0, 1}}, 768});
  add("qkv_rope", {q5_0, q5_1, mxfp4, 2, 64, {2, 36, 44, word, bfloat}, 0, false, false, false, {{64, 1}}, 64});
  add("qkv_rope", {q2_k, iq4_nl, f32, 2, 256, {1, 20, 12, half, half}, 0, false, true, true, {{6, 1}}, 320});
  add("qkv_rope_tokens",
      {q4_k, q4_k, q6_k, 3, 256, {1, 64, 64, half, half}, 64, false, false, true, {{37, 1}, {5, 1}, {63, 1}}, 256, 4});
  add("qkv_rope_tokens",
      {q4_0, q8_0, q4_1, 4, 96, {2, 32, 96, quants, quants}, 20, true, true, false, {{94, 5}}, 96, 4, 5});
  add("qkv_rope_tokens",
      {f16, f32, bf16, 1, 40, {1, 12, 20, bfloat, word}, 8, true, true, true, {{30, 4}, {0, 4}}, 32});
  add("qkv_rope_tokens",
      {q5_k, q3_k, iq4_xs, 1, 256, {1, 256, 128, quants, half}, 128, false, false, true, {{0, 2}}, 768});
  add("qkv_rope_tokens",
      {q5_0, q5_1, mxfp4, 2, 64, {2, 36, 44, word, bfloat}, 0, false, false, false, {{64, 1}, {9, 6}}, 64});
  return cases;
}

const CaseSet known(qkv_rope_cases);

}  // namespace

}  // namespace argent::metal
