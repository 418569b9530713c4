// The oracle: one function an op, plain loops, sums in double, values in and out in f32 exactly as ops.def documents
// them. Kernels of every backend are tested against these; speed is no aim. The names are the ops', so an op without a
// function does not link.
#pragma once

#include <span>
#include <vector>

#include "backends/backend.h"
#include "base/thread_pool.h"
#include "graph/graph.h"
#include "graph/step.h"

namespace argent::reference {

// The KV cache of one layer: K [block][position in the block][n_head_kv * d_head], V likewise with d_value; q8_0 as
// blocks of quant/q8_0.h.
struct KvLayer {
  uint8_t* k = nullptr;
  uint8_t* v = nullptr;
  KvType type_k = KvType::f16, type_v = KvType::f16;
  uint32_t group = 0;  // whose block tables its positions go through
};

// A value as a function sees it: n_rows of the step, each of value->width elements.
struct Operand {
  const Value* value = nullptr;
  uint8_t* data = nullptr;      // activations and inputs; null for weights, which are read through value->data
  uint32_t n_rows = 0;          // rows of this step; n_out of a matrix
  const KvLayer* kv = nullptr;  // states

  float* f32(uint64_t row) const { return reinterpret_cast<float*>(data) + row * value->width; }
  int32_t* i32(uint64_t row) const { return reinterpret_cast<int32_t*>(data) + row * value->width; }
  uint8_t* candidates(uint64_t row) const { return data + row * (8 * uint64_t(value->width) + 8); }
};

// What all nodes of a step share.
struct Context {
  const Step& step;
  std::span<const int32_t> slots;  // what each slot sampled last
  ActivationMode activations;
  uint32_t int8_rows;  // the most rows of products of int8; those of more are of halves
  ThreadPool& pool;

  // The token row behind row r of a value.
  uint32_t token_row(const Value& value, uint32_t r) const {
    return value.rows == Rows::outputs ? uint32_t(step.output_rows[r]) : r;
  }
  // Runs body(i) for i < n, spread over the threads; each i is computed alone, so the bits do not depend on the split.
  template <class Body>
  void each(uint32_t n, const Body& body) const {
    pool.run([&](uint32_t thread) {
      const auto range = pool.share(n, thread);
      for (uint32_t i = range.begin; i < range.end; ++i) body(i);
    });
  }
};

struct Call {
  std::span<const Operand> in;
  std::span<const Operand> out;
  const Attrs& attrs;
  const Context& context;
};

using Function = void (*)(const Call&);

#define OP(name, ...) void name(const Call&);
#include "graph/ops.def"
#undef OP

inline constexpr Function kFunctions[] = {
#define OP(name, ...) name,
#include "graph/ops.def"
#undef OP
};

// A row of a weight in f32.
std::vector<float> weight_row(const Value& weight, uint32_t row);

}  // namespace argent::reference
