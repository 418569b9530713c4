// Activation functions, the same in products' and in elementwise kernels.
#pragma once

namespace argent::cuda {

// x sigmoid(of). exp overflows below -88 of `of`: x / inf is 0, where x times the sigmoid is below 1e-36.
__device__ __forceinline__ float times_sigmoid(float x, float of) { return x / (1.0f + expf(-of)); }
__device__ __forceinline__ float silu(float x) { return times_sigmoid(x, x); }
// 0.5 x (1 + tanh(u)) = x sigmoid(2 u), without the cancellation that 1 + tanh has; 1.5957... is 2 sqrt(2 / pi).
__device__ __forceinline__ float gelu(float x) {
  return times_sigmoid(x, x * (x * x * 0.044715f + 1.0f) * 1.5957691216f);
}

}  // namespace argent::cuda
