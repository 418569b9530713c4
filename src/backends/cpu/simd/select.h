// What sample-inl.h needs beyond vector_ext.h:
//
//   Flags, flag_nan(flags, a, b), any(flags)   remembers whether any lane of a or b was NaN
//   lanes_above(a, b)           bit i: lane i of a > lane i of b
//   truncate(a)                 to whole numbers, towards zero
//   load_pairs(p, even, odd)    the first and the second words of kLanes pairs
//   store_pairs(p, even, odd)   the reverse
//   pack_pairs(to, from, lanes) stores those of the kLanes pairs whose bit is set at `to`, which is at or before
//   `from`,
//                               and may write up to kLanes; their number
//   mul_wide(a, b)              64-bit products of the low halves of 64-bit lanes
#pragma once

#include "backends/cpu/simd/vector_ext.h"

#if defined(__aarch64__)
#include "backends/cpu/simd/select_neon.h"
#elif defined(__AVX512VNNI__)
#include "backends/cpu/simd/select_avx512.h"
#elif defined(__AVX2__)
#include "backends/cpu/simd/select_avx2.h"
#else
#include "backends/cpu/simd/select_baseline.h"
#endif
