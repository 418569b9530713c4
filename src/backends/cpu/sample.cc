#include "backends/cpu/sample.h"

#include <bit>
#include <cmath>

namespace argent::cpu {

namespace baseline {
extern const SampleKernels kSampleKernels;
}
namespace avx2 {
extern const SampleKernels kSampleKernels;
}
namespace avx512 {
extern const SampleKernels kSampleKernels;
}

const SampleKernels& sample_kernels(Isa isa) {
  switch (isa) {
    case Isa::avx512:
      return avx512::kSampleKernels;
    case Isa::avx2:
      return avx2::kSampleKernels;
    case Isa::baseline:
      break;
  }
  return baseline::kSampleKernels;
}

namespace {

using sample::better;
using sample::Candidate;
using sample::Candidates;

// Floats in their order as integers.
float from_key(int32_t key) { return std::bit_cast<float>(key < 0 ? key ^ 0x7fffffff : key); }
int32_t to_key(float x) {
  const int32_t bits = std::bit_cast<int32_t>(x);
  return bits < 0 ? bits ^ 0x7fffffff : bits;
}

// A bound that at least k of the maxima are above, and not many more than k where they differ; -inf if there is none.
float bound_above(const SampleKernels& kernels, const float* maxima, uint32_t n, uint32_t k) {
  int32_t low = to_key(-INFINITY), high = to_key(INFINITY);
  if (kernels.count_above(maxima, n, -INFINITY) < k) return -INFINITY;
  while (int64_t(high) - low > 1) {
    const int32_t middle = int32_t((int64_t(low) + high) >> 1);
    const uint32_t above = kernels.count_above(maxima, n, from_key(middle));
    (above >= k ? low : high) = middle;
    if (above >= k && above <= k + k / 8) break;
  }
  return from_key(low);
}

// Brings the candidates of the bucket where the sum is reached to list[first, end), sorted, those of buckets before it
// in front of them.
struct Reached {
  uint32_t first, end;
  uint64_t sum;  // of the weights before `first`
};

Reached reached_bucket(const SampleKernels& kernels, Candidates list, float best, const uint64_t* sums, uint64_t wanted,
                       bool keep_front) {
  uint32_t bucket = 0;
  Reached r{0, 0, 0};
  while (r.sum + sums[bucket] < wanted) r.sum += sums[bucket++];
  const float from = float(bucket) * kBucketWidth, to = from + kBucketWidth;
  if (keep_front) r.first = kernels.bring_forward(list.data(), list.size(), best, 0, from);
  r.end = r.first + kernels.bring_forward(list.data() + r.first, list.size() - r.first, best, from, to);
  std::sort(list.data() + r.first, list.data() + r.end, better);
  return r;
}

}  // namespace

uint32_t select_part(const SampleKernels& kernels, const float* x, uint32_t n, uint32_t first_id, uint32_t k,
                     Candidate* list) {
  // Twice as many maxima as wanted candidates give a bound that few more logits than k are above. They lie at the end
  // of the list, which is then never filled: what exceeds its room is cut down to k on the way.
  const uint32_t per_tile = k <= n / kTile / 2 ? 1 : kFine;
  if (k == 0 || n < 4 * kTile || k > n / kFine / 2) return kernels.take_all(x, n, first_id, list);
  const uint32_t n_maxima = n_tiles(n) * per_tile;
  float* maxima = reinterpret_cast<float*>(list + n) - n_maxima;
  if (!kernels.maxima(x, n, per_tile, maxima)) return kUnusable;
  const uint32_t capacity = std::min(n - (n_maxima + 1) / 2, 2 * k + 1024);
  float bound = bound_above(kernels, maxima, n_maxima, k);
  uint32_t size = 0;
  for (uint32_t at = 0;;) {
    at = kernels.collect(x, n, maxima, per_tile, at, bound, first_id, list, size, capacity);
    if (at == n) return size;
    size = keep_best(list, size, k);
    bound = list[k - 1].logit;  // ids ascend: an equal logit is no better
  }
}

uint32_t keep_best(Candidate* list, uint32_t n, uint32_t k) {
  if (k == 0 || n <= k) return n;
  std::nth_element(list, list + (k - 1), list + n, better);
  return k;
}

uint32_t reach(const SampleKernels& kernels, Candidates list, float best, const uint64_t* sums, uint64_t wanted) {
  Reached r = reached_bucket(kernels, list, best, sums, wanted, true);
  while (r.sum < wanted) r.sum += sample::weight(best - list.data()[r.first++].logit);
  return r.first;
}

Candidate worst_reached(const SampleKernels& kernels, Candidates list, float best, const uint64_t* sums,
                        uint64_t wanted) {
  Reached r = reached_bucket(kernels, list, best, sums, wanted, false);
  while (r.sum < wanted) r.sum += sample::weight(best - list.data()[r.first++].logit);
  return list.data()[r.first - 1];
}

void min_p(const SampleKernels& kernels, Candidates list, float min_p) {
  const uint64_t least = uint64_t(double(min_p) * double(sample::kWeightOne));
  if (least == 0) return;
  const float best = kernels.best_of(list.data(), list.size());
  // Weights are within 1e-8 of exp(-below), so none that far away is large enough; the others are looked at.
  const float far = float(0.01 - std::log(double(least) / double(sample::kWeightOne)));
  Candidate* end = list.data() + kernels.bring_forward(list.data(), list.size(), best, 0, far);
  end = std::remove_if(list.data(), end, [&](const Candidate& c) { return sample::weight(best - c.logit) < least; });
  list.resize(uint32_t(end - list.data()));
}

}  // namespace argent::cpu
