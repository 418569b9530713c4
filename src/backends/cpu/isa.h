// Instruction sets that kernel text is compiled for (simd/simd.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace argent::cpu {

// In order of preference. baseline runs on any x86-64 (SSE2, no FMA: products and sums are rounded one by one, so its
// last bits differ from the others'); avxvnni is AVX2 with the VEX form of vpdpbusd (client Intel since 2021, Zen 5).
enum class Isa : uint8_t { baseline, avx2, avxvnni, avx512 };

// Whether this machine (processor and operating system) runs the kernels of `isa`.
bool isa_supported(Isa isa);
// The best ISA of this machine.
Isa best_isa();
// As --isa and ARGENT_ISA spell it.
const char* isa_name(Isa isa);
std::optional<Isa> isa_named(std::string_view name);

}  // namespace argent::cpu
