// IQ4_XS: 256 elements, a 4-bit index each into the levels of IQ4_NL, in 8 groups of 32 with a 6-bit scale;
// value = d * (scale - 32) * level[q].
//
//   byte   0   2          4             8         136
//          | d | scales_h | scales_l[4] | qs[128] |
//   scales_l  as a little-endian word: bits 4j to 4j+3 are bits 0-3 of the scale of group j
//   scales_h  bits 2j, 2j+1 are bits 4-5 of the scale of group j
//   qs        byte 16j + i   bits 0-3: q of element 32j + i   bits 4-7: q of element 32j + 16 + i   (i 0-15)
#pragma once

#include "quant/iq4_nl.h"

namespace argent {

struct block_iq4_xs {
  u16 d;  // half
  u16 scales_h;
  u8 scales_l[4];
  u8 qs[128];
};
static_assert(sizeof(block_iq4_xs) == 136, "IQ4_XS layout");

QK_CONST u32 kIQ4_XSBlock = 256;
QK_CONST u32 kIQ4_XSGroup = 32;

// Scale of group j, -32 to 31.
QK_FN i32 iq4_xs_scale(u32 low, u32 high, u32 j) { return i32((low >> 4 * j & 15) | (high >> 2 * j & 3) << 4) - 32; }

// Indices of the bytes of qs in w (one to four of them), a byte each: element i of byte i for side 0, i + 16 for
// side 1.
QK_FN u32 iq4_xs_quants(u32 w, u32 side) { return iq4_nl_quants(w, side); }

// Levels of four indices, as signed bytes.
QK_FN u32 iq4_xs_levels(u32 q) { return iq4_nl_levels(q); }

// scale = d * scale of the group; the product is exact.
QK_FN float iq4_xs_value(float scale, i32 level) { return scale * float(level); }

}  // namespace argent
