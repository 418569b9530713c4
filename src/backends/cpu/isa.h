// Instruction sets that kernel text is compiled for (simd/simd.h).
#pragma once

#include <cstdint>

namespace argent::cpu {

// In order of preference. baseline runs on any x86-64 (SSE2, no FMA: products and sums are rounded one by one, so its
// last bits differ from the others').
enum class Isa : uint8_t { baseline, avx2, avx512 };

// Whether this machine (processor and operating system) runs the kernels of `isa`.
bool isa_supported(Isa isa);
// The best ISA of this machine.
Isa best_isa();

}  // namespace argent::cpu
