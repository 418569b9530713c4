#include "backends/cuda/part/encode_graph.h"

#include <algorithm>

namespace argent::cuda {

// One that still runs goes when it has ended.
void Graphs::Destroy::operator()(cudaGraphExec_t exec) const {
  if (cudaGraphExecDestroy(exec) != cudaSuccess) cudaGetLastError();
}

Status Graphs::run(Device& device, const StepShape& shape, const LaunchOptions& options,
                   const std::function<void(Launch&)>& encode) {
  const auto found =
      std::find_if(captured_.begin(), captured_.end(), [&](const Captured& c) { return c.shape == shape; });
  if (found == captured_.end()) {
    Launch launch(device.stream(), options);
    encode(launch);
    ARGENT_TRY(device.check(launch));
    if (captured_.size() == kMostShapes) captured_.erase(captured_.begin());
    captured_.push_back({shape, nullptr});
    return {};
  }
  std::rotate(found, found + 1, captured_.end());
  Captured& captured = captured_.back();
  if (!captured.exec) {
    ARGENT_LET(captured.exec, capture(device, options, encode));
  }
  return device.check(cudaGraphLaunch(captured.exec.get(), device.stream()), "cudaGraphLaunch");
}

Result<Graphs::Exec> Graphs::capture(Device& device, const LaunchOptions& options,
                                     const std::function<void(Launch&)>& encode) {
  // Other threads may go on using the device.
  ARGENT_TRY(device.check(cudaStreamBeginCapture(device.stream(), cudaStreamCaptureModeThreadLocal),
                          "cudaStreamBeginCapture"));
  Launch launch(device.stream(), options);
  encode(launch);
  cudaGraph_t graph = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(device.stream(), &graph);
  const auto destroy = [](cudaGraph_t g) { cudaGraphDestroy(g); };
  const std::unique_ptr<CUgraph_st, decltype(destroy)> owner(graph, destroy);
  ARGENT_TRY(device.check(launch));
  ARGENT_TRY(device.check(ended, "cudaStreamEndCapture"));
  cudaGraphExec_t exec = nullptr;
  ARGENT_TRY(device.check(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate"));
  Exec made(exec);
  ARGENT_TRY(device.check(cudaGraphUpload(exec, device.stream()), "cudaGraphUpload"));
  return made;
}

}  // namespace argent::cuda
