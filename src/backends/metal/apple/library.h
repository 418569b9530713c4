// The kernels as tools/metal/library.py embeds them: each .metal file with its includes joined in, and what its text
// says of arguments and function constants.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "backends/metal/device.h"

namespace argent::metal {

struct KernelArgument {
  Argument::Kind kind;
  uint8_t index;
  bool written;
  uint32_t size;  // of the struct behind a reference; 0 for a pointer
  const char* name;
};

struct KernelText {
  const char* name;
  std::span<const KernelArgument> arguments;
  std::span<const uint8_t> constants;  // indices of those that it needs
};

struct KernelConstant {
  const char* name;
  uint8_t index;
  char type;  // 'b' bool, 'i' int, 'u' uint, 'f' float
};

struct KernelFile {
  const char* stem;
  const char* hash;  // of the text; a precompiled library is the file <stem>-<hash>.metallib
  std::string_view text;
  std::span<const KernelText> kernels;
  std::span<const KernelConstant> constants;
};

// Written by library.py.
std::span<const KernelFile> kernel_files();

}  // namespace argent::metal
