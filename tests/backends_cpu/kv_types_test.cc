// The KV cache's types on the CPU: attention of every pair of types against the reference, threads and blocks that are
// copied, and how attention is shared out.
#include <gtest/gtest.h>

#include "backends/cpu/attention_policy.h"
#include "ops/harness.h"

namespace argent::ops_test {
namespace {

constexpr KvType kTypes[] = {KvType::f16, KvType::bf16, KvType::f32, KvType::q8_0};

BackendOptions options_of(const std::string& isa, KvType k, KvType v, uint32_t n_threads,
                          ActivationMode mode = ActivationMode::native) {
  BackendOptions options = backend_options(mode, k, n_threads);
  options.kv_v = v;
  options.isa = isa;
  return options;
}

class CpuKvTypes : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (!make_cpu_backend(options_of(GetParam(), KvType::f16, KvType::f16, 1)))
      GTEST_SKIP() << "this machine does not run " << GetParam();
  }
};

// In the native flavour the reference rounds queries of q8_0 keys as kernels do, so the tolerance is that of f16.
TEST_P(CpuKvTypes, AttentionAgreesWithTheReference) {
  for (const KvType k : kTypes)
    for (const KvType v : kTypes) {
      const BackendOptions options = options_of(GetParam(), k, v, k == v ? 3 : 1);
      for (const Case& c : cases()) {
        if (c.op != Op::attention && c.op != Op::kv_store) continue;
        const Outcome outcome = run_case(c, options, make_cpu_backend);
        const std::string what = fmt::format("{} {} {}: {}", c.name, name_of(k), name_of(v), outcome.detail);
        EXPECT_TRUE(outcome.passed()) << what;
        const bool odd = c.name == "kv_store.odd_head" || c.name == "attention.head_80";
        const bool refused = odd && (k == KvType::q8_0 || v == KvType::q8_0);
        EXPECT_EQ(outcome.state == Outcome::none, refused) << what;
        if (refused) {
          EXPECT_NE(outcome.detail.find("cannot be q8_0"), std::string::npos) << what;
        }
      }
    }
}

// What int16 queries cost where K is q8_0: the same cache, the query as it is.
constexpr double kQueryNmse = 1e-8;

TEST_P(CpuKvTypes, QueriesAsInt16CostLittle) {
  for (const uint32_t d : {64u, 96u, 128u, 256u}) {
    Maker m(5);
    const ValueId out = m.attention(4, {.n_head_kv = 2, .d_head = d, .d_value = d}, 1 / std::sqrt(float(d)));
    m.builder().set_logits(out);
    const Graph graph = *m.builder().finish();
    const auto run = [&](const MakeBackend& make) {
      const auto runner =
          *Runner::create(graph, options_of(GetParam(), KvType::q8_0, KvType::q8_0, 1, ActivationMode::f32), make, {});
      return runner->step({{{0, 300}}, Outputs::all})->logits;
    };
    const std::vector<float> seen = run(make_cpu_backend), want = run(make_poisoned_reference);
    double error = 0, power = 0;
    for (size_t i = 0; i < want.size(); ++i)
      error += std::pow(double(seen[i]) - want[i], 2), power += double(want[i]) * want[i];
    EXPECT_LT(error / power, kQueryNmse) << d;
    EXPECT_GT(error, 0) << d;
  }
}

// One text at every depth up to 600, in steps that end beside the edges of blocks and splits; tiles and splits, one
// thread and several, rows one by one and together.
TEST_P(CpuKvTypes, ThreadsAndDepthsGiveTheSameBits) {
  for (const KvType type : kTypes)
    for (const uint32_t window : {0u, 40u, 300u}) {
      Maker m(6);
      const ValueId out = m.attention(6, {.n_head_kv = 2, .d_head = 64, .d_value = 64, .window = window}, 0.125f);
      m.builder().set_logits(out);
      const Graph graph = *m.builder().finish();
      std::vector<std::unique_ptr<Runner>> runners;
      for (const uint32_t n_threads : {1u, 2u, 5u})
        runners.push_back(*Runner::create(graph, options_of(GetParam(), type, type, n_threads), make_cpu_backend, {}));
      for (const uint32_t n :
           {1u, 1u, 29u, 1u, 1u, 7u, 200u, 13u, 1u, 1u, 1u, 1u, 1u, 8u, 200u, 40u, 2u, 1u, 90u, 1u}) {
        const Seen want = *runners[0]->step({{{0, n}}, Outputs::all});
        for (size_t i = 1; i < runners.size(); ++i) {
          double worst = 0;
          const auto difference = compare(*runners[i]->step({{{0, n}}, Outputs::all}), want, 6 * 64, kExact, &worst);
          ASSERT_FALSE(difference) << name_of(type) << " window " << window << ": " << *difference;
        }
      }
    }
}

// A block in use is copied and both copies are written on: each position's bytes are its own.
TEST_P(CpuKvTypes, CopiedBlocksGoOn) {
  for (const KvType k : kTypes)
    for (const KvType v : {k, KvType::f16}) {
      Maker m(8);
      m.builder().set_logits(m.attention(2, {.n_head_kv = 1, .d_head = 64, .d_value = 64}, 0.125f));
      const Graph graph = *m.builder().finish();
      const auto backend = *make_cpu_backend(options_of(GetParam(), k, v, 2));
      ASSERT_TRUE(backend->load(graph, WeightStorage::resident, nullptr));
      const KernelTable* device = backend.get();
      Plan plan = *make_plan(graph, {64, 64, true, Tail::logits}, {&device, 1});
      ASSERT_TRUE(backend->allocate(kv_layout(graph), {plan.arena_bytes[0], {5}}));
      const PlanId id = *backend->compile(std::move(plan));
      const auto step = [&](const std::vector<int32_t>& tokens, uint32_t from, const std::vector<int32_t>& table) {
        Step s;
        for (size_t i = 0; i < tokens.size(); ++i) {
          s.tokens.push_back(tokens[i]);
          s.positions.push_back(int32_t(from + i));
          s.row_sequence.push_back(0);
          s.output_rows.push_back(int32_t(i));
        }
        s.sequences.push_back({0, uint32_t(tokens.size()), from, 0, {table}, {}});
        const auto ticket = backend->run(id, s);
        EXPECT_TRUE(ticket) << ticket.error().message;
        const auto logits = (*backend->wait(*ticket)).logits;
        return std::vector<float>(logits.begin(), logits.end());
      };
      std::vector<int32_t> start(45), one = {7, 8, 9}, other = {60, 61, 62, 63, 50};
      for (size_t i = 0; i < start.size(); ++i) start[i] = int32_t(i * 11 % 64);
      step(start, 0, {3, 1});
      const KvCopy copy{0, 1, 4};
      ASSERT_TRUE(backend->copy_blocks({&copy, 1}));
      const std::vector<float> first = step(one, 45, {3, 1}), second = step(other, 45, {3, 4});
      // Each as if it had been alone.
      for (const auto& [more, seen] : {std::pair(one, first), std::pair(other, second)}) {
        step(start, 0, {0, 2});
        EXPECT_EQ(step(more, 45, {0, 2}), seen) << name_of(k) << ' ' << name_of(v);
      }
    }
}

INSTANTIATE_TEST_SUITE_P(Isas, CpuKvTypes, testing::Values("baseline", "avx2", "avxvnni", "avx512", "neon", "i8mm"),
                         [](const auto& info) { return info.param; });

TEST(KvTypes, BytesAndNames) {
  EXPECT_EQ(kv_bytes_of(KvType::f16, 128), 256u);
  EXPECT_EQ(kv_bytes_of(KvType::bf16, 80), 160u);
  EXPECT_EQ(kv_bytes_of(KvType::f32, 3), 12u);
  EXPECT_EQ(kv_bytes_of(KvType::q8_0, 128), 136u);
  for (const KvType type : kTypes) EXPECT_EQ(name_of(type), kKvTypeNames[size_t(type)]);
  const KvLayout layout{{0}, {0}, {{.n_head_kv = 1, .d_head = 96, .d_value = 80}}};
  EXPECT_TRUE(check_kv_types(layout, KvType::q8_0, KvType::f16));
  const Status refused = check_kv_types(layout, KvType::q8_0, KvType::q8_0);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::unsupported);
  EXPECT_EQ(refused.error().message,
            "the V cache cannot be q8_0: heads have 80 elements, no multiple of 32; f16, bf16 and f32 take any");
}

// Small numbers one by one, since the text cannot show them.
TEST(AttentionPolicy, SharesOutFewRowsOverManyKeys) {
  using cpu::units_a_claim;
  EXPECT_EQ(units_a_claim(1, 8, 32, 1), 0u);     // one thread
  EXPECT_EQ(units_a_claim(1, 8, 1, 2), 0u);      // nothing to divide
  EXPECT_EQ(units_a_claim(9, 8, 32, 2), 0u);     // more rows than the workspace has states for
  EXPECT_EQ(units_a_claim(2, 16, 32, 2), 0u);    // whole tiles are enough
  EXPECT_EQ(units_a_claim(1, 8, 32, 2), 8u);     // Qwen3-0.6B behind 8,192 positions
  EXPECT_EQ(units_a_claim(1, 2, 32, 2), 2u);     // Qwen2.5-0.5B
  EXPECT_EQ(units_a_claim(1, 1, 3, 2), 1u);      // Gemma's window
  EXPECT_EQ(units_a_claim(1, 8, 4096, 2), 16u);  // a wave has 64
  using cpu::rows_a_tile;
  EXPECT_EQ(rows_a_tile(512, 3, 3, 2), 16u);  // enough tiles
  EXPECT_EQ(rows_a_tile(48, 3, 3, 2), 8u);    // SmolLM2: 9 tiles of 16 rows
  EXPECT_EQ(rows_a_tile(16, 3, 3, 2), 4u);    // 12 queries fill a pass and a half
  EXPECT_EQ(rows_a_tile(16, 1, 1, 2), 8u);    // one query a row: never less than one pass
  EXPECT_EQ(rows_a_tile(16, 8, 16, 2), 8u);
  EXPECT_TRUE(cpu::claims_ahead(32, 2));
  EXPECT_FALSE(cpu::claims_ahead(2, 2));  // the second is the other thread's
  for (uint32_t rows = 1; rows <= 9; ++rows)
    for (uint32_t tiles = 1; tiles <= 64; ++tiles)
      for (uint32_t splits = 1; splits <= 70; ++splits)
        for (const uint32_t threads : {1u, 2u, 3u, 8u, 64u}) {
          const uint32_t n = units_a_claim(rows, tiles, splits, threads);
          if (n > 1) {
            ASSERT_GE(tiles * std::min(splits, cpu::kSplitWave) / n, 16 * threads) << "claims for all threads";
          }
        }
}

}  // namespace
}  // namespace argent::ops_test
