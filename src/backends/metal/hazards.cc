#include "backends/metal/hazards.h"

#include <algorithm>

namespace argent::metal {
namespace {

struct Touched {
  const Buffer* buffer;
  size_t begin, end;
  uint32_t parts;
  bool overlaps(const Touched& o) const {
    const bool apart = parts && parts == o.parts;
    return buffer == o.buffer && begin < o.end && o.begin < end && !apart;
  }
};

bool any_overlap(const std::vector<Touched>& a, const std::vector<Touched>& b) {
  return std::any_of(a.begin(), a.end(), [&](const Touched& x) {
    return std::any_of(b.begin(), b.end(), [&](const Touched& y) { return x.overlaps(y); });
  });
}

}  // namespace

uint32_t set_barriers(CommandList& list) {
  std::vector<Touched> read, written;  // since the last barrier
  std::vector<Touched> reads, writes;  // of this dispatch
  uint32_t levels = list.dispatches.empty() ? 0 : 1;
  for (Dispatch& d : list.dispatches) {
    reads.clear(), writes.clear();
    for (const Dispatch::Bound& bound : d.buffers) {
      const size_t end = bound.size ? bound.offset + bound.size : bound.buffer->bytes().size();
      for (const Argument& a : d.pipeline->arguments())
        if (a.index == bound.index && a.kind != Argument::threadgroup)
          (a.written ? writes : reads).push_back({bound.buffer, bound.offset, end, bound.parts});
    }
    d.barrier = any_overlap(reads, written) || any_overlap(writes, written) || any_overlap(writes, read);
    if (d.barrier) {
      read.clear(), written.clear();
      ++levels;
    }
    read.insert(read.end(), reads.begin(), reads.end());
    written.insert(written.end(), writes.begin(), writes.end());
  }
  return levels;
}

}  // namespace argent::metal
