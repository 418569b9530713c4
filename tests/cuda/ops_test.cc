// Every op case on the CUDA backend against the reference, in its native arithmetic.
#include <gtest/gtest.h>

#include <cstdlib>

#include "ops/harness.h"

namespace argent::ops_test {
namespace {

// Tensor cores may take 16-bit factors where a step has many rows: 2^-11 of each, and a sum of them.
constexpr Tolerance kHalfProducts{"factors of products of many rows rounded to half", 2e-3, 4e-3};
// As in a product, and the errors of scores, which are those of weights.
constexpr Tolerance kHalfAttention{"queries, keys, values and weights rounded to half", 1e-3, 2e-3};

constexpr uint32_t kAttentionRows = 8;  // of a sequence that attention computes without tensor cores
constexpr uint32_t kProductRows = 16;   // of a step that products compute so

bool touches_cache(const Case& c) { return c.op == Op::attention || c.op == Op::kv_store || c.op == Op::qkv_store; }
bool multiplies(const Case& c) {
  return c.op == Op::matmul || c.op == Op::qkv || c.op == Op::glu || c.op == Op::qkv_store;
}

// The same tokens in steps of at most `most` rows.
Script cut(const Script& script, uint32_t most) {
  Script pieces;
  for (const StepSpec& whole : script) {
    StepSpec piece{{}, whole.outputs, whole.feed_back};
    uint32_t n = 0;
    for (StepSpec::Part part : whole.parts)
      while (part.n_rows) {
        const uint32_t take = std::min(part.n_rows, most - n);
        piece.parts.push_back({part.sequence, take});
        part.n_rows -= take, n += take;
        if (n == most) pieces.push_back(std::move(piece)), piece = {{}, whole.outputs, whole.feed_back}, n = 0;
      }
    if (n) pieces.push_back(std::move(piece));
  }
  return pieces;
}

Tolerance wider(const Tolerance& a, const Tolerance& b) { return a.relative < b.relative ? b : a; }

// All cases, or every n-th where ARGENT_TEST_EVERY is n: under a tool that makes kernels slow.
std::vector<Case> chosen() {
  std::vector<Case> all = cases(), some;
  const char* text = std::getenv("ARGENT_TEST_EVERY");
  const size_t every = text ? std::max(1ul, std::strtoul(text, nullptr, 10)) : 1;
  for (size_t i = 0; i < all.size(); i += every) some.push_back(std::move(all[i]));
  return some;
}

// Products of more than kProductRows rows are of halves, in the reference too.
BackendOptions native(KvType kv = KvType::f16) {
  BackendOptions options = backend_options(ActivationMode::native, kv);
  options.int8_rows = kProductRows;
  return options;
}

// Runs a case; what it has no kernel for is said.
void check(const Case& c, const BackendOptions& options, std::string& none, double& worst) {
  const Outcome outcome = run_case(c, options, make_cuda_backend);
  EXPECT_TRUE(outcome.passed()) << c.name << ": " << outcome.detail;
  if (outcome.state == Outcome::none) none += c.name + ": " + outcome.detail + "\n";
  worst = std::max(worst, outcome.worst);
}

BackendOptions options_of(KvType k, KvType v) {
  BackendOptions options = native(k);
  options.kv_v = v;
  return options;
}

// Steps of few rows, where nothing is rounded to 16 bits, with the tolerances of the table.
TEST(CudaOps, FewRows) {
  for (const uint32_t most : {kAttentionRows, kProductRows}) {
    std::string none;
    double worst = 0;
    for (Case c : chosen()) {
      if (most == kProductRows && (touches_cache(c) || !multiplies(c))) continue;
      const Script pieces = cut(*c.script, most);
      if (!c.sampling) c.script = &pieces;
      check(c, native(), none, worst);
    }
    EXPECT_EQ(none, "");
    fmt::print("steps of up to {} rows: at most {:.2f} of what is tolerated\n", most, worst);
  }
}

// Steps as the table has them.
TEST(CudaOps, AnyRows) {
  std::string none;
  double worst = 0;
  for (Case c : chosen()) {
    if (touches_cache(c)) c.tolerance = wider(c.tolerance, kHalfAttention);
    if (multiplies(c)) c.tolerance = wider(c.tolerance, kHalfProducts);
    if (c.name == "attention.peaked") c.tolerance.relative *= 16;  // its scores reach 100
    check(c, native(), none, worst);
  }
  EXPECT_EQ(none, "");
  fmt::print("steps as they are: at most {:.2f} of what is tolerated\n", worst);
}

// What other devices have in place of wgmma: many rows by the same integers as few.
TEST(CudaOps, AnyRowsWithoutWgmma) {
  ASSERT_EQ(setenv("ARGENT_CUDA_WITHOUT", "wgmma", 1), 0);
  BackendOptions options = native();
  options.int8_rows = UINT32_MAX;
  std::string none;
  double worst = 0;
  for (Case c : chosen()) {
    if (touches_cache(c) || !multiplies(c)) continue;
    check(c, options, none, worst);
  }
  unsetenv("ARGENT_CUDA_WITHOUT");
  EXPECT_EQ(none, "");
  fmt::print("steps as they are, without wgmma: at most {:.2f} of what is tolerated\n", worst);
}

// Pairs of types other than f16, which the others have.
class CudaOpsOfTheCache : public testing::TestWithParam<std::pair<KvType, KvType>> {};

TEST_P(CudaOpsOfTheCache, AgreeWithTheReference) {
  const auto [k, v] = GetParam();
  std::string none;
  double worst = 0;
  for (const bool few : {true, false})
    for (Case c : chosen()) {
      if (!touches_cache(c)) continue;
      // Heads of 20, 12 or 80 elements are no whole blocks of q8_0: refused by the table of types.
      const bool odd = c.name == "kv_store.odd_head" || c.name == "attention.head_80" ||
                       c.name == "qkv_store.odd_heads" || c.name == "qkv_store.stored_odd_heads";
      if (odd && (k == KvType::q8_0 || v == KvType::q8_0)) continue;
      const Script pieces = cut(*c.script, kAttentionRows);
      if (few)
        c.script = &pieces;
      else
        c.tolerance = wider(wider(c.tolerance, kHalfAttention), multiplies(c) ? kHalfProducts : c.tolerance);
      if (!few && c.name == "attention.peaked") c.tolerance.relative *= 16;
      // What is stored rounds to the neighbouring number of its type.
      if (c.op == Op::qkv_store && (k == KvType::bf16 || v == KvType::bf16 || k == KvType::q8_0 || v == KvType::q8_0))
        c.tolerance = wider(c.tolerance, {"what is stored may round to the neighbouring bf16 or int8", 1e-6, 8e-3});
      check(c, options_of(k, v), none, worst);
    }
  EXPECT_EQ(none, "");
  fmt::print("K {}, V {}: at most {:.2f} of what is tolerated\n", name_of(k), name_of(v), worst);
}

INSTANTIATE_TEST_SUITE_P(Types, CudaOpsOfTheCache,
                         testing::Values(std::pair(KvType::bf16, KvType::bf16), std::pair(KvType::f32, KvType::f32),
                                         std::pair(KvType::q8_0, KvType::q8_0), std::pair(KvType::q8_0, KvType::f16),
                                         std::pair(KvType::f32, KvType::bf16)),
                         [](const auto& info) {
                           return fmt::format("{}_{}", name_of(info.param.first), name_of(info.param.second));
                         });

// A product's row alone and with up to 15 others.
TEST(CudaOps, RowsDoNotSeeTheirNeighbours) {
  for (const FormatInfo& f : kFormats)
    for (const uint32_t width : {256u, 1280u}) {
      if (!f.format) continue;
      Maker m(9);
      Builder& b = m.builder();
      b.set_logits(b.matmul(m.rows(width), m.matrix(*f.format, 37, width)));
      const Graph graph = *b.finish();
      const auto run = [&](uint32_t n_others) {
        const auto runner = Runner::create(graph, backend_options(ActivationMode::native), make_cuda_backend, {});
        EXPECT_TRUE(runner) << runner.error().message;
        std::vector<float> seen;
        for (int i = 0; runner && i < 4; ++i) {
          StepSpec spec{{{0, 1}}, Outputs::all};
          if (n_others) spec.parts.push_back({1, n_others});
          const auto step = (*runner)->step(spec);
          EXPECT_TRUE(step) << step.error().message;
          if (step) seen.insert(seen.end(), step->logits.begin(), step->logits.begin() + 37);
        }
        return seen;
      };
      const std::vector<float> alone = run(0);
      for (const uint32_t n_others : {1u, 3u, 7u, 8u, 15u})
        EXPECT_EQ(run(n_others), alone) << f.name << ' ' << n_others;
    }
}

}  // namespace
}  // namespace argent::ops_test
