// A model's weights on the device: matrices as products read them, vectors as floats, all in one allocation.
#pragma once

#include <functional>
#include <vector>

#include "backends/backend.h"
#include "backends/cuda/part/device.h"
#include "backends/cuda/part/kernels/kernels.h"

namespace argent::cuda {

// How nodes of a graph read a weight: as a matrix of products and of embeddings, as a vector (norms, biases, factors of
// rope), or both ways.
struct WeightUse {
  bool matrix = false, vector = false;
};
std::vector<WeightUse> weight_uses(const Graph& graph);  // by value

// What the weight takes on the device, alignment included.
uint64_t weight_bytes(const Value& weight, WeightUse use);

class Weights {
 public:
  // Reads all weights of a graph; its data is not needed afterwards. Device memory for two slices of rows is used
  // meanwhile. cancelled: progress said so; out_of_memory: how much is missing. After an error there are none.
  Status load(Device& device, bool dependent, const Graph& graph, const std::function<bool(const Progress&)>& progress);

  // Whether the value is one of the loaded graph's.
  bool has(ValueId id) const { return id < matrices_.size(); }
  // By value of the loaded graph; plans of it only append values.
  const Matrix& matrix(ValueId id) const { return matrices_[id]; }
  const float* vector(ValueId id) const { return vectors_[id]; }
  // A vector's floats on the host: of the factors of rope.
  const std::vector<float>& factors(ValueId id) const { return factors_[id]; }

 private:
  Status read(Device& device, bool dependent, const Graph& graph, const std::function<bool(const Progress&)>& progress);

  Memory memory_;
  std::vector<Matrix> matrices_;
  std::vector<const float*> vectors_;
  std::vector<std::vector<float>> factors_;
};

}  // namespace argent::cuda
