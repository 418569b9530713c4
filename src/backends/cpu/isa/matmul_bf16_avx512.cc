// Products of bfloat16 with AVX-512 BF16, which Ice Lake's AVX-512 has not; CMakeLists.txt sets the flags by the file
// name.
#include "backends/cpu/matmul_bf16-inl.h"

namespace argent::cpu::avx512 {

extern const MultiplyBf16 kMultiplyBf16;
const MultiplyBf16 kMultiplyBf16 = multiply_bf16;

}  // namespace argent::cpu::avx512
