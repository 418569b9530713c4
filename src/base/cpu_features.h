// What this processor offers and the operating system keeps across context switches: CPUID and XGETBV on x86-64, what
// the system says on Arm.
#pragma once

#include <cstdint>

namespace argent {

struct CpuFeatures {
  bool avx2 = false, fma = false, f16c = false, avx_vnni = false;
  // All of these need the operating system to save the 512-bit registers.
  bool avx512f = false, avx512bw = false, avx512vl = false, avx512dq = false, avx512vnni = false, avx512vbmi = false,
       avx512bf16 = false;
  bool dotprod = false, i8mm = false;  // Arm
};

// Asked once, then cached.
const CpuFeatures& cpu_features();

// Bytes of a core's first-level data cache; 0: unknown.
uint32_t l1_data_bytes();

}  // namespace argent
