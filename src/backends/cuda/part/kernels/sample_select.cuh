// What the sampling kernels share: the order of logits as integers, and the selection of the worst candidate that a sum
// takes, without sorting. The rules are those of sample/rules.h, the arithmetic is sample/exact.h's; sums are integers,
// so no order of threads shows in them. A CTA of kTeam threads works on a row, or on a part of one.
#pragma once

#include "backends/cuda/part/kernels/warp.cuh"
#include "sample/exact.h"

namespace argent::cuda {

using sample::u64;

inline constexpr uint32_t kTeam = 1024;            // threads: one a bin
inline constexpr uint32_t kDigit = 10;             // bits of a bin's number
inline constexpr uint32_t kPasses = 8;             // distances, then 64 bits by digits: then a bin holds one candidate
inline constexpr uint32_t kGathered = 256;         // candidates whose ranks are counted, each against all
inline constexpr uint32_t kUnusable = 0xffffffff;  // the key of NaN and +inf
static_assert(kTeam == 1u << kDigit && kTeam / kLanes == kLanes, "scans of bins are scans of warps, and of their sums");

// A candidate: better ones have a higher key, among equals the lower id.
struct Element {
  uint32_t key;  // 0: no candidate
  uint32_t id;
  uint32_t bits;  // of the logit
};
// Better candidates have higher codes.
__device__ __forceinline__ u64 code_of(uint32_t key, uint32_t id) { return u64(key) << 32 | uint32_t(~id); }

// Unsigned numbers in the order of floats; -0 and +0 are equal.
__device__ __forceinline__ uint32_t order_key(uint32_t bits) {
  const uint32_t plain = (bits & 0x7fffffff) == 0 ? 0 : bits;
  return plain >> 31 ? ~plain : plain | 0x80000000;
}
// Of a logit of a row: -inf is no candidate.
__device__ __forceinline__ uint32_t logit_key(uint32_t bits) {
  const bool unusable = (bits & 0x7fffffff) > 0x7f800000 || bits == 0x7f800000;
  return unusable ? kUnusable : bits == 0xff800000 ? 0 : order_key(bits);
}
__device__ __forceinline__ float key_float(uint32_t key) {
  return __uint_as_float(key >> 31 ? key ^ 0x80000000 : ~key);
}
// Steps of the distance from the best (sample/exact.h).
__device__ __forceinline__ uint32_t steps_below(uint32_t best, uint32_t key) {
  return sample::weight_steps(__float_as_uint(__fsub_rn(key_float(best), key_float(key))));
}

// ---- where candidates come from

// Logits of a row, in shared memory.
struct RowReader {
  const uint32_t* logits;
  uint32_t first_id;
  __device__ __forceinline__ Element operator()(uint32_t i) const {
    return {logit_key(logits[i]), first_id + i, logits[i]};
  }
};

// A list: its length, then pairs (id, logit).
struct ListReader {
  const uint2* list;
  __device__ __forceinline__ Element operator()(uint32_t i) const {
    const uint2 pair = list[1 + i];
    return {order_key(pair.y), pair.x, pair.y};
  }
};

// A list in parts, whose places begin `stride` apart and are not all taken. A part that counts kUnusable is so.
struct PartsReader {
  const uint2* list;
  const uint32_t* counts;
  uint32_t stride;
  __device__ __forceinline__ Element operator()(uint32_t i) const {
    const uint32_t part = i / stride, count = counts[part];
    if (count == kUnusable) return {kUnusable, 0, 0};
    if (i - part * stride >= count) return {0, 0, 0};
    const uint2 pair = list[1 + i];
    return {order_key(pair.y), pair.x, pair.y};
  }
};

// ---- what a CTA does together

struct TeamMemory {
  uint32_t low[kTeam], high[kTeam];  // words of the bins' sums
  ulonglong2 gathered[kGathered];    // (code, weight)
  u64 sums[kLanes];                  // of the warps
  uint2 found[kLanes];
  u64 before, worst;
  uint32_t bin, n_gathered, count;
};

__device__ __forceinline__ uint32_t lane_of_thread() { return threadIdx.x % kLanes; }
__device__ __forceinline__ uint32_t warp_of_thread() { return threadIdx.x / kLanes; }

// The sum over the lanes up to this one.
__device__ __forceinline__ u64 sum_up_to(u64 x) {
#pragma unroll
  for (uint32_t step = 1; step < kLanes; step *= 2) {
    const u64 other = __shfl_up_sync(kAllLanes, x, step);
    x += lane_of_thread() >= step ? other : 0;
  }
  return x;
}

struct Scanned {
  u64 upto, total;  // the sum over the threads up to this one, and over all
};
// A barrier stands between two calls.
__device__ __forceinline__ Scanned scan(u64 x, TeamMemory& memory) {
  const u64 upto = sum_up_to(x);
  if (lane_of_thread() == kLanes - 1) memory.sums[warp_of_thread()] = upto;
  __syncthreads();
  const u64 sum = memory.sums[lane_of_thread()], sums = sum_up_to(sum);
  return {upto + __shfl_sync(kAllLanes, sums - sum, warp_of_thread()), __shfl_sync(kAllLanes, sums, kLanes - 1)};
}

// x: the best key of n candidates, kUnusable if one is; y: how many candidates there are. A CTA calls it once.
template <class Reader>
__device__ uint2 best_and_count(const Reader& reader, uint32_t n, TeamMemory& memory) {
  uint32_t best = 0, count = 0;
  for (uint32_t i = threadIdx.x; i < n; i += kTeam) {
    const uint32_t key = reader(i).key;
    best = max(best, key);
    count += key != 0;
  }
  best = __reduce_max_sync(kAllLanes, best), count = __reduce_add_sync(kAllLanes, count);
  if (lane_of_thread() == 0) memory.found[warp_of_thread()] = make_uint2(best, count);
  __syncthreads();
  const uint2 found = memory.found[lane_of_thread()];
  return make_uint2(__reduce_max_sync(kAllLanes, found.x), __reduce_add_sync(kAllLanes, found.y));
}

// ---- selection: candidates from best to worst, which is the first at which a sum of weights reaches what is wanted?
//
// A histogram of the weights' sums over distances from the best (steps of 1/32) finds the bin where it is reached. If
// no more than kGathered candidates are in there, they are gathered and each adds up the weights of those better than
// itself. If there are more, the bin is divided by the next ten bits of the code, and so on: mostly two passes over the
// candidates, and never more than 2 kPasses. kGathered candidates or fewer need no histogram.

enum class Goal : uint32_t { fixed, share, draw };
struct Wanted {
  Goal goal;
  u64 value;  // fixed: so many candidates; share: fraction of the sum of weights; draw: random bits
  __device__ __forceinline__ u64 of(u64 total) const {
    if (goal == Goal::share) return sample::share_of_fraction(total, value);
    return goal == Goal::draw ? __umul64hi(value, total) + 1 : value;
  }
  __device__ __forceinline__ u64 weight(uint32_t steps) const {
    return goal == Goal::fixed ? 1 : sample::weight_of_steps(steps);
  }
};

// Shared memory has no atomic addition of 64 bits: the thread whose addition wraps the low word carries.
__device__ __forceinline__ void add_to_bin(TeamMemory& memory, uint32_t bin, u64 weight) {
  const uint32_t more = uint32_t(weight), old = atomicAdd(&memory.low[bin], more);
  const uint32_t carried = uint32_t(weight >> 32) + uint32_t(old + more < old);
  if (carried) atomicAdd(&memory.high[bin], carried);
}

// The worst candidate's code. best: the greatest key. What is wanted is at least 1 and at most the sum of all.
template <class Reader>
__device__ u64 worst_reached(const Reader& reader, uint32_t n, uint32_t best, const Wanted& goal, TeamMemory& memory) {
  const uint32_t thread = threadIdx.x;
  u64 before = 0, wanted = 0;
  uint32_t count = n;
  if (n <= kGathered) {
    ulonglong2 own = make_ulonglong2(0, 0);
    if (thread < n) {
      const Element e = reader(thread);
      if (e.key) own = make_ulonglong2(code_of(e.key, e.id), goal.weight(steps_below(best, e.key)));
      memory.gathered[thread] = own;
    }
    wanted = goal.of(scan(own.y, memory).total);  // its barrier stands before the reading of what is gathered, too
  } else {
    uint32_t bucket = 0, shift = 64;
    u64 prefix = 0;  // of the code from bit `shift` on, after the first pass
    for (uint32_t pass = 0; pass < kPasses; ++pass) {
      const bool first = pass == 0;
      const uint32_t step = first ? 0 : min(shift, kDigit), next = shift - step;
      memory.low[thread] = memory.high[thread] = 0;
      __syncthreads();
      for (uint32_t i = thread; i < n; i += kTeam) {
        const Element e = reader(i);
        if (e.key == 0) continue;  // many, under a grammar's mask: they would all add to one bin
        const uint32_t steps = steps_below(best, e.key), of = min(steps >> 21, kTeam - 1);
        const u64 digits = first ? 0 : code_of(e.key, e.id) >> next;
        if (first || (of == bucket && digits >> step == prefix))
          add_to_bin(memory, first ? of : kTeam - 1 - uint32_t(digits & (kTeam - 1)), goal.weight(steps));
      }
      if (thread == 0) memory.n_gathered = 0;
      __syncthreads();
      const u64 own = u64(memory.high[thread]) << 32 | memory.low[thread];
      const Scanned sums = scan(own, memory);
      if (first) wanted = goal.of(sums.total);
      const u64 upto = before + sums.upto;
      if (upto - own < wanted && wanted <= upto) memory.bin = thread, memory.before = upto - own;
      __syncthreads();
      before = memory.before;
      if (first) {
        bucket = memory.bin;
      } else {
        prefix = prefix << step | ((kTeam - 1 - memory.bin) & ((1u << step) - 1));
        shift = next;
      }
      for (uint32_t i = thread; i < n; i += kTeam) {
        const Element e = reader(i);
        if (e.key == 0) continue;
        const uint32_t steps = steps_below(best, e.key);
        const u64 code = code_of(e.key, e.id);
        if (min(steps >> 21, kTeam - 1) != bucket || (!first && code >> shift != prefix)) continue;
        const uint32_t place = atomicAdd(&memory.n_gathered, 1);
        if (place < kGathered) memory.gathered[place] = make_ulonglong2(code, goal.weight(steps));
      }
      __syncthreads();
      count = memory.n_gathered;
      if (count <= kGathered) break;
    }
    count = min(count, kGathered);  // more there are only if an id is twice, which no op makes
  }
  if (thread < count) {
    const ulonglong2 own = memory.gathered[thread];
    u64 sum = before;
    for (uint32_t i = 0; i < count; ++i) {
      const ulonglong2 other = memory.gathered[i];
      sum += other.x > own.x ? other.y : 0;
    }
    if (sum < wanted && wanted <= sum + own.y) memory.worst = own.x;
  }
  __syncthreads();
  return memory.worst;
}

// ---- filters

// Keeps what is no worse than `worst` and weighs at least `least`.
struct Bound {
  uint32_t best;
  u64 worst;  // a code
  u64 least;
  __device__ __forceinline__ bool keeps(const Element& e) const {
    if (e.key == 0 || code_of(e.key, e.id) < worst) return false;
    return least == 0 || sample::weight_of_steps(steps_below(best, e.key)) >= least;
  }
};

// Moves those of n candidates that stay to the front of `to`, which may be where they are read: no place is written
// before all of its turn have been read. Their number, in all threads.
template <class Reader>
__device__ uint32_t keep(const Reader& reader, uint32_t n, const Bound& bound, uint2* to, TeamMemory& memory) {
  if (threadIdx.x == 0) memory.count = 0;
  __syncthreads();
  for (uint32_t first = 0; first < n; first += kTeam) {
    const uint32_t i = first + threadIdx.x;
    Element e = {0, 0, 0};
    if (i < n) e = reader(i);
    const bool stays = bound.keeps(e);
    const uint32_t votes = __ballot_sync(kAllLanes, stays);
    uint32_t begin = 0;
    if (lane_of_thread() == 0 && votes) begin = atomicAdd(&memory.count, __popc(votes));
    begin = __shfl_sync(kAllLanes, begin, 0);
    __syncthreads();
    if (stays) to[1 + begin + __popc(votes & ((1u << lane_of_thread()) - 1))] = make_uint2(e.id, e.bits);
  }
  __syncthreads();
  return memory.count;
}

}  // namespace argent::cuda
