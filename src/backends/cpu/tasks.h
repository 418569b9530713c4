// How the CPU backend runs a plan: each node becomes a task with its pointers resolved; one parallel region of the
// thread pool walks all tasks, with a barrier only where a task reads rows that another thread made.
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

// One matrix of a product: where its rows go.
struct Product {
  const PackedMatrix* weights = nullptr;
  const float* bias = nullptr;  // added to each row, or null
  float* out = nullptr;
  uint32_t chunk_panels = 1;  // panels that a thread claims at once
};

struct Task {
  void (*run)(const Run& run, const Task& task, uint32_t thread) = nullptr;
  uint32_t node = 0;
  const Attrs* attrs = nullptr;
  Rows rows = Rows::tokens;    // of the result
  bool row_local = false;      // a thread reads and writes the rows of its own share only
  bool barrier_before = true;  // set by schedule()
  uint32_t width = 0;          // of the first input
  float *in[3] = {}, *out[2] = {};
  const float* vector = nullptr;  // norm weight or other F32 vector
  uint32_t vector_width = 0;
  const Value* table = nullptr;  // embedding matrix, in the file's layout
  Product products[3];
  uint32_t n_products = 0;
  bool use_q8 = false, use_f32 = false;  // which activations the products want
  uint8_t* workspace = nullptr;
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
  const VectorKernels& vector;
  const SampleKernels& sample;
  const std::vector<int32_t>& token_ids;  // of the step, sampled ones resolved
  const std::vector<int32_t>& slots;      // what each slot sampled last
  uint32_t n_tokens, n_outputs;

  uint32_t count(Rows rows) const { return rows == Rows::tokens ? n_tokens : n_outputs; }
  // The token row behind a row: logits rows name theirs.
  uint32_t token_row(Rows rows, uint32_t row) const {
    return rows == Rows::outputs ? uint32_t(step.output_rows[row]) : row;
  }
};

// A matrix product on few rows prepares its activations once a thread, which costs less than a barrier.
inline constexpr uint32_t kPrivateRows = 2;

// What tasks.cc needs from the backend to resolve a node.
struct Resources {
  const std::vector<PackedMatrix>& packed;   // by value
  const std::vector<const float*>& vectors;  // by value
  const std::vector<KvLayer>& kv;            // by layer
  const KvLayout& layout;
  uint8_t* arena;
  uint32_t n_threads;
  ActivationMode mode;
  const MatmulKernels& matmul;
  const VectorKernels& vector;
};

// Scratch of a node for up to n_rows rows.
uint64_t workspace_bytes(const Graph& graph, const Node& node, uint32_t n_rows, uint32_t n_threads,
                         ActivationMode mode);

// Resolves a plan's nodes to tasks.
Result<TaskList> make_tasks(Plan plan, const Resources& resources);

// How many panels a claim takes: about eight claims a thread, so that a slower thread holds nobody up.
uint32_t chunk_panels(uint32_t n_panels, uint32_t n_threads);

}  // namespace argent::cpu
