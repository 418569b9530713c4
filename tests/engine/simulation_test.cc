// Random traffic, hundreds of thousands of steps: the scheduler alone, and the engine with its KV cache on the null
// backend. What must hold at every step is checked at every step.
//
//   test_engine --gtest_filter='*Simulation*' --seed=N   one seed, as a failure names it
//   test_engine --gtest_filter='*Simulation*' --long     millions of steps
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <optional>

#include "backends/null/backend.h"
#include "engine/engines.h"

namespace argent::test {
namespace {

std::optional<uint64_t> only_seed;
bool long_run = false;

std::vector<uint64_t> seeds(uint64_t n) {
  if (only_seed) return {*only_seed};
  std::vector<uint64_t> all(n);
  for (uint64_t i = 0; i < n; ++i) all[i] = i + 1;
  return all;
}

class Dice {
 public:
  explicit Dice(uint64_t seed) : rng_(seed) {}
  uint64_t next() { return rng_.next(); }
  uint32_t below(uint64_t n) { return uint32_t(rng_.next() % n); }
  uint32_t between(uint32_t low, uint32_t high) { return low + below(high - low + 1); }
  bool one_in(uint32_t n) { return below(n) == 0; }

 private:
  Rng rng_;
};

// ---- the scheduler alone ----

// Sequences that read a prompt and then decode, with everything else imagined: enough of them that both rows and logits
// rows are short most of the time.
class Traffic {
 public:
  static constexpr int32_t kHighest = 3;
  static constexpr size_t kMost = 48;

  explicit Traffic(uint64_t seed) : dice_(seed) {}

  void run(uint64_t n_steps) {
    while (now_ < n_steps && !testing::Test::HasFatalFailure()) {
      if (dice_.one_in(16))
        for (uint32_t n = dice_.between(1, 24); n-- > 0 && jobs_.size() < kMost;) arrive();
      if (!jobs_.empty() && dice_.one_in(64)) leave();
      for (Job& job : jobs_)
        if (dice_.one_in(job.paused ? 16 : 512)) job.paused = !job.paused, job.served = now_;
      step();
    }
    for (Job& job : jobs_)
      if (job.paused) job.paused = false, job.served = now_;
    for (uint64_t end = now_ + 100000; !jobs_.empty() && now_ < end && !testing::Test::HasFatalFailure();) step();
    if (testing::Test::HasFatalFailure()) return;
    ASSERT_TRUE(jobs_.empty()) << jobs_.size() << " never finish";
    ASSERT_EQ(computed_, wanted_);
    EXPECT_GT(finished_, n_steps / 100);
    EXPECT_GT(aged_, 0u) << "nobody ever rose";
  }
  uint64_t now() const { return now_; }
  uint64_t finished() const { return finished_; }
  uint64_t longest() const { return longest_; }

 private:
  struct Job {
    uint32_t missing, decodes;
    int32_t priority;
    uint64_t served;
    uint32_t n_computed = 0;
    bool paused = false;
  };

  void arrive() {
    const uint32_t prompt = dice_.one_in(8) ? dice_.between(1, 2000) : dice_.between(1, 60);
    // Mostly high: the low ones would wait for ever without aging.
    const int32_t priority = dice_.one_in(6) ? int32_t(dice_.below(kHighest)) : kHighest;
    jobs_.push_back({prompt, dice_.below(60), priority, now_});
    wanted_ += prompt + jobs_.back().decodes;
  }
  void leave() {
    const size_t i = dice_.below(jobs_.size());
    wanted_ -= jobs_[i].missing + jobs_[i].decodes;
    jobs_.erase(jobs_.begin() + ptrdiff_t(i));
  }

  void step() {
    const uint32_t max_prompt = dice_.one_in(4) ? ChunkPolicy::kLeast : dice_.between(ChunkPolicy::kLeast, 64);
    const Budget budget{64, 12, max_prompt};
    std::vector<Want> wants;
    std::vector<Job*> who;
    for (Job& job : jobs_) {
      if (job.paused) continue;
      wants.push_back({job.missing, false, true, job.priority, now_ - job.served});
      who.push_back(&job);
    }
    const std::vector<Pick> picks = pick_step(wants, budget);
    ++now_;
    std::vector<uint32_t> got(wants.size(), 0);
    uint64_t tokens = 0, outputs = 0, prompt = 0, decodes = 0;
    for (const Pick& pick : picks) {
      ASSERT_LT(pick.index, wants.size());
      ASSERT_EQ(got[pick.index], 0u) << "picked twice";
      ASSERT_LE(pick.n_tokens, wants[pick.index].missing);
      got[pick.index] = pick.n_tokens;
      tokens += pick.n_tokens, outputs += pick.n_outputs;
      (wants[pick.index].missing == 1 ? decodes : prompt) += pick.n_tokens;
    }
    ASSERT_LE(tokens, budget.max_tokens);
    ASSERT_LE(outputs, budget.max_outputs);
    if (decodes) {
      ASSERT_LE(prompt, budget.max_prompt);
    }
    ASSERT_TRUE(wants.empty() || !picks.empty()) << "nobody is served";
    expect_rank_honoured(wants, got);
    if (testing::Test::HasFatalFailure()) return;

    for (size_t i = 0; i < who.size(); ++i) {
      Job& job = *who[i];
      const uint64_t waited = wants[i].waited;
      longest_ = std::max(longest_, waited);
      // After so many steps only those can be in front that waited as long; each of them once, one a step.
      ASSERT_LE(waited, uint64_t(kHighest - job.priority + 1) * kAgingSteps + kMost) << "starves";
      if (!got[i]) continue;
      if (waited >= kAgingSteps) ++aged_;
      job.served = now_;
      job.missing -= got[i];
      job.n_computed += got[i];
      computed_ += got[i];
      if (job.missing == 0 && job.decodes) job.missing = 1, --job.decodes;
    }
    finished_ += uint64_t(std::erase_if(jobs_, [](const Job& job) { return job.missing == 0; }));
  }

  // Nobody gets rows while one in front of it gets none: a prompt of higher rank, or of the same and older; a decode of
  // higher rank, or of the same that waited longer.
  static void expect_rank_honoured(const std::vector<Want>& wants, const std::vector<uint32_t>& got) {
    for (const bool prompts : {false, true}) {
      std::pair<int64_t, int64_t> last_served{INT64_MAX, INT64_MAX}, first_left{INT64_MIN, INT64_MIN};
      for (size_t i = 0; i < wants.size(); ++i) {
        if ((wants[i].missing > 1) != prompts) continue;
        const std::pair place{wants[i].priority + int64_t(wants[i].waited / kAgingSteps),
                              prompts ? -int64_t(i) : int64_t(wants[i].waited)};
        if (got[i])
          last_served = std::min(last_served, place);
        else
          first_left = std::max(first_left, place);
      }
      ASSERT_LE(first_left, last_served) << (prompts ? "prompts" : "decodes") << ": one from behind goes first";
    }
  }

  Dice dice_;
  std::vector<Job> jobs_;  // in order of arrival
  uint64_t now_ = 0, finished_ = 0, computed_ = 0, wanted_ = 0, longest_ = 0, aged_ = 0;
};

TEST(SchedulerSimulation, NobodyStarvesAndNoBudgetBreaks) {
  for (const uint64_t seed : seeds(4)) {
    SCOPED_TRACE(fmt::format("--seed={}", seed));
    Traffic traffic(seed);
    traffic.run(long_run ? 2'000'000 : 100'000);
    if (HasFatalFailure()) return;
    fmt::print("seed {}: {} steps, {} finished, longest wait {} steps\n", seed, traffic.now(), traffic.finished(),
               traffic.longest());
  }
}

// ---- the engine ----

struct Case {
  const char* name;
  const char* architecture;
  uint64_t pool_tokens;  // 0: room for all
  int32_t highest = 0;   // priorities 0 to this
  // Steps between two outputs of a sequence that is not paused, its prompt included: about twice what half a million
  // steps show.
  uint64_t longest_wait = 0;
  bool prefix_cache = true;
  uint64_t host_blocks = 0, disk_blocks = 0;  // of the tiers
  bool ahead = false;                         // the device has the next step before this one's tokens are seen
  friend void PrintTo(const Case& c, std::ostream* os) { *os << c.name; }
};

// What a service does with an engine, on one thread, with dice for clients.
class Simulation {
 public:
  static constexpr uint32_t kContext = 192, kParallel = 10, kVocab = 100;
  static constexpr uint64_t kBlockBytes = 32 * sizeof(uint64_t);  // of the null backend
  static constexpr size_t kMostQueued = 24;
  static constexpr uint64_t kAdmitAging = 256;  // steps in the queue that raise by one priority

  Simulation(const Case& c, uint64_t seed) : case_(c), dice_(seed) {
    EngineOptions options = options_for("null");
    options.n_ctx = kContext;
    options.n_sequences = 8 * kParallel;  // with those that are paused
    options.pool_tokens = c.pool_tokens;
    options.budget = {48, 12};
    options.prefix_cache = c.prefix_cache;
    options.kv_host_bytes = c.host_blocks * kBlockBytes;
    if (c.disk_blocks) options.kv_disk = folder_;
    options.kv_disk_bytes = c.disk_blocks * kBlockBytes * 4;  // a file's head has the tokens
    auto backend = null::make_backend(options.backend);
    if (c.ahead) backend->set_runs_ahead();
    engine_ = open(TinyModel(c.architecture), options, std::move(backend));
    for (uint32_t i = 0; i < 6; ++i) beginnings_.push_back(text(dice_.between(20, 150), dice_.next()));
  }

  ~Simulation() {
    engine_.reset();
    std::filesystem::remove_all(folder_);
  }

  void run(uint64_t n_steps) {
    ASSERT_TRUE(engine_);
    while (n_steps_ < n_steps && !testing::Test::HasFatalFailure()) {
      if (dice_.one_in(quiet_ ? 200 : 8)) burst();
      if (dice_.one_in(2000)) quiet_ = !quiet_;
      if (dice_.one_in(20)) cancel();
      if (dice_.one_in(16)) pause();
      tick();
    }
    for (auto& job : jobs_) set_paused(*job, false);
    for (uint64_t end = n_steps_ + 100000; !jobs_.empty() && n_steps_ < end && !testing::Test::HasFatalFailure();)
      tick();
    if (!testing::Test::HasFatalFailure()) expect_drained();
  }

  void report(uint64_t seed) const {
    const EngineCounters& e = engine_->counters();
    const kv::Counters& k = engine_->cache().counters();
    fmt::print(
        "{} seed {}: {} steps, {} tokens, {} reused, {} answers finished, {} cancelled, {} preemptions, {} evicted, "
        "longest wait {} steps\n",
        case_.name, seed, e.steps, e.tokens, k.reused_tokens, finished_, cancelled_, e.preemptions, k.evicted,
        longest_wait_);
    const kv::Tier* tier = engine_->cache().tier();
    if (!tier) return;
    const kv::TierCounters& t = tier->counters();
    fmt::print("  tiers: {} blocks saved, {} evicted, {} written, {} read; {} tokens restored, {} of them from disk\n",
               t.saved, t.evicted, t.written, t.read, t.host_tokens + t.disk_tokens, t.disk_tokens);
    if (!roomy()) {
      EXPECT_GT(t.host_tokens, n_steps_ / 10);
    }
    EXPECT_EQ(t.lost, 0u);
    if (case_.disk_blocks) {
      EXPECT_GT(t.disk_tokens, n_steps_ / 100);
    }
  }

 private:
  enum class Kind { answers, logits, states, last_state };
  struct Answer {
    uint32_t index = 0;
    SequenceId sequence = 0;
    bool open = false, over = false;
    uint32_t n_generated = 0;
    uint32_t next_row = 0;  // of kinds that want all rows
    uint64_t since = 0;     // the step of its last output, or since it may have one
  };
  struct Job {
    Kind kind = Kind::answers;
    std::vector<int32_t> prompt;
    uint64_t seed = 0, submitted = 0;
    uint32_t max_tokens = 0;
    int32_t priority = 0;
    bool paused = false, admitted = false, reading = true;
    std::deque<Answer> answers;
  };

  bool roomy() const { return case_.pool_tokens == 0; }

  void burst() {
    for (uint32_t n = dice_.between(1, 12); n-- > 0;) {
      if (size_t(std::count_if(jobs_.begin(), jobs_.end(), [](auto& j) { return !j->admitted; })) >= kMostQueued)
        return;
      auto job = std::make_unique<Job>();
      const std::vector<int32_t> fresh = text(dice_.between(1, 40), dice_.next());
      if (!dice_.one_in(4)) {
        job->prompt = beginnings_[dice_.below(beginnings_.size())];
        if (dice_.one_in(3)) job->prompt.resize(dice_.between(1, uint32_t(job->prompt.size())));
      }
      if (job->prompt.empty() || !dice_.one_in(4)) job->prompt = joined(job->prompt, fresh);
      job->prompt.resize(std::min<size_t>(job->prompt.size(), kContext - 1));
      if (dice_.one_in(16)) beginnings_[dice_.below(beginnings_.size())] = job->prompt;
      job->kind = dice_.one_in(8) ? Kind(1 + dice_.below(3)) : Kind::answers;
      job->answers.resize(job->kind == Kind::answers && dice_.one_in(5) ? dice_.between(2, 6) : 1);
      for (uint32_t i = 0; i < job->answers.size(); ++i) job->answers[i].index = i;
      job->seed = dice_.next();
      job->submitted = n_steps_;
      job->max_tokens = dice_.one_in(8) ? kContext : dice_.between(1, 40);
      job->priority = int32_t(dice_.below(uint64_t(case_.highest) + 1));
      jobs_.push_back(std::move(job));
    }
  }

  // In whatever phase it is: waiting, reading, with some answers done, paused, preempted.
  void cancel() {
    if (jobs_.empty()) return;
    const auto it = jobs_.begin() + dice_.below(jobs_.size());
    Job& job = **it;
    const bool reads = std::any_of(job.answers.begin(), job.answers.end(),
                                   [](const Answer& a) { return a.open && !a.over && a.n_generated == 0; });
    if (roomy() && reads) return;  // how much is computed can not be seen from here
    const bool keep = !dice_.one_in(4);
    for (Answer& a : job.answers) {
      if (!a.over) ++cancelled_;
      close(job, a, keep);
    }
    jobs_.erase(it);
  }

  void pause() {
    if (jobs_.empty()) return;
    Job& job = *jobs_[dice_.below(jobs_.size())];
    set_paused(job, !job.paused && !dice_.one_in(3));
  }
  void set_paused(Job& job, bool paused) {
    job.paused = paused;
    for (Answer& a : job.answers) {
      if (!a.open || a.over) continue;
      engine_->pause(a.sequence, paused);
      a.since = n_steps_;
    }
  }

  uint32_t n_running() const {
    uint32_t n = 0;
    for (const auto& job : jobs_)
      if (!job->paused)
        for (const Answer& a : job->answers) n += a.open;
    return n;
  }

  void admit() {
    for (auto& job : jobs_)
      if (job->admitted && !job->paused) open_answers(*job);
    while (n_running() < kParallel) {
      Job* best = nullptr;
      const auto rank = [&](const Job& j) { return j.priority + int64_t((n_steps_ - j.submitted) / kAdmitAging); };
      for (auto& job : jobs_)
        if (!job->admitted && !job->paused && (!best || rank(*job) > rank(*best))) best = job.get();
      if (!best) return;
      best->admitted = true;
      open_answers(*best);
    }
  }

  void open_answers(Job& job) {
    for (Answer& a : job.answers) {
      if (a.open || a.over) continue;
      if (n_running() >= kParallel || (a.index > 0 && job.reading)) return;
      a.sequence = engine_->open_sequence();
      a.open = true;
      a.since = n_steps_;
      SequenceMode& mode = engine_->mode(a.sequence);
      mode.priority = job.priority;
      if (job.kind == Kind::answers) {
        mode.sampling = SampleParams{.temperature = 1, .seed = job.seed, .sample_index = a.index};
        if (job.seed % 4 == 0) mode.sampling->presence_penalty = 0.5f;  // which looks at the text
      } else {
        mode.all_rows = job.kind != Kind::last_state;
        mode.hidden = job.kind != Kind::logits;
      }
      const uint32_t reused = set_tokens(*engine_, a.sequence, job.prompt);
      ASSERT_LT(reused, job.prompt.size());
      ASSERT_TRUE(reused == 0 || (case_.prefix_cache && !mode.all_rows));
      if (of_.size() <= a.sequence) of_.resize(a.sequence + 1);
      ASSERT_EQ(of_[a.sequence].first, nullptr) << "a sequence is given out twice";
      of_[a.sequence] = {&job, &a};
    }
  }

  void close(Job& job, Answer& a, bool keep) {
    if (!a.open) return;
    if (a.n_generated) expected_tokens_ += job.prompt.size() + a.n_generated - 1;
    if (job.kind != Kind::answers && a.over) expected_tokens_ += job.prompt.size();
    reused_ += engine_->reused(a.sequence);
    engine_->close_sequence(a.sequence, keep);
    of_[a.sequence] = {};
    a.open = false;
  }

  void on_output(const StepOutput& out) {
    ASSERT_LT(out.sequence, of_.size());
    const auto [job, a] = of_[out.sequence];
    ASSERT_TRUE(job && !a->over && !job->paused) << "an output of nobody";
    a->since = n_steps_;
    const auto size = uint32_t(job->prompt.size());
    if (job->kind == Kind::answers) {
      // Whatever was preempted and computed again in between, the text goes on where it was.
      ASSERT_EQ(out.position, size - 1 + a->n_generated);
      ASSERT_EQ(out.token, null::scripted_token(job->seed, a->index, out.position, kVocab));
      ASSERT_EQ(out.appended, out.position + 1 < kContext);
      sampled_ = true;
      ++a->n_generated;
      job->reading = false;
      a->over = a->n_generated >= job->max_tokens || out.position + 2 >= kContext;
    } else {
      if (job->kind == Kind::last_state) {
        a->next_row = size - 1;
      } else if (out.position == 0) {
        ASSERT_TRUE(a->next_row == 0 || engine_->counters().preemptions > 0) << "computed again for nothing";
        a->next_row = 0;
      }
      ASSERT_EQ(out.position, a->next_row++);
      ASSERT_EQ(out.token, -1);
      a->over = a->next_row == size;
    }
    if (!a->over) return;
    ++finished_;
    engine_->pause(out.sequence, true);
  }

  void tick() {
    admit();
    if (testing::Test::HasFatalFailure()) return;
    const uint32_t max_prompt = dice_.one_in(4) ? ChunkPolicy::kLeast : dice_.between(ChunkPolicy::kLeast, 48);
    engine_->set_max_prompt(max_prompt);
    if (case_.disk_blocks && dice_.one_in(4))  // a disk that keeps up
      engine_->cache().tier()->write_all(std::chrono::steady_clock::now() + std::chrono::seconds(30));
    const EngineCounters before = engine_->counters();
    const null::Counters device = static_cast<null::NullBackend&>(engine_->backend()).counters();
    ++n_steps_;
    sampled_ = false;
    const auto more = engine_->step([&](const StepOutput& out) {
      if (!testing::Test::HasFatalFailure()) on_output(out);
    });
    if (testing::Test::HasFatalFailure()) return;
    ASSERT_TRUE(more) << "step " << n_steps_ << ": " << more.error().message;
    const Status sound = engine_->cache().check();
    ASSERT_TRUE(sound) << "step " << n_steps_ << ": " << sound.error().message;
    expect_counted(*more, before, device, max_prompt);
    expect_blocks_counted();
    expect_no_starvation(*more);
    for (size_t i = 0; i < jobs_.size();) {
      Job& job = *jobs_[i];
      bool all = true;
      for (Answer& a : job.answers) {
        if (a.over) close(job, a, true);
        all = all && a.over;
      }
      if (all)
        jobs_.erase(jobs_.begin() + ptrdiff_t(i));
      else
        ++i;
    }
  }

  void expect_counted(bool more, const EngineCounters& before, const null::Counters& device, uint32_t max_prompt) {
    const EngineCounters& now = engine_->counters();
    const null::Counters& ran = static_cast<null::NullBackend&>(engine_->backend()).counters();
    const uint64_t rows = ran.rows - device.rows, outputs = ran.output_rows - device.output_rows;
    // Somebody waits for the disk.
    if (case_.disk_blocks && (case_.ahead ? now.steps == before.steps : rows == 0)) more = false;
    ASSERT_EQ(now.steps - before.steps, uint64_t(more));
    const Engine::StepSize size = engine_->last_step();
    if (case_.ahead) {  // rows may be of the step behind this one, and some of this one's wanted by nobody
      ASSERT_LE(now.tokens - before.tokens, size.decodes + size.prompt);
      ASSERT_LE(now.tokens, ran.rows);
      n_ahead_ += more && rows != size.decodes + size.prompt;
      return;
    }
    ASSERT_EQ(now.tokens - before.tokens, rows);
    ASSERT_LE(rows, engine_->options().budget.max_tokens);
    ASSERT_LE(outputs, engine_->options().budget.max_outputs);
    if (!more) return;
    ASSERT_GT(rows, 0u);
    ASSERT_EQ(size.decodes + size.prompt, rows);
    ASSERT_TRUE(!sampled_ || !size.decodes || size.prompt <= max_prompt);
  }

  void expect_blocks_counted() {
    const kv::Cache& cache = engine_->cache();
    uint32_t n_open = 0;
    for (const auto& [job, answer] : of_) n_open += job != nullptr;
    ASSERT_LE(cache.n_open(), n_open) << "a closed sequence holds a place";
    if (roomy()) {
      ASSERT_EQ(cache.n_open(), n_open);
    }
    for (uint32_t g = 0; g < cache.config().groups.size(); ++g) {
      const kv::GroupUsage u = cache.usage(g);
      ASSERT_EQ(u.total, cache.config().groups[g].n_blocks);
      ASSERT_EQ(u.free + u.referenced + u.cached, u.total);
      if (cache.n_open() == 0) {
        ASSERT_EQ(u.referenced, 0u);
      }
    }
  }

  void expect_no_starvation(bool more) {
    bool anybody = false;
    for (auto& job : jobs_)
      for (Answer& a : job->answers) {
        if (!a.open || a.over || job->paused) continue;
        anybody = true;
        const uint64_t waited = n_steps_ - a.since;
        longest_wait_ = std::max(longest_wait_, waited);
        ASSERT_LE(waited, case_.longest_wait)
            << "step " << n_steps_ << ": a sequence of priority " << job->priority << " starves";
      }
    ASSERT_TRUE(more || !anybody) << "step " << n_steps_ << ": idle while somebody waits";
  }

  void expect_drained() {
    ASSERT_TRUE(jobs_.empty()) << jobs_.size() << " never finish";
    const kv::Cache& cache = engine_->cache();
    ASSERT_EQ(cache.n_open(), 0u);
    for (uint32_t g = 0; g < cache.config().groups.size(); ++g) {
      const kv::GroupUsage u = cache.usage(g);
      ASSERT_EQ(u.referenced, 0u);
      ASSERT_EQ(u.free + u.cached, u.total);
      if (!case_.prefix_cache) {
        ASSERT_EQ(u.cached, 0u);
      }
    }
    EXPECT_EQ(n_ahead_ > 0, case_.ahead);
    const EngineCounters& e = engine_->counters();
    ASSERT_EQ(e.reused_tokens, reused_);
    // Everything is computed once, or found; what preemption lost, once more.
    const uint64_t found = cache.counters().reused_tokens;
    if (roomy()) {
      EXPECT_EQ(e.preemptions, 0u);
      EXPECT_EQ(found, reused_);
      EXPECT_EQ(e.tokens + found, expected_tokens_);
    } else {
      EXPECT_GE(e.tokens + found, expected_tokens_);
      EXPECT_GT(e.preemptions, n_steps_ / 500);
    }
    if (case_.prefix_cache) {
      EXPECT_GT(found, 0u);
      EXPECT_GT(cache.counters().evicted, 0u);
    }
    EXPECT_GT(finished_, n_steps_ / 100);
    EXPECT_GT(cancelled_, n_steps_ / 200);
  }

  Case case_;
  Dice dice_;
  const std::string folder_ = fmt::format("{}argent_simulation_{}", testing::TempDir(), ::getpid());
  std::unique_ptr<Engine> engine_;
  std::vector<std::vector<int32_t>> beginnings_;
  std::vector<std::unique_ptr<Job>> jobs_;  // not over, in order of arrival
  std::vector<std::pair<Job*, Answer*>> of_;
  bool quiet_ = false;
  bool sampled_ = false;  // the last step
  uint64_t n_steps_ = 0, finished_ = 0, cancelled_ = 0, reused_ = 0, expected_tokens_ = 0, longest_wait_ = 0,
           n_ahead_ = 0;
};

class EngineSimulation : public testing::TestWithParam<Case> {};

TEST_P(EngineSimulation, EveryStepIsSoundAndEverythingEnds) {
  for (const uint64_t seed : seeds(2)) {
    SCOPED_TRACE(fmt::format("--seed={}", seed));
    Simulation simulation(GetParam(), seed);
    simulation.run(GetParam().disk_blocks ? (long_run ? 50'000 : 10'000) : long_run ? 500'000 : 50'000);
    if (HasFatalFailure()) return;
    simulation.report(seed);
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, EngineSimulation,
                         testing::Values(Case{"roomy", "llama", 0, 3, 200}, Case{"tight", "llama", 416, 0, 800},
                                         Case{"tight_priorities", "llama", 416, 3, 1500},
                                         Case{"windows", "gemma3", 416, 0, 900},
                                         Case{"windows_priorities", "gemma3", 320, 3, 1800},
                                         Case{"one_at_a_time", "muse-glimmer", 192, 0, 1600},
                                         Case{"no_tree", "llama", 320, 2, 1500, false},
                                         Case{"roomy_host", "llama", 0, 3, 200, true, 150},
                                         Case{"tight_host", "llama", 416, 3, 1500, true, 40},
                                         Case{"windows_host", "gemma3", 416, 3, 1800, true, 100},
                                         Case{"one_at_a_time_host", "muse-glimmer", 192, 0, 1600, true, 60},
                                         Case{"tight_disk", "llama", 416, 0, 900, true, 24, 200},
                                         Case{"windows_disk", "gemma3", 416, 3, 1800, true, 60, 300},
                                         Case{"roomy_ahead", "llama", 0, 3, 200, true, 0, 0, true},
                                         Case{"tight_ahead", "llama", 416, 3, 1500, true, 0, 0, true},
                                         Case{"windows_ahead", "gemma3", 416, 3, 1800, true, 100, 0, true},
                                         Case{"disk_ahead", "llama", 416, 0, 900, true, 24, 200, true}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace argent::test

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);  // takes its own arguments out
  for (int i = 1; i < argc; ++i) {
    if (std::strncmp(argv[i], "--seed=", 7) == 0) argent::test::only_seed = std::strtoull(argv[i] + 7, nullptr, 10);
    if (std::strcmp(argv[i], "--long") == 0) argent::test::long_run = true;
  }
  return RUN_ALL_TESTS();
}
