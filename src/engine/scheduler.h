// Which sequence computes how many tokens in the next step. Pure: numbers in, numbers out.
//
// Every sequence has tokens and a number of them that are computed; a step brings some of them nearer to having all
// computed. Decoding is the case of one missing token, a prompt chunk of many. Decodes go first, the rest of the budget
// goes to prompts, so that a long prompt never holds up the others. Nobody waits for ever: decodes that are more than a
// step takes go by turns, prompts by arrival, a prompt that others of higher priority overtake rises by one for every
// kAgingSteps steps it waits, and a prompt that lacks only its last row is a decode. (A budget of more rows than
// outputs always leaves rows to prompts.)
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace argent {

struct Budget {
  uint32_t max_tokens = 512;         // rows of a step
  uint32_t max_outputs = 64;         // logits rows of a step
  uint32_t max_prompt = UINT32_MAX;  // rows of prompts in a step that has decodes
};

struct Want {
  uint32_t missing = 0;   // tokens that are there but not computed
  bool all_rows = false;  // logits of every token, not only of the last
  bool last_row = true;   // logits of the last token
  int32_t priority = 0;   // higher ones first
  uint64_t waited = 0;    // steps since it was last served, or arrived
};

inline constexpr uint64_t kAgingSteps = 128;

struct Pick {
  uint32_t index;      // into the wants
  uint32_t n_tokens;   // to compute now
  uint32_t n_outputs;  // logits rows among them: all of them, the last, or none
};

// wants: in order of arrival.
std::vector<Pick> pick_step(std::span<const Want> wants, const Budget& budget);

// How many rows of prompts a step with decodes may have, so that those who read an answer hardly notice that somebody
// else's prompt is read meanwhile: a step takes at most kSlowdown times what it takes without, as far as past steps
// tell. A prompt then takes 1 + 1 / (kSlowdown - 1) times what it takes alone, and more where rows cost more in small
// chunks. A row costs more the more keys it sees: a prompt's chunks become smaller towards its end.
class ChunkPolicy {
 public:
  static constexpr double kSlowdown = 2.2;
  static constexpr uint32_t kLeast = 2;
  static constexpr double kKeys = 1024;  // keys are counted in these

  // A step that ran: its rows of decodes and of prompts, the keys that the latter see together, and its time.
  void observe(uint32_t n_decodes, uint32_t n_prompt, uint64_t prompt_keys, double seconds);
  // At most `most` rows beside n_decodes, if they see as many keys as those of the last step.
  uint32_t rows(uint32_t n_decodes, uint32_t most) const;

 private:
  double decode_base_ = 0, decode_row_ = 0;  // seconds of a step of decodes: base + rows * row; 0: not known yet
  double prompt_row_ = 0, prompt_key_ = 0;   // seconds of prompts: rows * row + keys / kKeys * key; both 0: not known
  double keys_a_row_ = 0;                    // of the last step with prompts, in kKeys
};

}  // namespace argent
