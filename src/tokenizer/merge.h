// The loop that byte-level BPE and SentencePiece have in common: of all pairs of neighbouring symbols, join the one of
// the lowest order, the leftmost of equals, until no pair can be joined. n log n in the number of symbols, no
// recursion.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

namespace argent {

inline constexpr uint32_t kNoPair = UINT32_MAX;  // the order of symbols that can not be joined
inline constexpr uint32_t kNoSymbol = UINT32_MAX;

struct Symbol {
  uint32_t prev, next;  // kNoSymbol at the ends
  uint32_t order;       // of this symbol and the next
  uint32_t value;       // what the symbol is, in the terms of the caller
};

struct MergeScratch {
  std::vector<Symbol> symbols;
  std::vector<uint64_t> heap;
};

// The caller has set `value` of scratch.symbols; the links are made here. order(symbol, next) gives the order of a
// pair; join(symbol, next) makes the value of `symbol` that of both. Symbol 0 stays the first of the list that is left.
//
// The heap holds order << 32 | position, which is exactly the order of joining. An entry counts if it agrees with the
// present order of its position: what became of the pair it was made for does not matter.
template <class Order, class Join>
void merge_symbols(MergeScratch& scratch, Order order, Join join) {
  auto& symbols = scratch.symbols;
  auto& heap = scratch.heap;
  const uint32_t n = symbols.size();
  constexpr auto later = std::greater<uint64_t>();
  heap.clear();
  // Live entries get fewer with each join and outdated ones are swept out when this is full, a quarter of it at least:
  // the memory stays at 26 bytes a symbol.
  heap.reserve(n + n / 4 + 16);
  for (uint32_t i = 0; i < n; ++i) {
    symbols[i].prev = i == 0 ? kNoSymbol : i - 1;
    symbols[i].next = i + 1 == n ? kNoSymbol : i + 1;
  }
  for (uint32_t i = 0; i < n; ++i) {
    Symbol& s = symbols[i];
    s.order = i + 1 == n ? kNoPair : order(s, symbols[i + 1]);
    if (s.order != kNoPair) heap.push_back(uint64_t(s.order) << 32 | i);
  }
  std::make_heap(heap.begin(), heap.end(), later);

  auto renew = [&](uint32_t i) {
    Symbol& s = symbols[i];
    s.order = s.next == kNoSymbol ? kNoPair : order(s, symbols[s.next]);
    if (s.order == kNoPair) return;
    if (heap.size() == heap.capacity()) {
      std::erase_if(heap, [&](uint64_t entry) { return symbols[uint32_t(entry)].order != entry >> 32; });
      std::make_heap(heap.begin(), heap.end(), later);
    }
    heap.push_back(uint64_t(s.order) << 32 | i);
    std::push_heap(heap.begin(), heap.end(), later);
  };
  while (!heap.empty()) {
    const uint64_t top = heap.front();
    std::pop_heap(heap.begin(), heap.end(), later);
    heap.pop_back();
    const uint32_t i = uint32_t(top);
    Symbol& s = symbols[i];
    if (s.order != top >> 32) continue;
    Symbol& right = symbols[s.next];
    join(s, right);
    s.next = right.next;
    if (s.next != kNoSymbol) symbols[s.next].prev = i;
    right.order = kNoPair;
    renew(i);
    if (s.prev != kNoSymbol) renew(s.prev);
  }
}

}  // namespace argent
