// Q4_1: 32 elements, a 4-bit quant each; value = d * q + m.
//
//   byte   0   2   4                                   20
//          | d | m | qs[0]   qs[1]   ...   qs[15]      |
//                  bits 0-3: q of element i   bits 4-7: q of element i + 16
#pragma once

#include "quant/portable.h"

namespace argent {

struct block_q4_1 {
  u16 d;  // half
  u16 m;  // half
  u8 qs[16];
};
static_assert(sizeof(block_q4_1) == 20, "Q4_1 layout");

QK_CONST u32 kQ4_1Block = 32;

// Quants of the bytes of qs in w (one to four of them), a byte each: element i of byte i for side 0, i + 16 for side 1.
QK_FN u32 q4_1_quants(u32 w, u32 side) { return w >> 4 * side & 0x0f0f0f0f; }

QK_FN float q4_1_value(float d, float m, u32 q) { return d * float(i32(q)) + m; }

}  // namespace argent
