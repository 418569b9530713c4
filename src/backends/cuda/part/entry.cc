// What the program calls in libargent_cuda.so: the devices of this machine, and a backend on one of them.
#include <cuda_runtime_api.h>

#include "backends/cuda/part.h"
#include "backends/cuda/part/backend.h"
#include "backends/cuda/part/device.h"

namespace argent::cuda {
namespace {

constexpr std::string_view kArchs = ARGENT_CUDA_ARCHS;

std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

// How many devices there are, at least one.
Result<uint32_t> count_devices() {
  int driver = 0, n = 0;
  // 0: the runtime found no libcuda.so.1.
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
    cudaGetLastError();
    return fail(Code::unsupported, "no NVIDIA driver");
  }
  const cudaError_t error = cudaGetDeviceCount(&n);
  cudaGetLastError();  // the error is told here; later calls begin without it
  if (error == cudaErrorInsufficientDriver)
    return fail(Code::unsupported, "the NVIDIA driver is for CUDA {} at most, wanted {}", version_text(driver),
                version_text(CUDART_VERSION));
  if (error == cudaErrorNoDevice || (error == cudaSuccess && n <= 0))
    return fail(Code::unsupported, "no NVIDIA device");
  if (error != cudaSuccess)
    return fail(Code::unsupported, "the NVIDIA driver does not start: {}", cudaGetErrorString(error));
  return uint32_t(n);
}

Result<cudaDeviceProp> properties(uint32_t index) {
  cudaDeviceProp p = {};
  if (const cudaError_t error = cudaGetDeviceProperties(&p, int(index)); error != cudaSuccess) {
    cudaGetLastError();
    return fail(Code::unsupported, "device {} tells nothing of itself: {}", index, cudaGetErrorString(error));
  }
  return p;
}

std::string description_of(const cudaDeviceProp& p) {
  return fmt::format("{}, compute capability {}.{}", p.name, p.major, p.minor);
}

Result<std::vector<DeviceListing>> list_devices() {
  ARGENT_LET(const uint32_t n, count_devices());
  std::vector<DeviceListing> devices;
  int before = 0;
  cudaGetDevice(&before);
  for (uint32_t i = 0; i < n; ++i) {
    ARGENT_LET(const cudaDeviceProp p, properties(i));
    DeviceListing d{fmt::format("cuda:{}", i), description_of(p), p.totalGlobalMem, 0};
    if (!runs_on(kArchs, uint32_t(p.major), uint32_t(p.minor)))
      d.description += fmt::format("; not usable: this build is for {}", kArchs);
    else if (const std::string why = unusable(p); !why.empty())
      d.description += "; not usable: " + why;
    size_t free = 0, total = 0;
    if (cudaSetDevice(int(i)) == cudaSuccess && cudaMemGetInfo(&free, &total) == cudaSuccess)
      d.memory_free = free;
    else
      cudaGetLastError();  // in use by one process alone: listed, with nothing free
    devices.push_back(std::move(d));
  }
  cudaSetDevice(before);
  return devices;
}

Result<std::unique_ptr<Backend>> make(const BackendOptions& options) {
  ARGENT_LET(const uint32_t n, count_devices());
  if (options.index >= n)
    return fail(Code::unsupported, "there {} cuda:0{}", n == 1 ? "is" : "are",
                n == 1 ? " alone" : fmt::format(" to cuda:{}", n - 1));
  ARGENT_LET(const cudaDeviceProp p, properties(options.index));
  if (!runs_on(kArchs, uint32_t(p.major), uint32_t(p.minor)))
    return fail(Code::unsupported, "{}: this build is for compute capabilities {} (CMake's ARGENT_CUDA_ARCHS)",
                description_of(p), kArchs);
  return make_backend(options);
}

constexpr Part kPart = {make, list_devices};

}  // namespace
}  // namespace argent::cuda

extern "C" __attribute__((visibility("default"))) const argent::cuda::Part* argent_cuda_part(uint32_t version) {
  return version == argent::cuda::kPartVersion ? &argent::cuda::kPart : nullptr;
}
