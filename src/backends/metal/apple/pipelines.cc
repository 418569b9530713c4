#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "backends/metal/apple/parts.h"

namespace argent::metal::apple {

namespace {

char type_of(const FunctionConstant& constant) { return "biuf"[constant.value.index()]; }

MTLDataType data_type(char type) {
  switch (type) {
    case 'b':
      return MTLDataTypeBool;
    case 'i':
      return MTLDataTypeInt;
    case 'u':
      return MTLDataTypeUInt;
    default:
      return MTLDataTypeFloat;
  }
}

Status check_constants(const KernelFile& file, const KernelText& kernel, std::span<const FunctionConstant> constants) {
  const auto known = [&](uint32_t index) {
    return std::find_if(file.constants.begin(), file.constants.end(), [&](const auto& c) { return c.index == index; });
  };
  for (const auto& given : constants) {
    const auto wanted = known(given.index);
    if (wanted == file.constants.end())
      return fail(Code::invalid, "{}: there is no function constant {}", kernel.name, given.index);
    if (wanted->type != type_of(given)) {
      return fail(Code::invalid, "{}: function constant {} ({}) has another type than the value given", kernel.name,
                  given.index, wanted->name);
    }
  }
  for (const uint8_t index : kernel.constants) {
    if (std::none_of(constants.begin(), constants.end(), [&](const auto& c) { return c.index == index; })) {
      return fail(Code::invalid, "{} needs function constant {} ({})", kernel.name, index, known(index)->name);
    }
  }
  return {};
}

}  // namespace

Pipelines::Pipelines(MTLDevice* device, const MetalOptions& options, MetalCounts& counts)
    : device_(device), options_(options), counts_(counts) {
  open_archive();
}

// An archive is only a way to be faster: one that cannot be read (another system or GPU) is begun anew.
void Pipelines::open_archive() {
  if (options_.archive.empty()) return;
  const auto descriptor = make<MTLBinaryArchiveDescriptor>();
  if (!descriptor) return;
  if (access(options_.archive.c_str(), R_OK) == 0) {
    descriptor->setUrl(NSURL::fileURLWithPath(string_of(options_.archive)));
    archive_ = Ref<MTLBinaryArchive>::owned(device_->newBinaryArchive(descriptor.get(), nullptr));
    if (archive_) return;
    descriptor->setUrl(nullptr);
  }
  archive_ = Ref<MTLBinaryArchive>::owned(device_->newBinaryArchive(descriptor.get(), nullptr));
}

Status Pipelines::save_archive() {
  if (!archive_ || !archive_changed_) return {};
  const std::string part = options_.archive + ".new";  // a start that reads it meanwhile sees the old one, whole
  NSError* error = nullptr;
  if (!archive_->serializeToURL(NSURL::fileURLWithPath(string_of(part)), &error))
    return fail(Code::io, "the Metal pipelines could not be written to {}: {}", part, text_of(error));
  if (std::rename(part.c_str(), options_.archive.c_str()) != 0)
    return fail(Code::io, "{} could not be renamed to {}", part, options_.archive);
  archive_changed_ = false;
  return {};
}

Result<MTLLibrary*> Pipelines::library(const KernelFile& file) {
  if (const auto found = libraries_.find(&file); found != libraries_.end()) return found->second.get();
  const std::string path = fmt::format("{}/{}-{}.metallib", options_.metallibs, file.stem, file.hash);
  if (!options_.metallibs.empty() && access(path.c_str(), R_OK) == 0) {
    // One that the system does not take (compiled for a later one) costs only the time to compile the source.
    auto* made = device_->newLibraryWithURL(NSURL::fileURLWithPath(string_of(path)), nullptr);
    if (made) {
      counts_.libraries_precompiled++;
      return libraries_.emplace(&file, Ref<MTLLibrary>::owned(made)).first->second.get();
    }
  }
  const auto options = make<MTLCompileOptions>();
  if (!options) return fail(Code::unsupported, "this system has no Metal compiler");
  options->setLanguageVersion(MTLLanguageVersion3_1);
  NSError* error = nullptr;
  auto* made = device_->newLibraryWithSource(string_of(std::string(file.text)), options.get(), &error);
  if (!made) return fail(Code::internal, "{}.metal does not compile: {}", file.stem, text_of(error));
  counts_.libraries_compiled++;
  return libraries_.emplace(&file, Ref<MTLLibrary>::owned(made)).first->second.get();
}

Result<std::unique_ptr<MetalPipeline>> Pipelines::compile(const KernelFile& file, const KernelText& kernel,
                                                          std::span<const FunctionConstant> constants) {
  ARGENT_LET(MTLLibrary * from, library(file));
  const auto values = make<MTLFunctionConstantValues>();
  const auto descriptor = make<MTLComputePipelineDescriptor>();
  if (!values || !descriptor) return fail(Code::unsupported, "this system has no Metal");
  for (const auto& c : constants) {
    std::visit([&](auto v) { values->setConstantValue(&v, data_type(type_of(c)), c.index); }, c.value);
  }
  NSError* error = nullptr;
  const auto function = Ref<MTLFunction>::owned(from->newFunction(string_of(kernel.name), values.get(), &error));
  if (!function) return fail(Code::not_found, "Metal does not give the kernel {}: {}", kernel.name, text_of(error));
  descriptor->setLabel(string_of(kernel.name));
  descriptor->setComputeFunction(function.get());
  descriptor->setThreadGroupSizeIsMultipleOfThreadExecutionWidth(true);
  if (archive_) descriptor->setBinaryArchives(NSArray::arrayWithObject(archive_.get()));
  auto made = std::make_unique<MetalPipeline>();
  const auto state = [&](MTLPipelineOption option) {
    return Ref<MTLComputePipelineState>::owned(
        device_->newComputePipelineState(descriptor.get(), option, nullptr, &error));
  };
  // What the archive has is not added to it again, so that a start that compiles nothing writes nothing.
  if (archive_) made->state = state(MTLPipelineOptionFailOnBinaryArchiveMiss);
  const bool archived = bool(made->state);
  if (!archived) made->state = state(MTLPipelineOptionNone);
  if (!made->state) return fail(Code::internal, "no pipeline of {}: {}", kernel.name, text_of(error));
  if (const uint64_t width = made->state->threadExecutionWidth(); width != kSimdWidth) {
    return fail(Code::unsupported, "{}: SIMD-groups of this GPU have {} threads, the kernels want {}", kernel.name,
                width, kSimdWidth);
  }
  if (archive_ && !archived && archive_->addComputePipelineFunctions(descriptor.get(), nullptr))
    archive_changed_ = true;
  made->kernel_name = kernel.name;
  made->text = &kernel;
  for (const auto& a : kernel.arguments) made->told.push_back({a.kind, a.index, a.written, a.name});
  made->most_threads = made->state->maxTotalThreadsPerThreadgroup();
  made->static_threadgroup_bytes = made->state->staticThreadgroupMemoryLength();
  counts_.pipelines++;
  counts_.pipelines_archived += archived;
  return made;
}

Result<const Pipeline*> Pipelines::get(std::string_view name, std::span<const FunctionConstant> constants) {
  std::string key(name);
  for (const auto& c : constants) {
    key += std::visit([&](auto v) { return fmt::format(" {}{}={}", type_of(c), c.index, v); }, c.value);
  }
  if (const auto found = pipelines_.find(key); found != pipelines_.end()) return found->second.get();
  for (const KernelFile& file : options_.kernels) {
    for (const KernelText& kernel : file.kernels) {
      if (kernel.name != name) continue;
      ARGENT_TRY(check_constants(file, kernel, constants));
      ARGENT_LET(auto made, compile(file, kernel, constants));
      return pipelines_.emplace(std::move(key), std::move(made)).first->second.get();
    }
  }
  return fail(Code::not_found, "there is no kernel {}", name);
}

// Of the shortest file, which is compiled fastest. A kernel that does not compile is told of when it is asked for.
Status Pipelines::probe() {
  const KernelFile* shortest = nullptr;
  const KernelText* kernel = nullptr;
  for (const KernelFile& file : options_.kernels) {
    if (shortest && shortest->text.size() <= file.text.size()) continue;
    for (const KernelText& candidate : file.kernels) {
      if (candidate.constants.empty()) shortest = &file, kernel = &candidate;
    }
  }
  if (!kernel) return {};
  auto made = get(kernel->name, {});
  return made || made.error().code != Code::unsupported ? Status() : Status(made.error());
}

}  // namespace argent::metal::apple
