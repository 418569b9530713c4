// Q4_K: 256 elements, a 4-bit quant each, in 8 groups of 32 with a 6-bit scale and a 6-bit min;
// value = d * scale * q - dmin * min.
//
//   byte   0   2      4            16        144
//          | d | dmin | scales[12] | qs[128] |
//   scales  byte k (k 0-3)   bits 0-5: scale of group k             bits 6-7: bits 4-5 of the scale of group k + 4
//           byte 4 + k       bits 0-5: min of group k               bits 6-7: bits 4-5 of the min of group k + 4
//           byte 8 + k       bits 0-3: low bits of scale k + 4      bits 4-7: low bits of min k + 4
//   qs      byte 32c + l     bits 0-3: element 64c + l (group 2c)   bits 4-7: element 64c + 32 + l (group 2c + 1)
#pragma once

#include "quant/portable.h"

namespace argent {

struct block_q4_k {
  u16 d;     // half
  u16 dmin;  // half
  u8 scales[12];
  u8 qs[128];
};
static_assert(sizeof(block_q4_k) == 144, "Q4_K layout");

QK_CONST u32 kQ4_KBlock = 256;
QK_CONST u32 kQ4_KGroup = 32;

// Scales (mins) of groups 4g to 4g+3, 0 to 63, a byte each; s0, s1, s2 are the words of scales.
QK_FN u32 q4_k_scales4(u32 s0, u32 s2, u32 g) {
  return g ? (s2 & 0x0f0f0f0f) | (s0 >> 2 & 0x30303030) : s0 & 0x3f3f3f3f;
}
QK_FN u32 q4_k_mins4(u32 s1, u32 s2, u32 g) { return q4_k_scales4(s1, s2 >> 4, g); }

// Scale and min of group j, 0 to 63.
QK_FN u32 q4_k_scale(u32 s0, u32 s2, u32 j) { return qk_byte(q4_k_scales4(s0, s2, j >> 2), j & 3); }
QK_FN u32 q4_k_min(u32 s1, u32 s2, u32 j) { return qk_byte(q4_k_mins4(s1, s2, j >> 2), j & 3); }

// Quants of the bytes of qs in w (one to four of them), a byte each: of group 2c for side 0, 2c + 1 for side 1.
QK_FN u32 q4_k_quants(u32 w, u32 side) { return w >> 4 * side & 0x0f0f0f0f; }

// scale = d * scale, min = dmin * min of the group; both products are exact.
QK_FN float q4_k_value(float scale, float min, u32 q) { return scale * float(i32(q)) - min; }

}  // namespace argent
