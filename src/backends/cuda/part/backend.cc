#include "backends/cuda/part/backend.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

#include "backends/cuda/part/encode.h"
#include "backends/cuda/part/encode_graph.h"
#include "backends/cuda/part/peaks.h"
#include "base/checked.h"
#include "base/switches.h"
#include "graph/rope_frequencies.h"
#include "graph/step_check.h"
#include "sample/params.h"

namespace argent::cuda {
namespace {

constexpr uint64_t kKvAlignment = 128;                // of a layer's K and V in a block
constexpr uint64_t kSpareLogits = 64 << 20;           // pinned memory for logits grows to twice the need, up to here
constexpr std::chrono::milliseconds kHoldAtMost{20};  // of a profiled step's first kernel
// Of the device's memory, for what no plan knows: graphs, kernels, buffers that grow with the steps, weights on their
// way.
constexpr uint64_t kOwnBytes = 256 << 20;
constexpr std::string_view kFamilies[] = {"graphs", "dependent", "folds", "wgmma", "ahead"};

struct Options {
  std::vector<std::string> without;
  bool has(std::string_view name) const { return std::find(without.begin(), without.end(), name) == without.end(); }
};

class CudaBackend final : public Backend {
 public:
  CudaBackend(const BackendOptions& options, Options own, std::unique_ptr<Device> device)
      : options_(options), own_(std::move(own)), device_(std::move(device)) {
    launch_options_ = {own_.has("dependent") && device_->compute_capability() >= 90, own_.has("wgmma")};
    resources_.kv_k = options.kv_k, resources_.kv_v = options.kv_v;
  }
  ~CudaBackend() override {
    (void)device_->finish();  // hold() looks at go_
  }

  std::string device_name() const override { return device_->name(); }
  Kernel find(const Graph& graph, const Node& node) const override {
    std::string why = missing_kernel(graph, node);
    const bool there = why.empty();
    return {there, std::move(why)};
  }
  bool wants_fused(Op op) const override { return own_.has(info(op).name); }
  uint64_t workspace(const Graph& graph, const Node& node, uint32_t n_rows) const override {
    const OpEncoder op = op_encoder(node.op);
    return op.workspace ? op.workspace(graph, node, n_rows) : 0;
  }
  BackendCaps caps() const override {
    const uint64_t free = device_->memory_free();
    BackendCaps caps;
    caps.name = device_->name(), caps.description = device_->description();
    caps.memory_free = free > kOwnBytes ? free - kOwnBytes : std::min<uint64_t>(free, 1);
    caps.resident_weights = caps.own_memory = true;
    caps.runs_ahead = own_.has("ahead");
    return caps;
  }

  uint64_t weight_bytes(const Graph& graph, ValueId weight) const override {
    return cuda::weight_bytes(graph.value(weight), weight_uses(graph)[weight]);
  }
  uint64_t kv_bytes(const KvSpec& layer, uint32_t n_blocks) const override {
    return n_blocks * (k_bytes(layer) + v_bytes(layer));
  }

  uint64_t step_bytes(const Plan& plan) const override {
    const KvLayout layout = kv_layout(plan.graph);
    const auto info = plan_info(plan, layout, options_.kv_k, options_.kv_v, own_.has("folds"));
    return (info ? info->q8_bytes : 0) + StepBuffers::bytes(plan.key, layout.windows.size());
  }
  uint64_t allocated_bytes() const override { return device_->allocated(); }

  Status load(const Graph& graph, WeightStorage storage, const std::function<bool(const Progress&)>& progress) override;
  Status allocate(const KvLayout& layout, const MemoryNeed& need) override;
  Result<PlanId> compile(Plan plan) override;
  Result<Ticket> run(PlanId plan, const Step& step) override;
  Result<StepResult> wait(Ticket ticket) override;
  Status copy_blocks(std::span<const KvCopy> copies) override;
  uint64_t kv_block_bytes(uint32_t group) const override {
    return group < block_bytes_.size() ? block_bytes_[group] : 0;
  }
  Status save_blocks(std::span<const KvTransfer> transfers) override { return transfer(transfers, true); }
  Status restore_blocks(std::span<const KvTransfer> transfers) override { return transfer(transfers, false); }
  std::string kv_format() const override {
    return fmt::format("cuda {} {} {} without {}", device_->compute_capability(), name_of(options_.kv_k),
                       name_of(options_.kv_v), fmt::join(own_.without, ","));
  }

  void set_profile(bool on) override {
    profile_on_ = on;
    if (!on) times_.clear();
  }
  std::span<const NodeTime> profile() const override { return times_; }
  DevicePeaks measure_peaks() override {
    return device_->use() && device_->finish() ? cuda::measure_peaks(*device_) : DevicePeaks{};
  }

 private:
  using Clock = std::chrono::steady_clock;
  struct Compiled {
    Plan plan;
    StepRules rules;
    PlanInfo info;
    std::vector<Memory> constants;
    Graphs graphs;
  };
  // A step on its way, or the result of one.
  struct Running {
    Ticket ticket = 0;
    const Compiled* plan = nullptr;  // null: there is no result
    uint32_t n_outputs = 0;
    Event done;
    bool pending = false;  // it may be under way
    bool marked = false;   // done is behind it
    Memory sampled;        // pinned
  };

  uint64_t k_bytes(const KvSpec& layer) const {
    return align_up(kv_bytes_of(options_.kv_k, uint64_t(kKvBlockTokens) * layer.n_head_kv * layer.d_head),
                    kKvAlignment);
  }
  uint64_t v_bytes(const KvSpec& layer) const {
    return align_up(kv_bytes_of(options_.kv_v, uint64_t(kKvBlockTokens) * layer.n_head_kv * layer.d_value),
                    kKvAlignment);
  }
  void forget();                    // everything that steps run on but the weights
  Status settle(Running& running);  // waits for its step
  // Makes device memory that steps share at least so large; what it held is lost, and so is what was captured.
  Status grow(Memory& memory, uint64_t bytes, std::string_view what);
  Status make_room(const Compiled& compiled, Running& running);
  Status launch(Compiled& compiled, Clock::time_point begin);
  Status run_profiled(const Compiled& compiled, Clock::time_point begin);
  Status fetch(const Compiled& compiled, Running& running);
  Status check_block(uint32_t group, int32_t block) const;
  Status transfer(std::span<const KvTransfer> transfers, bool save);
  uint8_t* block_at(uint32_t group, int32_t block) const {
    return kv_[group].data() + uint64_t(uint32_t(block)) * block_bytes_[group];
  }

  const BackendOptions options_;
  const Options own_;
  const std::unique_ptr<Device> device_;  // outlives all memory
  LaunchOptions launch_options_;
  Resources resources_;
  std::vector<Memory> kv_;             // by layer group
  std::vector<uint64_t> block_bytes_;  // by layer group: of a block, all its layers
  std::vector<uint32_t> group_blocks_;
  uint64_t arena_bytes_ = 0;
  std::vector<std::unique_ptr<Compiled>> plans_;
  uint64_t generation_ = 0, captured_generation_ = 0;  // of memory that captured launches name
  std::vector<uint8_t> slot_sampled_;
  std::array<Running, StepBuffers::kSteps> running_;  // by ticket
  Memory logits_;                                     // pinned: of the last step
  Ticket ticket_ = 0;
  bool profile_on_ = false;
  std::vector<Event> marks_;  // profile: before the first node, after each
  std::atomic<bool> go_ = false;
  std::vector<NodeTime> times_;
};

Status CudaBackend::load(const Graph& graph, WeightStorage storage,
                         const std::function<bool(const Progress&)>& progress) {
  if (storage != WeightStorage::resident)
    return fail(Code::unsupported, "{}: weights are in the device's memory, not in the file's mapping",
                device_->name());
  ARGENT_TRY(device_->use());
  forget();  // plans name weights
  return resources_.weights.load(*device_, launch_options_.dependent, graph, progress);
}

Status CudaBackend::allocate(const KvLayout& layout, const MemoryNeed& need) {
  ARGENT_TRY(device_->use());
  ARGENT_TRY(check_kv_types(layout, options_.kv_k, options_.kv_v));
  if (need.group_blocks.size() != layout.windows.size())
    return fail(Code::internal, "{}: blocks of {} layer groups, the model has {}", device_->name(),
                need.group_blocks.size(), layout.windows.size());
  forget();
  // What is made here becomes the backend's when all of it is there.
  std::vector<uint64_t> block_bytes(layout.windows.size(), 0);
  for (size_t i = 0; i < layout.layers.size(); ++i)
    block_bytes[layout.group_of_layer[i]] += kv_bytes(layout.layers[i], 1);
  uint64_t kv_wanted = 0;
  for (size_t g = 0; g < block_bytes.size(); ++g) kv_wanted += need.group_blocks[g] * block_bytes[g];
  if (const uint64_t free = device_->memory_free(); free && kv_wanted + need.arena_bytes > free)
    return fail(Code::out_of_memory, "{}: the KV cache wants {} bytes and the arena {}, {} are free", device_->name(),
                kv_wanted, need.arena_bytes, free);
  std::vector<Memory> kv;
  for (size_t g = 0; g < block_bytes.size(); ++g) {
    const uint64_t bytes = need.group_blocks[g] * block_bytes[g];
    ARGENT_LET(Memory blocks, Memory::of_device(*device_, bytes, "KV cache"));
    // Attention reads whole blocks and masks what no sequence has written, which must be no NaN.
    ARGENT_TRY(device_->check(cudaMemsetAsync(blocks.data(), 0, bytes, device_->stream()), "cudaMemsetAsync (KV)"));
    kv.push_back(std::move(blocks));
  }
  std::vector<KvPlace> places;
  std::vector<uint64_t> begin(block_bytes.size(), 0);
  for (size_t i = 0; i < layout.layers.size(); ++i) {
    const KvSpec& spec = layout.layers[i];
    const uint32_t g = layout.group_of_layer[i];
    uint8_t* const k = kv[g].data() + begin[g];
    places.push_back({k, k + k_bytes(spec), block_bytes[g], options_.kv_k, options_.kv_v, spec.n_head_kv, spec.d_head,
                      spec.d_value});
    begin[g] += kv_bytes(spec, 1);
  }
  ARGENT_LET(resources_.arena, Memory::of_device(*device_, need.arena_bytes, "arena"));
  arena_bytes_ = need.arena_bytes;
  kv_ = std::move(kv), resources_.kv = std::move(places);
  block_bytes_ = std::move(block_bytes), group_blocks_ = need.group_blocks;
  resources_.layout = layout;
  resources_.step.set_layout(layout);
  return {};
}

Result<PlanId> CudaBackend::compile(Plan plan) {
  ARGENT_TRY(device_->use());
  const Graph& graph = plan.graph;
  if (plan.arena_bytes.size() != 1 || !resources_.arena || plan.arena_bytes[0] > arena_bytes_)
    return fail(Code::internal, "{}: the plan wants an arena of {} bytes, {} were allocated", device_->name(),
                plan.arena_bytes.empty() ? 0 : plan.arena_bytes[0], arena_bytes_);
  if (graph.sampled != kNone && plan.key.n_outputs > kMostGrid)
    return fail(Code::unsupported, "{}: {} rows that sample, at most {}", device_->name(), plan.key.n_outputs,
                kMostGrid);
  for (ValueId id = 0; id < graph.values.size(); ++id)
    if (graph.value(id).kind == ValueKind::weight && !resources_.weights.has(id))
      return fail(Code::internal, "{}: no weights were loaded for '{}'", device_->name(), graph.value(id).name);
  for (const Node& node : graph.nodes) {
    if (const std::string why = missing_kernel(graph, node); !why.empty()) return fail(Code::unsupported, "{}", why);
    for (const ValueId id : node.outputs)  // kernels count elements in 32 bits
      if (const Value& v = graph.value(id); uint64_t(plan.max_rows(v.rows)) * v.width > UINT32_MAX)
        return fail(Code::unsupported, "{}: {} rows of {} have more than 2^32 elements", device_->name(),
                    plan.max_rows(v.rows), describe(v));
  }
  auto compiled = std::make_unique<Compiled>();
  ARGENT_LET(compiled->info, plan_info(plan, resources_.layout, options_.kv_k, options_.kv_v, own_.has("folds")));
  ARGENT_TRY(grow(resources_.q8, compiled->info.q8_bytes, "int8 activations"));
  ARGENT_TRY(grow(resources_.squares, sizeof(float) * kMostNorm / kNormPiece, "sums of squares"));
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    if (node.op != Op::rope_table) continue;
    const float* factors = node.inputs.size() == 2 ? resources_.weights.factors(node.inputs[1]).data() : nullptr;
    const std::vector<double> base = argent::RopeFrequencies(node.attrs, factors).radians();
    ARGENT_LET(Memory memory, Memory::of_device(*device_, sizeof(double) * base.size(), "frequencies of rope"));
    ARGENT_TRY(device_->check(cudaMemcpyAsync(memory.data(), base.data(), sizeof(double) * base.size(),
                                              cudaMemcpyHostToDevice, device_->stream()),
                              "cudaMemcpyAsync (rope)"));
    compiled->info.rope[n] = reinterpret_cast<const double*>(memory.data());
    compiled->constants.push_back(std::move(memory));
  }
  compiled->rules = step_rules(plan, resources_.layout, group_blocks_, kKvBlockTokens);
  compiled->plan = std::move(plan);
  plans_.push_back(std::move(compiled));
  return PlanId(plans_.size() - 1);
}

void CudaBackend::forget() {
  for (Running& running : running_) running.plan = nullptr;
  plans_.clear();
  kv_.clear(), resources_.kv.clear();
  block_bytes_.clear(), group_blocks_.clear();
  resources_.arena = {};
}

Status CudaBackend::settle(Running& running) {
  if (!std::exchange(running.pending, false)) return {};
  const Status ended = running.marked ? device_->wait(running.done.get()) : device_->finish();
  if (!ended) running.plan = nullptr;  // there is no result to ask for again
  return ended;
}

Status CudaBackend::grow(Memory& memory, uint64_t bytes, std::string_view what) {
  if (bytes <= memory.size()) return {};
  memory = {};
  ++generation_;
  ARGENT_LET(Memory made, Memory::of_device(*device_, bytes, what));
  // Kernels read whole eights of rows, also of those that are not there.
  ARGENT_TRY(device_->check(cudaMemsetAsync(made.data(), 0, bytes, device_->stream()), "cudaMemsetAsync"));
  memory = std::move(made);
  return {};
}

// For a step that has been written.
Status CudaBackend::make_room(const Compiled& compiled, Running& running) {
  const StepBuffers& step = resources_.step;
  uint64_t partial = 0;
  for (size_t i = 0; i < compiled.info.partial_bytes.size(); ++i)
    partial = std::max(partial, compiled.info.partial_bytes[i] * step.n_slots_of_lists()[i]);
  // Sequences grow step by step.
  if (partial > resources_.partial.size()) ARGENT_TRY(grow(resources_.partial, 2 * partial, "partial results"));
  ARGENT_TRY(grow(resources_.q8, compiled.info.q8_bytes, "int8 activations"));
  if (const uint64_t now = generation_ + step.generation(); now != captured_generation_) {
    for (const auto& plan : plans_) plan->graphs.forget();
    captured_generation_ = now;
  }

  const Graph& graph = compiled.plan.graph;
  const uint64_t n = running.n_outputs;
  if (!running.done.get()) {
    ARGENT_LET(running.done, Event::make(*device_));
  }
  if (graph.sampled != kNone && 4 * n > running.sampled.size()) {
    ARGENT_LET(running.sampled, Memory::pinned(*device_, std::max<uint64_t>(1024, 8 * n), "sampled tokens"));
  }
  if (graph.logits == kNone) return {};
  if (const uint64_t bytes = 4 * n * graph.value(graph.logits).width; bytes > logits_.size()) {
    logits_ = {};
    ARGENT_LET(logits_, Memory::pinned(*device_, std::max(bytes, std::min(2 * bytes, kSpareLogits)), "logits"));
  }
  return {};
}

Status CudaBackend::launch(Compiled& compiled, Clock::time_point begin) {
  if (profile_on_) return run_profiled(compiled, begin);
  const auto encode = [&](Launch& launch) { Encoder(compiled.plan, compiled.info, resources_, launch).all(); };
  const StepShape& shape = resources_.step.shape();
  if (own_.has("graphs") && shape.n_tokens <= kCapturedRows)
    return compiled.graphs.run(*device_, shape, launch_options_, encode);
  Launch launch(device_->stream(), launch_options_);
  encode(launch);
  return device_->check(launch);
}

// Holds the stream until all launches are there, so that no node's time is what launching takes; not for ever, since
// launches wait when there are too many.
void CUDART_CB hold(void* go) {
  const auto begin = std::chrono::steady_clock::now();
  while (!static_cast<const std::atomic<bool>*>(go)->load() && std::chrono::steady_clock::now() - begin < kHoldAtMost)
    std::this_thread::yield();
}

// Node after node, each one ended before the next begins, by the device's clock.
Status CudaBackend::run_profiled(const Compiled& compiled, Clock::time_point begin) {
  const size_t n_nodes = compiled.plan.graph.nodes.size();
  while (marks_.size() < n_nodes + 1) {
    ARGENT_LET(Event mark, Event::make(*device_, true));
    marks_.push_back(std::move(mark));
  }
  Launch launch(device_->stream(), {.dependent = false, .wide = launch_options_.wide});
  Encoder encoder(compiled.plan, compiled.info, resources_, launch);
  go_ = false;
  ARGENT_TRY(device_->check(cudaLaunchHostFunc(device_->stream(), hold, &go_), "cudaLaunchHostFunc"));
  const auto encode = [&]() -> Status {
    ARGENT_TRY(marks_[0].record(*device_));
    encoder.begin();
    for (size_t n = 0; n < n_nodes; ++n) {
      encoder.encode(n);
      if (n + 1 == n_nodes) encoder.end();
      ARGENT_TRY(device_->check(launch));
      ARGENT_TRY(marks_[n + 1].record(*device_));
    }
    return {};
  };
  const Status encoded = encode();
  go_ = true;
  const auto start = Clock::now();
  ARGENT_TRY(encoded);
  ARGENT_TRY(device_->wait(marks_[n_nodes].get()));
  times_.clear();
  float before = 0;
  for (size_t n = 0; n < n_nodes; ++n) {
    float after = 0;  // milliseconds
    ARGENT_TRY(
        device_->check(cudaEventElapsedTime(&after, marks_[0].get(), marks_[n + 1].get()), "cudaEventElapsedTime"));
    const auto nanoseconds = [](float ms) { return uint64_t(1e6 * double(ms)); };
    const uint64_t waited = uint64_t(std::chrono::nanoseconds(start - begin).count());
    times_.push_back({uint32_t(n), nanoseconds(after - before), waited + nanoseconds(before), {}});
    before = after;
  }
  return {};
}

// The results to pinned memory.
Status CudaBackend::fetch(const Compiled& compiled, Running& running) {
  const Plan& plan = compiled.plan;
  if (running.n_outputs == 0) return {};
  const auto copy = [&](ValueId id, uint64_t width, const Memory& to) {
    return device_->check(cudaMemcpyAsync(to.data(), resources_.arena.data() + plan.offset[id],
                                          4 * width * running.n_outputs, cudaMemcpyDeviceToHost, device_->stream()),
                          "cudaMemcpyAsync (results)");
  };
  if (plan.graph.logits != kNone)
    ARGENT_TRY(copy(plan.graph.logits, plan.graph.value(plan.graph.logits).width, logits_));
  if (plan.graph.sampled == kNone) return {};
  Launch launch(device_->stream(), {.dependent = false});
  copy_words(launch, reinterpret_cast<const uint32_t*>(resources_.arena.data() + plan.offset[plan.graph.sampled]),
             reinterpret_cast<uint32_t*>(running.sampled.data()), running.n_outputs);
  return device_->check(launch);
}

Result<Ticket> CudaBackend::run(PlanId id, const Step& step) {
  const auto begin = Clock::now();
  ARGENT_TRY(device_->use());
  if (id >= plans_.size()) return fail(Code::internal, "{}: no plan {}", device_->name(), id);
  Compiled& compiled = *plans_[id];
  ARGENT_TRY(check_step(compiled.rules, step, slot_sampled_));
  for (const SampleParams& params : step.sampling) ARGENT_TRY(sample::check(params));
  const uint32_t at = uint32_t((ticket_ + 1) % running_.size());
  Running& running = running_[at];
  ARGENT_TRY(settle(running));
  running.plan = nullptr;
  running.n_outputs = uint32_t(step.output_rows.size());
  ARGENT_TRY(resources_.step.write(*device_, step, compiled.info.policy, at));
  ARGENT_TRY(make_room(compiled, running));
  running.pending = true, running.marked = false;
  const auto start = [&]() -> Status {
    ARGENT_TRY(resources_.step.send(*device_, at));
    ARGENT_TRY(launch(compiled, begin));
    return fetch(compiled, running);
  };
  const Status started = start();
  // What was started before an error still reads and writes.
  const Status recorded = running.done.record(*device_);
  running.marked = bool(recorded);
  ARGENT_TRY(started);
  ARGENT_TRY(recorded);
  running.plan = &compiled;
  running.ticket = ++ticket_;
  if (compiled.plan.graph.sampled != kNone)
    for (const int32_t row : step.output_rows) {
      const uint32_t slot = step.sequences[step.row_sequence[uint32_t(row)]].slot;
      if (slot >= slot_sampled_.size()) slot_sampled_.resize(slot + 1, 0);
      slot_sampled_[slot] = 1;
    }
  return ticket_;
}

Result<StepResult> CudaBackend::wait(Ticket ticket) {
  ARGENT_TRY(device_->use());
  Running& running = running_[ticket % running_.size()];
  if (running.ticket != ticket || !running.plan)
    return fail(Code::internal, "{}: ticket {} is none of the last steps'", device_->name(), ticket);
  ARGENT_TRY(settle(running));
  const Graph& graph = running.plan->plan.graph;
  StepResult result;
  if (graph.logits != kNone && ticket == ticket_)
    result.logits = {reinterpret_cast<const float*>(logits_.data()),
                     size_t(running.n_outputs) * graph.value(graph.logits).width};
  if (graph.sampled != kNone)
    result.sampled = {reinterpret_cast<const int32_t*>(running.sampled.data()), running.n_outputs};
  return result;
}

Status CudaBackend::check_block(uint32_t group, int32_t block) const {
  const uint32_t n_blocks = group < group_blocks_.size() ? group_blocks_[group] : 0;
  if (uint32_t(block) < n_blocks) return {};
  return fail(Code::internal, "{}: block {} of {} in layer group {}", device_->name(), block, n_blocks, group);
}

Status CudaBackend::copy_blocks(std::span<const KvCopy> copies) {
  ARGENT_TRY(device_->use());
  for (const KvCopy& c : copies) {
    ARGENT_TRY(check_block(c.group, c.from));
    ARGENT_TRY(check_block(c.group, c.to));
    if (c.from == c.to) continue;
    ARGENT_TRY(device_->check(cudaMemcpyAsync(block_at(c.group, c.to), block_at(c.group, c.from), block_bytes_[c.group],
                                              cudaMemcpyDeviceToDevice, device_->stream()),
                              "cudaMemcpyAsync (KV)"));
  }
  return {};
}

Status CudaBackend::transfer(std::span<const KvTransfer> transfers, bool save) {
  ARGENT_TRY(device_->use());
  for (const KvTransfer& t : transfers) ARGENT_TRY(check_block(t.group, t.block));
  Status started;
  for (const KvTransfer& t : transfers) {
    uint8_t* const block = block_at(t.group, t.block);
    started = device_->check(
        save ? cudaMemcpyAsync(t.host, block, block_bytes_[t.group], cudaMemcpyDeviceToHost, device_->stream())
             : cudaMemcpyAsync(block, t.host, block_bytes_[t.group], cudaMemcpyHostToDevice, device_->stream()),
        "cudaMemcpyAsync (KV)");
    if (!started) break;
  }
  // Those before one that failed still use the host's memory.
  const Status ended = device_->finish();
  return started ? ended : started;
}

}  // namespace

Result<std::unique_ptr<Backend>> make_backend(const BackendOptions& options) {
  if (options.activations != ActivationMode::native)
    return fail(Code::unsupported, "products of quantized weights take int8 activations here; --device cpu has f32");
  Options own;
  std::vector<std::string_view> known(std::begin(kFamilies), std::end(kFamilies));
  for (size_t op = size_t(Op::norm_mul); op < kOps; ++op) known.push_back(info(Op(op)).name);
  const std::string text = switch_text(Switch::cuda_without);
  for (std::string_view without = text; !without.empty();) {
    const size_t end = std::min(without.find(','), without.size());
    const std::string_view one = without.substr(0, end);
    if (std::find(known.begin(), known.end(), one) == known.end())
      return fail(Code::invalid, "ARGENT_CUDA_WITHOUT: there is no '{}' to leave out, there are {}", one,
                  fmt::join(known, ", "));
    own.without.emplace_back(one);
    without.remove_prefix(std::min(end + 1, without.size()));
  }
  ARGENT_LET(std::unique_ptr<Device> device, Device::open(options.index));
  return std::unique_ptr<Backend>(std::make_unique<CudaBackend>(options, std::move(own), std::move(device)));
}

}  // namespace argent::cuda
