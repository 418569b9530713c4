#include "graph/step_check.h"

#include <algorithm>
#include <bitset>
#include <cmath>

namespace argent {
namespace {

Status check_token(int32_t token, uint32_t n_vocab, std::span<const uint8_t> sampled_slots, std::string_view what,
                   size_t at) {
  if (token >= 0) {
    if (uint32_t(token) < n_vocab) return {};
    return fail(Code::invalid, "step: {} {} is {}, the vocabulary has {} tokens", what, at, token, n_vocab);
  }
  const uint32_t slot = uint32_t(~token);
  if (slot < sampled_slots.size() && sampled_slots[slot]) return {};
  return fail(Code::invalid, "step: {} {} is what slot {} sampled, but it sampled nothing", what, at, slot);
}

// Of a whole text, many entries at a time.
bool all_below(std::span<const int32_t> tokens, uint32_t n_vocab) {
  uint32_t any_beyond = 0;
  for (const int32_t token : tokens) any_beyond |= uint32_t(uint32_t(token) >= n_vocab);
  return any_beyond == 0;
}

Status check_sizes(const StepRules& rules, const Step& step) {
  const PlanKey& key = rules.key;
  const size_t n = step.tokens.size(), n_outputs = step.output_rows.size();
  if (n == 0 || n > key.n_tokens)
    return fail(Code::invalid, "step: has {} rows, the plan takes 1 to {}", n, key.n_tokens);
  if (step.positions.size() != n || step.row_sequence.size() != n)
    return fail(Code::invalid, "step: {} tokens, but {} positions and {} sequence numbers", n, step.positions.size(),
                step.row_sequence.size());
  if (key.all_rows && n_outputs != n)
    return fail(Code::invalid, "step: the plan wants logits of all {} rows, the step of {}", n, n_outputs);
  if (n_outputs > key.n_outputs)
    return fail(Code::invalid, "step: wants logits of {} rows, the plan gives at most {}", n_outputs, key.n_outputs);
  for (size_t i = 0; i < n_outputs; ++i)
    if (step.output_rows[i] < 0 || size_t(step.output_rows[i]) >= n ||
        (i && step.output_rows[i] <= step.output_rows[i - 1]))
      return fail(Code::invalid, "step: output row {} is {}, wants ascending rows below {}", i, step.output_rows[i], n);
  if (const size_t hidden = rules.hidden_width * (rules.hidden_rows == Rows::tokens ? n : n_outputs);
      step.hidden.size() != hidden)
    return fail(Code::invalid, "step: has {} elements of hidden states, the plan takes {}", step.hidden.size(), hidden);
  return {};
}

Status check_sampling(const StepRules& rules, const Step& step) {
  const size_t n = step.sampling.size(), n_outputs = step.output_rows.size();
  if (!samples(rules.key.tail) && (n != 0 || !step.rules.empty()))
    return fail(Code::invalid, "step: has {} sampling parameters and {} rules, the plan samples nothing", n,
                step.rules.size());
  if (!step.rules.empty() && step.rules.size() != n_outputs)
    return fail(Code::invalid, "step: has rules for {} of {} output rows", step.rules.size(), n_outputs);
  for (size_t i = 0; i < step.rules.size(); ++i) {
    const size_t words = step.rules[i].mask.size();
    if (words != 0 && words != (uint64_t(rules.n_vocab) + 31) / 32)
      return fail(Code::invalid, "step: output row {} has a mask of {} words for {} tokens", i, words, rules.n_vocab);
    for (const LogitBias& b : step.rules[i].bias)
      if (b.token < 0 || uint32_t(b.token) >= rules.n_vocab || !(b.bias < INFINITY))
        return fail(Code::invalid, "step: output row {} adds {} to token {} of {}", i, b.bias, b.token, rules.n_vocab);
  }
  if ((rules.key.tail == Tail::sample || rules.key.tail == Tail::sample_logits) && n != n_outputs)
    return fail(Code::invalid, "step: has {} sampling parameters for {} output rows", n, n_outputs);
  if (rules.key.tail == Tail::greedy) {
    if (n != 0 && n != n_outputs)
      return fail(Code::invalid, "step: has {} sampling parameters for {} output rows", n, n_outputs);
    for (size_t i = 0; i < n; ++i)
      if (!greedy(step.sampling[i], step.rules.empty() ? RowRules{} : step.rules[i]))
        return fail(Code::invalid,
                    "step: output row {} wants temperature {} and penalties or rules, the plan is greedy", i,
                    step.sampling[i].temperature);
  }
  return {};
}

Status check_rows(const StepRules& rules, const Step& step, std::span<const uint8_t> sampled_slots) {
  const size_t n = step.tokens.size();
  uint64_t covered = 0;
  std::vector<uint32_t> slots;
  for (size_t s = 0; s < step.sequences.size(); ++s) {
    const StepSequence& sequence = step.sequences[s];
    if (sequence.n_rows == 0 || uint64_t(sequence.first_row) + sequence.n_rows > n)
      return fail(Code::invalid, "step: sequence {} has rows {} to {} of {}", s, sequence.first_row,
                  uint64_t(sequence.first_row) + sequence.n_rows, n);
    if (uint64_t(sequence.length) + sequence.n_rows > INT32_MAX)
      return fail(Code::invalid, "step: sequence {} is {} positions long", s, sequence.length);
    covered += sequence.n_rows;
    for (uint32_t r = sequence.first_row; r < sequence.first_row + sequence.n_rows; ++r) {
      if (step.row_sequence[r] != s)
        return fail(Code::invalid, "step: row {} belongs to sequence {} and to {}", r, s, step.row_sequence[r]);
      const uint32_t position = sequence.length + (r - sequence.first_row);
      if (step.positions[r] != int32_t(position))
        return fail(Code::invalid, "step: row {} of sequence {} is at position {}, wants {}", r, s, step.positions[r],
                    position);
    }
    if (sequence.slot >= kMaxSlots)
      return fail(Code::invalid, "step: sequence {} has slot {}, wants less than {}", s, sequence.slot, kMaxSlots);
    slots.push_back(sequence.slot);
    if (all_below(sequence.recent, rules.n_vocab)) continue;
    for (size_t i = 0; i < sequence.recent.size(); ++i)
      ARGENT_TRY(check_token(sequence.recent[i], rules.n_vocab, sampled_slots, "recent token", i));
  }
  if (covered != n) return fail(Code::invalid, "step: the sequences have {} rows, the step {}", covered, n);
  std::sort(slots.begin(), slots.end());
  if (const auto twice = std::adjacent_find(slots.begin(), slots.end()); twice != slots.end())
    return fail(Code::invalid, "step: two sequences have slot {}", *twice);
  for (size_t r = 0; r < n; ++r) ARGENT_TRY(check_token(step.tokens[r], rules.n_vocab, sampled_slots, "token", r));
  return {};
}

// Who writes which block of a group in a step. Most blocks of long texts are written by nobody, so that is told first.
class Writers {
 public:
  // The sequence that writes the block, or null; after sort().
  const uint32_t* find(int32_t block) const {
    if (!maybe_[uint32_t(block) % kBits]) return nullptr;
    const auto it =
        std::lower_bound(all_.begin(), all_.end(), block, [](const Write& w, int32_t b) { return w.block < b; });
    return it != all_.end() && it->block == block ? &it->sequence : nullptr;
  }
  // The sequence that was added with this block before, or null; before sort().
  const uint32_t* add(int32_t block, uint32_t sequence) {
    if (maybe_[uint32_t(block) % kBits])
      for (const Write& w : all_)
        if (w.block == block) return &w.sequence;
    maybe_[uint32_t(block) % kBits] = true;
    all_.push_back({block, sequence});
    return nullptr;
  }
  void sort() {
    std::sort(all_.begin(), all_.end(), [](const Write& a, const Write& b) { return a.block < b.block; });
  }

 private:
  struct Write {
    int32_t block;
    uint32_t sequence;
  };
  static constexpr uint32_t kBits = 1 << 14;
  std::bitset<kBits> maybe_;  // by block % kBits
  std::vector<Write> all_;
};

// The blocks of one group: there where a row looks or writes, and written by one sequence that nobody else looks at.
Status check_tables(const StepRules& rules, const Step& step, uint32_t group) {
  const uint32_t window = rules.windows[group];
  Writers writers;
  for (const bool reading : {false, true}) {
    for (uint32_t s = 0; s < step.sequences.size(); ++s) {
      const StepSequence& sequence = step.sequences[s];
      const std::span<const int32_t> table = sequence.tables[group];
      const uint32_t first = window && sequence.length >= window ? sequence.length - window + 1 : 0;
      const uint32_t end = sequence.length + sequence.n_rows;
      for (uint32_t b = (reading ? first : sequence.length) / rules.block_tokens; b <= (end - 1) / rules.block_tokens;
           ++b) {
        if (b >= table.size())
          return fail(Code::invalid, "step: sequence {} has {} blocks in group {}, wants {}", s, table.size(), group,
                      (end - 1) / rules.block_tokens + 1);
        if (table[b] < 0 || uint32_t(table[b]) >= rules.group_blocks[group])
          return fail(Code::invalid, "step: block {} of sequence {} in group {} is {}, the pool has {}", b, s, group,
                      table[b], rules.group_blocks[group]);
        const uint32_t* const writer = reading ? writers.find(table[b]) : writers.add(table[b], s);
        if (!reading && writer)
          return fail(Code::invalid, "step: block {} of group {} is written twice, by sequences {} and {}", table[b],
                      group, *writer, s);
        if (reading && writer && *writer != s)
          return fail(Code::invalid, "step: block {} of group {} is written by sequence {} and read by {}", table[b],
                      group, *writer, s);
      }
    }
    if (!reading) writers.sort();
  }
  return {};
}

}  // namespace

StepRules step_rules(const Plan& plan, const KvLayout& layout, std::span<const uint32_t> group_blocks,
                     uint32_t block_tokens) {
  StepRules rules;
  rules.key = plan.key;
  rules.block_tokens = block_tokens;
  rules.windows = layout.windows;
  rules.group_blocks.assign(group_blocks.begin(), group_blocks.end());
  uint32_t embedded = INT32_MAX, sampled = INT32_MAX;
  for (const Node& node : plan.graph.nodes) {
    const Value& first = plan.graph.value(node.inputs[0]);
    if (node.op == Op::embed) embedded = std::min(embedded, plan.graph.value(node.inputs[1]).n_rows);
    if ((node.op == Op::argmax || node.op == Op::adjust) && first.dtype == DType::f32) sampled = first.width;
    if (first.kind == ValueKind::input && first.input == Input::hidden)
      rules.hidden_width = first.width, rules.hidden_rows = first.rows;
  }
  rules.n_vocab = embedded < INT32_MAX ? embedded : sampled;
  return rules;
}

Status check_step(const StepRules& rules, const Step& step, std::span<const uint8_t> sampled_slots) {
  ARGENT_TRY(check_sizes(rules, step));
  ARGENT_TRY(check_sampling(rules, step));
  ARGENT_TRY(check_rows(rules, step, sampled_slots));
  for (size_t s = 0; s < step.sequences.size(); ++s)
    if (step.sequences[s].tables.size() != rules.windows.size())
      return fail(Code::invalid, "step: sequence {} has {} block tables, wants {}", s, step.sequences[s].tables.size(),
                  rules.windows.size());
  for (uint32_t group = 0; group < rules.windows.size(); ++group) ARGENT_TRY(check_tables(rules, step, group));
  return {};
}

}  // namespace argent
