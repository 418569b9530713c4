// One CUDA device as the backend uses it: a stream, memory that frees itself, and every error as a value.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "backends/cuda/part/kernels/launch.h"
#include "base/result.h"

namespace argent::cuda {

// Calls come from one thread at a time, each thread after use(). Memory and events of a device end before it.
// Why the kernels cannot run on a device that has code for it; empty: they can.
std::string unusable(const cudaDeviceProp& properties);

class Device {
 public:
  // unsupported: no such device, or one that is unusable.
  static Result<std::unique_ptr<Device>> open(uint32_t index);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const std::string& name() const { return name_; }                // "cuda:0", as in --device
  const std::string& description() const { return description_; }  // "NVIDIA H200, compute capability 9.0"
  int compute_capability() const { return capability_; }           // 90: 9.0
  cudaStream_t stream() const { return stream_; }
  uint64_t memory_free() const;  // bytes; 0: unknown

  // Makes the device the calling thread's. internal: it has failed before, and how.
  Status use();
  // Success, or an error that says the call, the device and the cause. Where the device does not work any more, use()
  // fails from then on.
  Status check(cudaError_t error, std::string_view call);
  Status check(const Launch& launch) { return check(launch.error, launch.what); }
  // Until the event is done. internal: a kernel before it failed, or a minute went by. Either way nothing before it
  // still runs, or the device is lost.
  Status wait(cudaEvent_t event);
  // The same, until all that the stream was given has ended.
  Status finish();
  // It failed for good: nothing is freed, since that would wait for a kernel that may never end.
  bool lost() const { return !lost_.empty(); }
  uint64_t allocated() const { return allocated_; }  // bytes of its memory that Memory objects have now

 private:
  friend class Memory;
  Device() = default;
  Status until(const std::function<cudaError_t()>& done);

  int index_ = 0, capability_ = 0;
  uint64_t allocated_ = 0;
  std::string name_, description_, lost_;
  cudaStream_t stream_ = nullptr;
};

// Bytes on the device, or of the host where the device can reach them without a copy. Freed with the object, which
// waits for all that the stream was given before: no copy, kernel or graph finds memory gone. Aligned to 256.
class Memory {
 public:
  Memory() = default;
  // out_of_memory: what the bytes are for, and how many are free.
  static Result<Memory> of_device(Device& device, uint64_t bytes, std::string_view what);
  static Result<Memory> pinned(Device& device, uint64_t bytes, std::string_view what);

  uint8_t* data() const { return data_.get(); }
  uint64_t size() const { return size_; }
  explicit operator bool() const { return bool(data_); }

 private:
  struct Free {
    Device* device;
    bool host;
    uint64_t bytes;
    void operator()(uint8_t* data) const;
  };
  std::unique_ptr<uint8_t, Free> data_;
  uint64_t size_ = 0;
};

// A place in the stream's work.
class Event {
 public:
  static Result<Event> make(Device& device, bool timed = false);
  Status record(Device& device) const;
  cudaEvent_t get() const { return event_.get(); }

 private:
  struct Destroy {
    Device* device;
    void operator()(cudaEvent_t event) const;
  };
  std::unique_ptr<CUevent_st, Destroy> event_;
};

}  // namespace argent::cuda
