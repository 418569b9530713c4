// Whole models on the emulated Metal backend: logits against the reference, what fusing and leaving out changes, and
// runs that are the same.
#include <gtest/gtest.h>

#include "metal_backend/emu_backend.h"
#include "metal_backend/tolerances.h"
#include "ops/harness.h"
#include "support/tiny_model.h"

namespace argent::ops_test {
namespace {

using test::TinyModel;
using test::TinyShape;

const Script& chats() {
  static const Script script = {{{{0, 5}}, Outputs::some},
                                {{{0, 1}}, Outputs::all},
                                {{{0, 40}, {1, 7}}, Outputs::some},
                                {{{1, 1}, {0, 1}, {2, 20}}, Outputs::some},
                                {{{0, 2}, {1, 1}, {2, 1}}, Outputs::all},
                                {{{0, 1}, {1, 1}, {2, 1}}, Outputs::all}};
  return script;
}

Setup setup_of(const Graph& graph, bool fuse) {
  Setup setup;
  setup.n_vocab = graph.value(graph.logits).width;
  setup.fuse = fuse;
  return setup;
}

std::vector<Seen> run(const Graph& graph, const MakeBackend& make, bool fuse = true, KvType kv = KvType::f16) {
  std::vector<Seen> seen;
  const auto runner = Runner::create(graph, backend_options(ActivationMode::f32, kv), make, setup_of(graph, fuse));
  EXPECT_TRUE(runner) << runner.error().message;
  if (!runner) return seen;
  for (const StepSpec& spec : chats()) {
    auto step = (*runner)->step(spec);
    EXPECT_TRUE(step) << step.error().message;
    if (!step) break;
    seen.push_back(*std::move(step));
  }
  return seen;
}

MakeBackend without(std::string_view names) {
  return [names](const BackendOptions& options) { return metal::make_emu(options, {}, names); };
}

void expect_close(const std::vector<Seen>& seen, const std::vector<Seen>& wanted, uint32_t width, const Tolerance& t,
                  const std::string& what) {
  ASSERT_EQ(seen.size(), wanted.size()) << what;
  double worst = 0;
  for (size_t i = 0; i < seen.size(); ++i) {
    // Two rows of NaN would pass for the same.
    ASSERT_TRUE(std::all_of(wanted[i].logits.begin(), wanted[i].logits.end(), [](float x) { return std::isfinite(x); }))
        << what << ", step " << i << " has logits that are no numbers";
    const auto difference = compare(seen[i], wanted[i], width, t, &worst);
    EXPECT_FALSE(difference) << what << ", step " << i << ": " << *difference;
  }
}

TinyShape shape_of(uint32_t d_head, std::vector<Format> formats = {Format::q8_0, Format::q4_0, Format::q5_0}) {
  TinyShape s;
  s.d_head = d_head;
  s.formats = std::move(formats);
  return s;
}

TEST(MetalModels, LogitsAreTheReferences) {
  for (const std::string& arch : test::kArchitectures)
    for (const uint32_t d_head : {32u, 64u}) {  // without and with fast attention
      TinyShape shape = shape_of(d_head);
      shape.fused_qkv = d_head == 32 && arch != "qwen3" && arch != "gemma3" && arch != "muse-glimmer";
      const auto model = test::load(TinyModel(arch, shape));
      ASSERT_TRUE(model) << model.error().message;
      const Graph& graph = (*model)->model.graph;
      const std::string what = fmt::format("{}, heads of {}", arch, d_head);
      const auto wanted = run(graph, make_reference_backend);
      expect_close(run(graph, without(kExactFactors)), wanted, shape.n_vocab, kModel, what);
      expect_close(run(graph, without("")), wanted, shape.n_vocab, kHalfModel, what + ", halves");
    }
}

TEST(MetalModels, EveryTypeOfTheCache) {
  const auto model = test::load(TinyModel("qwen3", shape_of(64)));
  ASSERT_TRUE(model);
  const Graph& graph = (*model)->model.graph;
  for (const KvType kv : {KvType::f32, KvType::bf16, KvType::q8_0})
    expect_close(
        run(graph, without(kExactFactors), true, kv), run(graph, make_reference_backend, true, kv), 100,
        kv == KvType::f32 ? kModel : Tolerance{"values of the cache that round to their neighbours", 3e-2, 3e-2},
        std::string(name_of(kv)));
}

// What is fused or left out where the arithmetic is the same changes no bit.
TEST(MetalModels, FusingChangesNoBit) {
  if (emu::checked()) GTEST_SKIP() << "bits are the same with checks";
  for (const std::string& arch : test::kArchitectures) {
    TinyShape shape = shape_of(64);
    shape.n_layer = arch == "gemma3" || arch == "muse-glimmer" ? 4 : 2;
    const auto model = test::load(TinyModel(arch, shape));
    ASSERT_TRUE(model);
    const Graph& graph = (*model)->model.graph;
    const auto whole = run(graph, without(kExactFactors));
    std::vector<const char*> leave_out = {"qkv_store"};
    if (arch == "qwen2") leave_out = {"glu", "qkv,qkv_store", "add_norm_mul"};
    if (arch == "muse-glimmer") leave_out = {"mul_sigmoid", "norm_add_norm"};
    for (const char* less : leave_out)
      expect_close(run(graph, without(fmt::format("{},{}", kExactFactors, less))), whole, 100, kExact,
                   fmt::format("{} without {}", arch, less));
    expect_close(run(graph, without(kExactFactors), false), whole, 100, kExact, arch + " unfused");
  }
}

TEST(MetalModels, RunsAreTheSame) {
  if (emu::checked()) GTEST_SKIP() << "runs are the same with checks";
  const auto model = test::load(TinyModel("qwen2", shape_of(64)));
  ASSERT_TRUE(model);
  const auto first = run((*model)->model.graph, without(""));
  for (int i = 0; i < 23; ++i) expect_close(run((*model)->model.graph, without("")), first, 100, kExact, "again");
}

TEST(MetalBackend, NamesWhatThereIsToLeaveOut) {
  const auto refused = metal::make_emu({}, {}, "glu,nonsense");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::invalid);
  EXPECT_NE(refused.error().message.find("no 'nonsense' to leave out, there are matrix"), std::string::npos)
      << refused.error().message;
}

// Layers on two devices: the second begins with what the first hands it, and the bits are those of one.
TEST(MetalModels, SplitModelsAreTheSame) {
  for (const std::string arch : {"llama", "gemma3"}) {
    const auto model = test::load(TinyModel(arch, shape_of(64)));
    ASSERT_TRUE(model) << model.error().message;
    const Graph& graph = (*model)->model.graph;
    const uint32_t n = (*model)->model.n_layer;
    const auto whole = run(graph, without(""));
    for (const uint32_t cut : {0u, n / 2, n}) {
      const MakeBackend two = [&](const BackendOptions& options) -> Result<std::unique_ptr<Backend>> {
        ARGENT_LET(std::unique_ptr<Backend> first, metal::make_emu(options));
        ARGENT_LET(std::unique_ptr<Backend> second, metal::make_emu(options));
        return make_split_backend(std::move(first), std::move(second), cut, n);
      };
      expect_close(run(graph, two), whole, 100, kExact, fmt::format("{}, {} of {} layers", arch, cut, n));
    }
  }
}

}  // namespace
}  // namespace argent::ops_test
