// How the CPU backend runs a plan: each node becomes one or two tasks with their pointers resolved; one parallel region
// of the thread pool walks all tasks (executor.h).
#pragma once

#include <vector>

#include "backends/backend.h"
#include "backends/cpu/matmul.h"
#include "backends/cpu/sample.h"
#include "backends/cpu/vector.h"
#include "base/thread_pool.h"
#include "graph/step_check.h"

namespace argent::cpu {

struct Run;

// A weight matrix: in panels, or where it lies in the file (`rows`), panels being made of it when they are needed.
struct Matrix {
  PackedMatrix packed{};
  const uint8_t* rows = nullptr;
};

// One matrix of a product: where its rows go.
struct Product {
  const Matrix* weights = nullptr;
  const float* bias = nullptr;  // added to each row, or null
  float* out = nullptr;
  uint32_t chunk_panels = 1;  // panels that a thread claims at once
};

// How threads divide a task.
enum class Sharing : uint8_t {
  rows,    // each reads and writes the rows of its own share only
  gather,  // each writes the rows of its own share, and reads any
  free,    // as the task does it itself: chunks that threads claim, barriers of its own
};

// In place of a thread's number: that thread works alone, on all rows.
inline constexpr uint32_t kAlone = UINT32_MAX;

struct Task {
  // By each thread with its number; where the sharing is by rows, perhaps by one thread with kAlone instead.
  void (*run)(const Run& run, const Task& task, uint32_t thread) = nullptr;
  uint32_t node = 0;
  const Attrs* attrs = nullptr;
  Rows rows = Rows::tokens;  // of the result
  Sharing sharing = Sharing::free;
  bool barrier_before = true;  // set by schedule(), for rows that are shared out
  uint32_t width = 0;          // of the first input
  float *in[3] = {}, *out[2] = {};
  const float* vector = nullptr;  // norm weight or other F32 vector
  uint32_t vector_width = 0;
  const Matrix* table = nullptr;  // embedding matrix
  Product products[3];
  uint32_t n_products = 0;
  bool use[3] = {};  // which Activations the products want
  uint8_t* workspace = nullptr;
  uint64_t workspace_bytes = 0;
  uint8_t* panels = nullptr;  // in the workspace: a panel of mapped weights a thread
  uint64_t panel_bytes = 0;
  uint8_t* up = nullptr;  // in the workspace: what glu makes of its second matrix, a piece a thread
  uint64_t up_bytes = 0;
  const KvLayer* kv = nullptr;
  uint32_t group = 0;                                                        // layer group of kv
  void (*activate)(const float*, const float*, float*, uint64_t) = nullptr;  // glu
};

struct TaskList {
  Plan plan;
  std::vector<Task> tasks;
  StepRules rules;
  const float* logits = nullptr;
  const int32_t* sampled = nullptr;
};

// What one run hands to its tasks.
struct Run {
  const Step& step;
  ThreadPool& pool;
  const MatmulKernels& matmul;
  const PackKernels& pack;
  const VectorKernels& vector;
  const SampleKernels& sample;
  const std::vector<int32_t>& token_ids;  // of the step, sampled ones resolved
  const std::vector<int32_t>& slots;      // what each slot sampled last
  uint32_t n_tokens, n_outputs;

  uint32_t count(Rows rows) const { return rows == Rows::tokens ? n_tokens : n_outputs; }
  // The rows that fall to a thread.
  ThreadPool::Range share(Rows rows, uint32_t thread) const {
    return thread == kAlone ? ThreadPool::Range{0, count(rows)} : pool.share(count(rows), thread);
  }
  // The token row behind a row: logits rows name theirs.
  uint32_t token_row(Rows rows, uint32_t row) const {
    return rows == Rows::outputs ? uint32_t(step.output_rows[row]) : row;
  }
};

// Calls body(row) for the rows of this thread's share.
template <class Body>
void each_row(const Run& run, const Task& task, uint32_t thread, Body body) {
  const ThreadPool::Range rows = run.share(task.rows, thread);
  for (uint32_t r = rows.begin; r < rows.end; ++r) body(r);
}

inline float* row(float* base, uint64_t r, uint32_t width) { return base + r * width; }

// What tasks.cc needs from the backend to resolve a node.
struct Resources {
  const std::vector<Matrix>& matrices;       // by value
  const std::vector<const float*>& vectors;  // by value
  const std::vector<KvLayer>& kv;            // by layer
  const KvLayout& layout;
  uint8_t* arena;
  uint32_t n_threads;
  ActivationMode mode;
  const MatmulKernels& matmul;
  const VectorKernels& vector;
};

// What a product with weights of this format takes.
constexpr Activations activations_of(ActivationMode mode, Format format) {
  return mode == ActivationMode::native ? native_activations(format) : Activations::f32;
}

// The workspace of a matrix product: the prepared activations, a panel a thread, and for glu some of the second result
// a thread.
struct ProductsMemory {
  uint64_t panels_at = 0, panel_bytes = 0;
  uint64_t up_at = 0, up_bytes = 0;
  uint64_t bytes = 0;
};

// Scratch of a node for up to n_rows rows.
uint64_t workspace_bytes(const Graph& graph, const Node& node, uint32_t n_rows, uint32_t n_threads,
                         ActivationMode mode);

bool has_task(Op op);

// Resolves a plan's nodes to tasks.
Result<TaskList> make_tasks(Plan plan, const Resources& resources);

// How many panels a claim takes: about eight claims a thread, so that a slower thread holds nobody up.
uint32_t chunk_panels(uint32_t n_panels, uint32_t n_threads);

}  // namespace argent::cpu
