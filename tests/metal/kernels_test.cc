// Every case of the kernels in three orders of lanes; in the build with checks also under the sanitizer.
#include <gtest/gtest.h>

#include <algorithm>

#include "backends/metal/emu/device.h"
#include "metal/cases.h"
#include "metal/options.h"

namespace argent::emu {
namespace {

constexpr std::pair<Order, const char*> kOrders[] = {
    {Order::ascending, "ascending"}, {Order::descending, "descending"}, {Order::shuffled, "shuffled"}};

class Kernels : public testing::TestWithParam<std::tuple<std::pair<Order, const char*>, metal::Case>> {};

TEST_P(Kernels, Right) {
  const auto& [order, c] = GetParam();
  EmuDevice device({.order = order.first, .variant = metal::test_options().variant});
  EXPECT_EQ(c.run(device), "");
  for (const Finding& f : device.findings()) ADD_FAILURE() << f.line();
}

INSTANTIATE_TEST_SUITE_P(All, Kernels,
                         testing::Combine(testing::ValuesIn(kOrders), testing::ValuesIn(metal::all_cases())),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param).second) + "_" + std::get<1>(info.param).name;
                         });

// A kernel without a case would pass for tested.
TEST(KernelCases, EveryKernelHasOne) {
  const auto cases = metal::all_cases();
  for (const std::string& kernel : kernel_names()) {
    if (kernel.starts_with("bad_") || kernel.starts_with("probe_")) continue;
    EXPECT_TRUE(std::any_of(cases.begin(), cases.end(), [&](const auto& c) { return c.kernel == kernel; })) << kernel;
  }
}

}  // namespace
}  // namespace argent::emu
