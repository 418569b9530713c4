#include "backends/cpu/vector.h"

#include <gtest/gtest.h>

#include <bit>
#include <functional>

#include "backends_cpu/matmul_cases.h"

namespace argent::cpu {
namespace {

constexpr uint32_t kSizes[] = {1, 2, 3, 15, 16, 17, 31, 33, 63, 64, 65, 576, 6656};
constexpr double kUlp = 0x1p-23;

void expect_same(const float* a, const float* b, size_t n, const std::string& what) {
  for (size_t i = 0; i < n; ++i)
    ASSERT_TRUE(same(a[i], b[i])) << what << " at " << i << ": " << a[i] << " and " << b[i];
}

// Relative error, with results below `least` measured against that.
double error(double got, double want, double least = 0x1p-126) {
  if (std::isnan(want)) return std::isnan(got) ? 0 : INFINITY;
  if (got == want) return 0;
  if (std::fabs(want) > 3.4028235677973366e38) return std::isinf(got) && (got > 0) == (want > 0) ? 0 : INFINITY;
  return std::fabs(got - want) / std::max(std::fabs(want), least);
}

// What every float kernel must bear: ordinary numbers, large and tiny ones, both zeros, infinities and NaN.
std::vector<float> hard_floats(size_t n, uint32_t seed) {
  std::vector<float> x = random_floats(n, seed);
  std::mt19937 random(seed + 1);
  for (float& v : x) switch (random() % 8) {
      case 0:
        v *= 10;
        break;
      case 1:
        v *= 40;
        break;
      case 2:
        v *= 1e-4f;
        break;
      case 3:
        v *= 1e-30f;
        break;
      case 4:
        v *= 0x1p-120f;
        break;
      case 5: {
        constexpr float kSpecial[] = {0.0f,   -0.0f,  1e20f,  -1e20f, INFINITY, NAN, 3e38f,
                                      -3e38f, -90.5f, 1e-45f, 88.7f,  -103.9f,  1.0f};
        v = kSpecial[random() % std::size(kSpecial)];
        break;
      }
      default:
        break;
    }
  return x;
}

// Where x sigmoid(x) is this small, exp(x) is subnormal: half its step times |x| < 128 is 4 ulp here.
constexpr double kLeast = 0x1p-119;

struct Elementwise {
  const char* name;
  std::function<void(const VectorKernels&, const float*, const float*, float*, uint64_t)> run;
  std::function<double(double, double)> reference;
  std::function<double(double, double)> tolerance;  // relative
};

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double gelu(double x) { return x * sigmoid(2 * std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)); }
// gelu's exponent has itself an error of its size times an ulp.
double gelu_tolerance(double x, double) {
  return kUlp * (6 + 4 * std::min(200.0, std::fabs(1.6 * x * (1 + 0.044715 * x * x))));
}

std::vector<Elementwise> elementwise() {
  const auto ulps = [](double n) { return [n](double, double) { return n * kUlp; }; };
  return {
      {"add", [](auto& k, auto a, auto b, auto y, auto n) { k.add(a, b, y, n); },
       [](double a, double b) { return a + b; }, ulps(0.5)},
      {"mul", [](auto& k, auto a, auto b, auto y, auto n) { k.mul(a, b, y, n); },
       [](double a, double b) { return a * b; }, ulps(0.5)},
      {"scale", [](auto& k, auto a, auto, auto y, auto n) { k.scale(a, 0.3f, y, n); },
       [](double a, double) { return a * double(0.3f); }, ulps(0.5)},
      {"silu", [](auto& k, auto a, auto, auto y, auto n) { k.silu(a, y, n); },
       [](double a, double) { return a * sigmoid(a); }, ulps(4)},
      {"gelu", [](auto& k, auto a, auto, auto y, auto n) { k.gelu(a, y, n); }, [](double a, double) { return gelu(a); },
       gelu_tolerance},
      {"sigmoid", [](auto& k, auto a, auto, auto y, auto n) { k.sigmoid(a, y, n); },
       [](double a, double) { return sigmoid(a); }, ulps(4)},
      {"softcap", [](auto& k, auto a, auto, auto y, auto n) { k.softcap(a, 30.0f, y, n); },
       [](double a, double) { return 30 * std::tanh(a / 30); }, ulps(5)},
      {"no softcap", [](auto& k, auto a, auto, auto y, auto n) { k.softcap(a, 0.0f, y, n); },
       [](double a, double) { return a; }, ulps(0)},
      {"silu_mul", [](auto& k, auto a, auto b, auto y, auto n) { k.silu_mul(a, b, y, n); },
       [](double a, double b) { return a * sigmoid(a) * b; }, ulps(5)},
      {"gelu_mul", [](auto& k, auto a, auto b, auto y, auto n) { k.gelu_mul(a, b, y, n); },
       [](double a, double b) { return gelu(a) * b; }, [](double a, double b) { return gelu_tolerance(a, b) + kUlp; }},
  };
}

TEST(Vector, Elementwise) {
  for (const Elementwise& op : elementwise())
    for (const uint32_t n : kSizes) {
      const std::vector<float> a = hard_floats(n, n), b = random_floats(n, n + 7);
      std::vector<float> fused;
      for (const Isa isa : supported_isas()) {
        const VectorKernels& kernels = vector_kernels(isa);
        const std::string what = std::string(op.name) + ' ' + isa_name(isa) + ' ' + std::to_string(n);
        Guarded<float> x(n), u(n), y(n);
        std::copy(a.begin(), a.end(), x.data());
        std::copy(b.begin(), b.end(), u.data());
        op.run(kernels, x.data(), u.data(), y.data(), n);
        for (uint32_t i = 0; i < n; ++i)
          ASSERT_LE(error(y[i], op.reference(a[i], b[i]), kLeast), op.tolerance(a[i], b[i]))
              << what << ": " << a[i] << ", " << b[i] << " gave " << y[i] << " for " << op.reference(a[i], b[i]);
        if (has_fma(isa) && fused.empty()) fused.assign(y.data(), y.data() + n);
        if (has_fma(isa)) expect_same(y.data(), fused.data(), n, what);
        op.run(kernels, x.data(), u.data(), x.data(), n);  // in place
        expect_same(x.data(), y.data(), n, what + " in place");
        std::copy(a.begin(), a.end(), x.data());
        op.run(kernels, x.data(), u.data(), u.data(), n);
        expect_same(u.data(), y.data(), n, what + " in place of the second");
      }
    }
}

// exp's whole range, as sigmoid shows it.
TEST(Vector, SigmoidSweep) {
  std::vector<float> x;
  for (float v = -105.0f; v < 100.0f; v += 0.0037f) x.push_back(v);
  std::vector<float> y(x.size());
  for (const Isa isa : supported_isas()) {
    vector_kernels(isa).sigmoid(x.data(), y.data(), x.size());
    double worst = 0;
    for (size_t i = 0; i < x.size(); ++i) worst = std::max(worst, error(y[i], sigmoid(x[i])));
    EXPECT_LE(worst, 3 * kUlp) << isa_name(isa);
  }
}

TEST(Vector, TanhKeepsTinyArguments) {
  std::vector<float> x;
  for (double v = 1e-44; v < 1e6; v *= 1.01) {
    x.push_back(float(v));
    x.push_back(-float(v));
  }
  std::vector<float> y(x.size());
  for (const Isa isa : supported_isas()) {
    vector_kernels(isa).softcap(x.data(), 1.0f, y.data(), x.size());
    for (size_t i = 0; i < x.size(); ++i) ASSERT_LE(error(y[i], std::tanh(double(x[i]))), 4 * kUlp) << x[i];
  }
}

double normalized_error(const float* got, const std::vector<double>& want) {
  double difference = 0, power = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    difference += (got[i] - want[i]) * (got[i] - want[i]);
    power += want[i] * want[i];
  }
  return power == 0 ? difference : difference / power;
}

std::vector<double> reference_norm(const std::vector<double>& x, const float* w, uint32_t group, double eps) {
  std::vector<double> y(x.size());
  for (size_t at = 0; at < x.size(); at += group) {
    double sum = 0;
    for (uint32_t i = 0; i < group; ++i) sum += x[at + i] * x[at + i];
    const double inverse = 1 / std::sqrt(sum / group + eps);
    for (uint32_t i = 0; i < group; ++i) y[at + i] = x[at + i] * inverse * (w ? w[i] : 1.0f);
  }
  return y;
}

TEST(Vector, RmsNorm) {
  for (const uint32_t group : kSizes)
    for (const uint32_t n_groups : {1u, 3u})
      for (const bool weighted : {false, true})
        for (const float magnitude : {1.0f, 1e4f, 1e-6f}) {
          const uint32_t n = group * n_groups;
          std::vector<float> a = random_floats(n, n), b = random_floats(n, n + 1), w = random_floats(group, n + 2);
          for (float& v : a) v *= magnitude;
          for (float& v : b) v *= magnitude;
          const float* weight = weighted ? w.data() : nullptr;
          std::vector<double> exact(n), sums(n);
          for (uint32_t i = 0; i < n; ++i) exact[i] = a[i], sums[i] = a[i] + b[i];
          const auto want = reference_norm(exact, weight, group, 1e-6f),
                     want_sum = reference_norm(sums, weight, group, 1e-6f);
          std::vector<float> fused;
          for (const Isa isa : supported_isas()) {
            const VectorKernels& kernels = vector_kernels(isa);
            const std::string what =
                std::string(isa_name(isa)) + ' ' + std::to_string(group) + " x " + std::to_string(n_groups);
            Guarded<float> x(n), y(n), s(n), ys(n);
            std::copy(a.begin(), a.end(), x.data());
            kernels.rms_norm(x.data(), weight, y.data(), n, group, 1e-6f);
            EXPECT_LE(normalized_error(y.data(), want), 1e-12) << what;
            kernels.add_rms_norm(x.data(), b.data(), weight, s.data(), ys.data(), n, group, 1e-6f);
            EXPECT_LE(normalized_error(ys.data(), want_sum), 1e-12) << what;
            for (uint32_t i = 0; i < n; ++i) ASSERT_EQ(s[i], a[i] + b[i]);
            std::vector<float> all(y.data(), y.data() + n);
            all.insert(all.end(), ys.data(), ys.data() + n);
            if (has_fma(isa) && fused.empty()) fused = all;
            if (has_fma(isa)) expect_same(all.data(), fused.data(), all.size(), what);
            kernels.add_rms_norm(x.data(), b.data(), weight, x.data(), s.data(), n, group, 1e-6f);  // s in place of a
            expect_same(s.data(), ys.data(), n, what + " in place");
            for (uint32_t i = 0; i < n; ++i) ASSERT_EQ(x[i], a[i] + b[i]);
            std::copy(a.begin(), a.end(), x.data());
            kernels.rms_norm(x.data(), weight, x.data(), n, group, 1e-6f);
            expect_same(x.data(), y.data(), n, what + " in place");
          }
        }
}

TEST(Vector, RmsNormOfZerosAndNan) {
  for (const Isa isa : supported_isas()) {
    std::vector<float> x(100, 0.0f), y(100);
    vector_kernels(isa).rms_norm(x.data(), nullptr, y.data(), 100, 100, 1e-6f);
    for (const float v : y) EXPECT_EQ(v, 0.0f);
    x[97] = NAN;
    vector_kernels(isa).rms_norm(x.data(), nullptr, y.data(), 100, 100, 1e-6f);
    for (const float v : y) EXPECT_TRUE(std::isnan(v));
  }
}

TEST(Vector, Rope) {
  struct Shape {
    uint32_t n_head, d_head, n_rot;
  };
  for (const Shape s : {Shape{1, 2, 2},
                        {3, 64, 64},
                        {2, 80, 32},
                        {9, 96, 96},
                        {1, 128, 128},
                        {5, 256, 64},
                        {3, 65, 34},
                        {2, 6, 6},
                        {2, 40, 30}})
    for (const bool interleaved : {false, true}) {
      const uint32_t n = s.n_head * s.d_head;
      const std::vector<float> a = random_floats(n, n), angles = random_floats(s.n_rot / 2, 3);
      std::vector<float> table;
      for (const float angle : angles) {
        table.push_back(std::cos(100 * angle));
        table.push_back(std::sin(100 * angle));
      }
      std::vector<double> want(a.begin(), a.end());
      for (uint32_t h = 0; h < s.n_head; ++h)
        for (uint32_t i = 0; i < s.n_rot / 2; ++i) {
          const uint32_t first = h * s.d_head + (interleaved ? 2 * i : i),
                         second = first + (interleaved ? 1 : s.n_rot / 2);
          const double cos = table[2 * i], sin = table[2 * i + 1];
          want[first] = a[first] * cos - a[second] * sin;
          want[second] = a[first] * sin + a[second] * cos;
        }
      std::vector<float> fused;
      for (const Isa isa : supported_isas()) {
        const std::string what =
            std::string(isa_name(isa)) + ' ' + std::to_string(s.d_head) + ' ' + std::to_string(s.n_rot);
        Guarded<float> x(n), y(n), t(s.n_rot);
        std::copy(a.begin(), a.end(), x.data());
        std::copy(table.begin(), table.end(), t.data());
        vector_kernels(isa).rope(x.data(), t.data(), y.data(), s.n_head, s.d_head, s.n_rot, interleaved);
        for (uint32_t i = 0; i < n; ++i) ASSERT_NEAR(y[i], want[i], 1e-6) << what;
        if (has_fma(isa) && fused.empty()) fused.assign(y.data(), y.data() + n);
        if (has_fma(isa)) expect_same(y.data(), fused.data(), n, what);
        vector_kernels(isa).rope(x.data(), t.data(), x.data(), s.n_head, s.d_head, s.n_rot, interleaved);
        expect_same(x.data(), y.data(), n, what + " in place");
      }
    }
}

// Every half and the floats between and around them.
std::vector<float> all_halves() {
  std::vector<float> x;
  for (uint32_t h = 0; h < 65536; ++h) {
    const uint32_t bits = std::bit_cast<uint32_t>(half_to_float(uint16_t(h)));
    for (const uint32_t step : {0u, 1u, 0xfffu, 0x1000u, 0x1001u}) x.push_back(std::bit_cast<float>(bits + step));
  }
  return x;
}

TEST(Vector, KvStoreRoundsAsHalf) {
  const std::vector<float> x = all_halves();
  constexpr uint32_t kWidth = 4096;
  std::vector<uint16_t> k(kWidth * kKvBlockTokens), v(kWidth * kKvBlockTokens);
  const KvLayer layer = {reinterpret_cast<uint8_t*>(k.data()),
                         reinterpret_cast<uint8_t*>(v.data()),
                         KvType::f16,
                         KvType::f16,
                         1,
                         kWidth,
                         kWidth,
                         0,
                         0};
  for (const Isa isa : supported_isas())
    for (size_t at = 0; at + kWidth <= x.size(); at += kWidth) {
      vector_kernels(isa).kv_store(layer, 0, 5, &x[at], &x[at]);
      for (uint32_t d = 0; d < kWidth; ++d) {
        ASSERT_EQ(k[d * kKvBlockTokens + 5], float_to_half(x[at + d])) << isa_name(isa) << ' ' << x[at + d];
        ASSERT_EQ(v[5 * kWidth + d], float_to_half(x[at + d])) << isa_name(isa) << ' ' << x[at + d];
      }
    }
}

TEST(Vector, KvStoreWritesItsSlotOnly) {
  struct Shape {
    uint32_t n_head_kv, d_head, d_value;
  };
  for (const Shape s : {Shape{1, 64, 64}, {3, 65, 47}, {2, 1, 3}})
    for (const KvType k_type : {KvType::f16, KvType::bf16, KvType::f32})
      for (const KvType v_type : {KvType::f16, KvType::bf16, KvType::f32})
        for (const Isa isa : supported_isas()) {
          const uint32_t n_blocks = 3, block = 2, slot = 31;
          const uint64_t k_bytes = kv_bytes_of(k_type, 1), v_bytes = kv_bytes_of(v_type, 1);
          Guarded<uint8_t> k(n_blocks * kKvBlockTokens * s.n_head_kv * s.d_head * k_bytes, 0xa5);
          Guarded<uint8_t> v(n_blocks * kKvBlockTokens * s.n_head_kv * s.d_value * v_bytes, 0xa5);
          const std::vector<float> x = random_floats(s.n_head_kv * s.d_head, 1),
                                   u = random_floats(s.n_head_kv * s.d_value, 2);
          const uint64_t tokens = kKvBlockTokens * s.n_head_kv;
          vector_kernels(isa).kv_store({k.data(), v.data(), k_type, v_type, s.n_head_kv, s.d_head, s.d_value,
                                        tokens * s.d_head * k_bytes, tokens * s.d_value * v_bytes},
                                       block, slot, x.data(), u.data());
          const auto check = [&](const Guarded<uint8_t>& pool, uint64_t n, KvType type, auto&& value_at) {
            for (uint64_t i = 0; i < n; ++i) {
              uint32_t bits = 0;
              std::memcpy(&bits, pool.data() + kv_bytes_of(type, i), kv_bytes_of(type, 1));
              const float* value = value_at(i);
              const uint32_t want = !value                 ? (type == KvType::f32 ? 0xa5a5a5a5 : 0xa5a5)
                                    : type == KvType::f16  ? float_to_half(*value)
                                    : type == KvType::bf16 ? float_to_bf16(*value)
                                                           : std::bit_cast<uint32_t>(*value);
              ASSERT_EQ(bits, want) << i;
            }
          };
          check(k, uint64_t(n_blocks) * kKvBlockTokens * s.n_head_kv * s.d_head, k_type, [&](uint64_t i) {
            const uint64_t token = i % kKvBlockTokens, d = i / kKvBlockTokens % s.d_head,
                           h = i / kKvBlockTokens / s.d_head % s.n_head_kv;
            return token == slot && i / kKvBlockTokens / s.d_head / s.n_head_kv == block ? &x[h * s.d_head + d]
                                                                                         : nullptr;
          });
          check(v, uint64_t(n_blocks) * kKvBlockTokens * s.n_head_kv * s.d_value, v_type, [&](uint64_t i) {
            const uint64_t d = i % s.d_value, token = i / s.d_value % kKvBlockTokens,
                           h = i / s.d_value / kKvBlockTokens % s.n_head_kv;
            return token == slot && i / s.d_value / kKvBlockTokens / s.n_head_kv == block ? &u[h * s.d_value + d]
                                                                                          : nullptr;
          });
        }
}

// graph/kv_type.h's rule written down plainly; every byte of the block, so that nothing beside the slot changes.
TEST(Vector, KvStoreQuantizes) {
  constexpr uint32_t d = 64, n_head_kv = 2, slot = 13;
  const uint64_t part = kv_bytes_of(KvType::q8_0, kKvBlockTokens * d);
  std::vector<std::vector<float>> rows;
  for (uint32_t seed = 0; seed < 50; ++seed) {
    rows.push_back(random_floats(n_head_kv * d, seed));
    for (float& x : rows.back()) x *= std::ldexp(1.0f, int(seed) - 25);
  }
  for (const float x : {0.0f, -0.0f, 1e-40f, 3.7e-6f, 3.8e-6f, 65504.0f, 8.3e6f, 8.4e6f, INFINITY, NAN, 0.5f}) {
    rows.emplace_back(n_head_kv * d, 0.25f);
    rows.back()[d + 40] = x;
    rows.push_back(std::vector<float>(n_head_kv * d, -x));
  }
  for (const Isa isa : supported_isas())
    for (const std::vector<float>& x : rows) {
      Guarded<uint8_t> k(2 * n_head_kv * part, 0xa5), v(2 * n_head_kv * part, 0xa5);
      vector_kernels(isa).kv_store(
          {k.data(), v.data(), KvType::q8_0, KvType::q8_0, n_head_kv, d, d, n_head_kv * part, n_head_kv * part}, 1,
          slot, x.data(), x.data());
      std::vector<uint8_t> want_k(2 * n_head_kv * part, 0xa5), want_v = want_k;
      for (uint32_t i = 0; i < n_head_kv * d; i += kKvGroup) {
        float amax = 0;
        bool finite = true;
        for (uint32_t j = i; j < i + kKvGroup; ++j)
          finite = finite && std::isfinite(x[j]), amax = std::max(amax, std::fabs(x[j]));
        const uint16_t scale = float_to_half(finite ? amax / 127 : NAN);
        const uint64_t at = (n_head_kv + i / d) * part, group = i % d / kKvGroup;
        for (std::vector<uint8_t>* bytes : {&want_k, &want_v})
          std::memcpy(&(*bytes)[at + kKvBlockTokens * d + (group * kKvBlockTokens + slot) * 2], &scale, 2);
        for (uint32_t j = i; j < i + kKvGroup; ++j) {
          const uint32_t c = j % d;
          const int8_t q = finite && scale ? int8_t(std::nearbyint(x[j] * (127 / amax))) : int8_t(0);
          want_k[at + (c / 2 * kKvBlockTokens + slot) * 2 + c % 2] = uint8_t(q);
          want_v[at + slot * d + c] = uint8_t(q);
        }
      }
      ASSERT_EQ(std::memcmp(k.data(), want_k.data(), want_k.size()), 0) << isa_name(isa) << ' ' << x[0];
      ASSERT_EQ(std::memcmp(v.data(), want_v.data(), want_v.size()), 0) << isa_name(isa) << ' ' << x[0];
    }
}

}  // namespace
}  // namespace argent::cpu
