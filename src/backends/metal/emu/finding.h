// What the emulator finds wrong with a kernel.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace argent::emu {

enum class Fault : uint8_t {
  out_of_bounds,         // outside every range bound in this dispatch
  uninitialised,         // bytes that nobody wrote were read
  write_to_const,        // through device const or constant
  misaligned,            // an address that is no multiple of what is loaded or stored
  race,                  // two threads of a threadgroup, no barrier between
  wrong_scope,           // the same, with a barrier whose mem_flags name the other memory
  race_of_threadgroups,  // two threadgroups of a dispatch: nothing orders them
  race_of_dispatches,    // two dispatches of one command list without a barrier between
  divergence,            // lanes, or SIMD-groups, that do not meet at one SIMD-group function or barrier
  bad_index,             // of an array in thread memory, a shift as wide as the value, or a division by zero
};
std::string_view name_of(Fault fault);

struct Finding {
  Fault fault;
  std::string kernel;
  std::string where;  // file:line of the kernel's text; empty without debug information
  std::string text;   // one line
  std::string line() const;
};

// The file:line of code addresses, innermost frame whose file is not one of the shim; addr2line is asked once.
std::vector<std::string> source_lines(const std::vector<const void*>& pcs);

}  // namespace argent::emu
