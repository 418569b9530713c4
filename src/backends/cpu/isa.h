// Instruction sets that kernel text is compiled for (simd/simd.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace argent::cpu {

// baseline runs on every processor of its architecture: SSE2 on x86-64, NEON on aarch64. In order of preference, x86-64
// then has avx2, avxvnni (AVX2 with the VEX form of vpdpbusd: client Intel since 2021, Zen 5) and avx512; aarch64 has
// neon (with the dot-product extension: every Apple M, Neoverse N1) and i8mm (with the matrix extension too: Apple from
// M2 on, Neoverse V1 and N2). The other architecture's are known by name and not supported.
enum class Isa : uint8_t { baseline, avx2, avxvnni, avx512, neon, i8mm };
inline constexpr Isa kIsas[] = {Isa::baseline, Isa::avx2, Isa::avxvnni, Isa::avx512, Isa::neon, Isa::i8mm};

// Whether products are rounded together with the sum they go to. All ISAs that do so give the same bits.
#if defined(__aarch64__)
constexpr bool has_fma(Isa) { return true; }
#else
constexpr bool has_fma(Isa isa) { return isa != Isa::baseline; }
#endif

// Whether this machine (processor and operating system) runs the kernels of `isa`.
bool isa_supported(Isa isa);
// The best ISA of this machine.
Isa best_isa();
// As --isa and ARGENT_ISA spell it.
const char* isa_name(Isa isa);
std::optional<Isa> isa_named(std::string_view name);

}  // namespace argent::cpu
