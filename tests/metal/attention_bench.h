// Runs an attention kernel on a made-up step and cache, and compares with plain C++ in double.
#pragma once

#include <string>
#include <vector>

#include "graph/kv_type.h"
#include "metal/cases.h"

namespace argent::metal {

struct AttentionShape {
  uint32_t n_head = 1, n_head_kv = 1, d_head = 64, d_value = 64;
  struct Sequence {
    uint32_t length, n_rows;
  };
  std::vector<Sequence> sequences;
  KvType k = KvType::f16, v = KvType::f16;
  uint32_t window = 0;
  float softcap = 0;
  float size = 1;         // of queries; with large ones a few positions have all the weight
  bool opposite = false;  // keys point away from queries: all scores are so low that exp() of them is 0
  uint32_t max_splits = 4;
  uint32_t threads = 128;  // where they are free
  bool check = true;       // false: what is computed is only counted
};

// Kernel is any, decode or prefill; rows that the host would give to another one have to stay as they are. What is
// wrong, or nothing.
std::string run_attention(Device& device, const std::string& kernel, const AttentionShape& shape);

}  // namespace argent::metal
