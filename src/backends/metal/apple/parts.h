// What the files of the host layer share.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "backends/metal/apple/api.h"
#include "backends/metal/apple/metal_device.h"

namespace argent::metal::apple {

inline NSString* string_of(const std::string& text) {
  return NSString::stringWithCString(text.c_str(), NSUTF8StringEncoding);
}
// Of a string that may be null.
std::string text_of(NSString* text);
// What an error says, in one line.
std::string text_of(NSError* error);

// Memory of a device: its buffers share it, since they may live longer than the device.
struct Memory {
  Ref<MTLDevice> device;
  Ref<MTLResidencySet> residency;
  bool residency_changed = false;  // buffers were added that nobody asked residency for
  uint64_t used = 0;               // bytes of all buffers

  // Takes over a buffer that was made, of so many bytes.
  void add(MTLBuffer* buffer, uint64_t size);
  void remove(MTLBuffer* buffer, uint64_t size);
};

class MetalBuffer : public Buffer {
 public:
  // Owns `buffer`, of `length` bytes; its part of `size` bytes from `offset` on is what kernels and callers see.
  MetalBuffer(std::shared_ptr<Memory> memory, Ref<MTLBuffer> buffer, uint64_t length, size_t offset, size_t size,
              bool writable);
  ~MetalBuffer() override;
  std::span<const std::byte> bytes() const override { return {data_, size_}; }
  std::span<std::byte> fill(size_t offset, size_t size) override { return {data_ + offset, size}; }
  void set_label(const std::string& label) override;
  MTLBuffer* buffer() const { return buffer_.get(); }
  size_t offset() const { return offset_; }
  bool writable() const { return writable_; }

 private:
  std::shared_ptr<Memory> memory_;
  Ref<MTLBuffer> buffer_;
  uint64_t length_;
  size_t offset_, size_;
  bool writable_;
  std::byte* data_;
};

struct MetalPipeline : Pipeline {
  const std::string& name() const override { return kernel_name; }
  std::span<const Argument> arguments() const override { return told; }
  uint32_t max_threads() const override { return uint32_t(most_threads); }

  std::string kernel_name;
  std::vector<Argument> told;
  const KernelText* text = nullptr;
  Ref<MTLComputePipelineState> state;
  uint64_t most_threads = 0;  // of a threadgroup
  uint64_t static_threadgroup_bytes = 0;
};

// Libraries and pipelines of a device, made when they are first asked for.
class Pipelines {
 public:
  Pipelines(MTLDevice* device, const MetalOptions& options, MetalCounts& counts);
  Result<const Pipeline*> get(std::string_view name, std::span<const FunctionConstant> constants);
  // Makes one pipeline, to see what the GPU's SIMD-groups are like.
  Status probe();
  Status save_archive();

 private:
  Result<MTLLibrary*> library(const KernelFile& file);
  Result<std::unique_ptr<MetalPipeline>> compile(const KernelFile& file, const KernelText& kernel,
                                                 std::span<const FunctionConstant> constants);
  void open_archive();

  MTLDevice* device_;
  const MetalOptions& options_;
  MetalCounts& counts_;
  std::map<const KernelFile*, Ref<MTLLibrary>> libraries_;
  std::map<std::string, std::unique_ptr<MetalPipeline>, std::less<>> pipelines_;
  Ref<MTLBinaryArchive> archive_;
  bool archive_changed_ = false;
};

// What Metal would refuse, or not notice, of a dispatch.
Status check(const Dispatch& dispatch, uint64_t max_threadgroup_bytes);

// Encodes the dispatches of a list, setting what differs from the dispatch before; with the list's label and regions,
// or without.
void encode(MTLComputeCommandEncoder* encoder, const CommandList& list, bool named, MetalCounts& counts);

}  // namespace argent::metal::apple
