// Runs the op cases of cases.def on a backend and compares it with the reference. A backend's test is
//   for (const Case& c : cases()) EXPECT_TRUE(run_case(c, options, make_cpu_backend).passed()) << ...
#pragma once

#include <algorithm>
#include <functional>

#include "graph/kv_layout.h"
#include "graph/plan.h"
#include "ops/bench.h"
#include "reference/backend.h"

namespace argent::ops_test {

// How far a kernel may be from the reference: absolute + relative * the largest magnitude of the row. Each has its
// cause.
struct Tolerance {
  std::string_view cause;
  double absolute, relative;
};
inline constexpr Tolerance kExact{"the same bits", 0, 0};
inline constexpr Tolerance kRoundings{"a few roundings to f32 instead of one", 1e-37, 1e-6};
inline constexpr Tolerance kFunctions{"exp and tanh in f32", 1e-7, 2e-6};
inline constexpr Tolerance kSums{"sums in f32 instead of double or of fused ones", 1e-37, 1e-5};
inline constexpr Tolerance kOneSum{"as kSums; a single sum may cancel to far less than its terms, which are near 1",
                                   2e-5, 1e-5};
inline constexpr Tolerance kRoundedCache{"what is stored may round to the neighbouring half", 1e-6, 1e-3};
inline constexpr Tolerance kAttention{"scores, exp and sums in f32", 1e-6, 2e-5};

struct Case {
  Op op;
  std::string name;
  Tolerance tolerance = kExact;
  const Script* script = nullptr;
  std::function<ValueId(Maker&, Builder&)> build;  // makes the graph, returns what the op gives first
  std::optional<SampleParams> sampling;            // with it, build() gives logits and the tail samples
};

inline std::vector<Case> cases() {
  std::vector<Case> all;
#define CASE(op, name, tolerance, script, ...)                                         \
  all.push_back({Op::op,                                                               \
                 #op "." #name,                                                        \
                 tolerance,                                                            \
                 &script,                                                              \
                 [](Maker& m, Builder& b) { return (void)m, (void)b, (__VA_ARGS__); }, \
                 {}});
#define SAMPLE(op, name, width, ...)                                                                        \
  all.push_back({Op::op, #op "." #name, kExact, &draws, [](Maker& m, Builder&) { return m.logits(width); }, \
                 SampleParams{__VA_ARGS__}});
#include "ops/cases.def"
#undef CASE
#undef SAMPLE
  return all;
}

using MakeBackend = std::function<Result<std::unique_ptr<Backend>>(const BackendOptions&)>;

// Options with int8 or f32 activations and K and V of one type.
inline BackendOptions backend_options(ActivationMode activations, KvType kv = KvType::f16, uint32_t n_threads = 1) {
  BackendOptions options;
  options.n_threads = n_threads;
  options.activations = activations;
  options.kv_k = options.kv_v = kv;
  return options;
}

inline Result<std::unique_ptr<Backend>> make_poisoned_reference(const BackendOptions& options) {
  return reference::make_backend(options, {.poison = true});
}

// What a step gave: floats, or sampled tokens.
struct Seen {
  std::vector<float> logits;
  std::vector<int32_t> sampled;
};

// How a graph is run.
struct Setup {
  Tail tail = Tail::logits;
  uint32_t n_vocab = Maker::kVocab;  // tokens of the steps are below it
  std::optional<SampleParams> sampling = {};
  bool fuse = false;
  std::optional<WeightStorage> weights = {};  // none: resident where the backend has that
};

// A graph on a backend, with KV blocks in shuffled order.
class Runner {
 public:
  // unsupported: the backend has no kernel for a node.
  static Result<std::unique_ptr<Runner>> create(const Graph& graph, const BackendOptions& options,
                                                const MakeBackend& make, const Setup& setup) {
    auto r = std::unique_ptr<Runner>(new Runner);
    ARGENT_LET(r->backend_, make(options));
    r->graph_ = graph;
    r->setup_ = setup;
    ARGENT_TRY(r->backend_->load(
        r->graph_,
        setup.weights.value_or(r->backend_->caps().resident_weights ? WeightStorage::resident : WeightStorage::mapped),
        nullptr));
    const std::vector<Backend*> parts = r->backend_->parts();  // several, of a split backend
    const std::vector<const KernelTable*> devices(parts.begin(), parts.end());
    const KvLayout layout = kv_layout(r->graph_);
    MemoryNeed need{0, std::vector<uint32_t>(layout.windows.size(), kBlocks), std::vector<uint64_t>(parts.size(), 0)};
    std::vector<Plan> plans;
    PlanOptions plan_options;
    plan_options.fuse = setup.fuse;
    r->backend_->place(plan_options);
    for (const bool all_rows : {true, false}) {
      ARGENT_LET(Plan plan, make_plan(r->graph_, {kRows, kRows, all_rows, setup.tail}, devices, plan_options));
      for (size_t d = 0; d < parts.size(); ++d)
        need.part_arena_bytes[d] = std::max(need.part_arena_bytes[d], plan.arena_bytes[d]);
      plans.push_back(std::move(plan));
    }
    need.arena_bytes = need.part_arena_bytes[0];
    ARGENT_TRY(r->backend_->allocate(layout, need));
    for (Plan& plan : plans) {
      ARGENT_LET(PlanId id, r->backend_->compile(std::move(plan)));
      r->plans_.push_back(id);
    }
    r->windows_ = layout.windows;
    std::mt19937 random(7);
    for (size_t g = 0; g < layout.windows.size(); ++g) {
      r->free_.emplace_back();
      for (uint32_t i = 0; i < kBlocks; ++i) r->free_.back().push_back(int32_t(i));
      std::shuffle(r->free_.back().begin(), r->free_.back().end(), random);
    }
    return r;
  }

  Backend& backend() { return *backend_; }
  const Graph& graph() const { return graph_; }

  // Tokens, parameters and tables are pure functions of the steps so far, so two runners of one script see the same.
  Result<Seen> step(const StepSpec& spec) {
    Step step;
    std::mt19937 random(n_steps_++);
    for (const StepSpec::Part& part : spec.parts) {
      Sequence& sequence = sequences_[part.sequence];
      sequence.tables.resize(windows_.size());
      StepSequence s{uint32_t(step.tokens.size()), part.n_rows, sequence.length, part.sequence, {}, {}};
      for (uint32_t i = 0; i < part.n_rows; ++i) {
        sequence.tokens.push_back(int32_t(random() % setup_.n_vocab));
        step.tokens.push_back(spec.feed_back ? ~int32_t(part.sequence) : sequence.tokens.back());
        step.positions.push_back(int32_t(sequence.length + i));
        step.row_sequence.push_back(uint32_t(step.sequences.size()));
      }
      const uint32_t end = sequence.length + part.n_rows;
      for (size_t g = 0; g < windows_.size(); ++g) {
        std::vector<int32_t>& table = sequence.tables[g];
        for (; table.size() * kKvBlockTokens < end; free_[g].pop_back()) table.push_back(free_[g].back());
        if (windows_[g] && sequence.length >= windows_[g])  // out of sight: nobody may look there
          std::fill_n(table.begin(), (sequence.length - windows_[g] + 1) / kKvBlockTokens, -1);
        s.tables.push_back(table);
      }
      s.recent = sequence.tokens;
      s.n_prompt = uint32_t(sequence.tokens.size() / 2);
      sequence.length = end;
      step.sequences.push_back(std::move(s));
    }
    const uint32_t n = uint32_t(step.tokens.size());
    for (uint32_t r = 0; r < n && spec.outputs != Outputs::none; ++r)
      if (spec.outputs == Outputs::all || r % 3 == 1 || r + 1 == n) step.output_rows.push_back(int32_t(r));
    const uint32_t words = (setup_.n_vocab + 31) / 32;
    std::vector<uint32_t> masks(words * step.output_rows.size());
    std::vector<LogitBias> bias;
    for (uint32_t& word : masks) word = uint32_t(random()) | 1;
    for (int i = 0; i < 5; ++i) bias.push_back({int32_t(random() % setup_.n_vocab), float(random() % 21) - 10});
    if (setup_.tail == Tail::sample || setup_.tail == Tail::sample_logits)
      for (size_t i = 0; i < step.output_rows.size(); ++i) {
        if (setup_.sampling->presence_penalty != 0)
          step.rules.push_back({std::span(masks).subspan(i * words, i % 2 ? words : 0), bias});
        step.sampling.push_back(*setup_.sampling);
        step.sampling.back().seed = 1000 * n_steps_ + i;
        step.sampling.back().sample_index = uint32_t(i % 3);
      }
    ARGENT_LET(const Ticket ticket, backend_->run(plans_[spec.outputs == Outputs::all ? 0 : 1], step));
    ARGENT_LET(const StepResult result, backend_->wait(ticket));
    return Seen{{result.logits.begin(), result.logits.end()}, {result.sampled.begin(), result.sampled.end()}};
  }

 private:
  static constexpr uint32_t kRows = 303, kBlocks = 48;
  struct Sequence {
    uint32_t length = 0;
    std::vector<int32_t> tokens;
    std::vector<std::vector<int32_t>> tables;
  };

  Runner() = default;
  std::unique_ptr<Backend> backend_;
  Graph graph_;
  Setup setup_;
  std::vector<PlanId> plans_;  // all rows, gathered rows
  std::vector<uint32_t> windows_;
  std::vector<std::vector<int32_t>> free_;
  std::array<Sequence, 8> sequences_;
  uint32_t n_steps_ = 0;
};

struct Outcome {
  enum { ok, none, wrong } state = ok;
  std::string detail;  // why there is no kernel, or the first difference
  double worst = 0;    // largest difference as a share of what the tolerance allows (exact: 0 or more)
  bool passed() const { return state != wrong; }
};

// The first difference beyond the tolerance.
inline std::optional<std::string> compare(const Seen& seen, const Seen& wanted, uint32_t width, const Tolerance& t,
                                          double* worst) {
  if (seen.sampled != wanted.sampled) {
    const size_t n = std::min(seen.sampled.size(), wanted.sampled.size());
    for (size_t i = 0; i < n; ++i)
      if (seen.sampled[i] != wanted.sampled[i])
        return fmt::format("output row {}: token {}, wants {}", i, seen.sampled[i], wanted.sampled[i]);
    return fmt::format("{} tokens, wants {}", seen.sampled.size(), wanted.sampled.size());
  }
  if (seen.logits.size() != wanted.logits.size())
    return fmt::format("{} values, wants {}", seen.logits.size(), wanted.logits.size());
  for (size_t row = 0; row < wanted.logits.size(); row += width) {
    double most = 0;
    for (size_t i = row; i < row + width; ++i)
      if (std::isfinite(wanted.logits[i])) most = std::max(most, std::fabs(double(wanted.logits[i])));
    const double allowed = t.absolute + t.relative * most;
    for (size_t i = row; i < row + width; ++i) {
      const float a = seen.logits[i], b = wanted.logits[i];
      if (a == b || (std::isnan(a) && std::isnan(b))) continue;
      const double difference = std::fabs(double(a) - double(b));
      if (allowed > 0) *worst = std::max(*worst, difference / allowed);
      if (!(difference <= allowed))
        return fmt::format("row {} column {}: {}, wants {} within {} ({})", row / width, i - row, a, b, allowed,
                           t.cause);
    }
  }
  return std::nullopt;
}

// One graph of a case: output k of the op, in place where it may be, or with its input kept alive.
inline Outcome run_graph(const Case& c, const BackendOptions& options, const MakeBackend& make,
                         std::optional<WeightStorage> weights, size_t k, bool keep_input, bool* more) {
  Maker maker(17);
  Builder& b = maker.builder();
  ValueId out = c.build(maker, b);
  Tail tail = Tail::logits;
  if (c.sampling) {
    tail = c.op == Op::argmax ? Tail::greedy : c.op == Op::adjust ? Tail::sample_logits : Tail::sample;
  } else if (!b.failed()) {
    const Node node = b.graph().nodes.back();
    *more = k + 1 < node.outputs.size();
    if (!node.outputs.empty()) out = node.outputs[k];
    if (keep_input) {
      const int at = info(node.op).in_place;
      if (at < 0 || k > 0 || b.graph().value(node.inputs[size_t(at)]).width != b.graph().value(out).width ||
          b.graph().value(node.inputs[size_t(at)]).rows != b.graph().value(out).rows)
        return {};
      out = b.add(out, node.inputs[size_t(at)]);
    }
  }
  b.set_logits(out);
  const auto graph = b.finish();
  if (!graph) return {Outcome::wrong, graph.error().message};
  Setup setup{tail, maker.n_vocab(), c.sampling, false, weights};
  const auto tested = Runner::create(*graph, options, make, setup);
  if (!tested)
    return {tested.error().code == Code::unsupported ? Outcome::none : Outcome::wrong, tested.error().message};
  setup.weights = std::nullopt;
  const auto wanted = Runner::create(*graph, options, make_poisoned_reference, setup);
  if (!wanted) return {Outcome::wrong, wanted.error().message};

  Outcome outcome;
  Script script = *c.script;
  if (c.sampling && graph->value(out).width <= maker.n_vocab())
    script.push_back({{{1, 2}, {0, 1}}, Outputs::all, true});
  for (size_t i = 0; i < script.size(); ++i) {
    const auto seen = (*tested)->step(script[i]), want = (*wanted)->step(script[i]);
    if (!seen || !want) return {Outcome::wrong, fmt::format("step {}: {}", i, (seen ? want : seen).error().message)};
    if (const auto difference = compare(*seen, *want, graph->value(out).width, c.tolerance, &outcome.worst))
      return {Outcome::wrong,
              fmt::format("output {}{}, step {}: {}", k, keep_input ? ", input kept" : "", i, *difference),
              outcome.worst};
  }
  return outcome;
}

inline Outcome run_case(const Case& c, const BackendOptions& options, const MakeBackend& make,
                        std::optional<WeightStorage> weights = {}) {
  Outcome all;
  bool more = true;
  for (size_t k = 0; more; ++k) {
    more = false;
    for (const bool keep_input : {false, true}) {
      if (keep_input && c.sampling) continue;
      Outcome one = run_graph(c, options, make, weights, k, keep_input, &more);
      one.worst = all.worst = std::max(all.worst, one.worst);
      if (one.state != Outcome::ok) return one;
    }
  }
  return all;
}

}  // namespace argent::ops_test
