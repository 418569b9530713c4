// KV blocks that leave the pool and come back: the same bits on every backend, in this process and in the next.
#include <cstdlib>
#include <filesystem>

#include "backends/null/backend.h"
#include "engine/engines.h"

namespace argent::test {
namespace {

struct Folder {
  Folder() : path(testing::TempDir() + "argent_tiers_" + std::to_string(::getpid())) {
    std::filesystem::remove_all(path);
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string path;
};

// Blocks for one sequence of 256 positions, so that every further text evicts the one before.
EngineOptions small_pool(const std::string& device, uint64_t host_bytes) {
  EngineOptions o = options_for(device);
  o.n_sequences = 1;
  o.kv_host_bytes = host_bytes;
  return o;
}

TEST(KvTransfer, BlocksComeBackBitForBit) {
  for (const std::string device : {"cpu", "reference", "null"})
    for (const KvType k : kTypes)
      for (const KvType v : kTypes) {
        EngineOptions options = options_for(device);
        options.backend.kv_k = k;
        options.backend.kv_v = v;
        const auto engine = open(TinyModel("gemma3"), options);  // two layer groups
        ASSERT_TRUE(engine);
        for (uint64_t i = 0; i < 3; ++i) generate(*engine, Request{text(200, i), {}, 2});
        Backend& backend = engine->backend();
        const auto& groups = engine->cache().config().groups;
        for (uint32_t g = 0; g < groups.size(); ++g) {
          const uint64_t bytes = backend.kv_block_bytes(g);
          ASSERT_GT(bytes, 0u);
          const auto n = int32_t(groups[g].n_blocks);
          std::vector<std::byte> before(bytes * uint64_t(n)), after(before.size());
          std::vector<KvTransfer> save, turned, again;
          for (int32_t i = 0; i < n; ++i) {
            save.push_back({g, i, &before[uint64_t(i) * bytes]});
            turned.push_back({g, n - 1 - i, &before[uint64_t(i) * bytes]});
            again.push_back({g, n - 1 - i, &after[uint64_t(i) * bytes]});
          }
          ASSERT_TRUE(backend.save_blocks(save));
          ASSERT_TRUE(backend.restore_blocks(turned));
          ASSERT_TRUE(backend.save_blocks(again));
          EXPECT_TRUE(before == after) << device << " group " << g << " " << name_of(k) << " " << name_of(v);
          EXPECT_NE(std::memcmp(&before[0], &before[bytes], bytes), 0);
          ASSERT_TRUE(backend.restore_blocks(save));
          for (const KvTransfer& bad : {KvTransfer{g, n, &before[0]}, KvTransfer{g, -1, &before[0]},
                                        KvTransfer{uint32_t(groups.size()), 0, &before[0]}}) {
            EXPECT_EQ(backend.save_blocks({&bad, 1}).error().code, Code::internal);
            EXPECT_EQ(backend.restore_blocks({&bad, 1}).error().code, Code::internal);
          }
        }
      }
}

TEST(KvPool, PagesAreTouchedAheadAndKeepWhatTheyHold) {
  const auto engine = open(TinyModel("gemma3"), options_for("cpu"));
  ASSERT_TRUE(engine);
  generate(*engine, Request{text(200, 1), {}, 2});
  Backend& backend = engine->backend();
  const auto content = [&] {
    std::vector<std::byte> bytes;
    for (uint32_t g = 0; g < engine->cache().config().groups.size(); ++g) {
      const uint64_t size = backend.kv_block_bytes(g), at = bytes.size();
      const auto n = int32_t(engine->cache().config().groups[g].n_blocks);
      bytes.resize(at + size * uint64_t(n));
      for (int32_t i = 0; i < n; ++i) {
        const KvTransfer one{g, i, &bytes[at + size * uint64_t(i)]};
        EXPECT_TRUE(backend.save_blocks({&one, 1}));
      }
    }
    return bytes;
  };
  const auto before = content();
  uint32_t n = 0;
  while (engine->prepare()) ASSERT_LT(++n, 1000u);
  EXPECT_GT(n, 0u);
  EXPECT_FALSE(engine->prepare());
  EXPECT_TRUE(content() == before);
}

TEST(KvTransfer, FormatsAreNamed) {
  std::set<std::string> seen;
  for (const std::string device : {"cpu", "reference"})
    for (const KvType type : {KvType::f16, KvType::q8_0})
      for (const ActivationMode mode : {ActivationMode::native, ActivationMode::f32}) {
        BackendOptions o{.isa = {}, .n_threads = 1, .activations = mode, .kv_k = type};
        EXPECT_TRUE(seen.insert((*make_backend(device, o))->kv_format()).second);
        o.kv_k = KvType::f32, o.kv_v = type;
        EXPECT_TRUE(seen.insert((*make_backend(device, o))->kv_format()).second);
      }
      // Sums of the baseline have other bits only where it has no fused multiply-add.
#ifdef __aarch64__
  constexpr bool kOtherBits = false;
#else
  constexpr bool kOtherBits = true;
#endif
  BackendOptions o{.isa = "baseline", .n_threads = 1};
  EXPECT_EQ(seen.insert((*make_backend("cpu", o))->kv_format()).second, kOtherBits);
}

TEST(Tiers, AnswersFromRestoredBlocksAreTheSame) {
  for (const std::string device : {"cpu", "reference"})
    for (const std::string arch : {"llama", "gemma3"})
      for (const KvType type : {KvType::f16, KvType::q8_0}) {
        const TinyModel tiny(arch);
        EngineOptions options = small_pool(device, 64 << 20);
        options.backend.kv_k = options.backend.kv_v = type;
        const auto engine = open(tiny, options);
        options.kv_host_bytes = 0;
        const auto cold = open(tiny, options);
        const Request request{text(200), {.temperature = 1, .seed = 5}, 20};
        const auto first = generate(*engine, request);
        for (uint64_t i = 10; i < 13; ++i) generate(*engine, Request{text(240, i), {}, 2});
        const uint64_t before = engine->counters().tokens;
        EXPECT_EQ(generate(*engine, request), first) << device << " " << arch;
        EXPECT_EQ(generate(*cold, request), first);
        EXPECT_EQ(engine->counters().tokens - before, 200u - 192 + 19);
        EXPECT_EQ(engine->cache().tier()->counters().host_tokens, 192u);
        // Logits of the last row, from restored blocks and from nothing.
        for (uint64_t i = 10; i < 13; ++i) generate(*engine, Request{text(240, i), {}, 2});
        const std::vector<int32_t> other = joined(text(150), text(30, 7));
        const auto cold2 = open(tiny, options);
        EXPECT_EQ(difference(logits(*engine, engine->open_sequence(), other, false),
                             logits(*cold2, cold2->open_sequence(), other, false), 100),
                  "");
        EXPECT_GT(engine->cache().tier()->counters().host_tokens, 192u);
      }
}

TEST(Tiers, TheNextEngineFindsWhatThisOneLeft) {
  for (const std::string arch : {"llama", "gemma3"}) {
    const Folder folder;
    const TinyModel tiny(arch);
    EngineOptions options = small_pool("cpu", 8 << 20);
    options.kv_disk = folder.path;
    const std::vector<Request> requests = {{text(200), {.temperature = 1, .seed = 5}, 20},
                                           {text(130, 3), {.temperature = 1, .seed = 6}, 20}};
    std::vector<std::vector<int32_t>> first;
    {
      const auto engine = open(tiny, options);
      for (const Request& r : requests) first.push_back(generate(*engine, r));
    }
    for (int round = 0; round < 2; ++round) {
      const auto engine = open(tiny, options);
      EXPECT_GT(engine->cache().tier()->usage().disk_bytes, 0u);
      for (size_t i = 0; i < requests.size(); ++i) EXPECT_EQ(generate(*engine, requests[i]), first[i]) << arch;
      EXPECT_EQ(engine->counters().reused_tokens, 192u + 128);
      EXPECT_EQ(engine->cache().tier()->counters().disk_tokens, 192u + 128);
    }
    // Other bits are another folder.
    options.backend.kv_k = KvType::f32;
    const auto other = open(tiny, options);
    generate(*other, requests[0]);
    EXPECT_EQ(other->counters().reused_tokens, 0u);
    const auto model = open(TinyModel(arch, {.seed = 2}), options);
    generate(*model, requests[0]);
    EXPECT_EQ(model->counters().reused_tokens, 0u);
  }
}

// While one waits for the disk the others go on, and a disk that gives nothing holds nobody up for long.
TEST(Tiers, OthersGoOnWhileOneWaitsForTheDisk) {
  const Folder folder;
  const TinyModel tiny("llama");
  EngineOptions options = small_pool("null", 8 << 20);
  options.n_sequences = 4;
  options.kv_disk = folder.path;
  generate(*open(tiny, options), Request{text(200), {}, 2});
  const auto engine = open(tiny, options);
  const SequenceId busy = engine->open_sequence();
  engine->set_sampling(busy, SampleParams{});
  set_tokens(*engine, busy, text(20, 9));
  const SequenceId waiting = engine->open_sequence();
  engine->set_sampling(waiting, SampleParams{});
  EXPECT_EQ(set_tokens(*engine, waiting, text(200)), 0u);
  std::map<SequenceId, int> rows;
  while (rows[waiting] == 0) ASSERT_TRUE(*step(*engine, [&](const StepOutput& out) { ++rows[out.sequence]; }));
  EXPECT_GT(rows[busy], 0);
  EXPECT_EQ(engine->reused(waiting), 192u);
}

TEST(Tiers, WhatCannotBe) {
  const TinyModel tiny("llama");
  const std::string path = tiny.write("argent_tiers_" + std::to_string(::getpid()) + ".gguf");
  EngineOptions options = small_pool("null", 0);
  options.kv_disk = "/nowhere";
  EXPECT_EQ((*Engine::open(path, options))->load().error().code, Code::invalid);
  options = small_pool("cpu", 1ull << 60);
  const Status status = (*Engine::open(path, options))->load();
  EXPECT_EQ(status.error().code, Code::out_of_memory);
  EXPECT_NE(status.error().message.find("evicted KV blocks"), std::string::npos) << status.error().message;
  options.kv_host_bytes = std::nullopt;
  const auto engine = *Engine::open(path, options);
  EXPECT_GT(engine->memory().kv_host_bytes, 0u);
  EXPECT_LE(engine->memory().kv_host_bytes, 1ull << 30);
  EXPECT_TRUE(engine->load());
  std::remove(path.c_str());
}

// ---- preemption ----

// A pool for one: who waits for it holds nothing, so nothing is taken from it however long that is.
TEST(Preemption, IsCountedOnceAndOnlyOfThoseWhoComputed) {
  EngineOptions options = options_for("null");
  options.n_sequences = 1;
  const auto engine = open(TinyModel("llama"), options);
  std::vector<Request> requests;
  generate(*engine, Request{text(120), {}, 1});  // a beginning that all find
  const uint64_t found = engine->cache().counters().reused_tokens;
  for (uint64_t i = 0; i < 4; ++i) requests.push_back({joined(text(120), text(20, i)), {}, 110});
  generate(*engine, requests);
  EXPECT_LE(engine->counters().preemptions, 8u);
  EXPECT_EQ(engine->counters().reused_tokens, 4 * 96u);
  // A place in the cache is looked for when there may be one, not at each of some 440 steps by three.
  EXPECT_LE(engine->cache().counters().reused_tokens - found, 150 * 96u);
}

// The last rows of a prompt whose rows are all wanted come one by one where logits rows are short.
TEST(StepSizes, RowsOfAPromptAreNoDecodes) {
  EngineOptions options = options_for("null");
  options.budget = {8, 1};
  const auto engine = open(TinyModel("llama"), options);
  const SequenceId id = engine->open_sequence();
  engine->set_all_logits(id, true);
  set_tokens(*engine, id, text(5));
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(*step(*engine));
    EXPECT_EQ(engine->last_step().decodes, 0u);
    EXPECT_EQ(engine->last_step().prompt, 1u);
  }
  engine->set_all_logits(id, false);
  engine->set_sampling(id, SampleParams{});
  ASSERT_TRUE(engine->append_token(id, 1));
  ASSERT_TRUE(*step(*engine));
  EXPECT_EQ(engine->last_step().decodes, 1u);
}

// Sequences of high priority keep coming and fill the pool: the low one has it after so many steps for each level, and
// keeps it until it is done.
TEST(Aging, ReachesBlocksToo) {
  EngineOptions options = options_for("null");
  options.n_sequences = 1;
  const auto engine = open(TinyModel("llama"), options);
  const SequenceId low = engine->open_sequence();
  engine->set_sampling(low, SampleParams{});
  engine->mode(low).priority = -2;
  std::vector<SequenceId> high;
  uint64_t seed = 100;
  const auto arrive = [&] {
    high.push_back(engine->open_sequence());
    engine->set_sampling(high.back(), SampleParams{});
    set_tokens(*engine, high.back(), text(120, seed++));
  };
  arrive(), arrive();
  set_tokens(*engine, low, text(150, 1));
  size_t steps = 0, answered = 0;
  uint64_t first = 0;
  while (answered < 60 && steps < 3000) {
    ++steps;
    std::vector<SequenceId> over;
    ASSERT_TRUE(*step(*engine, [&](const StepOutput& out) {
      if (out.sequence == low) {
        if (answered++ == 0) first = steps;
      } else if (engine->tokens(out.sequence).size() >= 160) {
        engine->pause(out.sequence, true);
        over.push_back(out.sequence);
      }
    }));
    for (const SequenceId id : over) {
      engine->close_sequence(id);
      std::erase(high, id);
      arrive();
    }
  }
  EXPECT_EQ(answered, 60u);
  EXPECT_LE(first, 3 * kAgingSteps + 64);
  EXPECT_LE(steps, first + 64);  // it kept its blocks
}

}  // namespace
}  // namespace argent::test
