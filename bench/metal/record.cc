#include "metal/record.h"

#include <algorithm>

#include "backends/metal/backend.h"

namespace argent::metal {
namespace {

constexpr uint32_t kMostRows = 512;  // of a step, as the engine's default

// One step of one sequence, whose last row draws a token.
Status run(Backend& backend, PlanId plan, const KvLayout& layout, std::span<const int32_t> table, uint32_t before,
           uint32_t n, bool from_slot) {
  const std::vector<int32_t> recent(before + n, 0);
  Step step;
  step.tokens.assign(n, from_slot ? ~0 : 0);
  for (uint32_t i = 0; i < n; ++i) step.positions.push_back(int32_t(before + i));
  step.row_sequence.assign(n, 0);
  step.sequences.push_back(
      {0, n, before, 0, std::vector<std::span<const int32_t>>(layout.windows.size(), table), recent, before + n});
  step.output_rows = {int32_t(n - 1)};
  step.sampling.resize(1);
  ARGENT_LET(const Ticket ticket, backend.run(plan, step));
  ARGENT_LET(const StepResult result, backend.wait(ticket));
  (void)result;
  return {};
}

}  // namespace

Status record_step(const Graph& graph, const StepToRecord& step, Recording& recording) {
  ARGENT_LET(std::unique_ptr<Backend> backend,
             make_backend({}, "recorded", std::make_unique<RecordingDevice>(&recording, step.runs), step.without));
  ARGENT_TRY(backend->load(graph, WeightStorage::mapped, nullptr));
  const KvLayout layout = kv_layout(graph);
  const uint32_t n_blocks = (step.depth + step.rows) / kKvBlockTokens + 2;
  const KernelTable* device = backend.get();
  std::vector<Plan> plans;
  uint64_t arena = 0;
  for (const uint32_t rows : {step.rows, step.runs ? std::min(std::max(step.depth, 1u), kMostRows) : step.rows}) {
    ARGENT_LET(Plan plan,
               make_plan(graph, plan_key(rows, 1, std::max(rows, kMostRows), 1, Tail::greedy), {&device, 1}));
    arena = std::max(arena, plan.arena_bytes[0]);
    plans.push_back(std::move(plan));
  }
  ARGENT_TRY(backend->allocate(layout, {arena, std::vector<uint32_t>(layout.windows.size(), n_blocks)}));
  std::vector<PlanId> ids;
  for (Plan& plan : plans) {
    ARGENT_LET(const PlanId id, backend->compile(std::move(plan)));
    ids.push_back(id);
  }
  std::vector<int32_t> table(n_blocks);
  for (uint32_t i = 0; i < n_blocks; ++i) table[i] = int32_t(i);
  for (uint32_t at = 0; step.runs && at < step.depth; at += kMostRows)
    ARGENT_TRY(run(*backend, ids[1], layout, table, at, std::min(kMostRows, step.depth - at), false));
  ARGENT_TRY(run(*backend, ids[0], layout, table, step.depth, step.rows, false));
  if (step.decode) ARGENT_TRY(run(*backend, ids[0], layout, table, step.depth + step.rows, step.rows, true));
  return {};
}

}  // namespace argent::metal
