// Layers on two devices: whatever the cut, the same bits as on one where both have the same arithmetic; and where
// layers go when a device's memory is short.
#include <cmath>
#include <set>

#include "engine/engines.h"
#include "ops/harness.h"

namespace argent {
namespace {

using namespace test;
using ops_test::MakeBackend;
using ops_test::Outputs;
using ops_test::Runner;
using ops_test::Script;
using ops_test::Seen;

MakeBackend split_of(MakeBackend first, MakeBackend second, uint32_t n_first, uint32_t n_layers) {
  return [=](const BackendOptions& options) -> Result<std::unique_ptr<Backend>> {
    ARGENT_LET(std::unique_ptr<Backend> a, first(options));
    ARGENT_LET(std::unique_ptr<Backend> b, second(options));
    return make_split_backend(std::move(a), std::move(b), n_first, n_layers);
  };
}

// Prompts, chunks and decodes together, with all logits, some and none.
const Script& chats() {
  static const Script script = {{{{0, 5}}, Outputs::some},
                                {{{0, 1}}, Outputs::all},
                                {{{0, 40}, {1, 7}}, Outputs::some},
                                {{{2, 33}}, Outputs::none},
                                {{{1, 1}, {0, 1}, {2, 20}}, Outputs::some},
                                {{{0, 2}, {1, 1}, {2, 1}}, Outputs::all},
                                {{{0, 1}, {1, 1}, {2, 1}}, Outputs::all}};
  return script;
}

struct How {
  Tail tail = Tail::logits;
  bool fuse = true;
  KvType kv = KvType::f16;
  std::optional<WeightStorage> weights = {};
  uint32_t n_threads = 1;
};

std::vector<Seen> run(const Graph& graph, const MakeBackend& make, const Script& script, const How& how = {}) {
  ops_test::Setup setup;
  setup.n_vocab = graph.value(graph.logits).width;
  setup.fuse = how.fuse;
  setup.tail = how.tail;
  setup.weights = how.weights;
  if (how.tail == Tail::sample || how.tail == Tail::sample_logits)
    setup.sampling = SampleParams{.temperature = 1.2f, .repeat_penalty = 1.3f, .presence_penalty = 0.4f};
  std::vector<Seen> seen;
  const auto runner =
      Runner::create(graph, ops_test::backend_options(ActivationMode::native, how.kv, how.n_threads), make, setup);
  EXPECT_TRUE(runner) << runner.error().message;
  if (!runner) return seen;
  for (const auto& spec : script) {
    auto step = (*runner)->step(spec);
    EXPECT_TRUE(step) << step.error().message;
    if (!step) break;
    seen.push_back(*std::move(step));
  }
  return seen;
}

void expect_same(const std::vector<Seen>& seen, const std::vector<Seen>& wanted, const std::string& what) {
  ASSERT_EQ(seen.size(), wanted.size()) << what;
  for (size_t i = 0; i < seen.size(); ++i) {
    EXPECT_EQ(seen[i].sampled, wanted[i].sampled) << what << ", step " << i;
    EXPECT_EQ(difference(seen[i].logits, wanted[i].logits, 1), "") << what << ", step " << i;
  }
}

std::unique_ptr<LoadedModel> loaded(const std::string& arch, TinyShape shape = {}) {
  shape.formats = {Format::q8_0, Format::q4_0, Format::f16};
  auto model = load(TinyModel(arch, shape));
  EXPECT_TRUE(model) << model.error().message;
  return model ? *std::move(model) : nullptr;
}

struct SplitModels : testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Split, SplitModels, testing::ValuesIn(kArchitectures), [](const auto& i) {
  std::string name = i.param;
  std::erase(name, '-');
  return name;
});

// Every cut, from the embeddings alone on the first device to the head alone on the second.
TEST_P(SplitModels, TheSameBitsAtEveryCut) {
  const auto model = loaded(GetParam(), {.tied = GetParam() == "qwen2"});
  ASSERT_TRUE(model);
  const uint32_t n = model->model.n_layer;
  for (const Tail tail : {Tail::logits, Tail::hidden, Tail::greedy, Tail::sample, Tail::sample_logits}) {
    const How how{.tail = tail};
    const auto wanted = run(model->model.graph, make_cpu_backend, chats(), how);
    ASSERT_EQ(wanted.size(), chats().size());
    for (uint32_t cut = 0; cut <= n; ++cut)
      expect_same(run(model->model.graph, split_of(make_cpu_backend, make_cpu_backend, cut, n), chats(), how), wanted,
                  fmt::format("{} layers of {}, tail {}", cut, n, int(tail)));
  }
}

TEST_P(SplitModels, TheSameBitsInEveryForm) {
  const auto model = loaded(GetParam());
  ASSERT_TRUE(model);
  const uint32_t n = model->model.n_layer, cut = (n + 1) / 2;
  const MakeBackend two = split_of(make_cpu_backend, make_cpu_backend, cut, n);
  const Graph& graph = model->model.graph;
  for (const How& how : {How{.fuse = false}, How{.kv = KvType::f32}, How{.kv = KvType::q8_0}, How{.n_threads = 2},
                         How{.weights = WeightStorage::mapped}})
    expect_same(run(graph, two, chats(), how), run(graph, make_cpu_backend, chats(), how),
                fmt::format("fused {}, cache {}", how.fuse, name_of(how.kv)));
  const MakeBackend reference = ops_test::make_poisoned_reference;
  expect_same(run(graph, split_of(reference, reference, cut, n), chats()), run(graph, reference, chats()), "reference");
}

// The CPU and another device: not one arithmetic, but near it.
TEST_P(SplitModels, AnotherDevice) {
  const auto model = loaded(GetParam());
  ASSERT_TRUE(model);
  const Graph& graph = model->model.graph;
  const uint32_t n = model->model.n_layer;
  const MakeBackend reference = ops_test::make_poisoned_reference;
  const auto wanted = run(graph, reference, chats());
  for (const uint32_t cut : {0u, n / 2, n}) {
    const auto seen = run(graph, split_of(make_cpu_backend, reference, cut, n), chats());
    ASSERT_EQ(seen.size(), wanted.size());
    double error = 0, power = 0;
    for (size_t i = 0; i < seen.size(); ++i) {
      ASSERT_EQ(seen[i].logits.size(), wanted[i].logits.size());
      for (size_t j = 0; j < wanted[i].logits.size(); ++j) {
        error += std::pow(double(seen[i].logits[j]) - wanted[i].logits[j], 2);
        power += std::pow(double(wanted[i].logits[j]), 2);
      }
    }
    // An activation that rounds to another int8 or half: as tests/cuda/models_test.cc has it.
    EXPECT_LT(error, 5e-4 * power) << cut << " layers on the CPU";
    EXPECT_GT(power, 0);
  }
}

// What a sequence sampled comes back as the next step's token, which the first device has not seen.
TEST_P(SplitModels, SampledTokensGoOn) {
  const auto model = loaded(GetParam());
  ASSERT_TRUE(model);
  const uint32_t n = model->model.n_layer;
  Script script = {{{{0, 7}, {3, 4}}, Outputs::some}};
  for (int i = 0; i < 20; ++i) script.push_back({{{3, 1}, {0, 1}}, Outputs::all, true});
  for (const Tail tail : {Tail::greedy, Tail::sample}) {
    const How how{.tail = tail};
    const auto wanted = run(model->model.graph, make_cpu_backend, script, how);
    for (const uint32_t cut : {0u, 1u, n})
      expect_same(run(model->model.graph, split_of(make_cpu_backend, make_cpu_backend, cut, n), script, how), wanted,
                  fmt::format("{} of {}", cut, n));
  }
  // Of a slot that sampled nothing.
  const auto runner = Runner::create(model->model.graph, ops_test::backend_options(ActivationMode::native),
                                     split_of(make_cpu_backend, make_cpu_backend, 1, n), {.tail = Tail::greedy});
  ASSERT_TRUE(runner);
  const auto refused = (*runner)->step({{{5, 1}}, Outputs::all, true});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::invalid);
}

// A block of each layer group is copied, and saved and brought back as another: the text goes on from either.
TEST_P(SplitModels, BlocksGoOnElsewhere) {
  const auto model = loaded(GetParam());
  ASSERT_TRUE(model);
  const Graph& graph = model->model.graph;
  const KvLayout layout = kv_layout(graph);
  const uint32_t n = model->model.n_layer;
  const uint32_t n_groups = uint32_t(layout.windows.size());
  for (uint32_t n_first = 0; n_first <= n; ++n_first) {
    const auto made =
        split_of(make_cpu_backend, make_cpu_backend, n_first, n)(ops_test::backend_options(ActivationMode::native));
    ASSERT_TRUE(made);
    Backend& backend = **made;
    ASSERT_TRUE(backend.load(graph, WeightStorage::resident, nullptr));
    const std::vector<Backend*> parts = backend.parts();
    const std::vector<const KernelTable*> devices(parts.begin(), parts.end());
    PlanOptions placement;
    backend.place(placement);
    auto plan = make_plan(graph, {64, 64, true, Tail::logits}, devices, placement);
    ASSERT_TRUE(plan) << plan.error().message;
    ASSERT_TRUE(backend.allocate(layout, {0, std::vector<uint32_t>(n_groups, 6), plan->arena_bytes}));
    const auto id = backend.compile(*std::move(plan));
    ASSERT_TRUE(id) << id.error().message;
    const auto run_step = [&](const std::vector<int32_t>& tokens, uint32_t from, const std::vector<int32_t>& table) {
      Step step;
      step.tokens = tokens;
      for (size_t i = 0; i < tokens.size(); ++i) {
        step.positions.push_back(int32_t(from + i));
        step.row_sequence.push_back(0);
        step.output_rows.push_back(int32_t(i));
      }
      step.sequences.push_back(
          {0, uint32_t(tokens.size()), from, 0, std::vector<std::span<const int32_t>>(n_groups, table), {}});
      const auto ticket = backend.run(*id, step);
      EXPECT_TRUE(ticket) << ticket.error().message;
      const auto result = backend.wait(*ticket);
      return std::vector<float>(result->logits.begin(), result->logits.end());
    };
    run_step(text(45), 0, {3, 1});
    std::vector<KvCopy> copies;
    std::vector<KvTransfer> out, back;
    std::vector<std::vector<std::byte>> rooms(n_groups);
    for (uint32_t g = 0; g < n_groups; ++g) {
      copies.push_back({g, 1, 4});
      rooms[g].resize(backend.kv_block_bytes(g) + 64);
      std::byte* host = rooms[g].data() + (64 - reinterpret_cast<uintptr_t>(rooms[g].data()) % 64) % 64;
      out.push_back({g, 1, host}), back.push_back({g, 5, host});
    }
    ASSERT_TRUE(backend.copy_blocks(copies));
    ASSERT_TRUE(backend.save_blocks(out));
    const auto first = run_step(text(3, 2), 45, {3, 1}), second = run_step(text(3, 3), 45, {3, 4});
    ASSERT_TRUE(backend.restore_blocks(back));
    const auto third = run_step(text(3, 2), 45, {3, 5});
    EXPECT_EQ(difference(third, first, 100), "") << n_first;
    run_step(text(45), 0, {0, 2});
    EXPECT_EQ(difference(run_step(text(3, 3), 45, {0, 2}), second, 100), "") << n_first;
    EXPECT_FALSE(backend.copy_blocks(std::vector{KvCopy{n_groups, 0, 1}}));
    EXPECT_FALSE(backend.copy_blocks(std::vector{KvCopy{0, 0, 6}}));
  }
}

// ---- engines ----

// An engine whose model is shared by the CPU and another CPU, or null.
std::unique_ptr<Engine> split_engine(const TinyModel& tiny, EngineOptions options, uint32_t n_first,
                                     uint32_t n_layers) {
  const std::string path = tiny.write("argent_split_" + std::to_string(::getpid()) + ".gguf");
  auto made = split_of(make_cpu_backend, make_cpu_backend, n_first, n_layers)(options.backend);
  auto engine = Engine::open(path, options, *std::move(made));
  std::remove(path.c_str());
  EXPECT_TRUE(engine) << engine.error().message;
  const Status loaded = (*engine)->load();
  EXPECT_TRUE(loaded) << loaded.error().message;
  return *std::move(engine);
}

TEST_P(SplitModels, EnginesGiveTheSameTexts) {
  const TinyModel tiny(GetParam(), {.formats = {Format::q8_0, Format::q4_0}});
  const uint32_t n = loaded(GetParam())->model.n_layer;
  std::vector<Request> requests;
  for (uint64_t i = 0; i < 4; ++i) requests.push_back({text(20 + 17 * i, i), {}, 12});
  requests[1].params = {.temperature = 0.8f, .seed = 5};
  requests[2].params = {.temperature = 1.5f, .top_k = 0, .min_p = 0, .repeat_penalty = 1.3f, .seed = 6};
  for (const int how : {0, 1, 2, 3}) {
    EngineOptions options = options_for("cpu");
    if (how == 1) options.n_sequences = 1, options.n_ctx = 96;  // preempted again and again
    if (how == 2) options.budget = {9, 2};
    if (how == 3)
      options.n_sequences = 1, options.n_ctx = 96, options.kv_host_bytes = 8 << 20;  // blocks leave and return
    const auto wanted = generate(*open(tiny, options), requests);
    for (const uint32_t cut : {0u, 1u, n - 1, n}) {
      const auto engine = split_engine(tiny, options, cut, n);
      for (int round = 0; round < 2; ++round)  // the second time from the prefix cache
        EXPECT_EQ(generate(*engine, requests), wanted) << "case " << how << ", cut " << cut << ", round " << round;
      if (how == 3) {
        EXPECT_GT(engine->cache().tier()->counters().restored, 0u);
      }
      // Texts that lose their end and get another one.
      const SequenceId id = engine->open_sequence();
      for (const auto& tokens : {text(50), joined(text(40), text(9, 3)), text(33), joined(text(33), text(30, 4))}) {
        const auto fresh = open(tiny, options);
        EXPECT_EQ(
            difference(logits(*engine, id, tokens, false), logits(*fresh, fresh->open_sequence(), tokens, false), 100),
            "");
      }
    }
  }
}

// Times are of the whole plan's nodes, each once, the second device's behind the first's.
TEST_P(SplitModels, EveryNodeHasItsTime) {
  const TinyModel tiny(GetParam());
  const uint32_t n = loaded(GetParam())->model.n_layer;
  for (const uint32_t cut : {0u, 1u, n}) {
    const auto engine = split_engine(tiny, options_for("cpu"), cut, n);
    size_t n_steps = 0;
    engine->set_profile([&](const ProfiledStep& step) {
      ++n_steps;
      std::set<uint32_t> nodes;
      std::array<uint64_t, 2> begin = {UINT64_MAX, UINT64_MAX}, end = {};
      for (const NodeTime& time : step.nodes) {
        EXPECT_TRUE(nodes.insert(time.node).second);
        const uint8_t device = step.graph->nodes[time.node].device;
        begin[device] = std::min(begin[device], time.begin);
        end[device] = std::max(end[device], time.begin + time.nanoseconds);
      }
      EXPECT_EQ(nodes.size(), step.graph->nodes.size());
      EXPECT_EQ(*nodes.rbegin() + 1, nodes.size());
      EXPECT_GE(begin[1], end[0]);
      EXPECT_LE(end[1], step.nanoseconds);
    });
    generate(*engine, Request{text(30), {}, 4});
    EXPECT_EQ(n_steps, 4u);
  }
}

// ---- which layers go where ----

// The CPU's arithmetic on a device of so much memory of its own.
class OwnMemory final : public Backend {
 public:
  OwnMemory(const BackendOptions& options, uint64_t memory) : memory_(memory), cpu_(*make_cpu_backend(options)) {}
  std::string device_name() const override { return "card"; }
  Kernel find(const Graph& graph, const Node& node) const override { return cpu_->find(graph, node); }
  uint64_t workspace(const Graph& graph, const Node& node, uint32_t n) const override {
    return cpu_->workspace(graph, node, n);
  }
  BackendCaps caps() const override {
    return {
        .name = "card", .description = "a card", .memory_free = memory_, .resident_weights = true, .own_memory = true};
  }
  uint64_t weight_bytes(const Graph& graph, ValueId id) const override { return cpu_->weight_bytes(graph, id); }
  uint64_t kv_bytes(const KvSpec& layer, uint32_t n) const override { return cpu_->kv_bytes(layer, n); }
  Status load(const Graph& graph, WeightStorage storage, const std::function<bool(const Progress&)>& p) override {
    EXPECT_EQ(storage, WeightStorage::resident);
    return cpu_->load(graph, storage, p);
  }
  Status allocate(const KvLayout& layout, const MemoryNeed& need) override { return cpu_->allocate(layout, need); }
  Result<PlanId> compile(Plan plan) override { return cpu_->compile(std::move(plan)); }
  Result<Ticket> run(PlanId plan, const Step& step) override { return cpu_->run(plan, step); }
  Result<StepResult> wait(Ticket ticket) override { return cpu_->wait(ticket); }
  Status copy_blocks(std::span<const KvCopy> copies) override { return cpu_->copy_blocks(copies); }
  uint64_t kv_block_bytes(uint32_t group) const override { return cpu_->kv_block_bytes(group); }
  Status save_blocks(std::span<const KvTransfer> t) override { return cpu_->save_blocks(t); }
  Status restore_blocks(std::span<const KvTransfer> t) override { return cpu_->restore_blocks(t); }
  std::string kv_format() const override { return cpu_->kv_format(); }
  void set_profile(bool on) override { cpu_->set_profile(on); }
  std::span<const NodeTime> profile() const override { return cpu_->profile(); }

 private:
  const uint64_t memory_;
  std::unique_ptr<Backend> cpu_;
};

Result<std::unique_ptr<Engine>> on_card(const TinyModel& tiny, const EngineOptions& options, uint64_t memory) {
  const std::string path = tiny.write("argent_card_" + std::to_string(::getpid()) + ".gguf");
  auto engine = Engine::open(path, options, std::make_unique<OwnMemory>(options.backend, memory));
  std::remove(path.c_str());
  return engine;
}

TEST(LayersOnADevice, AsManyAsItsMemoryHolds) {
  const TinyModel tiny("llama", {.n_layer = 6, .n_vocab = 1000, .formats = {Format::q8_0}});
  for (const bool serves : {false, true}) {
    EngineOptions options = options_for("card");
    if (serves) options.serves = true, options.n_ctx = 0;
    const Request request{text(40), {}, 8};
    const auto wanted = generate(*open(tiny, options_for("cpu")), request);
    // The whole model, all layers and fewer, with a byte too little for one more where no pool takes the rest.
    uint64_t memory = (*on_card(tiny, options, 1ull << 40))->memory().needed_bytes();
    uint32_t before = 7;
    std::set<uint32_t> counts;
    for (;;) {
      auto opened = on_card(tiny, options, memory);
      ASSERT_TRUE(opened) << opened.error().message;
      Engine& engine = **opened;
      const MemoryReport& report = engine.memory();
      const Status loaded = engine.load();
      ASSERT_TRUE(loaded) << loaded.error().message;
      EXPECT_EQ(generate(engine, request), wanted) << engine.layers_text();
      const MemoryUse& card = report.devices.back();
      EXPECT_LE(card.needed_bytes(), card.free_bytes);
      EXPECT_EQ(report.n_layers, 6u);
      if (report.devices.size() == 1) {
        if (card.device == "cpu") {
          EXPECT_NE(engine.layers_text().find("no layers on card"), std::string::npos) << engine.layers_text();
          EXPECT_TRUE(engine.layers_on_cpu());
          break;
        }
        EXPECT_EQ(engine.layers_text().find("all 6 layers on card ("), 0u) << engine.layers_text();
        EXPECT_FALSE(engine.layers_on_cpu());
      } else {
        EXPECT_EQ(report.total_bytes(), report.devices[0].total_bytes() + card.total_bytes());
        EXPECT_EQ(report.devices[0].n_layers, 6 - card.n_layers);
        EXPECT_NE(engine.layers_text().find(fmt::format("{} of 6 layers on card (", card.n_layers)), std::string::npos);
        EXPECT_NE(engine.layers_text().find("the embeddings on the CPU; context "), std::string::npos);
        EXPECT_LE(card.n_layers, before);
        before = card.n_layers;
        counts.insert(before);
      }
      memory = serves ? memory - 150000 : card.needed_bytes() - 1;
    }
    if (!serves) {
      EXPECT_EQ(counts.size(), 6u);  // 6 with the embeddings on the CPU, to 1
    }
  }
}

TEST(LayersOnADevice, AsManyAsWereAskedFor) {
  const TinyModel tiny("gemma3", {.formats = {Format::q8_0}});
  EngineOptions options = options_for("card");
  const Request request{text(40), {}, 8};
  const auto wanted = generate(*open(tiny, options_for("cpu")), request);
  for (const uint32_t n : {0u, 1u, 3u, 6u, 7u, EngineOptions::kAllLayers}) {
    options.gpu_layers = n;
    auto opened = on_card(tiny, options, 1ull << 40);
    ASSERT_TRUE(opened) << opened.error().message;
    Engine& engine = **opened;
    ASSERT_TRUE(engine.load());
    EXPECT_EQ(generate(engine, request), wanted) << n;
    EXPECT_EQ(engine.memory().devices.size(), n == 0 || n > 6 ? 1u : 2u);
    const std::string text = engine.layers_text();
    EXPECT_EQ(text.find(n == 0  ? "no layers on card: all 7 on the CPU; context 256"
                        : n > 6 ? "all 7 layers on card ("
                                : fmt::format("{} of 7 layers on card (", n)),
              0u)
        << text;
  }
  options.gpu_layers = 99;  // more than there are
  const auto all = on_card(tiny, options, 1ull << 40);
  ASSERT_TRUE(all);
  EXPECT_EQ((*all)->memory().devices.size(), 1u);
  // What was asked for is not made to fit.
  options.gpu_layers = 3;
  auto small = on_card(tiny, options, 1000);
  ASSERT_TRUE(small);
  const Status status = (*small)->load();
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Code::out_of_memory);
  EXPECT_NE(status.error().message.find(" on card for 3 layers (weights "), std::string::npos)
      << status.error().message;

  const std::string path = tiny.write("argent_card_" + std::to_string(::getpid()) + ".gguf");
  EngineOptions cpu = options_for("cpu");
  cpu.gpu_layers = 3;
  const auto none = Engine::open(path, cpu);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, Code::unsupported);
  cpu.gpu_layers = 0;
  EXPECT_TRUE(Engine::open(path, cpu));
  std::remove(path.c_str());
}

// The context that was not asked for shrinks to 4,096 before a layer leaves the device.
TEST(LayersOnADevice, TheContextShrinksFirst) {
  TinyModel tiny("llama", {.n_layer = 4, .formats = {Format::q8_0}});
  tiny.set("context_length", 65536u);
  EngineOptions options = options_for("card");
  options.n_sequences = 1;
  const auto needed = [&](uint32_t n_ctx) {
    options.n_ctx = n_ctx;
    const uint64_t bytes = (*on_card(tiny, options, 1ull << 40))->memory().needed_bytes();
    options.n_ctx = 0;
    return bytes;
  };
  for (const auto& [memory, n_ctx, n_layers] :
       {std::tuple(needed(8192), 8192u, 4u), {needed(8192) - 1, 4096u, 4u}, {needed(4096), 4096u, 4u}}) {
    const auto engine = *on_card(tiny, options, memory);
    EXPECT_EQ(engine->n_ctx(), n_ctx);
    EXPECT_EQ(engine->memory().devices.size(), 1u);
    EXPECT_EQ(engine->memory().devices[0].n_layers, n_layers);
  }
  const auto less = *on_card(tiny, options, needed(4096) - 10000);
  EXPECT_EQ(less->n_ctx(), 8192u);
  EXPECT_EQ(less->memory().devices.size(), 2u);
  EXPECT_TRUE(less->memory().fits());
}

}  // namespace
}  // namespace argent
