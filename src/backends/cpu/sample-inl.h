// Kernel text of sample.h; see simd/simd.h for what it may use.
#include "backends/cpu/sample.h"
#include "backends/cpu/simd/select.h"

namespace argent::cpu::ARGENT_ISA {
namespace {

using sample::Candidate;

constexpr float kInfinity = __builtin_inff();

SIMD_FN float fold_max_lanes(F32 a) {
  F32 wide[kWide];
  for (int i = 0; i < kWide; ++i) wide[i] = a;
  return fold_max(wide);
}

// Maxima of the 16 columns of a tile; what a short one lacks is -inf.
struct Columns {
  F32 max[kWide];
  bool nan;
};

SIMD_FN Columns tile_columns(const float* x, uint32_t n) {
  Columns c;
  Flags flags = {};
  if (n >= kTile) {
    for (int v = 0; v < kWide; ++v) c.max[v] = load_f32(x + v * kLanes);
    for (int v = 0; v < kWide; ++v) flags = flag_nan(flags, c.max[v], c.max[v]);
#pragma GCC unroll 16
    for (int row = 1; row < 16; ++row) {
      F32 y[kWide];
      for (int v = 0; v < kWide; ++v) y[v] = load_f32(x + 16 * row + v * kLanes);
      // A maximum forgets a NaN, so each vector is looked at, two at a time.
      if constexpr (kWide == 1) {
        if (row % 2) flags = flag_nan(flags, y[0], load_f32(x + 16 * (row < 15 ? row + 1 : row)));
      } else {
        for (int v = 0; v < kWide; v += 2) flags = flag_nan(flags, y[v], y[v + 1]);
      }
      for (int v = 0; v < kWide; ++v) c.max[v] = max_f32(c.max[v], y[v]);
    }
    c.nan = any(flags);
    return c;
  }
  for (int v = 0; v < kWide; ++v) c.max[v] = set_f32(-kInfinity);
  for (uint32_t at = 0; at < n; at += kLanes) {
    const int left = int(n - at);
    const F32 y = left >= kLanes ? load_f32(x + at) : keep_lanes(load_part(x + at, left), 0, left, set_f32(-kInfinity));
    flags = flag_nan(flags, y, y);
    F32& max = c.max[at / kLanes % kWide];
    max = max_f32(max, y);
  }
  c.nan = any(flags);
  return c;
}

SIMD_FN uint32_t smaller(uint32_t a, uint32_t b) { return a < b ? a : b; }

KERNEL_UNSANITIZED BestLogit best(const float* x, uint32_t n) {
  float best = -kInfinity;
  uint32_t tile = 0;
  for (uint32_t at = 0; at < n; at += kTile) {
    const Columns c = tile_columns(x + at, n - at);
    const float max = fold_max(c.max);
    if (c.nan || max == kInfinity) return {0, 0, false};
    if (max > best) best = max, tile = at;
  }
  if (best > -kInfinity)
    while (x[tile] != best) ++tile;
  return {best, tile, true};
}

KERNEL_UNSANITIZED bool maxima(const float* x, uint32_t n, uint32_t per_tile, float* out) {
  F32 most = set_f32(-kInfinity);
  bool nan = false;
  for (uint32_t at = 0; at < n; at += kTile) {
    const Columns c = tile_columns(x + at, n - at);
    nan |= c.nan;
    for (int v = 0; v < kWide; ++v) most = max_f32(most, c.max[v]);
    if (per_tile == 1)
      *out++ = fold_max(c.max);
    else
      for (int v = 0; v < kWide; ++v, out += kLanes) store_all(out, c.max[v]);
  }
  return !nan && !(fold_max_lanes(most) == kInfinity);
}

KERNEL_UNSANITIZED uint32_t count_above(const float* x, uint32_t n, float bound) {
  const F32 limit = set_f32(bound);
  uint32_t count = 0, i = 0;
  for (; i + kLanes <= n; i += kLanes) count += uint32_t(__builtin_popcount(lanes_above(load_f32(x + i), limit)));
  for (; i < n; ++i) count += x[i] > bound;
  return count;
}

KERNEL_UNSANITIZED uint32_t collect(const float* x, uint32_t n, const float* maxima, uint32_t per_tile, uint32_t at,
                                    float bound, uint32_t first_id, Candidate* list, uint32_t& size,
                                    uint32_t capacity) {
  const F32 limit = set_f32(bound);
  uint32_t count = size;
  for (; at < n; at = smaller(n, (at / kTile + 1) * kTile)) {
    const float* max = maxima + at / kTile * per_tile;
    bool found = per_tile == 0 || (per_tile == 1 && *max > bound);
    if (per_tile == kFine)
      for (int v = 0; v < kWide; ++v) found |= lanes_above(load_f32(max + v * kLanes), limit) != 0;
    if (!found) continue;
    const uint32_t end = smaller(n, (at / kTile + 1) * kTile);
    for (; at < end; at += kLanes) {
      if (at % 16 == 0 && capacity - count < smaller(16, n - at)) return size = count, at;
      const int left = int(end - at);
      uint32_t lanes = lanes_above(left >= kLanes ? load_f32(x + at) : load_part(x + at, left), limit);
      if (left < kLanes) lanes &= (1u << left) - 1;
      for (; lanes; lanes &= lanes - 1) {
        const uint32_t i = at + uint32_t(__builtin_ctz(lanes));
        list[count++] = {int32_t(first_id + i), x[i]};
      }
    }
    at = end - 1;
  }
  return size = count, n;
}

KERNEL_UNSANITIZED uint32_t take_all(const float* x, uint32_t n, uint32_t first_id, Candidate* list) {
  constexpr uint32_t kAll = (1u << (kLanes - 1) << 1) - 1;
  alignas(64) uint32_t numbers[kLanes];
  for (int i = 0; i < kLanes; ++i) numbers[i] = first_id + uint32_t(i);
  I32 ids = load_i32(numbers);
  Candidate* out = list;
  Flags nan = {};
  uint32_t infinite = 0, at = 0;
  for (; at + kLanes <= n; at += kLanes, ids = add_i32(ids, set_i32(kLanes))) {
    const F32 y = load_f32(x + at);
    uint32_t lanes = lanes_above(y, set_f32(-kInfinity));
    nan = flag_nan(nan, y, y);
    infinite |= lanes_above(y, set_f32(3.402823466e38f));
    if (lanes == kAll) {
      store_pairs(out, ids, f32_bits(y));
      out += kLanes;
      continue;
    }
    for (; lanes; lanes &= lanes - 1) {
      const uint32_t i = at + uint32_t(__builtin_ctz(lanes));
      *out++ = {int32_t(first_id + i), x[i]};
    }
  }
  if (any(nan) || infinite) return kUnusable;
  for (; at < n; ++at) {
    if (!(x[at] < kInfinity)) return kUnusable;
    if (x[at] != -kInfinity) *out++ = {int32_t(first_id + at), x[at]};
  }
  return uint32_t(out - list);
}

// best - logit of kLanes candidates.
SIMD_FN F32 below_best(const Candidate* list, F32 best) {
  I32 token, logit;
  load_pairs(list, token, logit);
  return sub(best, bits_f32(logit));
}

KERNEL_UNSANITIZED float best_of(const Candidate* list, uint32_t n) {
  F32 most = set_f32(-kInfinity);
  uint32_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    I32 token, logit;
    load_pairs(list + i, token, logit);
    most = max_f32(most, bits_f32(logit));
  }
  float best = fold_max_lanes(most);
  for (; i < n; ++i) best = list[i].logit > best ? list[i].logit : best;
  return best;
}

// sample::weight from the steps of 2^-26 in the low halves of the lanes.
SIMD_FN U64Lanes weights(U64Lanes steps) {
  const U64Lanes exponent = mul_wide(steps, U64Lanes{} + 1549082005) >> 24;
  constexpr uint64_t kCoefficients[] = {0x4d4bf, 0x2b846e, 0x13b16c4, 0x71abd68, 0x1ebfbd73, 0x58b90bf6, 0x80000000};
  U64Lanes p = U64Lanes{} + 0x5b29;
#pragma GCC unroll 7
  for (int i = 0; i < 7; ++i) p = (U64Lanes{} + kCoefficients[i]) - (mul_wide(exponent, p) >> 32);
  return p << 9 >> (exponent >> 32);
}

// kLanes candidates.
SIMD_FN void add_weights_of(const Candidate* list, F32 best, uint64_t* sums) {
  // From 28 on, and for infinite distances, the weight is 0 and the bucket the last.
  const F32 below = min_f32(below_best(list, best), set_f32(28.0f));
  alignas(64) uint64_t even[kLanes / 2], odd[kLanes / 2];
  alignas(64) int32_t bucket[kLanes];
  const U64Lanes steps = U64Lanes(truncate(mul(below, set_f32(0x1p26f))));
  const U64Lanes first = weights(steps), second = weights(steps >> 32);
  const I32 buckets = truncate(mul(below, set_f32(64.0f)));
  __builtin_memcpy(even, &first, sizeof first);
  __builtin_memcpy(odd, &second, sizeof second);
  __builtin_memcpy(bucket, &buckets, sizeof buckets);
  for (int i = 0; i < kLanes / 2; ++i) {
    sums[bucket[2 * i]] += even[i];
    sums[bucket[2 * i + 1]] += odd[i];
  }
}

KERNEL_UNSANITIZED void add_weights(const Candidate* list, uint32_t n, float best, uint64_t* sums) {
  const F32 top = set_f32(best);
  uint32_t i = 0;
  for (; i + kLanes <= n; i += kLanes) add_weights_of(list + i, top, sums);
  if (i == n) return;
  Candidate rest[kLanes];
  for (int k = 0; k < kLanes; ++k) rest[k] = i + uint32_t(k) < n ? list[i + uint32_t(k)] : Candidate{0, -kInfinity};
  add_weights_of(rest, top, sums);
}

KERNEL_UNSANITIZED uint32_t bring_forward(Candidate* list, uint32_t n, float best, float from, float to) {
  const F32 top = set_f32(best), low = set_f32(from), high = set_f32(to);
  uint32_t front = 0, i = 0;
  const auto swap = [&](uint32_t k) SIMD_LAMBDA {
    const Candidate c = list[front];
    list[front++] = list[k];
    list[k] = c;
  };
  for (; i + kLanes <= n; i += kLanes) {
    const F32 below = below_best(list + i, top);
    uint32_t lanes = lanes_above(high, below) & ~lanes_above(low, below);
    for (; lanes; lanes &= lanes - 1) swap(i + uint32_t(__builtin_ctz(lanes)));
  }
  for (; i < n; ++i) {
    const float below = best - list[i].logit;
    if (from <= below && below < to) swap(i);
  }
  return front;
}

KERNEL_UNSANITIZED uint32_t keep_near(Candidate* list, uint32_t n, float best, float to) {
  const F32 top = set_f32(best), high = set_f32(to);
  uint32_t kept = 0, i = 0;
  for (; i + kLanes <= n; i += kLanes)
    kept += pack_pairs(list + kept, list + i, lanes_above(high, below_best(list + i, top)));
  for (; i < n; ++i)
    if (best - list[i].logit < to) list[kept++] = list[i];
  return kept;
}

KERNEL_UNSANITIZED void temper(Candidate* list, uint32_t n, float best, float temperature) {
  const F32 top = set_f32(best), t = set_f32(temperature);
  uint32_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    I32 token, logit;
    load_pairs(list + i, token, logit);
    store_pairs(list + i, token, f32_bits(div(sub(bits_f32(logit), top), t)));
  }
  for (; i < n; ++i) list[i].logit = (list[i].logit - best) / temperature;
}

}  // namespace

extern const SampleKernels kSampleKernels;
const SampleKernels kSampleKernels = {best,    maxima,      count_above,   collect,   take_all,
                                      best_of, add_weights, bring_forward, keep_near, temper};

}  // namespace argent::cpu::ARGENT_ISA
