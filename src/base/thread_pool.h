// A fixed set of threads for kernels: one parallel region runs a whole plan, with cheap barriers between its ops.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace argent {

// Threads that this process can keep busy: physical cores of the affinity mask, no more than the CPU limit of its
// cgroups (v1 and v2, rounded down), at least 1.
uint32_t default_threads();

// Threads that can run at once: CPUs of the affinity mask, no more than the CPU limit of the cgroups. Beyond it threads
// only wait for each other.
uint32_t usable_threads();

struct ThreadPoolOptions {
  uint32_t n_threads = 0;  // 0: default_threads(). Fewer where the system starts no more.
  bool pin = true;         // Where there is a thread for each core of the affinity mask, and no tighter limit, worker i
                           // stays on the i-th core; with fewer threads the system places them, since other processes
                           // would be pinned to the same cores.
};

class ThreadPool {
 public:
  using Options = ThreadPoolOptions;

  explicit ThreadPool(Options options = {});
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  uint32_t n_threads() const { return n_threads_; }

  // Runs body(thread) once on each thread, 0 to n_threads() - 1, the caller being thread 0; returns when all are done,
  // with everything they wrote visible. One region at a time, started by one thread at a time; `body` must not throw.
  void run(const std::function<void(uint32_t thread)>& body);

  // Inside run(), called by every thread: nobody leaves before all have come; what each wrote before is visible to all
  // after. Starts the claims of the next phase at 0.
  void barrier();

  // The same, but the thread that comes last first calls `last` alone: work too small to share costs no barrier of its
  // own.
  template <class Last>
  void barrier(Last&& last) {
    const uint32_t phase = phase_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == n_threads_) {
      last();
      release(phase);
    } else {
      wait_change(phase_, phase);
    }
  }

  // Inside run(): the next chunk nobody has claimed in this phase (from the region's start or the last barrier): 0, 1,
  // 2, ... without end. Which thread gets which chunk differs from run to run, so results must not depend on it.
  uint32_t claim() { return next_.fetch_add(1, std::memory_order_relaxed); }

  struct Range {
    uint32_t begin, end;
  };
  // The thread's even share of n items: the same for the same thread every time, so its caches stay warm.
  Range share(uint32_t n, uint32_t thread) const {
    return {uint32_t(uint64_t(n) * thread / n_threads_), uint32_t(uint64_t(n) * (thread + 1) / n_threads_)};
  }

 private:
  void work(uint32_t thread);
  // Ends a phase: the barrier is empty again, claims start at 0, waiters go on.
  void release(uint32_t phase);
  // Moves this worker away from a core that an earlier thread runs on, if another one is free.
  void spread(uint32_t thread);
  // Moves the caller to the core that no pinned worker has, should it be on another.
  void leave_pinned_cores();
  // Waits until `value` is no longer `old`: spins, yields, then parks.
  void wait_change(const std::atomic<uint32_t>& value, uint32_t old) const;

  const std::vector<uint32_t> cores_;  // one CPU of each physical core that this process may use
  uint32_t n_threads_;                 // settled when the pool is made
  const bool crowded_;                 // threads outnumber CPUs: a spinning thread would hold up the one it waits for
  const bool pin_;
  const std::function<void(uint32_t)>* body_ = nullptr;
  bool stop_ = false;
  alignas(64) std::atomic<uint32_t> region_ = 0;   // counts regions; workers wait for it to change
  alignas(64) std::atomic<uint32_t> arrived_ = 0;  // threads at the barrier
  alignas(64) std::atomic<uint32_t> phase_ = 0;    // counts barriers
  alignas(64) std::atomic<uint32_t> next_ = 0;     // the next chunk to claim
  std::vector<std::atomic<uint32_t>> cpus_;        // where each thread was when it entered the region
  std::vector<std::thread> workers_;
};

}  // namespace argent
