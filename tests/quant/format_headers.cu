// Compiled, not run, by tests/quant/format_headers_test.py: every format header and every decoder in device code, so
// that a header which stops being CUDA C++ is noticed on a machine without a GPU. One kernel decodes one format.
#include "quant/bf16.h"
#include "quant/f16.h"
#include "quant/f32.h"
#include "quant/iq4_nl.h"
#include "quant/iq4_xs.h"
#include "quant/mxfp4.h"
#include "quant/q2_k.h"
#include "quant/q3_k.h"
#include "quant/q4_0.h"
#include "quant/q4_1.h"
#include "quant/q4_k.h"
#include "quant/q5_0.h"
#include "quant/q5_1.h"
#include "quant/q5_k.h"
#include "quant/q6_k.h"
#include "quant/q8_0.h"

using namespace argent;

#define KERNEL(name) extern "C" __global__ void name(const block_##name* blocks, float* out, u32* packed)

// A word of a block, which is 2-byte aligned (MXFP4: 1).
__device__ u32 word(const u8* p) { return p[0] | p[1] << 8 | p[2] << 16 | u32(p[3]) << 24; }

KERNEL(f32) { out[threadIdx.x] = f32_value(blocks[threadIdx.x].bits); }
KERNEL(f16) { out[threadIdx.x] = f16_value(blocks[threadIdx.x].bits); }
KERNEL(bf16) { out[threadIdx.x] = bf16_value(blocks[threadIdx.x].bits); }

// Thread t of 8: four elements of a block of 32.
KERNEL(q4_0) {
  const block_q4_0& b = blocks[blockIdx.x];
  const u32 i = threadIdx.x % 4 * 4, side = threadIdx.x / 4, w = word(b.qs + i), q = q4_0_quants(w, side);
  for (u32 k = 0; k < 4; k++) out[16 * side + i + k] = q4_0_value(qk_half(b.d), qk_byte(q, k));
  packed[threadIdx.x] = q4_0_levels(w, side);
}

KERNEL(q4_1) {
  const block_q4_1& b = blocks[blockIdx.x];
  const u32 i = threadIdx.x % 4 * 4, side = threadIdx.x / 4, q = q4_1_quants(word(b.qs + i), side);
  for (u32 k = 0; k < 4; k++) out[16 * side + i + k] = q4_1_value(qk_half(b.d), qk_half(b.m), qk_byte(q, k));
  packed[threadIdx.x] = q;
}

KERNEL(q5_0) {
  const block_q5_0& b = blocks[blockIdx.x];
  const u32 i = threadIdx.x % 4 * 4, side = threadIdx.x / 4, w = word(b.qs + i), qh = word(b.qh);
  const u32 q = q5_0_quants(w, qh, i, side);
  for (u32 k = 0; k < 4; k++) out[16 * side + i + k] = q5_0_value(qk_half(b.d), qk_byte(q, k));
  packed[threadIdx.x] = q5_0_levels(w, qh, i, side);
}

KERNEL(q5_1) {
  const block_q5_1& b = blocks[blockIdx.x];
  const u32 i = threadIdx.x % 4 * 4, side = threadIdx.x / 4, q = q5_1_quants(word(b.qs + i), word(b.qh), i, side);
  for (u32 k = 0; k < 4; k++) out[16 * side + i + k] = q5_1_value(qk_half(b.d), qk_half(b.m), qk_byte(q, k));
  packed[threadIdx.x] = q;
}

KERNEL(q8_0) {
  const block_q8_0& b = blocks[blockIdx.x];
  out[threadIdx.x] = q8_0_value(qk_half(b.d), b.qs[threadIdx.x]);
}

// Thread t of 64: four elements of a block of 256, from 128h + 32s + l on.
KERNEL(q2_k) {
  const block_q2_k& b = blocks[blockIdx.x];
  const u32 e = 4 * threadIdx.x, h = e / 128, s = e / 32 % 4, l = e % 32, q = q2_k_quants(word(b.qs + 32 * h + l), s);
  const float scale = qk_half(b.d) * float(q2_k_scales(b.scales[e / kQ2_KGroup]));
  const float min = qk_half(b.dmin) * float(q2_k_mins(b.scales[e / kQ2_KGroup]));
  for (u32 k = 0; k < 4; k++) out[e + k] = q2_k_value(scale, min, qk_byte(q, k));
  packed[threadIdx.x] = q;
}

KERNEL(q3_k) {
  const block_q3_k& b = blocks[blockIdx.x];
  const u32 e = 4 * threadIdx.x, h = e / 128, s = e / 32 % 4, l = e % 32;
  const u32 w = word(b.qs + 32 * h + l), hm = word(b.hmask + l), q = q3_k_quants(w, hm, h, s);
  const u32 s0 = word(b.scales), s1 = word(b.scales + 4), s2 = word(b.scales + 8);
  const float scale = qk_half(b.d) * float(q3_k_scale(s0, s1, s2, e / kQ3_KGroup));
  for (u32 k = 0; k < 4; k++) out[e + k] = q3_k_value(scale, qk_byte(q, k));
  packed[threadIdx.x] = q3_k_levels(w, hm, h, s) + q3_k_scales4(s0, s1, s2, s);
}

KERNEL(q4_k) {
  const block_q4_k& b = blocks[blockIdx.x];
  const u32 e = 4 * threadIdx.x, j = e / kQ4_KGroup, l = e % 32, q = q4_k_quants(word(b.qs + 32 * (j / 2) + l), j % 2);
  const u32 s0 = word(b.scales), s1 = word(b.scales + 4), s2 = word(b.scales + 8);
  const float scale = qk_half(b.d) * float(q4_k_scale(s0, s2, j)), min = qk_half(b.dmin) * float(q4_k_min(s1, s2, j));
  for (u32 k = 0; k < 4; k++) out[e + k] = q4_k_value(scale, min, qk_byte(q, k));
  packed[threadIdx.x] = q4_k_scales4(s0, s2, j / 4) + q4_k_mins4(s1, s2, j / 4);
}

KERNEL(q5_k) {
  const block_q5_k& b = blocks[blockIdx.x];
  const u32 e = 4 * threadIdx.x, j = e / kQ5_KGroup, l = e % 32;
  const u32 q = q5_k_quants(word(b.qs + 32 * (j / 2) + l), word(b.qh + l), j);
  const u32 s0 = word(b.scales), s1 = word(b.scales + 4), s2 = word(b.scales + 8);
  const float scale = qk_half(b.d) * float(q5_k_scale(s0, s2, j)), min = qk_half(b.dmin) * float(q5_k_min(s1, s2, j));
  for (u32 k = 0; k < 4; k++) out[e + k] = q5_k_value(scale, min, qk_byte(q, k));
  packed[threadIdx.x] = q;
}

KERNEL(q6_k) {
  const block_q6_k& b = blocks[blockIdx.x];
  const u32 e = 4 * threadIdx.x, h = e / 128, s = e / 32 % 4, l = e % 32;
  const u32 lo = word(b.ql + 64 * h + 32 * (s & 1) + l), hi = word(b.qh + 32 * h + l), q = q6_k_quants(lo, hi, s);
  const float scale = qk_half(b.d) * float(b.scales[e / kQ6_KGroup]);
  for (u32 k = 0; k < 4; k++) out[e + k] = q6_k_value(scale, qk_byte(q, k));
  packed[threadIdx.x] = q6_k_levels(lo, hi, s);
}

KERNEL(iq4_nl) {
  const block_iq4_nl& b = blocks[blockIdx.x];
  const u32 i = threadIdx.x % 4 * 4, side = threadIdx.x / 4, level = iq4_nl_levels(iq4_nl_quants(word(b.qs + i), side));
  for (u32 k = 0; k < 4; k++) out[16 * side + i + k] = iq4_nl_value(qk_half(b.d), qk_signed(qk_byte(level, k)));
  packed[threadIdx.x] = level;
}

KERNEL(iq4_xs) {
  const block_iq4_xs& b = blocks[blockIdx.x];
  const u32 j = threadIdx.x / 8, i = threadIdx.x % 4 * 4, side = threadIdx.x / 4 % 2;
  const u32 level = iq4_xs_levels(iq4_xs_quants(word(b.qs + 16 * j + i), side));
  const float scale = qk_half(b.d) * float(iq4_xs_scale(word(b.scales_l), b.scales_h, j));
  for (u32 k = 0; k < 4; k++) out[32 * j + 16 * side + i + k] = iq4_xs_value(scale, qk_signed(qk_byte(level, k)));
  packed[threadIdx.x] = level;
}

KERNEL(mxfp4) {
  const block_mxfp4& b = blocks[blockIdx.x];
  const u32 i = threadIdx.x % 4 * 4, side = threadIdx.x / 4, level = mxfp4_levels(mxfp4_quants(word(b.qs + i), side));
  for (u32 k = 0; k < 4; k++) out[16 * side + i + k] = mxfp4_value(mxfp4_scale(b.e), qk_signed(qk_byte(level, k)));
  packed[threadIdx.x] = level;
}
