#include "backends/metal/emu/device.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <mutex>

#include "base/system_memory.h"

namespace argent::emu {

namespace {

std::vector<const Library*>& libraries() {
  static std::vector<const Library*> all;
  return all;
}

// Where a gap around memory begins and ends does not matter to programs; that there is one keeps buffers apart.
constexpr size_t kBufferGap = 256;

class EmuBuffer : public metal::Buffer {
 public:
  explicit EmuBuffer(size_t size) : memory_(size + 3 * kBufferGap, 0xfb) {
    auto* base = memory_.data() + kBufferGap;
    region_.base = base + (-reinterpret_cast<uintptr_t>(base) & (kBufferGap - 1));
    region_.size = size;
    region_.known.assign(size, 0);
    writable_ = true;
  }
  EmuBuffer(const void* data, size_t size) {
    region_.base = static_cast<uint8_t*>(const_cast<void*>(data));
    region_.size = size;
  }
  std::span<const std::byte> bytes() const override {
    return {reinterpret_cast<const std::byte*>(region_.base), region_.size};
  }
  std::span<std::byte> fill(size_t offset, size_t size) override {
    if (writable_) std::memset(region_.known.data() + offset, 1, size);
    return {reinterpret_cast<std::byte*>(region_.base) + offset, size};
  }
  bool writable() const { return writable_; }
  Region& region() const { return region_; }

 private:
  std::vector<uint8_t> memory_;
  mutable Region region_;
  bool writable_ = false;
};

class EmuPipeline : public metal::Pipeline {
 public:
  EmuPipeline(std::string name, const Kernel& kernel, const Library& library,
              std::vector<metal::FunctionConstant> constants)
      : kernel(kernel), library(library), constants(std::move(constants)), name_(std::move(name)) {
    for (int i = 0; i < kernel.parameter_count; i++) {
      const Parameter& p = kernel.parameters[i];
      using metal::Argument;
      const auto kind = p.kind == 't' ? Argument::threadgroup : p.size ? Argument::value : Argument::buffer;
      arguments_.push_back({kind, p.index, p.writable, p.name});
    }
  }
  const std::string& name() const override { return name_; }
  std::span<const metal::Argument> arguments() const override { return arguments_; }
  const Kernel& kernel;
  const Library& library;
  const std::vector<metal::FunctionConstant> constants;

 private:
  std::string name_;
  std::vector<metal::Argument> arguments_;
};

const Constant* constant_of(const Library& library, uint32_t index) {
  for (int i = 0; i < library.constant_count; i++) {
    if (library.constants[i].index == index) return &library.constants[i];
  }
  return nullptr;
}

char type_of(const metal::FunctionConstant& constant) { return "biuf"[constant.value.index()]; }

std::string size_text(const metal::Size& s) { return fmt::format("{} x {} x {}", s.x, s.y, s.z); }

}  // namespace

int add_library(const Library* library) {
  libraries().push_back(library);
  return 0;
}

bool checked() { return Machine::instrumented; }

std::vector<std::string> kernel_names(int variant) {
  std::vector<std::string> names;
  for (const Library* library : libraries()) {
    if (library->variant != variant) continue;
    for (int i = 0; i < library->kernel_count; i++) names.push_back(library->kernels[i].name);
  }
  return names;
}

struct EmuDevice::Prepared {
  Run run;
  std::vector<Range> ranges;
  std::vector<std::vector<std::byte>> values;  // what by-value arguments point to
};

metal::DeviceInfo EmuDevice::info() const {
  return {checked() ? "Metal, emulated and checked" : "Metal, emulated", available_memory(), UINT64_MAX};
}

Result<std::unique_ptr<metal::Buffer>> EmuDevice::alloc(size_t size) {
  if (size == 0) return fail(Code::invalid, "a buffer of 0 bytes was asked for");
  return std::unique_ptr<metal::Buffer>(std::make_unique<EmuBuffer>(size));
}

Result<std::unique_ptr<metal::Buffer>> EmuDevice::wrap(const void* data, size_t size) {
  if (!data || size == 0) return fail(Code::invalid, "a buffer around 0 bytes was asked for");
  return std::unique_ptr<metal::Buffer>(std::make_unique<EmuBuffer>(data, size));
}

Result<const metal::Pipeline*> EmuDevice::pipeline(std::string_view name,
                                                   std::span<const metal::FunctionConstant> constants) {
  std::string key(name);
  for (const auto& c : constants) {
    key += std::visit([&](auto v) { return fmt::format(" {}{}={}", type_of(c), c.index, v); }, c.value);
  }
  if (const auto found = pipelines_.find(key); found != pipelines_.end()) return found->second.get();
  const Library* library = nullptr;
  const Kernel* kernel = nullptr;
  for (const Library* candidate : libraries()) {
    if (candidate->variant != 0 && candidate->variant != options_.variant) continue;
    if (library && library->variant >= candidate->variant) continue;
    for (int i = 0; i < candidate->kernel_count; i++) {
      if (candidate->kernels[i].name != name) continue;
      library = candidate;
      kernel = &candidate->kernels[i];
    }
  }
  if (!kernel) return fail(Code::not_found, "there is no kernel {}", name);
  for (const auto& given : constants) {
    const Constant* wanted = constant_of(*library, given.index);
    if (!wanted) return fail(Code::invalid, "{}: there is no function constant {}", name, given.index);
    if (wanted->type != type_of(given)) {
      return fail(Code::invalid, "{}: function constant {} ({}) has another type than the value given", name,
                  given.index, wanted->name);
    }
  }
  for (int i = 0; i < kernel->constant_count; i++) {
    const uint8_t index = kernel->constants[i];
    if (std::none_of(constants.begin(), constants.end(), [&](const auto& c) { return c.index == index; })) {
      return fail(Code::invalid, "{} needs function constant {} ({})", name, index, constant_of(*library, index)->name);
    }
  }
  auto made = std::make_unique<EmuPipeline>(std::string(name), *kernel, *library,
                                            std::vector<metal::FunctionConstant>(constants.begin(), constants.end()));
  return pipelines_.emplace(std::move(key), std::move(made)).first->second.get();
}

Result<EmuDevice::Prepared> EmuDevice::prepare(const metal::Dispatch& dispatch) const {
  const auto* pipeline = static_cast<const EmuPipeline*>(dispatch.pipeline);
  if (!pipeline) return fail(Code::invalid, "a dispatch has no pipeline");
  const std::string& name = pipeline->name();
  const Kernel& kernel = pipeline->kernel;
  Prepared made;
  made.run.kernel = &kernel;
  made.run.grid = dispatch.grid;
  made.run.threads = dispatch.threads;
  const uint64_t threads = dispatch.threads.count();
  if (threads == 0 || threads > metal::kMaxThreads || threads % metal::kSimdWidth) {
    return fail(Code::invalid, "{}: {} threads in a threadgroup, must be a multiple of 32 up to {}", name,
                size_text(dispatch.threads), metal::kMaxThreads);
  }
  if (dispatch.grid.count() == 0)
    return fail(Code::invalid, "{}: a grid of {} threadgroups", name, size_text(dispatch.grid));
  if (dispatch.threadgroup_bytes.size() > metal::kMaxThreadgroupArguments) {
    return fail(Code::invalid, "{}: {} threadgroup arguments, at most {}", name, dispatch.threadgroup_bytes.size(),
                metal::kMaxThreadgroupArguments);
  }
  uint64_t used = 0;
  for (size_t i = 0; i < dispatch.threadgroup_bytes.size(); i++) {
    const uint32_t bytes = dispatch.threadgroup_bytes[i];
    if (bytes % 16)
      return fail(Code::invalid, "{}: threadgroup({}) has {} bytes, must be a multiple of 16", name, i, bytes);
    made.run.threadgroup_bytes[i] = bytes;
    used += bytes;
  }
  if (used > metal::kMaxThreadgroupBytes) {
    return fail(Code::invalid, "{}: {} bytes of threadgroup memory, at most {}", name, used,
                metal::kMaxThreadgroupBytes);
  }
  for (int i = 0; i < kernel.parameter_count; i++) {
    const Parameter& p = kernel.parameters[i];
    if (p.kind == 't') {
      if (!made.run.threadgroup_bytes[p.index])
        return fail(Code::invalid, "{}: threadgroup({}) {} has no length", name, p.index, p.name);
      continue;
    }
    Range range;
    range.index = p.index;
    range.writable = p.writable;
    range.space = p.kind == 'c';
    for (const auto& bound : dispatch.buffers) {
      if (bound.index != p.index || !bound.buffer) continue;
      const auto& buffer = static_cast<const EmuBuffer&>(*bound.buffer);
      if (bound.offset > buffer.region().size) {
        return fail(Code::invalid, "{}: buffer({}) {} starts at {} of {} bytes", name, p.index, p.name, bound.offset,
                    buffer.region().size);
      }
      if (bound.size > buffer.region().size - bound.offset) {
        return fail(Code::invalid, "{}: buffer({}) {} has {} bytes from {} on, of {}", name, p.index, p.name,
                    bound.size, bound.offset, buffer.region().size);
      }
      if (p.writable && !buffer.writable())
        return fail(Code::invalid, "{}: buffer({}) {} is written, but may only be read", name, p.index, p.name);
      range.base = buffer.region().base + bound.offset;
      range.size = bound.size ? bound.size : buffer.region().size - bound.offset;
      range.region = &buffer.region();
    }
    for (const auto& value : dispatch.values) {
      if (value.index != p.index) continue;
      if (value.bytes.size() > metal::kMaxArgumentBytes) {
        return fail(Code::invalid, "{}: argument {} has {} bytes, at most {}", name, p.name, value.bytes.size(),
                    metal::kMaxArgumentBytes);
      }
      if (p.writable)
        return fail(Code::invalid, "{}: buffer({}) {} is written, but is given by value", name, p.index, p.name);
      made.values.push_back(value.bytes);
      range.base = reinterpret_cast<uint8_t*>(made.values.back().data());
      range.size = value.bytes.size();
    }
    if (!range.base) return fail(Code::invalid, "{}: buffer({}) {} is not set", name, p.index, p.name);
    if (range.size < p.size) {
      return fail(Code::invalid, "{}: buffer({}) {} has {} bytes, the kernel reads {}", name, p.index, p.name,
                  range.size, p.size);
    }
    made.run.arguments.buffer[p.index] = range.base;
    made.ranges.push_back(range);
  }
  return made;
}

metal::Status EmuDevice::submit(const metal::CommandList& list) {
  static std::mutex one_at_a_time;  // there is one machine
  const std::lock_guard lock(one_at_a_time);
  std::vector<Prepared> prepared;
  std::set<Region*> written;
  for (const metal::Dispatch& dispatch : list.dispatches) {
    auto made = prepare(dispatch);
    if (!made) return made.error();
    for (const Range& range : made->ranges) {
      if (range.writable) written.insert(range.region);
    }
    prepared.push_back(std::move(*made));
  }
  Machine& machine = Machine::get();
  const bool check = options_.check && Machine::instrumented;
  for (Region* region : written) {
    if (check && region->shadow.empty()) region->shadow.assign(3 * region->size, 0);
  }
  machine.memory.new_list();
  for (size_t i = 0; i < prepared.size(); i++) {
    if (list.dispatches[i].barrier) machine.memory.new_list();
    Prepared& next = prepared[i];
    next.run.dispatch = uint32_t(i);
    const auto* pipeline = static_cast<const EmuPipeline*>(list.dispatches[i].pipeline);
    for (const auto& constant : pipeline->constants) {
      void* place = constant_of(pipeline->library, constant.index)->value;
      std::visit([&](auto value) { std::memcpy(place, &value, sizeof value); }, constant.value);
    }
    machine.memory.ranges = std::move(next.ranges);
    Work work;
    const bool finished = machine.run(next.run, options_.order, options_.seed + i, options_.check, findings_, work);
    if (options_.count) work_.push_back({pipeline->name(), work});
    if (!finished) break;  // what follows would work on what is not there
  }
  machine.memory.ranges.clear();
  return {};
}

metal::Status EmuDevice::wait() {
  if (reported_ == findings_.size()) return {};
  const size_t first = reported_;
  reported_ = findings_.size();
  return fail(Code::internal, "{} faults found, the first: {}", findings_.size() - first, findings_[first].line());
}

void EmuDevice::forget() {
  findings_.clear();
  work_.clear();
  reported_ = 0;
}

}  // namespace argent::emu
