// What kernels read of a step, in buffers that stay where they are from step to step, so that command lists can be used
// again.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "backends/metal/attention_items.h"
#include "backends/metal/device.h"
#include "backends/metal/sample_step.h"
#include "graph/kv_layout.h"
#include "graph/plan.h"
#include "graph/step.h"

namespace argent::metal {

// The grids' extents over the work lists of attention; powers of two.
struct AttentionShape {
  uint32_t decode = 0, combine = 0, prefill = 0;
  bool operator==(const AttentionShape&) const = default;
};

// All that a command list depends on beside its plan.
struct StepShape {
  uint32_t n_tokens = 0, n_outputs = 0;
  bool resolves = false;                  // some row's token is still in a slot
  bool adjusts = false;                   // some row has rules or penalties
  std::vector<AttentionShape> attention;  // by StepBuffers::lists_of
  bool operator==(const StepShape&) const = default;
};

// The work lists of the layers of a group: of all rows or of those that want logits, with or without fast kernels.
struct AttentionListBuffers {
  std::unique_ptr<Buffer> decode, combine, prefill;
};

// What shares attention out, of a plan.
struct StepPolicy {
  uint32_t max_tokens = 0, max_outputs = 0;  // rows of the plan
  bool split = true, flash = true;
  uint32_t n_vocab = 0;     // of its sampling; 0: it has none
  std::vector<bool> lists;  // by StepBuffers::lists_of: those that its attention reads
};

class StepBuffers {
 public:
  // Makes room for steps of up to so many rows, beside those of earlier calls.
  Status fit(Device& device, const KvLayout& layout, uint32_t max_tokens, uint32_t max_outputs,
             uint64_t max_hidden = 0);  // bytes of Step::hidden
  // Writes a step; the device is idle.
  Status write(Device& device, const Step& step, const StepPolicy& policy, StepShape& shape);
  // Whether a buffer has been replaced since it was asked last, also by a call that failed: lists that name it are
  // void.
  bool take_moved() { return std::exchange(moved_, false); }

  const Buffer& tokens() const { return *tokens_; }  // as the step has them
  const Buffer& ids() const { return *ids_; }        // the same, those in slots resolved
  const Buffer& positions() const { return *positions_; }
  const Buffer& row_sequence() const { return *row_sequence_; }
  const Buffer& output_rows() const { return *output_rows_; }
  const Buffer& hidden() const { return *hidden_; }
  const Buffer& sequences(uint32_t group) const { return *sequences_[group]; }
  const Buffer& tables(uint32_t group) const { return *tables_[group]; }
  const Buffer& slots() const { return *slots_; }
  uint32_t n_slots() const { return n_slots_; }
  const Buffer& sample_rows() const { return *sample_rows_; }
  const Buffer& sample_data() const { return *sample_data_; }

  size_t lists_of(Rows rows, uint32_t group, bool fast) const {
    return (size_t(group) * 2 + (rows == Rows::outputs)) * 2 + fast;
  }
  size_t n_lists() const { return lists_.size(); }
  const AttentionListBuffers& lists(size_t at) const { return lists_[at]; }

 private:
  Status write_attention(const Step& step, uint32_t group, const StepPolicy& policy,
                         std::span<const KvSequence> sequences, StepShape& shape);
  Status make_slots(Device& device, uint32_t n_slots);
  Status write_sampling(Device& device, const Step& step, const StepPolicy& policy, StepShape& shape);

  bool moved_ = false;
  uint32_t max_tokens_ = 0, max_outputs_ = 0, n_slots_ = 0;
  uint64_t max_hidden_ = 0;
  std::vector<uint32_t> windows_;  // by layer group
  std::unique_ptr<Buffer> tokens_, ids_, positions_, row_sequence_, output_rows_, hidden_, slots_, sample_rows_,
      sample_data_;
  std::vector<std::unique_ptr<Buffer>> sequences_, tables_;  // by layer group
  std::vector<AttentionListBuffers> lists_;
  SampleStep sample_;
};

}  // namespace argent::metal
