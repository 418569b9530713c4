// The reference against expectations written down a second time: plain formulas in long double, and published numbers.
#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <set>

#include "base/half.h"
#include "ops/harness.h"

namespace argent::ops_test {
namespace {

const BackendOptions kF32 = backend_options(ActivationMode::f32, KvType::f32, 2),
                     kNative = backend_options(ActivationMode::native);

// Runs one op on a table of activations: token r is row r, positions are 0, 1, ...
class OneOp {
 public:
  ValueId rows(const std::vector<std::vector<float>>& x) {
    n_rows_ = uint32_t(x.size());
    return b.embed(b.input(Input::tokens), weight(x));
  }
  ValueId weight(const std::vector<std::vector<float>>& x) {
    std::vector<float> flat;
    for (const auto& row : x) flat.insert(flat.end(), row.begin(), row.end());
    bytes_.emplace_back(flat.size() * sizeof(float));
    std::memcpy(bytes_.back().data(), flat.data(), bytes_.back().size());
    return b.weight(fmt::format("w{}", bytes_.size()), Format::f32, uint32_t(x.size()), uint32_t(x[0].size()),
                    bytes_.back().data());
  }
  ValueId raw(Format format, uint32_t n_rows, uint32_t width, std::vector<uint8_t> bytes) {
    bytes_.push_back(std::move(bytes));
    return b.weight(fmt::format("w{}", bytes_.size()), format, n_rows, width, bytes_.back().data());
  }

  // One step of all rows, from position `first` (whose KV, if any, was never written) on.
  std::vector<float> run(ValueId out, const BackendOptions& options = kF32, uint32_t first = 0) {
    b.set_logits(out);
    auto graph = b.finish();
    if (!graph) throw std::runtime_error(graph.error().message);
    auto backend = *make_poisoned_reference(options);
    const KernelTable* device = backend.get();
    auto plan = *make_plan(*graph, {n_rows_, n_rows_, true, Tail::logits}, {&device, 1});
    const KvLayout layout = kv_layout(*graph);
    const uint32_t n_blocks = (first + n_rows_) / kKvBlockTokens + 1;
    EXPECT_TRUE(
        backend->allocate(layout, {plan.arena_bytes[0], std::vector<uint32_t>(layout.windows.size(), n_blocks)}));
    const PlanId id = *backend->compile(std::move(plan));
    std::vector<int32_t> table(n_blocks);
    for (uint32_t i = 0; i < n_blocks; ++i) table[i] = int32_t(n_blocks - 1 - i);
    Step step;
    for (uint32_t r = 0; r < n_rows_; ++r) {
      step.tokens.push_back(int32_t(r));
      step.positions.push_back(int32_t(first + r));
      step.row_sequence.push_back(0);
      step.output_rows.push_back(int32_t(r));
    }
    step.sequences.push_back(
        {0, n_rows_, first, 0, std::vector<std::span<const int32_t>>(layout.windows.size(), table), {}});
    const auto ticket = backend->run(id, step);
    if (!ticket) throw std::runtime_error(ticket.error().message);
    const auto result = *backend->wait(*ticket);
    return {result.logits.begin(), result.logits.end()};
  }

  Builder b;

 private:
  std::deque<std::vector<uint8_t>> bytes_;
  uint32_t n_rows_ = 0;
};

std::vector<std::vector<float>> random_rows(uint32_t n, uint32_t width, uint32_t seed, float spread = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<std::vector<float>> x(n, std::vector<float>(width));
  for (auto& row : x)
    for (float& v : row) v = normal(random);
  return x;
}

void expect_close(float seen, long double wanted, long double relative = 1.2e-7L, long double absolute = 1e-30L) {
  EXPECT_LE(std::fabs((long double)seen - wanted), relative * std::fabs(wanted) + absolute)
      << seen << " wants " << double(wanted);
}

TEST(OpCases, EveryOpHasRows) {
  std::set<Op> seen;
  std::set<std::string> names;
  for (const Case& c : cases()) {
    seen.insert(c.op);
    EXPECT_TRUE(names.insert(c.name).second) << c.name << " is there twice";
  }
  for (size_t op = 0; op < kOps; ++op) EXPECT_TRUE(seen.count(Op(op))) << info(Op(op)).name << " has no case";
  EXPECT_GE(names.size(), 140u);  // rows that vanish show
}

// The table itself: every graph is valid, steps fit, and nothing reads what nobody wrote (the reference is poisoned).
TEST(OpCases, RunOnTheReference) {
  for (const ActivationMode mode : {ActivationMode::native, ActivationMode::f32})
    for (const Case& c : cases()) {
      if (mode == ActivationMode::f32 && c.op != Op::matmul && c.op != Op::qkv && c.op != Op::glu) continue;
      const Outcome outcome = run_case(c, backend_options(mode), make_reference_backend);
      EXPECT_EQ(outcome.state, Outcome::ok) << c.name << ": " << outcome.detail;
    }
}

TEST(OpCases, HarnessSeesADifference) {
  // The reference without its f16 cache is another backend: attention must differ, and be reported.
  for (const Case& c : cases())
    if (c.name == "attention.peaked") {
      const auto f32_cache = [](const BackendOptions&) { return make_reference_backend(kF32); };
      EXPECT_EQ(run_case(c, kNative, f32_cache).state, Outcome::wrong);
    }
  double worst = 0;
  EXPECT_TRUE(compare({{1, 2, NAN}, {}}, {{1, 2, 3}, {}}, 3, kAttention, &worst));
  EXPECT_TRUE(compare({{1, 2, 3}, {}}, {{1, 2, NAN}, {}}, 3, kAttention, &worst));
  EXPECT_TRUE(compare({{}, {1}}, {{}, {2}}, 1, kExact, &worst));
  EXPECT_FALSE(compare({{1, NAN, INFINITY}, {}}, {{1, NAN, INFINITY}, {}}, 3, kExact, &worst));
}

TEST(Reference, Elementwise) {
  const auto x = random_rows(5, 7, 1, 3), y = random_rows(5, 7, 2), v = random_rows(1, 7, 3);
  struct Row {
    std::function<ValueId(OneOp&, ValueId)> op;
    std::function<long double(size_t, size_t)> wanted;
  };
  const auto X = [&](size_t r, size_t i) { return (long double)x[r][i]; };
  const Row rows[] = {
      {[&](OneOp& o, ValueId a) { return o.b.add(a, o.rows(y)); },
       [&](size_t r, size_t i) { return X(r, i) + y[r][i]; }},
      {[&](OneOp& o, ValueId a) { return o.b.mul(a, o.rows(y)); },
       [&](size_t r, size_t i) { return X(r, i) * y[r][i]; }},
      {[&](OneOp& o, ValueId a) { return o.b.add_bias(a, o.weight(v)); },
       [&](size_t r, size_t i) { return X(r, i) + v[0][i]; }},
      {[&](OneOp& o, ValueId a) {
         return o.b.add_op(Op::mul_row, {a, o.weight(v)});
       },
       [&](size_t r, size_t i) { return X(r, i) * v[0][i]; }},
      {[&](OneOp& o, ValueId a) { return o.b.scale(a, 0.3f); }, [&](size_t r, size_t i) { return X(r, i) * 0.3f; }},
      {[&](OneOp& o, ValueId a) { return o.b.silu(a); },
       [&](size_t r, size_t i) { return X(r, i) / (1 + std::exp(-X(r, i))); }},
      {[&](OneOp& o, ValueId a) { return o.b.sigmoid(a); },
       [&](size_t r, size_t i) { return 1 / (1 + std::exp(-X(r, i))); }},
      {[&](OneOp& o, ValueId a) { return o.b.softcap(a, 2.5f); },
       [&](size_t r, size_t i) { return 2.5L * std::tanh(X(r, i) / 2.5L); }},
      {[&](OneOp& o, ValueId a) { return o.b.gelu(a); },
       [&](size_t r, size_t i) {  // tanh form, by way of the logistic function: (1 + tanh u) / 2 = 1 / (1 + e^-2u)
         const long double u = std::sqrt(2 / M_PIl) * (X(r, i) + 0.044715L * std::pow(X(r, i), 3));
         return X(r, i) / (1 + std::exp(-2 * u));
       }},
      {[&](OneOp& o, ValueId a) { return o.b.rms_norm(a, kNone, 1e-3f); },
       [&](size_t r, size_t i) {
         long double sum = 0;
         for (size_t j = 0; j < 7; ++j) sum += X(r, j) * X(r, j);
         return X(r, i) / std::sqrt(sum / 7 + 1e-3f);
       }},
  };
  for (size_t k = 0; k < std::size(rows); ++k) {
    SCOPED_TRACE(k);
    OneOp o;
    const std::vector<float> seen = o.run(rows[k].op(o, o.rows(x)));
    ASSERT_EQ(seen.size(), 35u);
    for (size_t r = 0; r < 5; ++r)
      for (size_t i = 0; i < 7; ++i) expect_close(seen[r * 7 + i], rows[k].wanted(r, i), 1.2e-7L, 1e-15L);
  }
}

TEST(Reference, ActivationsAtKnownPoints) {
  OneOp o;
  const std::vector<float> seen = o.run(o.b.gelu(o.rows({{0, 1, -1, 100, -100}})));
  const float wanted[] = {0, 0.84119199f, -0.15880801f, 100, 0};  // 0.5 (1 + tanh(0.79788456 * 1.044715))
  for (int i = 0; i < 5; ++i) EXPECT_NEAR(seen[i], wanted[i], 1e-7) << i;
  OneOp s;
  const std::vector<float> silu = s.run(s.b.silu(s.rows({{0, 1, -1, 1000, -1000}})));
  const float wanted_silu[] = {0, 0.73105858f, -0.26894142f, 1000, 0};
  for (int i = 0; i < 5; ++i) EXPECT_NEAR(silu[i], wanted_silu[i], 1e-7) << i;
}

TEST(Reference, NormOverGroupsAndPerHeadWeight) {
  const auto x = random_rows(2, 6, 4), w = random_rows(1, 3, 5);
  OneOp o;
  const std::vector<float> seen = o.run(o.b.rms_norm(o.rows(x), o.weight(w), 0, 3));
  for (size_t r = 0; r < 2; ++r)
    for (size_t i = 0; i < 6; ++i) {
      const size_t g = i / 3 * 3;
      const long double mean = ((long double)x[r][g] * x[r][g] + (long double)x[r][g + 1] * x[r][g + 1] +
                                (long double)x[r][g + 2] * x[r][g + 2]) /
                               3;
      expect_close(seen[r * 6 + i], x[r][i] / std::sqrt(mean) * w[0][i % 3], 2.4e-7L);
    }
}

TEST(Reference, MatmulInDouble) {
  const auto x = random_rows(3, 37, 6), w = random_rows(5, 37, 7);
  OneOp o;
  const std::vector<float> seen = o.run(o.b.matmul(o.rows(x), o.weight(w)));
  for (size_t r = 0; r < 3; ++r)
    for (size_t n = 0; n < 5; ++n) {
      long double sum = 0;
      for (size_t i = 0; i < 37; ++i) sum += (long double)x[r][i] * w[n][i];
      expect_close(seen[r * 5 + n], sum, 6e-8L, 1e-14L);
    }
}

// Native products of every format against decoded weights times the activations' int8 values, in long double: all that
// remains is the roundings of the float sums.
TEST(Reference, NativeMatmulIsThatOfQuantizedActivations) {
  std::mt19937 random(8);
  for (const FormatInfo& f : kFormats) {
    if (!f.format || f.block == 1) continue;
    SCOPED_TRACE(f.name);
    const uint32_t width = 512;
    const auto x = random_rows(2, width, 9);
    std::vector<uint8_t> bytes;
    for (int n = 0; n < 4; ++n) {
      const auto row = random_row(*f.format, width, random);
      bytes.insert(bytes.end(), row.begin(), row.end());
    }
    OneOp o;
    const std::vector<float> seen = o.run(o.b.matmul(o.rows(x), o.raw(*f.format, 4, width, bytes)), kNative);
    for (size_t r = 0; r < 2; ++r)
      for (size_t n = 0; n < 4; ++n) {
        std::vector<float> w(width);
        decode_row(*f.format, &bytes[n * row_bytes(*f.format, width)], w.data(), width);
        long double sum = 0, magnitude = 0;
        for (size_t g = 0; g < width; g += 32) {
          float amax = 0;
          for (size_t i = g; i < g + 32; ++i) amax = std::max(amax, std::fabs(x[r][i]));
          for (size_t i = g; i < g + 32; ++i) {
            const long double term = std::round(x[r][i] * (127.0 / amax)) * (long double)(amax / 127.0f) * w[i];
            sum += term, magnitude += std::fabs(term);
          }
        }
        EXPECT_NEAR(seen[r * 4 + n], double(sum), 3e-7 * double(magnitude));
      }
  }
}

// Native products of bf16 weights against the exact sum of the activations' bfloat16 values; subnormals count as zero.
TEST(Reference, NativeMatmulOfBfloat16) {
  const uint32_t width = 37, n_rows = 5;
  auto x = random_rows(3, width, 6), w = random_rows(n_rows, width, 7);
  x[0][3] = 0x1p-130f, w[0][3] = 0x1p120f;
  std::vector<uint8_t> bytes(2 * n_rows * width);
  for (uint32_t n = 0; n < n_rows; ++n)
    for (uint32_t i = 0; i < width; ++i) {
      const uint16_t b = float_to_bf16(w[n][i]);
      std::memcpy(&bytes[2 * (n * width + i)], &b, 2);
    }
  OneOp o;
  const std::vector<float> seen = o.run(o.b.matmul(o.rows(x), o.raw(Format::bf16, n_rows, width, bytes)), kNative);
  for (size_t r = 0; r < 3; ++r)
    for (size_t n = 0; n < n_rows; ++n) {
      long double sum = 0, magnitude = 0;
      for (size_t i = 0; i < width; ++i) {
        if (std::fabs(x[r][i]) < 0x1p-126f) continue;
        const long double term =
            (long double)bf16_to_float(float_to_bf16(x[r][i])) * bf16_to_float(float_to_bf16(w[n][i]));
        sum += term, magnitude += std::fabs(term);
      }
      EXPECT_NEAR(seen[r * n_rows + n], double(sum), 3e-7 * double(magnitude)) << r << ' ' << n;
    }
}

TEST(Reference, NativeMatmulEdges) {
  // A group of tiny activations is zero, one with a NaN or infinity makes the token NaN, the other tokens stay.
  std::vector<uint8_t> ones(2 * 34);
  for (int b = 0; b < 2; ++b) {
    ones[b * 34 + 1] = 0x3c;  // Q8_0: d = 1
    std::memset(&ones[b * 34 + 2], 1, 32);
  }
  std::vector<std::vector<float>> x(4, std::vector<float>(64, 0.0f));
  x[0][0] = 127, x[0][1] = -3.4f, x[0][2] = 2.5f, x[0][3] = 3.5f, x[0][40] = 1e-31f;  // -3, 2 (to even), 4, 0
  x[1][63] = INFINITY;
  x[2][5] = NAN;
  x[3][0] = 0x1p-100f;
  OneOp o;
  const std::vector<float> seen = o.run(o.b.matmul(o.rows(x), o.raw(Format::q8_0, 1, 64, ones)), kNative);
  EXPECT_EQ(seen[0], 127 - 3 + 2 + 4);
  EXPECT_TRUE(std::isnan(seen[1]));
  EXPECT_TRUE(std::isnan(seen[2]));
  EXPECT_NEAR(seen[3], 0x1p-100f, 0x1p-120f);
}

TEST(Reference, RopeTurnsPairs) {
  for (const bool interleaved : {false, true}) {
    const Attrs attrs{.n_rot = 6, .interleaved = interleaved, .freq_base = 100};
    const auto x = random_rows(4, 2 * 10, 10);
    OneOp o;
    const ValueId table = o.b.rope_table(o.b.input(Input::positions), kNone, attrs);
    const std::vector<float> seen = o.run(o.b.rope(o.rows(x), table, 2, attrs), kF32, 100);
    for (size_t r = 0; r < 4; ++r)
      for (size_t h = 0; h < 2; ++h)
        for (size_t i = 0; i < 3; ++i) {
          const size_t a = h * 10 + (interleaved ? 2 * i : i), b = h * 10 + (interleaved ? 2 * i + 1 : i + 3);
          const std::complex<long double> turned =
              std::complex<long double>(x[r][a], x[r][b]) *
              std::polar(1.0L, (100 + r) * std::pow(100.0L, -(long double)(i) / 3));
          EXPECT_NEAR(seen[r * 20 + a], double(turned.real()), 5e-7);
          EXPECT_NEAR(seen[r * 20 + b], double(turned.imag()), 5e-7);
          for (size_t j = 6; j < 10; ++j) EXPECT_EQ(seen[r * 20 + h * 10 + j], x[r][h * 10 + j]);
        }
  }
}

TEST(Reference, RopeScalings) {
  const auto table = [](const Attrs& a, uint32_t position, const std::vector<float>* factors = nullptr) {
    OneOp o;
    o.rows({{0}});
    return o.run(o.b.rope_table(o.b.input(Input::positions), factors ? o.weight({*factors}) : kNone, a), kF32,
                 position);
  };
  const auto linear = table({.n_rot = 8, .freq_scale = 0.25f}, 400), plain = table({.n_rot = 8}, 100);
  for (int i = 0; i < 8; ++i) EXPECT_NEAR(linear[i], plain[i], 1e-7);
  const std::vector<float> factors = {1, 2, 4, 8};
  const auto factored = table({.n_rot = 8}, 800, &factors);
  for (int i = 0; i < 4; ++i) {
    EXPECT_NEAR(factored[2 * i], std::cos(800 / factors[i] * std::pow(10, -i)), 1e-6);
    EXPECT_NEAR(factored[2 * i + 1], std::sin(800 / factors[i] * std::pow(10, -i)), 1e-6);
  }
  // YaRN with n_rot 64, base 10000, 4096 trained positions, factor 4. Pair i turns 4096 / (2 pi 10000^(i/32)) times: 32
  // turns at i = 10.46, 1 turn at i = 22.51, so pairs up to 10 keep their frequency, from 23 on they are interpolated,
  // and between them the share falls by 1/13 a pair. Magnitude 0.1 ln 4 + 1 = 1.1386294.
  const Attrs yarn{.n_rot = 64, .freq_scale = 0.25f, .ext_factor = 1, .n_ctx_orig = 4096};
  const auto scaled = table(yarn, 50);
  for (int i = 0; i < 32; ++i) {
    const double kept = i <= 10 ? 1 : i >= 23 ? 0 : 1 - (i - 10) / 13.0;
    const double theta = 50 * std::pow(10000.0, -i / 32.0) * (kept + (1 - kept) * 0.25);
    EXPECT_NEAR(scaled[2 * i], 1.1386294361 * std::cos(theta), 1e-6) << i;
    EXPECT_NEAR(scaled[2 * i + 1], 1.1386294361 * std::sin(theta), 1e-6) << i;
  }
}

TEST(Reference, AttentionIsSoftmaxOverTheWindow) {
  constexpr uint32_t n = 70, n_head = 4, n_head_kv = 2, d = 5, d_value = 3;
  const auto q = random_rows(n, n_head * d, 11), k = random_rows(n, n_head_kv * d, 12),
             v = random_rows(n, n_head_kv * d_value, 13);
  for (const uint32_t window : {0u, 1u, 5u, 16u, 69u, 70u, 1000u})
    for (const float softcap : {0.0f, 1.5f})
      for (const KvType type : {KvType::f32, KvType::f16}) {
        SCOPED_TRACE(fmt::format("window {} softcap {} type {}", window, softcap, int(type)));
        OneOp o;
        const ValueId state = o.b.kv({.n_head_kv = n_head_kv, .d_head = d, .d_value = d_value, .window = window});
        const ValueId query = o.rows(q), key = o.rows(k), value = o.rows(v);
        o.b.kv_store(key, value, state);
        const std::vector<float> seen =
            o.run(o.b.attention(query, state, n_head, 0.7f, softcap), backend_options(ActivationMode::f32, type, 2));
        const auto stored = [&](float x) {
          return (long double)(type == KvType::f16 ? half_to_float(float_to_half(x)) : x);
        };
        for (uint32_t r = 0; r < n; ++r)
          for (uint32_t h = 0; h < n_head; ++h) {
            const uint32_t first = window == 0 || r + 1 < window ? 0 : r + 1 - window;
            long double total = 0, mixed[d_value] = {};
            for (uint32_t p = first; p <= r; ++p) {
              long double score = 0;
              for (uint32_t i = 0; i < d; ++i) score += q[r][h * d + i] * stored(k[p][h / 2 * d + i]);
              score *= 0.7f;
              if (softcap != 0) score = softcap * std::tanh(score / softcap);
              total += std::exp(score);
              for (uint32_t i = 0; i < d_value; ++i) mixed[i] += std::exp(score) * stored(v[p][h / 2 * d_value + i]);
            }
            for (uint32_t i = 0; i < d_value; ++i)
              expect_close(seen[(r * n_head + h) * d_value + i], mixed[i] / total, 1.2e-7L, 1e-12L);
          }
      }
}

// A small model with everything that fuses, prefilled and decoded: fused and not, the bits are the same.
TEST(Reference, FusedIsTheCompositionOfItsParts) {
  for (const ActivationMode mode : {ActivationMode::native, ActivationMode::f32}) {
    Maker m(3);
    Builder& b = m.builder();
    ValueId x = m.rows(64);
    const Attrs rope{.n_rot = 32};
    for (uint32_t layer = 0; layer < 2; ++layer) {
      b.layer(int32_t(layer));
      const ValueId state = b.kv({.layer = layer, .n_head_kv = 1, .d_head = 32, .d_value = 32, .window = layer * 9});
      const ValueId table = b.rope_table(m.positions(), kNone, rope);
      const ValueId normed = b.rms_norm(x, m.vector(64), 1e-6f);
      ValueId q = b.matmul(normed, m.matrix(Format::q4_0, 64, 64)),
              k = b.matmul(normed, m.matrix(Format::q4_0, 32, 64)),
              v = b.matmul(normed, m.matrix(Format::q8_0, 32, 64));
      if (layer == 1) q = b.add_bias(q, m.vector(64)), k = b.add_bias(k, m.vector(32)), v = b.add_bias(v, m.vector(32));
      q = b.rope(b.rms_norm(q, m.vector(32), 1e-6f, 32), table, 2, rope);
      k = b.rope(b.rms_norm(k, m.vector(32), 1e-6f, 32), table, 1, rope);
      b.kv_store(k, v, state);
      const ValueId seen =
          b.mul(b.attention(q, state, 2, 0.18f), b.sigmoid(b.matmul(normed, m.matrix(Format::q4_0, 64, 64))));
      ValueId out = b.matmul(seen, m.matrix(Format::q4_1, 64, 64));
      if (layer == 0) out = b.rms_norm(out, m.vector(64), 1e-6f);
      x = b.add(x, out);
      const ValueId ffn = b.rms_norm(x, m.vector(64), 1e-6f);
      const ValueId gate = b.matmul(ffn, m.matrix(Format::q5_0, 96, 64)),
                    up = b.matmul(ffn, m.matrix(Format::q5_0, 96, 64));
      x = b.add(x, b.matmul(b.mul(layer ? b.gelu(gate) : b.silu(gate), up), m.matrix(Format::q4_0, 64, 96)));
    }
    b.layer(-1);
    b.set_logits(b.matmul(b.rms_norm(x, m.vector(64), 1e-6f), m.matrix(Format::q8_0, 50, 64)));
    const auto graph = b.finish();
    ASSERT_TRUE(graph) << graph.error().message;
    auto reference = *make_poisoned_reference({});
    const KernelTable* device = reference.get();
    std::set<Op> fused;
    const auto plan = make_plan(*graph, {8, 8, true, Tail::logits}, {&device, 1});
    ASSERT_TRUE(plan) << plan.error().message;
    for (const Node& node : (*plan).graph.nodes) fused.insert(node.op);
    for (Op op : {Op::norm_mul, Op::add_norm_mul, Op::norm_add_norm, Op::mul_sigmoid, Op::qkv_store, Op::glu})
      EXPECT_TRUE(fused.count(op)) << info(op).name;

    const BackendOptions options = backend_options(mode, KvType::f16, 2);
    const auto parts = Runner::create(*graph, options, make_poisoned_reference, {});
    const auto whole = Runner::create(*graph, options, make_poisoned_reference, {.fuse = true});
    ASSERT_TRUE(parts && whole);
    for (const StepSpec& spec : chat) {
      const auto a = (*whole)->step(spec), c = (*parts)->step(spec);
      ASSERT_TRUE(a && c) << (a ? c : a).error().message;
      double worst = 0;
      const auto difference = compare(*a, *c, 50, kExact, &worst);
      EXPECT_FALSE(difference) << *difference;
      for (float logit : a->logits) ASSERT_TRUE(std::isfinite(logit));
    }
  }
}

// Chunks, batches and single tokens of one text give the same logits, to the bit.
TEST(Reference, ScheduleDoesNotMatter) {
  for (const Case& c : cases()) {
    if (c.name != "attention.two_groups") continue;
    Maker m(5);
    m.builder().set_logits(c.build(m, m.builder()));
    const auto graph = m.builder().finish();
    ASSERT_TRUE(graph);
    // Tokens depend on the step's number, so the first steps are alike; company must not change them.
    const auto alone = Runner::create(*graph, {}, make_poisoned_reference, {});
    const auto busy = Runner::create(*graph, {}, make_poisoned_reference, {});
    for (const uint32_t n : {40u, 1u, 3u}) {
      const auto a = (*alone)->step({{{0, n}}, Outputs::all}), b = (*busy)->step({{{0, n}, {1, 9}}, Outputs::all});
      ASSERT_TRUE(a && b);
      ASSERT_TRUE(std::equal(a->logits.begin(), a->logits.end(), b->logits.begin()));
    }
  }
}

}  // namespace
}  // namespace argent::ops_test
