// The engine's memory: which layers go to which device, what each one takes, and whether that fits. Known before
// anything is allocated.
#include <algorithm>

#include "base/checked.h"
#include "engine/engine.h"
#include "engine/fit.h"
#include "graph/parts.h"

namespace argent {
namespace {

constexpr uint32_t kDefaultContext = 8192, kRoomyContext = 2048, kLeastContext = 512;
// Sizes below it can be added to those of weights and arena.
constexpr uint64_t kMaxKvBytes = 1ull << 62;

double gib(uint64_t bytes) { return double(bytes) / 0x1p30; }

// "8,192"
std::string grouped(uint32_t n) {
  std::string text = std::to_string(n);
  for (size_t at = text.size(); at > 3; at -= 3) text.insert(at - 3, ",");
  return text;
}

}  // namespace

std::string Engine::layers_text() const {
  const uint32_t n = model_.n_layer;
  const std::string context = fmt::format("context {}", grouped(n_ctx_));
  if (!without_layers_.empty()) return fmt::format("{}: all {} on the CPU; {}", without_layers_, n, context);
  const MemoryUse& device = memory_.devices.back();
  const std::string room =
      device.free_bytes == 0 || device.free_bytes == UINT64_MAX
          ? fmt::format("{:.1f} GiB", gib(device.needed_bytes()))
          : fmt::format("{:.1f} of {:.1f} GiB free", gib(device.needed_bytes()), gib(device.free_bytes));
  if (memory_.devices.size() == 2) {
    const uint32_t n_cpu = memory_.devices[0].n_layers;
    return fmt::format("{} of {} layers on {} ({}), {}the embeddings on the CPU; {}", device.n_layers, n, device.device,
                       room, n_cpu ? fmt::format("{} and ", n_cpu) : "", context);
  }
  if (device.device == "cpu" || !(options_.gpu_layers || backend_->caps().own_memory)) return "";
  return fmt::format("all {} layers on {} ({}); {}", n, device.device, room, context);
}

Status Engine::place_layers() {
  const BackendCaps caps = backend_->caps();
  const std::optional<uint32_t>& asked = options_.gpu_layers;
  const uint32_t n = model_.n_layer;
  if (caps.name == "cpu") {
    if (asked.value_or(0) == 0) return {};
    return fail(Code::unsupported, "--gpu-layers {}: --device cpu has no layers on a GPU; wanted 0 or auto there",
                *asked == EngineOptions::kAllLayers ? "all" : std::to_string(*asked));
  }
  if (asked ? *asked >= n : !caps.own_memory) return {};
  ARGENT_LET(std::unique_ptr<Backend> cpu, make_cpu_backend(options_.backend));
  uint32_t n_device = asked.value_or(0);
  if (!asked) {
    ARGENT_LET(const FitSizes sizes, fit_sizes(cpu->caps().memory_free));
    const Fit fit = fit_layers(sizes);
    if (fit.whole) return {};
    n_device = fit.n_layers;
  }
  if (n_device) {
    backend_ = make_split_backend(std::move(cpu), std::move(backend_), n - n_device, n);
    return {};
  }
  without_layers_ = "no layers on " + caps.name;
  if (!asked) without_layers_ += fmt::format(", which has {:.1f} GiB free", gib(caps.memory_free));
  backend_ = std::move(cpu);
  return {};
}

// Of the whole model on the device.
Result<FitSizes> Engine::fit_sizes(uint64_t host_free) {
  ARGENT_TRY(settle_arena());
  const Graph& graph = model_.graph;
  FitSizes sizes;
  sizes.layer_bytes.assign(model_.n_layer, 0);
  sizes.workspace_bytes = need_.arena_bytes + step_bytes_[0];
  sizes.reserve_bytes = MemoryUse::kReserve;
  sizes.device_free = backend_->caps().memory_free;
  sizes.host_free = host_free;
  // Backwards, so that a matrix which is embeddings and head counts as the head's.
  std::vector<bool> counted(graph.values.size(), false);
  bool behind = true;
  for (size_t i = graph.nodes.size(); i-- > 0;) {
    const int32_t layer = graph.nodes[i].layer;
    behind = behind && layer < 0;
    for (const ValueId id : graph.nodes[i].inputs) {
      if (graph.value(id).kind != ValueKind::weight || counted[id]) continue;
      counted[id] = true;
      const uint64_t bytes = backend_->weight_bytes(graph, id);
      sizes.model_bytes += bytes;
      if (layer >= 0) sizes.layer_bytes[size_t(layer)] += bytes;
      if (behind || graph.nodes[i].op == Op::rope_table) sizes.head_bytes += bytes;  // made on both devices
    }
  }
  uint32_t n_ctx = options_.n_ctx ? options_.n_ctx : std::min(model_.n_ctx_train, kDefaultContext);
  for (;; n_ctx = std::max(kLeastContext, n_ctx / 2)) {
    const bool one = options_.serves && !options_.pool_tokens;  // a server's pool takes what is left then
    ARGENT_LET(const std::vector<uint32_t> blocks, blocks_of(n_ctx, one ? n_ctx : options_.pool_tokens));
    FitSizes::Context context{n_ctx, std::vector<uint64_t>(model_.n_layer, 0)};
    for (size_t i = 0; i < model_.kv.layers.size(); ++i)
      context.kv_bytes[model_.kv.layers[i].layer] +=
          backend_->kv_bytes(model_.kv.layers[i], blocks[model_.kv.group_of_layer[i]]);
    sizes.contexts.push_back(std::move(context));
    if (options_.n_ctx || n_ctx <= kLeastContext) return sizes;
  }
}

void Engine::settle_weights(WeightStorage storage) {
  PlanOptions placement;
  backend_->place(placement);
  const std::vector<Backend*> parts = backend_->parts();
  for (size_t d = 0; d < parts.size(); ++d) {
    const std::optional<Graph> own =
        parts.size() > 1 ? std::optional(device_part(model_.graph, placement, uint8_t(d))) : std::nullopt;
    const Graph& graph = own ? *own : model_.graph;
    const BackendCaps caps = parts[d]->caps();
    MemoryUse& use = memory_.devices[d];
    use.weights = storage_of(caps, storage);
    use.weights_bytes = 0;
    if (use.weights == WeightStorage::mapped && !caps.mapped_count) continue;
    for (ValueId id = 0; id < graph.values.size(); ++id)
      if (const Value& v = graph.value(id); v.kind == ValueKind::weight)
        use.weights_bytes +=
            use.weights == WeightStorage::resident ? parts[d]->weight_bytes(graph, id) : v.file_bytes();
  }
  add_up();
}

void Engine::add_up() {
  std::vector<MemoryUse>& devices = memory_.devices;
  if (devices.size() == 2 && host_free_ && !backend_->parts()[1]->caps().own_memory)  // they share one memory
    devices[0].free_bytes = host_free_ - std::min(host_free_ - 1, devices[1].total_bytes());
  MemoryUse sum;
  bool unknown = false;
  for (const MemoryUse& use : devices) {
    sum.n_layers += use.n_layers;
    sum.weights_bytes += use.weights_bytes;
    if (use.weights == WeightStorage::mapped) sum.weights = WeightStorage::mapped;
    sum.kv_bytes += use.kv_bytes;
    sum.kv_host_bytes += use.kv_host_bytes;
    sum.workspace_bytes += use.workspace_bytes;
    sum.free_bytes = checked_add(sum.free_bytes, use.free_bytes).value_or(UINT64_MAX);
    unknown = unknown || use.free_bytes == 0;
  }
  if (unknown) sum.free_bytes = 0;
  sum.device = backend_->device_name();
  static_cast<MemoryUse&>(memory_) = std::move(sum);
}

// The arena: the largest rung of each kind of plan.
Status Engine::settle_arena() {
  if (options_.budget.max_tokens == 0 || options_.budget.max_outputs == 0 || options_.n_sequences == 0)
    return fail(Code::invalid, "{} tokens and {} logits rows a step, {} sequences: wanted at least one of each",
                options_.budget.max_tokens, options_.budget.max_outputs, options_.n_sequences);
  const uint32_t tokens = options_.budget.max_tokens, outputs = std::min(options_.budget.max_outputs, tokens);
  options_.budget.max_outputs = outputs;
  const std::vector<Backend*> parts = backend_->parts();
  std::vector<uint64_t>& arenas = need_.part_arena_bytes;
  arenas.assign(parts.size(), 0);
  step_bytes_.assign(parts.size(), 0);
  for (Tail tail : {Tail::logits, Tail::sample, Tail::sample_logits, Tail::hidden})
    for (const PlanKey& key : {PlanKey{tokens, outputs, false, tail}, PlanKey{outputs, outputs, true, tail}}) {
      ARGENT_LET(const Plan plan, make(key, Stage::planned));
      for (size_t d = 0; d < arenas.size(); ++d) {
        arenas[d] = std::max(arenas[d], plan.arena_bytes[d]);
        step_bytes_[d] = std::max(step_bytes_[d], parts[d]->step_bytes(plan));
      }
    }
  need_.arena_bytes = arenas[0];
  return {};
}

Status Engine::settle_memory() {
  ARGENT_TRY(check_kv_types(model_.kv, options_.backend.kv_k, options_.backend.kv_v));
  PlanOptions placement;
  backend_->place(placement);
  const std::vector<Backend*> parts = backend_->parts();
  memory_.devices.clear();
  for (const Backend* part : parts) {
    const BackendCaps caps = part->caps();
    memory_.devices.push_back({.device = caps.name, .free_bytes = caps.memory_free});
  }
  for (uint32_t layer = 0; layer < model_.n_layer; ++layer)
    ++memory_.devices[placement.layer_device.empty() ? 0 : placement.layer_device[layer]].n_layers;
  host_free_ = memory_.devices[0].free_bytes;
  memory_.file_bytes = file_.tensor_bytes();

  const BackendCaps caps = parts[0]->caps();
  settle_weights(options_.weights.value_or(caps.resident_weights ? WeightStorage::resident : WeightStorage::mapped));
  MemoryUse& first = memory_.devices[0];
  const bool resident = first.weights == WeightStorage::resident;
  if (options_.weights && first.weights != *options_.weights)
    return fail(Code::unsupported, "{} cannot keep weights {}", caps.name,
                *options_.weights == WeightStorage::resident ? "in a copy of its own" : "in the file's mapping");
  ARGENT_TRY(settle_arena());
  for (size_t d = 0; d < parts.size(); ++d)
    memory_.devices[d].workspace_bytes = need_.part_arena_bytes[d] + step_bytes_[d];

  first.kv_host_bytes = options_.prefix_cache ? options_.kv_host_bytes.value_or(0) : 0;
  const bool may_map = resident && !options_.weights && caps.mapped_weights;
  ARGENT_TRY(settle_kv(may_map ? kRoomyContext : kLeastContext));
  if (may_map && !first.fits()) {
    memory_.resident_needed_bytes = first.needed_bytes();
    settle_weights(WeightStorage::mapped);
    ARGENT_TRY(settle_kv(kLeastContext));
  }
  settle_tiers();
  return {};
}

// KV blocks of each layer group. invalid: more than there are numbers for.
Result<std::vector<uint32_t>> Engine::blocks_of(uint32_t n_ctx, uint64_t pool_tokens) const {
  const kv::Config config{.block_tokens = kKvBlockTokens,
                          .max_step = options_.budget.max_tokens,
                          .rollback = 0,
                          .groups = {},
                          .prefix_cache = options_.prefix_cache};
  std::vector<uint32_t> all;
  for (uint32_t window : model_.kv.windows) {
    const uint64_t each = kv::blocks_needed(config, window, n_ctx);
    const uint64_t pool = (pool_tokens + kKvBlockTokens - 1) / kKvBlockTokens;
    const uint64_t blocks =
        std::max(each, pool ? std::min(pool, each * options_.n_sequences) : each * options_.n_sequences);
    if (blocks > (1u << 30))
      return fail(Code::invalid, "{} sequences of {} positions: the KV pool would have {} blocks", options_.n_sequences,
                  n_ctx, blocks);
    all.push_back(uint32_t(blocks));
  }
  return all;
}

// Positions of a server's pool: those that half of what is left holds. Layers were put on a device so that the default
// context still fits beside them, so that a split one has at least that.
uint64_t Engine::server_pool() const {
  PlanOptions placement;
  backend_->place(placement);
  uint64_t most = UINT64_MAX;
  for (size_t d = 0; d < memory_.devices.size(); ++d) {
    const MemoryUse& use = memory_.devices[d];
    const uint64_t used = use.weights_bytes + use.workspace_bytes + use.kv_host_bytes + MemoryUse::kReserve;
    const uint64_t free = use.free_bytes > used ? use.free_bytes - used : 0;
    uint64_t block_bytes = 0;
    for (const KvSpec& layer : model_.kv.layers)
      if (placement.layer_device.empty() || placement.layer_device[layer.layer] == d)
        block_bytes += backend_->kv_bytes(layer, 1);
    if (block_bytes == 0) continue;
    uint64_t fits = free / 2 / block_bytes * kKvBlockTokens;
    if (memory_.devices.size() > 1)
      fits = std::max<uint64_t>(fits, std::min<uint64_t>(free / block_bytes * kKvBlockTokens, kDefaultContext));
    most = std::min(most, fits);
  }
  return std::max<uint64_t>(std::min(uint64_t(n_ctx_) * options_.n_sequences, most), 512);
}

// Blocks of each layer group for the sequences; the context shrinks, when it was not asked for, until it fits.
Status Engine::settle_kv(uint32_t least_ctx) {
  const KvLayout& layout = model_.kv;
  n_ctx_ =
      options_.n_ctx ? options_.n_ctx : std::min(model_.n_ctx_train, options_.serves ? UINT32_MAX : kDefaultContext);
  const uint64_t pool_tokens = options_.serves && !options_.pool_tokens ? server_pool() : options_.pool_tokens;
  if (options_.serves && !options_.n_ctx) n_ctx_ = uint32_t(std::min<uint64_t>(n_ctx_, pool_tokens));
  if (n_ctx_ > (1u << 30)) return fail(Code::invalid, "a context of {} positions: wanted at most {}", n_ctx_, 1u << 30);
  PlanOptions placement;
  backend_->place(placement);
  for (;;) {
    ARGENT_LET(need_.group_blocks, blocks_of(n_ctx_, pool_tokens));
    for (MemoryUse& use : memory_.devices) use.kv_bytes = 0;
    for (size_t i = 0; i < layout.layers.size(); ++i) {
      const KvSpec& layer = layout.layers[i];
      uint64_t& bytes =
          memory_.devices[placement.layer_device.empty() ? 0 : placement.layer_device[layer.layer]].kv_bytes;
      const auto sum = checked_add(bytes, backend_->kv_bytes(layer, need_.group_blocks[layout.group_of_layer[i]]));
      if (!sum || *sum >= kMaxKvBytes)
        return fail(Code::out_of_memory, "the KV cache of {} sequences of {} positions in {} layers has no 64-bit size",
                    options_.n_sequences, n_ctx_, layout.layers.size());
      bytes = *sum;
    }
    add_up();
    if (options_.n_ctx || n_ctx_ <= least_ctx || memory_.fits()) break;
    n_ctx_ = std::max(least_ctx, n_ctx_ / 2);
  }
  kv_config_ = {.block_tokens = kKvBlockTokens,
                .max_step = options_.budget.max_tokens,
                .rollback = 0,
                .groups = {},
                .prefix_cache = options_.prefix_cache};
  for (size_t g = 0; g < layout.windows.size(); ++g)
    kv_config_.groups.push_back({need_.group_blocks[g], layout.windows[g]});
  return {};
}

Status Engine::check_room() const {
  const MemoryUse* use = memory_.misfit();
  if (!use) return {};
  return fail(Code::out_of_memory,
              "{} needs {}{} (weights {}, KV cache of {} positions {}{}, workspace {}, reserve {}); {} are free{}",
              file_.path(), bytes_text(use->needed_bytes()),
              memory_.devices.size() > 1 ? fmt::format(" on {} for {} layers", use->device, use->n_layers) : "",
              bytes_text(use->weights_bytes), n_ctx_, bytes_text(use->kv_bytes),
              use->kv_host_bytes ? fmt::format(", evicted KV blocks {}", bytes_text(use->kv_host_bytes)) : "",
              bytes_text(use->workspace_bytes), bytes_text(MemoryUse::kReserve), bytes_text(use->free_bytes),
              use->kv_bytes > use->weights_bytes ? "; a smaller --ctx may fit" : "");
}

}  // namespace argent
