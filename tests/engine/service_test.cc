// The service over tiny models: every request ends, in order and once, whatever happens to it, and nothing is left.
#include "engine/service.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <set>

#include "engine/engines.h"

namespace argent::test {
namespace {

using Pooling = GenerationRequest::Pooling;

// Collects what a request says, and checks the order in which it does.
class Ear final : public RequestSink {
 public:
  struct Answer {
    std::string text;
    std::vector<TokenInfo> tokens;
    uint32_t n_tokens = 0;
    std::optional<Finish> finish;
  };
  void started(const RequestUsage&) override { EXPECT_FALSE(over()); }
  void prompt_read(const RequestUsage&, std::vector<TokenInfo> probs) override {
    EXPECT_FALSE(read_) << "read twice";
    read_ = true;
    prompt = std::move(probs);
  }
  void answer(AnswerEvent e) override {
    EXPECT_FALSE(over());
    if (answers.size() <= e.index) answers.resize(e.index + 1);
    Answer& a = answers[e.index];
    EXPECT_FALSE(a.finish) << "an event behind the last";
    EXPECT_GE(e.n_tokens, a.n_tokens);
    a.text += e.text;
    a.n_tokens = e.n_tokens;
    for (TokenInfo& t : e.tokens) a.tokens.push_back(std::move(t));
    a.finish = e.finish;
    if (on_answer) on_answer();
  }
  void embedding(std::vector<float> e) override { vector = std::move(e); }
  void done(const RequestUsage& u) override {
    usage = u;
    end();
  }
  void failed(const Error& e) override {
    error = e;
    end();
  }
  bool over() {
    const std::lock_guard lock(mutex_);
    return over_;
  }
  void wait() {
    std::unique_lock lock(mutex_);
    ASSERT_TRUE(changed_.wait_for(lock, std::chrono::seconds(60), [&] { return over_; })) << "never ended";
  }

  std::vector<Answer> answers;
  std::vector<TokenInfo> prompt;
  std::vector<float> vector;
  RequestUsage usage;
  std::optional<Error> error;
  std::function<void()> on_answer;

 private:
  void end() {
    const std::lock_guard lock(mutex_);
    EXPECT_FALSE(over_) << "ended twice";
    over_ = true;
    changed_.notify_all();
  }
  bool read_ = false, over_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
};

std::unique_ptr<Service> serve(const std::string& device, uint32_t parallel = 4, uint32_t n_ctx = 256,
                               uint32_t n_sequences = 4, const std::string& architecture = "llama") {
  EngineOptions options = options_for(device);
  options.n_ctx = n_ctx;
  options.n_sequences = n_sequences;
  return Service::start(open(TinyModel(architecture), options), {.parallel = parallel});
}

GenerationRequest request(std::vector<int32_t> prompt, uint32_t max_tokens, SampleParams sampling = {}) {
  GenerationRequest r;
  r.prompt = std::move(prompt);
  r.max_tokens = max_tokens;
  r.sampling = sampling;
  r.ignore_end = true;
  return r;
}

std::shared_ptr<Ear> run(Service& service, GenerationRequest r) {
  auto ear = std::make_shared<Ear>();
  const auto id = service.submit(std::move(r), ear);
  EXPECT_TRUE(id) << id.error().message;
  if (id) ear->wait();
  return ear;
}

void expect_nothing_left(Service& service) {
  ASSERT_TRUE(service.drain(std::chrono::seconds(60)));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the last metrics follow the last event
  const ServiceMetrics& m = service.metrics();
  EXPECT_EQ(m.running, 0u);
  EXPECT_EQ(m.queued, 0u);
  EXPECT_EQ(m.kv_used, 0u);
  EXPECT_EQ(m.requests, m.finished + m.cancelled + m.failed);
}

TEST(Service, AnswersAreThoseOfTheSoloRun) {
  std::vector<std::string> alone;
  std::vector<GenerationRequest> (*make)() = [] {
    std::vector<GenerationRequest> all;
    for (uint32_t i = 0; i < 8; ++i)
      all.push_back(request(text(5 + 17 * i, i), 12 + i,
                            i % 2 ? SampleParams{.temperature = 1, .seed = i} : SampleParams{.temperature = 0}));
    for (GenerationRequest& r : all) r.log_probs = 0;
    return all;
  };
  const auto tokens = [](const Ear& ear) {
    std::string out;
    for (const Ear::Answer& a : ear.answers)
      for (const TokenInfo& t : a.tokens) out += fmt::format("{}:{} ", t.id, t.log_prob);
    return out;
  };
  {
    const auto service = serve("cpu");
    for (GenerationRequest& r : make()) alone.push_back(tokens(*run(*service, std::move(r))));
  }
  const auto service = serve("cpu", 4, 256, 2);  // two of the eight fit the pool: the others preempt
  std::vector<std::shared_ptr<Ear>> ears;
  for (GenerationRequest& r : make()) {
    ears.push_back(std::make_shared<Ear>());
    ASSERT_TRUE(service->submit(std::move(r), ears.back()));
  }
  for (size_t i = 0; i < ears.size(); ++i) {
    ears[i]->wait();
    EXPECT_FALSE(ears[i]->error);
    EXPECT_EQ(tokens(*ears[i]), alone[i]) << i;
    EXPECT_EQ(ears[i]->answers[0].n_tokens, 12 + i);
    EXPECT_EQ(ears[i]->answers[0].finish, Finish::length);
  }
  expect_nothing_left(*service);
}

TEST(Service, ManyAnswersShareAPrompt) {
  const auto service = serve("cpu", 2);
  GenerationRequest r = request(text(100), 5, {.temperature = 1, .top_k = 0, .seed = 3});
  r.n = 5;
  r.log_probs = 0;
  const auto ear = run(*service, std::move(r));
  ASSERT_EQ(ear->answers.size(), 5u);
  std::set<std::vector<int32_t>> different;
  for (const auto& a : ear->answers) {
    EXPECT_EQ(a.n_tokens, 5u);
    std::vector<int32_t> ids;
    for (const TokenInfo& t : a.tokens) ids.push_back(t.id);
    different.insert(ids);
  }
  EXPECT_GE(different.size(), 4u);
  EXPECT_EQ(ear->usage.n_prompt, 100u);
  EXPECT_EQ(ear->usage.n_generated, 25u);
  EXPECT_EQ(service->metrics().prompt_tokens, 100u);
  expect_nothing_left(*service);
}

TEST(Service, RefusesBeforeItBegins) {
  const auto service = serve("null");
  const auto refused = [&](GenerationRequest r) {
    const auto id = service->submit(std::move(r), std::make_shared<Ear>());
    return id ? std::string("taken") : id.error().message;
  };
  EXPECT_EQ(refused(request({}, 1)), "the prompt has no tokens");
  EXPECT_NE(refused(request(text(256), 1)).find("256 tokens, the context 256"), std::string::npos);
  EXPECT_NE(refused(request({5, -1}, 1)).find("token 1 of the prompt is -1"), std::string::npos);
  EXPECT_NE(refused(request({100}, 1)).find("ids 0 to 99"), std::string::npos);
  GenerationRequest r = request({1}, 1);
  r.n = 0;
  EXPECT_NE(refused(std::move(r)).find("n is 0"), std::string::npos);
  r = request({1}, 1);
  r.stop = {""};
  EXPECT_NE(refused(std::move(r)).find("stop text is empty"), std::string::npos);
  r = request({1}, 1, {.temperature = -1});
  EXPECT_NE(refused(std::move(r)).find("temperature"), std::string::npos);
  r = request({1}, 1);
  r.end_ids = {100};
  EXPECT_NE(refused(std::move(r)).find("100 can end no answer"), std::string::npos);
  EXPECT_EQ(refused(request(text(255), 0)), "taken");
  expect_nothing_left(*service);
}

TEST(Service, ContextEndsAnAnswer) {
  const auto service = serve("null");
  const auto ear = run(*service, request(text(250), 0));
  EXPECT_EQ(ear->answers[0].n_tokens, 6u);
  EXPECT_EQ(ear->answers[0].finish, Finish::length);
}

// A rule that allows ids below `n` only.
class Below final : public TokenRule {
 public:
  explicit Below(int32_t n) : n_(n) {}
  bool restrict(std::span<uint32_t> mask) override {
    for (size_t i = 0; i < mask.size() * 32; ++i)
      if (int32_t(i) >= n_) mask[i / 32] &= ~(1u << (i % 32));
    return true;
  }
  bool accept(int32_t token) override { return token < n_; }
  std::unique_ptr<TokenRule> fork() const override { return std::make_unique<Below>(n_); }

 private:
  int32_t n_;
};

TEST(Service, RulesBiasAndMinimum) {
  const auto service = serve("cpu");
  GenerationRequest r = request(text(10), 30, {.temperature = 2, .top_k = 0, .top_p = 1, .min_p = 0, .seed = 1});
  r.rule = std::make_unique<Below>(7);
  r.n = 3;
  r.log_probs = 2;
  auto ear = run(*service, std::move(r));
  ASSERT_FALSE(ear->error) << ear->error->message;
  for (const auto& a : ear->answers)
    for (const TokenInfo& t : a.tokens) {
      EXPECT_LT(t.id, 7);
      EXPECT_LE(t.log_prob, 0);
      ASSERT_EQ(t.top.size(), 2u);
      EXPECT_LT(t.top[1].token, 7);
    }
  r = request(text(10), 5);
  r.bias = {{42, 1000}};
  r.log_probs = 0;
  ear = run(*service, std::move(r));
  for (const TokenInfo& t : ear->answers[0].tokens) EXPECT_EQ(t.id, 42);
  r = request(text(10), 9);
  r.bias = {{42, 1000}};
  r.end_ids = {42};
  r.ignore_end = false;
  r.min_tokens = 4;
  ear = run(*service, std::move(r));
  EXPECT_EQ(ear->answers[0].n_tokens, 4u);
  EXPECT_EQ(ear->answers[0].finish, Finish::stop);
  expect_nothing_left(*service);
}

TEST(Service, PromptLogProbsAreThoseOfTheLogits) {
  const auto service = serve("cpu");
  const std::vector<int32_t> prompt = text(50);
  GenerationRequest r = request(prompt, 3);
  r.prompt_log_probs = 1;
  r.log_probs = 1;
  const auto ear = run(*service, std::move(r));
  ASSERT_EQ(ear->prompt.size(), 50u);
  EXPECT_EQ(ear->answers[0].n_tokens, 3u);
  EXPECT_EQ(ear->usage.n_reused, 0u);  // that it is read twice is nobody's cache hit
  EXPECT_EQ(service->metrics().prompt_tokens, 50u);
  const auto engine = open(TinyModel("llama"), options_for("cpu"));
  const std::vector<float> rows = logits(*engine, engine->open_sequence(), prompt);
  for (size_t i = 1; i < prompt.size(); ++i) {
    EXPECT_EQ(ear->prompt[i].id, prompt[i]);
    EXPECT_EQ(ear->prompt[i].log_prob,
              sample::log_probs(std::span(rows).subspan((i - 1) * 100, 100), prompt[i], 0)[0].log_prob);
  }
}

TEST(Service, EmbeddingsAreOfOneLengthAndOfTheTextOnly) {
  for (const Pooling pooling : {Pooling::mean, Pooling::last}) {
    const auto service = serve("cpu");
    std::vector<std::vector<float>> seen;
    for (int pass = 0; pass < 2; ++pass)
      for (size_t n : {1, 40, 200}) {
        GenerationRequest r = request(text(n), 0);
        r.pooling = pooling;
        const auto ear = run(*service, std::move(r));
        ASSERT_EQ(ear->vector.size(), 64u);
        double norm = 0;
        for (float x : ear->vector) norm += double(x) * x;
        EXPECT_NEAR(norm, 1, 1e-5);
        seen.push_back(ear->vector);
      }
    for (size_t i = 0; i < 3; ++i) EXPECT_EQ(seen[i], seen[i + 3]);  // warm as cold
    EXPECT_NE(seen[0], seen[1]);
    expect_nothing_left(*service);
  }
}

TEST(Service, SlowReadersPauseTheirOwnRequestOnly) {
  const auto service = serve("null");
  auto slow = std::make_shared<Ear>(), quick = std::make_shared<Ear>();
  const auto id = service->submit(request(text(9), 200), slow);
  service->pause(*id, true);
  ASSERT_TRUE(service->submit(request(text(9, 2), 100), quick));
  quick->wait();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(slow->over());
  service->pause(*id, false);
  slow->wait();
  EXPECT_EQ(slow->answers[0].n_tokens, 200u);
}

// More slow readers than answers are computed at once take nobody's place.
TEST(Service, SlowReadersTakeNoPlaces) {
  const auto service = serve("null", 2);
  std::vector<std::shared_ptr<Ear>> slow;
  std::vector<Service::RequestId> ids;
  for (int i = 0; i < 8; ++i) {
    slow.push_back(std::make_shared<Ear>());
    GenerationRequest r = request(text(9, i), 100);
    r.n = 1 + i % 3;
    if (i % 4 == 3) r.prompt_log_probs = 1;
    ids.push_back(*service->submit(std::move(r), slow.back()));
    service->pause(ids.back(), true);
    if (i < 4) {  // these stop while they are computed
      service->pause(ids.back(), false);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      service->pause(ids.back(), true);
      service->pause(ids.back(), true);
    }
  }
  EXPECT_EQ(run(*service, request(text(9, 9), 100))->answers[0].n_tokens, 100u);
  for (const auto id : ids) service->pause(id, false);
  for (const auto& ear : slow) ear->wait();
  expect_nothing_left(*service);
}

// A reader that goes on is heard also while somebody waits for the end.
TEST(Service, ResumesDuringADrain) {
  const auto service = serve("null");
  auto ear = std::make_shared<Ear>();
  const auto id = service->submit(request(text(9), 50), ear);
  service->pause(*id, true);
  std::vector<std::thread> drainers;
  for (int i = 0; i < 8; ++i) drainers.emplace_back([&] { EXPECT_TRUE(service->drain(std::chrono::seconds(10))); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  service->pause(*id, false);
  ear->wait();
  for (auto& each : drainers) each.join();
}

// 10,000 requests with random lengths, cancels and pauses.
TEST(Service, RandomLifeLeavesNothing) {
  for (const std::string& architecture : {std::string("llama"), std::string("gemma3")}) {
    const auto service = serve("null", 8, 160, 3, architecture);
    Rng rng(7);
    std::vector<std::pair<Service::RequestId, std::shared_ptr<Ear>>> open;
    for (int i = 0; i < 5000; ++i) {
      GenerationRequest r = request(text(1 + rng.next() % 150, rng.next() % 4), uint32_t(1 + rng.next() % 40),
                                    {.temperature = 1, .seed = rng.next()});
      r.n = rng.next() % 8 == 0 ? 3 : 1;
      r.priority = int32_t(rng.next() % 3);
      if (rng.next() % 16 == 0) r.pooling = Pooling::mean, r.n = 1;
      if (rng.next() % 8 == 0) r.prompt_log_probs = 1;
      auto ear = std::make_shared<Ear>();
      const auto id = service->submit(std::move(r), ear);
      if (id) open.push_back({*id, ear});
      if (!open.empty() && rng.next() % 3 == 0) service->cancel(open[rng.next() % open.size()].first);
      if (!open.empty() && rng.next() % 8 == 0) {
        const auto some = open[rng.next() % open.size()].first;
        service->pause(some, true);
        if (rng.next() % 2) service->pause(some, false);
      }
      while (open.size() > 64) {
        service->pause(open.front().first, false);
        open.front().second->wait();
        open.erase(open.begin());
      }
    }
    for (auto& [id, ear] : open) service->pause(id, false);
    for (auto& [id, ear] : open) ear->wait();
    expect_nothing_left(*service);
    EXPECT_GT(service->metrics().cancelled, 100u);
    EXPECT_EQ(service->metrics().failed, 0u);
  }
}

TEST(Service, EndsWithRequestsOpen) {
  std::vector<std::shared_ptr<Ear>> ears;
  {
    const auto service = serve("null", 2);
    for (int i = 0; i < 20; ++i) {
      ears.push_back(std::make_shared<Ear>());
      ASSERT_TRUE(service->submit(request(text(30), 0), ears.back()));
    }
  }
  for (auto& ear : ears) {  // also those that never began
    ASSERT_TRUE(ear->over());
    ASSERT_EQ(ear->answers.size(), 1u);
    EXPECT_EQ(ear->answers[0].finish, Finish::cancelled);
  }
}

TEST(ChunkPolicy, KeepsStepsWithinBounds) {
  // A device whose steps take base + decodes * row + prompt * (token + position * key) seconds, and prompts of 4,096.
  for (const double token : {0.0002, 0.0004, 0.02})
    for (const double key : {0.0, 5e-8, 4e-7}) {
      ChunkPolicy policy;
      const double base = 0.004, row = 0.0001;
      double longest = 0;
      uint32_t rows = 0, position = 0;
      for (int i = 0; i < 2000; ++i) {
        const uint32_t prompt = i < 20 ? 0 : policy.rows(4, 512);
        if (position + prompt > 4096) position = 0;
        const double seconds = base + 4 * row + prompt * (token + position * key);
        policy.observe(4, prompt, uint64_t(prompt) * position, seconds);
        position += prompt;
        if (i > 60) longest = std::max(longest, seconds / (base + 4 * row)), rows = prompt;
      }
      EXPECT_GE(rows, ChunkPolicy::kLeast);
      if (rows > ChunkPolicy::kLeast) {
        EXPECT_LT(longest, 1.15 * ChunkPolicy::kSlowdown) << token << ' ' << key;
        EXPECT_GT(longest, 0.9 * ChunkPolicy::kSlowdown) << token << ' ' << key;
      }
    }
  EXPECT_EQ(ChunkPolicy().rows(0, 512), 512u);
}

}  // namespace
}  // namespace argent::test
