#include "metal/recording_device.h"

#include <sys/mman.h>

namespace argent::metal {
namespace {

class SpaceBuffer : public Buffer {
 public:
  explicit SpaceBuffer(AddressSpace space) : space_(std::move(space)) {}
  std::span<const std::byte> bytes() const override { return space_.bytes(); }
  std::span<std::byte> fill(size_t offset, size_t size) override { return space_.bytes().subspan(offset, size); }

 private:
  AddressSpace space_;
};

class WrappedBuffer : public Buffer {
 public:
  WrappedBuffer(const void* data, size_t size) : bytes_(static_cast<const std::byte*>(data), size) {}
  std::span<const std::byte> bytes() const override { return bytes_; }
  std::span<std::byte> fill(size_t, size_t) override { return {}; }  // the interface: never of wrapped memory

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace

Result<AddressSpace> AddressSpace::make(size_t size) {
  void* data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) return fail(Code::io, "no address space for {} bytes", size);
  madvise(data, size, MADV_HUGEPAGE);  // pages that are only read share one page of zeros: of 2 MB, so few faults
  AddressSpace made;
  made.data_ = static_cast<std::byte*>(data);
  made.size_ = size;
  return made;
}

AddressSpace::~AddressSpace() {
  if (data_) munmap(data_, size_);
}

DeviceInfo RecordingDevice::info() const {
  DeviceInfo info = EmuDevice::info();
  info.description = "Metal, recorded";
  return info;
}

Result<std::unique_ptr<Buffer>> RecordingDevice::alloc(size_t size) {
  if (runs_) return EmuDevice::alloc(size);
  ARGENT_LET(AddressSpace space, AddressSpace::make(size));
  return std::unique_ptr<Buffer>(std::make_unique<SpaceBuffer>(std::move(space)));
}

Result<std::unique_ptr<Buffer>> RecordingDevice::wrap(const void* data, size_t size) {
  if (runs_) return EmuDevice::wrap(data, size);
  return std::unique_ptr<Buffer>(std::make_unique<WrappedBuffer>(data, size));
}

Result<const Pipeline*> RecordingDevice::pipeline(std::string_view name, std::span<const FunctionConstant> constants) {
  ARGENT_LET(const Pipeline* made, EmuDevice::pipeline(name, constants));
  constants_[made].assign(constants.begin(), constants.end());
  return made;
}

Status RecordingDevice::submit(const CommandList& list) {
  const ConstantsOf constants = [&](const Pipeline& p) -> std::span<const FunctionConstant> {
    return constants_.at(&p);
  };
  RecordedList& to = recording_->lists.emplace_back();
  for (const Dispatch& d : list.dispatches) to.push_back({d.pipeline->name(), work_of(d, constants), d.barrier});
  if (!runs_) return {};
  ARGENT_TRY(EmuDevice::submit(list));
  recording_->counted.insert(recording_->counted.end(), work().begin(), work().end());
  forget();
  return {};
}

}  // namespace argent::metal
