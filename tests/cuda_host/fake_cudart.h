// A CUDA runtime without a GPU, linked in place of NVIDIA's: device memory is the host's, kernels do nothing, and what
// a stream was given is done as late as it may be: one operation each time that somebody asks whether it has ended. It
// counts calls, makes one of them fail, and finds what a real runtime lets pass or answers with a crash.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace argent::fake_cuda {

enum class Fault {
  none,
  once,  // one call fails, without having done anything unless it gives something back
  lost,  // from this call on the device answers everything with an error
};

struct Setup {
  uint64_t memory = 1 << 30;  // bytes of the device
  int n_devices = 1;
  int driver = 99999;                                    // the latest CUDA that it has, as cudaDriverGetVersion says it
  int major = 9, minor = 0, shared_memory = 227 * 1024;  // of the device
};

// A new runtime with nothing in it.
void reset(const Setup& setup = {});
// The n-th call from now on (1: the next) fails. Calls that only ask for errors or whether a stream has ended are not
// counted: the latter fail on a lost device alone.
void fail_at(uint64_t n, Fault fault);

struct State {
  uint64_t calls = 0;                // that counted, since reset() or fail_at()
  std::string failed;                // the call that was made to fail
  uint64_t device_bytes = 0;         // allocated now
  uint64_t things = 0;               // allocations, streams, events and graphs that are there now
  uint64_t waiting = 0;              // operations that have not been done
  uint64_t kernels = 0, graphs = 0;  // launched since reset()
  bool capturing = false;
  // Memory freed while operations wait, or named by a graph that is launched later; copies outside memory; memory of
  // the host that changes before its copy is done; calls that no capture allows; anything destroyed on a lost device.
  std::vector<std::string> findings;
};
const State& state();

// Makes memory of the host pinned for as long as this object is there. Copies that come later find it gone.
class Pinned {
 public:
  explicit Pinned(std::span<std::byte> memory);
  ~Pinned();
  Pinned(const Pinned&) = delete;

 private:
  const std::span<std::byte> memory_;
};

}  // namespace argent::fake_cuda
