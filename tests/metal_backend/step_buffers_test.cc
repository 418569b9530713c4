// What a step writes for the kernels.
#include "backends/metal/step_buffers.h"

#include <gtest/gtest.h>

#include "metal_backend/emu_backend.h"

namespace argent::metal {
namespace {

// Work lists are made where the plan's attention reads them, and nowhere else: a prompt that wants the logits of two
// rows, with sliding and full layers.
TEST(StepBuffers, ListsThatAPlanReads) {
  const KvSpec full{0, 1, 64, 64, 0}, sliding{1, 1, 64, 64, 16};
  const KvLayout layout{{0, 16}, {0, 1}, {full, sliding}};
  const std::vector<int32_t> table = {0, 1};
  Step step;
  StepSequence sequence{.n_rows = 12, .tables = {table, table}};
  for (int32_t i = 0; i < 12; ++i) {
    step.tokens.push_back(i);
    step.positions.push_back(i);
    step.row_sequence.push_back(0);
  }
  step.sequences.push_back(sequence);
  step.output_rows = {10, 11};
  for (const uint32_t used_group : {0u, 1u})
    for (const Rows used_rows : {Rows::tokens, Rows::outputs})
      for (const bool used_fast : {false, true}) {
        emu::EmuDevice device;
        StepBuffers buffers;
        ASSERT_TRUE(buffers.fit(device, layout, 16, 4));
        StepPolicy policy{.max_tokens = 16, .max_outputs = 4, .lists = std::vector<bool>(buffers.n_lists())};
        policy.lists[buffers.lists_of(used_rows, used_group, used_fast)] = true;
        StepShape shape;
        ASSERT_TRUE(buffers.write(device, step, policy, shape));
        ASSERT_EQ(shape.attention.size(), buffers.n_lists());
        for (const uint32_t group : {0u, 1u})
          for (const Rows rows : {Rows::tokens, Rows::outputs})
            for (const bool fast : {false, true}) {
              AttentionShape want;  // of what nobody reads: nothing
              if (group == used_group && rows == used_rows && fast == used_fast) {
                want.decode = rows == Rows::outputs ? 2 : fast ? 0 : 16;  // powers of two
                want.prefill = rows == Rows::tokens && fast;
              }
              EXPECT_EQ(shape.attention[buffers.lists_of(rows, group, fast)], want)
                  << used_group << int(used_rows) << used_fast << " " << group << int(rows) << fast;
            }
      }
}

}  // namespace
}  // namespace argent::metal
