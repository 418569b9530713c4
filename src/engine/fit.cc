#include "engine/fit.h"

#include <algorithm>
#include <numeric>

#include "base/checked.h"

namespace argent {
namespace {

// Do these bytes fit? A sum beyond 64 bits does not.
bool fits(uint64_t free, std::initializer_list<uint64_t> bytes) {
  std::optional<uint64_t> sum = 0;
  for (const uint64_t b : bytes)
    if (sum) sum = checked_add(*sum, b);
  return free == 0 || (sum && *sum <= free);
}

uint64_t sum_of(const std::vector<uint64_t>& bytes, size_t first, size_t end) {
  uint64_t sum = 0;
  for (size_t i = first; i < end; ++i) sum = checked_add(sum, bytes[i]).value_or(UINT64_MAX);
  return sum;
}

}  // namespace

Fit fit_layers(const FitSizes& s) {
  const size_t n = s.layer_bytes.size();
  for (const FitSizes::Context& c : s.contexts) {
    if (c.n_ctx < kFitContext && &c != &s.contexts.front()) break;
    if (fits(s.device_free, {s.model_bytes, sum_of(c.kv_bytes, 0, n), s.workspace_bytes, s.reserve_bytes}))
      return {true, uint32_t(n), c.n_ctx};
  }
  for (const FitSizes::Context& c : s.contexts)
    for (size_t k = n; k > 0; --k) {
      const bool device = fits(s.device_free, {s.head_bytes, sum_of(s.layer_bytes, n - k, n),
                                               sum_of(c.kv_bytes, n - k, n), s.workspace_bytes, s.reserve_bytes});
      if (!device) continue;
      if (fits(s.host_free, {sum_of(c.kv_bytes, 0, n - k), s.workspace_bytes, s.reserve_bytes}))
        return {false, uint32_t(k), c.n_ctx};
      break;  // fewer on the device are more on the host
    }
  return {false, 0, s.contexts.empty() ? 0 : s.contexts.back().n_ctx};
}

}  // namespace argent
