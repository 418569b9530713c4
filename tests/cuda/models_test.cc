// Whole models on the CUDA backend: logits against the reference, fused and not, step after step of one plan; runs that
// are the same; rows that do not see their neighbours; blocks of the cache that are copied, saved and brought back.
#include <gtest/gtest.h>

#include <cstdlib>

#include "ops/harness.h"
#include "support/tiny_model.h"

namespace argent::ops_test {
namespace {

using test::TinyModel;
using test::TinyShape;

// An activation whose last bit differs may round to another int8, which is 1/254 of its group's largest, and every
// layer adds some; steps of many rows may round factors to half.
constexpr Tolerance kModel{"activations that round to another int8, through all layers", 5e-2, 5e-2};
// Products of more rows are of halves, here and in the reference.
constexpr uint32_t kInt8Rows = 16;
constexpr double kModelNmse = 5e-4;  // the same over all logits: squared errors by squared logits

StepSpec decode(uint32_t n_sequences) {
  StepSpec spec;
  for (uint32_t i = 0; i < n_sequences; ++i) spec.parts.push_back({i, 1});
  return spec;
}

// Prompts, chunks and decode together; then the same plans again and again, as captured graphs are.
const Script& chats() {
  static const Script script = [] {
    Script s = {{{{0, 5}}, Outputs::some},
                {{{0, 1}}, Outputs::all},
                {{{0, 40}, {1, 7}}, Outputs::some},
                {{{1, 1}, {0, 1}, {2, 20}}, Outputs::some},
                {{{0, 2}, {1, 1}, {2, 1}}, Outputs::all}};
    for (int i = 0; i < 12; ++i) s.push_back(decode(i % 2 ? 3 : 1));
    return s;
  }();
  return script;
}

// The model's logits in each step of the script; fewer where one failed.
std::vector<Seen> run(const Graph& graph, const MakeBackend& make, const Script& script, bool fuse = true,
                      KvType kv = KvType::f16, Tail tail = Tail::logits) {
  std::vector<Seen> seen;
  Setup setup;
  setup.n_vocab = graph.value(graph.logits).width;
  setup.fuse = fuse;
  setup.tail = tail;
  BackendOptions options = backend_options(ActivationMode::native, kv);
  options.int8_rows = kInt8Rows;
  const auto runner = Runner::create(graph, options, make, setup);
  EXPECT_TRUE(runner) << runner.error().message;
  if (!runner) return seen;
  for (const StepSpec& spec : script) {
    auto step = (*runner)->step(spec);
    EXPECT_TRUE(step) << step.error().message;
    if (!step) break;
    seen.push_back(*std::move(step));
  }
  return seen;
}

// What the logits of a test were off at most; said at its end.
struct Worst {
  double nmse = 0, share = 0;
  ~Worst() {
    if (share > 0) fmt::print("models: {:.1e} of the squared logits, {:.2f} of what is tolerated\n", nmse, share);
  }
};

void expect_close(const std::vector<Seen>& seen, const std::vector<Seen>& wanted, uint32_t width, const Tolerance& t,
                  const std::string& what, Worst* all = nullptr) {
  ASSERT_EQ(seen.size(), wanted.size()) << what;
  double worst = 0, error = 0, power = 0;
  for (size_t i = 0; i < seen.size(); ++i) {
    // Two rows of NaN would pass for the same.
    ASSERT_TRUE(std::all_of(wanted[i].logits.begin(), wanted[i].logits.end(), [](float x) { return std::isfinite(x); }))
        << what << ", step " << i << " has logits that are no numbers";
    const auto difference = compare(seen[i], wanted[i], width, t, &worst);
    ASSERT_FALSE(difference) << what << ", step " << i << ": " << *difference;
    for (size_t j = 0; j < wanted[i].logits.size(); ++j) {
      error += std::pow(double(seen[i].logits[j]) - wanted[i].logits[j], 2);
      power += std::pow(double(wanted[i].logits[j]), 2);
    }
  }
  if (!all) return;
  EXPECT_LT(error, kModelNmse * power) << what;
  all->nmse = std::max(all->nmse, error / power), all->share = std::max(all->share, worst);
}

TinyShape shape_of(uint32_t d_head, std::vector<Format> formats = {Format::q8_0, Format::q4_0, Format::q5_0}) {
  TinyShape s;
  s.d_head = d_head;
  s.formats = std::move(formats);
  return s;
}

std::unique_ptr<test::LoadedModel> loaded(const std::string& arch, const TinyShape& shape) {
  auto model = test::load(TinyModel(arch, shape));
  EXPECT_TRUE(model) << model.error().message;
  return model ? *std::move(model) : nullptr;
}

TEST(CudaModels, LogitsAreTheReferences) {
  Worst worst;
  for (const std::string& arch : test::kArchitectures)
    for (const uint32_t d_head : {32u, 64u, 128u}) {
      TinyShape shape = shape_of(d_head);
      shape.fused_qkv = d_head == 32 && arch != "qwen3" && arch != "gemma3" && arch != "muse-glimmer";
      const auto model = loaded(arch, shape);
      ASSERT_TRUE(model);
      const Graph& graph = model->model.graph;
      const auto wanted = run(graph, make_poisoned_reference, chats());
      for (const bool fuse : {true, false})
        expect_close(run(graph, make_cuda_backend, chats(), fuse), wanted, shape.n_vocab, kModel,
                     fmt::format("{}, heads of {}, {}", arch, d_head, fuse ? "fused" : "not fused"), &worst);
    }
}

TEST(CudaModels, FloatWeights) {
  Worst worst;
  const auto model = loaded("llama", shape_of(64, {Format::f16, Format::f32}));
  ASSERT_TRUE(model);
  const Graph& graph = model->model.graph;
  expect_close(run(graph, make_cuda_backend, chats()), run(graph, make_poisoned_reference, chats()), 100,
               {"sums in f32 and halves in the cache; 16-bit factors where rows are many", 3e-2, 3e-2}, "float weights",
               &worst);
}

TEST(CudaModels, EveryTypeOfTheCache) {
  Worst worst;
  const auto model = loaded("qwen3", shape_of(64));
  ASSERT_TRUE(model);
  const Graph& graph = model->model.graph;
  for (const KvType kv : {KvType::f32, KvType::bf16, KvType::q8_0})
    expect_close(run(graph, make_cuda_backend, chats(), true, kv),
                 run(graph, make_poisoned_reference, chats(), true, kv), 100, kModel, std::string(name_of(kv)), &worst);
}

// The CUDA backend without these families and fused ops (ARGENT_CUDA_WITHOUT).
MakeBackend without(std::string names) {
  return [names = std::move(names)](const BackendOptions& options) {
    ::setenv("ARGENT_CUDA_WITHOUT", names.c_str(), 1);
    auto made = make_cuda_backend(options);
    ::unsetenv("ARGENT_CUDA_WITHOUT");
    return made;
  };
}

// What is fused, captured in a graph or started early computes the same numbers in the same order.
TEST(CudaModels, LeavingOutChangesNoBit) {
  for (const std::string& arch : test::kArchitectures) {
    const auto model = loaded(arch, shape_of(64));
    ASSERT_TRUE(model);
    const Graph& graph = model->model.graph;
    const auto whole = run(graph, make_cuda_backend, chats());
    expect_close(run(graph, make_cuda_backend, chats(), false), whole, 100, kExact, arch + ", not fused");
    std::vector<const char*> names = {"graphs", "dependent", "graphs,dependent", "folds", "graphs,dependent,folds"};
    if (arch == "qwen2") names.insert(names.end(), {"qkv_store", "qkv,qkv_store", "glu", "add_norm_mul", "norm_mul"});
    if (arch == "muse-glimmer")
      names.insert(names.end(), {"qkv_store", "mul_sigmoid", "norm_add_norm", "norm_mul_add"});
    for (const char* less : names)
      expect_close(run(graph, without(less), chats()), whole, 100, kExact, fmt::format("{} without {}", arch, less));
  }
}

TEST(CudaModels, RunsAreTheSame) {
  for (const std::string arch : {"qwen2", "gemma3"}) {
    const auto model = loaded(arch, shape_of(64));
    ASSERT_TRUE(model);
    const auto first = run(model->model.graph, make_cuda_backend, chats());
    for (int i = 0; i < 23; ++i)
      expect_close(run(model->model.graph, make_cuda_backend, chats()), first, 100, kExact, arch);
  }
}

// Tokens that the device samples and reads again, and what they are by themselves.
TEST(CudaModels, GreedyTextsAreTheSame) {
  const auto model = loaded("llama", shape_of(64));
  ASSERT_TRUE(model);
  Script script = {{{{0, 7}}, Outputs::some}};
  for (int i = 0; i < 60; ++i) script.push_back({{{0, 1}}, Outputs::all, true});
  const auto text = [&] { return run(model->model.graph, make_cuda_backend, script, true, KvType::f16, Tail::greedy); };
  const auto first = text();
  ASSERT_EQ(first.size(), script.size());
  for (const Seen& s : first) ASSERT_GE(s.sampled.back(), 0);
  for (int i = 0; i < 23; ++i) {
    const auto again = text();
    ASSERT_EQ(again.size(), first.size());
    for (size_t j = 0; j < first.size(); ++j) ASSERT_EQ(again[j].sampled, first[j].sampled) << "run " << i;
  }
}

// Steps of one sequence's single rows, with 0 to 15 rows of others in them: its logits have the same bits.
TEST(CudaModels, RowsDoNotSeeTheirNeighbours) {
  for (const std::string& arch : test::kArchitectures) {
    const auto model = loaded(arch, shape_of(64));
    ASSERT_TRUE(model);
    const uint32_t n_vocab = model->model.graph.value(model->model.graph.logits).width;
    const auto logits = [&](uint32_t n_others) {
      Script script;
      for (int i = 0; i < 24; ++i) {
        StepSpec spec{{{0, 1}}, Outputs::all};
        for (uint32_t s = 1, left = n_others; left; ++s) {
          const uint32_t take = (left + 7 - s) / (8 - s);  // the same for each of seven
          spec.parts.push_back({s, take});
          left -= take;
        }
        script.push_back(std::move(spec));
      }
      std::vector<float> own;
      for (const Seen& seen : run(model->model.graph, make_cuda_backend, script))
        own.insert(own.end(), seen.logits.begin(), seen.logits.begin() + n_vocab);
      return own;
    };
    const std::vector<float> alone = logits(0);
    EXPECT_EQ(alone.size(), 24 * n_vocab);
    for (const uint32_t n_others : {1u, 2u, 3u, 7u, 8u, 14u, 15u})
      EXPECT_EQ(logits(n_others), alone) << arch << " with " << n_others;
  }
}

// Layers on two devices: the second begins with what the first hands it. On two of a kind the bits are those of one.
TEST(CudaModels, SplitModels) {
  Worst worst;
  for (const std::string& arch : test::kArchitectures) {
    const auto model = loaded(arch, shape_of(64));
    ASSERT_TRUE(model);
    const Graph& graph = model->model.graph;
    const uint32_t n = model->model.n_layer;
    const auto split = [&](const MakeBackend& make_first, uint32_t n_first,
                           const MakeBackend& make_second = make_cuda_backend) -> MakeBackend {
      return [=](const BackendOptions& options) -> Result<std::unique_ptr<Backend>> {
        ARGENT_LET(std::unique_ptr<Backend> first, make_first(options));
        ARGENT_LET(std::unique_ptr<Backend> second, make_second(options));
        return make_split_backend(std::move(first), std::move(second), n_first, n);
      };
    };
    const auto whole = run(graph, make_cuda_backend, chats());
    for (const uint32_t n_first : {0u, n / 2, n - 1}) {
      const std::string what = fmt::format("{}, {} of {} layers on the first", arch, n_first, n);
      expect_close(run(graph, split(make_cuda_backend, n_first), chats()), whole, 100, kExact, what);
      // The CPU rounds activations of any number of rows to int8, CUDA does not: so does the oracle, part by part.
      const auto wanted = run(graph, split(make_cpu_backend, n_first, make_poisoned_reference), chats());
      expect_close(run(graph, split(make_cpu_backend, n_first), chats()), wanted, 100, kModel, what + ", the CPU",
                   &worst);
    }
  }
}

// The same with tokens that the second device samples and the first reads in the next step.
TEST(CudaModels, SplitTextsGoOn) {
  const auto model = loaded("llama", shape_of(64));
  ASSERT_TRUE(model);
  Script script = {{{{0, 7}}, Outputs::some}};
  for (int i = 0; i < 30; ++i) script.push_back({{{0, 1}}, Outputs::all, true});
  const auto text = [&](const MakeBackend& make) {
    return run(model->model.graph, make, script, true, KvType::f16, Tail::greedy);
  };
  const MakeBackend two = [](const BackendOptions& options) -> Result<std::unique_ptr<Backend>> {
    ARGENT_LET(std::unique_ptr<Backend> first, make_cuda_backend(options));
    ARGENT_LET(std::unique_ptr<Backend> second, make_cuda_backend(options));
    return make_split_backend(std::move(first), std::move(second), 1, 2);
  };
  const auto seen = text(two), wanted = text(make_cuda_backend);
  ASSERT_EQ(seen.size(), script.size());
  for (size_t i = 0; i < wanted.size(); ++i) EXPECT_EQ(seen[i].sampled, wanted[i].sampled) << "step " << i;
}

// A block in use is copied, and saved and brought back as another: each way the sequence goes on as it would have.
TEST(CudaModels, BlocksOfTheCacheGoOnElsewhere) {
  for (const KvType kv : {KvType::f16, KvType::bf16, KvType::f32, KvType::q8_0}) {
    Maker m(8);
    m.builder().set_logits(m.attention(2, {.n_head_kv = 1, .d_head = 64, .d_value = 64}, 0.125f));
    const Graph graph = *m.builder().finish();
    auto made = make_cuda_backend(backend_options(ActivationMode::native, kv));
    ASSERT_TRUE(made) << made.error().message;
    Backend& backend = **made;
    const Status loaded =
        backend.load(graph, backend.caps().resident_weights ? WeightStorage::resident : WeightStorage::mapped, nullptr);
    ASSERT_TRUE(loaded) << loaded.error().message;
    const KernelTable* device = &backend;
    Plan plan = *make_plan(graph, {64, 64, true, Tail::logits}, {&device, 1});
    ASSERT_TRUE(backend.allocate(kv_layout(graph), {plan.arena_bytes[0], {6}}));
    const auto id = backend.compile(std::move(plan));
    ASSERT_TRUE(id) << id.error().message;
    const auto step = [&](const std::vector<int32_t>& tokens, uint32_t from, const std::vector<int32_t>& table) {
      Step s;
      for (size_t i = 0; i < tokens.size(); ++i) {
        s.tokens.push_back(tokens[i]);
        s.positions.push_back(int32_t(from + i));
        s.row_sequence.push_back(0);
        s.output_rows.push_back(int32_t(i));
      }
      s.sequences.push_back({0, uint32_t(tokens.size()), from, 0, {table}, {}});
      const auto ticket = backend.run(*id, s);
      EXPECT_TRUE(ticket) << ticket.error().message;
      const auto result = backend.wait(*ticket);
      EXPECT_TRUE(result) << result.error().message;
      return std::vector<float>(result->logits.begin(), result->logits.end());
    };
    std::vector<int32_t> start(45), one = {7, 8, 9}, other = {60, 61, 62, 63, 50};
    for (size_t i = 0; i < start.size(); ++i) start[i] = int32_t(i * 11 % 64);
    step(start, 0, {3, 1});
    const KvCopy copy{0, 1, 4};
    ASSERT_TRUE(backend.copy_blocks({&copy, 1}));
    ASSERT_GT(backend.kv_block_bytes(0), 0u);
    std::vector<std::byte> room(backend.kv_block_bytes(0) + 64);
    const KvTransfer out{0, 1, room.data() + (64 - reinterpret_cast<uintptr_t>(room.data()) % 64) % 64};
    ASSERT_TRUE(backend.save_blocks({&out, 1}));
    const std::vector<float> first = step(one, 45, {3, 1}), second = step(other, 45, {3, 4});
    const KvTransfer back{0, 5, out.host};
    ASSERT_TRUE(backend.restore_blocks({&back, 1}));
    const std::vector<float> third = step(one, 45, {3, 5});
    // Each as if it had been alone.
    for (const auto& [more, seen] : {std::pair(one, first), std::pair(other, second), std::pair(one, third)}) {
      step(start, 0, {0, 2});
      EXPECT_EQ(step(more, 45, {0, 2}), seen) << name_of(kv);
    }
  }
}

}  // namespace
}  // namespace argent::ops_test
