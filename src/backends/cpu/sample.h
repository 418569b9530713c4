// Scans of logits and of candidates for the sampling ops: one kernel text (sample-inl.h) for each instruction set, and
// the selection built on it. Everything here is exact: the results are those of sample/chain.h on every ISA.
#pragma once

#include <cstdint>

#include "backends/cpu/matmul.h"
#include "sample/rules.h"

namespace argent::cpu {

// The best logit of a row's part, by the rules of sample/rules.h.
struct BestLogit {
  float logit;     // -inf where no logit is larger
  uint32_t index;  // the first that has it
  bool usable;     // no NaN, no +inf; else the rest says nothing
};

// Logits are taken in tiles of 256. A part's maxima are one float a tile, or kFine a tile: that of every 16th logit.
inline constexpr uint32_t kTile = 256, kFine = 16;
constexpr uint32_t n_tiles(uint32_t n) { return (n + kTile - 1) / kTile; }

// Weights are summed by distance from the best logit in steps of 1/64; the last bucket is for those without weight.
inline constexpr uint32_t kBuckets = 28 * 64 + 1;
inline constexpr float kBucketWidth = 0x1p-6f;

struct SampleKernels {
  BestLogit (*best)(const float* x, uint32_t n);
  // maxima[n_tiles * per_tile], per_tile 1 or kFine; false: there is a NaN or +inf.
  bool (*maxima)(const float* x, uint32_t n, uint32_t per_tile, float* maxima);
  // How many are > bound; n is any.
  uint32_t (*count_above)(const float* x, uint32_t n, float bound);
  // Appends {first_id + i, x[i]} to list[size] for i in [at, n) where x[i] > bound, ascending, skipping tiles whose
  // maxima say that there is none (per_tile 0: no maxima). Stops at a multiple of 16 where the 16 from there on might
  // exceed the capacity; returns where it stopped, n at the end. at: a multiple of 16.
  uint32_t (*collect)(const float* x, uint32_t n, const float* maxima, uint32_t per_tile, uint32_t at, float bound,
                      uint32_t first_id, sample::Candidate* list, uint32_t& size, uint32_t capacity);
  // All logits but -inf, ascending; their number, or kUnusable.
  uint32_t (*take_all)(const float* x, uint32_t n, uint32_t first_id, sample::Candidate* list);

  // The rest works on n candidates. The best logit; -inf for none.
  float (*best_of)(const sample::Candidate* list, uint32_t n);
  // sums[bucket] += sample::weight(best - logit)
  void (*add_weights)(const sample::Candidate* list, uint32_t n, float best, uint64_t* sums);
  // Brings the candidates with from <= best - logit < to to the front, by swaps; their number.
  uint32_t (*bring_forward)(sample::Candidate* list, uint32_t n, float best, float from, float to);
  // Moves the candidates with best - logit < to to the front, over the others; their number.
  uint32_t (*keep_near)(sample::Candidate* list, uint32_t n, float best, float to);
  // logit = (logit - best) / temperature
  void (*temper)(sample::Candidate* list, uint32_t n, float best, float temperature);
};
inline constexpr uint32_t kUnusable = UINT32_MAX;

const SampleKernels& sample_kernels(Isa isa);

// Of a part of a row, the k best (0: all) and perhaps some more, in any order, into list[n] (of which all may be
// written); their number, or kUnusable. The ids of the logits begin at first_id.
uint32_t select_part(const SampleKernels& kernels, const float* x, uint32_t n, uint32_t first_id, uint32_t k,
                     sample::Candidate* list);

// Leaves the k best (0: all) of n candidates in front; their number.
uint32_t keep_best(sample::Candidate* list, uint32_t n, uint32_t k);

// Leaves the shortest best-first run whose weights reach `wanted` (1 to the sum of `sums`) in front, its worst at its
// end; its length.
uint32_t keep_reaching(const SampleKernels& kernels, sample::Candidates list, float best, const uint64_t* sums,
                       uint64_t wanted);
// The worst of that run; the list loses nothing.
sample::Candidate worst_reached(const SampleKernels& kernels, sample::Candidates list, float best, const uint64_t* sums,
                                uint64_t wanted);

// sample::min_p.
void min_p(const SampleKernels& kernels, sample::Candidates list, float min_p);

}  // namespace argent::cpu
