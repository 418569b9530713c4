// What kernels read of a step: plain data that the host writes before each step (step_buffers.h), the same for the host
// and the kernels. A buffer each:
//
//   tokens, positions, row_sequence   i32, i32, u32 [n_tokens];   output_rows   u32 [n_outputs]
//   of each layer group               KvSequence [n_sequences];   its block tables, i32, one after the other
#pragma once

#if defined(__METAL_VERSION__)
#include <metal_stdlib>
#else
#include <cstdint>
#endif

namespace argent {

enum : uint32_t { kKvPositions = 32 };  // of a block, as kKvBlockTokens in backends/backend.h

// One sequence's rows of a step, for one layer group.
struct KvSequence {
  uint32_t first_row;  // its rows are neighbours, in order of position
  uint32_t n_rows;
  uint32_t length;  // positions in the cache before the step: row r is at position length + r - first_row
  uint32_t table;   // its block table begins at this entry of the group's tables
};
static_assert(sizeof(KvSequence) == 16, "the same for all compilers");

}  // namespace argent
