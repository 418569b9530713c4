// The engine on the null backend: plans, reuse, scheduling, preemption and memory, thousands of steps.
#include <unistd.h>

#include "backends/null/backend.h"
#include "engine/engines.h"

namespace argent {
namespace {

using namespace test;

null::NullBackend& null_backend(Engine& engine) { return static_cast<null::NullBackend&>(engine.backend()); }
int32_t scripted(uint32_t position, const SampleParams& params) {
  return null::scripted_token(params.seed, params.sample_index, position, 100);
}

const SampleParams kSampled{.temperature = 1, .seed = 7};

TEST(NullEngine, SteadyDecodeBuildsNoPlan) {
  const auto engine = open(TinyModel("llama"), options_for("null"));
  const SequenceId id = engine->open_sequence();
  engine->set_sampling(id, kSampled);
  set_tokens(*engine, id, text(50));
  std::vector<int32_t> answer;
  const auto take = [&](const StepOutput& out) { answer.push_back(out.token); };
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(step(*engine, take));  // the prompt, the first decode
  const EngineCounters before = engine->counters();
  const null::Counters device = null_backend(*engine).counters();
  for (int i = 0; i < 200; ++i) ASSERT_TRUE(step(*engine, take));
  EXPECT_EQ(engine->counters().plans_built, before.plans_built);
  EXPECT_EQ(null_backend(*engine).counters().compiles, device.compiles);
  EXPECT_EQ(engine->counters().steps, before.steps + 200);
  EXPECT_EQ(engine->counters().tokens, before.tokens + 200);
  EXPECT_EQ(null_backend(*engine).counters().rows, device.rows + 200);
  ASSERT_EQ(answer.size(), 202u);
  for (uint32_t i = 0; i < 202; ++i) EXPECT_EQ(answer[i], scripted(49 + i, kSampled));
}

TEST(NullEngine, TheLadderIsShort) {
  EngineOptions options = options_for("null");
  options.n_sequences = 20;
  const auto engine = open(TinyModel("gemma3"), options);
  for (size_t n = 1; n <= 16; ++n)
    for (size_t length : {1u, 2u, 9u, 64u, 65u, 130u})
      generate(*engine, std::vector<Request>(n, Request{text(length, n), kSampled, 3}));
  EXPECT_LE(engine->counters().plans_built, 16u);
}

// The arena is settled from the largest rungs; values are placed greedily, so that smaller ones fit is no matter of
// course.
TEST(Memory, EveryRungFitsTheArenaOfTheLargest) {
  for (const std::string& arch : kArchitectures)
    for (const char* device : {"cpu", "reference"})
      for (const Budget budget : {Budget{1, 1}, Budget{3, 2}, Budget{64, 16}, Budget{70, 64}, Budget{512, 64}})
        for (const bool fuse : {false, true}) {
          EngineOptions options = options_for(device);
          options.backend.n_threads = 2;
          options.budget = budget;
          options.fuse = fuse;
          const auto engine = open(TinyModel(arch), options);
          ASSERT_TRUE(engine);
          for (const Tail tail : {Tail::logits, Tail::greedy, Tail::sample})
            for (const uint32_t tokens : {1u, 2u, 8u, 9u, 64u, 65u, budget.max_tokens})
              for (const uint32_t outputs : {0u, 1u, 2u, 8u, 9u, budget.max_outputs}) {
                if (tokens > budget.max_tokens || outputs > std::min(tokens, budget.max_outputs)) continue;
                const auto plan = engine->plan_for(tokens, outputs, tail, Stage::planned);
                ASSERT_TRUE(plan) << plan.error().message;
                EXPECT_LE(plan->arena_bytes[0], engine->memory().workspace_bytes)
                    << arch << " " << device << " " << tokens << " tokens, " << outputs << " outputs";
              }
        }
}

TEST(NullEngine, TokensThatAreKnownAreNotComputedAgain) {
  const auto engine = open(TinyModel("llama"), options_for("null"));
  const SequenceId id = engine->open_sequence();
  engine->set_sampling(id, kSampled);
  const auto run = [&](const std::vector<int32_t>& tokens, size_t n_answer = 1) {
    const uint64_t before = engine->counters().tokens;
    const uint32_t reused = set_tokens(*engine, id, tokens);
    engine->pause(id, false);
    for (size_t i = 0; i < n_answer;) step(*engine, [&](const StepOutput&) { ++i; });
    EXPECT_EQ(engine->counters().tokens - before, tokens.size() - reused + n_answer - 1);
    engine->pause(id, true);
    return reused;
  };
  const std::vector<int32_t> prompt = text(100);
  EXPECT_EQ(run(prompt, 20), 0u);
  // A further turn: only what is new, and the token that was sampled last.
  const std::vector<int32_t> history(engine->tokens(id).begin(), engine->tokens(id).end());
  ASSERT_EQ(history.size(), 120u);
  EXPECT_EQ(run(joined(history, text(30, 2))), 119u);
  EXPECT_EQ(run(joined(history, text(30, 2))), 149u);  // the same again: one token is computed
  std::vector<int32_t> edited = joined(history, text(30, 2));
  edited[50] = (edited[50] + 1) % 100;
  EXPECT_EQ(run(edited), 32u);  // whole blocks before the edit
  EXPECT_EQ(run(std::vector(edited.begin(), edited.begin() + 70)), 64u);
  EXPECT_EQ(run(std::vector(edited.begin(), edited.begin() + 1)), 0u);
  EXPECT_EQ(run(prompt), 96u);  // the tree still knows the first prompt, though the sequence went elsewhere
  const SequenceId other = engine->open_sequence();
  EXPECT_EQ(set_tokens(*engine, other, joined(prompt, text(5, 3))), 96u);  // and so does any other sequence
  engine->close_sequence(other);
  EXPECT_EQ(engine->counters().reused_tokens, 119u + 149 + 32 + 64 + 96 + 96);
}

TEST(NullEngine, WithoutThePrefixCacheOnlyTheSequenceItselfIsReused) {
  EngineOptions options = options_for("null");
  options.prefix_cache = false;
  const auto engine = open(TinyModel("llama"), options);
  const Request request{text(100), kSampled, 10};
  generate(*engine, request), generate(*engine, request);
  EXPECT_EQ(engine->counters().reused_tokens, 0u);
  const SequenceId id = engine->open_sequence();
  engine->set_sampling(id, kSampled);
  set_tokens(*engine, id, text(60));
  step(*engine);
  engine->pause(id, true);
  EXPECT_EQ(set_tokens(*engine, id, joined(text(60), {1, 2, 3})), 60u);
  EXPECT_EQ(set_tokens(*engine, id, text(40)), 39u);  // full blocks that only this sequence has can be written again
}

TEST(NullEngine, LogitsOfAllTokensAreAllComputed) {
  const auto engine = open(TinyModel("llama"), options_for("null"));
  const SequenceId id = engine->open_sequence();
  for (int round = 0; round < 2; ++round) {
    const std::vector<float> rows = logits(*engine, id, text(100));
    ASSERT_EQ(rows.size(), 100u * 100);
    for (uint32_t p = 0; p < 100; ++p) EXPECT_EQ(rows[p * 100 + size_t(null::scripted_token(id, 0, p, 100))], 1.0f);
  }
  EXPECT_EQ(engine->counters().reused_tokens, 0u);
  // A sequence that samples wants its last row only.
  engine->set_all_logits(id, true);
  engine->set_sampling(id, kSampled);
  set_tokens(*engine, id, text(40));
  size_t rows = 0;
  for (int i = 0; i < 3; ++i) step(*engine, [&](const StepOutput&) { ++rows; });
  EXPECT_EQ(engine->tokens(id).size(), 40 + rows);
}

TEST(NullEngine, ContextFull) {
  EngineOptions options = options_for("null");
  options.n_ctx = 40;
  const auto engine = open(TinyModel("llama"), options);
  const SequenceId id = engine->open_sequence();
  EXPECT_EQ(engine->set_tokens(id, text(41)).error().message, "41 tokens do not fit a context of 40 (--ctx sets it)");
  EXPECT_EQ(engine->set_tokens(id, {}).error().code, Code::invalid);
  engine->set_sampling(id, kSampled);
  set_tokens(*engine, id, text(38));
  std::vector<int32_t> answer;
  while (*step(*engine, [&](const StepOutput& out) { answer.push_back(out.token); }))
    ;
  ASSERT_EQ(answer.size(), 3u);  // two that fit, and the one that the last position gives
  EXPECT_EQ(answer[2], scripted(39, kSampled));
  EXPECT_EQ(engine->tokens(id).size(), 40u);
  EXPECT_EQ(engine->append_token(id, 1).error().message, "the context of 40 positions is full (--ctx sets it)");
  EXPECT_EQ(set_tokens(*engine, id, text(40)), 38u);
  engine->pause(id, false);
  EXPECT_TRUE(*step(*engine));
  EXPECT_FALSE(*step(*engine));
}

TEST(NullEngine, WrongIds) {
  const auto engine = open(TinyModel("llama"), options_for("null"));
  const SequenceId id = engine->open_sequence();
  set_tokens(*engine, id, {1, 2});
  for (int32_t wrong : {-1, 100, INT32_MAX, INT32_MIN}) {
    const std::vector<int32_t> tokens = {1, wrong, 2};
    EXPECT_EQ(engine->set_tokens(id, tokens).error().message,
              fmt::format("token id {} is outside the vocabulary of 100", wrong));
    EXPECT_EQ(engine->append_token(id, wrong).error().code, Code::invalid);
  }
  EXPECT_EQ(engine->tokens(id).size(), 2u);  // as it was
  EXPECT_EQ(*engine->append_token(id, 99), 3u);
}

TEST(NullEngine, DecodesGoOnWhileALongPromptIsRead) {
  EngineOptions options = options_for("null");
  options.n_ctx = 2048;
  const auto engine = open(TinyModel("muse-glimmer"), options);
  std::map<SequenceId, size_t> decoded;
  std::vector<SequenceId> decoders;
  for (int i = 0; i < 3; ++i) {
    decoders.push_back(engine->open_sequence());
    engine->set_sampling(decoders.back(), kSampled);
    set_tokens(*engine, decoders.back(), text(10, i));
  }
  step(*engine);
  const SequenceId prompt = engine->open_sequence();
  engine->set_sampling(prompt, kSampled);
  set_tokens(*engine, prompt, text(2000, 9));
  size_t steps = 0;
  while (decoded[prompt] == 0) {
    step(*engine, [&](const StepOutput& out) { ++decoded[out.sequence]; });
    ++steps;
    for (SequenceId id : decoders) ASSERT_EQ(decoded[id], steps);
  }
  EXPECT_EQ(steps, (2000 + 60) / 61u);
}

TEST(NullEngine, PromptsAreServedInOrderOfArrival) {
  const auto engine = open(TinyModel("llama"), options_for("null"));
  const SequenceId first = engine->open_sequence(), second = engine->open_sequence();
  engine->close_sequence(first);
  const SequenceId third = engine->open_sequence();  // the first one's number, but younger
  ASSERT_EQ(third, first);
  std::vector<SequenceId> order;
  for (SequenceId id : {third, second}) {
    engine->set_sampling(id, kSampled);
    set_tokens(*engine, id, text(200, id));
  }
  while (order.size() < 2)
    step(*engine, [&](const StepOutput& out) {
      order.push_back(out.sequence);
      engine->pause(out.sequence, true);
    });
  EXPECT_EQ(order, (std::vector{second, third}));
}

TEST(NullEngine, OnePoolForManySequences) {
  for (const std::string& arch : kArchitectures) {
    EngineOptions options = options_for("null");
    options.n_sequences = 1;  // blocks for one sequence of n_ctx
    const auto engine = open(TinyModel(arch), options);
    std::vector<Request> requests;
    for (uint64_t i = 0; i < 5; ++i) requests.push_back({text(100, i), {.temperature = 1, .seed = i}, 100});
    const auto answers = generate(*engine, requests);
    for (size_t i = 0; i < requests.size(); ++i)
      for (uint32_t k = 0; k < answers[i].size(); ++k)
        ASSERT_EQ(answers[i][k], scripted(99 + k, requests[i].params)) << arch;
    EXPECT_GT(engine->counters().preemptions, 0u);
    EXPECT_EQ(engine->cache().n_open(), 0u);
  }
}

TEST(NullEngine, IdleSequencesMakeRoom) {
  EngineOptions options = options_for("null");
  options.n_sequences = 1;
  const auto engine = open(TinyModel("llama"), options);
  const SequenceId idle = engine->open_sequence(), busy = engine->open_sequence();
  for (SequenceId id : {idle, busy}) {  // the older one keeps its blocks and waits for nothing
    engine->set_sampling(id, kSampled);
    set_tokens(*engine, id, text(250, id));
    size_t n = 0;
    while (n == 0) ASSERT_TRUE(*step(*engine, [&](const StepOutput&) { ++n; }));
    engine->pause(id, true);
  }
  EXPECT_GT(engine->counters().preemptions, 0u);
  engine->pause(idle, false);  // and comes back when it has work
  size_t n = 0;
  while (n < 3) ASSERT_TRUE(*step(*engine, [&](const StepOutput& out) { n += out.sequence == idle; }));
}

TEST(NullEngine, LogitsAndSamplesInTurn) {
  const auto engine = open(TinyModel("llama"), options_for("null"));
  const SequenceId sampled = engine->open_sequence(), scored = engine->open_sequence();
  engine->set_sampling(sampled, kSampled);
  set_tokens(*engine, sampled, text(20));
  engine->set_all_logits(scored, true);
  set_tokens(*engine, scored, text(20));
  size_t tokens = 0, rows = 0;
  while (*step(*engine, [&](const StepOutput& out) {
    tokens += out.sequence == sampled, rows += out.sequence == scored;
    EXPECT_EQ(out.logits.empty(), out.sequence == sampled);
    if (tokens == 4) engine->pause(sampled, true);
  }))
    ;
  EXPECT_EQ(tokens, 4u);
  EXPECT_EQ(rows, 20u);
}

TEST(NullEngine, MemoryIsWhatTheReportSays) {
  for (const std::string& arch : kArchitectures)
    for (const KvType kv : {KvType::f16, KvType::bf16, KvType::f32, KvType::q8_0}) {
      EngineOptions options = options_for("null");
      options.backend.kv_k = options.backend.kv_v = kv;
      const TinyModel tiny(arch);
      const std::string path = tiny.write("argent_memory_" + std::to_string(::getpid()) + ".gguf");
      for (const uint64_t missing : {0u, 1u}) {
        auto engine = *Engine::open(path, options);
        const MemoryReport memory = engine->memory();
        EXPECT_EQ(memory.weights_bytes, 0u);
        // Full layers: n_ctx positions of each sequence; sliding ones: window, step and the rest of a block.
        const uint64_t full = 4 * 256 / 32,
                       sliding = 4 * std::min<uint64_t>(256 / 32, (64 + 31 + 31) / 32 + (15 + 31) / 32);
        uint64_t wanted = 0;
        for (const KvSpec& layer : engine->model().kv.layers)
          wanted += (layer.window ? sliding : full) * 32 * 2 *
                    (kv == KvType::f32    ? 256
                     : kv == KvType::q8_0 ? 68
                                          : 128);
        EXPECT_EQ(memory.kv_bytes, wanted) << arch;
        EXPECT_EQ(memory.total_bytes(), memory.kv_bytes + memory.workspace_bytes);
        EXPECT_TRUE(memory.fits());
        null_backend(*engine).set_memory(memory.total_bytes() - missing);
        EXPECT_EQ(bool(engine->load()), missing == 0);
      }
      std::remove(path.c_str());
    }
}

// An engine on a null device of so much memory, which maps weights.
std::unique_ptr<Engine> open_mapped(const std::string& path, const EngineOptions& options, bool count,
                                    uint64_t memory) {
  std::unique_ptr<null::NullBackend> device = null::make_backend(options.backend);
  device->set_mapped(count);
  device->set_memory(memory);
  return *Engine::open(path, options, std::move(device));
}

// Weights that are mapped take memory where the device keeps what it reads, and none of their own elsewhere.
TEST(NullEngine, MappedWeightsWhereTheyCount) {
  const TinyModel tiny("llama");
  const std::string path = tiny.write("argent_mapped_" + std::to_string(::getpid()) + ".gguf");
  const EngineOptions options = options_for("null");
  const MemoryReport free = open_mapped(path, options, false, UINT64_MAX)->memory();
  EXPECT_EQ(free.weights_bytes, 0u);
  const auto engine = open_mapped(path, options, true, UINT64_MAX);
  const MemoryReport counted = engine->memory();
  EXPECT_EQ(counted.weights, WeightStorage::mapped);
  EXPECT_EQ(counted.weights_bytes, engine->file().tensor_bytes());
  EXPECT_EQ(counted.needed_bytes(), free.needed_bytes() + counted.weights_bytes);

  EXPECT_TRUE(open_mapped(path, options, true, counted.needed_bytes())->load());
  EXPECT_TRUE(open_mapped(path, options, false, counted.needed_bytes() - 1)->load());
  const auto small = open_mapped(path, options, true, counted.needed_bytes() - 1);
  EXPECT_FALSE(small->memory().fits());
  const Status refused = small->load();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::out_of_memory);
  const std::string text = "(weights " + bytes_text(counted.weights_bytes) + ",";
  EXPECT_NE(refused.error().message.find(text), std::string::npos) << refused.error().message;

  // A server's pool is of half of what they leave.
  EngineOptions serves = options;
  serves.serves = true, serves.n_ctx = 0, serves.n_sequences = 1000;
  const uint64_t left = 4 << 20;  // far above the least pool
  const uint64_t other = counted.workspace_bytes + MemoryReport::kReserve + counted.weights_bytes + left;
  const uint64_t without = open_mapped(path, serves, false, other)->memory().kv_bytes;
  const uint64_t with = open_mapped(path, serves, true, other)->memory().kv_bytes;
  const uint64_t block =
      null::make_backend(options.backend)->kv_bytes(engine->model().kv.layers[0], 1) * engine->model().kv.layers.size();
  EXPECT_GT(counted.weights_bytes / 2, 2 * block);  // so that it makes a difference
  EXPECT_NEAR(double(without), double(counted.weights_bytes + left) / 2, double(block));
  EXPECT_NEAR(double(with), double(left) / 2, double(block));
  std::remove(path.c_str());
}

// Measuring takes memory for an instant: it must be free, beside mapped weights that do not count as taken.
TEST(NullEngine, PeaksAreMeasuredInFreeMemory) {
  const TinyModel tiny("llama");
  const std::string path = tiny.write("argent_peaks_" + std::to_string(::getpid()) + ".gguf");
  for (const bool count : {false, true}) {
    const auto engine = open_mapped(path, options_for("null"), count, UINT64_MAX);
    const uint64_t least = (256ull << 20) + MemoryReport::kReserve + (count ? 0 : engine->memory().file_bytes);
    for (const uint64_t missing : {0u, 1u}) {
      null_backend(*engine).set_memory(least - missing);
      engine->measure_peaks();
      EXPECT_EQ(null_backend(*engine).counters().measures, 1u) << count << " " << missing;
    }
  }
  std::remove(path.c_str());
}

TEST(NullEngine, WhatCanNotBeOpened) {
  const TinyModel tiny("llama");
  const std::string path = tiny.write("argent_open_" + std::to_string(::getpid()) + ".gguf");
  EngineOptions options = options_for("null");
  options.device = "abacus";
  EXPECT_EQ(Engine::open(path, options).error().code, Code::unsupported);
  for (const int what : {0, 1, 2, 3}) {
    options = options_for("null");
    if (what == 0) options.n_ctx = 0x80000000;
    if (what == 1) options.budget.max_tokens = 0;
    if (what == 2) options.budget.max_outputs = 0;
    if (what == 3) options.n_sequences = 0;
    const auto engine = Engine::open(path, options);
    ASSERT_FALSE(engine) << what;
    EXPECT_EQ(engine.error().code, Code::invalid);
  }
  std::remove(path.c_str());
  EXPECT_FALSE(Engine::open(path, options_for("null")));
}

// Anything that a server could do to an engine, at random; every sampled token must be the scripted one of its
// position.
TEST(NullEngine, RandomLife) {
  struct Client {
    bool open = false, sampling = false;
    SampleParams params;
    std::vector<int32_t> tokens;
  };
  for (uint64_t seed = 0; seed < 12; ++seed) {
    Rng rng(seed);
    EngineOptions options = options_for("null");
    options.n_sequences = uint32_t(1 + seed % 3);
    options.n_ctx = 160;
    options.budget = {uint32_t(8 + rng.next() % 64), uint32_t(1 + rng.next() % 8)};
    options.prefix_cache = seed % 4 != 3;
    const auto engine = open(TinyModel(kArchitectures[seed % 5]), options);
    std::map<SequenceId, Client> clients;
    for (int round = 0; round < 400; ++round) {
      const auto any = [&] {
        auto it = clients.begin();
        std::advance(it, rng.next() % clients.size());
        return it;
      };
      const uint64_t action = rng.next() % 12;
      if (clients.size() < 6 && action < 3) {
        const SequenceId id = engine->open_sequence();
        ASSERT_FALSE(clients.contains(id));
        Client& c = clients[id] = {true,
                                   rng.next() % 4 != 0,
                                   {.temperature = 1, .seed = rng.next()},
                                   text(1 + rng.next() % 150, rng.next() % 3)};
        if (c.sampling) engine->set_sampling(id, c.params);
        set_tokens(*engine, id, c.tokens);
      } else if (!clients.empty() && action == 3) {
        const auto it = any();
        engine->close_sequence(it->first, rng.next() % 2);
        clients.erase(it);
      } else if (!clients.empty() && action == 4) {
        const auto it = any();
        it->second.tokens = text(1 + rng.next() % 160, rng.next() % 3);
        if (rng.next() % 2) it->second.tokens[it->second.tokens.size() / 2] = 5;
        set_tokens(*engine, it->first, it->second.tokens);
        engine->pause(it->first, false);
      } else if (!clients.empty() && action == 5) {
        engine->pause(any()->first, rng.next() % 2);
      } else if (!clients.empty() && action == 6) {
        const auto it = any();
        if (engine->append_token(it->first, 3)) it->second.tokens.push_back(3);
      } else {
        const auto more = step(*engine, [&](const StepOutput& out) {
          Client& c = clients.at(out.sequence);
          ASSERT_EQ(out.position + 1, c.tokens.size());
          if (!c.sampling) return;
          ASSERT_EQ(out.token, scripted(out.position, c.params));
          if (c.tokens.size() < 160) c.tokens.push_back(out.token);
        });
        ASSERT_TRUE(more);
      }
      for (const auto& [id, c] : clients) ASSERT_TRUE(std::ranges::equal(engine->tokens(id), c.tokens));
    }
    for (const auto& [id, c] : clients) engine->close_sequence(id);
    EXPECT_EQ(engine->cache().n_open(), 0u);
    EXPECT_TRUE(engine->cache().check());
  }
}

}  // namespace
}  // namespace argent
