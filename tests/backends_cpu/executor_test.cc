#include "backends/cpu/executor.h"

#include <gtest/gtest.h>

#include "graph/builder.h"
#include "ops/bench.h"

namespace argent::cpu {
namespace {

// The plan of a model of plain decoder layers, as tasks; only what make_tasks looks at is real.
Result<uint32_t> barriers_of(uint32_t n_layer, uint32_t n_tokens) {
  constexpr uint32_t kWidth = 64, kHeads = 2, kHead = 32, kInner = 96;
  ops_test::Maker m(5);
  Builder& b = m.builder();
  const Attrs rope{.n_rot = kHead, .freq_base = 10000};
  const ValueId table = b.rope_table(m.positions(), kNone, rope);
  const auto norm = [&](ValueId x) { return b.rms_norm(x, m.vector(kWidth), 1e-5f); };
  const auto times = [&](ValueId x, uint32_t rows, uint32_t columns) {
    return b.matmul(x, m.matrix(Format::q8_0, rows, columns));
  };
  ValueId x = m.rows(kWidth);
  for (uint32_t l = 0; l < n_layer; ++l) {
    b.layer(int32_t(l));
    const ValueId h = norm(x);
    const ValueId q = times(h, kWidth, kWidth), k = times(h, kWidth, kWidth), v = times(h, kWidth, kWidth);
    const ValueId state = b.kv({l, kHeads, kHead, kHead, 0});
    b.kv_store(b.rope(k, table, kHeads, rope), v, state);
    x = b.add(x, times(b.attention(b.rope(q, table, kHeads, rope), state, kHeads, 0.2f), kWidth, kWidth));
    const ValueId g = norm(x);
    x = b.add(x, times(b.mul(b.silu(times(g, kInner, kWidth)), times(g, kInner, kWidth)), kWidth, kInner));
  }
  b.layer(-1);
  b.set_logits(times(norm(x), 64, kWidth));
  ARGENT_LET(const Graph graph, b.finish());
  ARGENT_LET(const std::unique_ptr<Backend> backend, make_cpu_backend({.n_threads = 2}));
  const KernelTable* device = backend.get();
  ARGENT_LET(Plan plan, make_plan(graph, {n_tokens, 1, false, Tail::greedy}, {&device, 1}));
  std::vector<Matrix> matrices(plan.graph.values.size());
  for (ValueId id = 0; id < graph.values.size(); ++id)
    if (const Value& value = graph.value(id); value.kind == ValueKind::weight && value.n_rows > 1)
      matrices[id] = {{value.format, value.n_rows, value.width, nullptr}, value.data};
  const std::vector<const float*> vectors(plan.graph.values.size(), nullptr);
  const KvLayout layout = kv_layout(graph);
  const std::vector<KvLayer> kv(layout.layers.size());
  std::vector<uint8_t> arena(plan.arena_bytes[0]);
  ARGENT_LET(const TaskList list,
             make_tasks(std::move(plan), {matrices, vectors, kv, layout, arena.data(), 2, ActivationMode::native,
                                          matmul_kernels(Isa::baseline), vector_kernels(Isa::baseline)}));
  return n_barriers(list, n_tokens);
}

uint32_t of_a_layer(uint32_t n_tokens) {
  const auto three = barriers_of(3, n_tokens), four = barriers_of(4, n_tokens);
  EXPECT_TRUE(three) << three.error().message;
  EXPECT_TRUE(four) << four.error().message;
  return three && four ? *four - *three : 0;
}

// QKV, attention, output, gate + up + activation, down.
TEST(Executor, FiveBarriersALayer) {
  EXPECT_EQ(of_a_layer(1), 5u);
  EXPECT_EQ(of_a_layer(kRowsAlone), 5u);
}

}  // namespace
}  // namespace argent::cpu
