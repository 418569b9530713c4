// The shim and the emulator themselves: values of SIMD-group functions, types, attributes; limits of dispatches;
// counted work.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "backends/metal/emu/device.h"
#include "backends/metal/kernels/args.h"
#include "base/half.h"
#include "metal/cases.h"

namespace argent::emu {
namespace {

using metal::Bench;
using metal::Buffer;
using metal::Dispatch;
using metal::FunctionConstant;

void expect_clean(const EmuDevice& device) {
  for (const Finding& f : device.findings()) ADD_FAILURE() << f.line();
}

TEST(Shim, SimdFunctions) {
  EmuDevice device;
  Bench bench(device);
  const Buffer& out = bench.alloc(16 * 32 * sizeof(float));
  bench.run({bench.dispatch("probe_simd", {}, {}, {32}).bind(0, out)});
  ASSERT_EQ(bench.error(), "");
  const auto got = bench.floats(out);
  for (int l = 0; l < 32; l++) {
    const float v = float(l + 1);
    const float product = l < 2 ? 1 : l == 2 ? 2 : l == 3 ? 6 : 24;
    const float want[16] = {528,
                            32,
                            1,
                            32 - float(l),
                            float((l ^ 5) + 1),
                            l + 3 < 32 ? v + 3 : v,
                            l >= 3 ? v - 3 : v,
                            8,
                            v * (v + 1) / 2,
                            v * (v - 1) / 2,
                            product,
                            528,
                            6300,
                            32,
                            1,
                            0};
    for (int k = 0; k < 16; k++) EXPECT_EQ(got[size_t(k * 32 + l)], want[k]) << "function " << k << " lane " << l;
  }
  expect_clean(device);
}

TEST(Shim, Values) {
  EmuDevice device;
  Bench bench(device);
  const Buffer& out = bench.alloc(24 * sizeof(float));
  const Buffer& in = bench.upload(std::vector<float>{0, 0, 0, 4, 5, 6});
  const std::vector<FunctionConstant> constants = {{0, true}, {1, 2.5f}};
  bench.run({bench.dispatch("probe_values", constants, {}, {32}).bind(0, in).bind(1, out)});
  ASSERT_EQ(bench.error(), "");
  const auto got = bench.floats(out);
  // Value 11: columns (1,0,0,0), (0,2,0,0), (0,0,3,0), (1,1,1,1) times (1,1,1,2) is (3, 4, 5, 2), a digit each.
  const float third = half_to_float(float_to_half(1.0f / 3.0f));
  const float want[24] = {21, 40,          0.5f, 2048,  third, 1,  3.03125f, 3.14159274f, 3,    -1,     456, 2543,
                          52, 2.71828175f, 11,   -2.5f, 100,   24, 250,      1,           7.5f, 164124, 1,   3};
  for (size_t i = 0; i < 24; i++) EXPECT_NEAR(got[i], want[i], i == 13 ? 1e-6 : 0) << "value " << i;
  expect_clean(device);
}

TEST(Shim, Matrices) {
  EmuDevice device;
  Bench bench(device);
  std::vector<float> a(100), b(64);
  std::vector<uint16_t> a16, b16, a_b16, b_b16;
  for (size_t i = 0; i < a.size(); i++) a[i] = float(int(i * 7 % 13) - 6);
  for (size_t i = 0; i < b.size(); i++) b[i] = float(int(i * 5 % 11) - 5);
  for (float v : a) a16.push_back(float_to_half(v)), a_b16.push_back(float_to_bf16(v));
  for (float v : b) b16.push_back(float_to_half(v)), b_b16.push_back(float_to_bf16(v));
  const Buffer& out = bench.alloc(192 * sizeof(float));
  Dispatch d = bench.dispatch("probe_matrix", {}, {}, {32});
  d.bind(0, bench.upload(a)).bind(1, bench.upload(b)).bind(2, bench.upload(a16)).bind(3, bench.upload(b16));
  d.bind(4, bench.upload(a_b16)).bind(5, bench.upload(b_b16)).bind(6, out);
  bench.run({d});
  ASSERT_EQ(bench.error(), "");
  const auto got = bench.floats(out);
  for (size_t i = 0; i < 8; i++) {
    for (size_t j = 0; j < 8; j++) {
      float want = 0.5f;
      for (size_t k = 0; k < 8; k++) want += a[(k + 1) * 10 + i + 2] * b[k * 8 + j];
      for (size_t type = 0; type < 3; type++)
        EXPECT_EQ(got[type * 64 + i * 8 + j], want) << type << " " << i << " " << j;
    }
  }
  EXPECT_EQ(device.work()[0].work.matrix_multiplies, 3);
  expect_clean(device);
}

TEST(Shim, Atomics) {
  for (Order order : {Order::ascending, Order::shuffled}) {
    EmuDevice device({.order = order});
    Bench bench(device);
    const Buffer &bins = bench.upload(std::vector<uint32_t>(8)), &low = bench.upload(std::vector<int32_t>(1));
    bench.run({bench.dispatch("probe_atomic", {}, {3}, {64}).bind(0, bins).bind(1, low)});
    ASSERT_EQ(bench.error(), "");
    uint32_t want[8] = {};
    for (uint32_t i = 0; i < 192; i++) want[i % 8] += i;
    EXPECT_EQ(std::memcmp(bins.bytes().data(), want, sizeof want), 0);
    int32_t least = 0;
    std::memcpy(&least, low.bytes().data(), sizeof least);
    EXPECT_EQ(least, -191);
    expect_clean(device);
  }
}

TEST(Emulator, RightUsesOfMemoryAreNoFindings) {
  for (Order order : {Order::ascending, Order::descending, Order::shuffled}) {
    EmuDevice device({.order = order});
    Bench bench(device);
    const Buffer &y = bench.alloc(64 * sizeof(uint32_t)), &count = bench.upload(std::vector<uint32_t>(1));
    Dispatch d = bench.dispatch("probe_barriers", {}, {}, {64});
    d.bind(0, y).bind(1, count).bind(2, count).threadgroup_bytes = {256};
    bench.run({d});
    ASSERT_EQ(bench.error(), "");
    std::vector<uint32_t> got(64);
    std::memcpy(got.data(), y.bytes().data(), y.bytes().size());
    for (uint32_t i = 0; i < 64; i++) EXPECT_EQ(got[i], i + 100);
    uint32_t last = 0;
    std::memcpy(&last, count.bytes().data(), sizeof last);
    EXPECT_EQ(last, 63 + 100 + 1);
    expect_clean(device);
  }
}

TEST(Emulator, Attributes) {
  EmuDevice device({.order = Order::shuffled});
  Bench bench(device);
  constexpr uint32_t kThreads = 64, kGroups = 3 * 2 * 2;
  const Buffer& out = bench.alloc(kGroups * kThreads * 8 * sizeof(uint32_t));
  bench.run({bench.dispatch("probe_attributes", {}, {3, 2, 2}, {8, 4, 2}).bind(0, out)});
  ASSERT_EQ(bench.error(), "");
  std::vector<uint32_t> got(kGroups * kThreads * 8);
  std::memcpy(got.data(), out.bytes().data(), out.bytes().size());
  for (uint32_t g = 0; g < kGroups; g++) {
    for (uint32_t t = 0; t < kThreads; t++) {
      const uint32_t gx = g % 3, gy = g / 3 % 2, gz = g / 6, x = t % 8, y = t / 8 % 4, z = t / 32;
      const std::vector<uint32_t> want = {gx + 16 * gy + 256 * gz,
                                          x + 16 * y + 256 * z,
                                          gx * 8 + x + 16 * (gy * 4 + y) + 256 * (gz * 2 + z),
                                          8 + 16 * 4 + 256 * 2,
                                          3 + 16 * 2 + 256 * 2,
                                          t,
                                          t / 32,
                                          t % 32 + 200};
      ASSERT_EQ(std::vector<uint32_t>(&got[(g * kThreads + t) * 8], &got[(g * kThreads + t) * 8] + 8), want)
          << g << " " << t;
    }
  }
  expect_clean(device);
}

TEST(Emulator, RefusesWhatDoesNotFit) {
  EmuDevice device;
  Bench bench(device);
  const Buffer& y = bench.upload(std::vector<float>(64));
  auto refused = [&](Dispatch d) {
    const auto status = device.submit({{std::move(d)}});
    return status ? std::string("accepted") : status.error().message;
  };
  auto simd = [&](metal::Size grid = {1}, metal::Size threads = {32}) {
    return bench.dispatch("probe_simd", {}, grid, threads);
  };
  EXPECT_EQ(refused(simd()), "probe_simd: buffer(0) out is not set");
  EXPECT_EQ(refused(simd({1}, {48}).bind(0, y)),
            "probe_simd: 48 x 1 x 1 threads in a threadgroup, must be a multiple of 32 up to 1024");
  EXPECT_EQ(refused(simd({1}, {32, 64}).bind(0, y)),
            "probe_simd: 32 x 64 x 1 threads in a threadgroup, must be a multiple of 32 up to 1024");
  EXPECT_EQ(refused(simd({0}).bind(0, y)), "probe_simd: a grid of 0 x 1 x 1 threadgroups");
  EXPECT_EQ(refused(simd().bind(0, y, 257)), "probe_simd: buffer(0) out starts at 257 of 256 bytes");
  EXPECT_EQ(refused(simd().value(0, 1u)), "probe_simd: buffer(0) out is written, but is given by value");
  auto shared = [&](std::vector<uint32_t> bytes) {
    Dispatch d = bench.dispatch("bad_uninitialised", {}, {1}, {64});
    d.bind(0, y).threadgroup_bytes = std::move(bytes);
    return refused(d);
  };
  EXPECT_EQ(shared({}), "bad_uninitialised: threadgroup(0) shared has no length");
  EXPECT_EQ(shared({40}), "bad_uninitialised: threadgroup(0) has 40 bytes, must be a multiple of 16");
  EXPECT_EQ(shared({32768, 16}), "bad_uninitialised: 32784 bytes of threadgroup memory, at most 32768");
  EXPECT_EQ(refused(bench.dispatch("mul_mv_q4_0", {}, {1}, {64}).value(0, 1u)),
            "mul_mv_q4_0: buffer(0) args has 4 bytes, the kernel reads 20");

  auto pipeline = [&](const char* name, std::vector<FunctionConstant> constants) {
    const auto made = device.pipeline(name, constants);
    return made ? (*made)->name() : made.error().message;
  };
  EXPECT_EQ(pipeline("nosuch", {}), "there is no kernel nosuch");
  EXPECT_EQ(pipeline("probe_values", {{0, true}}), "probe_values needs function constant 1 (kScale)");
  EXPECT_EQ(pipeline("probe_values", {{0, true}, {1, 3u}}),
            "probe_values: function constant 1 (kScale) has another type than the value given");
  EXPECT_EQ(pipeline("probe_values", {{0, true}, {1, 1.0f}, {7, 1.0f}}),
            "probe_values: there is no function constant 7");
  EXPECT_EQ(*device.pipeline("probe_simd", {}), *device.pipeline("probe_simd", {}));
}

// The bytes that a kernel loads are known by arithmetic: each row of weights once, x once for each SIMD-group.
TEST(Emulator, CountsWork) {
  EmuDevice device;
  Bench bench(device);
  constexpr uint32_t kRows = 8, kCols = 512, kBlocks = kCols / 256;
  const Buffer &w = bench.upload(std::vector<uint8_t>(kRows * kBlocks * 144)),
               &x = bench.upload(std::vector<float>(kCols)), &y = bench.alloc(kRows * sizeof(float));
  Dispatch d = bench.dispatch("mul_mv_q4_k", {}, {kRows / 4}, {64});
  d.value(0, MatmulArgs{kRows, kCols, 1, kCols, kRows}).bind(1, w).bind(2, x).bind(3, y);
  bench.run({d});
  ASSERT_EQ(bench.error(), "");
  const Work& work = device.work()[0].work;
  EXPECT_EQ(work.threads, kRows / 4 * 64);
  EXPECT_EQ(work.simd_functions, kRows);
  EXPECT_EQ(work.matrix_multiplies, 0);
  if (!Machine::instrumented) return;
  EXPECT_EQ(work.stored[0], kRows * sizeof(float));
  // A block's 16 bytes of scales are loaded by each of the 8 lanes that share it.
  EXPECT_EQ(work.loaded[0], kRows * kBlocks * (128 + 8 * 16) + kRows / 2 * kCols * sizeof(float));
  EXPECT_EQ(work.loaded[2], 0);
}

}  // namespace
}  // namespace argent::emu
