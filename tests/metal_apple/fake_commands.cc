// Command buffers and encoders of the fake Metal: what is encoded runs in the emulator when it is committed.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "metal_apple/fake_objects.h"

namespace argent::fake {

namespace {

bool index_ok(NSUInteger index, const char* selector) {
  if (index >= metal::kMaxBuffers)
    complain(fmt::format("{} at index {}, at most {}", selector, index, metal::kMaxBuffers - 1));
  return index < metal::kMaxBuffers;
}

void commit(CommandBuffer* c) {
  if (c->open) return complain("commit before endEncoding");
  if (c->committed()) return complain("commit of a command buffer that was committed");
  c->status = MTLCommandBufferStatusScheduled;
  c->outcome = MTLCommandBufferStatusCompleted;
  c->late = settings().late;
  c->queue->running.push_back(c);
  c->gpu_start = c->queue->gpu_now + settings().gpu_gap;
  c->gpu_end = c->queue->gpu_now = c->gpu_start + settings().gpu_seconds;
  settings().gpu_seconds += settings().gpu_longer;
  if (settings().hang) return;
  if (const auto code = std::exchange(settings().command_error, 0)) {
    c->outcome = MTLCommandBufferStatusError;
    c->error_code = code;
    c->error_text = "The fake was told to fail.\nIts second line";
    return;
  }
  for (const auto& list : c->lists) {
    metal::Status ran = c->queue->emulator->submit(list);
    if (!ran) complain("a dispatch does not fit its kernel: " + ran.error().message);
    if (ran) ran = c->queue->emulator->wait();
    if (ran) continue;
    c->outcome = MTLCommandBufferStatusError;
    c->error_code = MTLCommandBufferErrorInternal;
    c->error_text = ran.error().message;
  }
}

void dispatch(Encoder* e, MTLSize grid, MTLSize threads) {
  if (!e->usable("dispatchThreadgroups:threadsPerThreadgroup:")) return;
  if (!e->pipeline) return complain("a dispatch without a pipeline");
  const metal::Pipeline& kernel = *e->pipeline->kernel;
  encoded().push_back("dispatch " + kernel.name());
  const NSUInteger count = threads.width * threads.height * threads.depth;
  if (count == 0 || grid.width * grid.height * grid.depth == 0) return complain("a dispatch of no threads");
  if (count > settings().max_threads)
    return complain(fmt::format("{} threads, the pipeline has {}", count, settings().max_threads));
  if (e->pipeline->multiple && count % settings().simd_width)
    return complain(fmt::format("{} threads are no multiple of the width, as the descriptor says", count));
  metal::Dispatch d;
  d.pipeline = &kernel;
  d.grid = {uint32_t(grid.width), uint32_t(grid.height), uint32_t(grid.depth)};
  d.threads = {uint32_t(threads.width), uint32_t(threads.height), uint32_t(threads.depth)};
  d.barrier = e->barrier || e->type == MTLDispatchTypeSerial;
  e->barrier = false;
  uint64_t memory = settings().static_threadgroup_bytes;
  for (const metal::Argument& a : kernel.arguments()) {
    if (a.kind == metal::Argument::threadgroup) {
      if (d.threadgroup_bytes.size() <= a.index) d.threadgroup_bytes.resize(a.index + 1);
      d.threadgroup_bytes[a.index] = e->lengths[a.index];
      memory += e->lengths[a.index];
      if (!e->lengths[a.index])
        return complain(fmt::format("{}: threadgroup({}) has no length", kernel.name(), a.index));
      continue;
    }
    const Encoder::Slot& slot = e->slots[a.index];
    if (slot.buffer) {
      d.bind(a.index, *slot.buffer->memory, slot.offset);
      e->commands->held.emplace_back(slot.buffer.get());
    } else if (slot.bytes) {
      d.values.push_back({a.index, *slot.bytes});
    } else {
      return complain(fmt::format("{}: buffer({}) {} is not set", kernel.name(), a.index, a.name));
    }
  }
  if (memory > metal::kMaxThreadgroupBytes) return complain(fmt::format("{} bytes of threadgroup memory", memory));
  e->commands->held.emplace_back(e->pipeline.get());
  e->list.dispatches.push_back(std::move(d));
}

}  // namespace

void CommandBuffer::finish() {
  status = outcome;
  std::erase(queue->running, this);
  held.clear();
  if (status != MTLCommandBufferStatusCompleted) return;
  for (auto& [event, value] : signals) event->value = std::max(event->value, value);
}

// Time passes when somebody looks.
void CommandBuffer::look() {
  if (!committed() || status >= MTLCommandBufferStatusCompleted || settings().hang) return;
  if (late-- > 0) return;
  finish();
}

void define_commands() {
  method<MTLCommandQueue::commandBuffer_type>(
      "MTLCommandQueue", "commandBuffer", [](void* self, SEL) -> MTLCommandBuffer* {
        if (in<Queue>(self)->running.size() >= 64) complain("a 65th command buffer waits for one to be done");
        return out<MTLCommandBuffer>(autorelease(new CommandBuffer(in<Queue>(self))));
      });
  method<MTLCommandQueue::addResidencySet_type>("MTLCommandQueue",
                                                "addResidencySet:", [](void* self, SEL, MTLResidencySet* set) {
                                                  in<Queue>(self)->sets.emplace_back(in<ResidencySet>(set));
                                                });
  method<MTLCommandBuffer::computeCommandEncoder_type>(
      "MTLCommandBuffer",
      "computeCommandEncoderWithDispatchType:", [](void* self, SEL, MTLDispatchType type) -> MTLComputeCommandEncoder* {
        auto* c = in<CommandBuffer>(self);
        if (c->open) complain("an encoder while another is open");
        if (c->committed()) complain("an encoder of a command buffer that was committed");
        c->open = new Encoder(c, type);
        return out<MTLComputeCommandEncoder>(autorelease(c->open));
      });
  method<MTLCommandBuffer::encodeSignalEvent_type>(
      "MTLCommandBuffer", "encodeSignalEvent:value:", [](void* self, SEL, MTLSharedEvent* event, uint64_t value) {
        auto* c = in<CommandBuffer>(self);
        if (c->open) complain("encodeSignalEvent:value: while an encoder is open");
        if (c->committed()) complain("encodeSignalEvent:value: after commit");
        if (value <= in<SharedEvent>(event)->value) complain("an event is signaled a value that it has");
        in<SharedEvent>(event)->promised = value;
        c->signals.emplace_back(Held<SharedEvent>(in<SharedEvent>(event)), value);
      });
  method<MTLCommandBuffer::commit_type>("MTLCommandBuffer", "commit",
                                        [](void* self, SEL) { commit(in<CommandBuffer>(self)); });
  method<MTLCommandBuffer::status_type>("MTLCommandBuffer", "status", [](void* self, SEL) -> MTLCommandBufferStatus {
    in<CommandBuffer>(self)->look();
    return in<CommandBuffer>(self)->status;
  });
  method<MTLCommandBuffer::error_type>("MTLCommandBuffer", "error", [](void* self, SEL) -> NSError* {
    auto* c = in<CommandBuffer>(self);
    if (c->status != MTLCommandBufferStatusError) return nullptr;
    return out<NSError>(autorelease(new Error(c->error_code, c->error_text)));
  });
  static const auto time = [](void* self, double CommandBuffer::*value) {
    if (in<CommandBuffer>(self)->status >= MTLCommandBufferStatusCompleted) return in<CommandBuffer>(self)->*value;
    complain("a GPU time of a command buffer that is not done");
    return 0.0;
  };
  method<MTLCommandBuffer::GPUStartTime_type>("MTLCommandBuffer", "GPUStartTime", [](void* self, SEL) -> double {
    return time(self, &CommandBuffer::gpu_start);
  });
  method<MTLCommandBuffer::GPUEndTime_type>(
      "MTLCommandBuffer", "GPUEndTime", [](void* self, SEL) -> double { return time(self, &CommandBuffer::gpu_end); });
  define_label<MTLCommandBuffer>("MTLCommandBuffer");
}

void define_encoder() {
  constexpr const char* kEncoder = "MTLComputeCommandEncoder";
  using E = MTLComputeCommandEncoder;
  method<E::setComputePipelineState_type>(
      kEncoder, "setComputePipelineState:", [](void* self, SEL, MTLComputePipelineState* pipeline) {
        auto* e = in<Encoder>(self);
        if (!e->usable("setComputePipelineState:")) return;
        if (!pipeline) return complain("a pipeline of nil is set");
        e->pipeline = Held<Pipeline>(in<Pipeline>(pipeline));
      });
  method<E::setBuffer_type>(
      kEncoder,
      "setBuffer:offset:atIndex:", [](void* self, SEL, MTLBuffer* buffer, NSUInteger offset, NSUInteger index) {
        auto* e = in<Encoder>(self);
        if (!e->usable("setBuffer:offset:atIndex:") || !index_ok(index, "setBuffer:offset:atIndex:")) return;
        encoded().push_back(fmt::format("buffer {}", index));
        auto* b = in<Buffer>(buffer);
        if (b && offset >= b->length())
          return complain(fmt::format("a buffer's offset {} of {} bytes", offset, b->length()));
        if (offset % 4) return complain(fmt::format("a buffer's offset {} is no multiple of 4", offset));
        e->slots[index] = {Held<Buffer>(b), offset, std::nullopt};
      });
  method<E::setBytes_type>(kEncoder, "setBytes:length:atIndex:",
                           [](void* self, SEL, const void* bytes, NSUInteger length, NSUInteger index) {
                             auto* e = in<Encoder>(self);
                             if (!e->usable("setBytes:length:atIndex:") || !index_ok(index, "setBytes:length:atIndex:"))
                               return;
                             encoded().push_back(fmt::format("bytes {}", index));
                             if (length == 0 || length > 4096)
                               return complain(fmt::format("setBytes:length:atIndex: of {} bytes", length));
                             const auto* first = static_cast<const std::byte*>(bytes);
                             e->slots[index] = {Held<Buffer>(), 0, std::vector<std::byte>(first, first + length)};
                           });
  method<E::setThreadgroupMemoryLength_type>(
      kEncoder, "setThreadgroupMemoryLength:atIndex:", [](void* self, SEL, NSUInteger length, NSUInteger index) {
        auto* e = in<Encoder>(self);
        if (!e->usable("setThreadgroupMemoryLength:atIndex:")) return;
        if (!index_ok(index, "setThreadgroupMemoryLength:atIndex:")) return;
        encoded().push_back(fmt::format("threadgroup {}", index));
        if (length % 16) return complain(fmt::format("a threadgroup length of {}, no multiple of 16", length));
        e->lengths[index] = uint32_t(length);
      });
  method<E::memoryBarrierWithScope_type>(kEncoder,
                                         "memoryBarrierWithScope:", [](void* self, SEL, MTLBarrierScope scope) {
                                           auto* e = in<Encoder>(self);
                                           if (!e->usable("memoryBarrierWithScope:")) return;
                                           encoded().push_back("barrier");
                                           if (!(scope & 1)) complain("a barrier that does not name buffers");
                                           e->barrier = true;
                                         });
  method<E::dispatchThreadgroups_type>(
      kEncoder, "dispatchThreadgroups:threadsPerThreadgroup:", [](void* self, SEL, MTLSize grid, MTLSize threads) {
        dispatch(in<Encoder>(self), grid, threads);
      });
  define_label<E>(kEncoder);
  method<E::pushDebugGroup_type>(kEncoder, "pushDebugGroup:", [](void* self, SEL, NSString* name) {
    auto* e = in<Encoder>(self);
    if (!e->usable("pushDebugGroup:")) return;
    if (!name) return complain("pushDebugGroup: of nil");
    encoded().push_back("push " + in<String>(name)->text);
    e->groups++;
  });
  method<E::popDebugGroup_type>(kEncoder, "popDebugGroup", [](void* self, SEL) {
    auto* e = in<Encoder>(self);
    if (!e->usable("popDebugGroup")) return;
    if (e->groups == 0) return complain("popDebugGroup without pushDebugGroup:");
    encoded().push_back("pop");
    e->groups--;
  });
  method<E::endEncoding_type>(kEncoder, "endEncoding", [](void* self, SEL) {
    auto* e = in<Encoder>(self);
    if (!e->usable("endEncoding")) return;
    if (e->groups) complain(fmt::format("endEncoding with {} debug groups open", e->groups));
    e->ended = true;
    e->commands->open = nullptr;
    e->commands->lists.push_back(std::move(e->list));
    e->commands.reset();
  });
}

}  // namespace argent::fake
