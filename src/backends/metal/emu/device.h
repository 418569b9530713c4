// A metal::Device without a GPU: runs the kernels linked into the program in the emulator. Submit runs the list to its
// end.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "backends/metal/device.h"
#include "backends/metal/emu/finding.h"
#include "backends/metal/emu/machine.h"

namespace argent::emu {

struct Options {
  Order order = Order::ascending;
  uint64_t seed = 1;  // of Order::shuffled
  bool check = true;  // memory and races; only in a build with checks. Divergence is found in every build
  bool count = true;  // work() grows by an entry a dispatch
  int variant = 0;    // of the kernels: a mutant where there is one of that number, else as written
};

class EmuDevice : public metal::Device {
 public:
  explicit EmuDevice(Options options = {}) : options_(options) {}

  metal::DeviceInfo info() const override;
  Result<std::unique_ptr<metal::Buffer>> alloc(size_t size) override;
  Result<std::unique_ptr<metal::Buffer>> wrap(const void* data, size_t size) override;
  Result<const metal::Pipeline*> pipeline(std::string_view name,
                                          std::span<const metal::FunctionConstant> constants) override;
  metal::Status submit(const metal::CommandList& list) override;
  // Fails with the first finding since the last wait, if there is one.
  metal::Status wait() override;

  const std::vector<Finding>& findings() const { return findings_; }
  struct Counted {
    std::string kernel;
    Work work;
  };
  const std::vector<Counted>& work() const { return work_; }  // of every dispatch since forget()
  void forget();                                              // findings and counts

 private:
  struct Prepared;
  Result<Prepared> prepare(const metal::Dispatch& dispatch) const;

  Options options_;
  std::map<std::string, std::unique_ptr<metal::Pipeline>, std::less<>> pipelines_;
  std::vector<Finding> findings_;
  std::vector<Counted> work_;
  size_t reported_ = 0;  // findings that a wait has told
};

// The linked kernels are a build with checks.
bool checked();

// The kernels that are linked or loaded, by name.
std::vector<std::string> kernel_names(int variant = 0);

}  // namespace argent::emu
