// The seam to a device. A backend holds a model's weights in its own layout, the KV cache and one arena, compiles plans
// and runs steps. Calls are made by one thread; run() may return before the device is done, wait() does not.
//
//   load(graph) -> allocate(memory) -> compile(plan) once a rung -> run(plan, step), wait(ticket) once a step
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "graph/kv_layout.h"
#include "graph/plan.h"
#include "graph/step.h"

namespace argent {

// native: activations of quantized matrices become int8 in groups of 32, as the kernels do it (and queries of q8_0 keys
// int16); f32: weights are decoded and multiplied with the activations as they are.
enum class ActivationMode : uint8_t { native, f32 };

// Where weights are while the model runs: in the device's own layout, the file being needed no longer, or in the file's
// mapping, which loads at once and shares its pages with other processes, at the cost of speed.
enum class WeightStorage : uint8_t { resident, mapped };

inline constexpr uint32_t kKvBlockTokens = 32;  // positions of a KV block, on every backend

struct BackendOptions {
  std::string isa;         // cpu: baseline, avx2, avxvnni, avx512; empty: the best that this machine has
  uint32_t index = 0;      // which of several devices of a kind: 1 of cuda:1
  uint32_t n_threads = 0;  // 0: what affinity and cgroup leave
  bool pin = true;         // cpu: as ThreadPoolOptions has it
  ActivationMode activations = ActivationMode::native;
  uint32_t int8_rows = UINT32_MAX;  // reference: products of more rows are of halves, as CUDA has them
  KvType kv_k = KvType::f16, kv_v = KvType::f16;
};

struct BackendCaps {
  std::string name;         // "cpu", as in --device
  std::string description;  // "CPU, 2 threads, avx512"
  uint64_t memory_free = 0;
  bool resident_weights = false, mapped_weights = false;  // the kinds of storage that load() can make
  // What a row gives depends on its sequence's tokens alone, bit for bit: not on the step's other rows, how a prompt is
  // cut, the number of threads or where weights lie.
  bool deterministic = false;
  // Mapped weights count against memory_free: the device keeps what it reads in its memory (Apple's GPUs).
  bool mapped_count = false;
  bool own_memory = false;  // memory_free is not the host's
  // run() has read the step when it returns, and may be called once more before wait(): the device finds the tokens
  // that the step before drew (~slot), and what both drew stays.
  bool runs_ahead = false;
};

// How a device keeps weights that are wanted so: as asked, where it can.
inline WeightStorage storage_of(const BackendCaps& caps, WeightStorage wanted) {
  if (wanted == WeightStorage::resident) return caps.resident_weights ? wanted : WeightStorage::mapped;
  return caps.mapped_weights ? wanted : WeightStorage::resident;
}

// A device that this machine has, as `argent devices` lists it.
struct DeviceListing {
  std::string name;         // as in --device
  std::string description;  // "NVIDIA H200, compute capability 9.0"
  uint64_t memory_total = 0, memory_free = 0;
};

// What a model needs beside its weights; known before allocate() is called.
struct MemoryNeed {
  uint64_t arena_bytes = 0;                     // the largest plan's
  std::vector<uint32_t> group_blocks;           // KV blocks of each layer group
  std::vector<uint64_t> part_arena_bytes = {};  // of a split backend: by part, in place of arena_bytes
};

struct Progress {
  std::string_view what;
  uint64_t done, total;  // bytes
};

// A whole KV block of a layer group, in all its layers.
struct KvCopy {
  uint32_t group;
  int32_t from, to;
};

// A whole KV block of a layer group, in all its layers, and its bytes in host memory. What they mean is the backend's
// own; blocks of a group are interchangeable, and so are those of backends whose kv_format() is equal.
struct KvTransfer {
  uint32_t group;
  int32_t block;
  std::byte* host;  // kv_block_bytes(group), aligned to 64
};

using PlanId = uint32_t;
using Ticket = uint64_t;

struct StepResult {
  std::span<const float> logits;     // [output rows][n_vocab], empty when the plan samples; valid until the next run()
  std::span<const int32_t> sampled;  // one token an output row, -1 where the logits were not finite
};

struct NodeTime {
  uint32_t node;         // index into the plan's nodes
  uint64_t nanoseconds;  // until the last thread was done
  uint64_t begin = 0;    // nanoseconds after run() began
  // By thread: until it was done with its part and began to wait for the others; empty where the device does not know.
  std::span<const uint64_t> busy = {};
};

// What the device can do at most, measured by itself; 0: unknown.
struct DevicePeaks {
  double read_bytes = 0;  // a second, from memory
  double int8_ops = 0;    // a second; a multiplication and an addition are two
  double f32_ops = 0;     // of floats, in the form that its products of floats have
};

class Backend : public KernelTable {
 public:
  virtual BackendCaps caps() const = 0;

  // The devices that plans are made for: itself, but for a split backend, which also says which layers go where.
  virtual std::vector<Backend*> parts() { return {this}; }
  virtual void place(PlanOptions&) const {}

  // Bytes that a resident weight takes on the device, and that the KV cache of a layer takes.
  virtual uint64_t weight_bytes(const Graph& graph, ValueId weight) const = 0;
  virtual uint64_t kv_bytes(const KvSpec& layer, uint32_t n_blocks) const = 0;
  // Bytes that steps of a plan take on the device beside weights, cache and arena.
  virtual uint64_t step_bytes(const Plan& plan) const { return (void)plan, 0; }
  // All that the device's memory holds now of this backend; 0: unknown.
  virtual uint64_t allocated_bytes() const { return 0; }

  // Brings all weights of the graph to the device. With mapped storage the graph's file bytes outlive the backend; with
  // resident storage they are read here and never again.
  virtual Status load(const Graph& graph, WeightStorage storage,
                      const std::function<bool(const Progress&)>& progress) = 0;
  virtual Status allocate(const KvLayout& layout, const MemoryNeed& need) = 0;
  virtual Result<PlanId> compile(Plan plan) = 0;

  // Starts a step of a compiled plan; the step must fit the plan's key. Steps run in the order of the calls.
  virtual Result<Ticket> run(PlanId plan, const Step& step) = 0;
  virtual Result<StepResult> wait(Ticket ticket) = 0;
  virtual Status copy_blocks(std::span<const KvCopy> copies) = 0;

  // Blocks between the device and the host's memory, in the order of the calls among themselves and with run(). After
  // save_blocks the bytes are there; restore_blocks has read them when it returns.
  virtual uint64_t kv_block_bytes(uint32_t group) const = 0;
  virtual Status save_blocks(std::span<const KvTransfer> transfers) = 0;
  virtual Status restore_blocks(std::span<const KvTransfer> transfers) = 0;
  // Names what a block's bytes depend on beside the model, the program's version and the tokens: types, layout,
  // arithmetic. Equal names, equal bytes.
  virtual std::string kv_format() const = 0;

  // Does a few milliseconds of what would hold up a later step. Called between steps when nothing else is to do; false:
  // nothing is left.
  virtual bool prepare() { return false; }

  // Time of each node of the last step, where profiling is on; one entry a node, valid until the next run().
  virtual void set_profile(bool on) = 0;
  virtual std::span<const NodeTime> profile() const = 0;
  // Measures now, between steps, in less than 0.3 s.
  virtual DevicePeaks measure_peaks() { return {}; }
};

// Backends of this build. unsupported: a device or ISA that is not there, with what is.
Result<std::unique_ptr<Backend>> make_cpu_backend(const BackendOptions& options);
Result<std::unique_ptr<Backend>> make_reference_backend(const BackendOptions& options);
Result<std::unique_ptr<Backend>> make_null_backend(const BackendOptions& options);
Result<std::unique_ptr<Backend>> make_metal_backend(const BackendOptions& options);
// Metal's kernels in the emulator (docs/metal.md): slow, for tests.
Result<std::unique_ptr<Backend>> make_metal_emu_backend(const BackendOptions& options);

// Two devices as one (docs/decisions/0019-layers-split.md): `first` has what is before the layers and n_first of them,
// `second` the other layers of n_layers and the head. A step goes through both, one after the other.
std::unique_ptr<Backend> make_split_backend(std::unique_ptr<Backend> first, std::unique_ptr<Backend> second,
                                            uint32_t n_first, uint32_t n_layers);

// NVIDIA's GPUs, by libargent_cuda.so beside the program, which is opened on the first call.
Result<std::unique_ptr<Backend>> make_cuda_backend(const BackendOptions& options);
// unsupported: no such part, no driver or no device, and which of them it is.
Result<std::vector<DeviceListing>> list_cuda_devices();

}  // namespace argent
