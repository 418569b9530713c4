#include "engine/scheduler.h"

#include <algorithm>

namespace argent {

std::vector<Pick> pick_step(std::span<const Want> wants, const Budget& budget) {
  std::vector<Pick> picks;
  uint32_t tokens = budget.max_tokens, outputs = budget.max_outputs;
  const auto take = [&](uint32_t index) {
    const Want& w = wants[index];
    uint32_t n = std::min(w.missing, tokens);
    if (w.all_rows) n = std::min(n, outputs);
    const bool last = n == w.missing && w.last_row;
    if (last && !w.all_rows && outputs == 0) --n;  // everything but the row that has no place
    if (n == 0) return;
    const uint32_t rows = w.all_rows ? n : n == w.missing && w.last_row ? 1 : 0;
    picks.push_back({index, n, rows});
    tokens -= n;
    outputs -= rows;
  };
  for (uint32_t i = 0; i < wants.size(); ++i)
    if (wants[i].missing == 1) take(i);
  for (uint32_t i = 0; i < wants.size(); ++i)
    if (wants[i].missing > 1) take(i);
  return picks;
}

}  // namespace argent
