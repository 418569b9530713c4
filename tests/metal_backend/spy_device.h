// An emulated device that remembers what was submitted.
#pragma once

#include "backends/metal/emu/device.h"

namespace argent::metal {

class SpyDevice : public emu::EmuDevice {
 public:
  struct Log {
    std::vector<CommandList> lists;
  };
  explicit SpyDevice(Log* log) : EmuDevice({.count = false}), log_(log) {}
  Status submit(const CommandList& list) override {
    log_->lists.push_back(list);
    return EmuDevice::submit(list);
  }

 private:
  Log* log_;
};

// Runs of dispatches without a barrier: what follows one another on a GPU.
inline uint32_t levels(const CommandList& list) {
  uint32_t n = list.dispatches.empty() ? 0 : 1;
  for (const Dispatch& d : list.dispatches) n += d.barrier;
  return n;
}

}  // namespace argent::metal
