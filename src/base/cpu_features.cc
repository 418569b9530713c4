#include "base/cpu_features.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include <unistd.h>

#include <algorithm>
#include <cstdint>

namespace argent {
namespace {

#if defined(__x86_64__)
CpuFeatures detect() {
  CpuFeatures f;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return f;
  const bool osxsave = c >> 27 & 1, avx = c >> 28 & 1;
  if (!osxsave || !avx) return f;
  // XCR0: bits 1 and 2 are the SSE and AVX state, 5 to 7 the mask and 512-bit state.
  uint32_t xcr0, high;
  __asm__ volatile("xgetbv" : "=a"(xcr0), "=d"(high) : "c"(0));
  if ((xcr0 & 6) != 6) return f;
  const bool zmm = (xcr0 & 0xe6) == 0xe6;
  f.fma = c >> 12 & 1;
  f.f16c = c >> 29 & 1;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return f;
  f.avx2 = b >> 5 & 1;
  f.avx512f = zmm && (b >> 16 & 1);
  f.avx512dq = zmm && (b >> 17 & 1);
  f.avx512bw = zmm && (b >> 30 & 1);
  f.avx512vl = zmm && (b >> 31 & 1);
  f.avx512vbmi = zmm && (c >> 1 & 1);
  f.avx512vnni = zmm && (c >> 11 & 1);
  if (a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) {
    f.avx_vnni = a >> 4 & 1;
    f.avx512bf16 = zmm && (a >> 5 & 1);
  }
  return f;
}
#elif defined(__aarch64__) && defined(__APPLE__)
bool has(const char* name) {
  int value = 0;
  size_t bytes = sizeof value;
  return sysctlbyname(name, &value, &bytes, nullptr, 0) == 0 && value != 0;
}
CpuFeatures detect() {
  CpuFeatures f;
  f.dotprod = has("hw.optional.arm.FEAT_DotProd");
  f.i8mm = has("hw.optional.arm.FEAT_I8MM");
  return f;
}
#elif defined(__aarch64__)
CpuFeatures detect() {
  CpuFeatures f;
  f.dotprod = getauxval(AT_HWCAP) & HWCAP_ASIMDDP;
  f.i8mm = getauxval(AT_HWCAP2) & HWCAP2_I8MM;
  return f;
}
#else
CpuFeatures detect() { return {}; }
#endif

}  // namespace

const CpuFeatures& cpu_features() {
  static const CpuFeatures features = detect();
  return features;
}

uint32_t l1_data_bytes() {
#if defined(_SC_LEVEL1_DCACHE_SIZE)
  static const uint32_t bytes = uint32_t(std::max(0l, sysconf(_SC_LEVEL1_DCACHE_SIZE)));
  return bytes;
#else
  return 0;
#endif
}

}  // namespace argent
