// Metal and Foundation as the host layer knows them, over the emulator. Knows what Apple's documentation says and no
// more: what it forbids is a complaint.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <regex>
#include <sstream>
#include <thread>

#include "metal_apple/fake_objects.h"

namespace argent::fake {

Settings& settings() {
  static Settings known;
  return known;
}

std::vector<std::string>& encoded() {
  static std::vector<std::string> known;
  return known;
}

void reset() {
  reset_runtime();
  settings() = {};
  encoded().clear();
}

// A kernel is written out, or stamped out by a macro as `kernel void mul_mv_##name(`.
bool Library::has(const std::string& name) const {
  static std::map<std::string, std::vector<std::pair<std::string, bool>>> known;
  auto& kernels = known[text];
  static const std::regex words(R"(kernel\s+void\s+(\w+)(##)?)");
  if (kernels.empty()) {
    for (std::sregex_iterator m(text.begin(), text.end(), words), end; m != end; ++m)
      kernels.emplace_back((*m)[1].str(), (*m)[2].matched);
  }
  return std::any_of(kernels.begin(), kernels.end(),
                     [&](const auto& k) { return k.second ? name.starts_with(k.first) : name == k.first; });
}

namespace {

NSError* failed(NSError** error, NSInteger code, std::string text) {
  if (error) *error = out<NSError>(autorelease(new Error(code, std::move(text))));
  return nullptr;
}

// ---- the table

void define_foundation() {
  method<NSString::stringWithCString_type>("+NSString", "stringWithCString:encoding:",
                                           [](void*, SEL, const char* text, NSStringEncoding encoding) -> NSString* {
                                             if (encoding != 4) complain("a string that is not UTF-8");
                                             return out<NSString>(autorelease(new String(text)));
                                           });
  method<NSString::UTF8String_type>("NSString", "UTF8String",
                                    [](void* self, SEL) -> const char* { return in<String>(self)->text.c_str(); });
  method<NSError::code_type>("NSError", "code", [](void* self, SEL) -> NSInteger { return in<Error>(self)->code; });
  method<NSError::localizedDescription_type>("NSError", "localizedDescription", [](void* self, SEL) -> NSString* {
    return out<NSString>(autorelease(new String(in<Error>(self)->text)));
  });
  method<NSURL::fileURLWithPath_type>("+NSURL", "fileURLWithPath:", [](void*, SEL, NSString* path) -> NSURL* {
    return out<NSURL>(autorelease(new Url(in<String>(path)->text)));
  });
  method<NSArray::arrayWithObject_type>("+NSArray", "arrayWithObject:", [](void*, SEL, NSObject* object) -> NSArray* {
    if (!object) complain("arrayWithObject: of nil");
    return out<NSArray>(autorelease(new Array(in<Object>(object))));
  });
  method<NSProcessInfo::processInfo_type>("+NSProcessInfo", "processInfo", [](void*, SEL) -> NSProcessInfo* {
    return out<NSProcessInfo>(autorelease(new Object("NSProcessInfo")));
  });
  method<NSProcessInfo::operatingSystemVersionString_type>(
      "NSProcessInfo", "operatingSystemVersionString",
      [](void*, SEL) -> NSString* { return out<NSString>(autorelease(new String("Version 0 (fake)"))); });
}

template <class T, class Made>
void allocated(const char* name) {
  const std::string of_class = std::string("+") + name;
  method<typename T::alloc_type>(of_class.c_str(), "alloc", [](void*, SEL) -> T* { return out<T>(new Made); });
  method<typename T::init_type>(name, "init", [](void* self, SEL) -> T* { return static_cast<T*>(self); });
}

struct ResidencyDescriptor : Object {
  ResidencyDescriptor() : Object("MTLResidencySetDescriptor") {}
};

void define_pipelines() {
  allocated<MTLCompileOptions, CompileOptions>("MTLCompileOptions");
  allocated<MTLFunctionConstantValues, Constants>("MTLFunctionConstantValues");
  allocated<MTLComputePipelineDescriptor, PipelineDescriptor>("MTLComputePipelineDescriptor");
  allocated<MTLBinaryArchiveDescriptor, ArchiveDescriptor>("MTLBinaryArchiveDescriptor");
  allocated<MTLResidencySetDescriptor, ResidencyDescriptor>("MTLResidencySetDescriptor");
  method<MTLCompileOptions::setLanguageVersion_type>(
      "MTLCompileOptions", "setLanguageVersion:", [](void* self, SEL, MTLLanguageVersion version) {
        in<CompileOptions>(self)->version = version;
      });
  method<MTLFunctionConstantValues::setConstantValue_type>(
      "MTLFunctionConstantValues",
      "setConstantValue:type:atIndex:", [](void* self, SEL, const void* value, MTLDataType type, NSUInteger index) {
        metal::FunctionConstant c{uint32_t(index), {}};
        const auto read = [&](auto v) {
          std::memcpy(&v, value, sizeof v);
          c.value = v;
        };
        switch (NSUInteger(type)) {
          case 53:
            read(bool());
            break;
          case 29:
            read(int32_t());
            break;
          case 33:
            read(uint32_t());
            break;
          case 3:
            read(float());
            break;
          default:
            return complain(fmt::format("a function constant of type {}", NSUInteger(type)));
        }
        in<Constants>(self)->values[c.index] = c;
      });
  method<MTLLibrary::newFunction_type>(
      "MTLLibrary", "newFunctionWithName:constantValues:error:",
      [](void* self, SEL, NSString* name, MTLFunctionConstantValues* values, NSError** error) -> MTLFunction* {
        auto* library = in<Library>(self);
        const std::string& wanted = in<String>(name)->text;
        std::vector<metal::FunctionConstant> constants;
        for (const auto& [_, c] : in<Constants>(values)->values) constants.push_back(c);
        if (!library->has(wanted)) {
          failed(error, 5, "Function " + wanted + " was not found in the library");
          return nullptr;
        }
        auto kernel = library->emulator->pipeline(wanted, constants);
        if (!kernel) {
          failed(error, 3, kernel.error().message);
          return nullptr;
        }
        auto* made = new Function;
        made->kernel = *kernel;
        return out<MTLFunction>(made);
      });
  define_label<MTLComputePipelineDescriptor>("MTLComputePipelineDescriptor");
  method<MTLComputePipelineDescriptor::setComputeFunction_type>(
      "MTLComputePipelineDescriptor", "setComputeFunction:", [](void* self, SEL, MTLFunction* function) {
        in<PipelineDescriptor>(self)->function = Held<Function>(in<Function>(function));
      });
  method<MTLComputePipelineDescriptor::setThreadGroupSizeIsMultipleOfThreadExecutionWidth_type>(
      "MTLComputePipelineDescriptor", "setThreadGroupSizeIsMultipleOfThreadExecutionWidth:",
      [](void* self, SEL, bool is) { in<PipelineDescriptor>(self)->multiple = is; });
  method<MTLComputePipelineDescriptor::setBinaryArchives_type>(
      "MTLComputePipelineDescriptor", "setBinaryArchives:", [](void* self, SEL, NSArray* archives) {
        in<PipelineDescriptor>(self)->archives = Held<Array>(in<Array>(archives));
      });
  method<MTLComputePipelineState::threadExecutionWidth_type>(
      "MTLComputePipelineState", "threadExecutionWidth",
      [](void*, SEL) -> NSUInteger { return settings().simd_width; });
  method<MTLComputePipelineState::maxTotalThreadsPerThreadgroup_type>(
      "MTLComputePipelineState", "maxTotalThreadsPerThreadgroup",
      [](void*, SEL) -> NSUInteger { return settings().max_threads; });
  method<MTLComputePipelineState::staticThreadgroupMemoryLength_type>(
      "MTLComputePipelineState", "staticThreadgroupMemoryLength",
      [](void*, SEL) -> NSUInteger { return settings().static_threadgroup_bytes; });
  method<MTLBinaryArchiveDescriptor::setUrl_type>(
      "MTLBinaryArchiveDescriptor",
      "setUrl:", [](void* self, SEL, NSURL* url) { in<ArchiveDescriptor>(self)->url = Held<Url>(in<Url>(url)); });
  method<MTLBinaryArchive::addComputePipelineFunctions_type>(
      "MTLBinaryArchive", "addComputePipelineFunctionsWithDescriptor:error:",
      [](void* self, SEL, MTLComputePipelineDescriptor* descriptor, NSError**) -> bool {
        in<Archive>(self)->names += in<PipelineDescriptor>(descriptor)->function->kernel->name() + "\n";
        return true;
      });
  method<MTLBinaryArchive::serializeToURL_type>(
      "MTLBinaryArchive", "serializeToURL:error:", [](void* self, SEL, NSURL* url, NSError** error) -> bool {
        std::ofstream file(in<Url>(url)->path);
        file << "archive" << in<Archive>(self)->names;
        if (file.flush()) return true;
        failed(error, 1, "The file could not be written.");
        return false;
      });
}

void define_memory() {
  define_label<MTLBuffer>("MTLBuffer");
  method<MTLBuffer::contents_type>("MTLBuffer", "contents", [](void* self, SEL) -> void* {
    return const_cast<std::byte*>(in<Buffer>(self)->memory->bytes().data());
  });
  method<MTLResidencySet::addAllocation_type>(
      "MTLResidencySet", "addAllocation:", [](void* self, SEL, MTLBuffer* buffer) {
        auto* set = in<ResidencySet>(self);
        set->changed = true;
        if (!set->members.emplace(in<Object>(buffer), Held<Object>(in<Object>(buffer))).second)
          complain("a buffer is added to a residency set twice");
      });
  method<MTLResidencySet::removeAllocation_type>(
      "MTLResidencySet", "removeAllocation:", [](void* self, SEL, MTLBuffer* buffer) {
        auto* set = in<ResidencySet>(self);
        set->changed = true;
        const auto member = set->members.find(in<Object>(buffer));
        if (member == set->members.end()) return complain("a buffer is taken from a residency set that has it not");
        set->removed.push_back(std::move(member->second));
        set->members.erase(member);
      });
  method<MTLResidencySet::commit_type>("MTLResidencySet", "commit", [](void* self, SEL) {
    in<ResidencySet>(self)->changed = false;
    in<ResidencySet>(self)->removed.clear();
  });
  method<MTLResidencySet::requestResidency_type>("MTLResidencySet", "requestResidency", [](void* self, SEL) {
    if (in<ResidencySet>(self)->changed) complain("requestResidency before commit of what changed");
    in<ResidencySet>(self)->requested = true;
  });
  method<MTLResidencySet::endResidency_type>("MTLResidencySet", "endResidency",
                                             [](void* self, SEL) { in<ResidencySet>(self)->requested = false; });
  method<MTLSharedEvent::waitUntilSignaledValue_type>(
      "MTLSharedEvent",
      "waitUntilSignaledValue:timeoutMS:", [](void* self, SEL, uint64_t value, uint64_t milliseconds) -> bool {
        if (in<SharedEvent>(self)->value >= value) return true;
        if (value > in<SharedEvent>(self)->promised) complain("a wait for a value that nobody signals");
        if (milliseconds > 60000) complain("a wait of more than a minute");
        std::this_thread::sleep_for(std::chrono::milliseconds(settings().hang ? milliseconds : 0));
        return false;
      });
}

bool shared_storage(MTLResourceOptions options) {
  const bool ok = options == 0 || options == 0x100;
  if (!ok) complain(fmt::format("resource options {:#x}", NSUInteger(options)));
  return ok;
}

MTLBuffer* new_buffer(Result<std::unique_ptr<metal::Buffer>> made) {
  return made ? out<MTLBuffer>(new Buffer(std::move(*made))) : nullptr;
}

void define_device() {
  using D = MTLDevice;
  method<D::name_type>("MTLDevice", "name",
                       [](void*, SEL) -> NSString* { return out<NSString>(autorelease(new String("Fake M1"))); });
  method<D::supportsFamily_type>("MTLDevice", "supportsFamily:", [](void*, SEL, MTLGPUFamily family) -> bool {
    if (family < 1001 || family > 1010) complain(fmt::format("no family {}", NSInteger(family)));
    return !settings().old_family && family <= 1007;
  });
  method<D::hasUnifiedMemory_type>("MTLDevice", "hasUnifiedMemory",
                                   [](void*, SEL) -> bool { return !settings().discrete; });
  method<D::recommendedMaxWorkingSetSize_type>("MTLDevice", "recommendedMaxWorkingSetSize",
                                               [](void*, SEL) -> uint64_t { return settings().working_set; });
  method<D::maxBufferLength_type>("MTLDevice", "maxBufferLength",
                                  [](void*, SEL) -> NSUInteger { return settings().max_buffer; });
  method<D::maxThreadgroupMemoryLength_type>("MTLDevice", "maxThreadgroupMemoryLength",
                                             [](void*, SEL) -> NSUInteger { return metal::kMaxThreadgroupBytes; });
  method<D::newCommandQueue_type>("MTLDevice", "newCommandQueue", [](void* self, SEL) -> MTLCommandQueue* {
    return out<MTLCommandQueue>(new Queue(in<Device>(self)->emulator));
  });
  method<D::newSharedEvent_type>("MTLDevice", "newSharedEvent",
                                 [](void*, SEL) -> MTLSharedEvent* { return out<MTLSharedEvent>(new SharedEvent); });
  method<D::newBufferWithLength_type>(
      "MTLDevice",
      "newBufferWithLength:options:", [](void* self, SEL, NSUInteger length, MTLResourceOptions options) -> MTLBuffer* {
        if (length == 0) complain("a buffer of no bytes");
        if (!shared_storage(options) || length == 0 || length > settings().max_buffer || settings().alloc_fails)
          return nullptr;
        auto made = in<Device>(self)->emulator->alloc(length);
        if (made) (*made)->fill(0, length);  // who fills it is not seen
        return new_buffer(std::move(made));
      });
  method<D::newBufferWithBytesNoCopy_type>(
      "MTLDevice", "newBufferWithBytesNoCopy:length:options:deallocator:",
      [](void* self, SEL, const void* data, NSUInteger length, MTLResourceOptions options,
         void* deallocator) -> MTLBuffer* {
        const auto page = NSUInteger(sysconf(_SC_PAGESIZE));
        if (reinterpret_cast<uintptr_t>(data) % page || length % page || length == 0)
          complain(fmt::format("newBufferWithBytesNoCopy: of {} bytes that are not whole pages", length));
        if (deallocator) complain("a deallocator that is no block");
        if (!shared_storage(options) || settings().no_copy_fails) return nullptr;
        return new_buffer(in<Device>(self)->emulator->wrap(data, length));
      });
  method<D::newLibraryWithSource_type>(
      "MTLDevice", "newLibraryWithSource:options:error:",
      [](void* self, SEL, NSString* source, MTLCompileOptions* options, NSError** error) -> MTLLibrary* {
        const std::string& text = in<String>(source)->text;
        if (in<CompileOptions>(options)->version != (3 << 16) + 1) complain("not Metal 3.1");
        std::string wrong = settings().compile_error;
        if (text.find("#include \"") != std::string::npos) wrong = "program_source:1:1: error: file not found";
        if (!wrong.empty()) {
          failed(error, 3, wrong);
          return nullptr;
        }
        return out<MTLLibrary>(new Library(in<Device>(self)->emulator, text));
      });
  method<D::newLibraryWithURL_type>(
      "MTLDevice", "newLibraryWithURL:error:", [](void* self, SEL, NSURL* url, NSError** error) -> MTLLibrary* {
        std::ifstream file(in<Url>(url)->path);
        std::stringstream text;
        text << file.rdbuf();
        if (text.str().find("kernel void") == std::string::npos) {
          failed(error, 1, "Invalid library file");
          return nullptr;
        }
        return out<MTLLibrary>(new Library(in<Device>(self)->emulator, text.str()));
      });
  method<D::newComputePipelineState_type>(
      "MTLDevice", "newComputePipelineStateWithDescriptor:options:reflection:error:",
      [](void*, SEL, MTLComputePipelineDescriptor* descriptor, MTLPipelineOption option, MTLComputePipelineReflection**,
         NSError** error) -> MTLComputePipelineState* {
        auto* d = in<PipelineDescriptor>(descriptor);
        if (!d->function) complain("a pipeline of no function");
        if (!d->function || !settings().pipeline_error.empty()) {
          failed(error, 2, settings().pipeline_error);
          return nullptr;
        }
        if (option == 4) {
          const auto* archive = d->archives ? static_cast<const Archive*>(d->archives->first.get()) : nullptr;
          if (!archive) complain("a pipeline from an archive without one");
          if (!archive || archive->names.find("\n" + d->function->kernel->name() + "\n") == std::string::npos) {
            failed(error, 2, "The archive has no such pipeline");
            return nullptr;
          }
        } else if (option != 0) {
          complain(fmt::format("pipeline option {}", NSUInteger(option)));
        }
        auto* made = new Pipeline;
        made->kernel = d->function->kernel;
        made->multiple = d->multiple;
        return out<MTLComputePipelineState>(made);
      });
  method<D::newBinaryArchive_type>(
      "MTLDevice", "newBinaryArchiveWithDescriptor:error:",
      [](void*, SEL, MTLBinaryArchiveDescriptor* descriptor, NSError** error) -> MTLBinaryArchive* {
        auto* d = in<ArchiveDescriptor>(descriptor);
        auto* made = new Archive;
        if (!d->url) return out<MTLBinaryArchive>(made);
        std::ifstream file(d->url->path);
        std::string first;
        std::getline(file, first);
        for (std::string name; std::getline(file, name);) made->names += name + "\n";
        if (first == "archive") return out<MTLBinaryArchive>(made);
        release(made);
        failed(error, 1, "Invalid archive");
        return nullptr;
      });
  method<D::newResidencySet_type>("MTLDevice", "newResidencySetWithDescriptor:error:",
                                  [](void* self, SEL, MTLResidencySetDescriptor*, NSError**) -> MTLResidencySet* {
                                    if (!in<Device>(self)->has_residency)
                                      complain("residency sets on a system without");
                                    return out<MTLResidencySet>(new ResidencySet);
                                  });
}

}  // namespace

void define_metal() {
  for (const char* name : {"NSString",
                           "NSError",
                           "NSURL",
                           "NSArray",
                           "NSProcessInfo",
                           "MTLCompileOptions",
                           "MTLFunctionConstantValues",
                           "MTLFunction",
                           "MTLLibrary",
                           "MTLComputePipelineDescriptor",
                           "MTLComputePipelineState",
                           "MTLBinaryArchiveDescriptor",
                           "MTLBinaryArchive",
                           "MTLBuffer",
                           "MTLResidencySetDescriptor",
                           "MTLResidencySet",
                           "MTLSharedEvent",
                           "MTLComputeCommandEncoder",
                           "MTLCommandBuffer",
                           "MTLCommandQueue",
                           "MTLDevice"}) {
    add_class(name);
    method<NSObject::retain_type>(name, "retain", [](void* self, SEL) -> NSObject* {
      retain(in<Object>(self));
      return static_cast<NSObject*>(self);
    });
    method<NSObject::release_type>(name, "release", [](void* self, SEL) { release(in<Object>(self)); });
  }
  method<NSObject::respondsToSelector_type>(
      "MTLDevice", "respondsToSelector:", [](void* self, SEL, SEL selector) -> bool {
        const std::string name = name_of(selector);
        return knows(in<Object>(self), name.c_str()) &&
               (in<Device>(self)->has_residency || name.find("Residency") == name.npos);
      });
  define_foundation();
  define_pipelines();
  define_memory();
  define_commands();
  define_encoder();
  define_device();
}

}  // namespace argent::fake

namespace argent::metal::apple {
extern "C" MTLDevice* MTLCreateSystemDefaultDevice() {
  return fake::settings().no_device ? nullptr : fake::out<MTLDevice>(new fake::Device);
}
}  // namespace argent::metal::apple
