// A metal::Device that keeps what is submitted to it, with the work of each dispatch. By itself it runs nothing, and
// its memory is address space alone, so lists of models far larger than this machine can be recorded; or it runs the
// lists in the emulator, to compare.
#pragma once

#include <map>

#include "backends/metal/emu/device.h"
#include "metal/work.h"

namespace argent::metal {

struct RecordedDispatch {
  std::string kernel;
  DispatchWork work;
  bool barrier = false;
};
using RecordedList = std::vector<RecordedDispatch>;

struct Recording {
  std::vector<RecordedList> lists;
  std::vector<emu::EmuDevice::Counted> counted;  // by dispatch, where lists are run
};

class RecordingDevice : public emu::EmuDevice {
 public:
  // runs: in the emulator.
  RecordingDevice(Recording* recording, bool runs) : EmuDevice({.count = runs}), recording_(recording), runs_(runs) {}

  DeviceInfo info() const override;
  Result<std::unique_ptr<Buffer>> alloc(size_t size) override;
  Result<std::unique_ptr<Buffer>> wrap(const void* data, size_t size) override;
  Result<const Pipeline*> pipeline(std::string_view name, std::span<const FunctionConstant> constants) override;
  Status submit(const CommandList& list) override;
  Status wait() override { return runs_ ? EmuDevice::wait() : Status(); }

 private:
  Recording* recording_;
  bool runs_;
  std::map<const Pipeline*, std::vector<FunctionConstant>> constants_;
};

// Memory that reads as zeros and takes none until it is written; freed with the object.
class AddressSpace {
 public:
  static Result<AddressSpace> make(size_t size);
  AddressSpace() = default;
  AddressSpace(AddressSpace&& other) noexcept { *this = std::move(other); }
  AddressSpace& operator=(AddressSpace&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~AddressSpace();
  std::span<std::byte> bytes() const { return {data_, size_}; }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace argent::metal
