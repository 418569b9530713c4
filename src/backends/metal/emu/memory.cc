#include "backends/metal/emu/memory.h"

#include <fmt/format.h>

#include <cstdlib>
#include <cstring>

namespace argent::emu {

namespace {

// How far apart two accesses are that nothing orders: it names the fault.
enum Distance { same_simdgroup, same_threadgroup, same_dispatch, other_dispatch };

Distance distance(const Stamp& a, const Stamp& b) {
  if (a.dispatch != b.dispatch) return other_dispatch;
  if (a.threadgroup != b.threadgroup) return same_dispatch;
  return a.simdgroup == b.simdgroup ? same_simdgroup : same_threadgroup;
}

// No barrier orders the two, and they are not one thread's. `device` selects the intervals that count.
bool concurrent(const Stamp& a, const Stamp& b, int device) {
  if (a.dispatch != b.dispatch || a.threadgroup != b.threadgroup) return true;
  if (a.thread == b.thread && a.thread != kWhole) return false;
  if (a.group_interval[device] != b.group_interval[device]) return false;
  return a.simdgroup != b.simdgroup || a.simd_interval[device] == b.simd_interval[device];
}

bool conflict(const Stamp& a, const Stamp& b, int device) {
  return !(a.atomic && b.atomic) && concurrent(a, b, device);
}

std::string who(const Stamp& stamp) {
  if (stamp.thread == kWhole) {
    return fmt::format("SIMD-group {} of threadgroup {} (a matrix operation)", stamp.simdgroup, stamp.threadgroup);
  }
  return fmt::format("thread {} of threadgroup {}", stamp.thread, stamp.threadgroup);
}

}  // namespace

void Memory::new_list() {
  first_ += uint32_t(stamps_.size());
  stamps_.clear();
  if (first_ > UINT32_MAX / 2) {
    first_ = 1;
    generation_++;
  }
}

uint32_t Memory::add_stamp(const Stamp& stamp) {
  stamps_.push_back(stamp);
  return first_ + uint32_t(stamps_.size()) - 1;
}

const Range* Memory::find(const uint8_t* address, size_t size, bool write) {
  auto inside = [&](const Range& r) { return address >= r.base && address + size <= r.base + r.size; };
  auto allows = [&](const Range& r) { return inside(r) && (r.writable || !write); };
  if (last_ < ranges.size() && allows(ranges[last_])) return &ranges[last_];
  const Range* refused = nullptr;
  for (size_t i = 0; i < ranges.size(); i++) {
    if (allows(ranges[i])) {
      last_ = i;
      return &ranges[i];
    }
    if (inside(ranges[i])) refused = &ranges[i];
  }
  return refused;
}

std::string Memory::describe(const Range& range, const uint8_t* address, size_t size, bool write) const {
  return fmt::format("{} of {} bytes at offset {} of {}({})", write ? "write" : "read", size, address - range.base,
                     range.threadgroup ? "threadgroup" : "buffer", range.index);
}

std::string Memory::describe_outside(const uint8_t* address, size_t size, bool write) const {
  const Range* nearest = nullptr;
  int64_t best = 1 << 20;
  for (const Range& range : ranges) {
    const int64_t offset = address - range.base;
    const int64_t away = offset < 0 ? -offset : offset - int64_t(range.size);
    if (std::llabs(away) >= best) continue;
    best = std::llabs(away);
    nearest = &range;
  }
  if (!nearest) {
    return fmt::format("{} of {} bytes at an address that is in no argument", write ? "write" : "read", size);
  }
  return fmt::format("{}, which has {}", describe(*nearest, address, size, write), nearest->size);
}

void Memory::initialise(const Range& range, const uint8_t* address, size_t size, bool write, const Report& report) {
  uint8_t* known = range.region->known.data() + (address - range.region->base);
  if (!write && std::memchr(known, 0, size)) {
    report(Fault::uninitialised, describe(range, address, size, write) + ", bytes that nobody wrote");
  }
  if (write) std::memset(known, 1, size);
}

void Memory::race(const Range& range, const uint8_t* address, size_t size, bool write, uint32_t number,
                  const Report& report) {
  Region& region = *range.region;
  if (region.generation != generation_) {
    std::fill(region.shadow.begin(), region.shadow.end(), 0);
    region.generation = generation_;
  }
  const Stamp me = stamp_of(number);
  const int device = !range.threadgroup;
  // Threadgroup memory is another one in each threadgroup; the emulator only keeps it in the same place.
  auto present = [&](uint32_t other) {
    return live(other) &&
           (device || (stamp_of(other).threadgroup == me.threadgroup && stamp_of(other).dispatch == me.dispatch));
  };
  auto clash = [&](uint32_t other) {
    return other != number && present(other) && conflict(stamp_of(other), me, device);
  };
  uint32_t* cell = region.shadow.data() + 3 * (address - region.base);
  for (size_t i = 0; i < size; i++, cell += 3) {
    uint32_t other = clash(cell[0]) ? cell[0] : 0;
    const bool other_wrote = other != 0;
    if (!other && write) other = clash(cell[1]) ? cell[1] : clash(cell[2]) ? cell[2] : 0;
    if (other) {
      const Stamp& them = stamp_of(other);
      const Distance far = distance(me, them);
      const bool scope = far <= same_threadgroup && !concurrent(them, me, !device);
      const Fault fault = far == other_dispatch  ? Fault::race_of_dispatches
                          : far == same_dispatch ? Fault::race_of_threadgroups
                          : scope                ? Fault::wrong_scope
                                                 : Fault::race;
      report(fault, fmt::format("{} by {} and {} by {}{}{}", describe(range, address, size, write), who(me),
                                other_wrote ? "write" : "read", who(them),
                                far == other_dispatch ? fmt::format(" of dispatch {} of the list", them.dispatch) : "",
                                far == other_dispatch  ? ", without a barrier between the dispatches"
                                : far == same_dispatch ? ": threadgroups are not ordered"
                                : scope ? fmt::format(": the barrier between them does not name {} memory",
                                                      device ? "device" : "threadgroup")
                                        : ", without a barrier between"));
    }
    if (write) {
      cell[0] = number;
    } else if (cell[1] != number && cell[2] != number) {
      // Two readers are enough, the first ones that nothing orders before this one: dispatches, threadgroups and
      // SIMD-groups run one after the other up to barriers that order them, so who conflicts with a later reader
      // conflicts with one of these. Two, because the writer may be one of them; and plain ones, which atomic writers
      // conflict with as well.
      auto kept = [&](uint32_t reader) {
        return present(reader) && concurrent(stamp_of(reader), me, device) && (me.atomic || !stamp_of(reader).atomic);
      };
      if (!kept(cell[1])) {
        cell[1] = number;
      } else if (!kept(cell[2])) {
        cell[2] = number;
      }
    }
  }
}

}  // namespace argent::emu
