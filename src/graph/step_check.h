// Does a step fit the plan it is run with? Pure, and strict: backends that test others (reference, null) refuse
// whatever a scheduler got wrong, naming it, before a kernel could read outside a table.
#pragma once

#include <span>
#include <vector>

#include "base/result.h"
#include "graph/kv_layout.h"
#include "graph/plan.h"
#include "graph/step.h"

namespace argent {

// Slots are small numbers that an engine hands out again; the bound keeps a broken one from allocating gigabytes.
inline constexpr uint32_t kMaxSlots = 1 << 16;

// What steps of a plan must respect; made once a plan.
struct StepRules {
  PlanKey key;
  uint32_t n_vocab = 0;       // rows of the smallest token table; where there is none, of the logits it samples from
  uint32_t hidden_width = 0;  // of the rows of Step::hidden; 0: it has none
  Rows hidden_rows = Rows::tokens;
  uint32_t block_tokens = 0;
  std::vector<uint32_t> windows;       // by layer group
  std::vector<uint32_t> group_blocks;  // blocks of each group's pool
};
StepRules step_rules(const Plan& plan, const KvLayout& layout, std::span<const uint32_t> group_blocks,
                     uint32_t block_tokens);

// Checks everything: sizes against the key, rows and sequences against each other, positions, ids, slots
// (`sampled_slots`: by slot, whether it ever sampled), tables (visible and written blocks are there; a written block is
// in no other sequence's reach), output rows, sampling. invalid: the first thing that does not fit.
Status check_step(const StepRules& rules, const Step& step, std::span<const uint8_t> sampled_slots);

}  // namespace argent
