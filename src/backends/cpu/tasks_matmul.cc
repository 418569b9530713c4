// Tasks of matrix products: activations are prepared once for all matrices of a node (a task of its own, which
// neighbours of the same rows may join), then threads claim panels.
#include <algorithm>

#include "backends/cpu/tasks.h"
#include "base/checked.h"

namespace argent::cpu {
namespace {

struct Prepared {
  QuantGroup* q8;
  float* f32;
  BrainPair* bf16;
};

uint64_t prepared_bytes(Activations kind, uint32_t width, uint32_t rows) {
  return align_up(activation_bytes(kind, width, rows), 64);
}

Prepared prepared(const Run& run, const Task& task) {
  uint8_t* at[4] = {task.workspace};
  for (size_t kind = 0; kind < 3; ++kind)
    at[kind + 1] =
        at[kind] + (task.use[kind] ? prepared_bytes(Activations(kind), task.width, run.count(task.rows)) : 0);
  return {reinterpret_cast<QuantGroup*>(at[size_t(Activations::q8)]),
          reinterpret_cast<float*>(at[size_t(Activations::f32)]),
          reinterpret_cast<BrainPair*>(at[size_t(Activations::bf16)])};
}

// Rows [0, n) of the input, or of a block of it, times the panels.
void multiply_panels(const Run& run, const Task& task, const PackedMatrix& m, const Prepared& acts, uint32_t n,
                     uint32_t begin, uint32_t end, float* out, uint64_t out_stride) {
  const Activations native = native_activations(m.format);
  switch (task.use[size_t(native)] ? native : Activations::f32) {
    case Activations::q8:
      return run.matmul.multiply_q8(m, begin, end, acts.q8, n, out, out_stride);
    case Activations::bf16:
      return run.matmul.multiply_bf16(m, begin, end, acts.bf16, n, out, out_stride);
    case Activations::f32:
      return run.matmul.multiply_f32(m, begin, end, acts.f32, n, out, out_stride);
  }
}

// Panel i as a matrix of its own, packed by the thread from mapped weights.
PackedMatrix packed_panel(const Run& run, const Task& task, const Matrix& weights, uint32_t i, uint32_t thread) {
  const PackedMatrix& m = weights.packed;
  uint8_t* panel = task.panels + thread * task.panel_bytes;
  run.pack.pack(m.format, weights.rows, m.n_rows, m.n_cols, i, 1, panel);
  return {m.format, std::min(kPanelRows, m.n_rows - i * kPanelRows), m.n_cols, panel};
}

void multiply(const Run& run, const Task& task, const Product& p, const Prepared& acts, uint32_t begin, uint32_t end,
              uint32_t thread) {
  const PackedMatrix& m = p.weights->packed;
  const uint32_t n = run.count(task.rows), width = m.n_rows;
  if (m.data)
    multiply_panels(run, task, m, acts, n, begin, end, p.out, width);
  else
    for (uint32_t i = begin; i < end; ++i)
      multiply_panels(run, task, packed_panel(run, task, *p.weights, i, thread), acts, n, 0, 1, p.out + i * kPanelRows,
                      width);
  if (!p.bias) return;
  const uint32_t first = begin * kPanelRows, last = std::min(end * kPanelRows, width);
  for (uint32_t r = 0; r < n; ++r) {
    float* y = p.out + uint64_t(r) * width;
    run.vector.add(y + first, p.bias + first, y + first, last - first);
  }
}

}  // namespace

// A thread's rows of the input, as the kernels of the node's matrices want them.
void run_prepare(const Run& run, const Task& task, uint32_t thread) {
  const ThreadPool::Range rows = run.share(task.rows, thread);
  if (rows.begin == rows.end) return;
  const Prepared to = prepared(run, task);
  const float* x = task.in[0] + uint64_t(rows.begin) * task.width;
  const ActivationPart part{task.width, run.count(task.rows), rows.begin, rows.end, 0, task.width};
  if (task.use[size_t(Activations::q8)]) run.matmul.prepare_q8(part, x, task.width, to.q8);
  if (task.use[size_t(Activations::f32)]) run.matmul.prepare_f32(part, x, task.width, to.f32);
  if (task.use[size_t(Activations::bf16)]) run.matmul.prepare_bf16(part, x, task.width, to.bf16);
}

void run_products(const Run& run, const Task& task, uint32_t thread) {
  const Prepared acts = prepared(run, task);
  uint32_t claims[3] = {}, total = 0;
  for (uint32_t i = 0; i < task.n_products; ++i) {
    const Product& p = task.products[i];
    claims[i] = (n_panels(p.weights->packed.n_rows) + p.chunk_panels - 1) / p.chunk_panels;
    total += claims[i];
  }
  for (uint32_t c = run.pool.claim(); c < total; c = run.pool.claim()) {
    uint32_t i = 0;
    while (c >= claims[i]) c -= claims[i++];
    const Product& p = task.products[i];
    multiply(run, task, p, acts, c * p.chunk_panels,
             std::min((c + 1) * p.chunk_panels, n_panels(p.weights->packed.n_rows)), thread);
  }
}

namespace {

// Of a block: gate and up of it are joined while they are in L2. 64 is 2 to 3 % slower on 512 tokens.
constexpr uint32_t kGluTokens = 256;
constexpr uint64_t kGluPanels = 128 << 10;  // bytes of panels of either matrix that stay there meanwhile
static_assert(kGluTokens % kTileTokens == 0);

uint32_t glu_panels(uint64_t panel_bytes) {
  const uint64_t n = std::max<uint64_t>(1, kGluPanels / std::max<uint64_t>(1, panel_bytes));
  return uint32_t(n > 1 ? n - n % 2 : n);  // kernels may take two at once
}

// The prepared activations from a row on that begins a tile.
Prepared from_row(const Prepared& acts, uint32_t row, uint32_t n_cols) {
  return {acts.q8 + uint64_t(row) * (n_cols / kGroup), acts.f32 + uint64_t(row) * n_cols,
          acts.bf16 + uint64_t(row) * ((uint64_t(n_cols) + 1) / 2)};
}

}  // namespace

// act(gate) * up, some panels and rows at a time, so that neither result goes to memory before they are joined.
void run_glu(const Run& run, const Task& task, uint32_t thread) {
  const Prepared acts = prepared(run, task);
  const Product &gate = task.products[0], &up = task.products[1];
  const PackedMatrix &g = gate.weights->packed, &u = up.weights->packed;
  const uint32_t panels = n_panels(g.n_rows), width = g.n_rows, n = run.count(task.rows);
  const bool mapped = !g.data;  // then a panel is packed once for all rows
  const uint32_t step = mapped ? 1 : glu_panels(task.panel_bytes), block = mapped ? n : kGluTokens;
  float* tile = reinterpret_cast<float*>(task.up + thread * task.up_bytes);
  for (uint32_t c = run.pool.claim(); uint64_t(c) * gate.chunk_panels < panels; c = run.pool.claim()) {
    const uint32_t chunk_end = std::min((c + 1) * gate.chunk_panels, panels);
    for (uint32_t begin = c * gate.chunk_panels; begin < chunk_end; begin += step) {
      const uint32_t end = std::min(begin + step, chunk_end), first = begin * kPanelRows;
      const uint32_t rows = std::min(end * kPanelRows, width) - first;
      for (uint32_t row = 0; row < n; row += block) {
        const uint32_t count = std::min(block, n - row);
        const Prepared a = from_row(acts, row, g.n_cols);
        float* y = gate.out + uint64_t(row) * width + first;
        if (mapped) {
          multiply_panels(run, task, packed_panel(run, task, *gate.weights, begin, thread), a, count, 0, 1, y, width);
          multiply_panels(run, task, packed_panel(run, task, *up.weights, begin, thread), a, count, 0, 1, tile, rows);
        } else {
          const auto part = [&](const PackedMatrix& m) {
            return PackedMatrix{m.format, rows, m.n_cols, m.data + begin * panel_bytes(m.format, m.n_cols)};
          };
          multiply_panels(run, task, part(g), a, count, 0, end - begin, y, width);
          multiply_panels(run, task, part(u), a, count, 0, end - begin, tile, rows);
        }
        for (uint32_t r = 0; r < count; ++r)
          task.activate(y + uint64_t(r) * width, tile + uint64_t(r) * rows, y + uint64_t(r) * width, rows);
      }
    }
  }
}

ProductsMemory products_memory(const Graph& graph, const Node& node, uint32_t n_rows, uint32_t n_threads,
                               ActivationMode mode) {
  const uint32_t width = graph.value(node.inputs[0]).width;
  bool use[3] = {};
  ProductsMemory memory;
  const size_t matrices = node.op == Op::qkv ? 3 : node.op == Op::glu ? 2 : 1;
  for (size_t i = 1; i <= matrices; ++i) {
    const Value& v = graph.value(node.inputs[i]);
    use[size_t(activations_of(mode, v.format))] = true;
    memory.panel_bytes = std::max(memory.panel_bytes, align_up(panel_bytes(v.format, v.width), 64));
  }
  for (size_t kind = 0; kind < 3; ++kind)
    if (use[kind]) memory.panels_at += prepared_bytes(Activations(kind), width, n_rows);
  memory.up_at = memory.panels_at + n_threads * memory.panel_bytes;
  if (node.op == Op::glu) {
    const uint64_t resident = uint64_t(std::min(n_rows, kGluTokens)) * glu_panels(memory.panel_bytes);
    memory.up_bytes = align_up(std::max<uint64_t>(resident, n_rows) * kPanelRows * 4, 64);
  }
  memory.bytes = memory.up_at + n_threads * memory.up_bytes;
  return memory;
}

}  // namespace argent::cpu
