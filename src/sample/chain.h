// The sampling ops on the host, by the rules of sample/rules.h, for one logits row each: the CPU backend's kernels, and
// what does the work for devices that have none. Selection instead of sorting: 262,144 logits at temperature 0.8 and
// top_k 40 are one pass over memory.
#pragma once

#include <span>

#include "sample/rules.h"

namespace argent::sample {

// ~slot entries of the history are looked up in `slots`. Ids that the row does not have are passed over.
void adjust(std::span<float> logits, const SampleParams& params, const History& history, const RowRules& rules = {},
            std::span<const int32_t> slots = {});
// -1: a NaN, +inf, or nothing but -inf.
int32_t argmax(std::span<const float> logits);

// Writes the candidates of a row; none where argmax would say -1.
void top_k(std::span<const float> logits, const SampleParams& params, Candidates out);

// These three work in place, and may reorder the list.
void top_p(Candidates list, const SampleParams& params);
void min_p(Candidates list, const SampleParams& params);
void temperature(Candidates list, const SampleParams& params);

// position: of the logits row. May reorder the list. -1: no candidates.
int32_t draw(Candidates list, const SampleParams& params, uint32_t position);

void copy(Candidates from, Candidates to);

struct LogProb {
  int32_t token;
  float log_prob;  // natural logarithm
};
// The log-probabilities, by softmax over a row of logits in double, of `token` (first; any id, -inf for one that the
// row does not have) and then of the n best ids, best first.
std::vector<LogProb> log_probs(std::span<const float> logits, int32_t token, uint32_t n);

}  // namespace argent::sample
