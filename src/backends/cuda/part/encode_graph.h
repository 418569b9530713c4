// A plan's launches as CUDA graphs, by the shape of the step.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "backends/cuda/part/device.h"
#include "backends/cuda/part/step_buffers.h"

namespace argent::cuda {

class Graphs {
 public:
  // Starts what `encode` launches for a step of this shape. Each shape's first step is launched kernel by kernel, the
  // second is captured, later ones are one call. At most kMostShapes are kept, those used last. The device outlives
  // them.
  Status run(Device& device, const StepShape& shape, const LaunchOptions& options,
             const std::function<void(Launch&)>& encode);
  // Buffers that were captured have moved.
  void forget() { captured_.clear(); }

 private:
  static constexpr size_t kMostShapes = 32;
  struct Destroy {
    Device* device;
    void operator()(cudaGraphExec_t exec) const;
  };
  using Exec = std::unique_ptr<CUgraphExec_st, Destroy>;
  struct Captured {
    StepShape shape;
    Exec exec;  // null: the shape came once
  };
  static Result<Exec> capture(Device& device, const LaunchOptions& options, const std::function<void(Launch&)>& encode);

  std::vector<Captured> captured_;  // used last, last
};

}  // namespace argent::cuda
