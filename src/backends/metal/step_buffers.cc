#include "backends/metal/step_buffers.h"

#include <algorithm>
#include <cstring>

namespace argent::metal {
namespace {

template <class T>
void fill(Buffer& buffer, std::span<const T> data) {
  if (!data.empty()) std::memcpy(buffer.fill(0, data.size_bytes()).data(), data.data(), data.size_bytes());
}

template <class Item>
Status make_list(Device& device, size_t most, std::unique_ptr<Buffer>& list) {
  ARGENT_LET(list, device.alloc(attention_list_bytes<Item>(std::max<size_t>(most, 1))));
  return {};
}

template <class Item>
uint32_t write_list(const std::vector<Item>& items, Buffer& list) {
  write_attention_list(std::span<const Item>(items), list.fill(0, attention_list_bytes<Item>(items.size())));
  return attention_bucket(uint32_t(items.size()));
}

}  // namespace

// All or nothing: a step may still run with what was there.
Status StepBuffers::fit(Device& device, const KvLayout& layout, uint32_t max_tokens, uint32_t max_outputs,
                        uint64_t max_hidden) {
  StepBuffers made;
  made.max_tokens_ = std::max(max_tokens, max_tokens_);
  made.max_outputs_ = std::max({1u, max_outputs, max_outputs_});
  made.max_hidden_ = std::max(max_hidden, max_hidden_);
  made.windows_ = layout.windows;
  if (tokens_ && made.max_tokens_ == max_tokens_ && made.max_outputs_ == max_outputs_ &&
      made.max_hidden_ == max_hidden_ && made.windows_ == windows_)
    return {};
  const size_t rows = 4 * size_t(made.max_tokens_);
  ARGENT_LET(made.tokens_, device.alloc(rows));
  ARGENT_LET(made.ids_, device.alloc(rows));
  ARGENT_LET(made.positions_, device.alloc(rows));
  ARGENT_LET(made.row_sequence_, device.alloc(rows));
  ARGENT_LET(made.output_rows_, device.alloc(4 * size_t(made.max_outputs_)));
  ARGENT_LET(made.hidden_, device.alloc(std::max<uint64_t>(4, made.max_hidden_)));
  ARGENT_LET(made.sample_rows_, device.alloc(sizeof(SampleRow) * size_t(made.max_outputs_)));
  ARGENT_LET(made.sample_data_, device.alloc(4 * 1024));
  for (size_t g = 0; g < made.windows_.size(); ++g) {
    ARGENT_LET(std::unique_ptr<Buffer> sequences, device.alloc(sizeof(KvSequence) * size_t(made.max_tokens_)));
    ARGENT_LET(std::unique_ptr<Buffer> tables, device.alloc(4 * 1024));
    made.sequences_.push_back(std::move(sequences));
    made.tables_.push_back(std::move(tables));
    for (const uint32_t n :
         {made.max_tokens_, made.max_tokens_, made.max_outputs_, made.max_outputs_}) {  // as lists_of
      AttentionListBuffers& lists = made.lists_.emplace_back();
      // A smaller plan's rows may have more splits each.
      ARGENT_TRY(make_list<AttentionItem>(device, std::max(n, std::min(n, 256u) * kMaxSplits), lists.decode));
      ARGENT_TRY(make_list<AttentionCombineItem>(device, attention_max_combine(n), lists.combine));
      ARGENT_TRY(make_list<AttentionItem>(device, attention_max_prefill(n), lists.prefill));
    }
  }
  if (!slots_) ARGENT_TRY(make_slots(device, 16));
  made.slots_ = std::move(slots_), made.n_slots_ = n_slots_;
  made.moved_ = true;
  *this = std::move(made);
  return {};
}

Status StepBuffers::write(Device& device, const Step& step, const StepPolicy& policy, StepShape& shape) {
  shape = {};
  shape.n_tokens = uint32_t(step.tokens.size()), shape.n_outputs = uint32_t(step.output_rows.size());
  shape.attention.resize(lists_.size());
  fill<int32_t>(*tokens_, step.tokens);
  fill<int32_t>(*ids_, step.tokens);
  fill<int32_t>(*positions_, step.positions);
  fill<uint32_t>(*row_sequence_, step.row_sequence);
  fill<int32_t>(*output_rows_, step.output_rows);
  fill<float>(*hidden_, step.hidden);
  shape.resolves = std::any_of(step.tokens.begin(), step.tokens.end(), [](int32_t token) { return token < 0; });
  std::vector<KvSequence> sequences;
  std::vector<int32_t> tables;
  for (uint32_t g = 0; g < windows_.size(); ++g) {
    sequences.clear(), tables.clear();
    for (const StepSequence& s : step.sequences) {
      sequences.push_back({s.first_row, s.n_rows, s.length, uint32_t(tables.size())});
      tables.insert(tables.end(), s.tables[g].begin(), s.tables[g].end());
    }
    if (4 * tables.size() > tables_[g]->bytes().size()) {
      ARGENT_LET(tables_[g], device.alloc(8 * tables.size()));
      moved_ = true;
    }
    fill<KvSequence>(*sequences_[g], sequences);
    fill<int32_t>(*tables_[g], tables);
    ARGENT_TRY(write_attention(step, g, policy, sequences, shape));
  }
  return write_sampling(device, step, policy, shape);
}

// Rows that want logits are rows of their own: each a sequence of one row at its position.
Status StepBuffers::write_attention(const Step& step, uint32_t group, const StepPolicy& policy,
                                    std::span<const KvSequence> sequences, StepShape& shape) {
  const auto one_each = [&](size_t n, const auto& row_of) {
    std::vector<KvSequence> rows;
    for (size_t i = 0; i < n; ++i) {
      const uint32_t row = row_of(i);
      rows.push_back({uint32_t(i), 1, uint32_t(step.positions[row]), sequences[step.row_sequence[row]].table});
    }
    return rows;
  };
  const auto sequences_of = [&](Rows rows) -> std::vector<KvSequence> {
    if (rows == Rows::outputs)
      return one_each(step.output_rows.size(), [&](size_t i) { return uint32_t(step.output_rows[i]); });
    if (!policy.flash) return one_each(step.tokens.size(), [](size_t i) { return uint32_t(i); });
    return {sequences.begin(), sequences.end()};
  };
  for (const Rows rows : {Rows::tokens, Rows::outputs})
    for (const bool fast : {false, true}) {
      const size_t at = lists_of(rows, group, fast);
      if (!policy.lists[at]) continue;
      const uint32_t n_rows = rows == Rows::tokens ? policy.max_tokens : policy.max_outputs;
      const AttentionLists lists =
          attention_items(sequences_of(rows), {windows_[group], policy.split ? attention_max_splits(n_rows) : 1, fast});
      shape.attention[at] = {write_list(lists.decode, *lists_[at].decode),
                             write_list(lists.combine, *lists_[at].combine),
                             write_list(lists.prefill, *lists_[at].prefill)};
    }
  return {};
}

// Keeps what those before have.
Status StepBuffers::make_slots(Device& device, uint32_t n_slots) {
  ARGENT_LET(std::unique_ptr<Buffer> made, device.alloc(4 * size_t(n_slots)));
  std::vector<int32_t> tokens(n_slots, -1);
  if (slots_) std::memcpy(tokens.data(), slots_->bytes().data(), 4 * size_t(n_slots_));
  fill<int32_t>(*made, tokens);
  slots_ = std::move(made);
  n_slots_ = n_slots;
  moved_ = true;
  return {};
}

Status StepBuffers::write_sampling(Device& device, const Step& step, const StepPolicy& policy, StepShape& shape) {
  uint32_t n_slots = 1;
  for (const StepSequence& s : step.sequences) n_slots = std::max(n_slots, s.slot + 1);
  if (n_slots > n_slots_) ARGENT_TRY(make_slots(device, std::max(n_slots, 2 * n_slots_)));
  if (policy.n_vocab == 0) return {};
  pack(step, Rows::outputs, policy.n_vocab, sample_);
  shape.adjusts = sample_.adjusts;
  if (4 * sample_.data.size() > sample_data_->bytes().size()) {
    ARGENT_LET(sample_data_, device.alloc(8 * sample_.data.size()));
    moved_ = true;
  }
  fill<SampleRow>(*sample_rows_, sample_.rows);
  fill<uint32_t>(*sample_data_, sample_.data);
  return {};
}

}  // namespace argent::metal
