// Tasks of the sampling ops: a row is one thread's work (sample/chain.h holds the arithmetic).
#include <cstring>

#include "backends/cpu/tasks.h"
#include "sample/chain.h"

namespace argent::cpu {
namespace {

template <class Body>
void each_row(const Run& run, const Task& task, uint32_t thread, Body body) {
  const ThreadPool::Range rows = run.pool.share(run.count(task.rows), thread);
  for (uint32_t r = rows.begin; r < rows.end; ++r) body(r);
}

float* row(float* base, uint64_t r, uint32_t width) { return base + r * width; }

sample::Candidates candidates(float* base, uint32_t r, uint32_t n_vocab) {
  return sample::Candidates(reinterpret_cast<uint8_t*>(base) + uint64_t(r) * sample::candidates_bytes(n_vocab));
}

// top_p, min_p, temperature: in place or on a copy
template <auto Filter>
void run_filter(const Run& run, const Task& task, uint32_t thread) {
  each_row(run, task, thread, [&](uint32_t r) {
    sample::Candidates to = candidates(task.out[0], r, task.width);
    if (task.in[0] != task.out[0]) sample::copy(candidates(task.in[0], r, task.width), to);
    Filter(to, run.step.sampling[r]);
  });
}

}  // namespace

void run_penalize(const Run& run, const Task& task, uint32_t thread) {
  each_row(run, task, thread, [&](uint32_t r) {
    float* y = row(task.out[0], r, task.width);
    if (task.in[0] != task.out[0]) std::memcpy(y, row(task.in[0], r, task.width), uint64_t(task.width) * 4);
    sample::penalize({y, task.width}, run.step.sampling[r],
                     sample::history(run.step, run.token_row(task.rows, r), run.step.sampling[r]), run.slots);
  });
}

void run_argmax(const Run& run, const Task& task, uint32_t thread) {
  auto* out = reinterpret_cast<int32_t*>(task.out[0]);
  each_row(run, task, thread, [&](uint32_t r) {
    out[r] = sample::argmax({row(task.in[0], r, task.width), task.width});
  });
}

void run_top_k(const Run& run, const Task& task, uint32_t thread) {
  each_row(run, task, thread, [&](uint32_t r) {
    sample::top_k({row(task.in[0], r, task.width), task.width}, run.step.sampling[r],
                  candidates(task.out[0], r, task.width));
  });
}

void run_top_p(const Run& run, const Task& task, uint32_t thread) { run_filter<sample::top_p>(run, task, thread); }
void run_min_p(const Run& run, const Task& task, uint32_t thread) { run_filter<sample::min_p>(run, task, thread); }
void run_temperature(const Run& run, const Task& task, uint32_t thread) {
  run_filter<sample::temperature>(run, task, thread);
}

void run_draw(const Run& run, const Task& task, uint32_t thread) {
  auto* out = reinterpret_cast<int32_t*>(task.out[0]);
  each_row(run, task, thread, [&](uint32_t r) {
    out[r] = sample::draw(candidates(task.in[0], r, task.width), run.step.sampling[r],
                          uint32_t(run.step.positions[run.token_row(task.rows, r)]));
  });
}

}  // namespace argent::cpu
