// Every op case on the CPU backend, on each instruction set of this machine, against the reference.
#include <gtest/gtest.h>

#include "ops/harness.h"

namespace argent::ops_test {
namespace {

using Parameters = std::tuple<std::string, ActivationMode, KvType, uint32_t>;

class CpuOps : public testing::TestWithParam<Parameters> {};

TEST_P(CpuOps, AgreeWithTheReference) {
  const auto& [isa, mode, kv, n_threads] = GetParam();
  BackendOptions options = backend_options(mode, kv, n_threads);
  options.isa = isa;
  if (!make_cpu_backend(options)) GTEST_SKIP() << "this machine does not run " << isa;
  for (const Case& c : cases()) {
    const Outcome outcome = run_case(c, options, make_cpu_backend);
    EXPECT_TRUE(outcome.passed()) << c.name << ": " << outcome.detail;
  }
}

// Weights that stay in the file's layout.
TEST_P(CpuOps, AgreeWithTheReferenceWhenMapped) {
  const auto& [isa, mode, kv, n_threads] = GetParam();
  if (n_threads != 3) GTEST_SKIP() << "three threads are enough";
  BackendOptions options = backend_options(mode, kv, n_threads);
  options.isa = isa;
  if (!make_cpu_backend(options)) GTEST_SKIP() << "this machine does not run " << isa;
  for (const Case& c : cases()) {
    const Outcome outcome = run_case(c, options, make_cpu_backend, WeightStorage::mapped);
    EXPECT_TRUE(outcome.passed()) << c.name << ": " << outcome.detail;
  }
}

std::string name_of(const testing::TestParamInfo<Parameters>& info) {
  const auto& [isa, mode, kv, n_threads] = info.param;
  return fmt::format("{}_{}_{}_{}threads", isa, mode == ActivationMode::native ? "native" : "f32",
                     kv == KvType::f16 ? "kv16" : "kv32", n_threads);
}

constexpr auto kNative = ActivationMode::native, kF32 = ActivationMode::f32;
const auto kIsas = testing::Values("baseline", "avx2", "avxvnni", "avx512", "neon", "i8mm");
INSTANTIATE_TEST_SUITE_P(OneThread, CpuOps,
                         testing::Combine(kIsas, testing::Values(kNative, kF32),
                                          testing::Values(KvType::f16, KvType::f32), testing::Values(1u)),
                         name_of);
INSTANTIATE_TEST_SUITE_P(ThreeThreads, CpuOps,
                         testing::Combine(kIsas, testing::Values(kNative), testing::Values(KvType::f16),
                                          testing::Values(3u)),
                         name_of);

}  // namespace
}  // namespace argent::ops_test
