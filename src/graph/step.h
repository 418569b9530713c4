// A step is plain data: everything that changes from run to run of a plan.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace argent {

// How one logits row is sampled; checked where it enters (sample/params.h).
struct SampleParams {
  float temperature = 0.0f;        // 0 = argmax, lowest id on ties
  uint32_t top_k = 40;             // 0 = all
  float top_p = 0.95f;             // 1 = off
  float min_p = 0.05f;             // 0 = off
  float repeat_penalty = 1.0f;     // 1 = off
  uint32_t repeat_last_n = 64;     // tokens before this one that it looks at, of the prompt too
  float presence_penalty = 0.0f;   // of tokens generated before this one
  float frequency_penalty = 0.0f;  // the same, for each time
  uint64_t seed = 0;               // key of the Philox draws
  uint32_t sample_index = 0;       // which of n answers; with the position the counter of the draw
  bool operator==(const SampleParams&) const = default;
};

struct LogitBias {
  int32_t token;
  float bias;
};

// What else one logits row obeys, before its parameters.
struct RowRules {
  std::span<const uint32_t> mask;  // bit t % 32 of word t / 32: token t is allowed; empty: all are
  std::span<const LogitBias> bias;
  bool any() const { return !mask.empty() || !bias.empty(); }
};

// A row that draws the best logit, as the model gave them.
inline bool greedy(const SampleParams& p, const RowRules& rules = {}) {
  return p.temperature == 0 && p.repeat_penalty == 1 && p.presence_penalty == 0 && p.frequency_penalty == 0 &&
         !rules.any();
}

// One sequence's part of a step.
struct StepSequence {
  uint32_t first_row = 0, n_rows = 0;  // its rows are neighbours, in order of position
  uint32_t length = 0;                 // positions in the cache before the step
  uint32_t slot = 0;                   // where the device keeps what this sequence sampled last
  // Block tables, one a layer group: logical block -> block of the pool, -1 where the window has passed.
  std::vector<std::span<const int32_t>> tables;
  // The tokens up to and with the sequence's last row, for penalties; an earlier row sees those up to its own.
  std::span<const int32_t> recent;
  uint32_t n_prompt = 0;  // of recent, the first ones were not generated
};

struct Step {
  // A row's token, or ~slot: what that slot's sequence sampled in the step before, still on the device.
  std::vector<int32_t> tokens;
  std::vector<int32_t> positions;
  std::vector<uint32_t> row_sequence;  // index into sequences
  std::vector<StepSequence> sequences;
  std::vector<int32_t> output_rows;    // rows that want logits, ascending
  std::vector<SampleParams> sampling;  // one an output row; empty when the plan hands out logits only
  std::vector<RowRules> rules;         // one an output row, or none at all
  // Where the plan begins with what another device computed: [tokens or output rows][width]; read by run().
  std::span<const float> hidden;

  void clear() {
    tokens.clear(), positions.clear(), row_sequence.clear(), sequences.clear(), output_rows.clear(), sampling.clear();
    rules.clear(), hidden = {};
  }
};

}  // namespace argent
