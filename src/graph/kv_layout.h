// Layer groups: layers that see the same window share block tables (see kv/kv.h).
#pragma once

#include "base/result.h"
#include "graph/graph.h"
#include "graph/kv_type.h"

namespace argent {

struct KvLayout {
  std::vector<uint32_t> windows;         // by group; 0 = full attention
  std::vector<uint32_t> group_of_layer;  // by layer
  std::vector<KvSpec> layers;            // by layer
};

// From the states of a graph, in order of first use.
KvLayout kv_layout(const Graph& graph);

// unsupported: heads of a layer cannot be stored as these types.
Status check_kv_types(const KvLayout& layout, KvType k, KvType v);

}  // namespace argent
