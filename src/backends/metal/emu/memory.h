// The sanitizer's view of memory: which bytes a dispatch may touch, which are initialised, and who touched each last.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "backends/metal/emu/finding.h"

namespace argent::emu {

// Who accesses, and in which intervals between barriers. Barriers of a threadgroup and of a SIMD-group are counted for
// threadgroup memory and for device memory apart, since mem_flags name one or the other.
struct Stamp {
  uint32_t dispatch;     // within the command list
  uint32_t threadgroup;  // within the dispatch
  uint16_t simdgroup;
  uint16_t thread;  // within the threadgroup, or kWhole
  bool atomic;
  uint32_t group_interval[2];  // [0] threadgroup memory, [1] device memory
  uint32_t simd_interval[2];
};
constexpr uint16_t kWhole = 0xffff;  // a simdgroup_matrix operation: all lanes at once

// Memory that is watched: a device buffer, or the threadgroup memory of the running threadgroup.
struct Region {
  uint8_t* base = nullptr;
  size_t size = 0;
  std::vector<uint8_t> known;    // one a byte, 1: initialised; empty: all are
  std::vector<uint32_t> shadow;  // three a byte: the last writer, two readers since; empty: nobody writes
  uint32_t generation = 0;       // of the shadow's stamps
};

// A range that the running dispatch may touch.
struct Range {
  uint8_t* base = nullptr;
  size_t size = 0;
  bool writable = false;
  bool threadgroup = false;
  uint8_t index = 0;         // of [[buffer(i)]] or [[threadgroup(i)]]
  uint8_t space = 0;         // for counting: 0 device, 1 constant, 2 threadgroup
  Region* region = nullptr;  // null: neither initialisation nor races are watched
};

class Memory {
 public:
  // Called with what is wrong; the text names neither kernel nor place.
  using Report = std::function<void(Fault, std::string)>;

  // Forgets all accesses: a barrier between dispatches, or another command list.
  void new_list();
  std::vector<Range> ranges;  // of the running dispatch

  uint32_t add_stamp(const Stamp& stamp);
  // A stamp of this number may still stand for an access.
  bool live(uint32_t stamp) const { return stamp >= first_; }

  // The range that holds an access, or null. Of ranges that overlap (an operation in place), one that allows it.
  const Range* find(const uint8_t* address, size_t size, bool write);
  // Checks constness, initialisation and races of an access that lies in `range`, and notes it. `stamp` is asked only
  // if needed.
  template <class MakeStamp>
  void access(const Range& range, const uint8_t* address, size_t size, bool write, MakeStamp&& stamp,
              const Report& report) {
    if (write && !range.writable) {
      report(Fault::write_to_const, describe(range, address, size, write) + ", which is read-only");
      return;
    }
    Region* region = range.region;
    if (!region) return;
    if (!region->known.empty()) initialise(range, address, size, write, report);
    if (!region->shadow.empty()) race(range, address, size, write, stamp(), report);
  }
  // "write of 4 bytes at offset 12 of buffer(3)"
  std::string describe(const Range& range, const uint8_t* address, size_t size, bool write) const;
  // The same for an address outside of all ranges: names the nearest.
  std::string describe_outside(const uint8_t* address, size_t size, bool write) const;

 private:
  void initialise(const Range& range, const uint8_t* address, size_t size, bool write, const Report& report);
  void race(const Range& range, const uint8_t* address, size_t size, bool write, uint32_t stamp, const Report& report);
  const Stamp& stamp_of(uint32_t number) const { return stamps_[number - first_]; }

  std::vector<Stamp> stamps_;
  uint32_t first_ = 1;  // number of stamps_[0]; 0 is nobody
  uint32_t generation_ = 1;
  size_t last_ = 0;  // range of the latest access
};

}  // namespace argent::emu
