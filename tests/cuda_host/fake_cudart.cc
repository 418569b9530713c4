#include "cuda_host/fake_cudart.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <string_view>
#include <utility>

using Operation = std::function<void()>;

struct CUevent_st {
  uint64_t at = 0;  // how many operations are before it
};
struct CUstream_st {};
struct CUgraph_st {
  std::vector<Operation> operations;
  uint64_t n_blocks = 0;  // that had been allocated when it was captured
  size_t n_freed = 0;     // of Runtime::freed
};
struct CUgraphExec_st : CUgraph_st {};

namespace argent::fake_cuda {
namespace {

constexpr uint64_t kPoisoned = 1 << 16;  // at most, of new memory

struct Block {
  uint64_t bytes;
  bool host;
  uint64_t number = 0;  // how many were allocated before
};

struct Runtime {
  Setup setup;
  State state;
  uint64_t fail_at = 0;
  Fault fault = Fault::none;
  bool lost = false, told = false;  // told: somebody has asked and knows
  uint64_t done = 0;                // operations
  uint64_t n_blocks = 0;            // allocated in all
  std::vector<uint64_t> freed;      // numbers of blocks of device memory, in order
  std::deque<Operation> queue;
  CUgraph_st* capture = nullptr;
  bool capture_broken = false;
  std::map<const uint8_t*, Block> blocks;
  std::set<const void*> others;       // streams, events, graphs
  std::map<const void*, int> shared;  // by kernel: dynamic shared memory that was allowed
};

Runtime& runtime() {
  static Runtime r;
  return r;
}

void find(std::string what) { runtime().state.findings.push_back(std::move(what)); }

// Whether the call fails, and with what. gives_back: it frees or ends something, which it has done even so.
cudaError_t enter(const char* call, bool gives_back = false) {
  Runtime& r = runtime();
  if (++r.state.calls == r.fail_at) {
    r.state.failed = call;
    if (r.fault == Fault::lost) {
      r.lost = true;
      r.queue.clear();
    } else {
      return std::string_view(call).starts_with("cudaMalloc") ? cudaErrorMemoryAllocation : cudaErrorUnknown;
    }
  }
  if (r.lost && r.told && gives_back) find(fmt::format("{} on a lost device", call));
  return r.lost ? cudaErrorIllegalAddress : cudaSuccess;
}

void settle_state() {
  Runtime& r = runtime();
  r.state.waiting = r.queue.size();
  r.state.things = r.blocks.size() + r.others.size();
  r.state.device_bytes = 0;
  for (const auto& [at, block] : r.blocks) r.state.device_bytes += block.host ? 0 : block.bytes;
  r.state.capturing = r.capture != nullptr;
}

const std::pair<const uint8_t* const, Block>* block_of(const void* data, uint64_t bytes) {
  const auto& blocks = runtime().blocks;
  auto at = blocks.upper_bound(static_cast<const uint8_t*>(data));
  if (at == blocks.begin()) return nullptr;
  --at;
  const auto offset = uint64_t(static_cast<const uint8_t*>(data) - at->first);
  return offset < at->second.bytes && bytes <= at->second.bytes - offset ? &*at : nullptr;
}
bool on_device(const void* data, uint64_t bytes) {
  const auto* block = block_of(data, bytes);
  return block && !block->second.host;
}

void add(Operation operation) {
  Runtime& r = runtime();
  if (r.capture)
    r.capture->operations.push_back(std::move(operation));
  else
    r.queue.push_back(std::move(operation));
}

// Has everything up to there been done? If not, one operation more is.
cudaError_t progress(uint64_t up_to) {
  Runtime& r = runtime();
  if (r.lost) {
    r.told = true;
    return cudaErrorIllegalAddress;
  }
  if (r.done >= up_to) return cudaSuccess;
  Operation operation = std::move(r.queue.front());
  r.queue.pop_front();
  ++r.done;
  operation();
  return cudaErrorNotReady;
}

// What a capture that is under way does not allow.
bool breaks_capture(const char* call) {
  Runtime& r = runtime();
  if (!r.capture) return false;
  r.capture_broken = true;
  find(fmt::format("{} while a stream is captured", call));
  return true;
}

cudaError_t make_block(const char* call, void** data, size_t bytes, bool host) {
  if (const cudaError_t error = enter(call)) return error;
  if (breaks_capture(call)) return cudaErrorStreamCaptureUnsupported;
  Runtime& r = runtime();
  settle_state();
  if (!host && bytes > r.setup.memory - r.state.device_bytes) return cudaErrorMemoryAllocation;
  *data = std::aligned_alloc(512, (bytes + 511) / 512 * 512);
  std::memset(*data, 0xfb, std::min(bytes, kPoisoned));
  r.blocks[static_cast<const uint8_t*>(*data)] = {bytes, host, r.n_blocks++};
  return cudaSuccess;
}

cudaError_t free_block(const char* call, void* data, bool host) {
  const cudaError_t error = enter(call, true);
  Runtime& r = runtime();
  if (r.lost) return error;
  const auto found = r.blocks.find(static_cast<const uint8_t*>(data));
  if (found == r.blocks.end() || found->second.host != host) {
    find(fmt::format("{} of what was not allocated so", call));
    return cudaErrorInvalidValue;
  }
  breaks_capture(call);
  if (!r.queue.empty())
    find(fmt::format("{} of {} bytes while {} operations wait", call, found->second.bytes, r.queue.size()));
  if (!host) r.freed.push_back(found->second.number);
  r.blocks.erase(found);
  std::free(data);
  return error;
}

template <class T>
cudaError_t make_other(const char* call, T** made) {
  if (const cudaError_t error = enter(call)) return error;
  *made = new T;
  runtime().others.insert(*made);
  return cudaSuccess;
}

template <class T>
cudaError_t destroy_other(const char* call, T* thing) {
  const cudaError_t error = enter(call, true);
  if (runtime().lost) return error;
  if (!runtime().others.erase(thing)) {
    find(fmt::format("{} of what is not there", call));
    return cudaErrorInvalidResourceHandle;
  }
  delete thing;
  return error;
}

cudaError_t launch(const char* call, const void* kernel, dim3 grid, dim3 block, size_t shared) {
  if (const cudaError_t error = enter(call)) return error;
  Runtime& r = runtime();
  const auto allowed = r.shared.find(kernel);
  const size_t most = allowed == r.shared.end() ? 48 * 1024 : size_t(allowed->second);
  if (block.x * block.y * block.z > 1024 || grid.y > 65535 || grid.z > 65535 || shared > most) {
    find(fmt::format("a launch of {} x {} x {} blocks of {} threads with {} bytes of shared memory", grid.x, grid.y,
                     grid.z, block.x * block.y * block.z, shared));
    return cudaErrorInvalidConfiguration;
  }
  add([] { ++runtime().state.kernels; });
  return cudaSuccess;
}

}  // namespace

void reset(const Setup& setup) {
  Runtime& r = runtime();
  for (const auto& [at, block] : r.blocks) std::free(const_cast<uint8_t*>(at));
  // What a test has lost with its device stays lost: whoever has it may still name it.
  r = {};
  r.setup = setup;
}

void fail_at(uint64_t n, Fault fault) {
  Runtime& r = runtime();
  r.state.calls = 0;
  r.state.failed.clear();
  r.fail_at = n;
  r.fault = fault;
}

const State& state() {
  settle_state();
  return runtime().state;
}

Pinned::Pinned(std::span<std::byte> memory) : memory_(memory) {
  runtime().blocks[reinterpret_cast<const uint8_t*>(memory.data())] = {memory.size(), true, 0};
}

Pinned::~Pinned() { runtime().blocks.erase(reinterpret_cast<const uint8_t*>(memory_.data())); }

}  // namespace argent::fake_cuda

using namespace argent::fake_cuda;

extern "C" {

// ---- devices and errors

cudaError_t cudaDriverGetVersion(int* version) {
  *version = runtime().setup.driver;
  return enter("cudaDriverGetVersion");
}
cudaError_t cudaGetDeviceCount(int* n) {
  *n = 0;
  if (const cudaError_t error = enter("cudaGetDeviceCount")) return error;
  if (runtime().setup.driver < CUDART_VERSION) return cudaErrorInsufficientDriver;
  *n = runtime().setup.n_devices;
  return *n ? cudaSuccess : cudaErrorNoDevice;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return enter("cudaGetDevice");
}
cudaError_t cudaSetDevice(int device) {
  if (const cudaError_t error = enter("cudaSetDevice")) return error;
  return device < runtime().setup.n_devices ? cudaSuccess : cudaErrorInvalidDevice;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int) {
  if (const cudaError_t error = enter("cudaGetDeviceProperties")) return error;
  const Setup& setup = runtime().setup;
  *p = {};
  std::strcpy(p->name, "made up");
  p->major = setup.major, p->minor = setup.minor;
  p->sharedMemPerBlockOptin = size_t(setup.shared_memory);
  p->totalGlobalMem = setup.memory;
  p->multiProcessorCount = 132;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  if (const cudaError_t error = enter("cudaDeviceGetAttribute")) return error;
  const Setup& setup = runtime().setup;
  *value = attribute == cudaDevAttrComputeCapabilityMajor   ? setup.major
           : attribute == cudaDevAttrComputeCapabilityMinor ? setup.minor
           : attribute == cudaDevAttrMultiProcessorCount    ? 132
           : attribute == cudaDevAttrL2CacheSize            ? 50 << 20
                                                            : 0;
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = *total = 0;
  if (const cudaError_t error = enter("cudaMemGetInfo")) return error;
  if (breaks_capture("cudaMemGetInfo")) return cudaErrorStreamCaptureUnsupported;
  settle_state();
  *total = runtime().setup.memory, *free = *total - runtime().state.device_bytes;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorIllegalAddress:
      return "an illegal memory access was encountered";
    default:
      return "made to fail";
  }
}

// ---- memory

cudaError_t cudaMalloc(void** data, size_t bytes) { return make_block("cudaMalloc", data, bytes, false); }
cudaError_t cudaMallocHost(void** data, size_t bytes) { return make_block("cudaMallocHost", data, bytes, true); }
cudaError_t cudaFree(void* data) { return free_block("cudaFree", data, false); }
cudaError_t cudaFreeHost(void* data) { return free_block("cudaFreeHost", data, true); }

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t) {
  if (const cudaError_t error = enter("cudaMemsetAsync")) return error;
  if (bytes && !on_device(to, bytes)) find(fmt::format("{} bytes are set outside of device memory", bytes));
  add([=] {
    if (bytes && on_device(to, bytes)) std::memset(to, value, bytes);
  });
  return cudaSuccess;
}

// Copies from memory that is not pinned have read it when they return, those to such memory have written it.
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t) {
  if (const cudaError_t error = enter("cudaMemcpyAsync")) return error;
  if (!bytes) return cudaSuccess;
  const bool to_device = kind != cudaMemcpyDeviceToHost, from_device = kind != cudaMemcpyHostToDevice;
  const auto wrong = [=] { return on_device(to, bytes) != to_device || on_device(from, bytes) != from_device; };
  if (wrong()) find(fmt::format("{} bytes are copied from or to where the copy's kind does not say", bytes));
  const bool from_pinned = !from_device && block_of(from, bytes), to_pinned = !to_device && block_of(to, bytes);
  std::vector<uint8_t> before;
  if (!from_device) before.assign(static_cast<const uint8_t*>(from), static_cast<const uint8_t*>(from) + bytes);
  add([=, before = std::move(before)] {
    if (wrong() || (from_pinned && !block_of(from, bytes)) || (to_pinned && !block_of(to, bytes)))
      return find("a copy from or to memory that has been freed");
    if (from_pinned && std::memcmp(from, before.data(), bytes) != 0)
      find(fmt::format("{} bytes on the host changed before they were copied", bytes));
    std::memcpy(to, before.empty() ? from : before.data(), bytes);
  });
  if (!to_device && !to_pinned && !runtime().capture)
    while (progress(runtime().done + runtime().queue.size()) == cudaErrorNotReady) {
    }
  return cudaSuccess;
}

// ---- streams and events

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  return make_other("cudaStreamCreateWithFlags", stream);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) { return destroy_other("cudaStreamDestroy", stream); }
cudaError_t cudaStreamQuery(cudaStream_t) {
  if (breaks_capture("cudaStreamQuery")) return cudaErrorStreamCaptureUnsupported;
  return progress(runtime().done + runtime().queue.size());
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return make_other("cudaEventCreateWithFlags", event);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) { return destroy_other("cudaEventDestroy", event); }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  if (const cudaError_t error = enter("cudaEventRecord")) return error;
  event->at = runtime().done + runtime().queue.size();
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (const cudaError_t error = enter("cudaEventQuery"); error && !runtime().lost) return error;
  return progress(event->at);
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to) {
  *ms = float(to->at - from->at) * 1e-3f;
  return enter("cudaEventElapsedTime");
}
cudaError_t cudaLaunchHostFunc(cudaStream_t, cudaHostFn_t function, void* data) {
  if (const cudaError_t error = enter("cudaLaunchHostFunc")) return error;
  add([=] { function(data); });
  return cudaSuccess;
}

// ---- graphs

cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) {
  if (const cudaError_t error = enter("cudaStreamBeginCapture")) return error;
  Runtime& r = runtime();
  if (breaks_capture("cudaStreamBeginCapture")) return cudaErrorIllegalState;
  r.capture = new CUgraph_st{{}, r.n_blocks, r.freed.size()};
  r.others.insert(r.capture);
  r.capture_broken = false;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
  *graph = nullptr;
  const cudaError_t error = enter("cudaStreamEndCapture", true);
  Runtime& r = runtime();
  if (!r.capture) return cudaErrorIllegalState;
  CUgraph_st* const made = std::exchange(r.capture, nullptr);
  if (!error && !r.capture_broken) {
    *graph = made;
    return cudaSuccess;
  }
  r.others.erase(made);
  delete made;
  return error ? error : cudaErrorStreamCaptureInvalidated;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return destroy_other("cudaGraphDestroy", graph); }
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  const cudaError_t error = make_other("cudaGraphInstantiate", exec);
  if (!error) static_cast<CUgraph_st&>(**exec) = *graph;
  return error;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) { return destroy_other("cudaGraphExecDestroy", exec); }
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return enter("cudaGraphUpload"); }
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t) {
  if (const cudaError_t error = enter("cudaGraphLaunch")) return error;
  const std::vector<uint64_t>& freed = runtime().freed;
  if (std::any_of(freed.begin() + ptrdiff_t(exec->n_freed), freed.end(),
                  [&](uint64_t n) { return n < exec->n_blocks; }))
    find("a graph is launched that was captured before device memory was freed that it may name");
  for (const Operation& operation : exec->operations) add(operation);
  ++runtime().state.graphs;
  return cudaSuccess;
}

// ---- kernels: what nvcc's objects call

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  if (const cudaError_t error = enter("cudaFuncSetAttribute")) return error;
  if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
    if (value > runtime().setup.shared_memory) return cudaErrorInvalidValue;
    runtime().shared[kernel] = value;
  }
  return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  *attributes = {};
  attributes->binaryVersion = 10 * runtime().setup.major + runtime().setup.minor;
  attributes->maxThreadsPerBlock = 1024;
  return enter("cudaFuncGetAttributes");
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* n, const void*, int, size_t) {
  *n = 1;
  return enter("cudaOccupancyMaxActiveBlocksPerMultiprocessor");
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* n, const void*, int, size_t, unsigned) {
  *n = 1;
  return enter("cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags");
}
cudaError_t cudaOccupancyMaxActiveClusters(int* n, const void*, const cudaLaunchConfig_t*) {
  *n = 16;
  return enter("cudaOccupancyMaxActiveClusters");
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel, void**) {
  return launch("cudaLaunchKernelExC", kernel, config->gridDim, config->blockDim, config->dynamicSmemBytes);
}
cudaError_t cudaLaunchKernel(const void* kernel, dim3 grid, dim3 block, void**, size_t shared, cudaStream_t) {
  return launch("cudaLaunchKernel", kernel, grid, block, shared);
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void**, size_t shared, cudaStream_t) {
  return launch("cudaLaunchKernel", kernel, grid, block, shared);
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}
unsigned __cudaPushCallConfiguration(dim3, dim3, size_t, CUstream_st*) { return 0; }
cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, size_t*, void*) { return cudaSuccess; }
void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char*, char*, const char*, int, uint3*, uint3*, dim3*, dim3*, int*) {}
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
char __cudaInitModule(void**) { return 0; }
}
