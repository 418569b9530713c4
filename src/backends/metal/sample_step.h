// A step's sampling as the kernels read it (kernels/args_sample.h): parameters, rules and histories as plain data.
#pragma once

#include <cstdint>
#include <vector>

#include "backends/metal/kernels/args_sample.h"
#include "graph/graph.h"
#include "graph/step.h"

namespace argent::metal {

struct SampleStep {
  std::vector<SampleRow> rows;
  std::vector<uint32_t> data;  // never empty, so that it can be bound
  bool adjusts = false;        // some row has a rule or a penalty: without, adjust in place changes nothing
};

// Packs a step that check_step accepted; `rows` says which token rows the logits have. Vectors keep their memory from
// step to step.
void pack(const Step& step, Rows rows, uint32_t n_vocab, SampleStep& out);

// Threadgroups of a row of argmax_parts and top_k_parts, and of adjust.
constexpr uint32_t sample_parts(uint32_t n_vocab) { return (n_vocab + kSamplePart - 1) / kSamplePart; }
constexpr uint32_t adjust_tiles(uint32_t n_vocab) { return (n_vocab + kAdjustTile - 1) / kAdjustTile; }

// Scratch of argmax (8 bytes a part) and of top_k (4), for n_rows.
constexpr uint64_t sample_scratch_bytes(uint32_t n_rows, uint32_t n_vocab) {
  return uint64_t(n_rows) * sample_parts(n_vocab) * 8;
}

}  // namespace argent::metal
