// Every op case on the emulated Metal backend against the reference, in three orders of lanes; the program with checks
// also has every access looked at.
#include <gtest/gtest.h>

#include <cstdlib>

#include "metal_backend/emu_backend.h"
#include "ops/harness.h"

namespace argent::ops_test {
namespace {

using emu::Order;

// Weights and activations become halves on the way into products of many rows: 2^-11 of each, and a sum of them.
constexpr Tolerance kHalfProducts{"factors of matrix products rounded to half", 2e-3, 4e-3};

bool touches_cache(const Case& c) { return c.op == Op::attention || c.op == Op::kv_store || c.op == Op::qkv_store; }

class MetalOps : public testing::TestWithParam<std::tuple<Order, KvType>> {
 protected:
  // Under the checks, orders but the first are for the long run: ARGENT_TEST_LONG=1.
  void SetUp() override {
    if (emu::checked() && std::get<0>(GetParam()) != Order::ascending && !std::getenv("ARGENT_TEST_LONG"))
      GTEST_SKIP() << "ARGENT_TEST_LONG=1 runs it";
  }
  // What the cases have no kernel for, which is nothing.
  std::string run(const std::vector<Case>& all, std::string_view without) {
    const auto [order, kv] = GetParam();
    std::string none;
    for (const Case& c : all) {
      const auto make = [&](const BackendOptions& options) {
        return metal::make_emu(options, {.order = order}, without);
      };
      const Outcome outcome = run_case(c, backend_options(ActivationMode::f32, kv), make);
      EXPECT_TRUE(outcome.passed()) << c.name << ": " << outcome.detail;
      if (outcome.state == Outcome::none) none += c.name + ": " + outcome.detail + "\n";
    }
    return none;
  }
};

// As in a product, and the errors of scores, which are those of weights.
constexpr Tolerance kHalfAttention{"queries, keys, values and weights rounded to half", 1e-3, 2e-3};

// Sampling has nothing to do with the cache, and most of the threads: once, without checks (test_metal_checked has its
// kernels in every order).
TEST_P(MetalOps, AgreeWithTheReference) {
  const auto [order, kv] = GetParam();
  const bool all = std::getenv("ARGENT_TEST_LONG");
  std::vector<Case> some;
  for (Case& c : cases()) {
    if (kv != KvType::f16 && !touches_cache(c)) continue;
    if (c.sampling && !all && (order != Order::ascending || emu::checked())) continue;
    some.push_back(std::move(c));
  }
  EXPECT_EQ(run(some, "matrix,flash"), "");
}

TEST_P(MetalOps, AttentionOfManyRows) {
  std::vector<Case> some;
  for (Case c : cases())
    if (touches_cache(c) && c.op != Op::qkv_store) {
      c.tolerance = kHalfAttention;
      if (c.name == "attention.peaked") c.tolerance.relative *= 16;  // its scores reach 100
      some.push_back(std::move(c));
    }
  EXPECT_EQ(run(some, "matrix"), "");
}

TEST_P(MetalOps, ProductsOfManyRows) {
  std::vector<Case> products;
  for (Case c : cases())
    if (c.op == Op::matmul || c.op == Op::qkv || c.op == Op::glu || c.op == Op::qkv_store) {
      if (c.tolerance.relative < kHalfProducts.relative) c.tolerance = kHalfProducts;
      products.push_back(std::move(c));
    }
  EXPECT_EQ(run(products, ""), "");
}

std::string name_of_case(const testing::TestParamInfo<std::tuple<Order, KvType>>& info) {
  constexpr const char* kOrders[] = {"ascending", "descending", "shuffled"};
  return fmt::format("{}_{}", kOrders[size_t(std::get<0>(info.param))], name_of(std::get<1>(info.param)));
}

INSTANTIATE_TEST_SUITE_P(All, MetalOps,
                         testing::Combine(testing::Values(Order::ascending, Order::descending, Order::shuffled),
                                          testing::Values(KvType::f16, KvType::f32)),
                         name_of_case);

}  // namespace
}  // namespace argent::ops_test
