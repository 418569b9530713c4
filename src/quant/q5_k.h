// Q5_K: 256 elements, a 5-bit quant each, in 8 groups of 32 with a 6-bit scale and a 6-bit min;
// value = d * scale * q - dmin * min.
//
//   byte   0   2      4            16       48        176
//          | d | dmin | scales[12] | qh[32] | qs[128] |
//   scales  as in Q4_K
//   qs      byte 32c + l     bits 0-3: low bits of element 64c + l     bits 4-7: low bits of element 64c + 32 + l
//   qh      byte l           bit j: bit 4 of element 32j + l (group j)
#pragma once

#include "quant/q4_k.h"

namespace argent {

struct block_q5_k {
  u16 d;     // half
  u16 dmin;  // half
  u8 scales[12];
  u8 qh[32];
  u8 qs[128];
};
static_assert(sizeof(block_q5_k) == 176, "Q5_K layout");

QK_CONST u32 kQ5_KBlock = 256;
QK_CONST u32 kQ5_KGroup = 32;

// Packed as in Q4_K.
QK_FN u32 q5_k_scale(u32 s0, u32 s2, u32 j) { return q4_k_scale(s0, s2, j); }
QK_FN u32 q5_k_min(u32 s1, u32 s2, u32 j) { return q4_k_min(s1, s2, j); }

// Quants of group j of the bytes 32 * (j / 2) + l of qs in w with the bytes l of qh in hi (one to four), a byte each.
QK_FN u32 q5_k_quants(u32 w, u32 hi, u32 j) { return (w >> 4 * (j & 1) & 0x0f0f0f0f) | (hi >> j & 0x01010101) << 4; }

// scale = d * scale, min = dmin * min of the group; both products are exact.
QK_FN float q5_k_value(float scale, float min, u32 q) { return scale * float(i32(q)) - min; }

}  // namespace argent
