#include "backends/metal/step_buffers.h"

#include <algorithm>
#include <cstring>

namespace argent::metal {
namespace {

template <class T>
void fill(Buffer& buffer, std::span<const T> data) {
  if (!data.empty()) std::memcpy(buffer.fill(0, data.size_bytes()).data(), data.data(), data.size_bytes());
}

}  // namespace

Status StepBuffers::fit(Device& device, const KvLayout& layout, uint32_t max_tokens, uint32_t max_outputs) {
  if (max_tokens <= max_tokens_ && max_outputs <= max_outputs_ && sequences_.size() == layout.windows.size()) return {};
  max_tokens = max_tokens_ = std::max(max_tokens, max_tokens_);
  max_outputs = max_outputs_ = std::max({1u, max_outputs, max_outputs_});
  ARGENT_LET(tokens_, device.alloc(4 * size_t(max_tokens)));
  ARGENT_LET(positions_, device.alloc(4 * size_t(max_tokens)));
  ARGENT_LET(row_sequence_, device.alloc(4 * size_t(max_tokens)));
  ARGENT_LET(output_rows_, device.alloc(4 * size_t(max_outputs)));
  sequences_.clear(), tables_.clear();
  for (size_t g = 0; g < layout.windows.size(); ++g) {
    ARGENT_LET(std::unique_ptr<Buffer> sequences, device.alloc(sizeof(KvSequence) * size_t(max_tokens)));
    ARGENT_LET(std::unique_ptr<Buffer> tables, device.alloc(4 * 1024));
    sequences_.push_back(std::move(sequences));
    tables_.push_back(std::move(tables));
  }
  return {};
}

Status StepBuffers::write(Device& device, const Step& step, StepShape& shape, bool& moved) {
  shape = {uint32_t(step.tokens.size()), uint32_t(step.output_rows.size())};
  fill<int32_t>(*tokens_, step.tokens);
  fill<int32_t>(*positions_, step.positions);
  fill<uint32_t>(*row_sequence_, step.row_sequence);
  fill<int32_t>(*output_rows_, step.output_rows);
  std::vector<KvSequence> sequences;
  std::vector<int32_t> tables;
  for (size_t g = 0; g < sequences_.size(); ++g) {
    sequences.clear(), tables.clear();
    for (const StepSequence& s : step.sequences) {
      sequences.push_back({s.first_row, s.n_rows, s.length, uint32_t(tables.size())});
      tables.insert(tables.end(), s.tables[g].begin(), s.tables[g].end());
    }
    if (4 * tables.size() > tables_[g]->bytes().size()) {
      ARGENT_LET(tables_[g], device.alloc(8 * tables.size()));
      moved = true;
    }
    fill<KvSequence>(*sequences_[g], sequences);
    fill<int32_t>(*tables_[g], tables);
  }
  return {};
}

}  // namespace argent::metal
