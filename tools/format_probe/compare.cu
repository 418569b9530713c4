// The header decoders and the hand-written ones as kernels, for comparing their machine code (docs/decisions/0001):
//   nvcc -std=c++20 -arch=sm_90 -Isrc -Itools/format_probe -cubin tools/format_probe/compare.cu -o compare.cubin
//   cuobjdump -sass compare.cubin
// Each pair has the same loads and stores. *_block: a thread decodes a block to floats. *_dot: a thread's share of an
// integer dot product, as matrix-vector kernels do it.
#include "hand_written.h"
#include "quant/q4_0.h"
#include "quant/q4_k.h"

using namespace argent;

// From the words of a block in registers, out through 16-byte stores.
template <int N>
__device__ void store(const float* x, float4* out) {
  for (int i = 0; i < N / 4; i++) out[i] = make_float4(x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]);
}

extern "C" __global__ void q4_0_block_header(const uint4* qs, const u16* d, float4* out) {
  const int t = blockIdx.x * blockDim.x + threadIdx.x;
  const uint4 v = qs[t];
  const u32 w[4] = {v.x, v.y, v.z, v.w};
  const float scale = qk_half(d[t]);
  float x[32];
#pragma unroll
  for (u32 side = 0; side < 2; side++)
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
      const u32 q = q4_0_quants(w[i], side);
#pragma unroll
      for (u32 k = 0; k < 4; k++) x[16 * side + 4 * i + k] = q4_0_value(scale, qk_byte(q, k));
    }
  store<32>(x, out + 8 * t);
}

extern "C" __global__ void q4_0_block_hand(const uint4* qs, const u16* d, float4* out) {
  const int t = blockIdx.x * blockDim.x + threadIdx.x;
  const uint4 v = qs[t];
  uint8_t bytes[16];
  memcpy(bytes, &v, 16);
  float x[32];
  hand::q4_0_block(bytes, qk_half(d[t]), x);
  store<32>(x, out + 8 * t);
}

extern "C" __global__ void q4_k_block_header(const uint4* blocks, float4* out) {
  const int t = blockIdx.x * blockDim.x + threadIdx.x;
  const uint4 head = blocks[9 * t];
  const float d = qk_half(head.x & 0xffff), dmin = qk_half(head.x >> 16);
#pragma unroll
  for (u32 c = 0; c < 4; c++) {
    const uint4 a = blocks[9 * t + 1 + 2 * c], b = blocks[9 * t + 2 + 2 * c];
    const u32 w[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
    float x[64];
#pragma unroll
    for (u32 side = 0; side < 2; side++) {
      const u32 j = 2 * c + side;
      const float scale = d * float(i32(q4_k_scale(head.y, head.w, j))),
                  min = dmin * float(i32(q4_k_min(head.z, head.w, j)));
#pragma unroll
      for (u32 i = 0; i < 8; i++) {
        const u32 q = q4_k_quants(w[i], side);
#pragma unroll
        for (u32 k = 0; k < 4; k++) x[32 * side + 4 * i + k] = q4_k_value(scale, min, qk_byte(q, k));
      }
    }
    store<64>(x, out + 64 * t + 16 * c);
  }
}

extern "C" __global__ void q4_k_block_hand(const uint4* blocks, float4* out) {
  const int t = blockIdx.x * blockDim.x + threadIdx.x;
  uint8_t bytes[144];
#pragma unroll
  for (int i = 0; i < 9; i++) {
    const uint4 v = blocks[9 * t + i];
    memcpy(bytes + 16 * i, &v, 16);
  }
  float x[256];
  hand::q4_k_block(bytes + 4, bytes + 16, qk_half(bytes[0] | bytes[1] << 8), qk_half(bytes[2] | bytes[3] << 8), x);
  store<256>(x, out + 64 * t);
}

extern "C" __global__ void q4_0_dot_header(const u32* w, const u16* d, const int2* y, float* out) {
  const int t = blockIdx.x * blockDim.x + threadIdx.x;
  const int sum = __dp4a(int(q4_0_levels(w[t], 1)), y[t].y, __dp4a(int(q4_0_levels(w[t], 0)), y[t].x, 0));
  out[t] = qk_half(d[t]) * float(sum);
}

// As is usual: __vsubss4 (on this hardware a sequence of its own) takes 8 off each byte.
extern "C" __global__ void q4_0_dot_hand(const u32* w, const u16* d, const int2* y, float* out) {
  const int t = blockIdx.x * blockDim.x + threadIdx.x;
  const int low = __vsubss4(w[t] & 0x0f0f0f0f, 0x08080808), high = __vsubss4(w[t] >> 4 & 0x0f0f0f0f, 0x08080808);
  out[t] = qk_half(d[t]) * float(__dp4a(high, y[t].y, __dp4a(low, y[t].x, 0)));
}

// One 32-element chunk pair of a Q4_K block: scales from the three words, four bytes of quants, two groups.
extern "C" __global__ void q4_k_dot_header(const uint4* heads, const u32* w, const int2* y, const float2* sums,
                                           float* out) {
  const int t = blockIdx.x * blockDim.x + threadIdx.x;
  const uint4 head = heads[t / 32];
  const u32 c = t / 8 % 4;
  const u32 scales = q4_k_scales4(head.y, head.w, c / 2) >> 16 * (c % 2);
  const u32 mins = q4_k_mins4(head.z, head.w, c / 2) >> 16 * (c % 2);
  float sum = 0, low = 0;
#pragma unroll
  for (u32 side = 0; side < 2; side++) {
    const int dot = __dp4a(int(q4_k_quants(w[t], side)), side ? y[t].y : y[t].x, 0);
    sum += float(int(qk_byte(scales, side)) * dot);
    low += float(int(qk_byte(mins, side))) * (side ? sums[t].y : sums[t].x);
  }
  out[t] = qk_half(head.x & 0xffff) * sum - qk_half(head.x >> 16) * low;
}

// As is usual: 16-bit halves of the scales picked for a pair of groups at once.
extern "C" __global__ void q4_k_dot_hand(const uint4* heads, const u32* w, const int2* y, const float2* sums,
                                         float* out) {
  const int t = blockIdx.x * blockDim.x + threadIdx.x;
  const uint4 head = heads[t / 32];
  const int c = t / 8 % 4, shift = c % 2 * 16;
  const u32 s0 = head.y >> shift & 0xffff, s1 = head.z >> shift & 0xffff, s2 = head.w >> shift & 0xffff;
  u32 scales, mins;
  if (c < 2) {
    scales = s0 & 0x3f3f, mins = s1 & 0x3f3f;
  } else {
    scales = (s2 & 0x0f0f) | (s0 & 0xc0c0) >> 2, mins = (s2 >> 4 & 0x0f0f) | (s1 & 0xc0c0) >> 2;
  }
  const int dot0 = __dp4a(int(w[t] & 0x0f0f0f0f), y[t].x, 0), dot1 = __dp4a(int(w[t] >> 4 & 0x0f0f0f0f), y[t].y, 0);
  const float sum = float(int(scales & 255) * dot0) + float(int(scales >> 8) * dot1);
  const float low = float(int(mins & 255)) * sums[t].x + float(int(mins >> 8)) * sums[t].y;
  out[t] = qk_half(head.x & 0xffff) * sum - qk_half(head.x >> 16) * low;
}
