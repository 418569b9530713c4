#include "backends/cpu/pack.h"

namespace argent::cpu {

namespace baseline {
extern const PackKernels kPackKernels;
}
#if defined(__x86_64__)
namespace avx2 {
extern const PackKernels kPackKernels;
}
namespace avx512 {
extern const PackKernels kPackKernels;
}
#endif

namespace {

// Bytes of one block of 16 rows.
constexpr uint32_t block_bytes(Format format) {
  const uint32_t file = kPanelRows * info(format).bytes;
  switch (format) {
    case Format::q4_k:
    case Format::q5_k:
      return file + kPanelRows * 4;  // 16 bytes of scales and mins for 12
    case Format::q3_k:
      return file + kPanelRows * 4;  // 16 for 12
    case Format::iq4_xs:
      return file + kPanelRows * 2;  // 8 for 6
    default:
      return file;
  }
}

}  // namespace

uint64_t panel_bytes(Format format, uint32_t n_cols) {
  if (format == Format::bf16) n_cols += n_cols % 2;
  return uint64_t(n_cols / info(format).block) * block_bytes(format);
}

const PackKernels& pack_kernels(Isa isa) {
  switch (isa) {
#if defined(__x86_64__)
    case Isa::avx512:
      return avx512::kPackKernels;
    case Isa::avxvnni:  // no dot products of int8 here
    case Isa::avx2:
      return avx2::kPackKernels;
#endif
    default:  // on Arm of every ISA: no dot products of int8 here
      return baseline::kPackKernels;
  }
}

}  // namespace argent::cpu
