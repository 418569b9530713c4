#include "backends/null/backend.h"

#include <array>

#include "graph/step_check.h"
#include "sample/params.h"
#include "sample/philox.h"

namespace argent::null {
namespace {

class Null final : public NullBackend {
 public:
  explicit Null(const BackendOptions& options) : options_(options) {}

  std::string device_name() const override { return "null"; }
  Kernel find(const Graph&, const Node&) const override { return {true, {}}; }
  BackendCaps caps() const override { return {"null", "null, computes nothing", memory_, true, false}; }
  uint64_t weight_bytes(const Graph&, ValueId) const override { return 0; }
  uint64_t kv_bytes(const KvSpec& l, uint32_t n_blocks) const override {
    return uint64_t(n_blocks) * kKvBlockTokens * l.n_head_kv *
           (kv_bytes_of(options_.kv_k, l.d_head) + kv_bytes_of(options_.kv_v, l.d_value));
  }

  Status load(const Graph&, WeightStorage, const std::function<bool(const Progress&)>& progress) override {
    ++counters_.loads;
    if (progress && !progress({"weights", 0, 0})) return fail(Code::cancelled, "loading was cancelled");
    return {};
  }
  Status allocate(const KvLayout& layout, const MemoryNeed& need) override;
  Result<PlanId> compile(Plan plan) override;
  Result<Ticket> run(PlanId plan, const Step& step) override;
  Result<StepResult> wait(Ticket ticket) override;
  Status copy_blocks(std::span<const KvCopy> copies) override;
  void set_profile(bool on) override { profiling_ = on; }
  std::span<const NodeTime> profile() const override { return times_; }
  const Counters& counters() const override { return counters_; }
  void set_memory(uint64_t bytes) override { memory_ = bytes; }

 private:
  struct Compiled {
    StepRules rules;
    uint32_t n_logits = 0;  // elements of a row that is handed out; 0: none are
    uint32_t n_nodes = 0;
    bool samples = false;
  };
  struct Done {
    Ticket ticket = 0;
    std::vector<float> logits;
    std::vector<int32_t> sampled;
  };

  const BackendOptions options_;
  uint64_t memory_ = UINT64_MAX;
  KvLayout layout_;
  std::vector<uint32_t> group_blocks_;
  uint64_t arena_bytes_ = 0;
  std::vector<Compiled> plans_;
  std::vector<uint8_t> sampled_slots_;
  Ticket last_ = 0;
  std::array<Done, 4> done_;
  Counters counters_;
  bool profiling_ = false;
  std::vector<NodeTime> times_;
};

Status Null::allocate(const KvLayout& layout, const MemoryNeed& need) {
  if (need.group_blocks.size() != layout.windows.size())
    return fail(Code::internal, "null: blocks of {} layer groups, the model has {}", need.group_blocks.size(),
                layout.windows.size());
  ARGENT_TRY(check_kv_types(layout, options_.kv_k, options_.kv_v));
  uint64_t bytes = need.arena_bytes;
  for (size_t i = 0; i < layout.layers.size(); ++i)
    bytes += kv_bytes(layout.layers[i], need.group_blocks[layout.group_of_layer[i]]);
  if (bytes > memory_)
    return fail(Code::out_of_memory, "null: {} bytes for the KV cache and the arena, {} are free", bytes, memory_);
  layout_ = layout;
  group_blocks_ = need.group_blocks;
  arena_bytes_ = need.arena_bytes;
  plans_.clear();
  return {};
}

Result<PlanId> Null::compile(Plan plan) {
  if (plan.arena_bytes.size() != 1 || plan.arena_bytes[0] > arena_bytes_)
    return fail(Code::internal, "null: the plan wants an arena of {} bytes on {} devices, {} were allocated",
                plan.arena_bytes.empty() ? 0 : plan.arena_bytes[0], plan.arena_bytes.size(), arena_bytes_);
  Compiled compiled{step_rules(plan, layout_, group_blocks_, kKvBlockTokens), 0, uint32_t(plan.graph.nodes.size()),
                    samples(plan.key.tail)};
  if (plan.graph.logits != kNone) compiled.n_logits = plan.graph.value(plan.graph.logits).width;
  plans_.push_back(std::move(compiled));
  ++counters_.compiles;
  return PlanId(plans_.size() - 1);
}

Result<Ticket> Null::run(PlanId id, const Step& step) {
  if (id >= plans_.size()) return fail(Code::internal, "null: plan {} of {}", id, plans_.size());
  const Compiled& plan = plans_[id];
  ARGENT_TRY(check_step(plan.rules, step, sampled_slots_));
  for (const SampleParams& params : step.sampling) ARGENT_TRY(sample::check(params));

  Done& done = done_[++last_ % done_.size()];
  done.ticket = last_;
  done.sampled.clear();
  done.logits.assign(size_t(plan.n_logits) * step.output_rows.size(), 0.0f);
  for (size_t i = 0; i < step.output_rows.size(); ++i) {
    const size_t row = size_t(step.output_rows[i]);
    const uint32_t slot = step.sequences[step.row_sequence[row]].slot;
    const SampleParams params = step.sampling.empty() ? SampleParams{.seed = slot} : step.sampling[i];
    const uint32_t n_vocab = plan.n_logits ? plan.n_logits : plan.rules.n_vocab;
    const int32_t token = scripted_token(params.seed, params.sample_index, uint32_t(step.positions[row]), n_vocab);
    if (plan.n_logits) done.logits[i * plan.n_logits + size_t(token)] = 1;
    if (!plan.samples) continue;
    done.sampled.push_back(token);
    if (slot >= sampled_slots_.size()) sampled_slots_.resize(slot + 1, 0);
    sampled_slots_[slot] = 1;
  }
  if (profiling_) {
    times_.clear();
    for (uint32_t n = 0; n < plan.n_nodes; ++n) times_.push_back({n, 0, 0, {}});
  }
  ++counters_.runs;
  counters_.rows += step.tokens.size();
  counters_.output_rows += step.output_rows.size();
  return last_;
}

Result<StepResult> Null::wait(Ticket ticket) {
  const Done& done = done_[ticket % done_.size()];
  if (ticket == 0 || done.ticket != ticket)
    return fail(Code::internal, "null: no result of step {}, the last one is {}", ticket, last_);
  if (ticket != last_) return StepResult{{}, done.sampled};  // logits are gone with the next run, as on every backend
  return StepResult{done.logits, done.sampled};
}

Status Null::copy_blocks(std::span<const KvCopy> copies) {
  for (const KvCopy& c : copies)
    if (c.group >= group_blocks_.size() || c.from < 0 || c.to < 0 || uint32_t(c.from) >= group_blocks_[c.group] ||
        uint32_t(c.to) >= group_blocks_[c.group])
      return fail(Code::internal, "null: copy of block {} to {} in layer group {}", c.from, c.to, c.group);
  counters_.copies += copies.size();
  return {};
}

}  // namespace

int32_t scripted_token(uint64_t seed, uint32_t sample_index, uint32_t position, uint32_t n_vocab) {
  return int32_t(sample::draw_bits(seed, position, sample_index) % n_vocab);
}

std::unique_ptr<NullBackend> make_backend(const BackendOptions& options) { return std::make_unique<Null>(options); }

}  // namespace argent::null

namespace argent {

Result<std::unique_ptr<Backend>> make_null_backend(const BackendOptions& options) {
  return std::unique_ptr<Backend>(null::make_backend(options));
}

}  // namespace argent
