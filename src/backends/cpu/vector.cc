#include "backends/cpu/vector.h"

namespace argent::cpu {

namespace baseline {
extern const VectorKernels kVectorKernels;
}
#if defined(__x86_64__)
namespace avx2 {
extern const VectorKernels kVectorKernels;
}
namespace avx512 {
extern const VectorKernels kVectorKernels;
}
#endif

uint64_t attention_scratch(uint32_t, uint32_t d_head, uint32_t) {
  // Scores, then queries as int16 with a scale for 32 elements.
  return kAttentionQueries * (kSplitKeys * sizeof(float) + uint64_t(d_head) * 2 + d_head / kKvGroup * sizeof(float));
}

const VectorKernels& vector_kernels(Isa isa) {
  switch (isa) {
#if defined(__x86_64__)
    case Isa::avx512:
      return avx512::kVectorKernels;
    case Isa::avxvnni:  // no dot products of int8 here
    case Isa::avx2:
      return avx2::kVectorKernels;
#endif
    default:  // on Arm of every ISA: no dot products of int8 here
      return baseline::kVectorKernels;
  }
}

}  // namespace argent::cpu
