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

void penalize(std::span<float> logits, const SampleParams& params, std::span<const int32_t> history,
              std::span<const int32_t> slots) {
  if (params.repeat_penalty == 1) return;
  const size_t n = std::min<size_t>(history.size(), params.repeat_last_n);
  std::vector<int32_t> tokens(history.end() - std::ptrdiff_t(n), history.end());
  for (int32_t& token : tokens)
    if (token < 0) token = size_t(~token) < slots.size() ? slots[size_t(~token)] : -1;
  std::sort(tokens.begin(), tokens.end());
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  for (int32_t token : tokens) {
    if (token < 0 || size_t(token) >= logits.size()) continue;
    float& logit = logits[size_t(token)];
    logit = logit <= 0 ? logit * params.repeat_penalty : logit / params.repeat_penalty;
  }
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
  const uint64_t least = uint64_t(double(params.min_p) * double(kWeightOne));
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

void copy(Candidates from, Candidates to) {
  std::copy(from.begin(), from.end(), to.data());
  to.resize(from.size());
}

}  // namespace argent::sample
