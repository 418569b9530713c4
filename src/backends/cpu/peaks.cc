#include "backends/cpu/peaks.h"

#include <algorithm>
#include <atomic>
#include <chrono>

#include "base/huge_pages.h"

namespace argent::cpu {

namespace baseline {
extern const PeakKernels kPeakKernels;
}
namespace avx2 {
extern const PeakKernels kPeakKernels;
}
namespace avx512 {
extern const PeakKernels kPeakKernels;
}

namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kMemory = uint64_t(256) << 20, kPiece = uint64_t(128) << 20;
constexpr double kReadSeconds = 0.08, kLoopSeconds = 0.02;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// The shortest of as many runs as fit, in seconds.
template <class Body>
double best_time(double budget, Body body) {
  double best = 1e30;
  const auto start = Clock::now();
  do {
    const auto begin = Clock::now();
    body();
    best = std::min(best, seconds_since(begin));
  } while (seconds_since(start) < budget);
  return best;
}

double read_rate(ThreadPool& pool) {
  const auto memory = HugePages::allocate(kMemory);
  if (!memory) return 0;
  // Written, so that every page is one of its own and not the system's page of zeros.
  pool.run([&](uint32_t thread) {
    const auto share = pool.share(uint32_t(kMemory >> 12), thread);
    for (uint64_t page = share.begin; page < share.end; ++page) memory->data()[page << 12] = 1;
  });
  std::atomic<uint64_t> sink = 0;
  uint64_t at = 0;
  const double time = best_time(kReadSeconds, [&] {
    pool.run([&](uint32_t thread) {
      const auto lines = pool.share(uint32_t(kPiece / 64), thread);
      uint64_t sum = 0;  // a word of each line: what is measured is the memory, not the loads
      for (uint64_t i = lines.begin; i < lines.end; ++i) {
        __builtin_prefetch(memory->data() + at + 64 * i + 8192);
        sum ^= *reinterpret_cast<const uint64_t*>(memory->data() + at + 64 * i);
      }
      sink += sum;
    });
    at = (at + kPiece) % kMemory;
  });
  return double(kPiece) / time;
}

double loop_rate(ThreadPool& pool, int32_t (*loop)()) {
  constexpr int kRuns = 16;  // a region is to be long beside its start
  std::atomic<int32_t> sink = 0;
  const double time = best_time(kLoopSeconds, [&] {
    pool.run([&](uint32_t) {
      for (int i = 0; i < kRuns; ++i) sink += loop();
    });
  });
  return double(kPeakOps) * kRuns * pool.n_threads() / time;
}

}  // namespace

const PeakKernels& peak_kernels(Isa isa) {
  switch (isa) {
    case Isa::avx512:
      return avx512::kPeakKernels;
    case Isa::avx2:
      return avx2::kPeakKernels;
    case Isa::baseline:
      break;
  }
  return baseline::kPeakKernels;
}

DevicePeaks measure_peaks(ThreadPool& pool, Isa isa) {
  const PeakKernels& kernels = peak_kernels(isa);
  return {read_rate(pool), loop_rate(pool, kernels.int8_dot), loop_rate(pool, kernels.f32_fma)};
}

}  // namespace argent::cpu
