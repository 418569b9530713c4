#include "backends/cuda/part/device.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace argent::cuda {
namespace {

constexpr int kLeastCapability = 80;               // what the kernels are written for
constexpr size_t kLeastSharedMemory = 227 * 1024;  // a block's; what products have tuned their rings for
// A wait is short next to the call that would put the thread to sleep, so that it looks again and again at first.
constexpr std::chrono::microseconds kSpin{300}, kYield{20000}, kNap{50};
constexpr std::chrono::seconds kWatchdog{60};  // the longest step takes a few seconds

}  // namespace

std::string unusable(const cudaDeviceProp& p) {
  if (10 * p.major + p.minor < kLeastCapability) return "the kernels need compute capability 8.0 or later";
  if (p.sharedMemPerBlockOptin < kLeastSharedMemory)
    return fmt::format("{} KiB of shared memory a block, the kernels need {}", p.sharedMemPerBlockOptin / 1024,
                       kLeastSharedMemory / 1024);
  return "";
}

Result<std::unique_ptr<Device>> Device::open(uint32_t index) {
  int n = 0;
  const cudaError_t counted = cudaGetDeviceCount(&n);
  if (counted != cudaSuccess || index >= uint32_t(std::max(n, 0))) {
    cudaGetLastError();
    return fail(Code::unsupported, "there are {} NVIDIA devices{}{}", n, counted == cudaSuccess ? "" : ": ",
                counted == cudaSuccess ? "" : cudaGetErrorString(counted));
  }
  std::unique_ptr<Device> device(new Device);
  device->index_ = int(index);
  device->name_ = fmt::format("cuda:{}", index);
  ARGENT_TRY(device->check(cudaSetDevice(int(index)), "cudaSetDevice"));
  cudaDeviceProp properties = {};
  ARGENT_TRY(device->check(cudaGetDeviceProperties(&properties, int(index)), "cudaGetDeviceProperties"));
  device->capability_ = 10 * properties.major + properties.minor;
  device->description_ =
      fmt::format("{}, compute capability {}.{}", properties.name, properties.major, properties.minor);
  if (const std::string why = unusable(properties); !why.empty())
    return fail(Code::unsupported, "{}: {}", device->description_, why);
  ARGENT_TRY(
      device->check(cudaStreamCreateWithFlags(&device->stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags"));
  return device;
}

Device::~Device() {
  if (!stream_ || lost()) return;
  cudaStreamDestroy(stream_);
  cudaGetLastError();
}

uint64_t Device::memory_free() const {
  size_t free = 0, total = 0;
  if (lost() || cudaSetDevice(index_) != cudaSuccess || cudaMemGetInfo(&free, &total) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  return free;
}

Status Device::use() {
  if (lost()) return fail(Code::internal, "{}", lost_);
  return check(cudaSetDevice(index_), "cudaSetDevice");
}

Status Device::check(cudaError_t error, std::string_view call) {
  if (error == cudaSuccess) return {};
  if (lost()) return fail(Code::internal, "{}", lost_);
  cudaGetLastError();  // what leaves the device in order is told once
  const std::string message = fmt::format("{} ({}): {}: {}", name_, description_, call, cudaGetErrorString(error));
  // A device that works no more answers everything with an error.
  if (stream_)
    if (const cudaError_t state = cudaStreamQuery(stream_); state != cudaSuccess) {
      cudaGetLastError();
      if (state != cudaErrorNotReady) lost_ = message + "; the device cannot be used until the program starts anew";
    }
  return fail(error == cudaErrorMemoryAllocation ? Code::out_of_memory : Code::internal, "{}",
              lost() ? lost_ : message);
}

Status Device::wait(cudaEvent_t event) {
  const Status ended = until([&] { return cudaEventQuery(event); });
  if (!ended && !lost()) (void)finish();  // an event that cannot be asked says nothing of what is before it
  return ended;
}

Status Device::finish() {
  const Status ended = until([&] { return cudaStreamQuery(stream_); });
  if (!ended && !lost()) lost_ = ended.error().message;
  return ended;
}

Status Device::until(const std::function<cudaError_t()>& done) {
  if (lost()) return fail(Code::internal, "{}", lost_);
  const auto start = std::chrono::steady_clock::now();
  for (;;) {
    // Before the question: a program that was stopped in between has not waited.
    const auto waited = std::chrono::steady_clock::now() - start;
    const cudaError_t state = done();
    if (state == cudaSuccess) return {};
    if (state != cudaErrorNotReady) return check(state, "a step's kernels");
    cudaGetLastError();  // "not ready" counts as an error, which must not be found later
    if (waited > kWatchdog) {
      lost_ = fmt::format(
          "{} ({}): a step did not end within {} s; the device cannot be used until the program starts "
          "anew",
          name_, description_, kWatchdog.count());
      return fail(Code::internal, "{}", lost_);
    }
    if (waited > kYield)
      std::this_thread::sleep_for(kNap);
    else if (waited > kSpin)
      std::this_thread::yield();
  }
}

// ---- memory and events

void Memory::Free::operator()(uint8_t* data) const {
  if (!device->finish()) return;
  if ((host ? cudaFreeHost(data) : cudaFree(data)) != cudaSuccess) cudaGetLastError();
  if (!host) device->allocated_ -= bytes;
}

Result<Memory> Memory::of_device(Device& device, uint64_t bytes, std::string_view what) {
  ARGENT_TRY(device.use());
  void* data = nullptr;
  const uint64_t whole = std::max<uint64_t>(bytes, 256);
  if (const cudaError_t error = cudaMalloc(&data, whole); error != cudaSuccess) {
    const Error cause = device.check(error, "cudaMalloc").error();
    if (cause.code != Code::out_of_memory) return cause;
    return fail(Code::out_of_memory, "{}: {} bytes for the {} cannot be had, {} are free ({})", device.name(), bytes,
                what, device.memory_free(), device.description());
  }
  Memory made;
  made.data_ = {static_cast<uint8_t*>(data), Free{&device, false, whole}};
  made.size_ = bytes;
  device.allocated_ += whole;
  return made;
}

Result<Memory> Memory::pinned(Device& device, uint64_t bytes, std::string_view what) {
  ARGENT_TRY(device.use());
  void* data = nullptr;
  if (const cudaError_t error = cudaMallocHost(&data, std::max<uint64_t>(bytes, 256)); error != cudaSuccess) {
    const Error cause = device.check(error, "cudaMallocHost").error();
    return fail(cause.code, "{}: {} bytes of pinned host memory for the {}: {}", device.name(), bytes, what,
                cause.message);
  }
  Memory made;
  made.data_ = {static_cast<uint8_t*>(data), Free{&device, true, bytes}};
  made.size_ = bytes;
  return made;
}

void Event::Destroy::operator()(cudaEvent_t event) const {
  if (!device->lost()) cudaEventDestroy(event);
}

Result<Event> Event::make(Device& device, bool timed) {
  cudaEvent_t event = nullptr;
  ARGENT_TRY(device.check(cudaEventCreateWithFlags(&event, timed ? cudaEventDefault : cudaEventDisableTiming),
                          "cudaEventCreateWithFlags"));
  Event made;
  made.event_ = {event, Destroy{&device}};
  return made;
}

Status Event::record(Device& device) const {
  return device.check(cudaEventRecord(event_.get(), device.stream()), "cudaEventRecord");
}

}  // namespace argent::cuda
