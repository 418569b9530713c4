// The CPU's sampling against sample/chain.h, to the bit: the kernels on each instruction set, then the ops of a plan on
// one to four threads.
#include "backends/cpu/sample.h"

#include <gtest/gtest.h>

#include <bit>

#include "backends_cpu/matmul_cases.h"
#include "ops/bench.h"
#include "sample/chain.h"

namespace argent::cpu {
namespace {

using sample::Candidate;
using sample::Candidates;

enum class Kind {
  normal,
  ties,
  equal,
  ascending,
  descending,
  masked,       // most are -inf
  padded,       // the last third is -inf
  only_masked,  // all are
  clusters,     // the best are neighbours
  zeros,        // of both signs
  huge,
  one,  // finite logit
};
constexpr Kind kKinds[] = {Kind::normal,     Kind::ties,   Kind::equal,  Kind::ascending,
                           Kind::descending, Kind::masked, Kind::padded, Kind::only_masked,
                           Kind::clusters,   Kind::zeros,  Kind::huge,   Kind::one};

std::vector<float> make_logits(Kind kind, size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> x(n);
  for (size_t i = 0; i < n; ++i) {
    const float v = normal(random);
    switch (kind) {
      case Kind::normal:
        x[i] = v;
        break;
      case Kind::ties:
        x[i] = std::round(v);
        break;
      case Kind::equal:
        x[i] = -2.5f;
        break;
      case Kind::ascending:
        x[i] = float(i) * 0.01f - 30;
        break;
      case Kind::descending:
        x[i] = 30 - float(i) * 0.01f;
        break;
      case Kind::masked:
        x[i] = random() % 8 ? -INFINITY : v;
        break;
      case Kind::padded:
        x[i] = 3 * i >= 2 * n ? -INFINITY : v;
        break;
      case Kind::only_masked:
        x[i] = -INFINITY;
        break;
      case Kind::clusters:
        x[i] = v + (i / 300 % 7 == 3 ? 20 : 0);
        break;
      case Kind::zeros:
        x[i] = random() % 2 ? 0.0f : -0.0f;
        break;
      case Kind::huge:
        x[i] = v * 1e37f;
        break;
      case Kind::one:
        x[i] = i == seed % n ? v : -INFINITY;
        break;
    }
  }
  return x;
}

constexpr uint32_t kVocabularies[] = {255,  256,  257,  300,  511,  512,  513,  1000,  1023,
                                      1024, 1025, 1039, 1040, 2048, 4095, 5000, 20011, 33000};

// 1 to `all_to`, and sizes around those of tiles.
std::vector<uint32_t> sizes(uint32_t all_to) {
  std::vector<uint32_t> all(all_to);
  for (uint32_t i = 0; i < all_to; ++i) all[i] = i + 1;
  all.insert(all.end(), std::begin(kVocabularies), std::end(kVocabularies));
  return all;
}

// A row of candidates that ends where an inaccessible page begins.
class List {
 public:
  explicit List(size_t capacity) : bytes_(sample::candidates_bytes(uint32_t(capacity))) {}
  List(const List& from, size_t capacity) : List(capacity) { sample::copy(from.get(), get()); }
  Candidates get() const { return Candidates(bytes_.data()); }

 private:
  Guarded<uint8_t> bytes_;
};

// Best first, as bits.
std::vector<std::pair<int32_t, uint32_t>> sorted(Candidates list) {
  std::vector<Candidate> copy(list.begin(), list.end());
  std::sort(copy.begin(), copy.end(), sample::better);
  std::vector<std::pair<int32_t, uint32_t>> out;
  for (const Candidate& c : copy) out.emplace_back(c.token, std::bit_cast<uint32_t>(c.logit));
  return out;
}

void expect_row(const SampleKernels& kernels, const std::vector<float>& x, const std::vector<uint32_t>& ks,
                const std::string& what) {
  const uint32_t n = uint32_t(x.size());
  Guarded<float> row(n);
  std::copy(x.begin(), x.end(), row.data());
  const BestLogit best = kernels.best(row.data(), n);
  ASSERT_EQ(best.usable && best.logit > -INFINITY ? int32_t(best.index) : -1, sample::argmax(x)) << what;
  List got(n), want(n);
  for (const uint32_t k : ks) {
    const uint32_t some = select_part(kernels, row.data(), n, 0, k, got.get().data());
    got.get().resize(some == kUnusable ? 0 : keep_best(got.get().data(), some, k));
    sample::top_k(x, {.temperature = 1, .top_k = k}, want.get());
    ASSERT_EQ(sorted(got.get()), sorted(want.get())) << what << ", k " << k;
    ASSERT_EQ(std::memcmp(row.data(), x.data(), n * sizeof(float)), 0) << what;
  }
}

TEST(Sample, BestAndTopK) {
  for (const uint32_t n : sizes(100)) {
    std::vector<uint32_t> ks = {0, 1, 2, 40, n, UINT32_MAX};
    if (n > 100) ks.insert(ks.end(), {7, n / 512, n / 512 + 1, n / 32, n / 32 + 1, n - 1});
    for (const Kind kind : kKinds) {
      const std::vector<float> x = make_logits(kind, n, n);
      for (const Isa isa : supported_isas())
        expect_row(sample_kernels(isa), x, ks,
                   std::string(isa_name(isa)) + ' ' + std::to_string(n) + " kind " + std::to_string(int(kind)));
    }
  }
}

TEST(Sample, UnusableRows) {
  for (const uint32_t n : {1u, 3u, 4u, 7u, 8u, 15u, 16u, 17u, 33u, 100u, 256u, 257u, 1024u, 1300u, 2049u})
    for (const float bad : {NAN, -NAN, INFINITY})
      for (uint32_t at = 0; at < n; at += n < 300 ? 1 : 37) {
        std::vector<float> x = make_logits(Kind::normal, n, n);
        x[at] = bad;
        for (const Isa isa : supported_isas())
          expect_row(sample_kernels(isa), x, {0, 1, 2, 33}, std::string(isa_name(isa)) + ' ' + std::to_string(n));
        // Nothing behind it hides it.
        if (at + 1 < n) x[at + 1] = 1e30f;
        if (at + 16 < n) x[at + 16] = 1e31f;
        for (const Isa isa : supported_isas())
          expect_row(sample_kernels(isa), x, {0, 1}, std::string(isa_name(isa)) + ' ' + std::to_string(n));
      }
}

TEST(Sample, WeightsAreTheRules) {
  std::vector<float> below;
  for (float b = 0; b < 29; b += 0.00037f) below.push_back(b);
  for (float b = 1e-30f; b < 1; b *= 1.7f) below.push_back(b);
  for (const float b : {0.0f, 27.999998f, 28.0f, 28.5f, 1e30f, INFINITY}) below.push_back(b);
  for (const size_t drop : {0, 1, 2, 3, 5, 9}) {
    const uint32_t n = uint32_t(below.size() - drop);
    for (const Isa isa : supported_isas()) {
      std::vector<uint64_t> want(kBuckets), got(kBuckets);
      Guarded<Candidate> list(n);
      for (uint32_t i = 0; i < n; ++i) {
        list[i] = {int32_t(i), -below[i]};
        want[below[i] < 28 ? size_t(below[i] * 64) : kBuckets - 1] += sample::weight(below[i]);
      }
      sample_kernels(isa).add_weights(list.data(), n, 0, got.data());
      ASSERT_EQ(got, want) << isa_name(isa);
    }
  }
}

TEST(Sample, Lists) {
  for (const uint32_t n : sizes(35))
    for (const Kind kind : kKinds) {
      const std::vector<float> x = make_logits(kind, n, n + 1);
      List all(n);
      sample::top_k(x, {.temperature = 1, .top_k = 0}, all.get());
      if (all.get().size() == 0) continue;
      for (const Isa isa : supported_isas()) {
        const SampleKernels& kernels = sample_kernels(isa);
        const std::string what =
            std::string(isa_name(isa)) + ' ' + std::to_string(n) + " kind " + std::to_string(int(kind));
        const uint32_t size = all.get().size();
        const float best = kernels.best_of(all.get().data(), size);
        ASSERT_EQ(best,
                  std::max_element(all.get().begin(), all.get().end(), [](const Candidate& a, const Candidate& b) {
                    return a.logit < b.logit;
                  })->logit);
        std::vector<uint64_t> sums(kBuckets);
        kernels.add_weights(all.get().data(), size, best, sums.data());
        uint64_t total = 0;
        for (const uint64_t s : sums) total += s;
        for (const float p : {1e-20f, 0.3f, 0.95f, 0.9999f}) {
          List got(all, size), want(all, size), order(all, size);
          const uint64_t wanted = sample::share_of(total, p);
          const uint32_t kept = keep_reaching(kernels, got.get(), best, sums.data(), wanted);
          const Candidate worst = worst_reached(kernels, order.get(), best, sums.data(), wanted);
          EXPECT_EQ(sorted(order.get()), sorted(all.get())) << what;
          EXPECT_EQ(worst.token, got.get().data()[kept - 1].token) << what;
          got.get().resize(kept);
          sample::top_p(want.get(), {.top_p = p});
          ASSERT_EQ(sorted(got.get()), sorted(want.get())) << what << ", p " << p;
        }
        for (const float p : {0.0f, 1e-13f, 1e-6f, 0.05f, 0.5f, 1.0f}) {
          List got(all, size), want(all, size);
          cpu::min_p(kernels, got.get(), p);
          sample::min_p(want.get(), {.min_p = p});
          ASSERT_EQ(sorted(got.get()), sorted(want.get())) << what << ", p " << p;
        }
        for (const float t : {0.7f, 1e-4f, 100.0f}) {
          List got(all, size), want(all, size);
          kernels.temper(got.get().data(), size, best, t);
          sample::temperature(want.get(), {.temperature = t});
          for (uint32_t i = 0; i < size; ++i) {
            ASSERT_EQ(got.get().data()[i].token, want.get().data()[i].token) << what;
            ASSERT_EQ(got.get().data()[i].logit, want.get().data()[i].logit) << what;
          }
        }
      }
    }
}

// The sampling tail of a plan behind logits that are rows of a table.
class Sampler {
 public:
  Sampler(std::vector<std::vector<float>> rows, Isa isa, uint32_t n_threads, Tail tail) : rows_(std::move(rows)) {
    for (const auto& row : rows_) table_.insert(table_.end(), row.begin(), row.end());
    Builder b;
    b.set_logits(b.embed(b.input(Input::tokens),
                         b.weight("logits", Format::f32, uint32_t(rows_.size()), uint32_t(rows_[0].size()),
                                  reinterpret_cast<const uint8_t*>(table_.data()))));
    graph_ = std::move(*b.finish());
    BackendOptions options;
    options.isa = isa_name(isa);
    options.n_threads = n_threads;
    backend_ = std::move(*make_cpu_backend(options));
    EXPECT_TRUE(backend_->load(graph_, WeightStorage::resident, nullptr));
    const KernelTable* device = backend_.get();
    Plan plan = std::move(*make_plan(graph_, {kRows, kRows, true, tail}, {&device, 1}));
    EXPECT_TRUE(backend_->allocate({}, {plan.arena_bytes[0], {}}));
    plan_ = *backend_->compile(std::move(plan));
  }

  // One row a parameter, the logits' rows in turn from `first` on.
  void expect_draws(const std::vector<SampleParams>& params, uint32_t first, const std::string& what) {
    Step step;
    std::vector<std::vector<int32_t>> recent;
    for (uint32_t r = 0; r < params.size(); ++r)
      recent.push_back({int32_t(r % rows_.size()), 0, int32_t((first + r) % rows_.size())});
    for (uint32_t r = 0; r < params.size(); ++r) {
      step.tokens.push_back(recent[r].back());
      step.positions.push_back(0);
      step.row_sequence.push_back(r);
      step.sequences.push_back({r, 1, 0, r, {}, recent[r]});
      step.output_rows.push_back(int32_t(r));
      step.sampling.push_back(params[r]);
    }
    const auto ticket = backend_->run(plan_, step);
    ASSERT_TRUE(ticket) << ticket.error().message;
    const auto result = backend_->wait(*ticket);
    for (uint32_t r = 0; r < params.size(); ++r)
      ASSERT_EQ(result->sampled[r], wanted(params[r], rows_[size_t(step.tokens[r])], recent[r]))
          << what << ", row " << r << " of " << params.size() << ", logits " << step.tokens[r];
  }

  static constexpr uint32_t kRows = 5;

 private:
  static int32_t wanted(const SampleParams& params, std::vector<float> x, const std::vector<int32_t>& recent) {
    sample::adjust(x, params, {recent, 0});
    List list(x.size());
    sample::top_k(x, params, list.get());
    sample::top_p(list.get(), params);
    sample::min_p(list.get(), params);
    sample::temperature(list.get(), params);
    const int32_t drawn = sample::draw(list.get(), params, 0);
    EXPECT_TRUE(params.temperature != 0 || drawn == sample::argmax(x));
    return drawn;
  }

  std::vector<std::vector<float>> rows_;
  std::vector<float> table_;
  Graph graph_;
  std::unique_ptr<Backend> backend_;
  PlanId plan_ = 0;
};

const SampleParams kParams[] = {
    {.temperature = 0.8f},
    {.temperature = 0},
    {.temperature = 1, .top_k = 0, .top_p = 1, .min_p = 0},
    {.temperature = 1.5f, .top_k = 0, .repeat_penalty = 1.3f},
    {.temperature = 2, .top_k = 5000, .top_p = 0.999f, .min_p = 0},
    {.temperature = 0.7f, .top_k = 0, .top_p = 1, .min_p = 0.001f},
    {.temperature = 1, .top_k = 300, .top_p = 0.5f},
};

std::vector<std::vector<float>> all_rows(uint32_t n_vocab) {
  std::vector<std::vector<float>> rows;
  for (const Kind kind : kKinds) rows.push_back(make_logits(kind, n_vocab, n_vocab));
  for (const uint32_t at : {0u, n_vocab / 2, n_vocab - 1}) {
    rows.push_back(make_logits(Kind::normal, n_vocab, at));
    rows.back()[at] = at ? NAN : INFINITY;
  }
  return rows;
}

TEST(Sample, PlansOnAnyNumberOfThreads) {
  for (const uint32_t n_vocab : {1u, 37u, 5000u, 17000u, 40000u})
    for (const Isa isa : supported_isas())
      for (const uint32_t n_threads : {1u, 2u, 3u, 4u}) {
        if ((n_threads == 1 || n_vocab < 16384) && isa != supported_isas().back()) continue;
        Sampler sampler(all_rows(n_vocab), isa, n_threads, Tail::sample);
        Sampler greedy(all_rows(n_vocab), isa, n_threads, Tail::greedy);
        const std::string what = fmt::format("{} {} threads {}", isa_name(isa), n_threads, n_vocab);
        uint32_t first = 0;
        for (const uint32_t n_rows : {1u, 2u, 3u, 5u})
          for (uint32_t i = 0; i < 15; i += n_rows, first += n_rows) {
            std::vector<SampleParams> params(n_rows);
            for (uint32_t r = 0; r < n_rows; ++r) {
              params[r] = kParams[(first + r) % std::size(kParams)];
              params[r].seed = 100 * first + r;
            }
            sampler.expect_draws(params, first, what);
            greedy.expect_draws(std::vector<SampleParams>(n_rows), first, what + " greedy");
          }
      }
}

}  // namespace
}  // namespace argent::cpu
