#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "backends/metal/apple/parts.h"

namespace argent::metal::apple {

namespace {

std::string size_text(const Size& s) { return fmt::format("{} x {} x {}", s.x, s.y, s.z); }

Status check_sizes(const Dispatch& dispatch, const MetalPipeline& pipeline, uint64_t max_threadgroup_bytes) {
  const std::string& name = pipeline.name();
  const uint64_t threads = dispatch.threads.count();
  if (threads == 0 || threads > kMaxThreads || threads % kSimdWidth) {
    return fail(Code::invalid, "{}: {} threads in a threadgroup, must be a multiple of {} up to {}", name,
                size_text(dispatch.threads), kSimdWidth, kMaxThreads);
  }
  if (threads > pipeline.most_threads) {
    return fail(Code::unsupported, "{}: {} threads in a threadgroup; on this GPU the kernel can have {}", name, threads,
                pipeline.most_threads);
  }
  if (dispatch.grid.count() == 0)
    return fail(Code::invalid, "{}: a grid of {} threadgroups", name, size_text(dispatch.grid));
  if (dispatch.threadgroup_bytes.size() > kMaxThreadgroupArguments) {
    return fail(Code::invalid, "{}: {} threadgroup arguments, at most {}", name, dispatch.threadgroup_bytes.size(),
                kMaxThreadgroupArguments);
  }
  uint64_t used = pipeline.static_threadgroup_bytes;
  for (size_t i = 0; i < dispatch.threadgroup_bytes.size(); i++) {
    const uint32_t bytes = dispatch.threadgroup_bytes[i];
    if (bytes % 16)
      return fail(Code::invalid, "{}: threadgroup({}) has {} bytes, must be a multiple of 16", name, i, bytes);
    used += bytes;
  }
  if (used > max_threadgroup_bytes) {
    return fail(Code::invalid, "{}: {} bytes of threadgroup memory, {} of them the kernel's own; at most {}", name,
                used, pipeline.static_threadgroup_bytes, max_threadgroup_bytes);
  }
  return {};
}

Status check_buffer(const std::string& name, const KernelArgument& p, const Dispatch::Bound& bound) {
  const auto& buffer = static_cast<const MetalBuffer&>(*bound.buffer);
  const size_t length = buffer.bytes().size();
  if (bound.offset >= length) {
    return fail(Code::invalid, "{}: buffer({}) {} starts at {} of {} bytes", name, p.index, p.name, bound.offset,
                length);
  }
  if (bound.size > length - bound.offset) {
    return fail(Code::invalid, "{}: buffer({}) {} has {} bytes from {} on, of {}", name, p.index, p.name, bound.size,
                bound.offset, length);
  }
  if ((buffer.offset() + bound.offset) % 4) {
    return fail(Code::invalid, "{}: buffer({}) {} starts at {} bytes, must be a multiple of 4", name, p.index, p.name,
                bound.offset);
  }
  if (p.written && !buffer.writable())
    return fail(Code::invalid, "{}: buffer({}) {} is written, but may only be read", name, p.index, p.name);
  const size_t size = bound.size ? bound.size : length - bound.offset;
  if (size < p.size) {
    return fail(Code::invalid, "{}: buffer({}) {} has {} bytes, the kernel reads {}", name, p.index, p.name, size,
                p.size);
  }
  return {};
}

Status check_value(const std::string& name, const KernelArgument& p, const Dispatch::Value& value) {
  if (value.bytes.size() > kMaxArgumentBytes) {
    return fail(Code::invalid, "{}: argument {} has {} bytes, at most {}", name, p.name, value.bytes.size(),
                kMaxArgumentBytes);
  }
  if (p.written)
    return fail(Code::invalid, "{}: buffer({}) {} is written, but is given by value", name, p.index, p.name);
  if (value.bytes.size() < std::max<size_t>(p.size, 1)) {
    return fail(Code::invalid, "{}: buffer({}) {} has {} bytes, the kernel reads {}", name, p.index, p.name,
                value.bytes.size(), p.size);
  }
  return {};
}

std::string title(const Region& region) {
  return region.layer < 0 ? std::string(region.op) : fmt::format("layer {} {}", region.layer, region.op);
}

}  // namespace

Status check(const Dispatch& dispatch, uint64_t max_threadgroup_bytes) {
  const auto* pipeline = static_cast<const MetalPipeline*>(dispatch.pipeline);
  if (!pipeline) return fail(Code::invalid, "a dispatch has no pipeline");
  const std::string& name = pipeline->name();
  ARGENT_TRY(check_sizes(dispatch, *pipeline, max_threadgroup_bytes));
  for (const auto& bound : dispatch.buffers) {
    if (bound.index >= kMaxBuffers) return fail(Code::invalid, "{}: there is no buffer({})", name, bound.index);
  }
  for (const auto& value : dispatch.values) {
    if (value.index >= kMaxBuffers) return fail(Code::invalid, "{}: there is no buffer({})", name, value.index);
  }
  for (const KernelArgument& p : pipeline->text->arguments) {
    if (p.kind == Argument::threadgroup) {
      if (p.index >= dispatch.threadgroup_bytes.size() || dispatch.threadgroup_bytes[p.index] == 0)
        return fail(Code::invalid, "{}: threadgroup({}) {} has no length", name, p.index, p.name);
      continue;
    }
    bool set = false;
    for (const auto& bound : dispatch.buffers) {
      if (bound.index != p.index || !bound.buffer) continue;
      ARGENT_TRY(check_buffer(name, p, bound));
      set = true;
    }
    for (const auto& value : dispatch.values) {
      if (value.index != p.index) continue;
      ARGENT_TRY(check_value(name, p, value));
      set = true;
    }
    if (!set) return fail(Code::invalid, "{}: buffer({}) {} is not set", name, p.index, p.name);
  }
  return {};
}

void encode(MTLComputeCommandEncoder* encoder, const CommandList& list, bool named, MetalCounts& counts) {
  struct Slot {
    MTLBuffer* buffer = nullptr;
    size_t offset = 0;
    const std::vector<std::byte>* value = nullptr;
  };
  std::array<Slot, kMaxBuffers> slots;
  std::array<uint32_t, kMaxThreadgroupArguments> lengths{};
  const MetalPipeline* current = nullptr;
  if (named) encoder->setLabel(string_of(list.label));
  auto region = list.regions.begin();
  const auto end = named ? list.regions.end() : region;
  bool inside = false;  // a group of the region is open
  for (size_t n = 0; n < list.dispatches.size(); n++) {
    const Dispatch& dispatch = list.dispatches[n];
    while (region != end && region->end <= n) {
      if (inside) encoder->popDebugGroup();
      inside = false;
      ++region;
    }
    if (region != end && !inside) encoder->pushDebugGroup(string_of(title(*region)));
    inside = region != end;
    if (dispatch.barrier) {
      encoder->memoryBarrierWithScope(MTLBarrierScopeBuffers);
      counts.barriers++;
    }
    const auto* pipeline = static_cast<const MetalPipeline*>(dispatch.pipeline);
    if (pipeline != current) encoder->setComputePipelineState(pipeline->state.get());
    current = pipeline;
    for (const auto& bound : dispatch.buffers) {
      if (!bound.buffer) continue;
      const auto& buffer = static_cast<const MetalBuffer&>(*bound.buffer);
      const Slot wanted{buffer.buffer(), buffer.offset() + bound.offset, nullptr};
      Slot& slot = slots[bound.index];
      if (slot.buffer == wanted.buffer && slot.offset == wanted.offset) continue;
      encoder->setBuffer(wanted.buffer, wanted.offset, bound.index);
      counts.buffers_set++;
      slot = wanted;
    }
    for (const auto& value : dispatch.values) {
      Slot& slot = slots[value.index];
      if (slot.value && *slot.value == value.bytes) continue;
      encoder->setBytes(value.bytes.data(), value.bytes.size(), value.index);
      counts.values_set++;
      slot = {nullptr, 0, &value.bytes};
    }
    for (size_t i = 0; i < dispatch.threadgroup_bytes.size(); i++) {
      const uint32_t length = dispatch.threadgroup_bytes[i];
      if (length && length != lengths[i]) encoder->setThreadgroupMemoryLength(length, i);
      if (length) lengths[i] = length;
    }
    encoder->dispatchThreadgroups(MTLSize{dispatch.grid.x, dispatch.grid.y, dispatch.grid.z},
                                  MTLSize{dispatch.threads.x, dispatch.threads.y, dispatch.threads.z});
    counts.dispatches++;
  }
  if (inside) encoder->popDebugGroup();
}

}  // namespace argent::metal::apple
