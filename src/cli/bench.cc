// argent bench: prompt and decode speed, counted as llama-bench counts: random tokens, one warm-up, no sampling.
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/rng.h"
#include "base/thread_pool.h"
#include "cli/command.h"
#include "cli/profile.h"

namespace argent::cli {
namespace {

struct Options {
  ModelOptions model;
  Positionals words;
  std::vector<uint32_t> n_prompt, n_gen, n_depth;
  uint32_t repetitions = 5;
  std::string format = "text";
  bool profile = false;
  uint32_t n_threads = 0;  // that the backend was given
  std::string cache_type;
};

struct Test {
  uint32_t n_prompt, n_gen, n_depth;
  std::vector<double> seconds;
  std::string name() const {
    std::string text = n_prompt && n_gen ? fmt::format("pp{}+tg{}", n_prompt, n_gen)
                       : n_prompt        ? fmt::format("pp{}", n_prompt)
                                         : fmt::format("tg{}", n_gen);
    return n_depth ? fmt::format("{} @ d{}", text, n_depth) : text;
  }
  uint32_t n_tokens() const { return n_prompt + n_gen; }
  double mean() const {
    double sum = 0;
    for (double s : seconds) sum += n_tokens() / s;
    return sum / double(seconds.size());
  }
  double deviation() const {
    if (seconds.size() < 2) return 0;
    double sum = 0;
    for (double s : seconds) sum += std::pow(n_tokens() / s - mean(), 2);
    return std::sqrt(sum / double(seconds.size() - 1));
  }
};

class Bench {
 public:
  explicit Bench(Engine& engine) : engine_(engine), rng_(1) {}

  // Fills the cache to the depth, then times the prompt and the decode steps after it.
  Result<double> run(const Test& test) {
    const SequenceId id = engine_.open_sequence();
    std::vector<int32_t> tokens = random_tokens(test.n_depth);
    if (test.n_depth) ARGENT_TRY(compute(id, tokens));
    const auto start = std::chrono::steady_clock::now();
    if (test.n_prompt) {
      const std::vector<int32_t> prompt = random_tokens(test.n_prompt);
      tokens.insert(tokens.end(), prompt.begin(), prompt.end());
      ARGENT_TRY(compute(id, tokens));
    }
    for (uint32_t i = 0; i < test.n_gen; ++i) {
      if (tokens.empty()) {
        tokens = random_tokens(1);
        ARGENT_TRY(compute(id, tokens));
        continue;
      }
      ARGENT_LET(const uint32_t n, engine_.append_token(id, random_token()));
      (void)n;
      ARGENT_TRY(drain());
    }
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    engine_.close_sequence(id, false);
    return seconds;
  }

 private:
  int32_t random_token() { return int32_t(rng_.next() % engine_.model().n_vocab); }
  std::vector<int32_t> random_tokens(uint32_t n) {
    std::vector<int32_t> tokens(n);
    for (int32_t& t : tokens) t = random_token();
    return tokens;
  }
  Status compute(SequenceId id, const std::vector<int32_t>& tokens) {
    ARGENT_LET(const uint32_t reused, engine_.set_tokens(id, tokens));
    (void)reused;
    return drain();
  }
  Status drain() {
    for (;;) {
      ARGENT_LET(const bool more, engine_.step([](const StepOutput&) {}));
      if (!more) return {};
      if (interrupted()) return fail(Code::cancelled, "stopped");
    }
  }

  Engine& engine_;
  Rng rng_;
};

std::string text_report(const Engine& engine, const std::string& cache_type, const std::vector<Test>& tests) {
  std::string out =
      fmt::format("{:<24} {:>12} {:>10}   {}, {} cache\n", "test", "tokens/s", "+/-", engine.model().name, cache_type);
  for (const Test& t : tests) out += fmt::format("{:<24} {:>12.2f} {:>10.2f}\n", t.name(), t.mean(), t.deviation());
  return out;
}

std::string json_report(Engine& engine, const Options& o, const std::vector<Test>& tests) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const Test& t : tests) {
    nlohmann::ordered_json samples = nlohmann::ordered_json::array();
    for (double s : t.seconds) samples.push_back(t.n_tokens() / s);
    rows.push_back({{"test", t.name()},
                    {"model", engine.file().path()},
                    {"backend", engine.backend().caps().description},
                    {"n_threads", o.n_threads},
                    {"cache_type", o.cache_type},
                    {"n_prompt", t.n_prompt},
                    {"n_gen", t.n_gen},
                    {"n_depth", t.n_depth},
                    {"avg_ts", t.mean()},
                    {"stddev_ts", t.deviation()},
                    {"samples_ts", samples}});
  }
  return rows.dump(2) + "\n";
}

Status run(Options& o) {
  ARGENT_TRY(o.words.settle(o.model.model, nullptr, nullptr, false));
  if (o.model.json) o.format = "json";
  if (o.n_prompt.empty() && o.n_gen.empty()) o.n_prompt = {512}, o.n_gen = {128};
  if (o.n_depth.empty()) o.n_depth = {0};
  std::vector<Test> tests;
  uint32_t longest = 1;
  for (uint32_t depth : o.n_depth) {
    for (uint32_t n : o.n_prompt)
      if (n) tests.push_back({n, 0, depth, {}}), longest = std::max(longest, depth + n);
    for (uint32_t n : o.n_gen)
      if (n) tests.push_back({0, n, depth, {}}), longest = std::max(longest, depth + n);
  }
  if (tests.empty()) return fail(Code::invalid, "nothing to measure: -p and -n are 0");
  if (!o.model.ctx) o.model.ctx = longest;
  ARGENT_LET(std::unique_ptr<Engine> engine, open_engine(o.model, [&](EngineOptions& e) {
               e.prefix_cache = false;
               o.cache_type = cache_text(e.backend);
               o.n_threads = e.backend.n_threads ? e.backend.n_threads : default_threads();
             }));
  Bench bench(*engine);
  if (o.profile) engine->set_profile(true);
  for (Test& test : tests) {
    Test warm = test;
    warm.n_depth = 0;
    warm.n_gen = std::min(warm.n_gen, 4u);
    ARGENT_LET(const double ignored, bench.run(warm));
    (void)ignored;
    for (uint32_t r = 0; r < o.repetitions; ++r) {
      if (stderr_is_terminal()) to_stderr("\r{}: run {} of {}", test.name(), r + 1, o.repetitions), std::fflush(stderr);
      ARGENT_LET(const double seconds, bench.run(test));
      test.seconds.push_back(seconds);
    }
    if (stderr_is_terminal()) to_stderr("\r\033[K");
  }
  if (o.profile) fmt::print(stderr, "{}", profile_text(engine->profile()));
  return write_stdout(o.format == "json" ? json_report(*engine, o, tests) : text_report(*engine, o.cache_type, tests));
}

}  // namespace

void add_bench(CLI::App& root) {
  auto o = std::make_shared<Options>();
  CLI::App* app =
      add_command(root, "bench", "measure prompt and decode speed",
                  "  argent bench                            prompts of 512 tokens, 128 decoded, on the default model\n"
                  "  argent bench MODEL -p 512,2048 -n 64 -r 3 -t 2 -o json\n"
                  "  argent bench MODEL -p 0 -n 32 -d 8192   decode behind 8,192 positions\n"
                  "Counted as llama-bench counts; tokens are random, nothing is sampled.",
                  [o] { return run(*o); });
  o->words.add(*app, false);
  o->model.add(*app, true);
  const auto list = [&](const char* flag, std::vector<uint32_t>& to, const char* help) {
    app->add_option(flag, to, help)->delimiter(',')->check(CLI::Range(0u, 1u << 20))->take_all();
  };
  list("-p,--n-prompt", o->n_prompt, "prompt tokens, a list");
  list("-n,--n-gen", o->n_gen, "tokens to decode, a list");
  list("-d,--n-depth", o->n_depth, "positions in the cache before, a list");
  app->add_option("-r,--repetitions", o->repetitions, "runs of each test")
      ->check(CLI::Range(1u, 1000u))
      ->capture_default_str();
  app->add_option("-o,--output", o->format, "text or json")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
  app->add_flag("--profile", o->profile,
                "time, bytes and rates of each op, on stderr; each op then ends with a barrier");
  app->add_option("--activations", o->model.activations, "native or f32")->capture_default_str();
}

}  // namespace argent::cli
