// The seam between portable code and a GPU that runs the Metal kernels. Everything above it (argument packing, buffer
// planning, barriers, grid sizes) is the same on every machine and is tested with emu::EmuDevice; below it is Apple's
// API.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "base/result.h"

namespace argent::metal {

// Metal's limits that every Apple GPU shares.
constexpr uint32_t kMaxBuffers = 31;              // [[buffer(0)]] to [[buffer(30)]]
constexpr uint32_t kMaxThreadgroupArguments = 8;  // [[threadgroup(0)]] to [[threadgroup(7)]], the dialect's own limit
constexpr uint32_t kMaxThreadgroupBytes = 32768;
constexpr uint32_t kMaxThreads = 1024;  // of a threadgroup
constexpr uint32_t kSimdWidth = 32;
constexpr size_t kMaxArgumentBytes = 4096;  // of one argument passed by value

// Memory that the host and the GPU both see.
class Buffer {
 public:
  virtual ~Buffer() = default;
  // The whole of it, to read; what submitted lists write is there after Device::wait.
  virtual std::span<const std::byte> bytes() const = 0;
  // A range that the caller fills before the next submit, all of it: from then on it counts as initialised.
  // Only for memory of Device::alloc; offset + size must lie inside.
  virtual std::span<std::byte> fill(size_t offset, size_t size) = 0;
  // Its name in the device maker's tools; set once, where the buffer is made.
  virtual void set_label(const std::string&) {}
};

// What a kernel's text says of one of its arguments.
struct Argument {
  enum Kind : uint8_t { buffer, value, threadgroup } kind = buffer;
  uint8_t index = 0;
  bool written = false;  // the kernel may write it; of buffers, others are only read
  std::string name;
};

// A kernel with its function constants, compiled. Owned by its device.
class Pipeline {
 public:
  virtual ~Pipeline() = default;
  virtual const std::string& name() const = 0;
  virtual std::span<const Argument> arguments() const = 0;
  virtual uint32_t max_threads() const { return kMaxThreads; }  // of a threadgroup, as its registers allow
};

// The value of MTL_FC(type, name, index).
struct FunctionConstant {
  uint32_t index = 0;
  std::variant<bool, int32_t, uint32_t, float> value;
};

struct Size {
  uint32_t x = 1, y = 1, z = 1;
  uint64_t count() const { return uint64_t(x) * y * z; }
};

// One kernel over a grid; plain data.
struct Dispatch {
  struct Bound {
    uint32_t index = 0;  // [[buffer(index)]]
    const Buffer* buffer = nullptr;
    size_t offset = 0;  // bytes
    size_t size = 0;    // that the kernel may touch; 0: to the buffer's end
    // Not 0: dispatches of a list that give the same number touch no byte in common of this range, as rows dealt out to
    // kernels. None waits for another because of it; the emulator's checks see whether it is true.
    uint32_t parts = 0;
  };
  struct Value {  // an argument passed by value
    uint32_t index = 0;
    std::vector<std::byte> bytes;
  };

  const Pipeline* pipeline = nullptr;
  std::vector<Bound> buffers;
  std::vector<Value> values;
  std::vector<uint32_t> threadgroup_bytes;  // element i: length of [[threadgroup(i)]], a multiple of 16
  Size grid;                                // in threadgroups
  Size threads;                             // of a threadgroup; their product is a multiple of 32
  // The dispatches of a list may run at the same time, in any order. With a barrier all earlier ones of the list have
  // finished, and what they wrote is visible, before this one starts.
  bool barrier = false;

  Dispatch& bind(uint32_t index, const Buffer& buffer, size_t offset = 0, size_t size = 0) {
    buffers.push_back({index, &buffer, offset, size});
    return *this;
  }
  template <class T>
  Dispatch& value(uint32_t index, const T& data) {
    static_assert(std::is_trivially_copyable_v<T> && !std::is_pointer_v<T>, "arguments are plain structs of args.h");
    Value value{index, std::vector<std::byte>(sizeof(T))};
    std::memcpy(value.bytes.data(), &data, sizeof(T));
    values.push_back(std::move(value));
    return *this;
  }
};

// Dispatches of a list that a tool shows under one name: those behind the region before it, up to `end`.
struct Region {
  size_t end = 0;
  std::string_view op;  // of a text that is never gone
  int32_t layer = -1;   // -1: of none
};

// What one command buffer with one concurrent encoder runs. Label and regions are for Apple's tools; who submits a list
// that is not timed pays nothing for them, unless the device was opened to show them.
struct CommandList {
  std::vector<Dispatch> dispatches;
  std::string label = {};
  std::vector<Region> regions = {};
};

// When a dispatch ran.
struct GpuTime {
  double begin = 0, seconds = 0;  // begin: after that of the list's first dispatch
};

using Status = Result<void>;

struct DeviceInfo {
  std::string description = "a device without a name";
  uint64_t memory_free = 0;  // bytes that may be allocated; 0: unknown
  uint64_t max_buffer_bytes = UINT64_MAX;
};

// Not thread-safe. Buffers and pipelines named by a list live until the wait after its submit.
class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceInfo info() const { return {}; }
  // Uninitialised memory, aligned to at least 256 bytes.
  virtual Result<std::unique_ptr<Buffer>> alloc(size_t size) = 0;
  // Memory of the caller's (a mapped file), which must outlive the buffer; kernels may only read it.
  virtual Result<std::unique_ptr<Buffer>> wrap(const void* data, size_t size) = 0;
  // The same arguments give the same pipeline. Fails for a kernel that is not there, and for constants that the kernel
  // uses and are not given, are not in its library, or have another type.
  virtual Result<const Pipeline*> pipeline(std::string_view name, std::span<const FunctionConstant> constants) = 0;
  // Starts a list; lists run one after the other. Fails, and starts nothing, when a dispatch does not fit its kernel:
  // an argument not set or too short, a bad size, a buffer written that is only to be read.
  virtual Status submit(const CommandList& list) = 0;
  // Runs a list to its end, each dispatch alone, after what was submitted before; the times by dispatch. By the GPU's
  // own clock where it has one; here by the host's, for devices whose submit returns when the list is done.
  virtual Result<std::vector<GpuTime>> run_timed(const CommandList& list) {
    using Clock = std::chrono::steady_clock;
    const auto since = [](Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); };
    if (auto waited = wait(); !waited) return waited.error();
    std::vector<GpuTime> times;
    const auto origin = Clock::now();
    for (const Dispatch& dispatch : list.dispatches) {
      const double begin = since(origin);
      auto ran = submit({{dispatch}});
      if (ran) ran = wait();
      if (!ran) return ran.error();
      times.push_back({begin, since(origin) - begin});
    }
    return times;
  }
  // Until all submitted lists are done; the first error of any.
  virtual Status wait() = 0;
};

}  // namespace argent::metal
