#include "engine/profile.h"

#include <algorithm>
#include <chrono>

#include "engine/engine.h"

namespace argent {
namespace {

uint64_t now() {
  return uint64_t(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
          .count());
}

}  // namespace

DevicePeaks better(const DevicePeaks& a, const DevicePeaks& b) {
  return {std::max(a.read_bytes, b.read_bytes), std::max(a.int8_ops, b.int8_ops), std::max(a.f32_ops, b.f32_ops)};
}

Limit limit_of(const Cost& cost, const DevicePeaks& peaks, bool int8) {
  const double in_int8 = int8 ? double(cost.quantized) : 0, in_f32 = double(cost.flops) - in_int8;
  if (peaks.read_bytes <= 0 || peaks.int8_ops <= 0 || peaks.f32_ops <= 0) return {};
  const double read = double(cost.bytes) / peaks.read_bytes;
  const double dots = in_int8 / peaks.int8_ops, fmas = in_f32 / peaks.f32_ops;
  if (read >= dots + fmas) return {read, "read"};
  return {dots + fmas, dots >= fmas ? "int8" : "f32"};
}

OpTime& OpTime::operator+=(const OpTime& o) {
  count += o.count, nanoseconds += o.nanoseconds, busy += o.busy, threads += o.threads;
  cost += o.cost;
  return *this;
}

void Profile::add(const ProfiledStep& step) {
  Phase& phase = step.decode ? decode_ : prefill_;
  ++phase.steps;
  phase.tokens += step.context.n_tokens;
  phase.nanoseconds += step.nanoseconds;
  phase.int8 = step.int8;
  for (const NodeTime& time : step.nodes) {
    const Node& node = step.graph->nodes[time.node];
    OpTime one{1, time.nanoseconds, 0, time.nanoseconds * time.busy.size(), cost(*step.graph, node, step.context)};
    for (uint64_t busy : time.busy) one.busy += busy;
    phase.times[{node.layer, node.op}] += one;
  }
}

void Engine::set_profile(ProfileSink sink) {
  profile_ = std::move(sink);
  profile_begin_ = now();
  backend_->set_profile(bool(profile_));
}

// Plans that were compiled before profiling began gave their graphs away; the passes make the same ones again.
Result<std::shared_ptr<const Graph>> Engine::graph_of(const PlanKey& key) {
  for (const auto& [known, graph] : profiled_graphs_)
    if (known == key) return graph;
  ARGENT_LET(Plan plan, make(key, Stage::planned));
  profiled_graphs_.emplace_back(key, std::make_shared<const Graph>(std::move(plan.graph)));
  return profiled_graphs_.back().second;
}

Result<StepResult> Engine::run_profiled(PlanId id, const PlanKey& key) {
  ProfiledStep step;
  ARGENT_LET(step.graph, graph_of(key));
  const uint64_t begin = now();
  ARGENT_LET(const Ticket ticket, backend_->run(id, now_.step));
  ARGENT_LET(const StepResult result, backend_->wait(ticket));
  step.nanoseconds = now() - begin;
  step.begin = begin - profile_begin_;
  step.context = {.n_tokens = now_.step.tokens.size(),
                  .n_outputs = now_.step.output_rows.size(),
                  .n_kv = 0,
                  .kv_k = options_.backend.kv_k,
                  .kv_v = options_.backend.kv_v,
                  .n_sequences = now_.step.sequences.size()};
  for (const StepSequence& s : now_.step.sequences) step.context.n_kv += s.length;
  step.decode = now_.step.tokens.size() == now_.step.sequences.size();
  step.int8 = options_.backend.activations == ActivationMode::native;
  step.nodes = backend_->profile();
  profile_(step);
  return result;
}

}  // namespace argent
