// The seam between the program and its CUDA part, libargent_cuda.so (docs/decisions/0017-cuda-part.md). The part is
// built with the program, takes the rooms' functions from it, and gives one C function whose table is all that the
// program calls.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "backends/backend.h"

namespace argent::cuda {

// Messages say what is missing, without a device's name in front.
struct Part {
  // unsupported: no driver, one too old, no device, an index out of range, or a device that the build has no code for.
  Result<std::unique_ptr<Backend>> (*make_backend)(const BackendOptions& options);
  // unsupported: no driver, one too old, or no device.
  Result<std::vector<DeviceListing>> (*list_devices)();
};

inline constexpr char kPartFile[] = "libargent_cuda.so";
inline constexpr char kPartEntry[] = "argent_cuda_part";
// What CMake makes of the headers that both sides share, the compiler and its flags; 0: a build without the part.
inline constexpr uint32_t kPartVersion = ARGENT_CUDA_PART_VERSION;

// kPartEntry. Null: the part is of another build than the program that has this version.
using PartEntry = const Part*(uint32_t version);

// True where code for one of the architectures runs on a device of this compute capability. archs: as nvcc names them,
// with commas between: "80,90a,100"; those with an "a" run on their own capability alone, others on later minor
// versions too, and the last, if it is 90 or later and has no "a", on everything later, by its PTX (compute_80's would
// lack the waits of dependent launches where launches are dependent).
constexpr bool runs_on(std::string_view archs, uint32_t major, uint32_t minor) {
  const uint32_t device = 10 * major + minor;
  uint32_t arch = 0;
  for (size_t i = 0; i <= archs.size(); ++i) {
    const char c = i < archs.size() ? archs[i] : ',';
    if (c >= '0' && c <= '9') {
      arch = 10 * arch + uint32_t(c - '0');
    } else if (c == 'a') {
      if (arch == device) return true;
      arch = UINT32_MAX;  // what follows is no number
    } else {
      const bool last = i == archs.size();
      if (arch != UINT32_MAX && arch <= device && (arch / 10 == major || (last && arch >= 90))) return true;
      arch = 0;
    }
  }
  return false;
}

}  // namespace argent::cuda
