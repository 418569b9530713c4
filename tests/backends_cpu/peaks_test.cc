#include "backends/cpu/peaks.h"

#include <gtest/gtest.h>

#include <chrono>
#include <iterator>

namespace argent::cpu {
namespace {

int32_t lanes_of(Isa isa) { return isa == Isa::avx512 ? 16 : isa == Isa::avx2 || isa == Isa::avxvnni ? 8 : 4; }

// FMA in flight: half of the registers.
int32_t sums_of(Isa isa) {
#if defined(__aarch64__)
  (void)isa;
  return 16;
#else
  return isa == Isa::avx512 ? 16 : 8;
#endif
}

// The loops compute: their results are those of the numbers they name.
TEST(Peaks, LoopsCompute) {
  int32_t dots[std::size(kIsas)] = {};
  for (const Isa isa : kIsas) {
    if (!isa_supported(isa)) continue;
    const int32_t lanes = lanes_of(isa), sums = sums_of(isa);
    int64_t step = 0;  // of one lane: 4 rows of activations times 8 words of weights
    for (int t = 0; t < 4; ++t)
      for (int i = 0; i < 32; ++i)
        step += int64_t((0x01020304u + uint32_t(i / 4)) >> 8 * (i % 4) & 255) * (3 * i - 40 + t);
    const int64_t steps = int64_t(kPeakOps) / (2 * 32 * lanes * 4);
    EXPECT_EQ(peak_kernels(isa).int8_dot(), int32_t(step * steps * lanes)) << int(isa);
    const int64_t fmas = int64_t(kPeakOps) / (2 * lanes * sums * 4) * 4;
    EXPECT_EQ(peak_kernels(isa).f32_fma(), int32_t(lanes * (fmas * sums / 4 + sums * (sums - 1) / 2))) << int(isa);
    dots[size_t(isa)] = 1;
  }
  EXPECT_EQ(dots[0], 1);
}

// Bounds that any machine keeps: a loop that the compiler emptied, or a rate that forgets the threads, leaves them.
TEST(Peaks, AreThoseOfAMachine) {
  ThreadPool pool({2});
  DevicePeaks best[std::size(kIsas)];
  for (const Isa isa : kIsas) {
    if (!isa_supported(isa)) continue;
    const auto begin = std::chrono::steady_clock::now();
    const DevicePeaks p = best[size_t(isa)] = measure_peaks(pool, isa);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(3));
    const double lanes = lanes_of(isa);
    EXPECT_GT(p.read_bytes, 1e8);
    EXPECT_LT(p.read_bytes, 2e12);
    // At most 6 GHz, four vector instructions of FMA a cycle, and four byte products a lane.
    EXPECT_GT(p.f32_ops, 1e8);
    EXPECT_LT(p.f32_ops, pool.n_threads() * 6e9 * 4 * 2 * lanes);
    EXPECT_GT(p.int8_ops, 1e8);
    EXPECT_LT(p.int8_ops, pool.n_threads() * 6e9 * 4 * 8 * lanes);
  }
}

}  // namespace
}  // namespace argent::cpu
