// The Metal backend: plans as command lists for a metal::Device, which is an Apple GPU or the emulator.
#pragma once

#include "backends/backend.h"
#include "backends/metal/device.h"

namespace argent::metal {

// name: as in --device. without: kernel families and fused ops to leave out, by name, with commas between; invalid: a
// name that is not there.
Result<std::unique_ptr<Backend>> make_backend(const BackendOptions& options, std::string name,
                                              std::unique_ptr<Device> device, std::string_view without = "");

}  // namespace argent::metal
