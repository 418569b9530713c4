#include "engine/scheduler.h"

#include <algorithm>

namespace argent {

std::vector<Pick> pick_step(std::span<const Want> wants, const Budget& budget) {
  std::vector<Pick> picks;
  uint32_t tokens = budget.max_tokens, outputs = budget.max_outputs;
  const auto take = [&](uint32_t index, uint32_t most) {
    const Want& w = wants[index];
    uint32_t n = std::min({w.missing, tokens, most});
    if (w.all_rows) n = std::min(n, outputs);
    const bool last = n == w.missing && w.last_row;
    if (last && !w.all_rows && outputs == 0) --n;  // everything but the row that has no place
    if (n == 0) return uint32_t(0);
    const uint32_t rows = w.all_rows ? n : n == w.missing && w.last_row ? 1 : 0;
    picks.push_back({index, n, rows});
    tokens -= n;
    outputs -= rows;
    return n;
  };
  std::vector<uint32_t> decodes, prompts;
  for (uint32_t i = 0; i < wants.size(); ++i) {
    if (wants[i].missing == 1) decodes.push_back(i);
    if (wants[i].missing > 1) prompts.push_back(i);
  }
  const auto rank = [&](uint32_t i) { return int64_t(wants[i].priority) + int64_t(wants[i].waited / kAgingSteps); };
  std::stable_sort(decodes.begin(), decodes.end(), [&](uint32_t a, uint32_t b) {
    return rank(a) != rank(b) ? rank(a) > rank(b) : wants[a].waited > wants[b].waited;
  });
  std::stable_sort(prompts.begin(), prompts.end(), [&](uint32_t a, uint32_t b) { return rank(a) > rank(b); });
  for (uint32_t i : decodes) take(i, 1);
  uint32_t left = picks.empty() ? UINT32_MAX : budget.max_prompt;
  for (uint32_t i : prompts) left -= take(i, left);
  return picks;
}

// What a measurement adds to what was expected. Some percent of all steps are held up by something else, for several
// times their length, so upwards it is bounded; nothing makes a step shorter than it is.
static double correction(double took, double expected) {
  constexpr double kNew = 0.2, kMost = 0.5;
  return kNew * std::min(took - expected, kMost * expected);
}

void ChunkPolicy::observe(uint32_t n_decodes, uint32_t n_prompt, uint64_t prompt_keys, double seconds) {
  if (n_prompt) keys_a_row_ = double(prompt_keys) / n_prompt / kKeys;
  if (n_decodes == 0) return;
  const double decodes = decode_base_ + n_decodes * decode_row_;
  if (n_prompt == 0) {
    // Reading the weights is most of a step of few rows; what more rows cost is learned from steps of other sizes.
    if (decode_base_ == 0) {
      decode_base_ = seconds;
    } else if (n_decodes > 1) {
      const double error = 0.5 * correction(seconds, decodes);
      decode_base_ = std::max(0.25 * decodes, decode_base_ + error);
      decode_row_ = std::max(0.0, decode_row_ + error / n_decodes);
    } else {
      decode_base_ = std::max(0.25 * decodes, decode_base_ + correction(seconds, decodes));
    }
  } else if (decode_base_ > 0) {
    // Normalized least mean squares over (rows, keys).
    const double rows = n_prompt, keys = keys_a_row_ * rows, norm = rows * rows + keys * keys;
    const double took = std::max(seconds - decodes, 0.02 * seconds);
    const double expected = rows * prompt_row_ + keys * prompt_key_;
    const double error = expected > 0 ? correction(decodes + took, decodes + expected) : took;
    prompt_row_ = std::max(0.0, prompt_row_ + error * rows / norm);
    prompt_key_ = std::max(0.0, prompt_key_ + error * keys / norm);
  }
}

uint32_t ChunkPolicy::rows(uint32_t n_decodes, uint32_t most) const {
  if (n_decodes == 0) return most;
  const double row = prompt_row_ + keys_a_row_ * prompt_key_;
  if (decode_base_ == 0 || row == 0) return std::min(most, 4 * kLeast);
  const double allowed = (kSlowdown - 1) * (decode_base_ + n_decodes * decode_row_) / row;
  return std::min(most, allowed < kLeast ? kLeast : allowed > most ? most : uint32_t(allowed + 0.5));
}

}  // namespace argent
