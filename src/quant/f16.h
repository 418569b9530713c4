// F16: IEEE half.
//
//   byte   0      2
//          | bits |
#pragma once

#include "quant/portable.h"

namespace argent {

struct block_f16 {
  u16 bits;
};
static_assert(sizeof(block_f16) == 2, "F16 layout");

QK_CONST u32 kF16Block = 1;

QK_FN float f16_value(u32 bits) { return qk_half(bits); }

}  // namespace argent
