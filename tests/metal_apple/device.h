// What the tests of MetalDevice on the fake runtime share.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "backends/metal/apple/metal_device.h"
#include "metal/cases.h"
#include "metal_apple/fake.h"
#include "metal_apple/test_kernels.h"

namespace argent::metal {

using std::chrono::milliseconds;
using Strings = std::vector<std::string>;

// test_kernels.metal as library.py would tell of it: each kernel a file, so that they are libraries of their own.
constexpr KernelArgument kNormArguments[] = {{Argument::value, 0, false, sizeof(TestNormArgs), "args"},
                                             {Argument::buffer, 1, false, 0, "x"},
                                             {Argument::buffer, 2, false, 0, "weight"},
                                             {Argument::buffer, 3, true, 0, "y"},
                                             {Argument::threadgroup, 0, true, 0, "partial"}};
constexpr KernelArgument kCopyArguments[] = {{Argument::buffer, 0, false, 0, "x"}, {Argument::buffer, 1, true, 0, "y"}};
constexpr uint8_t kNormConstants[] = {60};
constexpr KernelConstant kConstants[] = {{"kTestHasWeight", 60, 'b'}};
constexpr KernelText kNorm[] = {{"test_norm", kNormArguments, kNormConstants}};
constexpr KernelText kCopy[] = {{"test_copy", kCopyArguments, {}}};
constexpr KernelFile kTestFiles[] = {{"test_norm", "1f", "kernel void test_norm(", kNorm, kConstants},
                                     {"test_copy", "2e", "kernel void test_copy(", kCopy, {}}};

// Options for tests: a list that is never done fails its test soon.
inline MetalOptions test_options() {
  MetalOptions options;
  options.deadline = milliseconds(3000);
  options.metallibs.clear();
  options.kernels = kTestFiles;
  return options;
}

inline MetalOptions with(const std::function<void(MetalOptions&)>& change) {
  MetalOptions options = test_options();
  change(options);
  return options;
}

class Apple : public testing::Test {
 protected:
  void SetUp() override { fake::reset(); }
  void TearDown() override {
    EXPECT_EQ(fake::complaints(), Strings());
    EXPECT_EQ(fake::live_objects(), Strings());
  }
  std::unique_ptr<MetalDevice> open(MetalOptions options = test_options()) {
    auto opened = MetalDevice::open(options);
    if (opened) return std::move(*opened);
    ADD_FAILURE() << opened.error().message;
    return nullptr;
  }
  static std::string error_of_open(MetalOptions options = test_options()) {
    auto opened = MetalDevice::open(options);
    return opened ? "" : opened.error().message;
  }
};

constexpr uint32_t kCols = 64;

// RMS norms of one row: x to y, and with a chain y to z.
struct Norm {
  explicit Norm(MetalDevice& device, bool weighted = false) : device(device) {
    const FunctionConstant constant{60, weighted};
    auto made = device.pipeline("test_norm", {&constant, 1});
    EXPECT_TRUE(made) << made.error().message;
    pipeline = made ? *made : nullptr;
    for (auto* buffer : {&x, &w, &y, &z}) {
      auto memory = device.alloc(kCols * sizeof(float));
      EXPECT_TRUE(memory) << memory.error().message;
      *buffer = std::move(*memory);
    }
    for (uint32_t i = 0; i < kCols; i++) {
      floats(*x)[i] = float(i % 7) - 3;
      floats(*w)[i] = 2;
      floats(*y)[i] = floats(*z)[i] = kUntouched;
    }
  }
  static float* floats(Buffer& buffer) {
    return reinterpret_cast<float*>(buffer.fill(0, buffer.bytes().size()).data());
  }
  Dispatch dispatch(const Buffer& from, const Buffer& to, bool barrier = false) const {
    Dispatch d;
    d.pipeline = pipeline;
    d.grid = {1};
    d.threads = {64};
    d.threadgroup_bytes = {128};
    d.barrier = barrier;
    d.value(0, TestNormArgs{kCols, 1e-5f}).bind(1, from).bind(2, *w).bind(3, to);
    return d;
  }
  Status run(std::vector<Dispatch> dispatches) const {
    const CommandList list{std::move(dispatches)};
    if (Status submitted = device.submit(list); !submitted) return submitted;
    return device.wait();
  }
  std::string error(std::vector<Dispatch> dispatches) const {
    const Status ran = run(std::move(dispatches));
    return ran ? "" : ran.error().message;
  }
  static bool normal(Buffer& buffer) {
    double squares = 0;
    for (uint32_t i = 0; i < kCols; i++) squares += floats(buffer)[i] * floats(buffer)[i];
    return std::fabs(squares / kCols - 1) < 1e-3;
  }

  MetalDevice& device;
  const Pipeline* pipeline = nullptr;
  std::unique_ptr<Buffer> x, w, y, z;
};

}  // namespace argent::metal
