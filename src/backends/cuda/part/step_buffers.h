// What kernels read of a step: one block of device memory, written here into pinned memory and copied as a whole. Where
// its parts are depends on the step's shape alone, so that what was captured for a shape serves every step of it.
#pragma once

#include <array>
#include <vector>

#include "backends/cuda/part/attention_work.h"
#include "backends/cuda/part/device.h"
#include "graph/kv_layout.h"
#include "graph/plan.h"
#include "graph/step.h"
#include "sample/device_step.h"

namespace argent::cuda {

// Steps of up to so many rows are captured as CUDA graphs, so that rooms for their lists are few; longer ones hide what
// launching takes.
inline constexpr uint32_t kCapturedRows = 64;

// Lists of attention that nodes of a plan read: of a layer group, for all rows or for those that want logits.
struct AttentionList {
  uint32_t group = 0;
  Rows rows = Rows::tokens;
  bool fast = false;  // attention_is_fast
  uint32_t ctas = 1;  // attention_ctas
  bool operator==(const AttentionList&) const = default;
};

// What the step's data is made of, for a plan.
struct StepPolicy {
  std::vector<AttentionList> lists;
  uint32_t n_vocab = 0;  // of its sampling; 0: it has none
};

// Room for the entries of lists, 0 where there are none: powers of two in steps that are captured.
struct ListShape {
  uint32_t items = 0, rows = 0, tiles = 0;
  bool operator==(const ListShape&) const = default;
};

// All that the launches of a step depend on beside its plan and where buffers are.
struct StepShape {
  uint32_t n_tokens = 0, n_outputs = 0;
  bool resolves = false;         // some row's token is still in a slot
  bool adjusts = false;          // some row has rules or penalties
  uint32_t n_tables = 0;         // room for entries of block tables: a power of two
  uint32_t n_hidden = 0;         // elements of Step::hidden
  uint32_t n_data = 0;           // room for words of sampling data: a power of two; 0: the plan does not sample
  std::vector<ListShape> lists;  // as StepPolicy has them
  bool operator==(const StepShape&) const = default;
};

// Where the parts of a step's block begin, in bytes; each is aligned to 16.
struct StepLayout {
  struct List {
    uint64_t counts = 0, items = 0, rows = 0, tiles = 0;
  };
  uint64_t tokens = 0, positions = 0, row_sequence = 0, output_rows = 0, sample_rows = 0, data = 0;
  std::vector<uint64_t> sequences;  // by layer group
  std::vector<List> lists;
  uint64_t hidden = 0;
  uint64_t tables = 0;  // of all groups: the last of what is copied
  uint64_t ids = 0;     // tokens, those in slots resolved: written on the device
  uint64_t end = 0;
};
StepLayout step_layout(const StepShape& shape, size_t n_groups);

class StepBuffers {
 public:
  static constexpr uint32_t kSteps = 2;  // steps that may be on their way: each has pinned memory of its own

  void set_layout(const KvLayout& layout) { windows_ = layout.windows; }

  // Writes a step that check_step accepted into pinned memory `at`, which no copy reads any more, and makes room on the
  // device.
  Status write(Device& device, const Step& step, const StepPolicy& policy, uint32_t at);
  // Copies it to the device, in the order of the stream.
  Status send(Device& device, uint32_t at);
  // What steps of a plan take on the device, but for long block tables.
  static uint64_t bytes(const PlanKey& key, size_t n_groups);
  // Changes whenever something on the device has moved: launches that were captured before are void.
  uint64_t generation() const { return generation_; }

  // Of the step that was written last.
  const StepShape& shape() const { return shape_; }
  const StepLayout& layout() const { return layout_; }
  // Of all its lists, by StepPolicy: partial results that its attention may have.
  const std::vector<uint32_t>& n_slots_of_lists() const { return n_partial_; }

  const uint8_t* block() const { return block_.data(); }
  int32_t* ids() const { return reinterpret_cast<int32_t*>(block_.data() + layout_.ids); }
  int32_t* slots() const { return reinterpret_cast<int32_t*>(slots_.data()); }
  uint32_t n_slots() const { return n_slots_; }
  template <class T>
  const T* part(uint64_t offset) const {
    return reinterpret_cast<const T*>(block_.data() + offset);
  }

 private:
  Status make_slots(Device& device, uint32_t n_slots);

  std::vector<uint32_t> windows_;  // by layer group
  Memory block_, slots_;
  std::array<Memory, kSteps> pinned_;
  uint32_t n_slots_ = 0;
  uint64_t generation_ = 0, n_bytes_ = 0;  // n_bytes_: to be copied
  StepShape shape_;
  StepLayout layout_;
  // Kept from step to step for their memory.
  sample::DeviceStep sample_;
  std::vector<std::vector<KvSequence>> sequences_;
  std::vector<int32_t> tables_;
  std::vector<AttentionLists> lists_;
  std::vector<uint32_t> n_partial_;
};

}  // namespace argent::cuda
