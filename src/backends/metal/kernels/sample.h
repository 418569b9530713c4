// What the sampling kernels share: the order of logits as integers, and the selection of the worst candidate that a sum
// takes, without sorting. The rules are those of sample/rules.h; arithmetic is sample/exact.h's.
//
// Metal's fast maths may take NaN and infinities for impossible, and subnormals for 0, so floats are compared as keys:
// their bits mapped to unsigned numbers of the same order. The one operation on floats is best - logit, which is
// rounded right in any mode, and whose bits go on as an integer.
#pragma once

#include "backends/metal/kernels/args_sample.h"
#include "backends/metal/kernels/dialect.h"
#include "sample/exact.h"

namespace argent {

using namespace metal;

// A candidate: better ones have a higher key, among equals the lower id.
struct Element {
  uint key;  // 0: no candidate
  uint id;
  uint bits;  // of the logit
};

enum : uint { kUnusable = 0xffffffff };  // the key of NaN and +inf

// -0 and +0 are equal.
inline uint order_key(uint bits) {
  const uint plain = (bits & 0x7fffffff) == 0 ? 0 : bits;
  return plain >> 31 ? ~plain : plain | 0x80000000;
}
// Of a logit of a row: -inf is no candidate.
inline uint logit_key(uint bits) {
  const bool unusable = (bits & 0x7fffffff) > 0x7f800000 || bits == 0x7f800000;
  return unusable ? uint(kUnusable) : bits == 0xff800000 ? 0 : order_key(bits);  // held by top_k_parts
}
inline uint key_bits(uint key) { return key >> 31 ? key ^ 0x80000000 : ~key; }

// Steps of the distance from the best (sample/exact.h).
inline uint steps_below(uint best, uint key) {
  const float below = as_type<float>(key_bits(best)) - as_type<float>(key_bits(key));
  return sample::weight_steps(as_type<uint>(below));
}

// ---- where candidates come from

struct RowReader {
  device const uint* logits;
  uint first_id;
};
inline Element element(const RowReader reader, uint i) {
  const uint bits = reader.logits[i];
  const Element e = {logit_key(bits), reader.first_id + i, bits};
  return e;
}

// A list: its length, then pairs (id, logit).
struct ListReader {
  device const uint2* list;
};
inline Element element(const ListReader reader, uint i) {
  const uint2 pair = reader.list[1 + i];
  const Element e = {order_key(pair.y), pair.x, pair.y};
  return e;
}

// A list in parts, whose places begin `stride` apart and are not all taken.
struct PartsReader {
  device const uint2* list;
  device const uint* counts;
  uint stride;
};
inline Element element(const PartsReader reader, uint i) {
  const uint part = i / reader.stride;
  Element e = {0, 0, 0};
  if (i - part * reader.stride < reader.counts[part]) {
    const uint2 pair = reader.list[1 + i];
    e.key = order_key(pair.y);
    e.id = pair.x;
    e.bits = pair.y;
  }
  return e;
}

// ---- what a threadgroup does together

struct Team {
  uint index;
  uint threads;
  uint lane;
  uint simdgroup;
  uint simdgroups;
};

// The words of threadgroup(0).
enum : uint {
  kBins = 1024,
  kDigit = 10,           // bits of a bin's number
  kPasses = 8,           // distances, then 64 bits by digits: then a bin holds one candidate
  kGathered = 512,       // candidates that take the place of the bins
  kPartial = 2 * kBins,  // 64 words: two a SIMD-group
  kResult = kPartial + 64,
  kResultWords = 16
};
static_assert(4 * (kResult + kResultWords) <= kSelectBytes && 4 * kGathered <= 2 * kBins,
              "threadgroup(0) is large enough");

// The greatest x and the sum of y, in all threads. A barrier stands between this and the next use of `partial`.
inline uint2 greatest_and_sum(uint x, uint y, const Team team, threadgroup uint* partial) {
  x = simd_max(x);
  y = simd_sum(y);
  if (team.lane == 0) {
    partial[2 * team.simdgroup] = x;
    partial[2 * team.simdgroup + 1] = y;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const uint from = 2 * min(team.lane, team.simdgroups - 1);
  x = partial[from];
  y = team.lane < team.simdgroups ? partial[from + 1] : 0;  // held by top_k_parts, others want no sum
  x = simd_max(x);
  y = simd_sum(y);
  return uint2(x, y);
}

// The best key of n candidates, kUnusable if one is, and how many candidates there are.
template <class Reader>
inline uint2 best_and_count(const Reader reader, uint n, const Team team, threadgroup uint* shared) {
  uint best = 0;
  uint count = 0;
  for (uint i = team.index; i < n; i += team.threads) {
    const uint key = element(reader, i).key;
    best = max(best, key);  // held by top_p
    count += key != 0;
  }
  return greatest_and_sum(best, count, team, shared + kPartial);
}

// ---- selection: candidates from best to worst, which is the first at which a sum of weights reaches what is wanted?
//
// A histogram of the weights' sums over distances from the best (steps of 1/32) finds the bin where it is reached. If
// no more than kGathered candidates are in there, they are gathered and each adds up the weights of those better than
// itself. If there are more, the bin is divided by the next ten bits of (key, ~id), and so on. So it mostly takes two
// passes over the candidates, and never more than 2 kPasses. Sums of 64 bits are two words: the thread whose addition
// wraps the low word carries.

enum : uint { kFixed = 0, kShare = 1, kDraw = 2 };
struct Goal {
  uint kind;
  sample::u64 value;  // kFixed: so many candidates; kShare: fraction of the sum of weights; kDraw: random bits
};

inline sample::u64 wanted_of(const Goal goal, sample::u64 total) {
  if (goal.kind == kShare) {  // held by draw
    return sample::share_of_fraction(total, goal.value);
  }
  return goal.kind == kDraw ? sample::mul_high(goal.value, total) + 1 : goal.value;  // held by top_k_parts
}

inline void add_to_bin(threadgroup uint* bins, uint bin, sample::u64 weight) {
  threadgroup atomic_uint* low = reinterpret_cast<threadgroup atomic_uint*>(bins + bin);
  threadgroup atomic_uint* high = reinterpret_cast<threadgroup atomic_uint*>(bins + kBins + bin);
  const uint more = uint(weight);
  const uint old = atomic_fetch_add_explicit(low, more, memory_order_relaxed);
  const uint carried = uint(weight >> 32) + uint(old + more < old);
  if (carried != 0) {  // not mutated: saves an atomic
    atomic_fetch_add_explicit(high, carried, memory_order_relaxed);
  }
}

inline sample::u64 bin_sum(threadgroup const uint* bins, uint bin) {
  return sample::u64(bins[kBins + bin]) << 32 | bins[bin];
}
inline void store_u64(threadgroup uint* to, sample::u64 value) {
  to[0] = uint(value);
  to[1] = uint(value >> 32);
}
inline sample::u64 load_u64(threadgroup const uint* from) { return sample::u64(from[1]) << 32 | from[0]; }

// By one SIMD-group: the bin where the sum reaches what is wanted. result: bin, sum before it, wanted, 0.
inline void find_bin(threadgroup const uint* bins, const Goal goal, bool first, sample::u64 before, sample::u64 wanted,
                     uint lane, threadgroup uint* result) {
  sample::u64 sum = 0;
  for (uint i = 0; i < 32; i++) {
    sum += bin_sum(bins, 32 * lane + (i + lane) % 32);  // lanes in different banks
  }
  sample::u64 upto = sum;
  for (uint step = 1; step < 32; step *= 2) {
    const uint low = simd_shuffle_up(uint(upto), ushort(step));
    const uint high = simd_shuffle_up(uint(upto >> 32), ushort(step));
    upto += lane >= step ? sample::u64(high) << 32 | low : 0;
  }
  const uint total_low = simd_shuffle(uint(upto), ushort(31));
  const uint total_high = simd_shuffle(uint(upto >> 32), ushort(31));
  const sample::u64 goal_sum = first ? wanted_of(goal, sample::u64(total_high) << 32 | total_low) : wanted;
  sample::u64 reached = before + upto - sum;
  if (reached < goal_sum && goal_sum <= before + upto) {  // held by top_k_parts
    uint bin = 32 * lane;
    for (uint i = 0; i < 31 && reached + bin_sum(bins, bin) < goal_sum; i++) {
      reached += bin_sum(bins, bin);
      bin++;
    }
    result[0] = bin;
    store_u64(result + 2, reached);
    store_u64(result + 4, goal_sum);
    result[6] = 0;
  }
}

// best: the greatest key. What is wanted is at least 1 and at most the sum of all.
template <class Reader>
inline Element worst_reached(const Reader reader, uint n, uint best, const Goal goal, const Team team,
                             threadgroup uint* shared) {
  threadgroup uint* result = shared + kResult;
  threadgroup atomic_uint* gathered = reinterpret_cast<threadgroup atomic_uint*>(result + 6);
  uint bucket = 0;
  sample::u64 prefix = 0;  // of (key, ~id) from bit `shift` on, after the first pass
  uint shift = 64;
  sample::u64 before = 0;
  sample::u64 wanted = 0;
  uint count = 0;
  for (uint pass = 0; pass < kPasses; pass++) {
    const bool first = pass == 0;
    const uint step = first ? 0 : min(shift, uint(kDigit));
    const uint next = shift - step;
    for (uint i = team.index; i < 2 * kBins; i += team.threads) {
      shared[i] = 0;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = team.index; i < n; i += team.threads) {
      const Element e = element(reader, i);
      if (e.key == 0) {  // many, under a grammar's mask: they would all add to one bin
        continue;
      }
      const uint steps = steps_below(best, e.key);
      const uint of = min(steps >> 21, uint(kBins - 1));
      const sample::u64 code = sample::u64(e.key) << 32 | uint(~e.id);
      const sample::u64 digits = first ? 0 : code >> next;
      if (first || (of == bucket && digits >> step == prefix)) {
        const sample::u64 weight = goal.kind == kFixed ? 1 : sample::weight_of_steps(steps);  // held by top_p
        const uint bin = first ? of : kBins - 1 - uint(digits & (kBins - 1));
        add_to_bin(shared, bin, weight);
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (team.simdgroup == 0) {
      find_bin(shared, goal, first, before, wanted, team.lane, result);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (first) {
      bucket = result[0];
    } else {
      prefix = prefix << step | ((kBins - 1 - result[0]) & ((1u << step) - 1));
      shift = next;
    }
    before = load_u64(result + 2);
    wanted = load_u64(result + 4);
    for (uint i = team.index; i < n; i += team.threads) {
      const Element e = element(reader, i);
      if (e.key == 0) {
        continue;
      }
      const uint steps = steps_below(best, e.key);
      const sample::u64 code = sample::u64(e.key) << 32 | uint(~e.id);
      if (min(steps >> 21, uint(kBins - 1)) == bucket && (first || code >> shift == prefix)) {
        const uint place = atomic_fetch_add_explicit(gathered, 1u, memory_order_relaxed);
        if (place < kGathered) {  // <= not mutated: there is room for one more, in kPartial
          const sample::u64 weight = goal.kind == kFixed ? 1 : sample::weight_of_steps(steps);  // held by top_p
          shared[4 * place] = e.key;
          shared[4 * place + 1] = e.id;
          store_u64(shared + 4 * place + 2, weight);
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    count = result[6];
    if (count <= kGathered) {
      break;
    }
  }
  count = min(count, uint(kGathered));  // not mutated: more there are only if an id is twice, which no op makes
  for (uint i = team.index; i < count; i += team.threads) {
    const uint key = shared[4 * i];
    const uint id = shared[4 * i + 1];
    sample::u64 sum = before;
    for (uint j = 0; j < count; j++) {
      const uint other = shared[4 * j];
      if (other > key || (other == key && shared[4 * j + 1] < id)) {
        sum += load_u64(shared + 4 * j + 2);
      }
    }
    if (sum < wanted && wanted <= sum + load_u64(shared + 4 * i + 2)) {  // held by top_k_parts
      result[8] = key;
      result[9] = id;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const Element worst = {result[8], result[9], 0};
  return worst;
}

// ---- filters

// Keeps what is no worse than `worst` and weighs at least `least`.
struct Bound {
  uint best;
  uint worst_key;
  uint worst_id;
  sample::u64 least;
};
inline bool stays(const Bound bound, const Element e) {
  if (e.key == 0 || e.key < bound.worst_key || (e.key == bound.worst_key && e.id > bound.worst_id)) {  // held by top_p
    return false;
  }
  return bound.least == 0 || sample::weight_of_steps(steps_below(bound.best, e.key)) >= bound.least;
}

// Moves those of n candidates that stay to the front of `to`, which may be where they are read: no place is written
// before all of its turn have been read. Their number, in all threads.
template <class Reader>
inline uint keep(const Reader reader, uint n, const Bound bound, device uint2* to, const Team team,
                 threadgroup uint* shared) {
  threadgroup atomic_uint* count = reinterpret_cast<threadgroup atomic_uint*>(shared + kResult + 10);
  if (team.index == 0) {
    shared[kResult + 10] = 0;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint first = 0; first < n; first += team.threads) {
    const uint i = first + team.index;
    Element e = {0, 0, 0};
    if (i < n) {
      e = element(reader, i);
    }
    const uint one = stays(bound, e);
    const uint place = simd_prefix_exclusive_sum(one);
    uint begin = 0;
    if (team.lane == 31) {
      begin = atomic_fetch_add_explicit(count, place + one, memory_order_relaxed);
    }
    begin = simd_broadcast(begin, ushort(31));
    threadgroup_barrier(mem_flags::mem_device);  // held by top_p, others write elsewhere
    if (one != 0) {
      to[1 + begin + place] = uint2(e.id, e.bits);
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device);
  return shared[kResult + 10];
}

inline ulong list_places(uint n_vocab) { return ulong(n_vocab) + 1; }  // of a row of lists, in uint2

}  // namespace argent
