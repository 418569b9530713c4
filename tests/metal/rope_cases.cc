// RoPE: the table of cosines and sines up to long contexts, and heads rotated by it.
#include <fmt/format.h>

#include <bit>
#include <numbers>

#include "backends/metal/kernels/args_rope.h"
#include "graph/rope_frequencies.h"
#include "metal/cases.h"

namespace argent::metal {

namespace {

// ---- the table

struct Table {
  std::string name;
  Attrs attrs;
  bool with_factors = false;
  std::vector<int32_t> positions = {0, 1, 2, 31, 4095, 4096, 131071, 999999, 1000000};
};

// The angle from one position to the next, as src/reference/rope.cc has it.
double radians(const Attrs& a, double factor, uint32_t pair) {
  const double extrapolated = std::pow(double(a.freq_base), -2.0 * pair / a.n_rot) / factor;
  const double interpolated = extrapolated * a.freq_scale;
  if (a.ext_factor == 0) return interpolated;
  const auto pair_of = [&](double rotations) {
    return a.n_rot * std::log(a.n_ctx_orig / (rotations * 2 * std::numbers::pi)) / (2 * std::log(double(a.freq_base)));
  };
  const double low = std::max(0.0, std::floor(pair_of(a.beta_fast)));
  const double high = std::min(a.n_rot - 1.0, std::ceil(pair_of(a.beta_slow)));
  const double ramp = 1 - std::min(1.0, std::max(0.0, (pair - low) / std::max(0.001, high - low)));
  return interpolated + (extrapolated - interpolated) * ramp * a.ext_factor;
}

std::string run_table(Device& device, const Table& t) {
  const Attrs& a = t.attrs;
  const uint32_t pairs = a.n_rot / 2, rows = uint32_t(t.positions.size());
  Numbers numbers(a.n_rot);
  std::vector<float> factors;  // some below 1/(2 pi): more than a turn from one position to the next
  for (uint32_t i = 0; i < pairs; i++) factors.push_back(t.with_factors ? 4.05f + 4 * numbers.next() : 1.0f);
  const double magnitude = a.attn_factor * (a.ext_factor != 0 ? 1 + 0.1 * std::log(1 / double(a.freq_scale)) : 1.0);
  std::vector<double> want;
  for (int32_t position : t.positions)
    for (uint32_t i = 0; i < pairs; i++) {
      const double angle = position * radians(a, factors[i], i);
      want.push_back(std::cos(angle) * magnitude);
      want.push_back(std::sin(angle) * magnitude);
    }
  const RopeFrequencies frequencies(a, t.with_factors ? factors.data() : nullptr);
  Bench bench(device);
  const Buffer& table = bench.upload(std::vector<float>(want.size(), kUntouched));
  Dispatch d = bench.dispatch("rope_table", {}, {(pairs + 31) / 32, (rows + 3) / 4}, {32, 4});
  d.value(0, RopeTableArgs{a.n_rot, rows, float(frequencies.magnitude())});
  d.bind(1, bench.upload(t.positions)).bind(2, bench.upload(frequencies.turns())).bind(3, table);
  bench.run({d});
  if (!bench.error().empty()) return bench.error();
  // An angle of up to pi and its cosine in f32.
  return compare(bench.floats(table), want, std::vector<double>(want.size(), magnitude), rows, a.n_rot, a.n_rot, 1e-6);
}

// Angles that no file should make give no turn, and no undefined conversion.
std::string run_odd_turns(Device&) {
  const float factors[] = {0.0f, 1.0f, -1e30f};  // not a number; a whole turn when rounded
  const auto turns = RopeFrequencies({.n_rot = 6}, factors).turns();
  if (turns[0] == 0 && turns[1] != 0 && turns[2] == 0) return "";
  return fmt::format("turns are {:x}, {:x}, {:x}", turns[0], turns[1], turns[2]);
}

// ---- heads

struct Heads {
  uint32_t rows, n_head, n_head_kv;  // n_head_kv 0: the kernel for one of them
  uint32_t d_head, n_rot;
  bool interleaved, fours, in_place;
};

struct Rotated {
  std::vector<double> want, scale;
};
Rotated rotate(const Heads& s, uint32_t n_head, const std::vector<float>& x, const std::vector<float>& table) {
  Rotated r{{x.begin(), x.end()}, std::vector<double>(x.size())};  // what does not rotate is the same exactly
  for (uint32_t row = 0; row < s.rows; row++)
    for (uint32_t head = 0; head < n_head; head++)
      for (uint32_t i = 0; i < s.n_rot / 2; i++) {
        const size_t begin = (size_t(row) * n_head + head) * s.d_head;
        const size_t first = begin + (s.interleaved ? 2 * i : i);
        const size_t second = first + (s.interleaved ? 1 : s.n_rot / 2);
        const double cos = table[row * s.n_rot + 2 * i], sin = table[row * s.n_rot + 2 * i + 1];
        r.want[first] = x[first] * cos - x[second] * sin;
        r.want[second] = x[first] * sin + x[second] * cos;
        r.scale[first] = std::fabs(x[first] * cos) + std::fabs(x[second] * sin);
        r.scale[second] = std::fabs(x[first] * sin) + std::fabs(x[second] * cos);
      }
  return r;
}

std::string run_heads(Device& device, const Heads& s) {
  Numbers numbers(s.d_head * 1000003 + s.n_rot);
  const auto table = numbers.floats(size_t(s.rows) * s.n_rot);
  const auto q = numbers.floats(size_t(s.rows) * s.n_head * s.d_head);
  const auto k = numbers.floats(size_t(s.rows) * s.n_head_kv * s.d_head);
  const uint32_t rest = s.d_head - s.n_rot, per_thread = s.fours ? 4 : 1;
  const uint32_t copied = s.in_place ? 0 : rest, units = (s.n_rot / 2 + copied) / per_thread;
  const uint32_t x_threads = std::min(32u, std::bit_ceil(units)), y_threads = 128 / x_threads;
  const uint32_t heads = s.n_head + s.n_head_kv;
  Bench bench(device);
  Dispatch d = bench.dispatch(s.n_head_kv ? "rope_qk" : "rope", {{50, s.interleaved}, {51, s.fours}},
                              {(units + x_threads - 1) / x_threads, (heads + y_threads - 1) / y_threads, s.rows},
                              {x_threads, y_threads});
  const auto output_of = [&](const Buffer& input, const std::vector<float>& x) -> const Buffer& {
    return s.in_place ? input : bench.upload(std::vector<float>(x.size(), kUntouched));
  };
  d.value(0, RopeArgs{s.n_head, s.n_head_kv, s.d_head, s.n_rot, copied}).bind(1, bench.upload(table));
  const Buffer &q_in = bench.upload(q), &q_out = output_of(q_in, q);
  const Buffer* k_out = nullptr;
  if (s.n_head_kv) {
    const Buffer& k_in = bench.upload(k);
    k_out = &output_of(k_in, k);
    d.bind(2, q_in).bind(3, k_in).bind(4, q_out).bind(5, *k_out);
  } else {
    d.bind(2, q_in).bind(3, q_out);
  }
  bench.run({d});
  if (!bench.error().empty()) return bench.error();
  const auto check = [&](const Buffer& got, uint32_t n_head, const std::vector<float>& x) {
    const Rotated r = rotate(s, n_head, x, table);
    const size_t width = size_t(n_head) * s.d_head;
    return compare(bench.floats(got), r.want, r.scale, s.rows, width, width, 0x1.8p-23);  // two products and a sum
  };
  const std::string wrong = check(q_out, s.n_head, q);
  if (!wrong.empty() || !k_out) return wrong;
  const std::string wrong_k = check(*k_out, s.n_head_kv, k);
  return wrong_k.empty() ? "" : "k: " + wrong_k;
}

std::vector<Case> rope_cases() {
  std::vector<Case> cases;
  for (const Table& t :
       {Table{"plain", {.n_rot = 64}},
        {"one_pair", {.n_rot = 2}},
        {"odd_pairs", {.n_rot = 70, .freq_base = 1e6f}, false, {7, 0, 1000000, 65536, 3}},
        {"one_row", {.n_rot = 128}, false, {777777}},
        {"linear", {.n_rot = 66, .freq_base = 1e6f, .freq_scale = 0.125f}},
        {"factors", {.n_rot = 64, .freq_base = 5e5f}, true},
        {"yarn", {.n_rot = 64, .freq_scale = 0.25f, .ext_factor = 1, .attn_factor = 0.9f, .n_ctx_orig = 2048}}})
    cases.push_back({"rope_table", "rope_table_" + t.name, [=](Device& device) { return run_table(device, t); }});
  cases.push_back({"rope_table", "rope_table_odd_turns", run_odd_turns});
  for (const Heads& s : {Heads{2, 3, 0, 64, 64, false, true, false},
                         {2, 17, 0, 64, 64, true, true, true},  // more heads than a threadgroup has
                         {1, 3, 0, 96, 24, true, true, false},
                         {1, 5, 0, 80, 32, false, true, true},
                         {3, 2, 0, 80, 32, false, true, false},
                         {2, 1, 0, 256, 256, false, true, true},
                         {2, 5, 0, 10, 6, false, false, false},
                         {2, 5, 0, 10, 6, true, false, true},
                         {1, 3, 0, 11, 2, true, false, false},
                         {1, 2, 0, 70, 70, false, false, true},
                         {1, 9, 0, 37, 14, true, false, false},
                         {2, 9, 3, 64, 64, false, true, true},
                         {3, 4, 4, 128, 128, true, true, false},
                         {1, 2, 1, 48, 16, false, true, false},
                         {2, 3, 1, 15, 10, false, false, true},
                         {2, 1, 5, 15, 10, true, false, false}}) {
    const std::string kernel = s.n_head_kv ? "rope_qk" : "rope";
    cases.push_back(
        {kernel,
         fmt::format("{}_{}x{}_{}_heads_{}_of_{}{}{}{}", kernel, s.rows, s.n_head, s.n_head_kv, s.n_rot, s.d_head,
                     s.interleaved ? "_interleaved" : "", s.fours ? "_fours" : "", s.in_place ? "_in_place" : ""),
         [=](Device& device) { return run_heads(device, s); }});
  }
  return cases;
}

const CaseSet known(rope_cases);

}  // namespace

}  // namespace argent::metal
