// A metal::Device whose kernels are the same text compiled by nvcc. For tests: memory is managed, dispatches run one by
// one.
#pragma once

#include <map>

#include "backends/metal/device.h"

namespace argent::metal {

class CudaDevice : public Device {
 public:
  Result<std::unique_ptr<Buffer>> alloc(size_t size) override;
  Result<std::unique_ptr<Buffer>> wrap(const void* data, size_t size) override;
  Result<const Pipeline*> pipeline(std::string_view name, std::span<const FunctionConstant> constants) override;
  Status submit(const CommandList& list) override;
  Status wait() override;

 private:
  Status run(const Dispatch& dispatch);
  std::vector<std::unique_ptr<Pipeline>> pipelines_;
};

}  // namespace argent::metal
