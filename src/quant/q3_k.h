// Q3_K: 256 elements, a 3-bit quant each, in 16 groups of 16 with a 6-bit scale; value = d * (scale - 32) * (q - 4).
//
//   byte   0           32       96           108 110
//          | hmask[32] | qs[64] | scales[12] | d |
//   qs      element 128h + 32s + l: bits 0-1 of q are bits 2s, 2s+1 of qs[32h + l]   (h 0-1, s 0-3, l 0-31)
//   hmask   its bit 2 of q is bit 4h + s of hmask[l]
//   scales  of group j = 4g + k (g 0-3, k 0-3): bits 0-3 are a nibble of byte 4 * (g & 1) + k, the low one for g < 2
//   and
//           the high one otherwise; bits 4-5 are bits 2g, 2g+1 of byte 8 + k
#pragma once

#include "quant/portable.h"

namespace argent {

struct block_q3_k {
  u8 hmask[32];
  u8 qs[64];
  u8 scales[12];
  u16 d;  // half
};
static_assert(sizeof(block_q3_k) == 110, "Q3_K layout");

QK_CONST u32 kQ3_KBlock = 256;
QK_CONST u32 kQ3_KGroup = 16;
QK_CONST u32 kQ3_KZero = 4;

// Scales of groups 4g to 4g+3 plus 32 (0 to 63), a byte each; s0, s1, s2 are the words of scales.
QK_FN u32 q3_k_scales4(u32 s0, u32 s1, u32 s2, u32 g) {
  return ((g & 1 ? s1 : s0) >> 4 * (g >> 1) & 0x0f0f0f0f) | (s2 >> 2 * g & 0x03030303) << 4;
}

// Scale of group j, -32 to 31.
QK_FN i32 q3_k_scale(u32 s0, u32 s1, u32 s2, u32 j) {
  return i32(qk_byte(q3_k_scales4(s0, s1, s2, j >> 2), j & 3)) - 32;
}

// Quants (0 to 7) of the bytes 32h + l of qs in w with the bytes l of hmask in hm (one to four), a byte each:
// element 128h + 32s + l.
QK_FN u32 q3_k_quants(u32 w, u32 hm, u32 h, u32 s) {
  return (w >> 2 * s & 0x03030303) | (hm >> (4 * h + s) & 0x01010101) << 2;
}

// The same, as signed bytes q - 4.
QK_FN u32 q3_k_levels(u32 w, u32 hm, u32 h, u32 s) { return qk_subtract(q3_k_quants(w, hm, h, s), kQ3_KZero); }

// scale = d * scale of the group; the product is exact.
QK_FN float q3_k_value(float scale, u32 q) { return scale * float(i32(q) - 4); }

}  // namespace argent
