#include "backends/metal/apple/metal_device.h"

#include <fmt/format.h>
#include <unistd.h>
#if defined(__APPLE__)
#include <mach-o/dyld.h>
#endif

#include <algorithm>
#include <deque>
#include <thread>

#include "backends/metal/apple/parts.h"

namespace argent::metal {

using namespace apple;
using Clock = std::chrono::steady_clock;

namespace {

// Of the queue's 64: a 65th would wait for one of them inside Metal, with no end when the GPU hangs.
constexpr size_t kMaxPending = 32;

const char* reason(NSInteger code) {
  switch (code) {
    case MTLCommandBufferErrorInternal:
      return "an error inside the driver";
    case MTLCommandBufferErrorTimeout:
      return "a kernel ran for too long and was ended";
    case MTLCommandBufferErrorPageFault:
      return "a kernel touched memory that is not there";
    case MTLCommandBufferErrorAccessRevoked:
      return "the system no longer lets this program use the GPU";
    case MTLCommandBufferErrorNotPermitted:
      return "the system does not let this program use the GPU now";
    case MTLCommandBufferErrorOutOfMemory:
      return "the GPU has not enough memory";
    case MTLCommandBufferErrorInvalidResource:
      return "a buffer was not valid any more";
    case MTLCommandBufferErrorMemoryless:
      return "a memoryless resource was too large";
    case MTLCommandBufferErrorDeviceRemoved:
      return "the GPU is gone";
    case MTLCommandBufferErrorStackOverflow:
      return "a kernel's stack is too small";
    default:
      return "an unknown error";
  }
}

}  // namespace

namespace apple {

std::string text_of(NSString* text) {
  const char* bytes = text ? text->UTF8String() : nullptr;
  return bytes ? bytes : "";
}

// Compilers write a line for each error: the first that is one, else the first line.
std::string text_of(NSError* error) {
  std::string all = error ? text_of(error->localizedDescription()) : "";
  const auto line = [&](size_t at) { return all.substr(at, all.find('\n', at) - at); };
  if (const size_t at = all.find("error: "); at != std::string::npos) {
    const size_t before = all.rfind('\n', at);
    all = line(before == std::string::npos ? 0 : before + 1);
  } else {
    all = line(0);
  }
  return all.empty() ? "Metal does not say why" : all;
}

void Memory::add(MTLBuffer* buffer, uint64_t size) {
  used += size;
  if (!residency) return;
  residency->addAllocation(buffer);
  residency_changed = true;
}

// At once, not with the next list: the set would hold memory that its owner is about to unmap.
void Memory::remove(MTLBuffer* buffer, uint64_t size) {
  used -= size;
  if (!residency) return;
  residency->removeAllocation(buffer);
  residency->commit();
}

MetalBuffer::MetalBuffer(std::shared_ptr<Memory> memory, Ref<MTLBuffer> buffer, uint64_t length, size_t offset,
                         size_t size, bool writable)
    : memory_(std::move(memory)),
      buffer_(std::move(buffer)),
      length_(length),
      offset_(offset),
      size_(size),
      writable_(writable),
      data_(static_cast<std::byte*>(buffer_->contents()) + offset) {
  memory_->add(buffer_.get(), length_);
}

void MetalBuffer::set_label(const std::string& label) {
  const Pool pool;
  buffer_->setLabel(string_of(label));
}

MetalBuffer::~MetalBuffer() {
  const Pool pool;
  memory_->remove(buffer_.get(), length_);
  buffer_.reset();
}

}  // namespace apple

struct MetalDevice::Parts {
  struct Pending {
    Ref<MTLCommandBuffer> commands;
    uint64_t value;  // that the event has when it is done
    size_t dispatches;
    std::string first;  // kernel
    bool timed;
  };

  MetalOptions options;
  MetalInfo info;
  MetalCounts counts;
  std::shared_ptr<Memory> memory = std::make_shared<Memory>();
  Ref<MTLCommandQueue> queue;
  Ref<MTLSharedEvent> event;
  uint64_t last_value = 0;
  std::unique_ptr<Pipelines> pipelines;
  std::deque<Pending> pending;
  std::vector<GpuTime> times;  // of timed lists that are done; begin: as GPUStartTime has it
  Status first_error;          // of lists since the last wait
  bool hung = false;           // the last list that was waited for went past its deadline

  Result<Ref<MTLBuffer>> finish_buffer(MTLBuffer* made, uint64_t size);
  Status room_for(uint64_t size);
  Status finish(const Pending& list);
  void finish_oldest();
};

std::string metallibs_beside_program() {
  char path[4096] = {};
#if defined(__APPLE__)
  uint32_t size = sizeof path;
  if (_NSGetExecutablePath(path, &size) != 0) return "";
#else
  if (readlink("/proc/self/exe", path, sizeof path - 1) < 0) return "";
#endif
  const std::string program = path;
  return program.substr(0, program.rfind('/')) + "/metal";
}

MetalDevice::MetalDevice(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

Result<std::unique_ptr<MetalDevice>> MetalDevice::open(MetalOptions options) {
  const Pool pool;
  auto parts = std::make_unique<Parts>();
  parts->options = std::move(options);
  Memory& memory = *parts->memory;
  memory.device = Ref<MTLDevice>::owned(MTLCreateSystemDefaultDevice());
  MTLDevice* device = memory.device.get();
  if (!device) return fail(Code::unsupported, "there is no Metal device");
  MetalInfo& info = parts->info;
  info.device = text_of(device->name());
  if (auto* process = NSProcessInfo::processInfo()) info.system = text_of(process->operatingSystemVersionString());
  if (!parts->options.any_family && !device->supportsFamily(MTLGPUFamilyApple7)) {
    return fail(Code::unsupported, "{} is no GPU of family Apple7 or later (M1 or later), which the kernels want",
                info.device);
  }
  if (!device->hasUnifiedMemory())
    return fail(Code::unsupported, "{} does not share its memory with the processor", info.device);
  info.working_set = device->recommendedMaxWorkingSetSize();
  info.max_buffer = device->maxBufferLength();
  info.max_threadgroup_bytes = std::min<uint64_t>(device->maxThreadgroupMemoryLength(), kMaxThreadgroupBytes);
  parts->queue = Ref<MTLCommandQueue>::owned(device->newCommandQueue());
  parts->event = Ref<MTLSharedEvent>::owned(device->newSharedEvent());
  if (!parts->queue || !parts->event) return fail(Code::internal, "{} gives no command queue", info.device);
  if (device->respondsToSelector(sel_registerName("newResidencySetWithDescriptor:error:"))) {
    const auto descriptor = make<MTLResidencySetDescriptor>();
    if (descriptor) memory.residency = Ref<MTLResidencySet>::owned(device->newResidencySet(descriptor.get(), nullptr));
    if (memory.residency) parts->queue->addResidencySet(memory.residency.get());
    info.residency_set = bool(memory.residency);
  }
  parts->pipelines = std::make_unique<Pipelines>(device, parts->options, parts->counts);
  ARGENT_TRY(parts->pipelines->probe());
  return std::unique_ptr<MetalDevice>(new MetalDevice(std::move(parts)));
}

MetalDevice::~MetalDevice() {
  const Pool pool;
  (void)wait();
  (void)save_archive();
  if (parts_->memory->residency) parts_->memory->residency->endResidency();
  parts_.reset();
}

const MetalInfo& MetalDevice::metal_info() const { return parts_->info; }
const MetalCounts& MetalDevice::counts() const { return parts_->counts; }

DeviceInfo MetalDevice::info() const {
  const MetalInfo& info = parts_->info;
  return {info.device, info.working_set - std::min(parts_->memory->used, info.working_set), info.max_buffer};
}

// ---- memory

Status MetalDevice::Parts::room_for(uint64_t size) {
  if (size > info.max_buffer) {
    return fail(Code::out_of_memory, "a buffer of {} bytes was asked for; {} allows {} (maxBufferLength)", size,
                info.device, info.max_buffer);
  }
  if (info.working_set && size > info.working_set - std::min(memory->used, info.working_set)) {
    return fail(Code::out_of_memory,
                "a buffer of {} bytes was asked for; {} are in use of the {} that {} can work with "
                "(recommendedMaxWorkingSetSize)",
                size, memory->used, info.working_set, info.device);
  }
  return {};
}

Result<Ref<MTLBuffer>> MetalDevice::Parts::finish_buffer(MTLBuffer* made, uint64_t size) {
  auto buffer = Ref<MTLBuffer>::owned(made);
  if (!buffer) return fail(Code::out_of_memory, "{} gave no buffer of {} bytes", info.device, size);
  return buffer;
}

Result<std::unique_ptr<Buffer>> MetalDevice::alloc(size_t size) {
  const Pool pool;
  if (size == 0) return fail(Code::invalid, "a buffer of 0 bytes was asked for");
  ARGENT_TRY(parts_->room_for(size));
  ARGENT_LET(auto buffer, parts_->finish_buffer(
                              parts_->memory->device->newBufferWithLength(size, MTLResourceStorageModeShared), size));
  return std::unique_ptr<Buffer>(std::make_unique<MetalBuffer>(parts_->memory, std::move(buffer), size, 0, size, true));
}

Result<std::unique_ptr<Buffer>> MetalDevice::wrap(const void* data, size_t size) {
  const Pool pool;
  if (!data || size == 0) return fail(Code::invalid, "a buffer around 0 bytes was asked for");
  // Metal takes whole pages. Those that hold the first and last byte are mapped, so all of them are.
  const uintptr_t page = uintptr_t(sysconf(_SC_PAGESIZE));
  const uintptr_t first = reinterpret_cast<uintptr_t>(data);
  const uintptr_t begin = first & ~(page - 1);
  const uintptr_t length = ((first + size + page - 1) & ~(page - 1)) - begin;
  ARGENT_TRY(parts_->room_for(length));
  MTLDevice* device = parts_->memory->device.get();
  MetalCounts& counts = parts_->counts;
  constexpr auto kOptions = MTLResourceOptions(MTLResourceStorageModeShared | MTLResourceHazardTrackingModeUntracked);
  auto* made = device->newBufferWithBytesNoCopy(reinterpret_cast<const void*>(begin), length, kOptions, nullptr);
  if (made) {
    ++(begin == first && length == size ? counts.wrapped_in_place : counts.wrapped_pages);
    return std::unique_ptr<Buffer>(
        std::make_unique<MetalBuffer>(parts_->memory, Ref<MTLBuffer>::owned(made), length, first - begin, size, false));
  }
  ARGENT_LET(auto buffer, parts_->finish_buffer(device->newBufferWithLength(size, kOptions), size));
  std::memcpy(buffer->contents(), data, size);
  counts.wrapped_copied++;
  return std::unique_ptr<Buffer>(
      std::make_unique<MetalBuffer>(parts_->memory, std::move(buffer), size, 0, size, false));
}

// ---- pipelines

Result<const Pipeline*> MetalDevice::pipeline(std::string_view name, std::span<const FunctionConstant> constants) {
  const Pool pool;
  return parts_->pipelines->get(name, constants);
}

Status MetalDevice::save_archive() {
  const Pool pool;
  return parts_->pipelines->save_archive();
}

// ---- lists

Status MetalDevice::submit(const CommandList& list) {
  for (const Dispatch& dispatch : list.dispatches) ARGENT_TRY(check(dispatch, parts_->info.max_threadgroup_bytes));
  return list.dispatches.empty() ? Status() : start(list, parts_->options.regions, false);
}

Result<std::vector<GpuTime>> MetalDevice::run_timed(const CommandList& list) {
  for (const Dispatch& dispatch : list.dispatches) ARGENT_TRY(check(dispatch, parts_->info.max_threadgroup_bytes));
  ARGENT_TRY(wait());
  parts_->times.clear();
  Status started;
  auto region = list.regions.begin();
  for (size_t n = 0; started && n < list.dispatches.size(); n++) {
    const Dispatch& dispatch = list.dispatches[n];
    while (region != list.regions.end() && region->end <= n) ++region;
    CommandList one{{dispatch}, dispatch.pipeline->name()};
    one.dispatches[0].barrier = false;  // the one before is done
    if (region != list.regions.end()) one.regions = {{1, region->op, region->layer}};
    started = start(one, true, true);
  }
  const Status waited = wait();
  ARGENT_TRY(started);
  ARGENT_TRY(waited);
  std::vector<GpuTime> times = std::exchange(parts_->times, {});
  const double origin = times.empty() ? 0 : times[0].begin;
  double end = 0;
  for (GpuTime& time : times) {
    const double last = time.begin - origin + time.seconds;
    time.begin = std::max(time.begin - origin, end);
    time.seconds = std::max(0.0, last - time.begin);
    end = std::max(end, last);
  }
  return times;
}

Status MetalDevice::start(const CommandList& list, bool named, bool timed) {
  const Pool pool;
  if (parts_->pending.size() >= kMaxPending) {
    parts_->finish_oldest();
    if (parts_->hung) return std::exchange(parts_->first_error, Status());
  }
  Memory& memory = *parts_->memory;
  if (memory.residency_changed) {
    memory.residency->commit();
    memory.residency->requestResidency();
    memory.residency_changed = false;
  }
  MTLCommandBuffer* commands = parts_->queue->commandBuffer();
  MTLComputeCommandEncoder* encoder = commands ? commands->computeCommandEncoder(MTLDispatchTypeConcurrent) : nullptr;
  if (!encoder) return fail(Code::internal, "{} gives no command buffer", parts_->info.device);
  if (named) commands->setLabel(string_of(list.label));
  encode(encoder, list, named, parts_->counts);
  encoder->endEncoding();
  commands->encodeSignalEvent(parts_->event.get(), ++parts_->last_value);
  commands->commit();
  parts_->counts.lists++;
  parts_->pending.push_back({Ref<MTLCommandBuffer>::shared(commands), parts_->last_value, list.dispatches.size(),
                             list.dispatches[0].pipeline->name(), timed});
  return {};
}

// The event wakes it when the GPU is done; the status is what counts, and alone tells of errors, after which the event
// may never come. Hence the short waits.
Status MetalDevice::Parts::finish(const Pending& list) {
  using std::chrono::milliseconds;
  const auto end = Clock::now() + options.deadline;
  hung = false;
  for (;;) {
    const MTLCommandBufferStatus status = list.commands->status();
    if (status == MTLCommandBufferStatusCompleted) {
      const double begin = list.commands->GPUStartTime(), seconds = list.commands->GPUEndTime() - begin;
      counts.gpu_seconds += seconds;
      if (list.timed) times.push_back({begin, seconds});
      return {};
    }
    if (status == MTLCommandBufferStatusError) {
      NSError* error = list.commands->error();
      const NSInteger code = error ? error->code() : 0;
      return fail(code == MTLCommandBufferErrorOutOfMemory ? Code::out_of_memory : Code::internal,
                  "the GPU gave up a list of {} dispatches from {} on: {} ({}: {})", list.dispatches, list.first,
                  reason(code), code, text_of(error));
    }
    const auto left = std::chrono::duration_cast<milliseconds>(end - Clock::now());
    if (left <= milliseconds(0)) {
      hung = true;
      return fail(Code::internal, "the GPU did not finish a list of {} dispatches from {} on within {:.1f} s",
                  list.dispatches, list.first, std::chrono::duration<double>(options.deadline).count());
    }
    const auto slice = std::min(left, milliseconds(100));
    if (event->waitUntilSignaledValue(list.value, uint64_t(slice.count())))
      std::this_thread::sleep_for(std::chrono::microseconds(10));  // until the status follows
  }
}

// After a list that hangs the others would each take as long: they are forgotten, and run if they can.
void MetalDevice::Parts::finish_oldest() {
  Status status = finish(pending.front());
  pending.pop_front();
  if (hung) pending.clear();
  if (!status && first_error) first_error = std::move(status);
}

Status MetalDevice::wait() {
  const Pool pool;
  while (!parts_->pending.empty()) parts_->finish_oldest();
  return std::exchange(parts_->first_error, Status());
}

}  // namespace argent::metal
