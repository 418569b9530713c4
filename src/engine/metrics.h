// Numbers that a service keeps of itself. Written by its thread, read by any.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

namespace argent {

// Counts of values by upper bounds, as Prometheus has them.
template <size_t N>
class Histogram {
 public:
  constexpr explicit Histogram(const std::array<double, N>& bounds) : bounds_(bounds) {}
  void add(double value) {
    size_t i = 0;
    while (i < N && value > bounds_[i]) ++i;
    counts_[i].fetch_add(1, std::memory_order_relaxed);
    sum_.store(sum_.load(std::memory_order_relaxed) + value, std::memory_order_relaxed);  // one writer
  }
  const std::array<double, N>& bounds() const { return bounds_; }
  uint64_t count(size_t i) const { return counts_[i].load(std::memory_order_relaxed); }  // N: beyond all bounds
  double sum() const { return sum_.load(std::memory_order_relaxed); }

 private:
  std::array<double, N> bounds_;
  std::array<std::atomic<uint64_t>, N + 1> counts_ = {};
  std::atomic<double> sum_ = 0;
};

inline constexpr std::array<double, 14> kSecondBounds = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
                                                         0.25,  0.5,    1,     2.5,  5,     10,   60};

struct ServiceMetrics {
  std::atomic<uint64_t> requests = 0, finished = 0, cancelled = 0, failed = 0, rejected = 0;
  std::atomic<uint64_t> prompt_tokens = 0, reused_tokens = 0, generated_tokens = 0;
  std::atomic<uint64_t> steps = 0, preemptions = 0;
  std::atomic<uint64_t> queued = 0, running = 0;  // requests that wait; answers that are computed
  std::atomic<uint64_t> kv_blocks = 0, kv_used = 0, kv_cached = 0;
  std::atomic<uint64_t> kv_host_bytes = 0, kv_disk_bytes = 0;  // of evicted blocks that can be found again
  std::atomic<uint64_t> host_restored_tokens = 0, disk_restored_tokens = 0;  // of them, put back into the KV cache
  std::atomic<uint64_t> step_nanoseconds = 0, host_nanoseconds = 0;          // all steps; of them outside the backend
  std::atomic<uint64_t> drafted_tokens = 0, accepted_tokens = 0;
  Histogram<14> queue_seconds{kSecondBounds}, first_token_seconds{kSecondBounds}, token_seconds{kSecondBounds},
      request_seconds{kSecondBounds};
};

}  // namespace argent
