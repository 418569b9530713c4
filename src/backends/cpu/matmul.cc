#include "backends/cpu/matmul.h"

#include "base/cpu_features.h"

namespace argent::cpu {

namespace baseline {
extern const MatmulKernels kMatmulKernels;
}
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

// vdpbf16ps where there is one; without it (Ice Lake) the same bits come of fma.
MatmulKernels best_avx512() {
  MatmulKernels kernels = avx512::kMatmulKernels;
  if (cpu_features().avx512bf16) kernels.multiply_bf16 = avx512::kMultiplyBf16;
  return kernels;
}

}  // namespace

const MatmulKernels& matmul_kernels(Isa isa) {
  static const MatmulKernels avx512_kernels = best_avx512();
  switch (isa) {
    case Isa::avx512:
      return avx512_kernels;
    case Isa::avxvnni:
      return avxvnni::kMatmulKernels;
    case Isa::avx2:
      return avx2::kMatmulKernels;
    case Isa::baseline:
      break;
  }
  return baseline::kMatmulKernels;
}

}  // namespace argent::cpu
