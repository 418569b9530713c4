#include "backends/cpu/sample.h"

#include <bit>
#include <cmath>

namespace argent::cpu {

namespace baseline {
extern const SampleKernels kSampleKernels;
}
#if defined(__x86_64__)
namespace avx2 {
extern const SampleKernels kSampleKernels;
}
namespace avx512 {
extern const SampleKernels kSampleKernels;
}
#endif

const SampleKernels& sample_kernels(Isa isa) {
  switch (isa) {
#if defined(__x86_64__)
    case Isa::avx512:
      return avx512::kSampleKernels;
    case Isa::avxvnni:
    case Isa::avx2:
      return avx2::kSampleKernels;
#endif
    default:
      return baseline::kSampleKernels;
  }
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

// The bucket where a sum is reached.
struct Bucket {
  float from, to;  // below the best
  uint64_t sum;    // of the weights before it
};

Bucket reached_bucket(const uint64_t* sums, uint64_t wanted) {
  uint32_t bucket = 0;
  uint64_t sum = 0;
  while (sum + sums[bucket] < wanted) sum += sums[bucket++];
  return {float(bucket) * kBucketWidth, float(bucket + 1) * kBucketWidth, sum};
}

// Sorts a bucket; how many of it the sum takes to reach `wanted`.
uint32_t reach_in(Candidate* list, uint32_t n, float best, uint64_t sum, uint64_t wanted) {
  std::sort(list, list + n, better);
  uint32_t taken = 0;
  while (sum < wanted) sum += sample::weight(best - list[taken++].logit);
  return taken;
}

}  // namespace

uint32_t select_part(const SampleKernels& kernels, const float* x, uint32_t n, uint32_t first_id, uint32_t k,
                     Candidate* list) {
  if (k == 0 || k >= n || n < 4 * kTile) return kernels.take_all(x, n, first_id, list);
  // Twice as many maxima as wanted candidates give a bound that few more logits than k are above; beyond that, the
  // logits themselves do. The maxima lie at the end of the list, which is then never filled: what exceeds its room is
  // cut down to k on the way.
  const uint32_t per_tile = k <= n / kTile / 2 ? 1 : k <= n / kFine / 2 ? kFine : 0;
  const uint32_t n_maxima = n_tiles(n) * per_tile;
  float* maxima = per_tile ? reinterpret_cast<float*>(list + n) - n_maxima : nullptr;
  if (per_tile ? !kernels.maxima(x, n, per_tile, maxima) : !kernels.best(x, n).usable) return kUnusable;
  const uint32_t capacity = per_tile ? std::min(n - (n_maxima + 1) / 2, 2 * k + 1024) : n;
  float bound = per_tile ? bound_above(kernels, maxima, n_maxima, k) : bound_above(kernels, x, n, k);
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

uint32_t keep_reaching(const SampleKernels& kernels, Candidates list, float best, const uint64_t* sums,
                       uint64_t wanted) {
  const Bucket b = reached_bucket(sums, wanted);
  const uint32_t with = kernels.keep_near(list.data(), list.size(), best, b.to);
  const uint32_t before = kernels.bring_forward(list.data(), with, best, 0, b.from);
  return before + reach_in(list.data() + before, with - before, best, b.sum, wanted);
}

Candidate worst_reached(const SampleKernels& kernels, Candidates list, float best, const uint64_t* sums,
                        uint64_t wanted) {
  const Bucket b = reached_bucket(sums, wanted);
  const uint32_t n = kernels.bring_forward(list.data(), list.size(), best, b.from, b.to);
  return list.data()[reach_in(list.data(), n, best, b.sum, wanted) - 1];
}

void min_p(const SampleKernels& kernels, Candidates list, float min_p) {
  const uint64_t least = uint64_t(double(min_p) * double(sample::kWeightOne));
  if (least == 0) return;
  const float best = kernels.best_of(list.data(), list.size());
  // Weights are within 1e-8 of exp(-below), so none that far away is large enough; the others are looked at.
  const float far = float(0.01 - std::log(double(least) / double(sample::kWeightOne)));
  Candidate* end = list.data() + kernels.keep_near(list.data(), list.size(), best, far);
  end = std::remove_if(list.data(), end, [&](const Candidate& c) { return sample::weight(best - c.logit) < least; });
  list.resize(uint32_t(end - list.data()));
}

}  // namespace argent::cpu
