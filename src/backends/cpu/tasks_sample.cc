// Tasks of the sampling ops (sample/rules.h). With a row for every thread, a row is one thread's work. Fewer rows are
// each shared out, because a thread alone waits for memory: threads take parts of the vocabulary, and the thread whose
// row it is brings them together.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "backends/cpu/tasks.h"
#include "sample/chain.h"
#include "sample/philox.h"

namespace argent::cpu {
namespace {

sample::Candidates candidates(float* base, uint32_t r, uint32_t n_vocab) {
  return sample::Candidates(reinterpret_cast<uint8_t*>(base) + uint64_t(r) * sample::candidates_bytes(n_vocab));
}

// Smaller parts cost more to bring together than to scan.
constexpr uint32_t kLeastPart = 8192;

bool rows_are_shared(const Run& run, const Task& task) {
  return run.count(task.rows) < run.pool.n_threads() && task.width >= 2 * kLeastPart;
}

// The thread in whose share a row is; there are at least as many threads.
uint32_t owner_of(const Run& run, const Task& task, uint32_t r) {
  const uint64_t n_rows = run.count(task.rows);
  return uint32_t(((r + uint64_t(1)) * run.pool.n_threads() + n_rows - 1) / n_rows - 1);
}

// A thread's part of a row of logits: whole tiles, none for threads that there is no part for.
ThreadPool::Range part_of(const Run& run, uint32_t width, uint32_t thread) {
  const uint32_t n_parts = std::min(width / kLeastPart, run.pool.n_threads()), tiles = n_tiles(width);
  const auto begin = [&](uint32_t part) {
    return std::min(width, uint32_t(uint64_t(tiles) * std::min(part, n_parts) / n_parts) * kTile);
  };
  return {begin(thread), begin(thread + 1)};
}

// What a thread found in its part of a shared row.
struct alignas(64) Found {
  BestLogit best;
  uint32_t n;  // candidates, from the part's first place of the list on; kUnusable
};

Found& found(const Run& run, const Task& task, uint32_t r, uint32_t thread) {
  return reinterpret_cast<Found*>(task.workspace)[uint64_t(r) * run.pool.n_threads() + thread];
}

// Longer lists of candidates are scanned by kernels, and by all threads if rows are shared.
constexpr uint32_t kLongList = 4096;

bool may_be_long(const SampleParams& params, uint32_t width) {
  return width > kLongList && params.temperature != 0 && (params.top_k == 0 || params.top_k > kLongList);
}

struct alignas(64) ListScratch {
  float best;
  uint64_t sums[kBuckets];
};

// Who works on a list: all threads, in phases with waits between them, or one.
struct Crew {
  ThreadPool* pool;  // null: one thread
  uint32_t thread, n_threads;
  bool owner;            // finishes the row
  ListScratch* scratch;  // by thread

  void wait() const {
    if (pool) pool->barrier();
  }
  ThreadPool::Range share(uint32_t n) const { return pool ? pool->share(n, thread) : ThreadPool::Range{0, n}; }
};

// Calls body(row, crew) on each thread of the row's crew. Whoever reads or changes a list waits first: in the op
// before, other threads may have changed it.
template <class Body>
void each_list(const Run& run, const Task& task, uint32_t thread, Body body) {
  auto* scratch = reinterpret_cast<ListScratch*>(task.workspace);
  const Crew alone{nullptr, 0, 1, true, scratch + thread};
  if (!rows_are_shared(run, task)) return each_row(run, task, thread, [&](uint32_t r) { body(r, alone); });
  for (uint32_t r = 0; r < run.count(task.rows); ++r) {
    const bool owner = owner_of(run, task, r) == thread;
    if (may_be_long(run.step.sampling[r], task.width))
      body(r, Crew{&run.pool, thread, run.pool.n_threads(), owner, scratch});
    else if (owner)
      body(r, alone);
  }
}

// The list that an op works on: its input, or a copy that the owner makes.
sample::Candidates list_of(const Task& task, uint32_t r, const Crew& crew) {
  const sample::Candidates list = candidates(task.out[0], r, task.width);
  if (task.in[0] == task.out[0]) return list;
  crew.wait();
  if (crew.owner) sample::copy(candidates(task.in[0], r, task.width), list);
  return list;
}

// The best logit of a long list; nothing for a short one, which the owner may then change.
std::optional<float> best_of_long(const Run& run, const Crew& crew, sample::Candidates list) {
  crew.wait();
  const uint32_t n = list.size();
  const ThreadPool::Range part = crew.share(n);
  if (n > kLongList)
    crew.scratch[crew.thread].best = run.sample.best_of(list.data() + part.begin, part.end - part.begin);
  crew.wait();
  if (n <= kLongList) return std::nullopt;
  float best = -INFINITY;
  for (uint32_t t = 0; t < crew.n_threads; ++t) best = std::max(best, crew.scratch[t].best);
  return best;
}

struct Weighed {
  float best;
  const uint64_t* sums;  // by bucket; these and the total are the owner's to use
  uint64_t total = 0;
};

// The weights of a long list.
std::optional<Weighed> weigh_long(const Run& run, const Crew& crew, sample::Candidates list) {
  const std::optional<float> best = best_of_long(run, crew, list);
  if (!best) return std::nullopt;
  uint64_t* sums = crew.scratch[crew.thread].sums;
  std::fill(sums, sums + kBuckets, 0);
  const ThreadPool::Range part = crew.share(list.size());
  run.sample.add_weights(list.data() + part.begin, part.end - part.begin, *best, sums);
  crew.wait();
  Weighed weighed{*best, sums};
  if (!crew.owner) return weighed;
  for (uint32_t t = 0; t < crew.n_threads; ++t)
    for (uint32_t i = 0; t != crew.thread && i < kBuckets; ++i) sums[i] += crew.scratch[t].sums[i];
  for (uint32_t i = 0; i < kBuckets; ++i) weighed.total += sums[i];
  return weighed;
}

}  // namespace

void run_adjust(const Run& run, const Task& task, uint32_t thread) {
  each_row(run, task, thread, [&](uint32_t r) {
    float* y = row(task.out[0], r, task.width);
    if (task.in[0] != task.out[0]) std::memcpy(y, row(task.in[0], r, task.width), uint64_t(task.width) * 4);
    sample::adjust({y, task.width}, run.step.sampling[r], sample::history(run.step, run.token_row(task.rows, r)),
                   sample::rules_of(run.step, r), run.slots);
  });
}

void run_argmax(const Run& run, const Task& task, uint32_t thread) {
  auto* out = reinterpret_cast<int32_t*>(task.out[0]);
  const auto token = [](const BestLogit& best) {
    return best.usable && best.logit > -INFINITY ? int32_t(best.index) : -1;
  };
  if (!rows_are_shared(run, task))
    return each_row(run, task, thread,
                    [&](uint32_t r) { out[r] = token(run.sample.best(row(task.in[0], r, task.width), task.width)); });
  const ThreadPool::Range part = part_of(run, task.width, thread);
  for (uint32_t r = 0; r < run.count(task.rows); ++r) {
    BestLogit best = run.sample.best(row(task.in[0], r, task.width) + part.begin, part.end - part.begin);
    best.index += part.begin;
    found(run, task, r, thread).best = best;
  }
  run.pool.barrier();
  each_row(run, task, thread, [&](uint32_t r) {
    BestLogit best = found(run, task, r, 0).best;
    for (uint32_t t = 1; t < run.pool.n_threads(); ++t) {
      const BestLogit& other = found(run, task, r, t).best;
      const bool usable = best.usable && other.usable;
      if (other.logit > best.logit) best = other;
      best.usable = usable;
    }
    out[r] = token(best);
  });
}

void run_top_k(const Run& run, const Task& task, uint32_t thread) {
  const auto k = [&](uint32_t r) {
    const SampleParams& params = run.step.sampling[r];
    return params.temperature == 0 ? 1 : params.top_k;
  };
  if (!rows_are_shared(run, task))
    return each_row(run, task, thread, [&](uint32_t r) {
      sample::Candidates out = candidates(task.out[0], r, task.width);
      const uint32_t n = select_part(run.sample, row(task.in[0], r, task.width), task.width, 0, k(r), out.data());
      out.resize(n == kUnusable ? 0 : keep_best(out.data(), n, k(r)));
    });
  // A part's candidates begin at its own place of the list.
  const ThreadPool::Range part = part_of(run, task.width, thread);
  for (uint32_t r = 0; r < run.count(task.rows); ++r)
    found(run, task, r, thread).n =
        select_part(run.sample, row(task.in[0], r, task.width) + part.begin, part.end - part.begin, part.begin, k(r),
                    candidates(task.out[0], r, task.width).data() + part.begin);
  run.pool.barrier();
  each_row(run, task, thread, [&](uint32_t r) {
    sample::Candidates out = candidates(task.out[0], r, task.width);
    uint32_t n = 0;
    for (uint32_t t = 0; t < run.pool.n_threads(); ++t) {
      const uint32_t more = found(run, task, r, t).n;
      if (more == kUnusable) return out.resize(0);
      const sample::Candidate* from = out.data() + part_of(run, task.width, t).begin;
      if (from != out.data() + n) std::memmove(out.data() + n, from, more * sizeof(sample::Candidate));
      n += more;
    }
    out.resize(keep_best(out.data(), n, k(r)));
  });
}

void run_top_p(const Run& run, const Task& task, uint32_t thread) {
  each_list(run, task, thread, [&](uint32_t r, const Crew& crew) {
    const SampleParams& params = run.step.sampling[r];
    sample::Candidates list = list_of(task, r, crew);
    if (params.top_p >= 1) return;
    const std::optional<Weighed> w = weigh_long(run, crew, list);
    if (!crew.owner) return;
    if (w)
      list.resize(keep_reaching(run.sample, list, w->best, w->sums, sample::share_of(w->total, params.top_p)));
    else
      sample::top_p(list, params);
  });
}

void run_min_p(const Run& run, const Task& task, uint32_t thread) {
  each_list(run, task, thread, [&](uint32_t r, const Crew& crew) {
    const sample::Candidates list = list_of(task, r, crew);
    crew.wait();  // all threads may have written the list
    if (!crew.owner) return;
    if (list.size() > kLongList)
      min_p(run.sample, list, run.step.sampling[r].min_p);
    else
      sample::min_p(list, run.step.sampling[r]);
  });
}

void run_temperature(const Run& run, const Task& task, uint32_t thread) {
  each_list(run, task, thread, [&](uint32_t r, const Crew& crew) {
    const SampleParams& params = run.step.sampling[r];
    sample::Candidates list = list_of(task, r, crew);
    if (params.temperature == 0) return;
    const std::optional<float> best = best_of_long(run, crew, list);
    const ThreadPool::Range part = crew.share(best ? list.size() : 0);
    if (best)
      run.sample.temper(list.data() + part.begin, part.end - part.begin, *best, params.temperature);
    else if (crew.owner)
      sample::temperature(list, params);
  });
}

void run_draw(const Run& run, const Task& task, uint32_t thread) {
  auto* out = reinterpret_cast<int32_t*>(task.out[0]);
  each_list(run, task, thread, [&](uint32_t r, const Crew& crew) {
    const SampleParams& params = run.step.sampling[r];
    const uint32_t position = uint32_t(run.step.positions[run.token_row(task.rows, r)]);
    sample::Candidates list = candidates(task.in[0], r, task.width);
    const std::optional<Weighed> w = weigh_long(run, crew, list);
    if (!crew.owner) return;
    if (!w) return void(out[r] = sample::draw(list, params, position));
    const uint64_t bits = sample::draw_bits(params.seed, position, params.sample_index);
    out[r] = worst_reached(run.sample, list, w->best, w->sums, sample::mul_high(bits, w->total) + 1).token;
  });
}

uint64_t sample_workspace(const Node& node, uint32_t n_rows, uint32_t n_threads) {
  switch (node.op) {
    case Op::argmax:
    case Op::top_k:  // for as many rows as are shared
      return uint64_t(std::min(n_rows, n_threads - 1)) * n_threads * sizeof(Found);
    case Op::top_p:
    case Op::temperature:
    case Op::draw:
      return n_threads * sizeof(ListScratch);
    default:
      return 0;
  }
}

}  // namespace argent::cpu
