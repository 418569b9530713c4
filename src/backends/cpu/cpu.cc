// The CPU backend: weights in panels of 16 rows (matmul.h), KV in blocks of 32 positions (vector.h), plans as task
// lists.
#include <algorithm>
#include <cstring>

#include "backends/cpu/executor.h"
#include "backends/cpu/load.h"
#include "backends/cpu/peaks.h"
#include "base/checked.h"
#include "base/huge_pages.h"
#include "base/system_memory.h"
#include "graph/step_check.h"

namespace argent {
namespace {

using namespace cpu;

Result<Isa> choose_isa(std::string_view name) {
  if (name.empty()) return best_isa();
  const auto isa = isa_named(name);
  if (!isa)
    return fail(Code::invalid, "--isa {}: wanted baseline, avx2, avxvnni or avx512; on Arm baseline, neon or i8mm",
                name);
  if (!isa_supported(*isa))
    return fail(Code::unsupported, "--isa {}: this machine does not run it; its best is {}", name,
                isa_name(best_isa()));
  return *isa;
}

// Which weights a graph uses as matrices (or tables of rows); the others are vectors.
std::vector<bool> matrices(const Graph& graph) {
  std::vector<bool> result(graph.values.size(), false);
  for (const Node& node : graph.nodes) {
    const size_t n = node.op == Op::qkv ? 3 : node.op == Op::glu ? 2 : node.op == Op::matmul || node.op == Op::embed;
    for (size_t i = 1; i <= n; ++i) result[node.inputs[i]] = true;
  }
  return result;
}

uint64_t resident_bytes(const Value& v) { return align_up(packed_bytes(v.format, v.n_rows, v.width), 64); }

class CpuBackend final : public Backend {
 public:
  CpuBackend(const BackendOptions& options, Isa isa)
      : options_(options),
        isa_(isa),
        pool_({.n_threads = options.n_threads, .pin = options.pin}),
        matmul_(matmul_kernels(isa)),
        pack_(pack_kernels(isa)),
        vector_(vector_kernels(isa)),
        sample_(sample_kernels(isa)) {}

  std::string device_name() const override { return "cpu"; }

  Kernel find(const Graph& graph, const Node& node) const override {
    for (ValueId id : node.inputs) {
      const Value& v = graph.value(id);
      const bool in_groups = v.kind == ValueKind::weight && cpu::quantized(v.format);
      if (in_groups && v.width % kGroup)
        return {false,
                fmt::format("{}: rows of {} are no multiple of {} elements", info(node.op).name, describe(v), kGroup)};
    }
    if (!has_task(node.op)) return {false, fmt::format("{}: NONE, its parts are as fast", info(node.op).name)};
    // The tasks of these take one kind of input where the op has two.
    const DType seen = graph.value(node.inputs[0]).dtype;
    if ((node.op == Op::argmax || node.op == Op::copy) && seen != DType::f32)
      return {false, fmt::format("{}: NONE for {}", info(node.op).name, describe(graph.value(node.inputs[0])))};
    if (node.op == Op::draw && seen != DType::candidates)
      return {false, fmt::format("draw: NONE for {}", describe(graph.value(node.inputs[0])))};
    return {true, {}};
  }

  uint64_t workspace(const Graph& graph, const Node& node, uint32_t n_rows) const override {
    return workspace_bytes(graph, node, n_rows, pool_.n_threads(), options_.activations);
  }

  BackendCaps caps() const override {
    return {"cpu",
            fmt::format("CPU, {} thread{}, {}", pool_.n_threads(), pool_.n_threads() == 1 ? "" : "s", isa_name(isa_)),
            available_memory(),
            true,
            true,
            true};
  }

  uint64_t weight_bytes(const Graph& graph, ValueId weight) const override {
    return matrices(graph)[weight] ? resident_bytes(graph.value(weight)) : 0;
  }

  uint64_t kv_bytes(const KvSpec& layer, uint32_t n_blocks) const override {
    return n_blocks * (k_bytes(layer) + v_bytes(layer));
  }

  Status load(const Graph& graph, WeightStorage storage,
              const std::function<bool(const Progress&)>& progress) override {
    const std::vector<bool> is_matrix = matrices(graph);
    matrices_.assign(graph.values.size(), {});
    vectors_.assign(graph.values.size(), nullptr);
    copies_.clear();
    std::vector<PackJob> jobs;
    uint64_t bytes = 0;
    for (ValueId id = 0; id < graph.values.size(); ++id) {
      const Value& v = graph.value(id);
      if (v.kind != ValueKind::weight) continue;
      if (is_matrix[id]) {
        matrices_[id] = {{v.format, v.n_rows, v.width, nullptr}, v.data};
        jobs.push_back({&matrices_[id], bytes});
        bytes += resident_bytes(v);
      } else if (v.format == Format::f32 && v.n_rows == 1) {
        copies_.emplace_back(v.width);  // aligned copies: a tensor may lie anywhere in its file
        std::memcpy(copies_.back().data(), v.data, uint64_t(v.width) * 4);
        vectors_[id] = copies_.back().data();
      }
    }
    if (storage == WeightStorage::mapped) {
      if (progress && !progress({"weights", 0, 0})) return fail(Code::cancelled, "loading was stopped");
      return {};
    }
    ARGENT_LET(weights_, HugePages::allocate(bytes));
    return pack_weights(jobs, weights_.data(), bytes, pack_, pool_, progress);
  }

  Status allocate(const KvLayout& layout, const MemoryNeed& need) override {
    ARGENT_TRY(check_kv_types(layout, options_.kv_k, options_.kv_v));
    layout_ = layout;
    block_bytes_.assign(layout.windows.size(), 0);
    for (size_t i = 0; i < layout.layers.size(); ++i)
      block_bytes_[layout.group_of_layer[i]] += kv_bytes(layout.layers[i], 1);
    std::vector<uint64_t> begin;
    uint64_t bytes = 0;
    for (size_t g = 0; g < block_bytes_.size(); ++g) {
      begin.push_back(bytes);
      bytes += need.group_blocks[g] * block_bytes_[g];
    }
    ARGENT_LET(kv_memory_, HugePages::allocate(bytes));
    ARGENT_LET(arena_, HugePages::allocate(need.arena_bytes));
    arena_bytes_ = need.arena_bytes;
    kv_.clear();
    most_block_.assign(block_bytes_.size(), 0);
    touched_.assign(block_bytes_.size(), 0);
    block_begin_.clear();
    for (const uint64_t at : begin) block_begin_.push_back(kv_memory_.data() + at);
    for (size_t i = 0; i < layout.layers.size(); ++i) {
      const KvSpec& spec = layout.layers[i];
      const uint32_t group = layout.group_of_layer[i];
      uint8_t* k = kv_memory_.data() + begin[group];
      kv_.push_back({k, k + k_bytes(spec), options_.kv_k, options_.kv_v, spec.n_head_kv, spec.d_head, spec.d_value,
                     block_bytes_[group], block_bytes_[group]});
      begin[group] += kv_bytes(spec, 1);
    }
    group_blocks_ = need.group_blocks;
    plans_.clear();
    return {};
  }

  Result<PlanId> compile(Plan plan) override {
    if (plan.arena_bytes.size() != 1 || plan.arena_bytes[0] > arena_bytes_)
      return fail(Code::internal, "cpu: the plan wants an arena of {} bytes, {} are there",
                  plan.arena_bytes.empty() ? 0 : plan.arena_bytes[0], arena_bytes_);
    auto list = std::make_unique<TaskList>();
    ARGENT_LET(*list, make_tasks(std::move(plan), {matrices_, vectors_, kv_, layout_, arena_.data(), pool_.n_threads(),
                                                   options_.activations, matmul_, vector_}));
    list->rules = step_rules(list->plan, layout_, group_blocks_, kKvBlockTokens);
    plans_.push_back(std::move(list));
    return PlanId(plans_.size() - 1);
  }

  Result<Ticket> run(PlanId id, const Step& step) override {
    if (id >= plans_.size()) return fail(Code::internal, "cpu: no plan {}", id);
    const TaskList& list = *plans_[id];
    ARGENT_TRY(check_step(list.rules, step, slot_sampled_));
    resolve_tokens(step);
    note_blocks(step);
    const uint32_t n_tokens = uint32_t(step.tokens.size());
    const uint32_t n_outputs = list.plan.key.all_rows ? n_tokens : uint32_t(step.output_rows.size());
    const Run run{step, pool_, matmul_, pack_, vector_, sample_, tokens_, last_sampled_, n_tokens, n_outputs};
    if (profile_on_)
      execute_profiled(list, run, times_, busy_);
    else
      execute(list, run);
    result_ = {};
    const Graph& graph = list.plan.graph;
    if (list.logits) result_.logits = {list.logits, uint64_t(n_outputs) * graph.value(graph.logits).width};
    if (list.sampled) {
      result_.sampled = {list.sampled, n_outputs};
      for (uint32_t r = 0; r < n_outputs; ++r) {
        const uint32_t slot = step.sequences[step.row_sequence[uint32_t(step.output_rows[r])]].slot;
        if (slot >= last_sampled_.size()) last_sampled_.resize(slot + 1, -1), slot_sampled_.resize(slot + 1, 0);
        last_sampled_[slot] = list.sampled[r];
        slot_sampled_[slot] = list.sampled[r] >= 0;
      }
    }
    return ++ticket_;
  }

  Result<StepResult> wait(Ticket ticket) override {
    if (ticket != ticket_) return fail(Code::internal, "cpu: ticket {} is not the last step's", ticket);
    return result_;
  }

  Status copy_blocks(std::span<const KvCopy> copies) override {
    for (const KvCopy& copy : copies) {
      ARGENT_TRY(check_block(copy.group, copy.from));
      ARGENT_TRY(check_block(copy.group, copy.to));
      std::memcpy(block_at(copy.group, copy.to), block_at(copy.group, copy.from), block_bytes_[copy.group]);
    }
    return {};
  }

  uint64_t kv_block_bytes(uint32_t group) const override { return block_bytes_[group]; }

  Status save_blocks(std::span<const KvTransfer> transfers) override {
    for (const KvTransfer& t : transfers) {
      ARGENT_TRY(check_block(t.group, t.block));
      std::memcpy(t.host, block_at(t.group, t.block), block_bytes_[t.group]);
    }
    return {};
  }

  Status restore_blocks(std::span<const KvTransfer> transfers) override {
    for (const KvTransfer& t : transfers) {
      ARGENT_TRY(check_block(t.group, t.block));
      std::memcpy(block_at(t.group, t.block), t.host, block_bytes_[t.group]);
    }
    return {};
  }

  // Every instruction set with fused multiply-add gives the same bits (docs/decisions/0005).
  std::string kv_format() const override {
    return fmt::format("cpu {} {} {} {}", has_fma(isa_) ? "fma" : "baseline",
                       options_.activations == ActivationMode::native ? "native" : "f32", name_of(options_.kv_k),
                       name_of(options_.kv_v));
  }

  // The first touch of a huge page takes the system 0.2 ms, in a virtual machine whose host has to give it back 5: the
  // pages of the blocks that are next in turn are touched before.
  bool prepare() override {
    for (size_t g = 0; g < block_bytes_.size(); ++g) {
      const uint64_t used = most_block_[g] * block_bytes_[g], all = group_blocks_[g] * block_bytes_[g];
      if (touched_[g] >= std::min(all, used + kReadyBytes)) continue;
      volatile uint8_t* page = block_begin_[g] + touched_[g];
      *page = *page;
      touched_[g] += kPageBytes;
      return true;
    }
    return false;
  }

  void set_profile(bool on) override { profile_on_ = on; }
  std::span<const NodeTime> profile() const override { return times_; }
  DevicePeaks measure_peaks() override { return cpu::measure_peaks(pool_, isa_); }

 private:
  Status check_block(uint32_t group, int32_t block) const {
    const uint32_t n_blocks = group < group_blocks_.size() ? group_blocks_[group] : 0;
    if (uint32_t(block) < n_blocks) return {};
    return fail(Code::internal, "cpu: copy of block {} of {} in layer group {}", block, n_blocks, group);
  }
  static constexpr uint64_t kPageBytes = 2 << 20, kReadyBytes = 256 << 20;

  // Blocks are handed out from the first on: the highest ones tell how far that went.
  void note_blocks(const Step& step) {
    for (const StepSequence& s : step.sequences)
      for (size_t g = 0; g < s.tables.size(); ++g) {
        const size_t last = (uint64_t(s.length) + s.n_rows - 1) / kKvBlockTokens;
        if (last < s.tables[g].size() && s.tables[g][last] >= 0)
          most_block_[g] = std::max(most_block_[g], uint64_t(s.tables[g][last]));
      }
  }

  // Of one layer's K and V in a block; whole cache lines, so that layers do not share any.
  uint64_t k_bytes(const KvSpec& layer) const {
    return align_up(kv_bytes_of(options_.kv_k, uint64_t(kKvBlockTokens) * layer.n_head_kv * layer.d_head), 64);
  }
  uint64_t v_bytes(const KvSpec& layer) const {
    return align_up(kv_bytes_of(options_.kv_v, uint64_t(kKvBlockTokens) * layer.n_head_kv * layer.d_value), 64);
  }
  uint8_t* block_at(uint32_t group, int32_t block) const {
    return block_begin_[group] + uint64_t(uint32_t(block)) * block_bytes_[group];
  }

  // Tokens below zero stand for what a slot sampled in the step before.
  void resolve_tokens(const Step& step) {
    tokens_ = step.tokens;
    for (int32_t& token : tokens_)
      if (token < 0) token = last_sampled_[uint32_t(~token)];
  }

  const BackendOptions options_;
  const Isa isa_;
  ThreadPool pool_;
  const MatmulKernels& matmul_;
  const PackKernels& pack_;
  const VectorKernels& vector_;
  const SampleKernels& sample_;
  HugePages weights_, kv_memory_, arena_;
  uint64_t arena_bytes_ = 0;
  std::vector<Matrix> matrices_;  // by value of the model's graph; plans only append values
  std::vector<const float*> vectors_;
  std::vector<std::vector<float>> copies_;
  KvLayout layout_;
  std::vector<KvLayer> kv_;
  std::vector<uint64_t> block_bytes_;  // by layer group: of a block, all its layers
  std::vector<uint8_t*> block_begin_;  // of block 0
  std::vector<uint64_t> most_block_;   // that was used
  std::vector<uint64_t> touched_;      // bytes from block 0 on
  std::vector<std::unique_ptr<TaskList>> plans_;
  std::vector<uint32_t> group_blocks_;
  std::vector<int32_t> tokens_, last_sampled_;  // the latter by slot
  std::vector<uint8_t> slot_sampled_;
  StepResult result_;
  Ticket ticket_ = 0;
  bool profile_on_ = false;
  std::vector<NodeTime> times_;
  std::vector<uint64_t> busy_;  // [entry of times_][thread]
};

}  // namespace

Result<std::unique_ptr<Backend>> make_cpu_backend(const BackendOptions& options) {
  ARGENT_LET(const Isa isa, choose_isa(options.isa));
  return std::unique_ptr<Backend>(std::make_unique<CpuBackend>(options, isa));
}

}  // namespace argent
