// The rules of sampling, once: what each op keeps and draws, to the bit, on every backend.
//
// A logits row that holds a NaN or +inf, or nothing but -inf, gives token -1: its list of candidates is empty, and
// stays so. -inf is a masked token: it is never a candidate. Better means a higher logit, among equals the lower id.
//
// - adjust, in f32 and in this order: logit + bias for each entry of the row's bias; for each distinct token of the
// last
//   repeat_last_n before the one to be drawn, logit <= 0 ? logit * penalty : logit / penalty; for each distinct token
//   that was generated before it, c times: logit - (c * frequency_penalty + presence_penalty); -inf for what the mask
//   does not allow, unless it is NaN or +inf
// - argmax: the best token
// - top_k: the k best, k = 0: all; temperature 0: the best alone
// - top_p: the shortest run of candidates, best first, whose weights reach the share p of the sum (share_of); 1 = off
// - min_p: candidates with weight >= uint64(min_p * 2^40); 0 = off. The best has 2^40 and stays
// - temperature: logit = (logit - best logit) / temperature, each step rounded to f32; temperature 0 changes nothing
// - draw: candidates from best to worst split [0, sum of weights) into neighbouring intervals as long as their weights;
//   the token is the one whose interval holds mul_high(u, sum), u the 64 bits of Philox4x32-10 with key = seed and
//   counter = (position of the row, sample_index, 0, 0): word 0 high, word 1 low
//
// The weight of a candidate is exp(logit - best logit) as an integer, so that sums are exact in any order, on any
// number of threads, and on devices without double. A list of candidates has no order of its own.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "graph/step.h"
#include "sample/exact.h"

namespace argent::sample {

struct Candidate {
  int32_t token;
  float logit;
};
static_assert(sizeof(Candidate) == 8);

constexpr bool better(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
}

// A row of a `candidates` value: the number (u32, then 4 bytes unused), then room for n_vocab candidates.
constexpr uint64_t candidates_bytes(uint32_t n_vocab) { return 8 * uint64_t(n_vocab) + 8; }

class Candidates {
 public:
  explicit Candidates(uint8_t* row) : row_(row) {}
  uint32_t size() const {
    uint32_t n;
    std::memcpy(&n, row_, sizeof n);
    return n;
  }
  void resize(uint32_t n) { std::memcpy(row_, &n, sizeof n); }
  Candidate* data() const { return reinterpret_cast<Candidate*>(row_ + 8); }
  Candidate* begin() const { return data(); }
  Candidate* end() const { return data() + size(); }

 private:
  uint8_t* row_;
};

inline constexpr uint64_t kWeightOne = uint64_t(1) << 40;

// exp(-below) * 2^40 for below = best - logit >= 0, in integers (exact.h). 0 from 28 on (e^-28 < 2^-40) and for NaN.
// The sum of 2^18 weights stays below 2^58.
inline uint64_t weight(float below) { return weight_of_steps(weight_steps(std::bit_cast<uint32_t>(below))); }

// What a share is counted in, and the least weight that min_p keeps.
inline uint64_t fraction_of(float p) { return uint64_t(double(p) * 0x1p32); }
inline uint64_t least_weight(float min_p) { return uint64_t(double(min_p) * double(kWeightOne)); }

// The share p of a sum: floor(sum * floor(p * 2^32) / 2^32), at least 1.
inline uint64_t share_of(uint64_t sum, float p) { return share_of_fraction(sum, fraction_of(p)); }

// The tokens before the one that a row samples; the last n_generated of them were generated.
struct History {
  std::span<const int32_t> tokens;  // entries may be ~slot, as in Step::tokens
  size_t n_generated = 0;
};

// Of row `row` of the step. StepSequence::recent ends with the token of the sequence's last row, so a row k before the
// last (a draft under verification) sees k fewer.
inline History history(const Step& step, uint32_t row) {
  const StepSequence& sequence = step.sequences[step.row_sequence[row]];
  const size_t later = sequence.first_row + sequence.n_rows - 1 - row;
  const size_t end = sequence.recent.size() - std::min(sequence.recent.size(), later);
  return {sequence.recent.first(end), end - std::min<size_t>(end, sequence.n_prompt)};
}

// The rules of an output row.
inline RowRules rules_of(const Step& step, uint32_t output) {
  return step.rules.empty() ? RowRules{} : step.rules[output];
}

}  // namespace argent::sample
