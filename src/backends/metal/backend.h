// The Metal backend: plans as command lists for a metal::Device, which is an Apple GPU or the emulator.
#pragma once

#include "backends/backend.h"
#include "backends/metal/device.h"

namespace argent::metal {

// name: as in --device.
Result<std::unique_ptr<Backend>> make_backend(const BackendOptions& options, std::string name,
                                              std::unique_ptr<Device> device);

}  // namespace argent::metal
