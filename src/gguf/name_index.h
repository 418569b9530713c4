// Finds one of many names by binary search over their hashes, in 16 bytes a name. Names come from hostile files: equal
// hashes fall back to comparing the names, so crafted collisions cost O(n log n) where a hash table would cost O(n^2).
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

namespace argent::gguf {

class NameIndex {
 public:
  // Indexes name_of(0) to name_of(n - 1). Returns the higher position of a name that stands twice, if any.
  template <class NameOf>
  std::optional<uint32_t> build(uint32_t n, NameOf name_of) {
    slots_.resize(n);
    for (uint32_t i = 0; i < n; ++i) slots_[i] = {hash(name_of(i)), i};
    std::sort(slots_.begin(), slots_.end(), [&](const Slot& a, const Slot& b) {
      if (a.hash != b.hash) return a.hash < b.hash;
      if (const int order = name_of(a.position).compare(name_of(b.position))) return order < 0;
      return a.position < b.position;
    });
    for (uint32_t i = 1; i < n; ++i)
      if (slots_[i - 1].hash == slots_[i].hash && name_of(slots_[i - 1].position) == name_of(slots_[i].position))
        return slots_[i].position;
    return std::nullopt;
  }

  // The position of a name; name_of as given to build().
  template <class NameOf>
  std::optional<uint32_t> find(std::string_view name, NameOf name_of) const {
    const uint64_t h = hash(name);
    auto slot = std::lower_bound(slots_.begin(), slots_.end(), h, [&](const Slot& a, uint64_t value) {
      return a.hash < value || (a.hash == value && name_of(a.position) < name);
    });
    if (slot == slots_.end() || slot->hash != h || name_of(slot->position) != name) return std::nullopt;
    return slot->position;
  }

 private:
  struct Slot {
    uint64_t hash;
    uint32_t position;
  };
  static uint64_t hash(std::string_view name) { return std::hash<std::string_view>()(name); }

  std::vector<Slot> slots_;
};

}  // namespace argent::gguf
