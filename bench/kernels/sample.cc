// Sampling by op, where it stands in a decode step: an lm head writes the logits, the tail of the plan samples from
// them. Times are those of the backend's profile: an op and the barrier behind it. The head has 32 columns, so that its
// weights and the logits stay in the caches of most machines, or 640: then most logits of large vocabularies come from
// memory. Logits are close to normal with a deviation of 3.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>

#include "base/half.h"
#include "graph/builder.h"
#include "graph/kv_layout.h"
#include "kernels/bench.h"

namespace argent::bench {
namespace {

struct Chain {
  std::string_view name;
  Tail tail;
  SampleParams params;
};

const Chain kChains[] = {
    {"greedy", Tail::greedy, {.temperature = 0}},
    {"default", Tail::sample, {.temperature = 0.8f}},
    {"penalty", Tail::sample, {.temperature = 0.8f, .repeat_penalty = 1.1f}},
    {"top_k_1000", Tail::sample, {.temperature = 0.8f, .top_k = 1000}},
    {"top_k_0", Tail::sample, {.temperature = 0.8f, .top_k = 0}},
    {"draw_from_all", Tail::sample, {.temperature = 1, .top_k = 0, .top_p = 1, .min_p = 0}},
};

constexpr uint32_t kEmbedded = 64;

// An embedding of kEmbedded rows and a Q8_0 head of n_vocab rows.
struct SampleWeights {
  SampleWeights(uint32_t n_vocab, uint32_t width)
      : table(random_floats(kEmbedded * width)), head(uint64_t(n_vocab) * width / 32 * 34) {
    Rng random(2);
    const uint16_t scale = float_to_half(9 / std::sqrt(float(width)) / 127);
    for (size_t row = 0; row < head.size(); row += 34) {
      std::memcpy(&head[row], &scale, 2);
      for (size_t i = 2; i < 34; ++i) head[row + i] = uint8_t(int8_t(int(random.next() % 255) - 127));
    }
  }
  std::vector<float> table;
  std::vector<uint8_t> head;
};

// A backend with one plan of one row, and the steps that it runs.
class Sampler {
 public:
  static Result<std::unique_ptr<Sampler>> create(Bench& bench, const SampleWeights& weights, uint32_t n_vocab,
                                                 uint32_t width, const Chain& chain) {
    auto s = std::unique_ptr<Sampler>(new Sampler);
    Builder b;
    const auto* table = reinterpret_cast<const uint8_t*>(weights.table.data());
    const ValueId x = b.embed(b.input(Input::tokens), b.weight("table", Format::f32, kEmbedded, width, table));
    b.set_logits(b.matmul(x, b.weight("head", Format::q8_0, n_vocab, width, weights.head.data())));
    ARGENT_LET(s->graph_, b.finish());
    BackendOptions options;
    options.isa = bench.isa_name();
    options.n_threads = bench.pool().n_threads();
    ARGENT_LET(s->backend_, make_cpu_backend(options));
    ARGENT_TRY(s->backend_->load(s->graph_, WeightStorage::resident, nullptr));
    const KernelTable* device = s->backend_.get();
    ARGENT_LET(s->plan_, make_plan(s->graph_, {1, 1, true, chain.tail}, {&device, 1}));
    ARGENT_TRY(s->backend_->allocate(kv_layout(s->graph_), {s->plan_.arena_bytes[0], {}}));
    ARGENT_LET(s->id_, s->backend_->compile(s->plan_));
    s->backend_->set_profile(true);
    for (uint32_t i = 0; i < kEmbedded; ++i) s->recent_.push_back(int32_t(i));
    s->step_.tokens = {0}, s->step_.positions = {0}, s->step_.row_sequence = {0}, s->step_.output_rows = {0};
    s->step_.sequences.push_back({0, 1, 0, 0, {}, s->recent_});
    if (chain.tail == Tail::sample) s->step_.sampling.push_back(chain.params);
    return s;
  }

  Status run(uint32_t n) {
    step_.tokens[0] = int32_t(n % kEmbedded);
    for (SampleParams& params : step_.sampling) params.seed = n;
    ARGENT_LET(const Ticket ticket, backend_->run(id_, step_));
    return backend_->wait(ticket) ? Status{} : fail(Code::internal, "no result");
  }

  struct Time {
    std::string_view op;
    double seconds;
  };
  // Of the last step's ops behind the head.
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

// The median of each op and of their sum.
Status measure(Bench& bench, const SampleWeights& weights, uint32_t n_vocab, uint32_t width, const Chain& chain,
               const std::string& name) {
  ARGENT_LET(const std::unique_ptr<Sampler> sampler, Sampler::create(bench, weights, n_vocab, width, chain));
  std::vector<std::string_view> ops;
  std::vector<std::vector<double>> seconds;  // by op; the sum last
  Status status;
  uint32_t n = 0;
  bench.time([&] {
    if (!status) return;
    status = sampler->run(n++);
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
  });
  ARGENT_TRY(status);
  ops.push_back("all");
  for (size_t i = 0; i < ops.size(); ++i) {
    std::nth_element(seconds[i].begin(), seconds[i].begin() + std::ptrdiff_t(seconds[i].size() / 2), seconds[i].end());
    bench.report(fmt::format("{}/{}", name, ops[i]), seconds[i][seconds[i].size() / 2], {});
  }
  return {};
}

}  // namespace

void sample(Bench& b) {
  for (const uint32_t width : {32u, 640u})
    for (const uint32_t n_vocab : {32000u, 151936u, 262144u}) {
      std::optional<SampleWeights> weights;
      for (const Chain& chain : kChains) {
        const std::string name = fmt::format("sample/{}/{}/{}x{}", b.isa_name(), chain.name, width, n_vocab);
        if (!b.wants(name, width == 32 && n_vocab == 262144)) continue;
        if (!weights) weights.emplace(n_vocab, width);
        if (const Status status = measure(b, *weights, n_vocab, width, chain, name); !status)
          b.failed(name, status.error());
      }
    }
}

}  // namespace argent::bench
