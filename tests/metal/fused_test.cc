// Fused kernels give the bits of the kernels that they replace, and partial tiles cost what they hold. In the emulator
// only: other compilers may contract products and sums of the one kernel and not of the other.
#include <gtest/gtest.h>

#include <array>

#include "backends/metal/emu/device.h"
#include "backends/metal/kernels/args.h"
#include "metal/kv_pool.h"
#include "metal/matrices.h"
#include "metal/weights.h"

namespace argent::metal {
namespace {

// The sum kernel of one token, or of a few.
const Buffer& product(Bench& bench, const Matrix& w, const Buffer& x, uint32_t tokens) {
  const Buffer& y = bench.upload(std::vector<float>(size_t(tokens) * w.rows, kUntouched));
  const uint32_t rows_of_group = tokens == 1 && w.format == Format::q4_0 ? 8 : 4;
  Dispatch d = bench.dispatch((tokens == 1 ? "mul_mv_" : "mul_mv_tokens_") + name_of(w.format), {},
                              {groups(w.rows, rows_of_group)}, {64});
  d.value(0, MatmulArgs{w.rows, w.cols, tokens, w.cols, w.rows});
  d.bind(1, bench.upload(w.bytes)).bind(2, x).bind(3, y);
  bench.run({d});
  return y;
}

// Exact, and tells bits apart that compare equal.
void expect_bits(const std::vector<float>& got, const std::vector<float>& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); i++)
    ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(want[i])) << what << " at " << i;
}

std::vector<Format> formats() {
  std::vector<Format> all;
  for (const FormatInfo& f : kFormats)
    if (f.format) all.push_back(*f.format);
  return all;
}

TEST(Fused, GluHasTheBitsOfItsParts) {
  const auto all = formats();
  for (size_t i = 0; i < all.size(); i++) {
    for (const uint32_t tokens : {1u, 5u}) {
      emu::EmuDevice device;
      Bench bench(device);
      Numbers numbers(i);
      const Matrix gate(all[i], 6, 512, numbers), up(all[(i + 3) % all.size()], 6, 512, numbers);
      const Buffer& x = bench.upload(numbers.floats(size_t(tokens) * 512, 0.1f));
      const Buffer& y = bench.upload(std::vector<float>(size_t(tokens) * 6, kUntouched));
      auto constants = format_constants(20, {&gate, &up});
      constants.push_back({22, kActSilu});
      Dispatch d = bench.dispatch(tokens == 1 ? "glu" : "glu_tokens", constants, {2}, {128});
      d.value(0, MatmulArgs{6, 512, tokens, 512, 6});
      d.bind(1, bench.upload(gate.bytes)).bind(2, bench.upload(up.bytes)).bind(3, x).bind(4, y);
      d.threadgroup_bytes = {128};
      bench.run({d});
      const auto g = bench.floats(product(bench, gate, x, tokens));
      auto want = bench.floats(product(bench, up, x, tokens));
      for (size_t e = 0; e < want.size(); e++) want[e] *= g[e] / (1.0f + std::exp(-std::max(g[e], -80.0f)));
      ASSERT_EQ(bench.error(), "");
      expect_bits(bench.floats(y), want, name_of(all[i]) + " " + std::to_string(tokens));
    }
  }
}

TEST(Fused, QkvHasTheBitsOfItsParts) {
  const auto all = formats();
  for (size_t i = 0; i < all.size(); i++) {
    for (const uint32_t tokens : {1u, 8u}) {
      emu::EmuDevice device;
      Bench bench(device);
      Numbers numbers(i);
      const uint32_t rows[] = {9, 4, 3};
      const Buffer& x = bench.upload(numbers.floats(size_t(tokens) * 512));
      std::vector<Matrix> w;
      for (size_t p = 0; p < 3; p++) w.emplace_back(all[(i + 5 * p) % all.size()], rows[p], 512, numbers);
      auto constants = format_constants(23, {&w[0], &w[1], &w[2]});
      constants.push_back({26, true});
      Dispatch d = bench.dispatch(tokens == 1 ? "qkv" : "qkv_tokens", constants, {5}, {64});
      d.value(0, QkvArgs{rows[0], rows[1], rows[2], 512, tokens, 512}).bind(4, x);
      std::vector<const Buffer*> out;
      std::vector<std::vector<float>> bias;
      for (uint32_t p = 0; p < 3; p++) {
        out.push_back(&bench.upload(std::vector<float>(size_t(tokens) * rows[p], kUntouched)));
        bias.push_back(numbers.floats(rows[p]));
        d.bind(1 + p, bench.upload(w[p].bytes)).bind(5 + p, *out[p]).bind(8 + p, bench.upload(bias[p]));
      }
      bench.run({d});
      for (uint32_t p = 0; p < 3; p++) {
        auto want = bench.floats(product(bench, w[p], x, tokens));
        for (size_t e = 0; e < want.size(); e++) want[e] += bias[p][e % rows[p]];
        ASSERT_EQ(bench.error(), "");
        expect_bits(bench.floats(*out[p]), want, name_of(w[p].format) + " " + std::to_string(tokens));
      }
    }
  }
}

// Heads normalised by one SIMD-group each, then rotated, in the order of operations of kernels for either.
std::vector<float> normed_and_rotated(std::vector<float> y, const std::vector<float>& norm, uint32_t heads,
                                      uint32_t n_rot, const std::vector<float>& table) {
  const size_t d = norm.size();
  for (size_t h = 0; h < y.size() / d; h++) {
    float* head = &y[h * d];
    std::array<float, kSimdWidth> lanes{};
    for (size_t i = 0; i < d; i += 4) {
      const float* v = head + i;
      lanes[i / 4 % kSimdWidth] += v[0] * v[0] + v[1] * v[1] + v[2] * v[2] + v[3] * v[3];
    }
    for (size_t step = kSimdWidth / 2; step; step /= 2)  // simd_sum
      for (size_t lane = 0; lane < step; lane++) lanes[lane] += lanes[lane + step];
    const float scale = 1.0f / std::sqrt(lanes[0] / float(d) + 1e-5f);
    for (size_t i = 0; i < d; i++) head[i] = head[i] * scale * norm[i];
    for (size_t p = 0; p < n_rot / 2; p++) {
      const float* angle = &table[h / heads * n_rot + 2 * p];
      const float x0 = head[p], x1 = head[p + n_rot / 2];
      head[p] = x0 * angle[0] - x1 * angle[1];
      head[p + n_rot / 2] = x0 * angle[1] + x1 * angle[0];
    }
  }
  return y;
}

TEST(Fused, QkvRopeHasTheBitsOfItsParts) {
  for (const uint32_t tokens : {1u, 3u}) {
    for (const KvType type : {KvType::f16, KvType::bf16, KvType::q8_0}) {
      emu::EmuDevice device;
      Bench bench(device);
      Numbers numbers(tokens);
      const KvShape kv{2, 64, 32, type, type};
      const KvStep step({{31, tokens}}, numbers);
      KvPool pool(kv, step);
      const uint32_t cols = 256, n_rot = 48, n_head = 3;
      const Matrix w_q(Format::q4_k, n_head * 64, cols, numbers), w_k(Format::q4_0, 128, cols, numbers);
      const Matrix w_v(Format::q6_k, 64, cols, numbers);
      const Buffer& x = bench.upload(numbers.floats(size_t(tokens) * cols));
      const auto norm_q = numbers.floats(64), norm_k = numbers.floats(64), table = numbers.floats(tokens * n_rot);

      const Buffer& fused_q = bench.upload(std::vector<float>(size_t(tokens) * w_q.rows, kUntouched));
      const Buffer& fused_pool = bench.upload(pool.bytes());
      const std::vector<FunctionConstant> types = {{10, uint32_t(type)}, {11, uint32_t(type)}};
      auto constants = format_constants(23, {&w_q, &w_k, &w_v});
      constants.insert(constants.end(), types.begin(), types.end());
      constants.insert(constants.end(), {{26, false}, {27, true}, {50, false}});
      Dispatch d = bench.dispatch(tokens == 1 ? "qkv_rope" : "qkv_rope_tokens", constants, {n_head + 4}, {128});
      d.value(0, QkvRopeArgs{n_head, cols, tokens, cols, w_q.rows, n_rot, 1e-5f, pool.args()});
      d.bind(1, bench.upload(w_q.bytes)).bind(2, bench.upload(w_k.bytes)).bind(3, bench.upload(w_v.bytes)).bind(4, x);
      d.bind(5, fused_q).bind(6, fused_pool, pool.offset_k()).bind(7, fused_pool, pool.offset_v());
      d.bind(8, x).bind(9, x).bind(10, x).bind(11, bench.upload(norm_q)).bind(12, bench.upload(norm_k));
      auto bind_step = [&](Dispatch& to, uint32_t first) {
        to.bind(first, bench.upload(step.positions)).bind(first + 1, bench.upload(step.row_sequence));
        to.bind(first + 2, bench.upload(step.sequences)).bind(first + 3, bench.upload(step.tables));
      };
      bind_step(d.bind(13, bench.upload(table)), 14);
      d.threadgroup_bytes = {tokens * 256};
      bench.run({d});

      const auto q = normed_and_rotated(bench.floats(product(bench, w_q, x, tokens)), norm_q, n_head, n_rot, table);
      const auto k = normed_and_rotated(bench.floats(product(bench, w_k, x, tokens)), norm_k, 2, n_rot, table);
      const Buffer& unfused_pool = bench.upload(pool.bytes());
      Dispatch store = bench.dispatch("kv_store", types, {1, tokens}, {128});
      store.value(0, pool.args()).bind(1, bench.upload(k)).bind(2, product(bench, w_v, x, tokens));
      store.bind(3, unfused_pool, pool.offset_k()).bind(4, unfused_pool, pool.offset_v());
      bind_step(store, 5);
      bench.run({store});
      ASSERT_EQ(bench.error(), "");
      expect_bits(bench.floats(fused_q), q, "q");
      EXPECT_TRUE(std::ranges::equal(fused_pool.bytes(), unfused_pool.bytes())) << name_of(type) << " " << tokens;
    }
  }
}

emu::Work work_of_mul_mm(uint32_t tokens) {
  constexpr uint32_t kRows = 64, kCols = 256;
  emu::EmuDevice device;
  Bench bench(device);
  Numbers numbers(tokens);
  const Matrix w(Format::q4_k, kRows, kCols, numbers);
  Dispatch d = bench.dispatch("mul_mm_q4_k", {}, {mul_mm_token_tiles(tokens), 1}, {128});
  d.value(0, MatmulArgs{kRows, kCols, tokens, kCols, kRows});
  d.bind(1, bench.upload(w.bytes)).bind(2, bench.upload(numbers.floats(size_t(tokens) * kCols)));
  d.bind(3, bench.upload(std::vector<float>(size_t(tokens) * kRows, kUntouched)));
  d.threadgroup_bytes = {6656};
  bench.run({d});
  EXPECT_EQ(bench.error(), "");
  return device.work().front().work;
}

TEST(MulMm, MultipliesNoMoreThanTheTokensThatThereAre) {
  for (uint32_t tokens = 1; tokens < 81; tokens += 3)
    EXPECT_EQ(work_of_mul_mm(tokens).matrix_multiplies, groups(tokens, 8) * (64 / 8) * (256 / 8)) << tokens;
}

TEST(MulMm, OneTokenMoreThanATileCostsLittle) {
  for (const uint32_t tokens : {256u, 512u}) {
    const emu::Work full = work_of_mul_mm(tokens), more = work_of_mul_mm(tokens + 1);
    const double multiplies = double(more.matrix_multiplies) / double(full.matrix_multiplies);
    EXPECT_LE(multiplies, 1.1);
    // Bytes are counted in the build with checks.
    const double loaded = emu::Machine::instrumented ? double(more.loaded[0]) / double(full.loaded[0]) : 1;
    EXPECT_LE(loaded, 1.1);
    RecordProperty("multiplies_" + std::to_string(tokens + 1), std::to_string(multiplies));
    RecordProperty("loaded_" + std::to_string(tokens + 1), std::to_string(loaded));
  }
}

}  // namespace
}  // namespace argent::metal
