// Which devices this build can open.
#include "backends/backend.h"
#include "backends/metal/backend.h"
#include "base/switches.h"
#ifdef __APPLE__
#include "backends/metal/apple/metal_device.h"
#endif
#ifdef ARGENT_METAL_EMU
#include "backends/metal/emu/device.h"
#endif

namespace argent {

Result<std::unique_ptr<Backend>> make_metal_backend(const BackendOptions& options) {
#ifdef __APPLE__
  ARGENT_LET(std::unique_ptr<metal::MetalDevice> device, metal::MetalDevice::open({}));
  return metal::make_backend(options, "metal", std::move(device), switch_text(Switch::metal_without));
#else
  (void)options;
  return fail(Code::unsupported, "--device metal: Apple's GPUs are on Macs only; this is none");
#endif
}

Result<std::unique_ptr<Backend>> make_metal_emu_backend(const BackendOptions& options) {
#ifdef ARGENT_METAL_EMU
  emu::Options emulator;
  emulator.count = false;
  return metal::make_backend(options, "metal-emu", std::make_unique<emu::EmuDevice>(emulator),
                             switch_text(Switch::metal_without));
#else
  (void)options;
  return fail(Code::unsupported,
              "--device metal-emu: the emulator is part of builds with tests, by g++ on x86-64 Linux; this is none");
#endif
}

}  // namespace argent
