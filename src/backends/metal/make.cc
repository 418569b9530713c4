// Which devices this build can open.
#include <filesystem>

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
namespace {

// Compiled pipelines for the next start; empty where no folder is known.
[[maybe_unused]] std::string pipeline_archive() {
  std::string cache = environment("XDG_CACHE_HOME");
  if (const std::string home = environment("HOME"); cache.empty() && !home.empty()) cache = home + "/.cache";
  if (cache.empty()) return "";
  std::error_code ignored;  // without the folder there is no archive, and the start is slower
  std::filesystem::create_directories(cache + "/argent", ignored);
  return cache + "/argent/metal.pipelines";
}

}  // namespace

Result<std::unique_ptr<Backend>> make_metal_backend(const BackendOptions& options) {
#ifdef __APPLE__
  metal::MetalOptions own;
  own.archive = pipeline_archive();
  own.regions = environment("MTL_CAPTURE_ENABLED") == "1";  // Metal's own: the program is to be looked at
  ARGENT_LET(std::unique_ptr<metal::MetalDevice> device, metal::MetalDevice::open(own));
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
