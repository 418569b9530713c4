// Attention over the heads of known models: prompts beside the rate of FMA, single rows over long contexts beside the
// read bandwidth. Each case is a small graph on the CPU backend, so work is divided as it is in a model; times are
// those of the backend's profile. Decode steps through as many layers as fill 256 MiB, so that keys come from memory.
// Operations are those of visible keys: 2 (d_head + d_value) a query head and key.
#include <algorithm>

#include "graph/builder.h"
#include "graph/kv_layout.h"
#include "kernels/bench.h"

namespace argent::bench {
namespace {

struct Heads {
  std::string name;
  uint32_t n_head, n_head_kv, d, window;
  KvType type = KvType::f16;
};

// Layers of attention over one sequence of n_keys positions.
class Layers {
 public:
  static constexpr uint32_t kRows = 512;  // of a prompt's step
  static constexpr uint32_t kTokens = 61;

  static Result<std::unique_ptr<Layers>> create(Bench& bench, const Heads& h, uint32_t n_keys, uint32_t n_layers) {
    auto s = std::unique_ptr<Layers>(new Layers);
    const uint32_t q_width = h.n_head * h.d, kv_width = h.n_head_kv * h.d;
    s->n_layers_ = n_layers;
    s->table_ = random_floats(uint64_t(kTokens) * q_width);
    Builder b;
    const auto rows_of = [&](const char* name, uint32_t width) {
      return b.embed(b.input(Input::tokens),
                     b.weight(name, Format::f32, kTokens, width, reinterpret_cast<const uint8_t*>(s->table_.data())));
    };
    ValueId x = rows_of("q", q_width);
    for (uint32_t l = 0; l < n_layers; ++l) {
      const ValueId state = b.kv({l, h.n_head_kv, h.d, h.d, h.window});
      b.kv_store(rows_of("k", kv_width), rows_of("v", kv_width), state);
      x = b.attention(x, state, h.n_head, 0.125f);
    }
    b.set_logits(x);
    ARGENT_LET(const Graph graph, b.finish());
    BackendOptions options;
    options.isa = bench.isa_name();
    options.n_threads = bench.pool().n_threads();
    options.kv_k = options.kv_v = h.type;
    ARGENT_LET(s->backend_, make_cpu_backend(options));
    ARGENT_TRY(s->backend_->load(graph, WeightStorage::resident, nullptr));
    const uint32_t n_blocks = (n_keys + kKvBlockTokens - 1) / kKvBlockTokens + kRows / kKvBlockTokens;
    const KernelTable* device = s->backend_.get();
    // All rows are wanted: what only one row asks for is computed for that row alone.
    ARGENT_LET(s->prompt_plan_, make_plan(graph, {kRows, kRows, true, Tail::logits}, {&device, 1}));
    ARGENT_LET(s->decode_plan_, make_plan(graph, {1, 1, false, Tail::logits}, {&device, 1}));
    const uint64_t arena = std::max(s->prompt_plan_.arena_bytes[0], s->decode_plan_.arena_bytes[0]);
    ARGENT_TRY(s->backend_->allocate(kv_layout(graph), {arena, {n_blocks}}));
    ARGENT_LET(s->prompt_, s->backend_->compile(s->prompt_plan_));
    ARGENT_LET(s->decode_, s->backend_->compile(s->decode_plan_));
    s->backend_->set_profile(true);
    for (uint32_t i = 0; i < n_blocks; ++i) s->blocks_.push_back(int32_t(i));
    // The first rows' keys are computed, the others' are copies.
    ARGENT_TRY(s->step(kRows, 0));
    std::vector<KvCopy> copies;
    for (uint32_t i = kRows / kKvBlockTokens; i < n_blocks; ++i)
      copies.push_back({0, int32_t(i % (kRows / kKvBlockTokens)), int32_t(i)});
    ARGENT_TRY(s->backend_->copy_blocks(copies));
    return s;
  }

  // n rows (1 or kRows) from position `past` on.
  Status step(uint32_t n, uint32_t past) {
    Step step;
    for (uint32_t r = 0; r < n; ++r) {
      step.tokens.push_back(int32_t((past + r) % kTokens));
      step.positions.push_back(int32_t(past + r));
      step.row_sequence.push_back(0);
      step.output_rows.push_back(int32_t(r));
    }
    step.sequences.push_back({0, n, past, 0, {blocks_}, {}});
    plan_ = n == 1 ? &decode_plan_ : &prompt_plan_;
    ARGENT_LET(const Ticket ticket, backend_->run(n == 1 ? decode_ : prompt_, step));
    return backend_->wait(ticket) ? Status{} : fail(Code::internal, "no result");
  }

  // Mean seconds of the last step's attention nodes. internal: a layer's was not measured on all of the step's rows.
  Result<double> seconds() const {
    double sum = 0;
    uint32_t n = 0;
    for (const NodeTime& t : backend_->profile()) {
      const Node& node = plan_->graph.nodes[t.node];
      if (node.op != Op::attention || plan_->max_rows(plan_->graph.value(node.outputs[0]).rows) != plan_->key.n_tokens)
        continue;
      sum += double(t.nanoseconds) * 1e-9;
      ++n;
    }
    if (n != n_layers_) return fail(Code::internal, "{} of {} layers were measured", n, n_layers_);
    return sum / n;
  }

 private:
  Layers() = default;
  std::vector<float> table_;
  std::unique_ptr<Backend> backend_;
  Plan prompt_plan_, decode_plan_;
  const Plan* plan_ = nullptr;
  uint32_t n_layers_ = 0;
  PlanId prompt_ = 0, decode_ = 0;
  std::vector<int32_t> blocks_;
};

// The shortest of the runs that fit the budget.
Status measure(Bench& b, Layers& layers, uint32_t n_rows, uint32_t past, const std::string& name, const Work& work) {
  double best = 1e30;
  Status status;
  const auto run = [&]() -> Status {
    ARGENT_TRY(layers.step(n_rows, past));
    ARGENT_LET(const double seconds, layers.seconds());
    best = std::min(best, seconds);
    return {};
  };
  b.time([&] {
    if (status) status = run();
  });
  if (status) b.report(name, best, work);
  return status;
}

Status prefill(Bench& b, const Heads& h, uint32_t past, const std::string& name) {
  constexpr uint32_t kRows = Layers::kRows;
  ARGENT_LET(const auto layers, Layers::create(b, h, past + kRows, 1));
  double keys = 0;
  for (uint32_t r = past; r < past + kRows; ++r) keys += h.window ? std::min(r + 1, h.window) : r + 1;
  return measure(b, *layers, kRows, past, name, {.ops = keys * h.n_head * 4 * h.d, .peak = Work::Peak::f32});
}

Status decode(Bench& b, const Heads& h, uint32_t depth, const std::string& name) {
  constexpr uint64_t kFill = uint64_t(256) << 20;
  const uint32_t seen = h.window ? std::min(depth, h.window) : depth;
  const uint64_t layer_bytes = 2 * kv_bytes_of(h.type, uint64_t(seen) * h.n_head_kv * h.d);
  ARGENT_LET(const auto layers, Layers::create(b, h, depth, uint32_t(std::max<uint64_t>(1, kFill / layer_bytes))));
  return measure(b, *layers, 1, depth - 1, name,
                 {.bytes = double(layer_bytes),
                  .from_memory = true,
                  .ops = double(seen) * h.n_head * 4 * h.d,
                  .peak = Work::Peak::f32});
}

}  // namespace

void attention(Bench& b) {
  const auto told = [&](const std::string& name, const Status& status) {
    if (!status) b.failed(name, status.error());
  };
  for (const ModelShape& m : kModels)
    for (const auto& [type, type_name] :
         {std::pair(KvType::f16, "f16"), {KvType::q8_0, "q8_0"}, {KvType::bf16, "bf16"}, {KvType::f32, "f32"}}) {
      const Heads full{fmt::format("{}.{}", m.name, type_name), m.n_head, m.n_head_kv, m.d_head, 0, type};
      const bool usual = (type == KvType::f16 || type == KvType::q8_0) && m.name == "qwen3-0.6b";
      std::vector<Heads> kinds = {full};
      if (m.window) kinds.push_back(full), kinds.back().window = m.window;
      for (const Heads& h : kinds) {
        const auto named = [&](const char* what, const std::string& size) {
          return fmt::format("{}/{}/{}{}/{}", what, b.isa_name(), h.name, h.window ? fmt::format(".w{}", h.window) : "",
                             size);
        };
        for (const uint32_t past : {0u, 3584u})
          if (const std::string name = named("attention_prefill", fmt::format("512@{}", past)); b.wants(name, usual))
            told(name, prefill(b, h, past, name));
        for (const uint32_t depth : {256u, 2048u, 8192u})
          if (const std::string name = named("attention_decode", fmt::format("1@{}", depth - 1));
              b.wants(name, usual && depth > 256))
            told(name, decode(b, h, depth, name));
      }
    }
}

}  // namespace argent::bench
