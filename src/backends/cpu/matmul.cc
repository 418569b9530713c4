#include "backends/cpu/matmul.h"

namespace argent::cpu {

namespace baseline {
extern const MatmulKernels kMatmulKernels;
}
#if defined(__aarch64__)
namespace neon {
extern const MatmulKernels kMatmulKernels;
}
namespace i8mm {
extern const MatmulKernels kMatmulKernels;
}

const MatmulKernels& matmul_kernels(Isa isa, const CpuFeatures&) {
  if (isa == Isa::i8mm) return i8mm::kMatmulKernels;
  return isa == Isa::neon ? neon::kMatmulKernels : baseline::kMatmulKernels;
}
#else
namespace avx2 {
extern const MatmulKernels kMatmulKernels;
}
namespace avxvnni {
extern const MatmulKernels kMatmulKernels;
}
namespace avx512 {
extern const MatmulKernels kMatmulKernels;
extern const MultiplyBf16 kMultiplyBf16;
}  // namespace avx512

namespace {

MatmulKernels with_vdpbf16ps() {
  MatmulKernels kernels = avx512::kMatmulKernels;
  kernels.multiply_bf16 = avx512::kMultiplyBf16;
  return kernels;
}

}  // namespace

const MatmulKernels& matmul_kernels(Isa isa, const CpuFeatures& features) {
  static const MatmulKernels avx512_bf16 = with_vdpbf16ps();
  switch (isa) {
    case Isa::avx512:
      return features.avx512bf16 ? avx512_bf16 : avx512::kMatmulKernels;
    case Isa::avxvnni:
      return avxvnni::kMatmulKernels;
    case Isa::avx2:
      return avx2::kMatmulKernels;
    default:
      return baseline::kMatmulKernels;
  }
}
#endif

}  // namespace argent::cpu
