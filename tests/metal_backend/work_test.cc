// The formulas of bench/metal/work.cc against what the emulator counts, dispatch by dispatch, over tiny models. Bytes
// are counted in the build with checks only; products of matrices and threads in both.
#include "metal/work.h"

#include <gtest/gtest.h>

#include <set>

#include "backends/metal/backend.h"
#include "metal/record.h"
#include "ops/harness.h"
#include "support/tiny_model.h"

namespace argent::ops_test {
namespace {

// How far counts may be from the formula, as a share of it, by the kernel's name.
struct Margin {
  std::string_view prefix, cause;
  double loaded, stored, shared;
};
constexpr Margin kMargins[] = {
    {"attention_decode", "what is masked at both ends of a block, and its item, is read as often as the compiler likes",
     0.15, 0, 0.15},
    {"attention_prefill", "the same; sums are rescaled where scores ask for it", 0.1, 0, 0.15},
    {"attention_combine", "lanes past the last split read it once more", 0.1, 0, 0},
    {"argmax_parts", "a lane whose value is the greatest reads its id", 0.005, 0, 0.1},
    {"", "exact but for words at ends", 0.005, 0, 0.005},
};
// A few hundred bytes, taken as what their arguments' ranges hold.
bool is_small(std::string_view kernel) {
  return kernel == "resolve_tokens" || kernel == "store_tokens" || kernel == "argmax_join";
}
const Margin& margin_of(std::string_view kernel) {
  return *std::find_if(std::begin(kMargins), std::end(kMargins),
                       [&](const Margin& m) { return kernel.starts_with(m.prefix); });
}

void expect_near(double counted, double formula, double margin, const std::string& what) {
  EXPECT_LE(std::abs(counted - formula), margin * formula + 1)
      << what << ": counted " << counted << ", formula " << formula;
}

std::set<std::string>& seen_kernels() {
  static std::set<std::string> seen;
  return seen;
}

void compare(const metal::Recording& recording, const std::string& arch) {
  size_t at = 0;
  for (const metal::RecordedList& list : recording.lists)
    for (const metal::RecordedDispatch& r : list) {
      ASSERT_LT(at, recording.counted.size());
      const emu::EmuDevice::Counted& c = recording.counted[at++];
      ASSERT_EQ(c.kernel, r.kernel);
      seen_kernels().insert(r.work.family);
      const std::string what = fmt::format("{} {}", arch, r.kernel);
      const Margin& m = margin_of(r.kernel);
      EXPECT_LE(r.work.threadgroups * r.work.threads, c.work.threads) << what;
      expect_near(double(c.work.matrix_multiplies), r.work.matrix, r.kernel.starts_with("attention") ? 0.02 : 0,
                  what + " products of matrices");
      if (!emu::Machine::instrumented || is_small(r.kernel)) continue;
      expect_near(double(c.work.loaded[0]), r.work.loaded + r.work.uniform, m.loaded, what + " loads");
      expect_near(double(c.work.stored[0]), r.work.stored, m.stored, what + " stores");
      expect_near(double(c.work.loaded[2] + c.work.stored[2]), r.work.shared, m.shared, what + " threadgroup memory");
    }
  EXPECT_EQ(at, recording.counted.size());
}

void compare_model(const std::string& arch, const test::TinyShape& shape, const std::vector<uint32_t>& steps,
                   Outputs outputs, Tail tail = Tail::logits) {
  const auto model = test::load(test::TinyModel(arch, shape));
  ASSERT_TRUE(model) << model.error().message;
  metal::Recording recording;
  const auto make = [&](const BackendOptions& options) {
    return metal::make_backend(options, "recorded", std::make_unique<metal::RecordingDevice>(&recording, true));
  };
  ops_test::Setup setup;
  setup.n_vocab = shape.n_vocab;
  setup.fuse = true;
  setup.tail = tail;
  const auto runner = Runner::create((*model)->model.graph, backend_options(ActivationMode::f32), make, setup);
  ASSERT_TRUE(runner) << runner.error().message;
  for (const uint32_t n : steps) ASSERT_TRUE((*runner)->step({{{0, n}}, outputs}));
  compare(recording, arch);
}

test::TinyShape shape_of(uint32_t n_embd, uint32_t d_head, std::vector<Format> formats) {
  test::TinyShape s;
  s.n_layer = 1;
  s.n_embd = n_embd;
  s.d_head = d_head;
  s.n_ff = n_embd;
  s.formats = std::move(formats);
  return s;
}

TEST(MetalWork, FormulasAreWhatTheEmulatorCounts) {
  seen_kernels().clear();
  // Q4_1 and Q5_1, whose values are large here, make no input of another product: it would be computed twice.
  compare_model("qwen2", shape_of(64, 64, {Format::q4_0, Format::q8_0, Format::q4_1, Format::q5_0, Format::q5_1}),
                {43, 1, 5}, Outputs::all, Tail::greedy);
  compare_model(
      "qwen3",
      shape_of(256, 64, {Format::q4_k, Format::q6_k, Format::q5_k, Format::q3_k, Format::q2_k, Format::iq4_xs}),
      {11, 1, 3}, Outputs::all);
  compare_model("muse-glimmer",
                shape_of(64, 128, {Format::q8_0, Format::f16, Format::iq4_nl, Format::mxfp4, Format::bf16}), {41, 1},
                Outputs::all);
  test::TinyShape wide = shape_of(544, 256, {Format::q8_0});
  wide.n_ff = 32, wide.n_head = 2, wide.n_head_kv = 1;
  compare_model("gemma3", wide, {9, 1}, Outputs::some);
  // Deep enough for two splits of a row's keys.
  test::TinyShape deep = shape_of(32, 64, {Format::q8_0});
  deep.n_head = 2, deep.n_head_kv = 1;
  const auto model = test::load(test::TinyModel("llama", deep));
  ASSERT_TRUE(model) << model.error().message;
  metal::Recording recording;
  const Status ran = metal::record_step((*model)->model.graph, {.depth = 600, .runs = true}, recording);
  ASSERT_TRUE(ran) << ran.error().message;
  compare(recording, "llama");
  for (const char* family : {"mul_mv", "mul_mv_tokens", "mul_mm", "glu", "glu_tokens", "glu_mm", "qkv_rope",
                             "qkv_rope_tokens", "attention_decode", "attention_combine", "attention_prefill",
                             "rms_norm", "rms_norm_heads", "rms_norm_twice", "get_rows", "rope", "kv_store"})
    EXPECT_TRUE(seen_kernels().count(family)) << family;
}

// Nothing runs and nothing is read: the same list as on the device that runs it.
TEST(MetalWork, RecordedListsAreTheSame) {
  const auto model = test::load(test::TinyModel("qwen3", shape_of(64, 64, {Format::q8_0})));
  ASSERT_TRUE(model);
  metal::Recording recordings[2];
  for (const bool runs : {false, true}) {
    const auto make = [&](const BackendOptions& options) {
      return metal::make_backend(options, "recorded",
                                 std::make_unique<metal::RecordingDevice>(&recordings[runs], runs));
    };
    ops_test::Setup setup;
    setup.n_vocab = 100;
    setup.fuse = true;
    const auto runner = Runner::create((*model)->model.graph, backend_options(ActivationMode::f32), make, setup);
    ASSERT_TRUE(runner);
    for (const uint32_t n : {20u, 1u}) ASSERT_TRUE((*runner)->step({{{0, n}}, Outputs::all}));
  }
  ASSERT_EQ(recordings[0].lists.size(), recordings[1].lists.size());
  for (size_t i = 0; i < recordings[0].lists.size(); ++i) {
    const metal::RecordedList &a = recordings[0].lists[i], &b = recordings[1].lists[i];
    ASSERT_EQ(a.size(), b.size());
    for (size_t k = 0; k < a.size(); ++k) {
      EXPECT_EQ(a[k].kernel, b[k].kernel);
      EXPECT_EQ(a[k].barrier, b[k].barrier);
      EXPECT_EQ(a[k].work.loaded, b[k].work.loaded) << a[k].kernel;
    }
  }
}

}  // namespace
}  // namespace argent::ops_test
