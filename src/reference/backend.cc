#include "reference/backend.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include "base/checked.h"
#include "base/system_memory.h"
#include "graph/step_check.h"
#include "graph/storage.h"
#include "reference/ops.h"
#include "sample/params.h"

namespace argent::reference {
namespace {

// Aligned bytes; running out is a value, not an exception.
class Buffer {
 public:
  Status allocate(uint64_t bytes, bool poison, std::string_view what) {
    data_.reset();
    data_.reset(static_cast<uint8_t*>(std::aligned_alloc(64, align_up(std::max<uint64_t>(bytes, 1), 64))));
    if (!data_) return fail(Code::out_of_memory, "reference: no {} bytes for the {}", bytes, what);
    size_ = bytes;
    if (poison) fill_nan();
    return {};
  }
  void fill_nan() { std::memset(data_.get(), 0xff, size_); }  // a NaN in f32 and f16, -1 in i32
  uint8_t* data() const { return data_.get(); }
  uint64_t size() const { return size_; }

 private:
  struct Free {
    void operator()(uint8_t* p) const { std::free(p); }
  };
  std::unique_ptr<uint8_t, Free> data_;
  uint64_t size_ = 0;
};

class ReferenceBackend final : public Backend {
 public:
  ReferenceBackend(const BackendOptions& options, const Options& own)
      : options_(options), own_(own), pool_({.n_threads = options.n_threads}) {}

  std::string device_name() const override { return "reference"; }
  Kernel find(const Graph&, const Node&) const override { return {true, {}}; }

  BackendCaps caps() const override {
    return {"reference",
            fmt::format("reference, {} threads, {} activations", pool_.n_threads(),
                        options_.activations == ActivationMode::native ? "native" : "f32"),
            available_memory(),
            false,
            true,
            true};
  }
  uint64_t weight_bytes(const Graph&, ValueId) const override { return 0; }
  uint64_t kv_bytes(const KvSpec& layer, uint32_t n_blocks) const override {
    return n_blocks * (k_block(layer) + v_block(layer));
  }

  Status load(const Graph& graph, WeightStorage storage, const std::function<bool(const Progress&)>& progress) override;
  Status allocate(const KvLayout& layout, const MemoryNeed& need) override;
  Result<PlanId> compile(Plan plan) override;
  Result<Ticket> run(PlanId plan, const Step& step) override;
  Result<StepResult> wait(Ticket ticket) override;
  Status copy_blocks(std::span<const KvCopy> copies) override;
  uint64_t kv_block_bytes(uint32_t group) const override;
  Status save_blocks(std::span<const KvTransfer> transfers) override { return transfer(transfers, true); }
  Status restore_blocks(std::span<const KvTransfer> transfers) override { return transfer(transfers, false); }
  std::string kv_format() const override {
    return fmt::format("reference {} {} {}", options_.activations == ActivationMode::native ? "native" : "f32",
                       name_of(options_.kv_k), name_of(options_.kv_v));
  }

  void set_profile(bool on) override {
    profiling_ = on;
    if (!on) times_.clear();
  }
  std::span<const NodeTime> profile() const override { return times_; }

 private:
  struct Compiled {
    Plan plan;
    StepRules rules;
    std::vector<const KvLayer*> states;  // by value; null for what is no state
  };
  // A step that ran. The arena keeps the logits of the last one only; samples stay for a few.
  struct Done {
    Ticket ticket = 0;
    const float* logits = nullptr;
    size_t n_logits = 0;
    std::vector<int32_t> sampled;
  };

  uint64_t k_block(const KvSpec& l) const {
    return kKvBlockTokens * kv_bytes_of(options_.kv_k, uint64_t(l.n_head_kv) * l.d_head);
  }
  uint64_t v_block(const KvSpec& l) const {
    return kKvBlockTokens * kv_bytes_of(options_.kv_v, uint64_t(l.n_head_kv) * l.d_value);
  }
  Operand operand(const Compiled& compiled, ValueId id, const Step& step);
  Status transfer(std::span<const KvTransfer> transfers, bool save);

  const BackendOptions options_;
  const Options own_;
  ThreadPool pool_;
  KvLayout layout_;
  std::vector<uint32_t> group_blocks_;
  std::vector<Buffer> kv_;       // by layer: K, then V
  std::vector<KvLayer> layers_;  // by layer
  Buffer arena_;
  std::vector<Compiled> plans_;

  // The step's inputs as the ops read them: slots resolved.
  std::vector<int32_t> tokens_, positions_, output_rows_;
  std::vector<int32_t> slots_;          // what each slot sampled last
  std::vector<uint8_t> sampled_slots_;  // whether it ever did
  Ticket last_ = 0;
  std::array<Done, 4> done_;
  bool profiling_ = false;
  std::vector<NodeTime> times_;
};

Status ReferenceBackend::load(const Graph& graph, WeightStorage, const std::function<bool(const Progress&)>& progress) {
  uint64_t total = 0;
  for (const Value& v : graph.values) {
    if (v.kind != ValueKind::weight) continue;
    if (!v.data) return fail(Code::internal, "reference: weight '{}' has no bytes", v.name);
    if (v.width == 0 || v.width % info(v.format).block)
      return fail(Code::invalid, "'{}': rows of {} are no whole blocks of {}", v.name, v.width, info(v.format).name);
    total += v.file_bytes();
  }
  if (progress && !progress({"weights", total, total})) return fail(Code::cancelled, "loading was cancelled");
  return {};
}

Status ReferenceBackend::allocate(const KvLayout& layout, const MemoryNeed& need) {
  if (need.group_blocks.size() != layout.windows.size())
    return fail(Code::internal, "reference: blocks of {} layer groups, the model has {}", need.group_blocks.size(),
                layout.windows.size());
  ARGENT_TRY(check_kv_types(layout, options_.kv_k, options_.kv_v));
  // Asked before malloc, which promises what the system does not have.
  std::optional<uint64_t> wanted = need.arena_bytes;
  for (size_t i = 0; wanted && i < layout.layers.size(); ++i)
    wanted = checked_add(*wanted, kv_bytes(layout.layers[i], need.group_blocks[layout.group_of_layer[i]]));
  const uint64_t available = available_memory();
  if (!wanted || (available && *wanted > available))
    return fail(Code::out_of_memory, "reference: the KV cache and the arena want {} bytes, {} are available",
                wanted.value_or(UINT64_MAX), available);
  plans_.clear();
  layout_ = layout;
  group_blocks_ = need.group_blocks;
  ARGENT_TRY(arena_.allocate(need.arena_bytes, own_.poison, "arena"));
  kv_ = std::vector<Buffer>(2 * layout.layers.size());
  layers_.clear();
  for (size_t i = 0; i < layout.layers.size(); ++i) {
    const uint32_t group = layout.group_of_layer[i], n_blocks = group_blocks_[group];
    ARGENT_TRY(kv_[2 * i].allocate(n_blocks * k_block(layout.layers[i]), own_.poison, "KV cache"));
    ARGENT_TRY(kv_[2 * i + 1].allocate(n_blocks * v_block(layout.layers[i]), own_.poison, "KV cache"));
    layers_.push_back({kv_[2 * i].data(), kv_[2 * i + 1].data(), options_.kv_k, options_.kv_v, group});
  }
  return {};
}

Result<PlanId> ReferenceBackend::compile(Plan plan) {
  const Graph& graph = plan.graph;
  if (plan.offset.size() != graph.values.size()) return fail(Code::internal, "reference: the plan has no offsets");
  std::vector<const KvLayer*> states(graph.values.size(), nullptr);
  for (size_t id = 0; id < graph.values.size(); ++id) {
    const Value& v = graph.values[id];
    if (v.kind != ValueKind::state) continue;
    for (size_t i = 0; i < layers_.size(); ++i)
      if (layout_.layers[i] == v.kv) states[id] = &layers_[i];
    if (!states[id]) return fail(Code::internal, "reference: no cache was allocated for '{}'", v.name);
  }
  for (const Node& node : graph.nodes) {
    if (node.device != 0)
      return fail(Code::unsupported, "reference: a node of the plan runs on device {}", node.device);
    for (size_t k = 0; k < node.outputs.size(); ++k) {
      const Value& v = graph.value(node.outputs[k]);
      const uint64_t at = plan.offset[node.outputs[k]], bytes = activation_row_bytes(v) * plan.max_rows(v.rows);
      if (at == Plan::kNoOffset || at % 8 || at > arena_.size() || bytes > arena_.size() - at)
        return fail(Code::internal, "reference: '{}' is {} bytes at {} of an arena of {}", v.name, bytes, at,
                    arena_.size());
      if (k == 0 && node.in_place && at != plan.offset[node.inputs[size_t(info(node.op).in_place)]])
        return fail(Code::internal, "reference: '{}' is in place but lies elsewhere", v.name);
    }
  }
  StepRules rules = step_rules(plan, layout_, group_blocks_, kKvBlockTokens);
  plans_.push_back({std::move(plan), std::move(rules), std::move(states)});
  return PlanId(plans_.size() - 1);
}

Operand ReferenceBackend::operand(const Compiled& compiled, ValueId id, const Step& step) {
  const Value& v = compiled.plan.graph.value(id);
  const uint32_t n_rows = v.rows == Rows::tokens    ? uint32_t(step.tokens.size())
                          : v.rows == Rows::outputs ? uint32_t(step.output_rows.size())
                                                    : v.n_rows;
  switch (v.kind) {
    case ValueKind::weight:
      return {&v, nullptr, n_rows, nullptr};
    case ValueKind::state:
      return {&v, nullptr, 0, compiled.states[id]};
    case ValueKind::activation:
      return {&v, arena_.data() + compiled.plan.offset[id], n_rows, nullptr};
    case ValueKind::input:
      break;
  }
  if (v.input == Input::hidden)  // read only
    return {&v, reinterpret_cast<uint8_t*>(const_cast<float*>(step.hidden.data())), n_rows, nullptr};
  std::vector<int32_t>& from = v.input == Input::tokens      ? tokens_
                               : v.input == Input::positions ? positions_
                                                             : output_rows_;
  return {&v, reinterpret_cast<uint8_t*>(from.data()), n_rows, nullptr};
}

Result<Ticket> ReferenceBackend::run(PlanId id, const Step& step) {
  if (id >= plans_.size()) return fail(Code::internal, "reference: plan {} of {}", id, plans_.size());
  const Compiled& compiled = plans_[id];
  const Graph& graph = compiled.plan.graph;
  ARGENT_TRY(check_step(compiled.rules, step, sampled_slots_));
  for (const SampleParams& params : step.sampling) ARGENT_TRY(sample::check(params));

  tokens_ = step.tokens;
  positions_ = step.positions;
  output_rows_ = step.output_rows;
  for (int32_t& token : tokens_)
    if (token < 0)
      token = std::max(0, slots_[size_t(~token)]);  // -1, a failed row: any token, nobody will use the result
  if (own_.poison) arena_.fill_nan();

  const Context context{step, slots_, options_.activations, options_.int8_rows, pool_};
  std::vector<Operand> in, out;
  times_.clear();
  const auto origin = std::chrono::steady_clock::now();
  try {
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      const Node& node = graph.nodes[n];
      in.clear(), out.clear();
      for (ValueId v : node.inputs) in.push_back(operand(compiled, v, step));
      for (ValueId v : node.outputs) out.push_back(operand(compiled, v, step));
      const auto start = std::chrono::steady_clock::now();
      kFunctions[size_t(node.op)]({in, out, node.attrs, context});
      const auto spent = std::chrono::steady_clock::now() - start;
      if (profiling_)
        times_.push_back({uint32_t(n),
                          uint64_t(std::chrono::nanoseconds(spent).count()),
                          uint64_t(std::chrono::nanoseconds(start - origin).count()),
                          {}});
    }
  } catch (const std::bad_alloc&) {  // the functions' copies in double
    return fail(Code::out_of_memory, "reference: no memory for a step of {} rows", step.tokens.size());
  }

  for (Done& done : done_) done.logits = nullptr;
  Done& done = done_[++last_ % done_.size()];
  done = {last_, nullptr, 0, {}};
  if (graph.sampled != kNone) {
    const Operand sampled = operand(compiled, graph.sampled, step);
    done.sampled.assign(sampled.i32(0), sampled.i32(0) + sampled.n_rows);
    for (uint32_t r = 0; r < sampled.n_rows; ++r) {
      const uint32_t slot = step.sequences[step.row_sequence[context.token_row(*sampled.value, r)]].slot;
      if (slot >= slots_.size()) slots_.resize(slot + 1, -1), sampled_slots_.resize(slot + 1, 0);
      slots_[slot] = done.sampled[r];  // rows ascend: a sequence's last row has the last word
      sampled_slots_[slot] = 1;
    }
  }
  if (graph.logits != kNone) {
    const Operand logits = operand(compiled, graph.logits, step);
    done.logits = logits.f32(0);
    done.n_logits = size_t(logits.n_rows) * logits.value->width;
  }
  return last_;
}

Result<StepResult> ReferenceBackend::wait(Ticket ticket) {
  const Done& done = done_[ticket % done_.size()];
  if (ticket == 0 || done.ticket != ticket)
    return fail(Code::internal, "reference: no result of step {}, the last one is {}", ticket, last_);
  return StepResult{{done.logits, done.logits ? done.n_logits : 0}, done.sampled};
}

Status ReferenceBackend::copy_blocks(std::span<const KvCopy> copies) {
  for (const KvCopy& c : copies) {
    if (c.group >= group_blocks_.size())
      return fail(Code::internal, "reference: copy in layer group {} of {}", c.group, group_blocks_.size());
    const uint32_t n = group_blocks_[c.group];
    if (c.from < 0 || c.to < 0 || uint32_t(c.from) >= n || uint32_t(c.to) >= n)
      return fail(Code::internal, "reference: copy of block {} to {} in a pool of {}", c.from, c.to, n);
    for (size_t i = 0; i < layers_.size(); ++i) {
      if (layers_[i].group != c.group) continue;
      const uint64_t k = k_block(layout_.layers[i]), v = v_block(layout_.layers[i]);
      std::memmove(layers_[i].k + uint64_t(c.to) * k, layers_[i].k + uint64_t(c.from) * k, k);
      std::memmove(layers_[i].v + uint64_t(c.to) * v, layers_[i].v + uint64_t(c.from) * v, v);
    }
  }
  return {};
}

uint64_t ReferenceBackend::kv_block_bytes(uint32_t group) const {
  uint64_t sum = 0;
  for (size_t i = 0; i < layers_.size(); ++i)
    if (layers_[i].group == group) sum += k_block(layout_.layers[i]) + v_block(layout_.layers[i]);
  return sum;
}

Status ReferenceBackend::transfer(std::span<const KvTransfer> transfers, bool save) {
  for (const KvTransfer& t : transfers) {
    const uint32_t n_blocks = t.group < group_blocks_.size() ? group_blocks_[t.group] : 0;
    if (uint32_t(t.block) >= n_blocks)
      return fail(Code::internal, "reference: copy of block {} of {} in layer group {}", t.block, n_blocks, t.group);
    std::byte* host = t.host;
    for (size_t i = 0; i < layers_.size(); ++i) {
      if (layers_[i].group != t.group) continue;
      const std::pair<uint8_t*, uint64_t> parts[] = {{layers_[i].k, k_block(layout_.layers[i])},
                                                     {layers_[i].v, v_block(layout_.layers[i])}};
      for (const auto& [first, bytes] : parts) {
        uint8_t* block = first + uint64_t(t.block) * bytes;
        if (save)
          std::memcpy(host, block, bytes);
        else
          std::memcpy(block, host, bytes);
        host += bytes;
      }
    }
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Backend>> make_backend(const BackendOptions& options, const Options& own) {
  return std::unique_ptr<Backend>(std::make_unique<ReferenceBackend>(options, own));
}

}  // namespace argent::reference

namespace argent {

Result<std::unique_ptr<Backend>> make_reference_backend(const BackendOptions& options) {
  return reference::make_backend(options, {});
}

}  // namespace argent
