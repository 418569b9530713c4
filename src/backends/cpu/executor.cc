#include "backends/cpu/executor.h"

#include <algorithm>
#include <chrono>

namespace argent::cpu {
namespace {

bool alone(const Task& task, uint32_t n_tokens) { return n_tokens <= kRowsAlone && task.sharing != Sharing::free; }

// The end of the tasks from `begin` on that one thread does alone.
size_t chain_end(const TaskList& list, size_t begin, uint32_t n_tokens) {
  while (begin < list.tasks.size() && alone(list.tasks[begin], n_tokens)) ++begin;
  return begin;
}

void run_chain(const TaskList& list, const Run& run, size_t begin, size_t end) {
  for (; begin < end; ++begin) list.tasks[begin].run(run, list.tasks[begin], kAlone);
}

}  // namespace

uint32_t n_barriers(const TaskList& list, uint32_t n_tokens) {
  uint32_t n = n_tokens > kRowsAlone;
  for (const Task& task : list.tasks) n += n_tokens > kRowsAlone ? task.barrier_before : task.sharing == Sharing::free;
  return n;
}

void execute(const TaskList& list, const Run& run) {
  if (run.n_tokens > kRowsAlone) {
    run.pool.run([&](uint32_t thread) {
      for (const Task& task : list.tasks) {
        if (task.barrier_before) run.pool.barrier();
        task.run(run, task, thread);
      }
    });
    return;
  }
  const size_t first = chain_end(list, 0, run.n_tokens);
  run_chain(list, run, 0, first);
  size_t last = list.tasks.size();  // the chain behind the last shared task
  while (last > first && alone(list.tasks[last - 1], run.n_tokens)) --last;
  if (first < last) {
    run.pool.run([&](uint32_t thread) {
      for (size_t i = first;;) {
        list.tasks[i].run(run, list.tasks[i], thread);
        if (++i == last) break;
        const size_t next = chain_end(list, i, run.n_tokens);
        run.pool.barrier([&] { run_chain(list, run, i, next); });
        i = next;
      }
    });
  }
  run_chain(list, run, last, list.tasks.size());
}

void execute_profiled(const TaskList& list, const Run& run, std::vector<NodeTime>& times, std::vector<uint64_t>& busy) {
  using Clock = std::chrono::steady_clock;
  const auto nanoseconds = [](Clock::duration d) {
    return uint64_t(std::chrono::duration_cast<std::chrono::nanoseconds>(d).count());
  };
  const uint32_t n_threads = run.pool.n_threads();
  times.clear();
  for (const Task& task : list.tasks)  // the tasks of a node are neighbours
    if (times.empty() || times.back().node != task.node) times.push_back({task.node, 0, 0, {}});
  busy.assign(times.size() * n_threads, 0);
  const auto origin = Clock::now();
  run.pool.run([&](uint32_t thread) {
    auto begin = Clock::now();
    size_t n = 0;
    for (const Task& task : list.tasks) {
      if (times[n].node != task.node) ++n;
      if (!alone(task, run.n_tokens))
        task.run(run, task, thread);
      else if (thread == 0)
        task.run(run, task, kAlone);
      busy[n * n_threads + thread] += nanoseconds(Clock::now() - begin);
      run.pool.barrier();
      const auto end = Clock::now();
      if (thread == 0) {
        if (times[n].nanoseconds == 0) times[n].begin = nanoseconds(begin - origin);
        times[n].nanoseconds += nanoseconds(end - begin);
      }
      begin = end;
    }
  });
  for (size_t n = 0; n < times.size(); ++n) {
    const std::span<uint64_t> mine = std::span(busy).subspan(n * n_threads, n_threads);
    // A thread that left the barrier before thread 0 began earlier.
    for (uint64_t& b : mine) b = std::min(b, times[n].nanoseconds);
    times[n].busy = mine;
  }
}

}  // namespace argent::cpu
