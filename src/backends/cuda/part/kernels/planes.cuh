// How a quantized matrix lies in a GPU's memory: tiles of 16 rows by 64 columns, in the order in which the lanes of a
// warp hold the A operand of mma.m16n8k32 (PTX ISA, "matrix fragments for mma.m16n8k32"), split by bits into planes so
// that every load is aligned and a warp reads whole lines. Nothing grows but by padding to 16 rows and 64 columns.
//
// Lane l of a warp has, of each group of 32 columns, four words of four columns each, a byte a quant:
//   a0: row l/4, columns 4 (l%4) to +3    a1: row l/4 + 8, the same columns    a2, a3: as a0, a1, 16 columns further
//
//   plane  bytes of a tile and 64 columns
//   p8     1024: [group 0-1][lane] uint4 a0 a1 a2 a3
//   p4      512: [lane] 4 words: group 0 rows l/4 (byte k: low nibble a0's, high nibble a2's), group 0 rows l/4 + 8
//                (a1, a3), the same of group 1
//   p2      256: [lane] 2 words, a group each: bits 2i, 2i+1 of byte k are byte k's of word ai
//   p1      128: [lane] a word: bit 4 group + i of byte k is byte k's of word ai
//   scales  one of the layouts of Scales, by 64 columns or by 256
//
// After the planes, for each row, 2^(24 + k): times 2^k its scales and mins are far from the ends of f16, the largest
// scale in [2^-10, 2^-9) unless a min is more than 2^12 times that (product_wide.cuh).
//
// Formats without mins store quants with the highest bit flipped and in a byte's high bits, so that it is a signed
// byte: shift is how far up, and the sum is divided by 2^shift at the end, which is exact.
#pragma once

#include "backends/cuda/part/kernels/kernels.h"
#include "quant/iq4_nl.h"
#include "quant/iq4_xs.h"
#include "quant/mxfp4.h"
#include "quant/q2_k.h"
#include "quant/q3_k.h"
#include "quant/q4_0.h"
#include "quant/q4_1.h"
#include "quant/q4_k.h"
#include "quant/q5_0.h"
#include "quant/q5_1.h"
#include "quant/q5_k.h"
#include "quant/q6_k.h"
#include "quant/q8_0.h"

namespace argent::cuda {

template <Format F>
inline constexpr bool kIsFloat = is_float(F);

inline constexpr uint32_t kPanelRows = 16, kChunk = 64;  // columns

// half:   by 64 columns, [row % 8] 4 halves: row, group 0; row, group 1; row + 8, group 0; row + 8, group 1
// two:    the same, scales, then [row % 8] 4 mins in the next 8 bytes
// e8:     the same with bytes
// k4:     by 256 columns, [row] 16 bytes: d, dmin, then three words whose bytes q (0 to 3) are the low, middle and high
//         byte of scale 2q | scale 2q + 1 << 6 | min 2q << 12 | min 2q + 1 << 18: a lane wants those of two groups
// k6:     by 256 columns, [row] 16 bytes of scales; then [row] d
// k2:     by 256 columns, [row] 16 bytes of scales and mins; then [row] d, dmin
// k3:     by 256 columns, [row] 12 bytes of scales; then [row] d
// xs:     by 256 columns, [row] d, scales_h, scales_l of IQ4_XS
enum class Scales : uint8_t { half, two, e8, k4, k6, k2, k3, xs };

struct PlaneShape {
  bool p8, p4, p2, p1;
  Scales scales;
  uint8_t group;  // columns of a scale
  bool min, lookup;
  uint8_t shift;  // shift above; the flipped bit is 7 - shift of the quant
};

template <Format F>
__host__ __device__ constexpr PlaneShape plane_shape() {
  switch (F) {
    case Format::q4_0:
      return {false, true, false, false, Scales::half, 32, false, false, 4};
    case Format::q4_1:
      return {false, true, false, false, Scales::two, 32, true, false, 0};
    case Format::q5_0:
      return {false, true, false, true, Scales::half, 32, false, false, 3};
    case Format::q5_1:
      return {false, true, false, true, Scales::two, 32, true, false, 0};
    case Format::q8_0:
      return {true, false, false, false, Scales::half, 32, false, false, 0};
    case Format::q2_k:
      return {false, false, true, false, Scales::k2, 16, true, false, 0};
    case Format::q3_k:
      return {false, false, true, true, Scales::k3, 16, false, false, 5};
    case Format::q4_k:
      return {false, true, false, false, Scales::k4, 32, true, false, 0};
    case Format::q5_k:
      return {false, true, false, true, Scales::k4, 32, true, false, 0};
    case Format::q6_k:
      return {false, true, true, false, Scales::k6, 16, false, false, 2};
    case Format::iq4_nl:
      return {false, true, false, false, Scales::half, 32, false, true, 0};
    case Format::iq4_xs:
      return {false, true, false, false, Scales::xs, 32, false, true, 0};
    default:
      return {false, true, false, false, Scales::e8, 32, false, true, 0};
  }
}

__host__ __device__ constexpr bool by_256(Scales s) { return s != Scales::half && s != Scales::two && s != Scales::e8; }
// Bytes of the scales of a tile and 64 or 256 columns.
__host__ __device__ constexpr uint32_t scale_bytes(Scales s) {
  switch (s) {
    case Scales::half:
      return 64;
    case Scales::two:
      return 128;
    case Scales::e8:
      return 32;
    case Scales::k4:
      return 256;
    case Scales::k6:
      return 288;
    case Scales::k2:
      return 320;
    case Scales::k3:
      return 224;
    default:
      return 128;
  }
}

// Where the planes of a matrix are, in this order, each aligned to 128 bytes.
struct Planes {
  uint64_t p8, p4, p2, p1, scales, factors, bytes;
  uint32_t n_tiles, n_chunks, n_supers;
};
__host__ __device__ constexpr Planes planes_of(const PlaneShape& s, uint32_t n_out, uint32_t n_in) {
  Planes p = {};
  p.n_tiles = (n_out + kPanelRows - 1) / kPanelRows;
  p.n_chunks = (n_in + kChunk - 1) / kChunk;
  p.n_supers = (n_in + 255) / 256;
  const uint64_t units = uint64_t(p.n_tiles) * p.n_chunks;
  p.p8 = 0;
  p.p4 = p.p8 + (s.p8 ? units * 1024 : 0);
  p.p2 = p.p4 + (s.p4 ? units * 512 : 0);
  p.p1 = p.p2 + (s.p2 ? units * 256 : 0);
  p.scales = p.p1 + (s.p1 ? units * 128 : 0);
  const uint64_t scaled = by_256(s.scales) ? uint64_t(p.n_tiles) * p.n_supers : units;
  p.factors = (p.scales + scaled * scale_bytes(s.scales) + 127) / 128 * 128;
  p.bytes = (p.factors + uint64_t(p.n_tiles) * kPanelRows * sizeof(float) + 127) / 128 * 128;
  return p;
}

// f<Format::q4_0>(), ... of the format at run time; F formats are not quantized and do nothing.
template <class Function>
void with_format(Format format, const Function& function) {
  switch (format) {
#define ARGENT_CASE(name) \
  case Format::name:      \
    return function.template operator()<Format::name>();
    ARGENT_CASE(q4_0)
    ARGENT_CASE(q4_1)
    ARGENT_CASE(q5_0)
    ARGENT_CASE(q5_1)
    ARGENT_CASE(q8_0)
    ARGENT_CASE(q2_k)
    ARGENT_CASE(q3_k) ARGENT_CASE(q4_k) ARGENT_CASE(q5_k) ARGENT_CASE(q6_k) ARGENT_CASE(iq4_nl) ARGENT_CASE(iq4_xs)
        ARGENT_CASE(mxfp4)
#undef ARGENT_CASE
            default : return;
  }
}

// The scales of one group of a row as floats, from the loaded words: value = scale * level (+ min).
struct ScaleMin {
  float scale, min;
};

// The lowest six bits of x, times y, rounded once (exact where x is a K format's scale and y a half): x becomes the low
// bits of 2^23, which costs less than a conversion.
__device__ __forceinline__ float six_bits_times(uint32_t x, float y) {
  uint32_t low;  // x & 63 | 0x4b000000, which is compiled to two instructions
  asm("lop3.b32 %0, %1, 63, %2, 0xea;" : "=r"(low) : "r"(x), "r"(0x4b000000));
  return __fmaf_rn(__uint_as_float(low), y, __fmul_rn(y, -8388608.0f));
}

// What a lane has of scales of a row by 256 columns, and how a group's come out of it. k: group of 32 of the 256;
// side: half of the group, where scales are by 16.
template <Scales S>
struct SuperScales {
  uint4 head = {};
  uint32_t d = 0;
  // base: of the tile and 256 columns.
  __device__ void load(const uint8_t* base, uint32_t row) {
    if constexpr (S == Scales::k4) {
      head = reinterpret_cast<const uint4*>(base)[row];
    } else if constexpr (S == Scales::k6 || S == Scales::k2) {
      head = reinterpret_cast<const uint4*>(base)[row];
      d = S == Scales::k6 ? reinterpret_cast<const uint16_t*>(base + 256)[row]
                          : reinterpret_cast<const uint32_t*>(base + 256)[row];
    } else if constexpr (S == Scales::k3) {
      const uint32_t* words = reinterpret_cast<const uint32_t*>(base) + 3 * row;
      head = make_uint4(words[0], words[1], words[2], 0);
      d = reinterpret_cast<const uint16_t*>(base + 192)[row];
    } else if constexpr (S == Scales::xs) {
      const uint2 both = reinterpret_cast<const uint2*>(base)[row];
      head = make_uint4(both.x, both.y, 0, 0);
    }
  }
  __device__ ScaleMin at(uint32_t k, uint32_t side) const {
    if constexpr (S == Scales::k4) {
      const uint32_t q = k / 2, low = __byte_perm(head.y, head.z, q | (q + 4) << 4);
      const uint32_t fields = __byte_perm(low, head.w, 0x10 | (q + 4) << 8) >> 6 * (k % 2);
      return {six_bits_times(fields, qk_half(head.x & 0xffff)), -six_bits_times(fields >> 12, qk_half(head.x >> 16))};
    } else if constexpr (S == Scales::k6) {
      const uint32_t word = k / 2 == 0 ? head.x : k / 2 == 1 ? head.y : k / 2 == 2 ? head.z : head.w;
      return {__fmul_rn(qk_half(d), float(qk_signed(qk_byte(word, k % 2 * 2 + side)))), 0};
    } else if constexpr (S == Scales::k2) {
      const uint32_t word = k / 2 == 0 ? head.x : k / 2 == 1 ? head.y : k / 2 == 2 ? head.z : head.w;
      const uint32_t byte = qk_byte(word, k % 2 * 2 + side);
      return {__fmul_rn(qk_half(d & 0xffff), float(byte & 15)), -__fmul_rn(qk_half(d >> 16), float(byte >> 4))};
    } else if constexpr (S == Scales::k3) {
      return {__fmul_rn(qk_half(d), float(q3_k_scale(head.x, head.y, head.z, 2 * k + side))), 0};
    } else {
      return {__fmul_rn(qk_half(head.x & 0xffff), float(iq4_xs_scale(head.y, head.x >> 16, k))), 0};
    }
  }
};

// The same by 64 columns, for both rows of a lane.
template <Scales S>
struct ChunkScales {
  uint4 words = {};
  __device__ void load(const uint8_t* base, uint32_t row8) {
    if constexpr (S == Scales::half) {
      const uint2 both = reinterpret_cast<const uint2*>(base)[row8];
      words = make_uint4(both.x, both.y, 0, 0);
    } else if constexpr (S == Scales::two) {
      words = reinterpret_cast<const uint4*>(base)[row8];
    } else {
      words.x = reinterpret_cast<const uint32_t*>(base)[row8];
    }
  }
  __device__ ScaleMin at(uint32_t group, uint32_t upper) const {
    if constexpr (S == Scales::half) {
      return {qk_half((upper ? words.y : words.x) >> 16 * group & 0xffff), 0};
    } else if constexpr (S == Scales::two) {
      return {qk_half((upper ? words.y : words.x) >> 16 * group & 0xffff),
              qk_half((upper ? words.w : words.z) >> 16 * group & 0xffff)};
    } else {
      return {mxfp4_scale(qk_byte(words.x, 2 * upper + group)), 0};
    }
  }
};

// A word of four levels (signed bytes, or unsigned where there is a min), from what the planes have of it: p4 shifted
// so that its low nibbles are the word's, p2 and p1 so that its lowest bits are.
template <Format F>
__device__ __forceinline__ uint32_t levels(uint32_t p4, uint32_t p2, uint32_t p1) {
  constexpr PlaneShape s = plane_shape<F>();
  if constexpr (F == Format::mxfp4) {
    return mxfp4_levels(p4 & 0x0f0f0f0f);
  } else if constexpr (s.lookup) {
    return iq4_nl_levels(p4 & 0x0f0f0f0f);
  } else {
    uint32_t word = 0, up = s.shift;
    if constexpr (s.p4) word |= (p4 & 0x0f0f0f0f) << up, up += 4;
    if constexpr (s.p2) word |= (p2 & 0x03030303) << up, up += 2;
    if constexpr (s.p1) word |= (p1 & 0x01010101) << up;
    return word;
  }
}

}  // namespace argent::cuda
