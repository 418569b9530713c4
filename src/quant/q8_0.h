// Q8_0: 32 elements, a signed byte each; value = d * q.
//
//   byte   0   2                                34
//          | d | qs[0]   qs[1]   ...   qs[31]   |
#pragma once

#include "quant/portable.h"

namespace argent {

struct block_q8_0 {
  u16 d;  // half
  i8 qs[32];
};
static_assert(sizeof(block_q8_0) == 34, "Q8_0 layout");

QK_CONST u32 kQ8_0Block = 32;

QK_FN float q8_0_value(float d, i32 q) { return d * float(q); }

}  // namespace argent
