#include "sample/chain.h"

#include <array>
#include <cmath>

#include "sample/philox.h"

namespace argent::sample {
namespace {

constexpr size_t kBlock = 1024;  // logits whose maximum is found before any of them is looked at

struct BlockMax {
  float max = -INFINITY;
  bool usable = true;  // no NaN, no +inf
};

// Eight chains, so that compilers make vectors of it.
BlockMax block_max(const float* x, size_t n) {
  float max[8];
  int32_t bad[8] = {};
  std::fill(max, max + 8, -INFINITY);
  size_t i = 0;
  for (; i + 8 <= n; i += 8)
    for (size_t k = 0; k < 8; ++k) {
      max[k] = x[i + k] > max[k] ? x[i + k] : max[k];
      bad[k] |= !(x[i + k] < INFINITY);
    }
  BlockMax all;
  for (; i < n; ++i) {
    all.max = std::max(all.max, x[i]);
    all.usable = all.usable && x[i] < INFINITY;
  }
  for (size_t k = 0; k < 8; ++k) {
    all.max = std::max(all.max, max[k]);
    all.usable = all.usable && !bad[k];
  }
  return all;
}

// The k best: a heap with the worst on top; most blocks hold nothing that is better.
void select(std::span<const float> logits, size_t k, Candidates out) {
  Candidate* heap = out.data();
  size_t n = 0;
  for (size_t first = 0; first < logits.size(); first += kBlock) {
    const size_t end = std::min(first + kBlock, logits.size());
    const BlockMax block = block_max(&logits[first], end - first);
    if (!block.usable) return out.resize(0);
    if (n == k && !(block.max > heap[0].logit)) continue;  // ids ascend: an equal logit is no better
    for (size_t i = first; i < end; ++i) {
      if (n == k ? !(logits[i] > heap[0].logit) : logits[i] == -INFINITY) continue;
      if (n == k)
        std::pop_heap(heap, heap + n, better);
      else
        ++n;
      heap[n - 1] = {int32_t(i), logits[i]};
      std::push_heap(heap, heap + n, better);
    }
  }
  out.resize(uint32_t(n));
}

void take_all(std::span<const float> logits, Candidates out) {
  size_t n = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!(logits[i] < INFINITY)) return out.resize(0);
    out.data()[n] = {int32_t(i), logits[i]};
    n += logits[i] != -INFINITY;
  }
  out.resize(uint32_t(n));
}

float best_logit(Candidates list) {
  float best = -INFINITY;
  for (const Candidate& c : list) best = std::max(best, c.logit);
  return best;
}

// Weights of a list, summed in buckets of 1/64 below the best logit: sorting is left to the one bucket where a sum is
// reached.
class Ranking {
 public:
  explicit Ranking(Candidates list) : list_(list), best_(best_logit(list)) {
    for (const Candidate& c : list) {
      const uint64_t w = weight(best_ - c.logit);
      sums_[bucket(c)] += w;
      total_ += w;
    }
  }
  uint64_t total() const { return total_; }

  // Reorders the list so that the shortest best-first run whose weights reach `wanted` (1 to total()) stands first, its
  // worst at its end; returns its length.
  uint32_t reach(uint64_t wanted) {
    size_t last = 0;
    uint64_t sum = 0;
    while (sum + sums_[last] < wanted) sum += sums_[last++];
    Candidate* middle =
        std::partition(list_.begin(), list_.end(), [&](const Candidate& c) { return bucket(c) < last; });
    Candidate* end = std::partition(middle, list_.end(), [&](const Candidate& c) { return bucket(c) == last; });
    std::sort(middle, end, better);
    while (sum < wanted) sum += weight(best_ - middle++->logit);
    return uint32_t(middle - list_.begin());
  }

 private:
  static constexpr size_t kBuckets = 28 * 64;
  size_t bucket(const Candidate& c) const {
    const float below = best_ - c.logit;
    return below < 28.0f ? size_t(below * 64) : kBuckets;
  }

  Candidates list_;
  float best_;
  uint64_t total_ = 0;
  std::array<uint64_t, kBuckets + 1> sums_ = {};
};

}  // namespace

void adjust(std::span<float> logits, const SampleParams& params, const History& history, const RowRules& rules,
            std::span<const int32_t> slots) {
  for (const LogitBias& b : rules.bias)
    if (b.token >= 0 && size_t(b.token) < logits.size()) logits[size_t(b.token)] += b.bias;
  std::vector<int32_t> tokens;
  // Calls f(logit, count) for each distinct one of the last n tokens that the row has.
  const auto each = [&](size_t n, auto f) {
    tokens.assign(history.tokens.end() - std::ptrdiff_t(n), history.tokens.end());
    for (int32_t& token : tokens)
      if (token < 0) token = size_t(~token) < slots.size() ? slots[size_t(~token)] : -1;
    std::sort(tokens.begin(), tokens.end());
    for (size_t i = 0, end; i < tokens.size(); i = end) {
      for (end = i; end < tokens.size() && tokens[end] == tokens[i];) ++end;
      if (tokens[i] >= 0 && size_t(tokens[i]) < logits.size()) f(logits[size_t(tokens[i])], end - i);
    }
  };
  if (params.repeat_penalty != 1)
    each(std::min<size_t>(history.tokens.size(), params.repeat_last_n), [&](float& logit, size_t) {
      logit = logit <= 0 ? logit * params.repeat_penalty : logit / params.repeat_penalty;
    });
  if (params.presence_penalty != 0 || params.frequency_penalty != 0)
    each(history.n_generated, [&](float& logit, size_t count) {
      const float counted = float(count) * params.frequency_penalty;
      logit -= counted + params.presence_penalty;
    });
  if (rules.mask.empty()) return;
  for (size_t i = 0; i < logits.size(); ++i)
    if (!(rules.mask[i / 32] >> (i % 32) & 1) && logits[i] < INFINITY) logits[i] = -INFINITY;
}

int32_t argmax(std::span<const float> logits) {
  float best = -INFINITY;
  size_t in_block = 0;
  for (size_t first = 0; first < logits.size(); first += kBlock) {
    const BlockMax block = block_max(&logits[first], std::min(kBlock, logits.size() - first));
    if (!block.usable) return -1;
    if (block.max > best) best = block.max, in_block = first;
  }
  if (best == -INFINITY) return -1;
  while (logits[in_block] != best) ++in_block;
  return int32_t(in_block);
}

void top_k(std::span<const float> logits, const SampleParams& params, Candidates out) {
  constexpr size_t kHeap = 1024;  // beyond it, one selection over all costs less than many pushes
  const size_t k = params.temperature == 0 ? 1 : params.top_k == 0 ? logits.size() : params.top_k;
  if (k <= kHeap) return select(logits, k, out);
  take_all(logits, out);
  if (out.size() <= k) return;
  std::nth_element(out.begin(), out.begin() + (k - 1), out.end(), better);
  out.resize(uint32_t(k));
}

void top_p(Candidates list, const SampleParams& params) {
  if (params.top_p >= 1 || list.size() <= 1) return;
  Ranking ranking(list);
  list.resize(ranking.reach(share_of(ranking.total(), params.top_p)));
}

void min_p(Candidates list, const SampleParams& params) {
  const uint64_t least = least_weight(params.min_p);
  if (least == 0) return;
  const float best = best_logit(list);
  Candidate* end =
      std::remove_if(list.begin(), list.end(), [&](const Candidate& c) { return weight(best - c.logit) < least; });
  list.resize(uint32_t(end - list.begin()));
}

void temperature(Candidates list, const SampleParams& params) {
  if (params.temperature == 0) return;
  const float best = best_logit(list);
  for (Candidate& c : list) c.logit = (c.logit - best) / params.temperature;
}

int32_t draw(Candidates list, const SampleParams& params, uint32_t position) {
  if (list.size() == 0) return -1;
  Ranking ranking(list);
  const uint64_t target = mul_high(draw_bits(params.seed, position, params.sample_index), ranking.total());
  return list.data()[ranking.reach(target + 1) - 1].token;
}

std::vector<LogProb> log_probs(std::span<const float> logits, int32_t token, uint32_t n) {
  const float best = block_max(logits.data(), logits.size()).max;
  double sum = 0;
  for (float x : logits) sum += std::exp(double(x) - best);
  const double log_sum = best + std::log(sum);
  std::vector<Candidate> top(n ? std::min<size_t>(n, logits.size()) : 0);
  size_t found = 0;
  if (!top.empty()) {
    std::vector<uint8_t> row(candidates_bytes(uint32_t(top.size())));
    Candidates list(row.data());
    select(logits, top.size(), list);
    found = list.size();
    std::copy(list.begin(), list.end(), top.begin());
    std::sort(top.begin(), top.begin() + std::ptrdiff_t(found), better);
  }
  std::vector<LogProb> out;
  const bool known = token >= 0 && size_t(token) < logits.size();
  out.push_back({token, known ? float(logits[size_t(token)] - log_sum) : -INFINITY});
  for (size_t i = 0; i < found; ++i) out.push_back({top[i].token, float(top[i].logit - log_sum)});
  return out;
}

void copy(Candidates from, Candidates to) {
  std::copy(from.begin(), from.end(), to.data());
  to.resize(from.size());
}

}  // namespace argent::sample
