// BF16: the upper half of an IEEE single.
//
//   byte   0      2
//          | bits |
#pragma once

#include "quant/portable.h"

namespace argent {

struct block_bf16 {
  u16 bits;
};
static_assert(sizeof(block_bf16) == 2, "BF16 layout");

QK_CONST u32 kBF16Block = 1;

QK_FN float bf16_value(u32 bits) { return qk_float(bits << 16); }

}  // namespace argent
