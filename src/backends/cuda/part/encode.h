// From nodes of a plan to kernel launches. An encoder knows where each value lies; one function an op says which
// kernels run over it. What differs from steps of one shape to the next is in the step's block (step_buffers.h).
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "backends/cuda/part/kernels/kernels.h"
#include "backends/cuda/part/step_buffers.h"
#include "backends/cuda/part/weights.h"

namespace argent::cuda {

// What a backend has, for its encoder.
struct Resources {
  Weights weights;
  KvLayout layout;
  KvType kv_k = KvType::f16, kv_v = KvType::f16;
  std::vector<KvPlace> kv;  // by layer
  Memory arena;
  StepBuffers step;
  Memory q8;       // rows of activations as int8, for the products that follow
  Memory squares;  // sums of squares of the row that is normed next
  Memory partial;  // partial results of attention
};

// Which form of its last output a node writes. Products of quantized weights read int8 only, so that a norm or an
// attention before them rounds what it still has in registers.
enum class Q8Output : uint8_t { none, both, only };

// A matmul before an add_norm_mul adds the other operand itself and writes the sum where that node would.
struct SumInProduct {
  ValueId residual = kNone, sum = kNone;  // none: a plain product
  // The norm too, in steps of one row: the sums of squares that it wants come from the product, the rest is done by the
  // products that read it.
  bool squares = false;
};

// What is known of a plan before any step; made once.
struct PlanInfo {
  StepPolicy policy;
  std::vector<uint32_t> list;           // by node: which list an attention reads
  std::vector<Q8Output> q8;             // by node
  bool folds = false;                   // nodes may go into others' kernels
  std::vector<SumInProduct> sums;       // by node: of matmuls
  std::vector<bool> summed;             // by node: add_norm_muls whose sum is there
  std::vector<bool> norm_in_products;   // by node: those whose sum has squares
  std::vector<uint32_t> layer;          // by value: which layer's cache a state is
  std::vector<const double*> rope;      // by node: base angles of a rope_table, on the device
  uint64_t q8_bytes = 0;                // of the longest rows that products read as int8 or f16
  std::vector<uint64_t> partial_bytes;  // by list: of one partial result, in the widest of its layers
};
// All but `rope`. folds: nodes may go into others' kernels. internal: a state without a cache.
Result<PlanInfo> plan_info(const Plan& plan, const KvLayout& layout, KvType k, KvType v, bool folds);

class Encoder {
 public:
  Encoder(const Plan& plan, const PlanInfo& info, const Resources& resources, Launch& launch)
      : plan_(plan), info_(info), resources_(resources), shape_(resources.step.shape()), launch_(launch) {}

  // What comes before the first node, and after the last one.
  void begin();
  void end();
  void encode(size_t node);
  void all();  // begin(), every node, end()

  Launch& launch() { return launch_; }
  const Graph& graph() const { return plan_.graph; }
  const Value& value(ValueId id) const { return plan_.graph.value(id); }
  const PlanInfo& info() const { return info_; }
  const StepShape& shape() const { return shape_; }
  const StepBuffers& step() const { return resources_.step; }
  uint32_t rows_of(ValueId id) const {
    const Value& v = value(id);
    if (v.rows == Rows::fixed) return v.n_rows;
    return v.rows == Rows::tokens ? shape_.n_tokens : shape_.n_outputs;
  }

  // An activation's rows, or data of the step.
  template <class T = float>
  T* at(ValueId id) const {
    return reinterpret_cast<T*>(resources_.arena.data() + plan_.offset[id]);
  }
  const int32_t* input(ValueId id) const;
  uint8_t* scratch(size_t node) const { return resources_.arena.data() + plan_.workspace[node]; }
  const Matrix& matrix(ValueId id) const { return resources_.weights.matrix(id); }
  const float* vector(ValueId id) const { return resources_.weights.vector(id); }
  const KvPlace& kv(ValueId state) const { return resources_.kv[info_.layer[state]]; }
  StepRows step_rows(ValueId state) const;
  SampleStep sample_step() const;
  float* partial() const { return reinterpret_cast<float*>(resources_.partial.data()); }
  bool rounds_queries() const { return resources_.kv_k == KvType::q8_0; }

  // Where products of quantized weights find the rows of x: as int8, there already or quantized now, or, where there is
  // one row, as they round it themselves.
  struct Int8Rows {
    Q8 q;
    OwnRow own;
  };
  Int8Rows int8_rows(ValueId x);
  // The node's last output is one row, norm(x) * w, which the products after it make. False: they do not.
  bool leave_to_products(const Node& node, size_t index, const float* x, const Norm& norm);
  float* squares() const { return reinterpret_cast<float*>(resources_.squares.data()); }
  // Where the node's last output goes as int8: nowhere, or to the one buffer, which holds it from now on.
  Q8 q8_output(const Node& node, size_t index);
  // Null where the last output is wanted as int8 only.
  float* f32_output(const Node& node, size_t index) const {
    return info_.q8[index] == Q8Output::only && rounds(node) ? nullptr : at(node.outputs.back());
  }

 private:
  Q8 q8_of(ValueId x) const;
  // Products of many rows take 16-bit ones, whose scale is a row's: an attention kernel has no whole row.
  bool rounds(const Node& node) const {
    return node.op != Op::attention || !wide(launch_, rows_of(node.outputs.back()));
  }

  const Plan& plan_;
  const PlanInfo& info_;
  const Resources& resources_;
  const StepShape& shape_;
  Launch& launch_;
  ValueId held_ = kNone;  // the value that the int8 buffer holds
  ValueId left_ = kNone;  // the value that is left to products, and how they make it
  OwnRow left_row_;
};

// By op: what launches its kernels, and what scratch it wants for up to n_rows rows.
struct OpEncoder {
  void (*encode)(Encoder& e, const Node& node, size_t index) = nullptr;
  uint64_t (*workspace)(const Graph& graph, const Node& node, uint32_t n_rows) = nullptr;
};
OpEncoder op_encoder(Op op);

// "" or why there is no kernel for the node.
std::string missing_kernel(const Graph& graph, const Node& node);

}  // namespace argent::cuda
