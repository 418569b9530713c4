// Every op case on the emulated Metal backend against the reference, in three orders of lanes; the program with checks
// also has every access looked at.
#include <gtest/gtest.h>

#include "metal_backend/emu_backend.h"
#include "ops/harness.h"

namespace argent::ops_test {
namespace {

using emu::Order;

class MetalOps : public testing::TestWithParam<std::tuple<Order, KvType>> {};

TEST_P(MetalOps, AgreeWithTheReference) {
  const auto [order, kv] = GetParam();
  std::string none;
  for (const Case& c : cases()) {
    const auto make = [&](const BackendOptions& options) { return metal::make_emu(options, {.order = order}); };
    const Outcome outcome = run_case(c, backend_options(ActivationMode::f32, kv), make);
    EXPECT_TRUE(outcome.passed()) << c.name << ": " << outcome.detail;
    if (outcome.state == Outcome::none) none += c.name + ": " + outcome.detail + "\n";
  }
  EXPECT_EQ(none, "");
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
