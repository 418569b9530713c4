// Fibers: the threads of a threadgroup, on one host thread. A switch is fifteen instructions of
// x86-64, written by hand: swapcontext() takes ten times as long, in the kernel.
#pragma once

#include <cstddef>
#include <cstdint>

namespace argent::emu {

// Stacks of kMaxThreads fibers with a page without access below each, so that a kernel that overflows its stack stops
// there.
class FiberStacks {
 public:
  static constexpr size_t kSize = 64 * 1024;
  FiberStacks();
  ~FiberStacks();
  FiberStacks(const FiberStacks&) = delete;
  FiberStacks& operator=(const FiberStacks&) = delete;
  uint8_t* stack(uint32_t i) const { return base_ + i * (kSize + page_) + page_; }
  bool contain(const void* p) const { return p >= base_ && p < base_ + length_; }

 private:
  uint8_t* base_;
  size_t page_, length_;
};

class Fiber {
 public:
  // Makes it ready to call entry(), which must not return but call leave() at its end.
  void prepare(uint8_t* stack, void (*entry)());
  void enter();  // from the scheduler: runs it until it leaves
  void leave();  // from the fiber: back to the scheduler
  uint8_t* stack = nullptr;

 private:
  void* stack_pointer_ = nullptr;
};

}  // namespace argent::emu
