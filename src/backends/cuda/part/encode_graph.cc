#include "backends/cuda/part/encode_graph.h"

#include <algorithm>

namespace argent::cuda {
namespace {

// What goes into a stream as a graph. It ends with the object, whatever happens: the stream takes no other work before.
class Capture {
 public:
  explicit Capture(Device& device) : device_(device) {}
  Capture(const Capture&) = delete;
  ~Capture() {
    if (open_) (void)end();
    if (graph_ && !device_.lost() && cudaGraphDestroy(graph_) != cudaSuccess) cudaGetLastError();
  }

  Status begin() {
    // Other threads may go on using the device.
    ARGENT_TRY(device_.check(cudaStreamBeginCapture(device_.stream(), cudaStreamCaptureModeThreadLocal),
                             "cudaStreamBeginCapture"));
    open_ = true;
    return {};
  }
  cudaError_t end() {
    open_ = false;
    return cudaStreamEndCapture(device_.stream(), &graph_);
  }
  cudaGraph_t graph() const { return graph_; }

 private:
  Device& device_;
  bool open_ = false;
  cudaGraph_t graph_ = nullptr;
};

}  // namespace

// One that still runs goes when it has ended.
void Graphs::Destroy::operator()(cudaGraphExec_t exec) const {
  if (!device->lost() && cudaGraphExecDestroy(exec) != cudaSuccess) cudaGetLastError();
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
  Capture capture(device);
  ARGENT_TRY(capture.begin());
  Launch launch(device.stream(), options);
  encode(launch);
  const cudaError_t ended = capture.end();
  ARGENT_TRY(device.check(launch));
  ARGENT_TRY(device.check(ended, "cudaStreamEndCapture"));
  cudaGraphExec_t exec = nullptr;
  ARGENT_TRY(device.check(cudaGraphInstantiate(&exec, capture.graph(), 0), "cudaGraphInstantiate"));
  Exec made(exec, Destroy{&device});
  ARGENT_TRY(device.check(cudaGraphUpload(exec, device.stream()), "cudaGraphUpload"));
  return made;
}

}  // namespace argent::cuda
