// Two backends as one (docs/decisions/0019-layers-split.md). A plan over both is cut where the first hands the hidden
// state to the second; a step runs on the first, whose rows go through the host's memory, and then on the second.
#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "backends/backend.h"
#include "base/checked.h"
#include "graph/parts.h"

namespace argent {
namespace {

constexpr uint32_t kNoGroup = UINT32_MAX;

class SplitBackend final : public Backend {
 public:
  SplitBackend(std::unique_ptr<Backend> first, std::unique_ptr<Backend> second, uint32_t n_first, uint32_t n_layers)
      : n_first_(n_first) {
    parts_[0].backend = std::move(first);
    parts_[1].backend = std::move(second);
    placement_.layer_device.assign(n_layers + 1, 1);
    std::fill_n(placement_.layer_device.begin(), n_first, 0);
    placement_.fixed = true;
  }

  std::string device_name() const override {
    return fmt::format("{}+{}", parts_[0].backend->device_name(), parts_[1].backend->device_name());
  }
  // Plans are made for the parts; of the whole only what both have is there.
  Kernel find(const Graph& graph, const Node& node) const override {
    Kernel kernel = parts_[0].backend->find(graph, node);
    return kernel.available ? parts_[1].backend->find(graph, node) : kernel;
  }
  BackendCaps caps() const override;
  std::vector<Backend*> parts() override { return {parts_[0].backend.get(), parts_[1].backend.get()}; }
  void place(PlanOptions& options) const override {
    options.layer_device = placement_.layer_device;
    options.front_device = placement_.front_device;
    options.fixed = placement_.fixed;
  }

  uint64_t weight_bytes(const Graph& graph, ValueId weight) const override;
  uint64_t kv_bytes(const KvSpec& layer, uint32_t n_blocks) const override {
    return parts_[layer.layer < n_first_ ? 0 : 1].backend->kv_bytes(layer, n_blocks);
  }
  Status load(const Graph& graph, WeightStorage storage, const std::function<bool(const Progress&)>& progress) override;
  Status allocate(const KvLayout& layout, const MemoryNeed& need) override;
  Result<PlanId> compile(Plan plan) override;
  Result<Ticket> run(PlanId plan, const Step& step) override;
  Result<StepResult> wait(Ticket ticket) override;
  Status copy_blocks(std::span<const KvCopy> copies) override;
  uint64_t kv_block_bytes(uint32_t group) const override { return second_at(group) + block_bytes(parts_[1], group); }
  Status save_blocks(std::span<const KvTransfer> transfers) override { return transfer(transfers, true); }
  Status restore_blocks(std::span<const KvTransfer> transfers) override { return transfer(transfers, false); }
  std::string kv_format() const override {
    return fmt::format("{} layers {}, then {}", n_first_, parts_[0].backend->kv_format(),
                       parts_[1].backend->kv_format());
  }
  bool prepare() override { return parts_[0].backend->prepare() || parts_[1].backend->prepare(); }
  void set_profile(bool on) override {
    profiling_ = on;
    times_.clear();
    for (Part& part : parts_) part.backend->set_profile(on);
  }
  std::span<const NodeTime> profile() const override { return times_; }

 private:
  struct Part {
    std::unique_ptr<Backend> backend;
    KvLayout layout;              // of its own layers
    std::vector<uint32_t> group;  // the layer group of the whole, by its own
    std::vector<uint32_t> own;    // its own group, by that of the whole; kNoGroup: it has no layer of that group
    std::vector<KvCopy> copies;   // kept for their memory, as `step`
    uint64_t step_begin = 0;      // nanoseconds after run() began
    Step step;
  };
  struct Compiled {
    std::array<PlanId, 2> id;
    std::array<std::vector<uint32_t>, 2> nodes;  // of the whole plan
    bool every_row = false;                      // goes from the first to the second, not only those that want logits
    bool samples = false;
  };

  uint64_t block_bytes(const Part& part, uint32_t group) const {
    const uint32_t own = group < part.own.size() ? part.own[group] : kNoGroup;
    return own == kNoGroup ? 0 : part.backend->kv_block_bytes(own);
  }
  // Where the second part's bytes of a block begin, behind the first's.
  uint64_t second_at(uint32_t group) const { return align_up(block_bytes(parts_[0], group), 64); }
  Status transfer(std::span<const KvTransfer> transfers, bool save);
  Status check_group(uint32_t group) const {
    if (group < n_groups_) return {};
    return fail(Code::internal, "split: layer group {} of {}", group, n_groups_);
  }
  Status collect();
  void take_tables(const Step& step, Part& part);
  void take_times(const Compiled& plan);

  std::array<Part, 2> parts_;
  const uint32_t n_first_;
  PlanOptions placement_;
  uint32_t n_groups_ = 0;
  std::vector<Compiled> plans_;
  // Of the last step where it sampled, until its tokens are known here: which slot each output row is of.
  std::vector<uint32_t> pending_slots_;
  Ticket pending_ = 0;
  std::vector<int32_t> sampled_;  // by slot: the token, -1 where there is none
  PlanId running_ = 0;
  Ticket ticket_ = 0;
  bool profiling_ = false;
  std::vector<NodeTime> times_;
};

BackendCaps SplitBackend::caps() const {
  const BackendCaps a = parts_[0].backend->caps(), b = parts_[1].backend->caps();
  return {.name = fmt::format("{}+{}", a.name, b.name),
          .description = fmt::format("{}; {}", a.description, b.description),
          .memory_free = a.memory_free && b.memory_free ? std::min(a.memory_free, b.memory_free) : 0,
          .resident_weights = a.resident_weights || b.resident_weights,
          .mapped_weights = a.mapped_weights || b.mapped_weights,
          .deterministic = a.deterministic && b.deterministic,
          .mapped_count = a.mapped_count || b.mapped_count};
}

uint64_t SplitBackend::weight_bytes(const Graph& graph, ValueId weight) const {
  uint64_t bytes = 0;
  for (uint8_t d = 0; d < 2; ++d)
    if (const Graph part = device_part(graph, placement_, d); part.value(weight).kind == ValueKind::weight)
      bytes += parts_[d].backend->weight_bytes(part, weight);
  return bytes;
}

// Each part keeps its weights as asked, where it can.
Status SplitBackend::load(const Graph& graph, WeightStorage storage,
                          const std::function<bool(const Progress&)>& progress) {
  const KvLayout whole = kv_layout(graph);
  n_groups_ = uint32_t(whole.windows.size());
  for (uint8_t d = 0; d < 2; ++d) {
    Part& part = parts_[d];
    const Graph own = device_part(graph, placement_, d);
    part.layout = kv_layout(own);
    part.group.clear();
    part.own.assign(n_groups_, kNoGroup);
    for (const uint32_t window : part.layout.windows) {
      const auto at = std::find(whole.windows.begin(), whole.windows.end(), window) - whole.windows.begin();
      part.own[size_t(at)] = uint32_t(part.group.size());
      part.group.push_back(uint32_t(at));
    }
    ARGENT_TRY(part.backend->load(own, storage_of(part.backend->caps(), storage), progress));
  }
  return {};
}

Status SplitBackend::allocate(const KvLayout& layout, const MemoryNeed& need) {
  if (need.part_arena_bytes.size() != 2 || need.group_blocks.size() != n_groups_ || layout.windows.size() != n_groups_)
    return fail(Code::internal, "split: arenas of {} devices, blocks of {} layer groups; the model has {} groups",
                need.part_arena_bytes.size(), need.group_blocks.size(), n_groups_);
  for (size_t d = 0; d < 2; ++d) {
    MemoryNeed own{need.part_arena_bytes[d], {}};
    for (const uint32_t group : parts_[d].group) own.group_blocks.push_back(need.group_blocks[group]);
    ARGENT_TRY(parts_[d].backend->allocate(parts_[d].layout, own));
  }
  plans_.clear();
  return {};
}

Result<PlanId> SplitBackend::compile(Plan plan) {
  Compiled compiled;
  compiled.samples = samples(plan.key.tail);
  ARGENT_LET(auto parts, cut(plan));
  const Graph& first = parts[0].plan.graph;
  compiled.every_row = first.value(first.logits).rows == Rows::tokens;
  for (size_t d = 0; d < 2; ++d) {
    compiled.nodes[d] = std::move(parts[d].nodes);
    ARGENT_LET(compiled.id[d], parts_[d].backend->compile(std::move(parts[d].plan)));
  }
  plans_.push_back(std::move(compiled));
  return PlanId(plans_.size() - 1);
}

// What the last step sampled, for the first part, which does not see it.
Status SplitBackend::collect() {
  if (pending_slots_.empty()) return {};
  const std::vector<uint32_t> slots = std::exchange(pending_slots_, {});
  ARGENT_LET(const StepResult result, parts_[1].backend->wait(pending_));
  for (size_t r = 0; r < slots.size() && r < result.sampled.size(); ++r) {
    if (slots[r] >= sampled_.size()) sampled_.resize(slots[r] + 1, -1);
    sampled_[slots[r]] = result.sampled[r];
  }
  return {};
}

void SplitBackend::take_tables(const Step& step, Part& part) {
  for (size_t s = 0; s < step.sequences.size(); ++s) {
    std::vector<std::span<const int32_t>>& tables = part.step.sequences[s].tables;
    tables.clear();
    for (const uint32_t group : part.group) tables.push_back(step.sequences[s].tables[group]);
  }
}

Result<Ticket> SplitBackend::run(PlanId id, const Step& step) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  if (id >= plans_.size()) return fail(Code::internal, "split: plan {} of {}", id, plans_.size());
  const Compiled& plan = plans_[id];
  for (size_t s = 0; s < step.sequences.size(); ++s)
    if (step.sequences[s].tables.size() != n_groups_)
      return fail(Code::invalid, "step: sequence {} has {} block tables, wants {}", s, step.sequences[s].tables.size(),
                  n_groups_);
  ARGENT_TRY(collect());
  Part &first = parts_[0], &second = parts_[1];

  // The first part neither samples nor sees what was sampled: tokens in slots are resolved, those of slots without one
  // stay for it to refuse.
  first.step = step;
  first.step.sampling.clear(), first.step.rules.clear();
  for (StepSequence& s : first.step.sequences) s.recent = {}, s.n_prompt = 0;
  for (int32_t& token : first.step.tokens)
    if (token < 0 && size_t(~token) < sampled_.size() && sampled_[size_t(~token)] >= 0)
      token = sampled_[size_t(~token)];
  if (plan.every_row) {
    first.step.output_rows.resize(step.tokens.size());
    for (size_t r = 0; r < step.tokens.size(); ++r) first.step.output_rows[r] = int32_t(r);
  }
  take_tables(step, first);
  ARGENT_LET(const Ticket half, first.backend->run(plan.id[0], first.step));
  ARGENT_LET(const StepResult hidden, first.backend->wait(half));

  second.step = step;
  second.step.hidden = hidden.logits;
  take_tables(step, second);
  second.step_begin = uint64_t(std::chrono::nanoseconds(Clock::now() - begin).count());
  ARGENT_LET(ticket_, second.backend->run(plan.id[1], second.step));
  running_ = id;
  if (plan.samples) {
    pending_ = ticket_;
    for (const int32_t row : step.output_rows)
      pending_slots_.push_back(step.sequences[step.row_sequence[size_t(row)]].slot);
  }
  return ticket_;
}

Result<StepResult> SplitBackend::wait(Ticket ticket) {
  ARGENT_LET(const StepResult result, parts_[1].backend->wait(ticket));
  if (profiling_ && ticket == ticket_) take_times(plans_[running_]);
  return result;
}

void SplitBackend::take_times(const Compiled& plan) {
  times_.clear();
  for (size_t d = 0; d < 2; ++d)
    for (NodeTime time : parts_[d].backend->profile()) {
      time.node = plan.nodes[d][time.node];
      time.begin += parts_[d].step_begin;
      times_.push_back(time);
    }
}

Status SplitBackend::copy_blocks(std::span<const KvCopy> copies) {
  for (const KvCopy& copy : copies) ARGENT_TRY(check_group(copy.group));
  for (Part& part : parts_) {
    part.copies.clear();
    for (const KvCopy& copy : copies)
      if (part.own[copy.group] != kNoGroup) part.copies.push_back({part.own[copy.group], copy.from, copy.to});
    if (!part.copies.empty()) ARGENT_TRY(part.backend->copy_blocks(part.copies));
  }
  return {};
}

Status SplitBackend::transfer(std::span<const KvTransfer> transfers, bool save) {
  for (const KvTransfer& t : transfers) ARGENT_TRY(check_group(t.group));
  for (size_t d = 0; d < 2; ++d) {
    const Part& part = parts_[d];
    std::vector<KvTransfer> own;
    for (const KvTransfer& t : transfers)
      if (part.own[t.group] != kNoGroup)
        own.push_back({part.own[t.group], t.block, t.host + (d ? second_at(t.group) : 0)});
    if (own.empty()) continue;
    ARGENT_TRY(save ? part.backend->save_blocks(own) : part.backend->restore_blocks(own));
  }
  return {};
}

}  // namespace

std::unique_ptr<Backend> make_split_backend(std::unique_ptr<Backend> first, std::unique_ptr<Backend> second,
                                            uint32_t n_first, uint32_t n_layers) {
  return std::make_unique<SplitBackend>(std::move(first), std::move(second), n_first, n_layers);
}

}  // namespace argent
