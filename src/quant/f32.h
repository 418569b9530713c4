// F32: IEEE single.
//
//   byte   0      4
//          | bits |
#pragma once

#include "quant/portable.h"

namespace argent {

struct block_f32 {
  u32 bits;
};
static_assert(sizeof(block_f32) == 4, "F32 layout");

QK_CONST u32 kF32Block = 1;

QK_FN float f32_value(u32 bits) { return qk_float(bits); }

}  // namespace argent
