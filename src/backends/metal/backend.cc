#include "backends/metal/backend.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "backends/metal/encode_ops.h"
#include "backends/metal/hazards.h"
#include "backends/metal/policy.h"
#include "backends/metal/weights.h"
#include "base/checked.h"
#include "base/switches.h"
#include "graph/step_check.h"
#include "graph/storage.h"
#include "sample/params.h"

namespace argent::metal {
namespace {

constexpr size_t kMostLists = 16;            // shapes of steps that a plan keeps lists of
constexpr uint64_t kFirstKvBytes = 1 << 20;  // of the cache of a layer group, to begin with

class MetalBackend final : public Backend {
 public:
  MetalBackend(const BackendOptions& options, std::string name, std::unique_ptr<Device> device, Variants variants)
      : options_(options),
        name_(std::move(name)),
        device_(std::move(device)),
        info_(device_->info()),
        variants_(std::move(variants)) {}

  ~MetalBackend() override { (void)settle(); }  // buffers outlive the lists that use them

  std::string device_name() const override { return name_; }
  Kernel find(const Graph& graph, const Node& node) const override {
    std::string why = missing_kernel(graph, node);
    const bool there = why.empty();
    return {there, std::move(why)};
  }
  bool wants_fused(Op op) const override { return variants_.has(info(op).name); }
  uint64_t workspace(const Graph& graph, const Node& node, uint32_t n_rows) const override {
    const OpEncoder op = op_encoder(node.op);
    return op.workspace ? op.workspace(graph, node, n_rows, variants_) : 0;
  }
  BackendCaps caps() const override {
    return {.name = name_,
            .description = info_.description,
            .memory_free = device_->info().memory_free,
            .mapped_weights = true,
            .mapped_count = true};
  }

  // Weights are read where the file is mapped; what lies there so that no kernel could read it is copied.
  uint64_t weight_bytes(const Graph&, ValueId) const override { return 0; }
  uint64_t kv_bytes(const KvSpec& layer, uint32_t n_blocks) const override {
    return n_blocks * (k_bytes(layer) + v_bytes(layer));
  }

  Status load(const Graph& graph, WeightStorage storage, const std::function<bool(const Progress&)>& progress) override;
  Status allocate(const KvLayout& layout, const MemoryNeed& need) override;
  Result<PlanId> compile(Plan plan) override;
  Result<Ticket> run(PlanId plan, const Step& step) override;
  Result<StepResult> wait(Ticket ticket) override;
  Status copy_blocks(std::span<const KvCopy> copies) override;
  uint64_t kv_block_bytes(uint32_t group) const override { return block_bytes_[group]; }
  Status save_blocks(std::span<const KvTransfer> transfers) override;
  Status restore_blocks(std::span<const KvTransfer> transfers) override;
  std::string kv_format() const override {
    return fmt::format("{} {} {} without {}", name_, name_of(options_.kv_k), name_of(options_.kv_v),
                       fmt::join(variants_.without, ","));
  }

  void set_profile(bool on) override { profile_on_ = on; }
  std::span<const NodeTime> profile() const override { return times_; }

 private:
  struct Recorded {
    StepShape shape;
    CommandList list;  // a region a node
  };
  struct Compiled {
    Plan plan;
    StepRules rules;
    StepPolicy policy;
    std::vector<std::unique_ptr<Buffer>> constants;  // by node
    std::vector<Recorded> lists;                     // the latest last
  };

  uint64_t k_bytes(const KvSpec& layer) const {
    return align_up(kv_bytes_of(options_.kv_k, uint64_t(kKvBlockTokens) * layer.n_head_kv * layer.d_head), 64);
  }
  uint64_t v_bytes(const KvSpec& layer) const {
    return align_up(kv_bytes_of(options_.kv_v, uint64_t(kKvBlockTokens) * layer.n_head_kv * layer.d_value), 64);
  }
  Status record(const Compiled& compiled, const StepShape& shape, Recorded& out);
  Result<const Recorded*> recorded(Compiled& compiled, const StepShape& shape);
  Status run_profiled(const CommandList& list);
  Status settle();       // waits for what was submitted
  void forget_lists() {  // that name buffers which are no more
    for (const auto& plan : plans_) plan->lists.clear();
  }
  Status check_block(uint32_t group, int32_t block);
  Status have_block(uint32_t group, uint32_t block);
  Status have_blocks(const Step& step);
  std::span<const std::byte> block_at(uint32_t group, int32_t block) const {
    return kv_[group]->bytes().subspan(uint64_t(uint32_t(block)) * block_bytes_[group], block_bytes_[group]);
  }
  std::span<std::byte> fill_block(uint32_t group, int32_t block) const {
    return kv_[group]->fill(uint64_t(uint32_t(block)) * block_bytes_[group], block_bytes_[group]);
  }

  const BackendOptions options_;
  const std::string name_;
  std::unique_ptr<Device> device_;
  const DeviceInfo info_;
  const Variants variants_;
  Weights weights_;
  Memory memory_;
  std::vector<std::unique_ptr<Buffer>> kv_;  // by layer group
  std::vector<uint64_t> block_bytes_;        // by layer group: of a block, all its layers
  std::vector<uint64_t> n_there_;            // by layer group: blocks that have memory
  std::vector<uint32_t> group_blocks_;
  std::vector<std::unique_ptr<Compiled>> plans_;
  std::vector<uint8_t> slot_sampled_;
  const Compiled* running_ = nullptr;
  StepShape shape_;  // of the last step
  bool submitted_ = false;
  Ticket ticket_ = 0;
  bool profile_on_ = false;
  std::vector<NodeTime> times_;
};

Status MetalBackend::load(const Graph& graph, WeightStorage, const std::function<bool(const Progress&)>& progress) {
  ARGENT_LET(memory_.weights, weights_.load(*device_, info_, graph, progress));
  return {};
}

Status MetalBackend::allocate(const KvLayout& layout, const MemoryNeed& need) {
  ARGENT_TRY(check_kv_types(layout, options_.kv_k, options_.kv_v));
  if (need.group_blocks.size() != layout.windows.size())
    return fail(Code::internal, "{}: blocks of {} layer groups, the model has {}", name_, need.group_blocks.size(),
                layout.windows.size());
  ARGENT_TRY(settle());
  running_ = nullptr;
  plans_.clear();
  memory_.layout = layout;
  memory_.kv_k = options_.kv_k, memory_.kv_v = options_.kv_v;
  group_blocks_ = need.group_blocks;
  block_bytes_.assign(layout.windows.size(), 0);
  for (size_t i = 0; i < layout.layers.size(); ++i)
    block_bytes_[layout.group_of_layer[i]] += kv_bytes(layout.layers[i], 1);
  const DeviceInfo now = device_->info();  // weights count on some devices, and are there by now
  uint64_t wanted = need.arena_bytes;
  for (size_t g = 0; g < block_bytes_.size(); ++g) {
    const uint64_t bytes = group_blocks_[g] * block_bytes_[g];
    if (block_bytes_[g] > UINT32_MAX)
      return fail(Code::unsupported, "{}: a block of the KV cache has {} bytes, at most {}", name_, block_bytes_[g],
                  UINT32_MAX);
    if (bytes > now.max_buffer_bytes)
      return fail(Code::out_of_memory, "{}: the KV cache wants a buffer of {} bytes, the device's longest have {}",
                  name_, bytes, now.max_buffer_bytes);
    wanted += bytes;
  }
  if (now.memory_free && wanted > now.memory_free)
    return fail(Code::out_of_memory, "{}: the KV cache and the arena want {} bytes, {} are available", name_, wanted,
                now.memory_free);
  kv_.clear();
  kv_.resize(block_bytes_.size());
  n_there_.assign(block_bytes_.size(), 0);
  for (uint32_t g = 0; g < block_bytes_.size(); ++g)
    if (group_blocks_[g]) ARGENT_TRY(have_block(g, 0));
  ARGENT_LET(memory_.arena, device_->alloc(std::max<uint64_t>(need.arena_bytes, 64)));
  memory_.arena->set_label("arena");
  return {};
}

// The cache grows with its use, since a device keeps whole buffers in memory: to twice what is there, or, where there
// is no memory for that, as far as the block. Blocks are handed out from the first on. All or nothing.
Status MetalBackend::have_block(uint32_t group, uint32_t block) {
  if (block < n_there_[group]) return {};
  const uint64_t n = std::min<uint64_t>(
      group_blocks_[group], std::max<uint64_t>({2 * n_there_[group], block + 1, kFirstKvBytes / block_bytes_[group]}));
  ARGENT_TRY(settle());
  auto made = device_->alloc(n * block_bytes_[group]);
  if (!made) made = device_->alloc((uint64_t(block) + 1) * block_bytes_[group]);
  if (!made) return made.error();
  std::unique_ptr<Buffer> longer = *std::move(made);
  longer->set_label(fmt::format("KV cache {}", group));
  if (kv_[group]) {
    const auto kept = kv_[group]->bytes();
    std::memcpy(longer->fill(0, kept.size()).data(), kept.data(), kept.size());
  }
  std::vector<uint64_t> there = n_there_, begin(block_bytes_.size(), 0);
  there[group] = longer->bytes().size() / block_bytes_[group];
  std::vector<KvPlace> places;
  for (size_t i = 0; i < memory_.layout.layers.size(); ++i) {
    const KvSpec& spec = memory_.layout.layers[i];
    const uint32_t g = memory_.layout.group_of_layer[i];
    const Buffer* blocks = g == group ? longer.get() : kv_[g].get();
    const uint64_t before_last = there[g] ? (there[g] - 1) * block_bytes_[g] : 0;
    const uint64_t k = begin[g], v = k + k_bytes(spec);
    places.push_back({g,
                      {blocks, k, before_last + k_bytes(spec)},
                      {blocks, v, before_last + v_bytes(spec)},
                      uint32_t(block_bytes_[g])});
    begin[g] += kv_bytes(spec, 1);
  }
  forget_lists();
  kv_[group] = std::move(longer);
  n_there_ = std::move(there);
  memory_.kv = std::move(places);
  return {};
}

// Every block that a step writes; those that it reads have been written.
Status MetalBackend::have_blocks(const Step& step) {
  for (const StepSequence& s : step.sequences)
    for (uint32_t g = 0; g < s.tables.size(); ++g)
      for (uint32_t i = s.length / kKvBlockTokens; i <= (s.length + s.n_rows - 1) / kKvBlockTokens; ++i)
        ARGENT_TRY(have_block(g, uint32_t(s.tables[g][i])));
  return {};
}

Result<PlanId> MetalBackend::compile(Plan plan) {
  const Graph& graph = plan.graph;
  if (plan.arena_bytes.size() != 1 || !memory_.arena || plan.arena_bytes[0] > memory_.arena->bytes().size())
    return fail(Code::internal, "{}: the plan wants an arena of {} bytes", name_,
                plan.arena_bytes.empty() ? 0 : plan.arena_bytes[0]);
  for (const Value& v : graph.values)
    if (v.kind == ValueKind::state &&
        std::find(memory_.layout.layers.begin(), memory_.layout.layers.end(), v.kv) == memory_.layout.layers.end())
      return fail(Code::internal, "{}: no cache was allocated for '{}'", name_, v.name);
  for (const Node& node : graph.nodes)
    for (const ValueId id : node.outputs)  // kernels count elements in 32 bits
      if (const Value& v = graph.value(id); uint64_t(plan.max_rows(v.rows)) * v.width > UINT32_MAX)
        return fail(Code::unsupported, "{}: {} rows of {} have more than 2^32 elements", name_, plan.max_rows(v.rows),
                    describe(v));
  ARGENT_TRY(settle());
  uint64_t hidden = 0;
  for (const Value& v : graph.values)
    if (v.kind == ValueKind::input && v.input == Input::hidden) hidden = 4 * uint64_t(plan.max_rows(v.rows)) * v.width;
  ARGENT_TRY(memory_.step.fit(*device_, memory_.layout, plan.key.n_tokens, plan.key.n_outputs, hidden));
  if (memory_.step.take_moved()) forget_lists();
  auto compiled = std::make_unique<Compiled>();
  compiled->rules = step_rules(plan, memory_.layout, group_blocks_, kKvBlockTokens);
  compiled->policy = {plan.key.n_tokens,
                      plan.key.n_outputs,
                      variants_.has("split"),
                      variants_.has("flash"),
                      0,
                      std::vector<bool>(memory_.step.n_lists())};
  for (const Node& node : graph.nodes)
    if (node.op == Op::attention) compiled->policy.lists[attention_lists(graph, node, memory_)] = true;
  if (graph.sampled != kNone)
    for (const Node& node : graph.nodes)
      if (node.op == Op::adjust || node.op == Op::argmax || node.op == Op::top_k)
        compiled->policy.n_vocab = graph.value(node.inputs[0]).width;
  compiled->plan = std::move(plan);
  for (const Node& node : compiled->plan.graph.nodes) {
    compiled->constants.emplace_back();
    const auto make = op_encoder(node.op).constants;
    if (!make) continue;
    const std::vector<std::byte> bytes = make(compiled->plan.graph, node);
    ARGENT_LET(compiled->constants.back(), device_->alloc(bytes.size()));
    std::memcpy(compiled->constants.back()->fill(0, bytes.size()).data(), bytes.data(), bytes.size());
  }
  // Pipelines are made now, and what does not fit is found: of one row, of few, and of many.
  const uint32_t most = compiled->plan.key.n_tokens;
  for (const uint32_t n : {1u, std::min(most, kTokensAtOnce), most}) {
    Recorded recorded;
    const uint32_t n_outputs = compiled->plan.key.all_rows ? n : std::min(n, compiled->plan.key.n_outputs);
    StepShape shape{n, n_outputs, true, true, {}};
    shape.attention.assign(memory_.step.n_lists(), {1, 1, n > kDecodeRows ? 1u : 0u});
    ARGENT_TRY(record(*compiled, shape, recorded));
  }
  plans_.push_back(std::move(compiled));
  return PlanId(plans_.size() - 1);
}

Status MetalBackend::record(const Compiled& compiled, const StepShape& shape, Recorded& out) {
  out.shape = shape;
  out.list.label = fmt::format("{} rows", shape.n_tokens);
  Encoder encoder(*device_, compiled.plan, memory_, shape, variants_, compiled.constants, out.list);
  ARGENT_TRY(encoder.begin());
  for (size_t n = 0; n < compiled.plan.graph.nodes.size(); ++n) {
    ARGENT_TRY(encoder.encode(n));
    const Node& node = compiled.plan.graph.nodes[n];
    out.list.regions.push_back({out.list.dispatches.size(), info(node.op).name, node.layer});
  }
  ARGENT_TRY(encoder.end());
  if (!out.list.regions.empty()) out.list.regions.back().end = out.list.dispatches.size();
  set_barriers(out.list);
  return {};
}

Result<const MetalBackend::Recorded*> MetalBackend::recorded(Compiled& compiled, const StepShape& shape) {
  auto& lists = compiled.lists;
  const auto found = std::find_if(lists.begin(), lists.end(), [&](const Recorded& r) { return r.shape == shape; });
  if (found == lists.end()) {
    Recorded made;
    ARGENT_TRY(record(compiled, shape, made));
    if (lists.size() == kMostLists) lists.erase(lists.begin());
    lists.push_back(std::move(made));
  } else {
    std::rotate(found, found + 1, lists.end());
  }
  return &lists.back();
}

Result<Ticket> MetalBackend::run(PlanId id, const Step& step) {
  if (id >= plans_.size()) return fail(Code::internal, "{}: no plan {}", name_, id);
  Compiled& compiled = *plans_[id];
  ARGENT_TRY(check_step(compiled.rules, step, slot_sampled_));
  for (const SampleParams& params : step.sampling) ARGENT_TRY(sample::check(params));
  ARGENT_TRY(settle());
  running_ = nullptr;
  ARGENT_TRY(have_blocks(step));
  const Status written = memory_.step.write(*device_, step, compiled.policy, shape_);
  if (memory_.step.take_moved()) forget_lists();
  ARGENT_TRY(written);
  ARGENT_LET(const Recorded* list, recorded(compiled, shape_));
  running_ = &compiled;
  if (profile_on_) {
    ARGENT_TRY(run_profiled(list->list));
  } else {
    ARGENT_TRY(device_->submit(list->list));
    submitted_ = true;
  }
  if (compiled.plan.graph.sampled != kNone)
    for (const int32_t row : step.output_rows) {
      const uint32_t slot = step.sequences[step.row_sequence[uint32_t(row)]].slot;
      if (slot >= slot_sampled_.size()) slot_sampled_.resize(slot + 1, 0);
      slot_sampled_[slot] = 1;
    }
  return ++ticket_;
}

// A node's time is the sum of its dispatches': what lies between two of them is not the kernels'.
Status MetalBackend::run_profiled(const CommandList& list) {
  times_.clear();
  ARGENT_LET(const std::vector<GpuTime> times, device_->run_timed(list));
  const auto nanoseconds = [](double seconds) { return uint64_t(std::llround(1e9 * seconds)); };
  size_t i = 0;
  double end = 0;  // of the dispatch before
  for (uint32_t n = 0; n < list.regions.size(); ++n) {
    const double begin = i < list.regions[n].end ? times[i].begin : end;
    double seconds = 0;
    for (; i < list.regions[n].end; ++i) {
      seconds += times[i].seconds;
      end = times[i].begin + times[i].seconds;
    }
    times_.push_back({n, nanoseconds(seconds), nanoseconds(begin), {}});
  }
  return {};
}

Status MetalBackend::settle() {
  if (!std::exchange(submitted_, false)) return {};
  return device_->wait();
}

Result<StepResult> MetalBackend::wait(Ticket ticket) {
  if (ticket != ticket_ || !running_)
    return fail(Code::internal, "{}: ticket {} is not the last step's", name_, ticket);
  if (const Status settled = settle(); !settled) {
    running_ = nullptr;  // there is no result to ask for again
    return settled.error();
  }
  const Plan& plan = running_->plan;
  StepResult result;
  const std::byte* arena = memory_.arena->bytes().data();
  if (plan.graph.logits != kNone)
    result.logits = {reinterpret_cast<const float*>(arena + plan.offset[plan.graph.logits]),
                     size_t(shape_.n_outputs) * plan.graph.value(plan.graph.logits).width};
  if (plan.graph.sampled != kNone)
    result.sampled = {reinterpret_cast<const int32_t*>(arena + plan.offset[plan.graph.sampled]), shape_.n_outputs};
  return result;
}

Status MetalBackend::check_block(uint32_t group, int32_t block) {
  const uint32_t n_blocks = group < group_blocks_.size() ? group_blocks_[group] : 0;
  if (uint32_t(block) < n_blocks) return have_block(group, uint32_t(block));
  return fail(Code::internal, "{}: block {} of {} in layer group {}", name_, block, n_blocks, group);
}

Status MetalBackend::copy_blocks(std::span<const KvCopy> copies) {
  ARGENT_TRY(settle());
  for (const KvCopy& c : copies) {
    ARGENT_TRY(check_block(c.group, c.from));
    ARGENT_TRY(check_block(c.group, c.to));
    std::memmove(fill_block(c.group, c.to).data(), block_at(c.group, c.from).data(), block_bytes_[c.group]);
  }
  return {};
}

Status MetalBackend::save_blocks(std::span<const KvTransfer> transfers) {
  ARGENT_TRY(settle());
  for (const KvTransfer& t : transfers) {
    ARGENT_TRY(check_block(t.group, t.block));
    std::memcpy(t.host, block_at(t.group, t.block).data(), block_bytes_[t.group]);
  }
  return {};
}

Status MetalBackend::restore_blocks(std::span<const KvTransfer> transfers) {
  ARGENT_TRY(settle());
  for (const KvTransfer& t : transfers) {
    ARGENT_TRY(check_block(t.group, t.block));
    std::memcpy(fill_block(t.group, t.block).data(), t.host, block_bytes_[t.group]);
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Backend>> make_backend(const BackendOptions& options, std::string name,
                                              std::unique_ptr<Device> device, std::string_view without) {
  Variants variants;
  variants.kv_k = options.kv_k, variants.kv_v = options.kv_v;
  std::vector<std::string_view> known(std::begin(kFamilies), std::end(kFamilies));
  for (size_t op = size_t(Op::norm_mul); op < kOps; ++op) known.push_back(info(Op(op)).name);
  while (!without.empty()) {
    const size_t end = std::min(without.find(','), without.size());
    const std::string_view one = without.substr(0, end);
    if (std::find(known.begin(), known.end(), one) == known.end())
      return fail(Code::invalid, "ARGENT_METAL_WITHOUT: there is no '{}' to leave out, there are {}", one,
                  fmt::join(known, ", "));
    variants.without.emplace_back(one);
    without.remove_prefix(std::min(end + 1, without.size()));
  }
  return std::unique_ptr<Backend>(
      std::make_unique<MetalBackend>(options, std::move(name), std::move(device), std::move(variants)));
}

}  // namespace argent::metal
