// IQ4_NL: 32 elements, a 4-bit index each into 16 fixed levels; value = d * level[q].
//
//   byte   0   2                                   18
//          | d | qs[0]   qs[1]   ...   qs[15]      |
//              bits 0-3: q of element i   bits 4-7: q of element i + 16
#pragma once

#include "quant/portable.h"

namespace argent {

struct block_iq4_nl {
  u16 d;  // half
  u8 qs[16];
};
static_assert(sizeof(block_iq4_nl) == 18, "IQ4_NL layout");

QK_CONST u32 kIQ4_NLBlock = 32;

// The levels as signed bytes, level 0 in the low byte of the first word:
//   -127 -104 -83 -65   -49 -35 -22 -10   1 13 25 38   53 69 89 113
QK_CONST u32 kIQ4_NLLevels0 = 0xbfad9881;
QK_CONST u32 kIQ4_NLLevels1 = 0xf6eaddcf;
QK_CONST u32 kIQ4_NLLevels2 = 0x26190d01;
QK_CONST u32 kIQ4_NLLevels3 = 0x71594535;

// Indices of the bytes of qs in w (one to four of them), a byte each: element i of byte i for side 0, i + 16 for
// side 1.
QK_FN u32 iq4_nl_quants(u32 w, u32 side) { return w >> 4 * side & 0x0f0f0f0f; }

// Levels of four indices, as signed bytes.
QK_FN u32 iq4_nl_levels(u32 q) { return qk_lookup(q, kIQ4_NLLevels0, kIQ4_NLLevels1, kIQ4_NLLevels2, kIQ4_NLLevels3); }

QK_FN float iq4_nl_value(float d, i32 level) { return d * float(level); }

}  // namespace argent
