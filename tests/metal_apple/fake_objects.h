// The objects of the fake Metal.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backends/metal/apple/api.h"
#include "backends/metal/emu/device.h"
#include "metal_apple/fake.h"

namespace argent::fake {

using namespace metal::apple;

using Emulator = std::shared_ptr<emu::EmuDevice>;

struct String : Object {
  explicit String(std::string s) : Object("NSString"), text(std::move(s)) {}
  std::string text;
};

struct Error : Object {
  Error(NSInteger code, std::string s) : Object("NSError"), code(code), text(std::move(s)) {}
  NSInteger code;
  std::string text;
};

struct Url : Object {
  explicit Url(std::string s) : Object("NSURL"), path(std::move(s)) {}
  std::string path;
};

struct Array : Object {
  explicit Array(Object* object) : Object("NSArray"), first(object) {}
  void drop() override { first.reset(); }
  Held<Object> first;
};

struct Constants : Object {
  Constants() : Object("MTLFunctionConstantValues") {}
  std::map<uint32_t, metal::FunctionConstant> values;
};

struct Library : Object {
  explicit Library(Emulator e, std::string text)
      : Object("MTLLibrary"), emulator(std::move(e)), text(std::move(text)) {}
  Emulator emulator;
  std::string text;
  bool has(const std::string& name) const;
};

struct Function : Object {
  Function() : Object("MTLFunction") {}
  const metal::Pipeline* kernel = nullptr;
};

struct CompileOptions : Object {
  CompileOptions() : Object("MTLCompileOptions") {}
  NSUInteger version = 0;
};

struct PipelineDescriptor : Object {
  PipelineDescriptor() : Object("MTLComputePipelineDescriptor") {}
  void drop() override {
    function.reset();
    archives.reset();
  }
  Held<Function> function;
  Held<Array> archives;
  bool multiple = false;
};

struct Pipeline : Object {
  Pipeline() : Object("MTLComputePipelineState") {}
  const metal::Pipeline* kernel = nullptr;
  bool multiple = false;
};

struct ArchiveDescriptor : Object {
  ArchiveDescriptor() : Object("MTLBinaryArchiveDescriptor") {}
  void drop() override { url.reset(); }
  Held<Url> url;
};

struct Archive : Object {
  Archive() : Object("MTLBinaryArchive") {}
  std::string names = "\n";  // each with a line end before and behind it
};

struct Device : Object {
  Device() : Object("MTLDevice") {}
  Emulator emulator = std::make_shared<emu::EmuDevice>(emu::Options{.count = false});
  bool has_residency = !settings().no_residency_sets;
};

struct Buffer : Object {
  explicit Buffer(std::unique_ptr<metal::Buffer> m) : Object("MTLBuffer"), memory(std::move(m)) {}
  size_t length() const { return memory->bytes().size(); }
  void drop() override { memory.reset(); }
  std::unique_ptr<metal::Buffer> memory;
};

struct ResidencySet : Object {
  ResidencySet() : Object("MTLResidencySet") {}
  void drop() override {
    if (requested) complain("a residency set is released that still asks for residency");
    members.clear();
    removed.clear();
  }
  std::map<Object*, Held<Object>> members;
  std::vector<Held<Object>> removed;  // until the next commit
  bool changed = false, requested = false;
};

struct SharedEvent : Object {
  SharedEvent() : Object("MTLSharedEvent") {}
  uint64_t value = 0, promised = 0;  // promised: encoded to be signaled
};

struct Queue : Object {
  Queue(Emulator e) : Object("MTLCommandQueue"), emulator(std::move(e)) {}
  void drop() override { sets.clear(); }
  Emulator emulator;
  std::vector<Held<ResidencySet>> sets;
  std::vector<Object*> running;  // committed and not known to be done
  double gpu_now = 100;          // seconds of the GPU's clock
};

struct Encoder;

struct CommandBuffer : Object {
  explicit CommandBuffer(Queue* q) : Object("MTLCommandBuffer"), queue(q) {}
  void drop() override {
    std::erase(queue->running, this);
    queue.reset();
    held.clear();
    signals.clear();
  }
  Held<Queue> queue;
  std::vector<Held<Object>> held;  // what it retains until it is done
  std::vector<metal::CommandList> lists;
  std::vector<std::pair<Held<SharedEvent>, uint64_t>> signals;
  Encoder* open = nullptr;
  MTLCommandBufferStatus status = MTLCommandBufferStatusNotEnqueued;
  MTLCommandBufferStatus outcome = MTLCommandBufferStatusNotEnqueued;
  NSInteger error_code = 0;
  std::string error_text;
  int late = 0;
  double gpu_start = 0, gpu_end = 0;

  bool committed() const { return status >= MTLCommandBufferStatusCommitted; }
  void finish();
  void look();
};

struct Encoder : Object {
  Encoder(CommandBuffer* c, MTLDispatchType type) : Object("MTLComputeCommandEncoder"), commands(c), type(type) {}
  void drop() override {
    if (!ended) complain("an encoder is released before endEncoding");
    commands.reset();
    pipeline.reset();
    for (Slot& slot : slots) slot = {};
  }
  struct Slot {
    Held<Buffer> buffer;
    size_t offset = 0;
    std::optional<std::vector<std::byte>> bytes;
  };
  Held<CommandBuffer> commands;
  MTLDispatchType type;
  Held<Pipeline> pipeline;
  std::array<Slot, metal::kMaxBuffers> slots;
  std::array<uint32_t, metal::kMaxBuffers> lengths{};
  metal::CommandList list;
  bool barrier = false, ended = false;
  int groups = 0;  // that are open

  // False, with a complaint, where the encoder can take no more.
  bool usable(const char* selector) const {
    if (ended) complain(fmt::format("{} after endEncoding", selector));
    return !ended;
  }
};

// The method setLabel: of a class.
template <class T>
void define_label(const char* name) {
  method<typename T::setLabel_type>(name, "setLabel:", [](void* self, SEL, NSString* label) {
    encoded().push_back("label of " + in<Object>(self)->class_name() + ": " + in<String>(label)->text);
  });
}

// The methods of queues, command buffers and encoders.
void define_commands();
void define_encoder();

}  // namespace argent::fake
