// What a dispatch of the Metal backend does: bytes, operations and how they are shared out, by simple formulas from its
// arguments. tests/metal_backend/work_test.cc holds them to what the emulator counts.
#pragma once

#include <functional>
#include <string>

#include "backends/metal/device.h"

namespace argent::metal {

struct DispatchWork {
  std::string family;  // the kernel's name without its format or head size
  // Bytes that differ: each counts once, however many lanes ask for it.
  double weights = 0, cache = 0, activations = 0;
  uint32_t passes = 1;    // over the weights, one after the other
  bool together = false;  // the passes run side by side, and share what one of them reads from memory
  // Bytes that lanes ask for, from device memory and threadgroup memory: first-level cache traffic. `uniform`: where
  // all lanes of a SIMD-group ask for the same (items of work lists, block tables), which costs them one fetch.
  double loaded = 0, stored = 0, shared = 0, uniform = 0;
  double operations = 0;      // instructions of one lane each; a fused multiply-add is one
  double matrix = 0;          // products of 8 x 8 matrices
  uint64_t threadgroups = 0;  // that have work
  uint32_t threads = 0;       // of a threadgroup
  uint32_t threadgroup_bytes = 0;
  double trips = 1;  // loads of a thread that wait for one another
};

// The function constants that a pipeline was made with.
using ConstantsOf = std::function<std::span<const FunctionConstant>(const Pipeline&)>;

// Reads the work lists of attention from their buffers, so they must hold the step's.
DispatchWork work_of(const Dispatch& dispatch, const ConstantsOf& constants);

}  // namespace argent::metal
