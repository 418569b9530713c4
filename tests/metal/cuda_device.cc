#include "metal/cuda_device.h"

#include <cuda_runtime.h>
#include <fmt/format.h>

#include "backends/metal/shim/cuda/launch.h"

namespace argent_cuda {
namespace {
std::vector<const Library*>& libraries() {
  static std::vector<const Library*> all;
  return all;
}
}  // namespace
int add_library(const Library* library) {
  libraries().push_back(library);
  return 0;
}
}  // namespace argent_cuda

namespace argent::metal {

namespace {

using argent_cuda::Kernel;
using argent_cuda::Library;
using argent_cuda::Parameter;

Status checked(cudaError_t error, std::string_view what) {
  if (error == cudaSuccess) return {};
  return fail(Code::internal, "CUDA: {}: {}", what, cudaGetErrorString(error));
}

class CudaBuffer : public Buffer {
 public:
  CudaBuffer(void* data, size_t size) : data_(static_cast<std::byte*>(data)), size_(size) {}
  ~CudaBuffer() override { cudaFree(data_); }
  std::span<const std::byte> bytes() const override { return {data_, size_}; }
  std::span<std::byte> fill(size_t offset, size_t size) override {
    return std::span(data_, size_).subspan(offset, size);
  }
  std::byte* data() const { return data_; }

 private:
  std::byte* data_;
  size_t size_;
};

class CudaPipeline : public Pipeline {
 public:
  CudaPipeline(const Kernel& kernel, const Library& library, std::vector<FunctionConstant> constants)
      : kernel(kernel), library(library), constants(std::move(constants)), name_(kernel.name) {
    for (int i = 0; i < kernel.parameter_count; i++) {
      const Parameter& p = kernel.parameters[i];
      const auto kind = p.kind == 't' ? Argument::threadgroup : p.size ? Argument::value : Argument::buffer;
      arguments_.push_back({kind, uint8_t(p.index), p.writable, p.name});
    }
  }
  const std::string& name() const override { return name_; }
  std::span<const Argument> arguments() const override { return arguments_; }
  const Kernel& kernel;
  const Library& library;
  const std::vector<FunctionConstant> constants;

 private:
  std::string name_;
  std::vector<Argument> arguments_;
};

}  // namespace

Result<std::unique_ptr<Buffer>> CudaDevice::alloc(size_t size) {
  void* data = nullptr;
  if (const auto made = checked(cudaMallocManaged(&data, size), "allocation"); !made) return made.error();
  return std::unique_ptr<Buffer>(std::make_unique<CudaBuffer>(data, size));
}

Result<std::unique_ptr<Buffer>> CudaDevice::wrap(const void* data, size_t size) {
  auto made = alloc(size);
  if (made) std::memcpy((*made)->fill(0, size).data(), data, size);
  return made;
}

Result<const Pipeline*> CudaDevice::pipeline(std::string_view name, std::span<const FunctionConstant> constants) {
  for (const Library* library : argent_cuda::libraries()) {
    for (int i = 0; i < library->kernel_count; i++) {
      if (library->kernels[i].name != name) continue;
      pipelines_.push_back(std::make_unique<CudaPipeline>(
          library->kernels[i], *library, std::vector<FunctionConstant>(constants.begin(), constants.end())));
      return pipelines_.back().get();
    }
  }
  return fail(Code::not_found, "there is no kernel {}", name);
}

Status CudaDevice::run(const Dispatch& dispatch) {
  const auto& pipeline = static_cast<const CudaPipeline&>(*dispatch.pipeline);
  for (const FunctionConstant& given : pipeline.constants) {
    for (int i = 0; i < pipeline.library.constant_count; i++) {
      const auto& constant = pipeline.library.constants[i];
      if (uint32_t(constant.index) != given.index) continue;
      const int error = std::visit([&](const auto& value) { return constant.set(&value); }, given.value);
      if (const auto set = checked(cudaError_t(error), "function constant"); !set) return set;
    }
  }
  argent_cuda::Arguments arguments{};
  std::vector<std::unique_ptr<Buffer>> values;
  for (const auto& value : dispatch.values) {
    auto made = wrap(value.bytes.data(), value.bytes.size());
    if (!made) return made.error();
    arguments.buffer[value.index] = static_cast<const CudaBuffer&>(**made).data();
    values.push_back(std::move(*made));
  }
  for (const auto& bound : dispatch.buffers) {
    arguments.buffer[bound.index] = static_cast<const CudaBuffer&>(*bound.buffer).data() + bound.offset;
  }
  unsigned shared = 0;
  for (size_t i = 0; i < dispatch.threadgroup_bytes.size(); i++) {
    arguments.shared[i] = shared;
    shared += dispatch.threadgroup_bytes[i];
  }
  for (int i = 0; i < pipeline.kernel.parameter_count; i++) {
    const Parameter& p = pipeline.kernel.parameters[i];
    if (p.kind != 't' && !arguments.buffer[p.index])
      return fail(Code::invalid, "{}: buffer({}) {} is not set", pipeline.name(), p.index, p.name);
  }
  const dim3 grid(dispatch.grid.x, dispatch.grid.y, dispatch.grid.z),
      threads(dispatch.threads.x, dispatch.threads.y, dispatch.threads.z);
  void* parameters[] = {&arguments};
  if (const auto launched = checked(
          cudaLaunchKernel(pipeline.kernel.function, grid, threads, parameters, shared, nullptr), pipeline.name());
      !launched) {
    return launched;
  }
  return checked(cudaDeviceSynchronize(), pipeline.name());
}

Status CudaDevice::submit(const CommandList& list) {
  for (const Dispatch& dispatch : list.dispatches) {
    if (const auto ran = run(dispatch); !ran) return ran;
  }
  return {};
}

Status CudaDevice::wait() { return checked(cudaDeviceSynchronize(), "wait"); }

}  // namespace argent::metal
