// Speed of sampling on the CPU backend, by op, where it stands in a decode step: an lm head writes the logits, the tail
// of the plan samples from them. Times are those of the backend's profile: an op and the barrier behind it.
//
//   bench_sample [--vocab 32000,151936,262144] [--threads n] [--rows 1] [--width 32] [--isa avx512]
//                [--steps 300] [--json]
//
// The head has 32 columns, so that its weights and the logits stay in the caches of most machines (with --width 640 and
// more, most logits come from memory); logits are close to normal with a deviation of 3. A table, or with --json a line
// an op: the shortest and the median time of the steps.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "backends/backend.h"
#include "base/half.h"
#include "graph/builder.h"
#include "graph/kv_layout.h"

namespace argent {
namespace {

struct Options {
  std::vector<uint32_t> vocab = {32000, 151936, 262144};
  uint32_t threads = 0, rows = 1, width = 32, steps = 300;
  std::string isa;
  bool json = false;
};

struct Chain {
  std::string_view name;
  Tail tail;
  SampleParams params;
};

const Chain kChains[] = {
    {"greedy", Tail::greedy, {.temperature = 0}},
    {"default", Tail::sample, {.temperature = 0.8f}},
    {"penalty", Tail::sample, {.temperature = 0.8f, .repeat_penalty = 1.1f}},
    {"top_k 1000", Tail::sample, {.temperature = 0.8f, .top_k = 1000}},
    {"top_k 0", Tail::sample, {.temperature = 0.8f, .top_k = 0}},
    {"draw from all", Tail::sample, {.temperature = 1, .top_k = 0, .top_p = 1, .min_p = 0}},
};

constexpr uint32_t kTokens = 64;

// An embedding of kTokens rows and a Q8_0 head of n_vocab rows.
class Weights {
 public:
  Weights(uint32_t n_vocab, uint32_t width) : table_(kTokens * width), head_(uint64_t(n_vocab) * width / 32 * 34) {
    std::mt19937 random(1);
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (float& x : table_) x = uniform(random);
    const uint16_t scale = float_to_half(9 / std::sqrt(float(width)) / 127);
    for (size_t row = 0; row < head_.size(); row += 34) {
      std::memcpy(&head_[row], &scale, 2);
      for (size_t i = 2; i < 34; ++i) head_[row + i] = uint8_t(int8_t(int(random() % 255) - 127));
    }
  }
  const uint8_t* table() const { return reinterpret_cast<const uint8_t*>(table_.data()); }
  const uint8_t* head() const { return head_.data(); }

 private:
  std::vector<float> table_;
  std::vector<uint8_t> head_;
};

// A backend with one plan, and the steps that it runs.
class Sampler {
 public:
  static Result<std::unique_ptr<Sampler>> create(const Options& options, const Weights& weights, uint32_t n_vocab,
                                                 const Chain& chain) {
    auto s = std::unique_ptr<Sampler>(new Sampler);
    Builder b;
    const ValueId x =
        b.embed(b.input(Input::tokens), b.weight("table", Format::f32, kTokens, options.width, weights.table()));
    b.set_logits(b.matmul(x, b.weight("head", Format::q8_0, n_vocab, options.width, weights.head())));
    ARGENT_LET(s->graph_, b.finish());
    BackendOptions backend_options;
    backend_options.isa = options.isa;
    backend_options.n_threads = options.threads;
    ARGENT_LET(s->backend_, make_cpu_backend(backend_options));
    ARGENT_TRY(s->backend_->load(s->graph_, WeightStorage::resident, nullptr));
    const KernelTable* device = s->backend_.get();
    ARGENT_LET(s->plan_, make_plan(s->graph_, {options.rows, options.rows, true, chain.tail}, {&device, 1}));
    ARGENT_TRY(s->backend_->allocate(kv_layout(s->graph_), {s->plan_.arena_bytes[0], {}}));
    ARGENT_LET(s->id_, s->backend_->compile(s->plan_));
    s->backend_->set_profile(true);
    s->recent_.resize(kTokens);
    for (uint32_t i = 0; i < kTokens; ++i) s->recent_[i] = int32_t(i);
    for (uint32_t r = 0; r < options.rows; ++r) {
      s->step_.tokens.push_back(0);
      s->step_.positions.push_back(0);
      s->step_.row_sequence.push_back(r);
      s->step_.sequences.push_back({r, 1, 0, r, {}, s->recent_});
      s->step_.output_rows.push_back(int32_t(r));
      if (chain.tail == Tail::sample) s->step_.sampling.push_back(chain.params);
    }
    return s;
  }

  std::string threads() const { return backend_->caps().description; }

  // Runs step number n; the seconds of each op behind the head, by plan node, in times().
  Status run(uint32_t n) {
    for (size_t r = 0; r < step_.tokens.size(); ++r) step_.tokens[r] = int32_t((n + r) % kTokens);
    for (SampleParams& params : step_.sampling) params.seed = n;
    ARGENT_LET(const Ticket ticket, backend_->run(id_, step_));
    return backend_->wait(ticket) ? Status{} : fail(Code::internal, "no result");
  }

  struct Time {
    std::string_view op;
    double seconds;
  };
  std::vector<Time> times() const {
    std::vector<Time> all;
    bool behind_head = false;
    for (const NodeTime& t : backend_->profile()) {
      const Op op = plan_.graph.nodes[t.node].op;
      if (behind_head) all.push_back({info(op).name, double(t.nanoseconds) * 1e-9});
      behind_head = behind_head || op == Op::matmul;
    }
    return all;
  }

 private:
  Sampler() = default;
  Graph graph_;
  std::unique_ptr<Backend> backend_;
  Plan plan_;
  PlanId id_ = 0;
  std::vector<int32_t> recent_;
  Step step_;
};

void report(const Options& options, uint32_t n_vocab, std::string_view chain, std::string_view op,
            std::vector<double> seconds, std::string_view device) {
  std::sort(seconds.begin(), seconds.end());
  const double best = seconds.front() * 1e6, median = seconds[seconds.size() / 2] * 1e6;
  if (options.json)
    fmt::print(
        "{{\"bench\":\"sample\",\"device\":\"{}\",\"vocab\":{},\"rows\":{},\"chain\":\"{}\",\"op\":\"{}\","
        "\"us_best\":{:.2f},\"us_median\":{:.2f}}}\n",
        device, n_vocab, options.rows, chain, op, best, median);
  else
    fmt::print("{:>8}  {:14} {:12} {:10.1f} {:10.1f}\n", n_vocab, chain, op, best, median);
}

// Every op of a chain, then their sum.
Status bench_chain(const Options& options, const Weights& weights, uint32_t n_vocab, const Chain& chain) {
  ARGENT_LET(const std::unique_ptr<Sampler> sampler, Sampler::create(options, weights, n_vocab, chain));
  std::vector<std::string_view> ops;
  std::vector<std::vector<double>> seconds;  // by op; the sum last
  for (uint32_t n = 0; n < options.steps; ++n) {
    ARGENT_TRY(sampler->run(n));
    const std::vector<Sampler::Time> times = sampler->times();
    seconds.resize(times.size() + 1);
    ops.clear();
    double sum = 0;
    for (size_t i = 0; i < times.size(); ++i) {
      ops.push_back(times[i].op);
      seconds[i].push_back(times[i].seconds);
      sum += times[i].seconds;
    }
    seconds.back().push_back(sum);
  }
  const std::string device = sampler->threads();
  for (size_t i = 0; i < ops.size(); ++i) report(options, n_vocab, chain.name, ops[i], seconds[i], device);
  if (ops.size() > 1) report(options, n_vocab, chain.name, "all", seconds.back(), device);
  return {};
}

Status bench(const Options& options) {
  if (!options.json) fmt::print("{:>8}  {:14} {:12} {:>10} {:>10}\n", "vocab", "chain", "op", "best us", "median us");
  for (const uint32_t n_vocab : options.vocab) {
    const Weights weights(n_vocab, options.width);
    for (const Chain& chain : kChains) ARGENT_TRY(bench_chain(options, weights, n_vocab, chain));
  }
  return {};
}

}  // namespace
}  // namespace argent

int main(int argc, char** argv) {
  argent::Options options;
  CLI::App app("Speed of sampling on the CPU backend");
  app.add_option("--vocab", options.vocab, "tokens of the vocabulary")->delimiter(',')->check(CLI::PositiveNumber);
  app.add_option("--threads", options.threads);
  app.add_option("--rows", options.rows, "logits rows of a step")->check(CLI::Range(1, 64));
  app.add_option("--width", options.width, "columns of the head, a multiple of 32")->check(CLI::Range(32, 8192));
  app.add_option("--steps", options.steps)->check(CLI::PositiveNumber);
  app.add_option("--isa", options.isa);
  app.add_flag("--json", options.json);
  CLI11_PARSE(app, argc, argv);
  if (const argent::Status status = argent::bench(options); !status) {
    fmt::print(stderr, "bench_sample: {}\n", status.error().message);
    return 1;
  }
}
