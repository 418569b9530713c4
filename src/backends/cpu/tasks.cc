// Tasks of the ops that work on rows: they are shared out evenly, so that neighbouring row ops need no barrier.
// Products, attention and sampling have files of their own.
#include "backends/cpu/tasks.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "graph/rope_frequencies.h"
#include "graph/storage.h"

namespace argent::cpu {

void run_prepare(const Run& run, const Task& task, uint32_t thread);
void run_products(const Run& run, const Task& task, uint32_t thread);
void run_glu(const Run& run, const Task& task, uint32_t thread);
void run_attention(const Run& run, const Task& task, uint32_t thread);
void run_adjust(const Run& run, const Task& task, uint32_t thread);
void run_argmax(const Run& run, const Task& task, uint32_t thread);
void run_top_k(const Run& run, const Task& task, uint32_t thread);
void run_top_p(const Run& run, const Task& task, uint32_t thread);
void run_min_p(const Run& run, const Task& task, uint32_t thread);
void run_temperature(const Run& run, const Task& task, uint32_t thread);
void run_draw(const Run& run, const Task& task, uint32_t thread);
ProductsMemory products_memory(const Graph& graph, const Node& node, uint32_t n_rows, uint32_t n_threads,
                               ActivationMode mode);
uint64_t attention_workspace(const Node& node, uint32_t n_threads);
uint64_t sample_workspace(const Node& node, uint32_t n_rows, uint32_t n_threads);

namespace {

void run_embed(const Run& run, const Task& task, uint32_t thread) {
  const PackedMatrix& table = task.table->packed;
  const uint64_t bytes = row_bytes(table.format, table.n_cols);
  each_row(run, task, thread, [&](uint32_t r) {
    float* out = row(task.out[0], r, table.n_cols);
    if (task.table->rows)
      decode_row(table.format, task.table->rows + uint64_t(run.token_ids[r]) * bytes, out, table.n_cols);
    else
      run.pack.unpack_row(table, uint32_t(run.token_ids[r]), out);
  });
}

template <auto Kernel>
void run_unary(const Run& run, const Task& task, uint32_t thread) {
  each_row(run, task, thread, [&](uint32_t r) {
    (run.vector.*Kernel)(row(task.in[0], r, task.width), row(task.out[0], r, task.width), task.width);
  });
}

template <auto Kernel>
void run_binary(const Run& run, const Task& task, uint32_t thread) {
  each_row(run, task, thread, [&](uint32_t r) {
    (run.vector.*Kernel)(row(task.in[0], r, task.width), row(task.in[1], r, task.width),
                         row(task.out[0], r, task.width), task.width);
  });
}

// x with a vector that repeats along the row
template <auto Kernel>
void run_row_vector(const Run& run, const Task& task, uint32_t thread) {
  each_row(run, task, thread, [&](uint32_t r) {
    for (uint32_t c = 0; c < task.width; c += task.vector_width)
      (run.vector.*Kernel)(row(task.in[0], r, task.width) + c, task.vector, row(task.out[0], r, task.width) + c,
                           task.vector_width);
  });
}

void run_scale(const Run& run, const Task& task, uint32_t thread) {
  each_row(run, task, thread, [&](uint32_t r) {
    run.vector.scale(row(task.in[0], r, task.width), task.attrs->scale, row(task.out[0], r, task.width), task.width);
  });
}

void run_softcap(const Run& run, const Task& task, uint32_t thread) {
  each_row(run, task, thread, [&](uint32_t r) {
    run.vector.softcap(row(task.in[0], r, task.width), task.attrs->softcap, row(task.out[0], r, task.width),
                       task.width);
  });
}

uint32_t group_of(const Task& task) { return task.attrs->group ? task.attrs->group : task.width; }

void run_norm(const Run& run, const Task& task, uint32_t thread) {  // rms_norm, norm_mul
  each_row(run, task, thread, [&](uint32_t r) {
    run.vector.rms_norm(row(task.in[0], r, task.width), task.vector, row(task.out[0], r, task.width), task.width,
                        group_of(task), task.attrs->eps);
  });
}

void run_add_norm_mul(const Run& run, const Task& task, uint32_t thread) {
  each_row(run, task, thread, [&](uint32_t r) {
    run.vector.add_rms_norm(row(task.in[0], r, task.width), row(task.in[1], r, task.width), task.vector,
                            row(task.out[0], r, task.width), row(task.out[1], r, task.width), task.width,
                            group_of(task), task.attrs->eps);
  });
}

void run_norm_mul_add(const Run& run, const Task& task, uint32_t thread) {
  each_row(run, task, thread, [&](uint32_t r) {
    float* y = row(task.out[0], r, task.width);
    run.vector.rms_norm(row(task.in[0], r, task.width), task.vector, y, task.width, group_of(task), task.attrs->eps);
    run.vector.add(y, row(task.in[1], r, task.width), y, task.width);
  });
}

void run_rope_table(const Run& run, const Task& task, uint32_t thread) {
  const RopeFrequencies frequencies(*task.attrs, task.vector);
  each_row(run, task, thread, [&](uint32_t r) {
    frequencies.fill(run.step.positions[run.token_row(task.rows, r)], row(task.out[0], r, task.attrs->n_rot));
  });
}

void run_rope(const Run& run, const Task& task, uint32_t thread) {
  const Attrs& a = *task.attrs;
  each_row(run, task, thread, [&](uint32_t r) {
    run.vector.rope(row(task.in[0], r, task.width), row(task.in[1], r, a.n_rot), row(task.out[0], r, task.width),
                    a.n_head, a.d_head, a.n_rot, a.interleaved);
  });
}

void run_kv_store(const Run& run, const Task& task, uint32_t thread) {
  const KvLayer& kv = *task.kv;
  each_row(run, task, thread, [&](uint32_t r) {
    const uint32_t position = uint32_t(run.step.positions[r]);
    const int32_t block = run.step.sequences[run.step.row_sequence[r]].tables[task.group][position / kKvBlockTokens];
    run.vector.kv_store(kv, block, position % kKvBlockTokens, row(task.in[0], r, kv.n_head_kv * kv.d_head),
                        row(task.in[1], r, kv.n_head_kv * kv.d_value));
  });
}

void run_gather(const Run& run, const Task& task, uint32_t thread) {
  each_row(run, task, thread, [&](uint32_t r) {
    std::memcpy(row(task.out[0], r, task.width), row(task.in[0], run.token_row(Rows::outputs, r), task.width),
                uint64_t(task.width) * 4);
  });
}

void run_copy(const Run& run, const Task& task, uint32_t thread) {
  const float* from = task.in[0] ? task.in[0] : run.step.hidden.data();
  each_row(run, task, thread, [&](uint32_t r) {
    std::memcpy(row(task.out[0], r, task.width), from + uint64_t(r) * task.width, uint64_t(task.width) * 4);
  });
}

struct OpTask {
  void (*run)(const Run&, const Task&, uint32_t);
  Sharing sharing;
};

OpTask op_task(Op op) {
  switch (op) {
    case Op::embed:
      return {run_embed, Sharing::rows};
    case Op::matmul:
    case Op::qkv:
      return {run_products, Sharing::free};
    case Op::glu:
      return {run_glu, Sharing::free};
    case Op::add_bias:
      return {run_row_vector<&VectorKernels::add>, Sharing::rows};
    case Op::mul_row:
      return {run_row_vector<&VectorKernels::mul>, Sharing::rows};
    case Op::add:
      return {run_binary<&VectorKernels::add>, Sharing::rows};
    case Op::mul:
      return {run_binary<&VectorKernels::mul>, Sharing::rows};
    case Op::scale:
      return {run_scale, Sharing::rows};
    case Op::rms_norm:
    case Op::norm_mul:
      return {run_norm, Sharing::rows};
    case Op::silu:
      return {run_unary<&VectorKernels::silu>, Sharing::rows};
    case Op::gelu:
      return {run_unary<&VectorKernels::gelu>, Sharing::rows};
    case Op::sigmoid:
      return {run_unary<&VectorKernels::sigmoid>, Sharing::rows};
    case Op::softcap:
      return {run_softcap, Sharing::rows};
    case Op::rope_table:
      return {run_rope_table, Sharing::rows};
    case Op::rope:
      return {run_rope, Sharing::rows};
    case Op::kv_store:
      return {run_kv_store, Sharing::rows};
    case Op::attention:
      return {run_attention, Sharing::free};
    case Op::gather_rows:
      return {run_gather, Sharing::gather};
    case Op::copy:
      return {run_copy, Sharing::rows};
    case Op::adjust:
      return {run_adjust, Sharing::rows};
    case Op::argmax:
      return {run_argmax, Sharing::free};
    case Op::top_k:
      return {run_top_k, Sharing::free};
    case Op::top_p:
      return {run_top_p, Sharing::free};
    case Op::min_p:
      return {run_min_p, Sharing::free};
    case Op::temperature:
      return {run_temperature, Sharing::free};
    case Op::draw:
      return {run_draw, Sharing::free};
    case Op::add_norm_mul:
      return {run_add_norm_mul, Sharing::rows};
    case Op::norm_mul_add:
      return {run_norm_mul_add, Sharing::rows};
    case Op::norm_add_norm:
    case Op::mul_sigmoid:
    case Op::qkv_store:
      break;
  }
  return {nullptr, Sharing::free};
}

// Memory that a task of a chain touches, row by row.
struct Touched {
  const float* base;
  uint32_t width;
  uint64_t bytes;
  bool operator==(const Touched&) const = default;
  bool overlaps(const Touched& o) const {
    const auto *a = reinterpret_cast<const uint8_t*>(base), *b = reinterpret_cast<const uint8_t*>(o.base);
    return a < b + o.bytes && b < a + bytes;
  }
};

// Where rows are shared out, a barrier stands before a task unless it and all tasks since the last barrier work on the
// same rows of the same kind, and it writes nothing where another row of theirs lies (dead values' storage is given to
// new ones).
void schedule(const Plan& plan, std::vector<Task>& tasks) {
  std::vector<Touched> chain;
  for (size_t i = 0; i < tasks.size(); ++i) {
    Task& task = tasks[i];
    const Node& node = plan.graph.nodes[task.node];
    std::vector<Touched> reads, writes;
    const auto touched = [&](ValueId id, const float* base) {
      const Value& v = plan.graph.value(id);
      return Touched{base, v.width, activation_row_bytes(v) * plan.max_rows(v.rows)};
    };
    size_t k = 0;
    for (ValueId id : node.inputs)
      if (plan.graph.value(id).kind == ValueKind::activation) reads.push_back(touched(id, task.in[k++]));
    if (task.run == run_prepare)
      writes.push_back({reinterpret_cast<const float*>(task.workspace), 0, task.workspace_bytes});
    else
      for (size_t o = 0; o < node.outputs.size() && o < 2; ++o) writes.push_back(touched(node.outputs[o], task.out[o]));
    bool clash = i == 0 || task.sharing != Sharing::rows || tasks[i - 1].sharing != Sharing::rows ||
                 task.rows != tasks[i - 1].rows;
    for (const Touched& w : writes)
      for (const Touched& c : chain) clash = clash || (w.overlaps(c) && !(w == c));
    task.barrier_before = i > 0 && clash;
    if (clash) chain.clear();
    chain.insert(chain.end(), reads.begin(), reads.end());
    chain.insert(chain.end(), writes.begin(), writes.end());
  }
}

}  // namespace

uint32_t chunk_panels(uint32_t n_panels, uint32_t n_threads) { return std::max(1u, n_panels / (8 * n_threads)); }

uint64_t workspace_bytes(const Graph& graph, const Node& node, uint32_t n_rows, uint32_t n_threads,
                         ActivationMode mode) {
  if (node.op == Op::matmul || node.op == Op::qkv || node.op == Op::glu)
    return products_memory(graph, node, n_rows, n_threads, mode).bytes;
  if (node.op == Op::attention) return attention_workspace(node, n_threads);
  return sample_workspace(node, n_rows, n_threads);
}

bool has_task(Op op) { return op_task(op).run != nullptr; }

Result<TaskList> make_tasks(Plan plan, const Resources& res) {
  TaskList list;
  list.plan = std::move(plan);
  const Graph& graph = list.plan.graph;
  const auto place = [&](ValueId id) -> float* {
    return list.plan.offset[id] == Plan::kNoOffset ? nullptr
                                                   : reinterpret_cast<float*>(res.arena + list.plan.offset[id]);
  };
  for (uint32_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    const OpTask op = op_task(node.op);
    if (!op.run) return fail(Code::internal, "cpu: no task for {}", info(node.op).name);
    Task task;
    task.run = op.run;
    task.sharing = op.sharing;
    task.node = n;
    task.attrs = &node.attrs;
    task.width = graph.value(node.inputs[0]).width;
    task.rows = graph.value(node.outputs.empty() ? node.inputs[0] : node.outputs[0]).rows;
    const uint32_t max_rows = list.plan.max_rows(task.rows);
    task.workspace_bytes = workspace_bytes(graph, node, max_rows, res.n_threads, res.mode);
    if (list.plan.workspace[n] != Plan::kNoOffset) task.workspace = res.arena + list.plan.workspace[n];
    size_t inputs = 0;
    for (ValueId id : node.inputs) {
      const Value& v = graph.value(id);
      if (v.kind == ValueKind::activation)
        task.in[inputs++] = place(id);
      else if (v.kind == ValueKind::weight && node.op == Op::embed)
        task.table = &res.matrices[id];
      else if (v.kind == ValueKind::weight && res.matrices[id].packed.n_rows)
        task.products[task.n_products++].weights = &res.matrices[id];
      else if (v.kind == ValueKind::weight && node.op != Op::qkv)
        task.vector = res.vectors[id], task.vector_width = v.width;
      else if (v.kind == ValueKind::state) {
        const auto found = std::find(res.layout.layers.begin(), res.layout.layers.end(), v.kv);
        if (found == res.layout.layers.end())
          return fail(Code::internal, "cpu: no cache was allocated for '{}'", v.name);
        const size_t layer = size_t(found - res.layout.layers.begin());
        task.kv = &res.kv[layer], task.group = res.layout.group_of_layer[layer];
      }
    }
    for (size_t k = 0; k < node.outputs.size() && k < 2; ++k) task.out[k] = place(node.outputs[k]);
    for (uint32_t k = 0; k < task.n_products; ++k) {
      Product& p = task.products[k];
      p.chunk_panels = chunk_panels(n_panels(p.weights->packed.n_rows), res.n_threads);
      if (node.op != Op::glu) p.out = place(node.outputs[k]);
      if (node.op == Op::qkv && node.inputs.size() == 7) p.bias = res.vectors[node.inputs[4 + k]];
      task.use[size_t(activations_of(res.mode, p.weights->packed.format))] = true;
    }
    if (task.n_products) {
      const ProductsMemory memory = products_memory(graph, node, max_rows, res.n_threads, res.mode);
      task.panels = task.workspace + memory.panels_at;
      task.panel_bytes = memory.panel_bytes;
      task.up = task.workspace + memory.up_at;
      task.up_bytes = memory.up_bytes;
    }
    if (node.op == Op::glu) {
      task.products[0].out = place(node.outputs[0]);
      task.activate = node.attrs.act == Activation::silu ? res.vector.silu_mul : res.vector.gelu_mul;
    }
    if (task.n_products) {
      Task prepare = task;
      prepare.run = run_prepare;
      prepare.sharing = Sharing::rows;
      list.tasks.push_back(prepare);
    }
    list.tasks.push_back(task);
  }
  schedule(list.plan, list.tasks);
  if (graph.logits != kNone) list.logits = place(graph.logits);
  if (graph.sampled != kNone) list.sampled = reinterpret_cast<const int32_t*>(place(graph.sampled));
  return list;
}

}  // namespace argent::cpu
