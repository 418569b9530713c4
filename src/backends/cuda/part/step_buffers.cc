#include "backends/cuda/part/step_buffers.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <span>
#include <utility>

#include "base/checked.h"

namespace argent::cuda {
namespace {

constexpr uint64_t kAlignment = 16;      // vector loads
constexpr uint32_t kLeastTables = 1024;  // entries; 32768 positions
constexpr uint32_t kLeastData = 1024;    // words
constexpr uint32_t kLeastItems = 4;      // 1024 positions of one sequence
constexpr uint64_t kLeastBlock = 1 << 16;
constexpr uint32_t kLeastSlots = 64;
constexpr uint64_t kMostWords = 1 << 14;  // of a step that a kernel copies

uint32_t room(size_t n, uint32_t least) { return n ? std::bit_ceil(std::max(uint32_t(n), least)) : 0; }

uint64_t block_room(uint64_t bytes) { return std::bit_ceil(std::max(bytes, kLeastBlock)); }

template <class T>
void put(uint8_t* block, uint64_t at, std::span<const T> data) {
  if (!data.empty()) std::memcpy(block + at, data.data(), data.size_bytes());
}

}  // namespace

StepLayout step_layout(const StepShape& shape, size_t n_groups) {
  StepLayout layout;
  uint64_t at = 0;
  const auto take = [&](uint64_t bytes) { return std::exchange(at, align_up(at + bytes, kAlignment)); };
  const uint64_t n = shape.n_tokens, n_outputs = shape.n_outputs;
  layout.tokens = take(4 * n);
  layout.positions = take(4 * n);
  layout.row_sequence = take(4 * n);
  layout.output_rows = take(4 * n_outputs);
  if (shape.n_data) {
    layout.sample_rows = take(sizeof(SampleRow) * n_outputs);
    layout.data = take(4 * uint64_t(shape.n_data));
  }
  for (size_t g = 0; g < n_groups; ++g) layout.sequences.push_back(take(sizeof(KvSequence) * n));
  for (const ListShape& list : shape.lists) {
    StepLayout::List& to = layout.lists.emplace_back();
    to.counts = take(3 * 4);
    to.items = take(sizeof(AttentionItem) * uint64_t(list.items));
    to.rows = take(sizeof(AttentionRow) * uint64_t(list.rows));
    to.tiles = take(sizeof(AttentionTile) * uint64_t(list.tiles));
  }
  layout.hidden = take(4 * uint64_t(shape.n_hidden));
  layout.tables = take(4 * uint64_t(shape.n_tables));
  layout.ids = take(4 * n);
  layout.end = at;
  return layout;
}

uint64_t StepBuffers::bytes(const PlanKey& key, size_t n_groups) {
  StepShape shape;
  shape.n_tokens = key.n_tokens, shape.n_outputs = key.n_outputs;
  shape.n_tables = kLeastTables, shape.n_data = kLeastData;
  return block_room(step_layout(shape, n_groups).end) + 4 * kLeastSlots;
}

Status StepBuffers::write(Device& device, const Step& step, const StepPolicy& policy, uint32_t at) {
  shape_ = {};
  shape_.n_tokens = uint32_t(step.tokens.size()), shape_.n_outputs = uint32_t(step.output_rows.size());
  shape_.n_hidden = uint32_t(step.hidden.size());
  shape_.resolves = std::any_of(step.tokens.begin(), step.tokens.end(), [](int32_t token) { return token < 0; });

  // A sequence's table begins where those before it end, of all groups.
  sequences_.resize(windows_.size());
  tables_.clear();
  for (size_t g = 0; g < windows_.size(); ++g) {
    sequences_[g].clear();
    for (const StepSequence& s : step.sequences) {
      sequences_[g].push_back({s.first_row, s.n_rows, s.length, uint32_t(tables_.size())});
      tables_.insert(tables_.end(), s.tables[g].begin(), s.tables[g].end());
    }
  }
  shape_.n_tables = room(tables_.size(), kLeastTables);
  // Lists are cut out of sequences in the order of their rows.
  lists_.clear(), n_partial_.clear();
  for (const AttentionList& list : policy.lists) {
    std::vector<KvSequence>& sequences = sequences_[list.group];
    std::vector<KvSequence> sorted;
    const auto earlier = [](const KvSequence& a, const KvSequence& b) { return a.first_row < b.first_row; };
    if (!std::is_sorted(sequences.begin(), sequences.end(), earlier)) {
      sorted = sequences;  // kernels find a row's sequence by its number
      std::sort(sorted.begin(), sorted.end(), earlier);
    }
    std::optional<std::span<const int32_t>> rows;  // none: all rows
    if (list.rows == Rows::outputs) rows = step.output_rows;
    lists_.push_back(
        attention_lists(sorted.empty() ? sequences : sorted, rows, windows_[list.group], list.fast, list.ctas));
    const AttentionLists& made = lists_.back();
    const auto list_room = [&](size_t n) {
      return shape_.n_tokens > kCapturedRows ? uint32_t(n) : room(n, kLeastItems);
    };
    shape_.lists.push_back({list_room(made.items.size()), list_room(made.rows.size()), list_room(made.tiles.size())});
    n_partial_.push_back(made.n_slots);
  }
  if (policy.n_vocab) {
    sample::pack(step, Rows::outputs, policy.n_vocab, sample_);
    shape_.adjusts = sample_.adjusts;
    shape_.n_data = room(sample_.data.size(), kLeastData);
  }
  layout_ = step_layout(shape_, windows_.size());

  if (layout_.end > block_.size()) {
    block_ = {};
    ARGENT_LET(block_, Memory::of_device(device, block_room(layout_.end), "step's data"));
    ++generation_;
  }
  if (layout_.end > pinned_[at].size()) {
    pinned_[at] = {};
    ARGENT_LET(pinned_[at], Memory::pinned(device, block_room(layout_.end), "step's data"));
  }
  uint32_t n_slots = 1;
  for (const StepSequence& s : step.sequences) n_slots = std::max(n_slots, s.slot + 1);
  if (n_slots > n_slots_) ARGENT_TRY(make_slots(device, std::bit_ceil(std::max(n_slots, kLeastSlots))));

  uint8_t* const block = pinned_[at].data();
  put<int32_t>(block, layout_.tokens, step.tokens);
  put<int32_t>(block, layout_.positions, step.positions);
  put<uint32_t>(block, layout_.row_sequence, step.row_sequence);
  put<int32_t>(block, layout_.output_rows, step.output_rows);
  if (policy.n_vocab) {
    put<SampleRow>(block, layout_.sample_rows, sample_.rows);
    put<uint32_t>(block, layout_.data, sample_.data);
  }
  for (size_t g = 0; g < windows_.size(); ++g) put<KvSequence>(block, layout_.sequences[g], sequences_[g]);
  for (size_t i = 0; i < lists_.size(); ++i) {
    const AttentionLists& from = lists_[i];
    const StepLayout::List& to = layout_.lists[i];
    const uint32_t counts[3] = {uint32_t(from.items.size()), uint32_t(from.rows.size()), uint32_t(from.tiles.size())};
    put<uint32_t>(block, to.counts, counts);
    put<AttentionItem>(block, to.items, from.items);
    put<AttentionRow>(block, to.rows, from.rows);
    put<AttentionTile>(block, to.tiles, from.tiles);
  }
  put<float>(block, layout_.hidden, step.hidden);
  put<int32_t>(block, layout_.tables, tables_);
  n_bytes_ = layout_.tables + 4 * tables_.size();
  return {};
}

Status StepBuffers::send(Device& device, uint32_t at) {
  if (n_bytes_ <= kMostWords * 4) {
    Launch launch(device.stream(), {.dependent = false});
    copy_words(launch, reinterpret_cast<const uint32_t*>(pinned_[at].data()),
               reinterpret_cast<uint32_t*>(block_.data()), uint32_t((n_bytes_ + 3) / 4));
    return device.check(launch);
  }
  return device.check(
      cudaMemcpyAsync(block_.data(), pinned_[at].data(), n_bytes_, cudaMemcpyHostToDevice, device.stream()),
      "cudaMemcpyAsync (a step)");
}

// Keeps what those before have.
Status StepBuffers::make_slots(Device& device, uint32_t n_slots) {
  ARGENT_LET(Memory made, Memory::of_device(device, 4 * uint64_t(n_slots), "slots of sampled tokens"));
  ARGENT_TRY(device.check(cudaMemsetAsync(made.data(), 0xff, 4 * uint64_t(n_slots), device.stream()),
                          "cudaMemsetAsync (slots)"));
  if (slots_)
    ARGENT_TRY(device.check(
        cudaMemcpyAsync(made.data(), slots_.data(), 4 * uint64_t(n_slots_), cudaMemcpyDeviceToDevice, device.stream()),
        "cudaMemcpyAsync (slots)"));
  slots_ = std::move(made);  // frees the old ones after the copy
  n_slots_ = n_slots;
  ++generation_;
  return {};
}

}  // namespace argent::cuda
