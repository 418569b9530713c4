// The sampling ops by the rules of sample/rules.h, with full sorts and plain sums.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "reference/ops.h"
#include "sample/philox.h"
#include "sample/rules.h"

namespace argent::reference {
namespace {

using sample::better;
using sample::Candidate;
using sample::Candidates;

// The output row (index into Step::sampling and ::output_rows) behind row r of a sampling op's value: the same number,
// whether the logits were gathered or every row has them.
const SampleParams& params(const Call& call, uint32_t r) { return call.context.step.sampling[r]; }

bool usable(const float* logits, uint32_t n) {
  bool any = false;
  for (uint32_t i = 0; i < n; ++i) {
    if (std::isnan(logits[i]) || logits[i] == INFINITY) return false;
    any = any || logits[i] != -INFINITY;
  }
  return any;
}

// All candidates of a row, best first.
std::vector<Candidate> sorted(const float* logits, uint32_t n) {
  std::vector<Candidate> all;
  if (!usable(logits, n)) return all;
  for (uint32_t i = 0; i < n; ++i)
    if (logits[i] != -INFINITY) all.push_back({int32_t(i), logits[i]});
  std::sort(all.begin(), all.end(), better);
  return all;
}

std::vector<Candidate> sorted(Candidates row) {
  std::vector<Candidate> all(row.begin(), row.end());
  std::sort(all.begin(), all.end(), better);
  return all;
}

void put(const std::vector<Candidate>& list, Candidates row) {
  row.resize(uint32_t(list.size()));
  std::copy(list.begin(), list.end(), row.data());
}

uint64_t weight(const std::vector<Candidate>& best_first, size_t i) {
  return sample::weight(best_first[0].logit - best_first[i].logit);
}

uint64_t sum_of_weights(const std::vector<Candidate>& best_first) {
  uint64_t sum = 0;
  for (size_t i = 0; i < best_first.size(); ++i) sum += weight(best_first, i);
  return sum;
}

// A filter: best-first candidates of each row in, those that stay out.
template <class F>
void filter(const Call& call, const F& f) {
  for (uint32_t r = 0; r < call.out[0].n_rows; ++r) {
    std::vector<Candidate> list = sorted(Candidates(call.in[0].candidates(r)));
    if (!list.empty()) f(list, params(call, r));
    put(list, Candidates(call.out[0].candidates(r)));
  }
}

}  // namespace

void adjust(const Call& call) {
  for (uint32_t r = 0; r < call.out[0].n_rows; ++r) {
    float* out = call.out[0].f32(r);
    std::memmove(out, call.in[0].f32(r), call.out[0].value->width * sizeof(float));
    const SampleParams& p = params(call, r);
    const uint32_t n_vocab = call.out[0].value->width;
    const sample::History history = sample::history(call.context.step, call.context.token_row(*call.in[0].value, r));
    const RowRules rules = sample::rules_of(call.context.step, r);
    for (const LogitBias& b : rules.bias) out[b.token] += b.bias;
    const size_t n = history.tokens.size();
    std::map<int32_t, std::pair<bool, uint32_t>> seen;  // token: among the last repeat_last_n; times generated
    for (size_t i = 0; i < n; ++i) {
      const int32_t entry = history.tokens[i], token = entry < 0 ? call.context.slots[size_t(~entry)] : entry;
      if (token < 0 || uint32_t(token) >= n_vocab) continue;
      seen[token].first |= n - i <= p.repeat_last_n;
      seen[token].second += n - i <= history.n_generated;
    }
    for (const auto& [token, how] : seen) {
      float& logit = out[token];
      if (how.first && p.repeat_penalty != 1) logit = logit <= 0 ? logit * p.repeat_penalty : logit / p.repeat_penalty;
      const float counted = float(how.second) * p.frequency_penalty;
      if (how.second) logit -= counted + p.presence_penalty;
    }
    for (uint32_t i = 0; i < n_vocab && !rules.mask.empty(); ++i)
      if (!(rules.mask[i / 32] >> (i % 32) & 1) && out[i] < INFINITY) out[i] = -INFINITY;
  }
}

void argmax(const Call& call) {
  for (uint32_t r = 0; r < call.out[0].n_rows; ++r) {
    const Operand& in = call.in[0];
    const std::vector<Candidate> list = in.value->dtype == DType::candidates ? sorted(Candidates(in.candidates(r)))
                                                                             : sorted(in.f32(r), in.value->width);
    *call.out[0].i32(r) = list.empty() ? -1 : list[0].token;
  }
}

void top_k(const Call& call) {
  for (uint32_t r = 0; r < call.out[0].n_rows; ++r) {
    std::vector<Candidate> list = sorted(call.in[0].f32(r), call.in[0].value->width);
    const SampleParams& p = params(call, r);
    const size_t k = p.temperature == 0 ? 1 : p.top_k == 0 ? list.size() : p.top_k;
    list.resize(std::min(list.size(), k));
    put(list, Candidates(call.out[0].candidates(r)));
  }
}

void top_p(const Call& call) {
  filter(call, [](std::vector<Candidate>& list, const SampleParams& p) {
    if (p.top_p >= 1) return;
    const uint64_t wanted = sample::share_of(sum_of_weights(list), p.top_p);
    uint64_t sum = 0;
    size_t n = 0;
    while (sum < wanted) sum += weight(list, n++);
    list.resize(n);
  });
}

void min_p(const Call& call) {
  filter(call, [](std::vector<Candidate>& list, const SampleParams& p) {
    const uint64_t least = uint64_t(double(p.min_p) * double(sample::kWeightOne));
    std::vector<Candidate> kept;
    for (size_t i = 0; i < list.size(); ++i)
      if (weight(list, i) >= least) kept.push_back(list[i]);
    list = kept;
  });
}

void temperature(const Call& call) {
  filter(call, [](std::vector<Candidate>& list, const SampleParams& p) {
    if (p.temperature == 0) return;
    const float best = list[0].logit;
    for (Candidate& c : list) c.logit = (c.logit - best) / p.temperature;
  });
}

void draw(const Call& call) {
  for (uint32_t r = 0; r < call.out[0].n_rows; ++r) {
    int32_t token = -1;
    const Operand& in = call.in[0];
    const std::vector<Candidate> list = in.value->dtype == DType::candidates ? sorted(Candidates(in.candidates(r)))
                                                                             : sorted(in.f32(r), in.value->width);
    if (!list.empty()) {
      const uint32_t row = call.context.token_row(*in.value, r);
      const SampleParams& p = params(call, r);
      const uint64_t bits = sample::draw_bits(p.seed, uint32_t(call.context.step.positions[row]), p.sample_index);
      const uint64_t target = sample::mul_high(bits, sum_of_weights(list));
      uint64_t end = 0;
      for (size_t i = 0; i < list.size(); ++i) {
        end += weight(list, i);
        token = list[i].token;
        if (end > target) break;
      }
    }
    *call.out[0].i32(r) = token;
  }
}

}  // namespace argent::reference
