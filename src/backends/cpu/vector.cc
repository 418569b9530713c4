#include "backends/cpu/vector.h"

namespace argent::cpu {

namespace baseline {
extern const VectorKernels kVectorKernels;
}
namespace avx2 {
extern const VectorKernels kVectorKernels;
}
namespace avx512 {
extern const VectorKernels kVectorKernels;
}

uint64_t attention_scratch(uint32_t, uint32_t, uint32_t) {
  return uint64_t(kAttentionQueries) * kSplitKeys * sizeof(float);
}

const VectorKernels& vector_kernels(Isa isa) {
  switch (isa) {
    case Isa::avx512:
      return avx512::kVectorKernels;
    case Isa::avxvnni:  // no dot products of int8 here
    case Isa::avx2:
      return avx2::kVectorKernels;
    case Isa::baseline:
      break;
  }
  return baseline::kVectorKernels;
}

}  // namespace argent::cpu
