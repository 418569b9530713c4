#include "backends/metal/emu/fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <new>

#include "backends/metal/device.h"

namespace argent::emu {

FiberStacks::FiberStacks() : page_(size_t(sysconf(_SC_PAGESIZE))), length_(metal::kMaxThreads * (kSize + page_)) {
  void* memory = mmap(nullptr, length_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  base_ = static_cast<uint8_t*>(memory);
  for (uint32_t i = 0; i < metal::kMaxThreads; i++) mprotect(base_ + i * (kSize + page_), page_, PROT_NONE);
}

FiberStacks::~FiberStacks() { munmap(base_, length_); }

namespace {
void* scheduler;
}

// Saves the registers that a call preserves on this stack, and takes those of the other.
extern "C" void argent_emu_switch(void** save, void* load);
asm(R"(
.text
.globl argent_emu_switch
.type argent_emu_switch, @function
argent_emu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");

void Fiber::prepare(uint8_t* memory, void (*entry)()) {
  stack = memory;
  void** top = reinterpret_cast<void**>(memory + FiberStacks::kSize);
  *--top = nullptr;  // where entry would return to; keeps the stack aligned as after a call
  *--top = reinterpret_cast<void*>(entry);
  top -= 6;
  std::memset(top, 0, 6 * sizeof(void*));
  stack_pointer_ = top;
}
void Fiber::enter() { argent_emu_switch(&scheduler, stack_pointer_); }
void Fiber::leave() { argent_emu_switch(&stack_pointer_, scheduler); }

}  // namespace argent::emu
