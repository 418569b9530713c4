// A pool of KV blocks and the tables of a step, as kernels/kv.h and kernels/args_step.h say, and what the cache must
// hold after a store: for cases of kernels that write it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "backends/metal/kernels/args_fused.h"
#include "backends/metal/kernels/args_step.h"
#include "graph/kv_type.h"
#include "metal/cases.h"

namespace argent::metal {

struct KvShape {
  uint32_t n_head_kv, d_head, d_value;
  KvType type_k, type_v;
};

// Sequences by their length and rows, their blocks strewn over the pool; what lies before a row's block is -1.
struct KvStep {
  KvStep(const std::vector<std::pair<uint32_t, uint32_t>>& lengths_and_rows, Numbers& numbers);
  std::vector<int32_t> positions;
  std::vector<uint32_t> row_sequence;
  std::vector<KvSequence> sequences;
  std::vector<int32_t> tables;
  uint32_t n_blocks = 0;  // of the pool
};

// The pool's bytes. A layer's K and V do not follow each other, and blocks hold more than this layer.
class KvPool {
 public:
  KvPool(const KvShape& shape, const KvStep& step);
  KvStoreArgs args() const { return {shape_.n_head_kv, shape_.d_head, shape_.d_value, block_bytes_}; }
  size_t offset_k() const { return kGap; }
  size_t offset_v() const { return offset_v_; }
  const std::vector<uint8_t>& bytes() const { return bytes_; }

  // Stores the rows, k and v [token][n_head_kv][d], as graph/kv_type.h says.
  void store(const std::vector<float>& k, const std::vector<float>& v);
  // Compares two pools to the byte; one line where they differ.
  std::string compare(std::span<const std::byte> got) const;
  // Compares values with those of store(): apart by the type's rounding and the error given for each, of k and v as in
  // store(). Bytes that store() did not write must be the same.
  std::string compare_values(std::span<const std::byte> got, const std::vector<double>& error_k,
                             const std::vector<double>& error_v) const;

 private:
  static constexpr size_t kGap = 48;
  struct Row {
    bool is_v;
    uint32_t token, head, position;
    size_t block;  // where the block's K or V begin
  };
  uint32_t d(const Row& r) const { return r.is_v ? shape_.d_value : shape_.d_head; }
  KvType type(const Row& r) const { return r.is_v ? shape_.type_v : shape_.type_k; }
  double value(const uint8_t* pool, const Row& r, uint32_t i) const;
  double scale(const uint8_t* pool, const Row& r, uint32_t i) const;  // of q8_0
  size_t index(const Row& r, uint32_t i) const { return (size_t(r.token) * shape_.n_head_kv + r.head) * d(r) + i; }
  size_t element(const Row& r, uint32_t i) const;
  size_t scale_at(const Row& r, uint32_t i) const;
  void store_row(const Row& r, const float* x);

  KvShape shape_;
  KvStep step_;
  size_t offset_v_;
  uint32_t block_bytes_;
  std::vector<uint8_t> bytes_;
  std::vector<bool> stored_;
  std::vector<Row> rows_;
};

}  // namespace argent::metal
