// Sets of Unicode scalar values. NUL and the surrogates are in none: no text that a model writes here holds them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace argent::grammar {

struct CharRange {
  uint32_t first;
  uint32_t last;  // inclusive
  bool operator==(const CharRange&) const = default;
};

inline constexpr uint32_t kMaxChar = 0x10ffff;

class CharSet {
 public:
  CharSet() = default;
  CharSet(std::initializer_list<CharRange> ranges) : ranges_(ranges) { tidy(); }
  static CharSet all() { return CharSet({{1, kMaxChar}}); }

  void add(uint32_t first, uint32_t last) {
    ranges_.push_back({first, last});
    tidy();
  }
  void add(const CharSet& other) {
    ranges_.insert(ranges_.end(), other.ranges_.begin(), other.ranges_.end());
    tidy();
  }
  CharSet complement() const {
    CharSet out;
    uint32_t next = 1;
    for (const CharRange& r : ranges_) {
      if (next < r.first) out.ranges_.push_back({next, r.first - 1});
      next = r.last + 1;
    }
    if (next <= kMaxChar) out.ranges_.push_back({next, kMaxChar});
    out.tidy();
    return out;
  }
  CharSet minus(const CharSet& other) const {
    CharSet out = complement();
    out.add(other);
    return out.complement();
  }
  bool contains(uint32_t c) const {
    auto it = std::upper_bound(ranges_.begin(), ranges_.end(), c,
                               [](uint32_t value, const CharRange& r) { return value < r.first; });
    return it != ranges_.begin() && c <= std::prev(it)->last;
  }
  bool empty() const { return ranges_.empty(); }
  const std::vector<CharRange>& ranges() const { return ranges_; }  // sorted, disjoint, not touching
  bool operator==(const CharSet&) const = default;

 private:
  void tidy() {
    std::vector<CharRange> split;
    for (CharRange r : ranges_) {
      r.first = std::max(r.first, 1u);
      r.last = std::min(r.last, kMaxChar);
      if (r.first < 0xd800 && r.first <= r.last) split.push_back({r.first, std::min(r.last, 0xd7ffu)});
      if (r.last > 0xdfff && r.first <= r.last) split.push_back({std::max(r.first, 0xe000u), r.last});
    }
    std::sort(split.begin(), split.end(), [](CharRange a, CharRange b) { return a.first < b.first; });
    ranges_.clear();
    for (CharRange r : split) {
      const bool touches = !ranges_.empty() && r.first <= ranges_.back().last + 1;
      if (touches)
        ranges_.back().last = std::max(ranges_.back().last, r.last);
      else
        ranges_.push_back(r);
    }
  }

  std::vector<CharRange> ranges_;
};

}  // namespace argent::grammar
