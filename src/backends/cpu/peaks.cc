#include "backends/cpu/peaks.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <vector>

#include "base/huge_pages.h"

namespace argent::cpu {

namespace baseline {
extern const PeakKernels kPeakKernels;
}
#if defined(__aarch64__)
namespace neon {
extern const PeakKernels kPeakKernels;
}
namespace i8mm {
extern const PeakKernels kPeakKernels;
}
#else
namespace avx2 {
extern const PeakKernels kPeakKernels;
}
namespace avxvnni {
extern const PeakKernels kPeakKernels;
}
namespace avx512 {
extern const PeakKernels kPeakKernels;
}
#endif

namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kMemory = uint64_t(256) << 20, kPiece = uint64_t(128) << 20;
constexpr double kReadSeconds = 0.08, kLoopSeconds = 0.02;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// The shortest of as many runs as fit, in seconds. Where others hold the cores a run may take all of the budget: then
// some more, for one that nobody disturbs.
template <class Body>
double best_time(double budget, Body body) {
  constexpr int kLeastRuns = 8;
  double best = 1e30;
  const auto start = Clock::now();
  for (int run = 0;; ++run) {
    const double spent = seconds_since(start);
    if (run > 0 && spent > budget && (run >= kLeastRuns || spent > 8 * budget)) return best;
    const auto begin = Clock::now();
    body();
    best = std::min(best, seconds_since(begin));
  }
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

// Threads are timed one by one: where others hold the cores they seldom run at the same time.
double loop_rate(ThreadPool& pool, int32_t (*loop)()) {
  std::atomic<uint32_t> sink = 0;
  std::vector<double> times(pool.n_threads());
  pool.run([&](uint32_t thread) {
    uint32_t sum = 0;  // may wrap
    times[thread] = best_time(kLoopSeconds, [&] { sum += uint32_t(loop()); });
    sink += sum;
  });
  double rate = 0;
  for (const double time : times) rate += double(kPeakOps) / time;
  return rate;
}

}  // namespace

const PeakKernels& peak_kernels(Isa isa) {
  switch (isa) {
#if defined(__aarch64__)
    case Isa::i8mm:
      return i8mm::kPeakKernels;
    case Isa::neon:
      return neon::kPeakKernels;
#else
    case Isa::avx512:
      return avx512::kPeakKernels;
    case Isa::avxvnni:
      return avxvnni::kPeakKernels;
    case Isa::avx2:
      return avx2::kPeakKernels;
#endif
    default:
      return baseline::kPeakKernels;
  }
}

DevicePeaks measure_peaks(ThreadPool& pool, Isa isa) {
  const PeakKernels& kernels = peak_kernels(isa);
  return {read_rate(pool), loop_rate(pool, kernels.int8_dot), loop_rate(pool, kernels.f32_fma)};
}

}  // namespace argent::cpu
