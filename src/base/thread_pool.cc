#include "base/thread_pool.h"

#include <sched.h>
#include <unistd.h>

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <set>
#include <string>
#include <system_error>

#include "base/cgroup.h"

namespace argent {
namespace {

// A waiter first spins, then offers its core to others between looks, then parks. Spinning alone costs its whole length
// at every barrier when another process holds the core of the thread waited for (measured: 190 us a barrier at 8,000
// pauses on a loaded machine). A pause is 23 ns on a 4 GHz Zen 5, a yield with nobody else to run about 0.3 us, so
// waiters park after some 150 us: longer than the gaps of a decode step, shorter than anyone notices.
constexpr uint32_t kSpins = 1500, kYields = 400;

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" : : : "memory");  // most cores take YIELD for nothing
#else
  std::this_thread::yield();
#endif
}

// The calling thread may run on these CPUs. A refusal only costs speed.
void set_affinity(const std::vector<uint32_t>& cpus) {
#if defined(__linux__)
  const uint32_t n = *std::max_element(cpus.begin(), cpus.end()) + 1;
  cpu_set_t* set = CPU_ALLOC(n);
  if (!set) return;
  CPU_ZERO_S(CPU_ALLOC_SIZE(n), set);
  for (const uint32_t cpu : cpus) CPU_SET_S(cpu, CPU_ALLOC_SIZE(n), set);
  sched_setaffinity(0, CPU_ALLOC_SIZE(n), set);
  CPU_FREE(set);
#else
  (void)cpus;
#endif
}

uint32_t current_cpu() {
#if defined(__linux__)
  return uint32_t(sched_getcpu());
#else
  return UINT32_MAX;
#endif
}

// The CPUs that this process may run on, in order.
std::vector<uint32_t> affinity() {
  std::vector<uint32_t> cpus;
#if defined(__linux__)
  for (uint32_t n = 1024; n <= 1u << 20; n *= 2) {  // the kernel refuses a set smaller than its own
    cpu_set_t* set = CPU_ALLOC(n);
    if (!set) break;
    const size_t bytes = CPU_ALLOC_SIZE(n);
    CPU_ZERO_S(bytes, set);
    const bool ok = sched_getaffinity(0, bytes, set) == 0;
    if (ok)
      for (uint32_t cpu = 0; cpu < n; ++cpu)
        if (CPU_ISSET_S(cpu, bytes, set)) cpus.push_back(cpu);
    CPU_FREE(set);
    if (ok) break;
  }
#endif
  if (cpus.empty())
    for (uint32_t cpu = 0; cpu < std::max(1u, std::thread::hardware_concurrency()); ++cpu) cpus.push_back(cpu);
  return cpus;
}

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// One CPU of each physical core, in order.
std::vector<uint32_t> physical_cores() {
  std::vector<uint32_t> cores;
  std::set<std::string> seen;
  for (uint32_t cpu : affinity()) {
    const std::string siblings =
        first_line(fmt::format("/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", cpu));
    if (siblings.empty() || seen.insert(siblings).second) cores.push_back(cpu);
  }
  return cores;
}

// quota / period in whole CPUs, or no limit.
uint32_t quota_cpus(const std::string& quota, const std::string& period) {
  int64_t q = 0, p = 0;
  std::from_chars(quota.data(), quota.data() + quota.size(), q);
  std::from_chars(period.data(), period.data() + period.size(), p);
  return q > 0 && p > 0 ? uint32_t(std::clamp<int64_t>(q / p, 1, UINT32_MAX)) : UINT32_MAX;  // "max" and -1: no limit
}

// The smallest CPU limit of this process's cgroups and their parents.
uint32_t cgroup_cpus() {
  uint32_t limit = UINT32_MAX;
  for (const CgroupFolder& folder : cgroup_folders("cpu")) {
    if (folder.v2) {
      const std::string max = first_line(folder.path + "/cpu.max");  // "<quota|max> <period>"
      const size_t space = max.find(' ');
      if (space != std::string::npos) limit = std::min(limit, quota_cpus(max.substr(0, space), max.substr(space + 1)));
    } else {
      limit = std::min(limit, quota_cpus(first_line(folder.path + "/cpu.cfs_quota_us"),
                                         first_line(folder.path + "/cpu.cfs_period_us")));
    }
  }
  return limit;
}

}  // namespace

uint32_t default_threads() { return std::max(1u, std::min(uint32_t(physical_cores().size()), cgroup_cpus())); }

uint32_t usable_threads() { return std::max(1u, std::min(uint32_t(affinity().size()), cgroup_cpus())); }

ThreadPool::ThreadPool(Options options)
    : cores_(physical_cores()),
      n_threads_(options.n_threads ? options.n_threads
                                   : std::max(1u, std::min(uint32_t(cores_.size()), cgroup_cpus()))),
      crowded_(n_threads_ > usable_threads()),
      pin_(options.pin && n_threads_ > 1 && n_threads_ == cores_.size() && cgroup_cpus() >= n_threads_),
      cpus_(n_threads_) {
  for (auto& cpu : cpus_) cpu = UINT32_MAX;
  try {
    for (uint32_t thread = 1; thread < n_threads_; ++thread) workers_.emplace_back(&ThreadPool::work, this, thread);
  } catch (const std::system_error&) {  // a limit on threads: those that there are do the work
    n_threads_ = uint32_t(workers_.size()) + 1;
  }
}

ThreadPool::~ThreadPool() {
  stop_ = true;
  region_.fetch_add(1, std::memory_order_release);
  region_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::wait_change(const std::atomic<uint32_t>& value, uint32_t old) const {
  for (uint32_t spin = 0; !crowded_ && spin < kSpins; ++spin) {
    if (value.load(std::memory_order_acquire) != old) return;
    pause();
  }
  for (uint32_t yield = 0; !crowded_ && yield < kYields; ++yield) {
    if (value.load(std::memory_order_acquire) != old) return;
    std::this_thread::yield();
  }
  value.wait(old, std::memory_order_acquire);
}

void ThreadPool::release(uint32_t phase) {
  arrived_.store(0, std::memory_order_relaxed);
  next_.store(0, std::memory_order_relaxed);
  // Sequentially consistent: notify_all() must not look for waiters before the store is seen (libstdc++ has no fence).
  phase_.store(phase + 1, std::memory_order_seq_cst);
  if (n_threads_ > 1) phase_.notify_all();
}

void ThreadPool::barrier() {
  barrier([] {});
}

void ThreadPool::run(const std::function<void(uint32_t)>& body) {
  next_.store(0, std::memory_order_relaxed);
  if (n_threads_ == 1) return body(0);
  if (pin_) leave_pinned_cores();
  cpus_[0].store(current_cpu(), std::memory_order_relaxed);
  body_ = &body;
  region_.fetch_add(1, std::memory_order_release);
  region_.notify_all();
  body(0);
  barrier();
}

// The kernel wakes a thread beside the one that woke it, and on a busy machine may leave both on one core for good
// while each waits for the other at every barrier (seen: 127 us a barrier for 0.1).
void ThreadPool::spread(uint32_t thread) {
  const uint32_t cpu = current_cpu();
  cpus_[thread].store(cpu, std::memory_order_relaxed);
  const auto taken = [&](uint32_t by, uint32_t n) {
    for (uint32_t t = 0; t < n; ++t)
      if (cpus_[t].load(std::memory_order_relaxed) == by) return true;
    return false;
  };
  if (!taken(cpu, thread)) return;
  for (const uint32_t core : cores_) {
    if (taken(core, n_threads_)) continue;
    const std::vector<uint32_t> allowed = affinity();
    set_affinity({core});
    set_affinity(allowed);
    cpus_[thread].store(core, std::memory_order_relaxed);
    return;
  }
}

void ThreadPool::leave_pinned_cores() {
  const uint32_t cpu = current_cpu();
  if (std::find(cores_.begin() + 1, cores_.end(), cpu) == cores_.end()) return;
  const std::vector<uint32_t> allowed = affinity();
  set_affinity({cores_[0]});
  set_affinity(allowed);
}

void ThreadPool::work(uint32_t thread) {
  if (pin_) set_affinity({cores_[thread]});
  for (uint32_t region = 0;;) {
    wait_change(region_, region);
    ++region;
    if (stop_) return;
    if (!pin_ && !crowded_) spread(thread);
    (*body_)(thread);
    barrier();
  }
}

}  // namespace argent
