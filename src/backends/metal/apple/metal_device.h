// A metal::Device over Apple's Metal API. Needs macOS 14 and an Apple GPU (M1 or later); open() says what is missing.
//
// Everything that kernels write is in tracked buffers, so the driver orders the command buffers of lists; memory that
// is only read (wrap) is not tracked, which saves it the work for gigabytes of weights. Buffers are bound one by one,
// so they need no useResource; where the system has residency sets (macOS 15) all buffers are in one, so that weights
// stay resident between steps and are not looked through for each list.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "backends/metal/apple/library.h"
#include "backends/metal/device.h"

namespace argent::metal {

// The folder "metal" beside the running program, where the build puts precompiled libraries.
std::string metallibs_beside_program();

struct MetalOptions {
  // Of one list: wait fails when it takes longer, and the GPU may still touch memory of the list then. The system
  // itself ends a kernel that hangs much earlier.
  std::chrono::milliseconds deadline{30000};
  // Folder of precompiled libraries; where a file is not there its source is compiled. Empty: always.
  std::string metallibs = metallibs_beside_program();
  std::string archive{};  // file of compiled pipelines for the next start; empty: none
  std::span<const KernelFile> kernels = kernel_files();
  // Every list shows its label and regions to Instruments and Xcode, for a string and two messages a region; without,
  // timed lists alone do.
  bool regions = false;
  bool any_family = false;  // tries GPUs that are said not to have what kernels use, such as those of virtual machines
};

struct MetalInfo {
  std::string device, system;
  uint64_t working_set = 0;  // recommendedMaxWorkingSetSize; 0: the system does not say
  uint64_t max_buffer = 0;
  uint64_t max_threadgroup_bytes = 0;
  bool residency_set = false;
};

// What a device did since it was opened.
struct MetalCounts {
  uint64_t wrapped_in_place = 0;  // wrap: begin and end at pages
  uint64_t wrapped_pages = 0;     // the pages around, with an offset
  uint64_t wrapped_copied = 0;    // Metal refused the memory: a copy
  uint64_t libraries_precompiled = 0, libraries_compiled = 0;
  uint64_t pipelines = 0;
  uint64_t pipelines_archived = 0;  // of them, found in MetalOptions::archive
  uint64_t lists = 0, dispatches = 0, barriers = 0, buffers_set = 0, values_set = 0;
  double gpu_seconds = 0;  // of finished lists, GPUEndTime - GPUStartTime
};

class MetalDevice : public Device {
 public:
  static Result<std::unique_ptr<MetalDevice>> open(MetalOptions options = {});
  ~MetalDevice() override;  // waits for lists, at most the deadline

  Result<std::unique_ptr<Buffer>> alloc(size_t size) override;
  // The memory is used in place, over the pages around it; it must not change after the call, since Metal may refuse it
  // and then it is copied.
  Result<std::unique_ptr<Buffer>> wrap(const void* data, size_t size) override;
  Result<const Pipeline*> pipeline(std::string_view name, std::span<const FunctionConstant> constants) override;
  Status submit(const CommandList& list) override;
  Status wait() override;
  // A command buffer a dispatch, with its own GPUStartTime and GPUEndTime; the next ones are in the queue meanwhile, so
  // that the GPU does not slow its clock. What two of them overlap counts for the earlier one. Not by samples of
  // counters in one command buffer: they are said to hold zeros under macOS 26 (wgpu's issue 9414), and GPUs of virtual
  // machines have none. The price: each time has what a command buffer costs the GPU.
  Result<std::vector<GpuTime>> run_timed(const CommandList& list) override;

  DeviceInfo info() const override;
  const MetalInfo& metal_info() const;
  const MetalCounts& counts() const;
  // Writes the pipelines made so far to MetalOptions::archive; also done when the device is closed.
  Status save_archive();

 private:
  struct Parts;
  explicit MetalDevice(std::unique_ptr<Parts> parts);
  Status start(const CommandList& list, bool named, bool timed);  // of dispatches that have been checked
  std::unique_ptr<Parts> parts_;
};

}  // namespace argent::metal
