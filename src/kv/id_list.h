// A list of small numbers in order of use: append, remove from anywhere, both O(1).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kv/block_pool.h"

namespace argent::kv {

// Room for n elements in all, growing as push_back() does: what is put there later finds its memory.
template <class T>
void make_room(std::vector<T>& v, size_t n) {
  if (v.capacity() < n) v.reserve(std::max(n, 2 * v.capacity()));
}

class IdList {
 public:
  // Makes room for the numbers below n: push_back() takes no memory for them.
  void make_room(int32_t n) {
    if (size_t(n) + 1 > links_.size()) links_.resize(size_t(n) + 1);
  }
  // Requires that it is not in the list.
  void push_back(int32_t id) {
    make_room(id + 1);
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
