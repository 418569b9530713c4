// Q5_0: 32 elements, a 5-bit quant each; value = d * (q - 16).
//
//   byte   0   2       6                                   22
//          | d | qh[4] | qs[0]   qs[1]   ...   qs[15]      |
//                      bits 0-3: low bits of element i   bits 4-7: low bits of element i + 16
//   qh as a little-endian word: bit i is bit 4 of element i, 0 to 31.
#pragma once

#include "quant/portable.h"

namespace argent {

struct block_q5_0 {
  u16 d;  // half
  u8 qh[4];
  u8 qs[16];
};
static_assert(sizeof(block_q5_0) == 22, "Q5_0 layout");

QK_CONST u32 kQ5_0Block = 32;
QK_CONST u32 kQ5_0Zero = 16;

// Quants of the four bytes of qs from byte i on (i a multiple of 4) in w, a byte each: elements i + 16 * side to
// i + 16 * side + 3. Of a single byte in w: i any byte, and the low byte of the result.
QK_FN u32 q5_0_quants(u32 w, u32 qh, u32 i, u32 side) {
  return (w >> 4 * side & 0x0f0f0f0f) | qk_spread(qh >> (i + 16 * side)) << 4;
}

// The same, as signed bytes q - 16.
QK_FN u32 q5_0_levels(u32 w, u32 qh, u32 i, u32 side) { return qk_subtract(q5_0_quants(w, qh, i, side), kQ5_0Zero); }

QK_FN float q5_0_value(float d, u32 q) { return d * float(i32(q) - 16); }

}  // namespace argent
