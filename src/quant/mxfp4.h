// MXFP4: 32 elements, a 4-bit float (e2m1) each, with one power-of-two scale (e8m0); value = 2^(e-127) * e2m1(q).
// Decoded with doubled levels, which are integers, and the halved scale: 2^(e-128) * level[q].
//
//   byte   0   1                                   17
//          | e | qs[0]   qs[1]   ...   qs[15]      |
//              bits 0-3: q of element i   bits 4-7: q of element i + 16
#pragma once

#include "quant/portable.h"

namespace argent {

struct block_mxfp4 {
  u8 e;
  u8 qs[16];
};
static_assert(sizeof(block_mxfp4) == 17, "MXFP4 layout");

QK_CONST u32 kMXFP4Block = 32;

// The doubled levels as signed bytes, level 0 in the low byte of the first word (level 8 is 0, not -0):
//   0 1 2 3   4 6 8 12   0 -1 -2 -3   -4 -6 -8 -12
QK_CONST u32 kMXFP4Levels0 = 0x03020100;
QK_CONST u32 kMXFP4Levels1 = 0x0c080604;
QK_CONST u32 kMXFP4Levels2 = 0xfdfeff00;
QK_CONST u32 kMXFP4Levels3 = 0xf4f8fafc;

// 2^(e-128), subnormal for e below 2; e = 255 (NaN in the OCP specification) is read as 2^127, as ggml does.
QK_FN float mxfp4_scale(u32 e) { return qk_float(e < 2 ? 0x00200000u << e : (e - 1) << 23); }

// Indices of the bytes of qs in w (one to four of them), a byte each: element i of byte i for side 0, i + 16 for
// side 1.
QK_FN u32 mxfp4_quants(u32 w, u32 side) { return w >> 4 * side & 0x0f0f0f0f; }

// Doubled levels of four indices, as signed bytes.
QK_FN u32 mxfp4_levels(u32 q) { return qk_lookup(q, kMXFP4Levels0, kMXFP4Levels1, kMXFP4Levels2, kMXFP4Levels3); }

QK_FN float mxfp4_value(float scale, i32 level) { return scale * float(level); }

}  // namespace argent
