// Tasks of matrix products: activations are prepared once for all matrices of a node, then threads claim panels.
#include <algorithm>

#include "backends/cpu/tasks.h"
#include "base/checked.h"

namespace argent::cpu {
namespace {

struct Prepared {
  const QuantGroup* q8 = nullptr;
  const float* f32 = nullptr;
};

uint64_t prepared_bytes(Activations kind, uint32_t width, uint32_t rows) {
  return align_up(activation_bytes(kind, width, rows), 64);
}

Prepared prepare(const Run& run, const Task& task, uint32_t thread) {
  const uint32_t n = run.count(task.rows), width = task.width;
  uint8_t* at = task.workspace;
  const uint64_t one = (task.use_q8 ? prepared_bytes(Activations::q8, width, n) : 0) +
                       (task.use_f32 ? prepared_bytes(Activations::f32, width, n) : 0);
  const bool own = n <= kPrivateRows;
  if (own) at += thread * one;
  Prepared p;
  auto* q8 = reinterpret_cast<QuantGroup*>(at);
  auto* f32 = reinterpret_cast<float*>(at + (task.use_q8 ? prepared_bytes(Activations::q8, width, n) : 0));
  // Few rows: each thread makes its own copy. Many: rows are shared out, and a barrier follows.
  const ThreadPool::Range rows = own ? ThreadPool::Range{0, n} : run.pool.share(n, thread);
  const ActivationPart part{width, n, rows.begin, rows.end, 0, width};
  if (rows.begin < rows.end) {
    if (task.use_q8) run.matmul.prepare_q8(part, task.in[0] + uint64_t(rows.begin) * width, width, q8);
    if (task.use_f32) run.matmul.prepare_f32(part, task.in[0] + uint64_t(rows.begin) * width, width, f32);
  }
  if (!own) run.pool.barrier();
  p.q8 = q8;
  p.f32 = f32;
  return p;
}

void multiply(const Run& run, const Task& task, const Product& p, const Prepared& acts, uint32_t begin, uint32_t end) {
  const uint32_t n = run.count(task.rows), width = p.weights->n_rows;
  const bool q8 = task.use_q8 && (!task.use_f32 || native_activations(p.weights->format) == Activations::q8);
  if (q8)
    run.matmul.multiply_q8(*p.weights, begin, end, acts.q8, n, p.out, width);
  else
    run.matmul.multiply_f32(*p.weights, begin, end, acts.f32, n, p.out, width);
  if (!p.bias) return;
  const uint32_t first = begin * kPanelRows, last = std::min(end * kPanelRows, width);
  for (uint32_t r = 0; r < n; ++r) {
    float* y = p.out + uint64_t(r) * width;
    run.vector.add(y + first, p.bias + first, y + first, last - first);
  }
}

}  // namespace

void run_products(const Run& run, const Task& task, uint32_t thread) {
  const Prepared acts = prepare(run, task, thread);
  uint32_t claims[3] = {}, total = 0;
  for (uint32_t i = 0; i < task.n_products; ++i) {
    const Product& p = task.products[i];
    claims[i] = (n_panels(p.weights->n_rows) + p.chunk_panels - 1) / p.chunk_panels;
    total += claims[i];
  }
  for (uint32_t c = run.pool.claim(); c < total; c = run.pool.claim()) {
    uint32_t i = 0;
    while (c >= claims[i]) c -= claims[i++];
    const Product& p = task.products[i];
    multiply(run, task, p, acts, c * p.chunk_panels, std::min((c + 1) * p.chunk_panels, n_panels(p.weights->n_rows)));
  }
}

// act(gate) * up: a claim computes the same rows of both matrices, then joins them.
void run_glu(const Run& run, const Task& task, uint32_t thread) {
  const Prepared acts = prepare(run, task, thread);
  const Product &gate = task.products[0], &up = task.products[1];
  const uint32_t panels = n_panels(gate.weights->n_rows), width = gate.weights->n_rows, n = run.count(task.rows);
  for (uint32_t c = run.pool.claim(); uint64_t(c) * gate.chunk_panels < panels; c = run.pool.claim()) {
    const uint32_t begin = c * gate.chunk_panels, end = std::min(begin + gate.chunk_panels, panels);
    multiply(run, task, gate, acts, begin, end);
    multiply(run, task, up, acts, begin, end);
    const uint32_t first = begin * kPanelRows, last = std::min(end * kPanelRows, width);
    for (uint32_t r = 0; r < n; ++r) {
      float* y = gate.out + uint64_t(r) * width + first;
      task.activate(y, up.out + uint64_t(r) * width + first, y, last - first);
    }
  }
}

uint64_t products_workspace(const Graph& graph, const Node& node, uint32_t n_rows, uint32_t n_threads,
                            ActivationMode mode) {
  const uint32_t width = graph.value(node.inputs[0]).width;
  bool q8 = false, f32 = false;
  const size_t matrices = node.op == Op::qkv ? 3 : node.op == Op::glu ? 2 : 1;
  for (size_t i = 1; i <= matrices; ++i) {
    const Value& v = graph.value(node.inputs[i]);
    const bool as_q8 = mode == ActivationMode::native && native_activations(v.format) == Activations::q8;
    (as_q8 ? q8 : f32) = true;
  }
  const auto bytes = [&](uint32_t rows) {
    return (q8 ? prepared_bytes(Activations::q8, width, rows) : 0) +
           (f32 ? prepared_bytes(Activations::f32, width, rows) : 0);
  };
  const uint64_t shared = bytes(n_rows), own = n_threads * bytes(std::min(n_rows, kPrivateRows));
  uint64_t up = 0;  // glu: the second matrix' result
  if (node.op == Op::glu) up = align_up(uint64_t(n_rows) * graph.value(node.outputs[0]).width * 4, 64);
  return std::max(shared, own) + up;
}

}  // namespace argent::cpu
