// What kernels read of a step, in buffers that stay where they are from step to step, so that command lists can be used
// again.
#pragma once

#include <memory>
#include <vector>

#include "backends/metal/device.h"
#include "backends/metal/kernels/args_step.h"
#include "graph/kv_layout.h"
#include "graph/step.h"

namespace argent::metal {

// All that a command list depends on beside its plan.
struct StepShape {
  uint32_t n_tokens = 0, n_outputs = 0;
  bool operator==(const StepShape&) const = default;
};

class StepBuffers {
 public:
  // Makes room for steps of up to so many rows, beside those of earlier calls. Buffers may move.
  Status fit(Device& device, const KvLayout& layout, uint32_t max_tokens, uint32_t max_outputs);
  // Writes a step; the device is idle. True in `moved`: a buffer grew, so lists that name it are void.
  Status write(Device& device, const Step& step, StepShape& shape, bool& moved);

  const Buffer& tokens() const { return *tokens_; }
  const Buffer& positions() const { return *positions_; }
  const Buffer& row_sequence() const { return *row_sequence_; }
  const Buffer& output_rows() const { return *output_rows_; }
  const Buffer& sequences(uint32_t group) const { return *sequences_[group]; }
  const Buffer& tables(uint32_t group) const { return *tables_[group]; }

 private:
  uint32_t max_tokens_ = 0, max_outputs_ = 0;
  std::unique_ptr<Buffer> tokens_, positions_, row_sequence_, output_rows_;
  std::vector<std::unique_ptr<Buffer>> sequences_, tables_;  // by layer group
};

}  // namespace argent::metal
