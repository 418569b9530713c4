// Q5_1: 32 elements, a 5-bit quant each; value = d * q + m.
//
//   byte   0   2   4       8                                   24
//          | d | m | qh[4] | qs[0]   qs[1]   ...   qs[15]      |
//                          bits 0-3: low bits of element i   bits 4-7: low bits of element i + 16
//   qh as a little-endian word: bit i is bit 4 of element i, 0 to 31.
#pragma once

#include "quant/q5_0.h"

namespace argent {

struct block_q5_1 {
  u16 d;  // half
  u16 m;  // half
  u8 qh[4];
  u8 qs[16];
};
static_assert(sizeof(block_q5_1) == 24, "Q5_1 layout");

QK_CONST u32 kQ5_1Block = 32;

// Packed as in Q5_0.
QK_FN u32 q5_1_quants(u32 w, u32 qh, u32 i, u32 side) { return q5_0_quants(w, qh, i, side); }

QK_FN float q5_1_value(float d, float m, u32 q) { return d * float(i32(q)) + m; }

}  // namespace argent
