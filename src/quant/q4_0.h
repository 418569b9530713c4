// Q4_0: 32 elements, a 4-bit quant each; value = d * (q - 8).
//
//   byte   0   2                                   18
//          | d | qs[0]   qs[1]   ...   qs[15]      |
//              bits 0-3: q of element i   bits 4-7: q of element i + 16
#pragma once

#include "quant/portable.h"

namespace argent {

struct block_q4_0 {
  u16 d;  // half
  u8 qs[16];
};
static_assert(sizeof(block_q4_0) == 18, "Q4_0 layout");

QK_CONST u32 kQ4_0Block = 32;
QK_CONST u32 kQ4_0Zero = 8;

// Quants of the bytes of qs in w (one to four of them), a byte each: element i of byte i for side 0, i + 16 for side 1.
QK_FN u32 q4_0_quants(u32 w, u32 side) { return w >> 4 * side & 0x0f0f0f0f; }

// The same, as signed bytes q - 8.
QK_FN u32 q4_0_levels(u32 w, u32 side) { return qk_subtract(q4_0_quants(w, side), kQ4_0Zero); }

QK_FN float q4_0_value(float d, u32 q) { return d * float(i32(q) - 8); }

}  // namespace argent
