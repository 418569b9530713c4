#include "backends/cpu/matmul.h"

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
}

const MatmulKernels& matmul_kernels(Isa isa) {
  switch (isa) {
    case Isa::avx512:
      return avx512::kMatmulKernels;
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
