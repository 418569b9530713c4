// Q2_K: 256 elements, a 2-bit quant each, in 16 groups of 16 with a 4-bit scale and a 4-bit min;
// value = d * scale * q - dmin * min.
//
//   byte   0            16       80  82     84
//          | scales[16] | qs[64] | d | dmin |
//   scales[j]  bits 0-3: scale of elements 16j to 16j+15    bits 4-7: their min
//   qs         element 128h + 32s + l is bits 2s, 2s+1 of qs[32h + l]   (h 0-1, s 0-3, l 0-31)
#pragma once

#include "quant/portable.h"

namespace argent {

struct block_q2_k {
  u8 scales[16];
  u8 qs[64];
  u16 d;     // half
  u16 dmin;  // half
};
static_assert(sizeof(block_q2_k) == 84, "Q2_K layout");

QK_CONST u32 kQ2_KBlock = 256;
QK_CONST u32 kQ2_KGroup = 16;

// Scale and min of a group, 0 to 15, from its byte; of four groups from a word of four bytes.
QK_FN u32 q2_k_scales(u32 w) { return w & 0x0f0f0f0f; }
QK_FN u32 q2_k_mins(u32 w) { return w >> 4 & 0x0f0f0f0f; }

// Quants of the bytes of qs in w (one to four of them), a byte each: element 128h + 32s + l of byte 32h + l.
QK_FN u32 q2_k_quants(u32 w, u32 s) { return w >> 2 * s & 0x03030303; }

// scale = d * scale, min = dmin * min of the group; both products are exact.
QK_FN float q2_k_value(float scale, float min, u32 q) { return scale * float(i32(q)) - min; }

}  // namespace argent
