// What the kernels of a build with checks call: they are compiled with -fsanitize=thread,bounds,shift,... and linked
// with these functions in place of the compilers' own run-time libraries. So the text of a kernel stays MSL, pointers
// stay pointers, and every load, store, index and shift is seen. This file itself is compiled without sanitizers.
#include <fmt/format.h>

#include "backends/metal/emu/machine.h"

namespace {

using argent::emu::Fault;
using argent::emu::Machine;

const bool registered = Machine::instrumented = true;

void plain(const void* address, size_t size, bool write, const void* pc) {
  Machine::get().access(address, size, write, false, false, pc);
}

// The compiler believes that the address is a multiple of the size, and so would a GPU.
void aligned(const void* address, size_t size, bool write, const void* pc) {
  if (reinterpret_cast<uintptr_t>(address) % size) {
    const std::string text =
        fmt::format("{} of {} bytes at an address that is {} above a multiple of {}", write ? "write" : "read", size,
                    reinterpret_cast<uintptr_t>(address) % size, size);
    Machine::get().fault_here(Fault::misaligned, text, pc, true);
  }
  plain(address, size, write, pc);
}

}  // namespace

#define ARGENT_PC __builtin_return_address(0)
#define ARGENT_TSAN(size)                                                                    \
  extern "C" void __tsan_read##size(void* p) { aligned(p, size, false, ARGENT_PC); }         \
  extern "C" void __tsan_write##size(void* p) { aligned(p, size, true, ARGENT_PC); }         \
  extern "C" void __tsan_unaligned_read##size(void* p) { plain(p, size, false, ARGENT_PC); } \
  extern "C" void __tsan_unaligned_write##size(void* p) { plain(p, size, true, ARGENT_PC); }
ARGENT_TSAN(1)
ARGENT_TSAN(2)
ARGENT_TSAN(4)
ARGENT_TSAN(8)
ARGENT_TSAN(16)

extern "C" {
void __tsan_read_range(void* p, size_t size) { plain(p, size, false, ARGENT_PC); }
void __tsan_write_range(void* p, size_t size) { plain(p, size, true, ARGENT_PC); }
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_init() {}

void __ubsan_handle_out_of_bounds(void*, uintptr_t index) {
  Machine::get().fault_here(Fault::bad_index, fmt::format("index {} of an array in thread memory", intptr_t(index)),
                            ARGENT_PC, true);  // what follows would write over this fiber's stack
}
void __ubsan_handle_shift_out_of_bounds(void*, uintptr_t, uintptr_t by) {
  Machine::get().fault_here(Fault::bad_index, fmt::format("shift by {}", intptr_t(by)), ARGENT_PC);
}
void __ubsan_handle_divrem_overflow(void*, uintptr_t, uintptr_t) {
  Machine::get().fault_here(Fault::bad_index, "division by zero, or its result does not fit", ARGENT_PC);
}
}
