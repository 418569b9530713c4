// From nodes of a plan to dispatches. An encoder knows where each value lies; one function an op says which kernels run
// over it. What differs from step to step is in buffers (StepBuffers), so that steps of one shape share a list.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "backends/metal/device.h"
#include "backends/metal/step_buffers.h"

namespace argent::metal {

// A piece of a buffer. No buffer: nothing is there.
struct Place {
  const Buffer* buffer = nullptr;
  size_t offset = 0, bytes = 0;
};

// A layer's K and V in the blocks of its group.
struct KvPlace {
  uint32_t group = 0;
  Place k, v;  // from the layer's place in block 0 to its end in the last one
  uint32_t block_bytes = 0;
};

// What a backend has, for its encoder.
struct Memory {
  std::vector<Place> weights;  // by value of the model's graph; plans only append values
  std::vector<KvPlace> kv;     // by layer
  KvLayout layout;
  KvType kv_k = KvType::f16, kv_v = KvType::f16;
  std::unique_ptr<Buffer> arena;
  StepBuffers step;

  // The layer whose cache it is; compile() has looked for it.
  size_t layer_of(const KvSpec& kv) const {
    return size_t(std::find(layout.layers.begin(), layout.layers.end(), kv) - layout.layers.begin());
  }
};

// What kernels are chosen by beside shapes. `without`, to compare texts and times: names of kernel families (kFamilies)
// and of fused ops.
struct Variants {
  std::vector<std::string> without;
  KvType kv_k = KvType::f16, kv_v = KvType::f16;
  bool has(std::string_view name) const { return std::find(without.begin(), without.end(), name) == without.end(); }
};
inline constexpr std::string_view kFamilies[] = {
    "matrix",  // products of many rows by simdgroup_matrix: several of a few rows
    "tokens",  // products of 2 to 8 rows: one a row
    "split",   // keys of one row divided among threadgroups: one has them all
    "flash",   // attention of many rows: row by row
};

class Encoder {
 public:
  // constants: by node, what its OpEncoder::constants gave.
  Encoder(Device& device, const Plan& plan, const Memory& memory, const StepShape& shape, const Variants& variants,
          std::span<const std::unique_ptr<Buffer>> constants, CommandList& list)
      : device_(device),
        plan_(plan),
        memory_(memory),
        shape_(shape),
        variants_(variants),
        constants_(constants),
        list_(list) {}

  // Adds what comes before the first node, and after the last one.
  Status begin();
  Status end();
  // Adds the dispatches of a node. unsupported: NONE for it, with what is there.
  Status encode(size_t node);

  const Memory& memory() const { return memory_; }
  const Graph& graph() const { return plan_.graph; }
  const StepShape& shape() const { return shape_; }
  const Variants& variants() const { return variants_; }
  const Value& value(ValueId id) const { return plan_.graph.value(id); }
  uint32_t rows_of(ValueId id) const {
    const Value& v = value(id);
    if (v.rows == Rows::fixed) return v.n_rows;
    return v.rows == Rows::tokens ? shape_.n_tokens : shape_.n_outputs;
  }
  // Where all rows of a value are in this step.
  Place place(ValueId id) const;
  const KvPlace& kv_of(ValueId state) const;
  Place scratch(size_t node, size_t bytes) const { return {memory_.arena.get(), size_t(plan_.workspace[node]), bytes}; }
  // The cache's types, as function constants 10 and 11.
  std::vector<FunctionConstant> kv_types() const {
    return {{10, uint32_t(memory_.kv_k)}, {11, uint32_t(memory_.kv_v)}};
  }
  uint32_t max_rows(Rows rows) const { return plan_.max_rows(rows); }
  Place constant(size_t node) const { return {constants_[node].get(), 0, 0}; }

  // The most threads of a threadgroup that a kernel takes.
  uint32_t max_threads(std::string_view kernel, const std::vector<FunctionConstant>& constants);
  // A dispatch to be completed; a kernel that is not there fails encode().
  Dispatch& add(std::string_view kernel, std::vector<FunctionConstant> constants, Size grid, Size threads);

 private:
  Device& device_;
  const Plan& plan_;
  const Memory& memory_;
  const StepShape& shape_;
  const Variants& variants_;
  const std::span<const std::unique_ptr<Buffer>> constants_;
  CommandList& list_;
  Status status_;
};

// Binds a place; nothing there binds nothing. parts: as Dispatch::Bound has it.
inline void bind(Dispatch& d, uint32_t index, const Place& place, uint32_t parts = 0) {
  if (place.buffer) d.buffers.push_back({index, place.buffer, place.offset, place.bytes, parts});
}

constexpr uint32_t ceil_div(uint64_t a, uint64_t b) { return uint32_t((a + b - 1) / b); }

// By op: what adds its dispatches, and what scratch it wants for up to n_rows rows.
struct OpEncoder {
  void (*encode)(Encoder& e, const Node& node, size_t index) = nullptr;
  uint64_t (*workspace)(const Graph& graph, const Node& node, uint32_t n_rows, const Variants& variants) = nullptr;
  std::vector<std::byte> (*constants)(const Graph& graph, const Node& node) = nullptr;  // made once a plan
};
OpEncoder op_encoder(Op op);

// "" or why there is no kernel for the node.
std::string missing_kernel(const Graph& graph, const Node& node);

}  // namespace argent::metal
