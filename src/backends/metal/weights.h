// A model's weights as buffers: the file's mapping itself wherever a kernel can read it there.
#pragma once

#include <functional>

#include "backends/backend.h"
#include "backends/metal/encode.h"

namespace argent::metal {

class Weights {
 public:
  // Where each weight of the graph is, by value. What begins at no multiple of 16 bytes is copied. Touches every page,
  // so that no step waits for the disk; what lies ahead is read meanwhile.
  Result<std::vector<Place>> load(Device& device, const DeviceInfo& info, const Graph& graph,
                                  const std::function<bool(const Progress&)>& progress);
  uint64_t copied_bytes() const { return copied_bytes_; }

 private:
  std::vector<std::unique_ptr<Buffer>> buffers_;
  uint64_t copied_bytes_ = 0;
};

}  // namespace argent::metal
