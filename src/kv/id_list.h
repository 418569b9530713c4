// A list of small numbers in order of use: append, remove from anywhere, both O(1).
#pragma once

#include <cstdint>
#include <vector>

#include "kv/block_pool.h"

namespace argent::kv {

class IdList {
 public:
  // Requires that it is not in the list.
  void push_back(int32_t id) {
    if (size_t(id) + 2 > links_.size()) links_.resize(size_t(id) + 2);
    const int32_t at = id + 1, last = links_[0].prev;
    links_[at] = {last, 0};
    links_[last].next = at;
    links_[0].prev = at;
  }
  // Requires that it is in the list.
  void erase(int32_t id) {
    const Link link = links_[id + 1];
    links_[link.prev].next = link.next;
    links_[link.next].prev = link.prev;
  }
  int32_t front() const { return links_[0].next - 1; }  // kNone where it is empty
  int32_t back() const { return links_[0].prev - 1; }
  int32_t next(int32_t id) const { return links_[id + 1].next - 1; }  // kNone at the end
  int32_t prev(int32_t id) const { return links_[id + 1].prev - 1; }

 private:
  struct Link {
    int32_t prev = 0, next = 0;
  };
  std::vector<Link> links_{1};  // by id + 1; 0 is the end on both sides
};

}  // namespace argent::kv
