#include "graph/kv_layout.h"

#include <algorithm>

namespace argent {

KvLayout kv_layout(const Graph& graph) {
  KvLayout layout;
  for (const Value& v : graph.values) {
    if (v.kind != ValueKind::state) continue;
    auto it = std::find(layout.windows.begin(), layout.windows.end(), v.kv.window);
    if (it == layout.windows.end()) it = layout.windows.insert(it, v.kv.window);
    layout.group_of_layer.push_back(uint32_t(it - layout.windows.begin()));
    layout.layers.push_back(v.kv);
  }
  return layout;
}

Status check_kv_types(const KvLayout& layout, KvType k, KvType v) {
  for (const KvSpec& layer : layout.layers)
    for (const auto& [what, type, width] : {std::tuple("K", k, layer.d_head), std::tuple("V", v, layer.d_value)})
      if (type == KvType::q8_0 && width % kKvGroup)
        return fail(
            Code::unsupported,
            "the {} cache cannot be q8_0: heads have {} elements, no multiple of {}; f16, bf16 and f32 take any", what,
            width, kKvGroup);
  return {};
}

}  // namespace argent
