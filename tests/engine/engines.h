// Engines on tiny models, and the loops that tests run them with.
#pragma once

#include <gtest/gtest.h>

#include <map>

#include "engine/engine.h"
#include "support/tiny_model.h"

namespace argent::test {

inline constexpr KvType kTypes[] = {KvType::f16, KvType::bf16, KvType::f32, KvType::q8_0};

inline EngineOptions options_for(const std::string& device) {
  EngineOptions o;
  o.device = device;
  o.backend.n_threads = 1;
  o.n_ctx = 256;
  o.n_sequences = 4;
  o.budget = {64, 16};
  return o;
}

inline std::unique_ptr<Engine> open(const TinyModel& tiny, const EngineOptions& options,
                                    std::unique_ptr<Backend> backend = nullptr) {
  static int n_files = 0;
  const std::string path =
      tiny.write("argent_engine_" + std::to_string(::getpid()) + "_" + std::to_string(n_files++) + ".gguf");
  auto engine = Engine::open(path, options, std::move(backend));
  std::remove(path.c_str());  // it stays mapped
  EXPECT_TRUE(engine) << engine.error().message;
  if (!engine) return nullptr;
  const Status loaded = (*engine)->load();
  EXPECT_TRUE(loaded) << loaded.error().message;
  return *std::move(engine);
}

inline std::vector<int32_t> text(size_t n, uint64_t seed = 1, uint32_t n_vocab = 100) {
  Rng rng(seed);
  std::vector<int32_t> tokens(n);
  for (int32_t& t : tokens) t = int32_t(rng.next() % n_vocab);
  return tokens;
}

inline std::vector<int32_t> joined(std::vector<int32_t> a, const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

inline Result<bool> step(
    Engine& engine, const std::function<void(const StepOutput&)>& sink = [](const StepOutput&) {}) {
  auto more = engine.step(sink);
  EXPECT_TRUE(more) << more.error().message;
  const Status sound = engine.cache().check();
  EXPECT_TRUE(sound) << sound.error().message;
  return more;
}

inline uint32_t set_tokens(Engine& engine, SequenceId id, const std::vector<int32_t>& tokens) {
  const auto reused = engine.set_tokens(id, tokens);
  EXPECT_TRUE(reused) << reused.error().message;
  return reused ? *reused : 0;
}

// The logits of every token (or of the last one), in order.
inline std::vector<float> logits(Engine& engine, SequenceId id, const std::vector<int32_t>& tokens, bool all = true) {
  engine.set_sampling(id, std::nullopt);
  engine.set_all_logits(id, all);
  set_tokens(engine, id, tokens);
  std::vector<float> out;
  uint32_t next = all ? 0 : uint32_t(tokens.size() - 1);
  for (;;) {
    const auto more = step(engine, [&](const StepOutput& row) {
      EXPECT_EQ(row.sequence, id);
      EXPECT_EQ(row.position, next++);
      out.insert(out.end(), row.logits.begin(), row.logits.end());
    });
    if (!more || !*more) break;
  }
  EXPECT_EQ(next, tokens.size());
  return out;
}
inline std::vector<float> logits(const TinyModel& tiny, const EngineOptions& options,
                                 const std::vector<int32_t>& tokens) {
  const auto engine = open(tiny, options);
  return engine ? logits(*engine, engine->open_sequence(), tokens) : std::vector<float>{};
}

// Sequences that are generated together, n tokens each.
struct Request {
  std::vector<int32_t> prompt;
  SampleParams params = {};
  size_t n = 16;
};
// Greedy ones and drawn ones, with penalties, of different lengths.
inline std::vector<Request> mixed_requests() {
  std::vector<Request> all;
  for (uint32_t i = 0; i < 5; ++i) {
    Request r{text(3 + 7 * i, i + 1)};
    r.n = 20 + 13 * i;  // they end one after the other
    r.params.seed = i;
    if (i % 2) r.params.temperature = 1;
    if (i == 3) r.params.repeat_penalty = 1.3f;
    if (i == 4) r.params.presence_penalty = 0.7f, r.params.frequency_penalty = 0.2f;
    all.push_back(std::move(r));
  }
  return all;
}
inline std::vector<std::vector<int32_t>> generate(Engine& engine, const std::vector<Request>& requests) {
  std::map<SequenceId, size_t> of;
  std::vector<std::vector<int32_t>> answers(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    const SequenceId id = engine.open_sequence();
    of[id] = i;
    engine.set_sampling(id, requests[i].params);
    set_tokens(engine, id, requests[i].prompt);
  }
  for (size_t guard = 0; guard < 100000; ++guard) {
    const auto more = step(engine, [&](const StepOutput& out) {
      const size_t i = of.at(out.sequence);
      EXPECT_EQ(out.position + 1, requests[i].prompt.size() + answers[i].size());
      answers[i].push_back(out.token);
      if (answers[i].size() == requests[i].n) engine.pause(out.sequence, true);
    });
    if (!more || !*more) break;
  }
  for (const auto& [id, i] : of) {
    EXPECT_EQ(answers[i].size(), requests[i].n);
    engine.close_sequence(id);
  }
  return answers;
}
inline std::vector<int32_t> generate(Engine& engine, const Request& request) {
  return generate(engine, std::vector{request})[0];
}

// Where two rows of floats differ first, bit for bit; "" when they do not.
inline std::string difference(const std::vector<float>& a, const std::vector<float>& b, size_t width) {
  if (a.size() != b.size()) return fmt::format("{} and {} values", a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i)
    if (std::memcmp(&a[i], &b[i], sizeof(float)) != 0)
      return fmt::format("row {} column {}: {} and {}", i / width, i % width, a[i], b[i]);
  return "";
}

}  // namespace argent::test
