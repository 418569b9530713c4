// How values lie in an arena.
#pragma once

#include "graph/graph.h"

namespace argent {

// Bytes of a row of an activation; rows lie one after the other. A list of candidates has its length in front
// (sample/rules.h).
inline uint64_t activation_row_bytes(const Value& v) {
  return v.dtype == DType::candidates ? 8 * uint64_t(v.width) + 8 : 4 * uint64_t(v.width);
}

}  // namespace argent
