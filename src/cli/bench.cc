// argent bench: prompt and decode speed, counted as llama-bench counts: random tokens, one warm-up, no sampling.
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>

#include "base/json.h"
#include "base/rng.h"
#include "base/thread_pool.h"
#include "cli/command.h"
#include "cli/profile.h"

namespace argent::cli {
namespace {

constexpr uint32_t kMostTokens = 1u << 20, kMostSequences = 256;

struct BenchOptions {
  ModelOptions model;
  Positionals words;
  std::vector<uint32_t> n_prompt, n_gen, n_depth;
  std::vector<std::string> pairs;  // --pg
  uint32_t repetitions = 5, n_sequences = 1;
  bool logits = false;
  std::string format = "text";
  ProfileOptions profile;
  uint32_t n_threads = 0;  // that the backend was given
  std::string cache_type;
};

struct Test {
  uint32_t n_prompt, n_gen, n_depth;  // of a sequence
  uint32_t n_sequences = 1;           // side by side
  bool logits = false;                // decodes hand out logits, and take random tokens
  std::vector<double> seconds = {};
  Cost cost = {};                       // of a run
  std::vector<DevicePeaks> peaks = {};  // by run: the better of what was measured before and after it
  nlohmann::ordered_json profile = {};

  std::string name() const {
    std::string text = n_prompt && n_gen ? fmt::format("pp{}+tg{}", n_prompt, n_gen)
                       : n_prompt        ? fmt::format("pp{}", n_prompt)
                                         : fmt::format("tg{}", n_gen);
    if (n_sequences > 1) text = fmt::format("{}x {}", n_sequences, text);
    return n_depth ? fmt::format("{} @ d{}", text, n_depth) : text;
  }
  uint32_t n_tokens() const { return n_sequences * (n_prompt + n_gen); }
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
  // Per second, at the mean rate.
  double rate(uint64_t amount) const { return double(amount) / n_tokens() * mean(); }
  // Medians of the runs, each beside its own peaks; 0: not known.
  double read_share() const {
    return median([&](const DevicePeaks& p) { return p.read_bytes > 0 ? double(cost.streamed) / p.read_bytes : 0; });
  }
  double ops_share(bool int8) const {
    const double in_int8 = int8 ? double(cost.quantized) : 0, in_f32 = double(cost.flops) - in_int8;
    return median([&](const DevicePeaks& p) {
      return p.int8_ops > 0 && p.f32_ops > 0 ? in_int8 / p.int8_ops + in_f32 / p.f32_ops : 0;
    });
  }
  DevicePeaks best_peaks() const {
    DevicePeaks best;
    for (const DevicePeaks& p : peaks) best = better(best, p);
    return best;
  }

 private:
  // Of what least seconds are to those that the runs took.
  template <class Least>
  double median(Least least) const {
    std::vector<double> shares;
    for (size_t r = 0; r < seconds.size(); ++r) shares.push_back(least(peaks[r]) / seconds[r]);
    std::sort(shares.begin(), shares.end());
    const size_t n = shares.size();
    return n ? (shares[(n - 1) / 2] + shares[n / 2]) / 2 : 0;
  }
};

class Bench {
 public:
  explicit Bench(Engine& engine) : engine_(engine), rng_(1) {}

  // Fills the cache to the depth, then times the prompts and the decode steps after them. What an earlier run filled is
  // used again.
  Result<double> run(const Test& test) {
    if (!ids_.empty() && (depth_.size() != test.n_depth || ids_.size() != test.n_sequences)) close();
    if (ids_.empty()) {
      depth_ = random_tokens(test.n_depth);
      for (uint32_t i = 0; i < test.n_sequences; ++i) ids_.push_back(engine_.open_sequence());
    }
    std::vector<int32_t> tokens = depth_;
    if (test.n_depth) ARGENT_TRY(compute(tokens));
    const auto start = std::chrono::steady_clock::now();
    if (test.n_prompt) {
      const std::vector<int32_t> prompt = random_tokens(test.n_prompt);
      tokens.insert(tokens.end(), prompt.begin(), prompt.end());
      ARGENT_TRY(compute(tokens));
    }
    ARGENT_TRY(test.logits ? decode(test.n_gen, tokens.empty()) : decode_sampled(test.n_gen, tokens.empty()));
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (!test.n_depth) close();
    return seconds;
  }

  // Of one run: prompts one after the other in the steps that the engine makes of them, a logits row each; then decode
  // steps of all sequences.
  Result<Cost> cost(const Test& test) const {
    Cost sum;
    Plan plan;
    uint32_t planned = 0;  // rows of plan
    const auto add = [&](uint32_t n_tokens, uint32_t n_outputs, uint64_t n_kv) -> Status {
      if (n_tokens != planned) {
        ARGENT_LET(plan, engine_.plan_for(n_tokens, n_outputs, Tail::logits, Stage::rows));
        planned = n_tokens;
      }
      sum += argent::cost(plan.graph, {.n_tokens = n_tokens,
                                       .n_outputs = n_outputs,
                                       .n_kv = n_outputs * n_kv,
                                       .kv_k = engine_.options().backend.kv_k,
                                       .kv_v = engine_.options().backend.kv_v,
                                       .n_sequences = n_outputs});
      return {};
    };
    for (uint32_t i = 0; i < test.n_sequences; ++i)
      for (uint32_t done = 0, n; done < test.n_prompt; done += n) {
        n = std::min(test.n_prompt - done, engine_.options().budget.max_tokens);
        ARGENT_TRY(add(n, 1, test.n_depth + done));
      }
    for (uint32_t i = 0; i < test.n_gen; ++i)
      ARGENT_TRY(add(test.n_sequences, test.n_sequences, test.n_depth + test.n_prompt + i));
    return sum;
  }

 private:
  void close() {
    for (const SequenceId id : ids_) engine_.close_sequence(id, false);
    ids_.clear();
  }
  Status add_random(SequenceId id, bool empty) {
    const Result<uint32_t> added =
        empty ? engine_.set_tokens(id, random_tokens(1)) : engine_.append_token(id, random_token());
    return added ? Status() : Status(added.error());
  }
  // A token more for each sequence, n times; empty: they have none yet.
  Status decode(uint32_t n, bool empty) {
    for (uint32_t i = 0; i < n; ++i) {
      for (const SequenceId id : ids_) {
        ARGENT_TRY(add_random(id, empty));
      }
      empty = false;
      ARGENT_TRY(drain());
    }
    return {};
  }
  // The same with the most likely token of the step before, drawn on the device.
  Status decode_sampled(uint32_t n, bool empty) {
    if (n == 0) return {};
    SampleParams greedy;
    greedy.temperature = 0;
    for (const SequenceId id : ids_) {
      engine_.set_sampling(id, greedy);
      ARGENT_TRY(add_random(id, empty));
      engine_.mode(id).end = uint32_t(engine_.tokens(id).size()) + n;
    }
    // A step may not have all sequences, and one whose logits are not finite draws no more.
    uint64_t left = uint64_t(n) * ids_.size();
    while (left) {
      uint64_t drawn = 0;
      ARGENT_LET(const bool more, step([&](const StepOutput& out) { drawn += out.token >= 0; }));
      (void)more;
      if (drawn == 0) return fail(Code::internal, "no token was drawn, the logits are not finite");
      left -= std::min(left, drawn);
    }
    for (const SequenceId id : ids_) {
      engine_.set_sampling(id, {});
      engine_.pause(id, false);  // whose context is full
    }
    return {};
  }
  int32_t random_token() { return int32_t(rng_.next() % engine_.model().n_vocab); }
  std::vector<int32_t> random_tokens(uint32_t n) {
    std::vector<int32_t> tokens(n);
    for (int32_t& t : tokens) t = random_token();
    return tokens;
  }
  Status compute(const std::vector<int32_t>& tokens) {
    for (const SequenceId id : ids_) {
      ARGENT_LET(const uint32_t reused, engine_.set_tokens(id, tokens));
      (void)reused;
    }
    return drain();
  }
  Result<bool> step(const std::function<void(const StepOutput&)>& sink = [](const StepOutput&) {}) {
    if (interrupted()) return fail(Code::cancelled, "stopped");
    return engine_.step(sink);
  }
  Status drain() {
    for (;;) {
      ARGENT_LET(const bool more, step());
      if (!more) return {};
    }
  }

  Engine& engine_;
  Rng rng_;
  std::vector<SequenceId> ids_;
  std::vector<int32_t> depth_;
};

// The device's peaks between runs, a second apart at least: a machine that others use too changes its bandwidth by half
// within seconds, so a run has those of its neighbourhood.
class Peaks {
 public:
  explicit Peaks(Engine& engine) : engine_(engine), last_(engine.measure_peaks()), when_(Clock::now()) {}

  void after_run(Test& test, bool last) {
    if (!last && Clock::now() - when_ < std::chrono::seconds(1)) return;
    const DevicePeaks now = engine_.measure_peaks();
    test.peaks.resize(test.seconds.size(), better(last_, now));
    last_ = now;
    when_ = Clock::now();
  }

 private:
  using Clock = std::chrono::steady_clock;
  Engine& engine_;
  DevicePeaks last_;
  Clock::time_point when_;
};

bool int8_products(const Engine& engine) { return engine.options().backend.activations == ActivationMode::native; }

std::string text_report(const Engine& engine, const std::string& cache_type, const std::vector<Test>& tests) {
  std::string out =
      fmt::format("{:<20} {:>11} {:>9} {:>11} {:>8} {:>8} {:>9} {:>7}   {}, {} cache\n", "test", "tokens/s", "+/-",
                  "MB a token", "GB/s", "% read", "GOP/s", "% ops", engine.model().name, cache_type);
  const auto share = [](double x) { return x > 0 ? fmt::format("{:.0f}", 100 * x) : std::string("-"); };
  DevicePeaks best;
  for (const Test& t : tests) {
    out += fmt::format("{:<20} {:>11.2f} {:>9.2f} {:>11.2f} {:>8.2f} {:>8} {:>9.1f} {:>7}\n", t.name(), t.mean(),
                       t.deviation(), double(t.cost.streamed) * 1e-6 / t.n_tokens(), t.rate(t.cost.streamed) * 1e-9,
                       share(t.read_share()), t.rate(t.cost.flops) * 1e-9, share(t.ops_share(int8_products(engine))));
    best = better(best, t.best_peaks());
  }
  if (best.read_bytes > 0)
    out += fmt::format(
        "MB a token: weights and KV that must be read for it. % of what this machine did around each run, the "
        "median; at best:\nread {:.1f} GB/s, int8 {:.0f} GOP/s, f32 {:.0f} GOP/s\n",
        best.read_bytes * 1e-9, best.int8_ops * 1e-9, best.f32_ops * 1e-9);
  else
    out += "What the device can do was not measured: it cannot be, or too little memory is free for it.\n";
  return out;
}

std::string json_report(Engine& engine, const BenchOptions& o, const std::vector<Test>& tests) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  const MemoryUse& device = engine.memory().devices.back();
  const uint64_t allocated = engine.backend().parts().back()->allocated_bytes();
  for (const Test& t : tests) {
    nlohmann::ordered_json samples = nlohmann::ordered_json::array();
    nlohmann::ordered_json read = nlohmann::ordered_json::array();
    for (double s : t.seconds) samples.push_back(t.n_tokens() / s);
    for (const DevicePeaks& p : t.peaks) read.push_back(p.read_bytes);
    rows.push_back({{"test", t.name()},
                    {"model", engine.file().path()},
                    {"backend", engine.backend().caps().description},
                    {"n_threads", o.n_threads},
                    {"weights", engine.memory().weights == WeightStorage::resident ? "resident" : "mapped"},
                    {"planned_bytes", device.weights_bytes + device.kv_bytes + device.workspace_bytes},
                    {"allocated_bytes", allocated ? nlohmann::ordered_json(allocated) : nlohmann::ordered_json()},
                    {"load_seconds", double(engine.counters().load_nanoseconds) * 1e-9},
                    {"cache_type", o.cache_type},
                    {"n_prompt", t.n_prompt},
                    {"n_gen", t.n_gen},
                    {"n_depth", t.n_depth},
                    {"n_sequences", t.n_sequences},
                    {"logits", t.logits},
                    {"avg_ts", t.mean()},
                    {"stddev_ts", t.deviation()},
                    {"samples_ts", samples},
                    {"bytes_per_token", double(t.cost.streamed) / t.n_tokens()},
                    {"flops_per_token", double(t.cost.flops) / t.n_tokens()},
                    {"peaks", peaks_json(t.best_peaks())},
                    {"samples_read_bytes_per_second", read},
                    {"read_share", t.read_share()},
                    {"ops_share", t.ops_share(int8_products(engine))}});
    if (!t.profile.is_null()) rows.back()["profile"] = t.profile;
  }
  return rows.dump(2) + "\n";
}

// The tests in llama-bench's order: of each depth the prompts, the decodes, then the pairs.
Result<std::vector<Test>> tests_of(const BenchOptions& o) {
  std::vector<Test> tests;
  for (uint32_t depth : o.n_depth) {
    for (uint32_t n : o.n_prompt)
      if (n) tests.push_back({n, 0, depth});
    for (uint32_t n : o.n_gen)
      if (n) tests.push_back({0, n, depth});
    for (const std::string& pair : o.pairs) {
      Test test{0, 0, depth};
      const char* end = pair.data() + pair.size();
      const auto [comma, first] = std::from_chars(pair.data(), end, test.n_prompt);
      const bool split = first == std::errc() && comma != end && *comma == ',';
      const auto [last, second] =
          split ? std::from_chars(comma + 1, end, test.n_gen) : std::from_chars(end, end, test.n_gen);
      if (!split || second != std::errc() || last != end || !test.n_prompt || !test.n_gen ||
          std::max(test.n_prompt, test.n_gen) > kMostTokens)
        return fail(Code::invalid, "--pg {}: wanted prompt tokens and decoded ones, as 512,128", pair);
      tests.push_back(test);
    }
  }
  if (tests.empty()) return fail(Code::invalid, "nothing to measure: -p and -n are 0");
  for (Test& test : tests) test.n_sequences = o.n_sequences, test.logits = o.logits;
  return tests;
}

Status run(BenchOptions& o) {
  ARGENT_TRY(o.words.settle(o.model.model, nullptr, nullptr, false));
  if (o.model.json) o.format = "json";
  if (o.n_prompt.empty() && o.n_gen.empty() && o.pairs.empty()) o.n_prompt = {512}, o.n_gen = {128};
  if (o.n_depth.empty()) o.n_depth = {0};
  ARGENT_LET(std::vector<Test> tests, tests_of(o));
  uint32_t longest = 1;
  for (const Test& t : tests) longest = std::max(longest, t.n_depth + t.n_prompt + t.n_gen);
  if (o.model.ctx && o.model.ctx < longest)
    return fail(Code::invalid, "--ctx {}: the longest test takes {} positions", o.model.ctx, longest);
  if (!o.model.ctx) o.model.ctx = longest;
  ARGENT_LET(std::unique_ptr<Engine> engine, open_engine(o.model, [&](EngineOptions& e) {
               e.prefix_cache = false;
               e.n_sequences = o.n_sequences;
               o.cache_type = cache_text(e.backend);
               o.n_threads = e.backend.n_threads ? e.backend.n_threads : default_threads();
             }));
  Bench bench(*engine);
  Profiler profiler;
  ARGENT_TRY(profiler.start(*engine, o.profile));
  Peaks peaks(*engine);
  for (Test& test : tests) {
    ARGENT_LET(test.cost, bench.cost(test));
    Test warm = test;
    warm.n_gen = std::min(warm.n_gen, 4u);
    ARGENT_LET(const double ignored, bench.run(warm));
    (void)ignored;
    profiler.clear();
    for (uint32_t r = 0; r < o.repetitions; ++r) {
      if (stderr_is_terminal()) to_stderr("\r{}: run {} of {}", test.name(), r + 1, o.repetitions), std::fflush(stderr);
      ARGENT_LET(const double seconds, bench.run(test));
      test.seconds.push_back(seconds);
      peaks.after_run(test, r + 1 == o.repetitions);
    }
    if (stderr_is_terminal()) to_stderr("\r\033[K");
    if (o.profile.on() && o.format == "json") test.profile = profiler.json();
    if (o.profile.on() && o.format == "text") to_stderr("{}\n", test.name()), profiler.print();
  }
  ARGENT_TRY(profiler.finish());
  return write_stdout(o.format == "json" ? json_report(*engine, o, tests) : text_report(*engine, o.cache_type, tests));
}

}  // namespace

void add_bench(CLI::App& root) {
  auto o = std::make_shared<BenchOptions>();
  CLI::App* app = add_command(
      root, "bench", "measure prompt and decode speed",
      "  argent bench                            prompts of 512 tokens, 128 decoded, on the default model\n"
      "  argent bench MODEL -p 512,2048 -n 64 -r 3 -t 2 -o json\n"
      "  argent bench MODEL -p 1,2,4,8 -n 0      passes of few tokens\n"
      "  argent bench MODEL -n 64 -d 0,8192      decode behind 8,192 positions and without\n"
      "  argent bench MODEL --pg 512,128         a prompt and the decode after it as one time\n"
      "  argent bench MODEL -p 0 -d 512 -s 8     8 sequences side by side: tokens a second of all of them\n"
      "  argent bench serve URL                  load on a server: argent bench serve --help\n"
      "Counted as llama-bench counts; prompts are random, decode draws the most likely token where the model runs.\n"
      "Beside the rate stand the bytes of weights and KV that must be read for a token, and the shares of the read\n"
      "bandwidth and of the arithmetic that the machine can do, measured in the same run.",
      [o, &root]() -> Status { return root.get_subcommand("bench")->get_subcommands().empty() ? run(*o) : Status(); });
  add_bench_serve(*app);
  o->words.add(*app, false);
  o->model.add(*app, true);
  const auto list = [&](const char* flag, std::vector<uint32_t>& to, const char* help) {
    app->add_option(flag, to, help)->delimiter(',')->check(CLI::Range(0u, kMostTokens))->take_all();
  };
  list("-p,--n-prompt", o->n_prompt, "prompt tokens, a list");
  list("-n,--n-gen", o->n_gen, "tokens to decode, a list");
  list("-d,--n-depth", o->n_depth, "positions in the cache before, a list");
  app->add_option("--pg,--prompt-gen", o->pairs, "prompt tokens and tokens decoded after them: 512,128; repeatable")
      ->allow_extra_args(false);
  app->add_option("-s,--sequences", o->n_sequences, "sequences side by side, each with the prompt and the tokens")
      ->check(CLI::Range(1u, kMostSequences))
      ->capture_default_str();
  app->add_flag("--logits", o->logits,
                "decode hands out logits and takes random tokens, as llama-bench has it, in place of drawing tokens");
  app->add_option("-r,--repetitions", o->repetitions, "runs of each test")
      ->check(CLI::Range(1u, 1000u))
      ->capture_default_str();
  app->add_option("-o,--output", o->format, "text or json")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
  o->profile.add(*app);
  app->add_option("--activations", o->model.activations, "native or f32")->capture_default_str();
}

}  // namespace argent::cli
