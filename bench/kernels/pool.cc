// The thread pool: what a plan pays beside its kernels.
#include "kernels/bench.h"

namespace argent::bench {

void pool(Bench& b) {
  ThreadPool& pool = b.pool();
  constexpr int kRepeat = 1000;
  const auto measure = [&](const std::string& name, const std::function<void()>& body) {
    if (b.wants(name, true)) b.report(name, b.time(body) / kRepeat, {});
  };
  measure("pool/barrier", [&] {
    pool.run([&](uint32_t) {
      for (int i = 0; i < kRepeat; ++i) pool.barrier();
    });
  });
  measure("pool/region", [&] {
    for (int i = 0; i < kRepeat; ++i) pool.run([](uint32_t) {});
  });
  measure("pool/claim", [&] {
    pool.run([&](uint32_t) {
      for (int i = 0; i < kRepeat; ++i) pool.claim();
    });
  });
}

}  // namespace argent::bench
