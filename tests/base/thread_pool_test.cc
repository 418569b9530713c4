#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <numeric>

namespace argent {
namespace {

TEST(ThreadPool, EveryThreadRunsEveryRegionOnce) {
  for (const uint32_t n : {1u, 2u, 3u, 8u}) {
    ThreadPool pool({n, n == 2});
    ASSERT_EQ(pool.n_threads(), n);
    std::vector<uint32_t> runs(n);  // no atomics: run() itself must order the regions
    for (uint32_t region = 0; region < 200; ++region) {
      pool.run([&](uint32_t thread) { ++runs[thread]; });
      for (const uint32_t r : runs) ASSERT_EQ(r, region + 1);
    }
  }
}

TEST(ThreadPool, BarriersOrderPhases) {
  for (const uint32_t n : {1u, 2u, 5u}) {
    ThreadPool pool({n, false});
    std::vector<uint32_t> values(n, 1);
    pool.run([&](uint32_t thread) {
      for (uint32_t phase = 0; phase < 100; ++phase) {
        const uint32_t left = values[(thread + 1) % n];
        pool.barrier();
        values[thread] = left + 1;
        pool.barrier();
      }
    });
    for (const uint32_t v : values) EXPECT_EQ(v, 101u);
  }
}

TEST(ThreadPool, ClaimsHandOutEveryChunkOncePerPhase) {
  for (const uint32_t n : {1u, 2u, 4u}) {
    ThreadPool pool({n, false});
    constexpr uint32_t kChunks = 37, kPhases = 20;
    std::vector<std::atomic<uint32_t>> claimed(kChunks * kPhases);
    for (int region = 0; region < 2; ++region) {
      for (auto& c : claimed) c = 0;
      pool.run([&](uint32_t) {
        for (uint32_t phase = 0; phase < kPhases; ++phase) {
          for (uint32_t chunk; (chunk = pool.claim()) < kChunks;) ++claimed[phase * kChunks + chunk];
          pool.barrier();
        }
      });
      for (const auto& c : claimed) ASSERT_EQ(c, 1u);
    }
  }
}

TEST(ThreadPool, SharesCoverAllItemsOnce) {
  ThreadPool pool({3, false});
  for (const uint32_t n : {0u, 1u, 2u, 3u, 7u, 4294967295u}) {
    uint32_t at = 0;
    for (uint32_t thread = 0; thread < 3; ++thread) {
      const auto [begin, end] = pool.share(n, thread);
      EXPECT_EQ(begin, at);
      EXPECT_LE(end - begin, n / 3 + 1);
      at = end;
    }
    EXPECT_EQ(at, n);
  }
}

// Workers that have parked (nothing to do for longer than they spin) wake for the next region, and for the end.
TEST(ThreadPool, ParkedThreadsWake) {
  ThreadPool pool({2, false});
  int total = 0;
  for (int region = 0; region < 3; ++region) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    pool.run([&](uint32_t thread) {
      if (thread == 1) ++total;
    });
  }
  EXPECT_EQ(total, 3);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

TEST(ThreadPool, MoreThreadsThanCoresDoNotCollapse) {
  ThreadPool pool({4 * std::max(1u, std::thread::hardware_concurrency()), false});
  const auto start = std::chrono::steady_clock::now();
  pool.run([&](uint32_t) {
    for (int i = 0; i < 300; ++i) pool.barrier();
  });
  // A spinning waiter would hold its core for a scheduler's slice of milliseconds, at every barrier.
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

TEST(ThreadPool, DefaultIsWithinTheMachine) {
  EXPECT_GE(default_threads(), 1u);
  EXPECT_LE(default_threads(), std::max(1u, std::thread::hardware_concurrency()));
  EXPECT_EQ(ThreadPool().n_threads(), default_threads());
}

}  // namespace
}  // namespace argent
