// The Metal backend on the emulator, as tests use it.
#pragma once

#include "backends/metal/backend.h"
#include "backends/metal/emu/device.h"

namespace argent::metal {

inline Result<std::unique_ptr<Backend>> make_emu(const BackendOptions& options, const emu::Options& emulator = {},
                                                 std::string_view without = "") {
  emu::Options own = emulator;
  own.count = false;
  return make_backend(options, "metal-emu", std::make_unique<emu::EmuDevice>(own), without);
}

}  // namespace argent::metal
