// Every case of the kernels through MetalDevice: on the fake runtime, or on a Mac on its GPU.
#include <gtest/gtest.h>

#include <algorithm>

#include "backends/metal/apple/metal_device.h"
#include "metal/cases.h"
#if defined(ARGENT_FAKE_METAL)
#include "metal_apple/fake.h"
#endif

namespace argent::metal {
namespace {

class AppleCases : public testing::TestWithParam<Case> {
 protected:
  static void SetUpTestSuite() {
#if defined(ARGENT_FAKE_METAL)
    fake::reset();
    auto opened = MetalDevice::open({.deadline = std::chrono::milliseconds(3000)});
#else
    auto opened = MetalDevice::open();
#endif
    if (opened) {
      device_ = std::move(*opened);
    } else {
      why_not_ = opened.error().message;
    }
  }
  static void TearDownTestSuite() {
    device_.reset();
#if defined(ARGENT_FAKE_METAL)
    EXPECT_EQ(fake::complaints(), std::vector<std::string>());
    EXPECT_EQ(fake::live_objects(), std::vector<std::string>());
#endif
  }
  static inline std::unique_ptr<MetalDevice> device_;
  static inline std::string why_not_;
};

TEST_P(AppleCases, Right) {
#if !defined(ARGENT_FAKE_METAL)
  if (!device_) GTEST_SKIP() << why_not_;
#endif
  ASSERT_TRUE(device_) << why_not_;
  EXPECT_EQ(GetParam().run(*device_), "");
#if defined(ARGENT_FAKE_METAL)
  EXPECT_EQ(fake::complaints(), std::vector<std::string>());
  const auto live = fake::live_objects();
  for (const char* name : {"MTLBuffer", "MTLCommandBuffer", "MTLComputeCommandEncoder", "NSString", "NSError"})
    EXPECT_EQ(std::count(live.begin(), live.end(), name), 0) << name;
#endif
}

INSTANTIATE_TEST_SUITE_P(All, AppleCases, testing::ValuesIn(all_cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace argent::metal
