// Q6_K: 256 elements, a 6-bit quant each, in 16 groups of 16 with a signed 8-bit scale; value = d * scale * (q - 32).
//
//   byte   0         128      192          208 210
//          | ql[128] | qh[64] | scales[16] | d |
//   element 128h + 32s + l (h 0-1, s 0-3, l 0-31):
//   ql      bits 0-3 of q are bits 0-3 (s 0, 1) or 4-7 (s 2, 3) of ql[64h + 32 * (s & 1) + l]
//   qh      bits 4-5 of q are bits 2s, 2s+1 of qh[32h + l]
#pragma once

#include "quant/portable.h"

namespace argent {

struct block_q6_k {
  u8 ql[128];
  u8 qh[64];
  i8 scales[16];
  u16 d;  // half
};
static_assert(sizeof(block_q6_k) == 210, "Q6_K layout");

QK_CONST u32 kQ6_KBlock = 256;
QK_CONST u32 kQ6_KGroup = 16;
QK_CONST u32 kQ6_KZero = 32;

// Quants (0 to 63) of the bytes 64h + 32 * (s & 1) + l of ql in lo with the bytes 32h + l of qh in hi (one to four), a
// byte each: element 128h + 32s + l.
QK_FN u32 q6_k_quants(u32 lo, u32 hi, u32 s) {
  return (lo >> 4 * (s >> 1) & 0x0f0f0f0f) | (hi >> 2 * s & 0x03030303) << 4;
}

// The same, as signed bytes q - 32.
QK_FN u32 q6_k_levels(u32 lo, u32 hi, u32 s) { return qk_subtract(q6_k_quants(lo, hi, s), kQ6_KZero); }

// scale = d * scale of the group; the product is exact.
QK_FN float q6_k_value(float scale, u32 q) { return scale * float(i32(q) - 32); }

}  // namespace argent
