// Which sequence computes how many tokens in the next step. Pure: numbers in, numbers out.
//
// Every sequence has tokens and a number of them that are computed; a step brings some of them nearer to having all
// computed. Decoding is the case of one missing token, a prompt chunk of many. Decodes go first, the rest of the budget
// goes to prompts in order of arrival, so that a long prompt never holds up the others.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace argent {

struct Budget {
  uint32_t max_tokens = 512;  // rows of a step
  uint32_t max_outputs = 64;  // logits rows of a step
};

struct Want {
  uint32_t missing = 0;   // tokens that are there but not computed
  bool all_rows = false;  // logits of every token, not only of the last
  bool last_row = true;   // logits of the last token
};

struct Pick {
  uint32_t index;      // into the wants
  uint32_t n_tokens;   // to compute now
  uint32_t n_outputs;  // logits rows among them: all of them, the last, or none
};

std::vector<Pick> pick_step(std::span<const Want> wants, const Budget& budget);

}  // namespace argent
