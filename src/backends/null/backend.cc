#include "backends/null/backend.h"

#include <array>
#include <cstring>

#include "base/huge_pages.h"
#include "graph/step_check.h"
#include "sample/params.h"
#include "sample/philox.h"

namespace argent::null {
namespace {

uint64_t fingerprint(uint64_t before, int32_t token) {
  const uint64_t h = (before ^ uint32_t(token)) * 0x9e3779b97f4a7c15u;
  return (h ^ h >> 31) | 1;
}

class Null final : public NullBackend {
 public:
  explicit Null(const BackendOptions& options) : options_(options) {}

  std::string device_name() const override { return "null"; }
  Kernel find(const Graph&, const Node&) const override { return {true, {}}; }
  BackendCaps caps() const override { return caps_; }
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
  uint64_t kv_block_bytes(uint32_t) const override { return kKvBlockTokens * sizeof(uint64_t); }
  Status save_blocks(std::span<const KvTransfer> transfers) override;
  Status restore_blocks(std::span<const KvTransfer> transfers) override;
  std::string kv_format() const override { return "null"; }
  void set_profile(bool on) override { profiling_ = on; }
  std::span<const NodeTime> profile() const override { return times_; }
  const Counters& counters() const override { return counters_; }
  void set_memory(uint64_t bytes) override { caps_.memory_free = bytes; }
  void set_mapped(bool count) override {
    caps_.resident_weights = false, caps_.mapped_weights = true;
    caps_.mapped_count = count;
  }
  void set_own_memory() override { caps_.own_memory = true; }
  void set_runs_ahead() override { caps_.runs_ahead = true; }
  DevicePeaks measure_peaks() override {
    ++counters_.measures;
    return {};
  }

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

  uint64_t* block(uint32_t group, int32_t block) const {
    return reinterpret_cast<uint64_t*>(kv_[group].data()) + uint64_t(block) * kKvBlockTokens;
  }
  Status check_block(uint32_t group, int32_t block) const;
  Status check_content(const StepSequence& s, int32_t first_token) const;
  int32_t drawn(int32_t token) const { return token < 0 ? sampled_[uint32_t(~token)] : token; }
  void write_content(const StepSequence& s);

  const BackendOptions options_;
  BackendCaps caps_{
      .name = "null", .description = "null, computes nothing", .memory_free = UINT64_MAX, .resident_weights = true};
  // By layer group: what each position of each block holds, a fingerprint of all tokens up to it; 0: nobody knows.
  std::vector<HugePages> kv_;
  mutable std::vector<uint64_t> prints_;  // of a sequence's positions
  KvLayout layout_;
  std::vector<uint32_t> group_blocks_;
  uint64_t arena_bytes_ = 0;
  std::vector<Compiled> plans_;
  std::vector<uint8_t> sampled_slots_;
  std::vector<int32_t> sampled_;  // by slot
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
  if (bytes > caps_.memory_free)
    return fail(Code::out_of_memory, "null: {} bytes for the KV cache and the arena, {} are free", bytes,
                caps_.memory_free);
  layout_ = layout;
  group_blocks_ = need.group_blocks;
  arena_bytes_ = need.arena_bytes;
  plans_.clear();
  kv_.clear();
  for (const uint32_t n_blocks : group_blocks_) {
    ARGENT_LET(HugePages pages, HugePages::allocate(n_blocks * kv_block_bytes(0)));
    kv_.push_back(std::move(pages));
  }
  return {};
}

// Whatever a query of this step sees of the positions before it is the sequence's own.
Status Null::check_content(const StepSequence& s, int32_t first_token) const {
  prints_.clear();
  const bool fed = first_token < 0 && s.n_rows == 1;  // what the slot drew last
  if (s.recent.size() + (fed && s.recent.size() == s.length) != uint64_t(s.length) + s.n_rows)
    return {};  // a step without texts
  uint64_t print = 1;
  for (const int32_t token : s.recent) prints_.push_back(print = fingerprint(print, drawn(token)));
  if (s.recent.size() == s.length) prints_.push_back(fingerprint(print, drawn(first_token)));
  for (uint32_t g = 0; g < s.tables.size(); ++g) {
    const uint32_t window = layout_.windows[g];
    for (uint32_t p = window && s.length >= window ? s.length - window + 1 : 0; p < s.length; ++p) {
      const uint64_t seen = block(g, s.tables[g][p / kKvBlockTokens])[p % kKvBlockTokens];
      if (seen && seen != prints_[p])
        return fail(Code::internal, "null: slot {} reads the KV of another text at position {} of layer group {}",
                    s.slot, p, g);
    }
  }
  return {};
}

void Null::write_content(const StepSequence& s) {
  for (uint32_t g = 0; g < s.tables.size(); ++g)
    for (uint32_t p = s.length; p < s.length + s.n_rows; ++p)
      block(g, s.tables[g][p / kKvBlockTokens])[p % kKvBlockTokens] = prints_.empty() ? 0 : prints_[p];
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
  for (const StepSequence& s : step.sequences) {
    ARGENT_TRY(check_content(s, step.tokens[s.first_row]));
    write_content(s);
  }

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
    sampled_.resize(sampled_slots_.size());
    sampled_[slot] = token;
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
  for (const KvCopy& c : copies) {
    ARGENT_TRY(check_block(c.group, c.from));
    ARGENT_TRY(check_block(c.group, c.to));
    std::memcpy(block(c.group, c.to), block(c.group, c.from), kv_block_bytes(c.group));
  }
  counters_.copies += copies.size();
  return {};
}

Status Null::check_block(uint32_t group, int32_t block) const {
  const uint32_t n_blocks = group < group_blocks_.size() ? group_blocks_[group] : 0;
  if (uint32_t(block) < n_blocks) return {};
  return fail(Code::internal, "null: copy of block {} of {} in layer group {}", block, n_blocks, group);
}

Status Null::save_blocks(std::span<const KvTransfer> transfers) {
  for (const KvTransfer& t : transfers) {
    ARGENT_TRY(check_block(t.group, t.block));
    std::memcpy(t.host, block(t.group, t.block), kv_block_bytes(t.group));
  }
  counters_.saves += transfers.size();
  return {};
}

Status Null::restore_blocks(std::span<const KvTransfer> transfers) {
  for (const KvTransfer& t : transfers) {
    ARGENT_TRY(check_block(t.group, t.block));
    std::memcpy(block(t.group, t.block), t.host, kv_block_bytes(t.group));
  }
  counters_.restores += transfers.size();
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
