// The cases of the kernels on an NVIDIA GPU: the same text, compiled by nvcc (tools/metal/build_cuda.sh).
//
//   cuda_main [WORD]   all cases, or those whose name contains the word
#include <fmt/format.h>

#include "metal/cases.h"
#include "metal/cuda_device.h"

int main(int argc, char** argv) {
  const std::string_view word = argc > 1 ? argv[1] : "";
  argent::metal::CudaDevice device;
  int passed = 0, failed = 0;
  for (const argent::metal::Case& c : argent::metal::all_cases()) {
    if (c.name.find(word) == std::string::npos) continue;
    const std::string wrong = c.run(device);
    fmt::print("{}  {}{}{}\n", wrong.empty() ? "ok  " : "FAIL", c.name, wrong.empty() ? "" : ": ", wrong);
    ++(wrong.empty() ? passed : failed);
  }
  fmt::print("{} passed, {} failed\n", passed, failed);
  return failed != 0 || passed == 0;
}
