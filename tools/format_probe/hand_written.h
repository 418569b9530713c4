// Q4_0 and Q4_K decoded without their headers, byte by byte as one would write it for these formats alone: what the
// header decoders' speed is compared with. Compiles as C++ and CUDA.
#pragma once

#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define HAND_FN __host__ __device__ __attribute__((always_inline)) inline
#else
#define HAND_FN inline
#endif

namespace argent::hand {

HAND_FN void q4_0_block(const uint8_t* qs, float d, float* out) {
  for (int i = 0; i < 16; i++) {
    out[i] = float(int(qs[i] & 15) - 8) * d;
    out[i + 16] = float(int(qs[i] >> 4) - 8) * d;
  }
}

HAND_FN void q4_k_scale_min(const uint8_t* scales, int j, int* scale, int* min) {
  if (j < 4) {
    *scale = scales[j] & 63;
    *min = scales[j + 4] & 63;
  } else {
    *scale = (scales[j + 4] & 15) | scales[j - 4] >> 6 << 4;
    *min = scales[j + 4] >> 4 | scales[j] >> 6 << 4;
  }
}

HAND_FN void q4_k_block(const uint8_t* scales, const uint8_t* qs, float d, float dmin, float* out) {
  for (int c = 0; c < 4; c++, qs += 32, out += 64) {
    int scale0, min0, scale1, min1;
    q4_k_scale_min(scales, 2 * c, &scale0, &min0);
    q4_k_scale_min(scales, 2 * c + 1, &scale1, &min1);
    const float d0 = d * float(scale0), m0 = dmin * float(min0), d1 = d * float(scale1), m1 = dmin * float(min1);
    for (int l = 0; l < 32; l++) out[l] = d0 * float(qs[l] & 15) - m0;
    for (int l = 0; l < 32; l++) out[l + 32] = d1 * float(qs[l] >> 4) - m1;
  }
}

}  // namespace argent::hand
