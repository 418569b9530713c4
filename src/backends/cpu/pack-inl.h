// Weights into panels (pack.h), compiled once for each instruction set (simd/simd.h says how); every ISA writes the
// same bytes. Loops over the 16 rows are left to the compiler's vectoriser but for what it cannot see: words of a row
// to lanes of vectors (transpose_words).
//
// A panel is a sequence of blocks of the format (32 or 256 columns) of all 16 rows. `lane` r below is row r of the
// panel, and a group is 32 columns. Quants are split into planes so that a group's eight vectors of codes, vector i
// holding columns 4i to 4i+3 of each row in the four bytes of its lane, come out of a few whole-vector shifts and
// masks:
//
//   nibbles  4 vectors: vector i has bits 0-3 of columns 4i.. in its low nibbles, of columns 16+4i.. in the high ones
//   bits     1 vector: bit i of each byte is one more bit of columns 4i..
//   pairs    2 vectors: bits 2f, 2f+1 of each byte of vector p are two bits of columns 4(4p+f)..
//
//   Q4_0 IQ4_NL   nibbles | d                          Q4_1   nibbles | d | m
//   Q5_0          nibbles | bits | d                   Q5_1   nibbles | bits | d | m
//   Q8_0          8 vectors of q + 128 | d             MXFP4  nibbles | e
//   Q4_K          d | dmin | 8 x {scales, mins} | 8 x nibbles
//   Q5_K          d | dmin | 8 x {scales, mins} | 8 x {nibbles, bits}
//   Q6_K          d | 16 x scales | 8 x {nibbles, pairs}
//   Q3_K          d | 16 x scales | 8 x {pairs, bits}
//   Q2_K          d | dmin | 16 x {scale, min in one byte} | 8 x pairs
//   IQ4_XS        d | 8 x scales | 8 x nibbles
//   F32 F16       the column's 16 values
//   BF16          two columns: 16 words, the even column's value in the low half (0 in the high one behind the last)
// d, dmin, m: 16 halves; e, scales, mins: 16 bytes (6-bit ones expanded; those of Q3_K and IQ4_XS minus 32).
#pragma once

#include "backends/cpu/matmul_weights-inl.h"
#include "quant/iq4_xs.h"
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

namespace argent::cpu::ARGENT_ISA {
namespace {

constexpr uint32_t kRows = kPanelRows;

// A word of each row.
struct alignas(64) Lanes {
  u32 of[kRows];
  KERNEL_FN u32& operator[](uint32_t r) { return of[r]; }
  KERNEL_FN const u32& operator[](uint32_t r) const { return of[r]; }
};

// The current block of each row.
struct Rows {
  const u8* first;
  uint64_t stride;  // from a row to the next

  KERNEL_FN const u8* at(uint32_t r) const { return first + r * stride; }
  // Calls store(word, row, vector) with words 0 to 3 from byte `offset` on, for kLanes rows at once.
  template <class Store>
  KERNEL_FN void four_words(uint32_t offset, Store store) const {
#pragma GCC unroll 4
    for (uint32_t r = 0; r < kRows; r += kLanes) {
      I32 four[4];
      transpose_words(at(r) + offset, stride, four);
#pragma GCC unroll 4
      for (uint32_t k = 0; k < 4; ++k) store(k, r, four[k]);
    }
  }
  // N words of each row, N a multiple of 4: w[i] has word i.
  template <uint32_t N>
  KERNEL_FN void words(uint32_t offset, Lanes (&w)[N]) const {
    static_assert(N % 4 == 0);
#pragma GCC unroll 8
    for (uint32_t i = 0; i < N; i += 4)
      four_words(offset + 4 * i, [&](uint32_t k, uint32_t r, I32 x) SIMD_LAMBDA { store_i32(w[i + k].of + r, x); });
  }
};

SIMD_FN u8* put_words(const Rows& rows, uint32_t offset, u8* out) {
  rows.four_words(offset, [&](uint32_t k, uint32_t r, I32 x) SIMD_LAMBDA { store_i32(out + 64 * k + 4 * r, x); });
  return out + 256;
}

SIMD_FN u8* put_halves(const Rows& rows, uint32_t offset, u8* out) {
#pragma GCC unroll 16
  for (uint32_t r = 0; r < kRows; ++r) __builtin_memcpy(out + 2 * r, rows.at(r) + offset, 2);
  return out + 2 * kRows;
}

// Bits 16 * k and up of words.
SIMD_FN u8* put_halves(const Lanes& w, uint32_t k, u8* out) {
  u16 half[kRows];
  for (uint32_t r = 0; r < kRows; ++r) half[r] = u16(w[r] >> 16 * k);
  __builtin_memcpy(out, half, sizeof half);
  return out + sizeof half;
}

SIMD_FN u8* put_nibbles(const Lanes* codes, u8* out) {
#pragma GCC unroll 4
  for (uint32_t i = 0; i < 4; ++i, out += 64) {
    Lanes w;
    for (uint32_t r = 0; r < kRows; ++r) w[r] = (codes[i][r] & 0x0f0f0f0f) | (codes[4 + i][r] & 0x0f0f0f0f) << 4;
    __builtin_memcpy(out, &w, 64);
  }
  return out;
}

SIMD_FN u8* put_bits(const Lanes* codes, uint32_t bit, u8* out) {
  Lanes w = {};
#pragma GCC unroll 8
  for (uint32_t i = 0; i < 8; ++i)
    for (uint32_t r = 0; r < kRows; ++r) w[r] |= (codes[i][r] >> bit & 0x01010101) << i;
  __builtin_memcpy(out, &w, 64);
  return out + 64;
}

SIMD_FN u8* put_pairs(const Lanes* codes, uint32_t bit, u8* out) {
#pragma GCC unroll 2
  for (uint32_t p = 0; p < 2; ++p, out += 64) {
    Lanes w = {};
#pragma GCC unroll 4
    for (uint32_t f = 0; f < 4; ++f)
      for (uint32_t r = 0; r < kRows; ++r) w[r] |= (codes[4 * p + f][r] >> bit & 0x03030303) << 2 * f;
    __builtin_memcpy(out, &w, 64);
  }
  return out;
}

// Bytes 0 to 3 of every lane to 16-byte vectors `stride` apart.
SIMD_FN void put_scales(const Lanes& four, u8* out, uint32_t stride) {
#pragma GCC unroll 4
  for (uint32_t k = 0; k < 4; ++k) {
    u8 bytes[kRows];
    for (uint32_t r = 0; r < kRows; ++r) bytes[r] = u8(four[r] >> 8 * k);
    __builtin_memcpy(out + k * stride, bytes, sizeof bytes);
  }
}

// Swaps bits p and q of the number of each bit of a word, p < q: `ones` has the bits whose p is 1 and whose q is 0.
SIMD_FN u32 swap_bits(u32 x, uint32_t p, uint32_t q, u32 ones) {
  const uint32_t distance = (1u << q) - (1u << p);
  const u32 differ = (x ^ x >> distance) & ones;
  return x ^ differ ^ differ << distance;
}

// The plane `bits` of Q5_0 and Q5_1: bit 4i + j of qh is column 4i + j, in the plane bit i of byte j.
SIMD_FN u32 bits_of_columns(u32 qh) {
  u32 x = swap_bits(qh, 0, 2, 0x0a0a0a0a);
  x = swap_bits(x, 1, 3, 0x00cc00cc);
  x = swap_bits(x, 2, 4, 0x0000f0f0);
  return swap_bits(x, 3, 4, 0x0000ff00);
}

template <class B>
SIMD_FN u8* put_q5(const Rows& rows, u8* out) {
  Lanes w[4];
  rows.words(offsetof(B, qh), w);
  out = put_words(rows, offsetof(B, qs), out);
  for (uint32_t r = 0; r < kRows; ++r) w[0][r] = bits_of_columns(w[0][r]);
  __builtin_memcpy(out, w, 64);
  return out + 64;
}

// What Q4_K and Q5_K begin with: d, dmin, 6-bit scales and mins.
SIMD_FN u8* put_k_header(const Rows& rows, u8* out) {
  Lanes w[4], four;
  rows.words(0, w);
  out = put_halves(w[0], 1, put_halves(w[0], 0, out));
#pragma GCC unroll 2
  for (uint32_t g = 0; g < 2; ++g) {
    for (uint32_t r = 0; r < kRows; ++r) four[r] = q4_k_scales4(w[1][r], w[3][r], g);
    put_scales(four, out + 128 * g, 32);
    for (uint32_t r = 0; r < kRows; ++r) four[r] = q4_k_mins4(w[2][r], w[3][r], g);
    put_scales(four, out + 128 * g + 16, 32);
  }
  return out + 256;
}

template <Format F>
SIMD_FN u8* put_block(const Rows& rows, u8* out) {
  Lanes codes[8], lo[8], hi[8];
  if constexpr (F == Format::q4_0) {
    return put_halves(rows, offsetof(block_q4_0, d), put_words(rows, offsetof(block_q4_0, qs), out));
  } else if constexpr (F == Format::iq4_nl) {
    return put_halves(rows, offsetof(block_iq4_nl, d), put_words(rows, offsetof(block_iq4_nl, qs), out));
  } else if constexpr (F == Format::q4_1) {
    out = put_halves(rows, offsetof(block_q4_1, d), put_words(rows, offsetof(block_q4_1, qs), out));
    return put_halves(rows, offsetof(block_q4_1, m), out);
  } else if constexpr (F == Format::q5_0) {
    return put_halves(rows, offsetof(block_q5_0, d), put_q5<block_q5_0>(rows, out));
  } else if constexpr (F == Format::q5_1) {
    out = put_halves(rows, offsetof(block_q5_1, d), put_q5<block_q5_1>(rows, out));
    return put_halves(rows, offsetof(block_q5_1, m), out);
  } else if constexpr (F == Format::mxfp4) {
    out = put_words(rows, offsetof(block_mxfp4, qs), out);
#pragma GCC unroll 16
    for (uint32_t r = 0; r < kRows; ++r) out[r] = rows.at(r)[offsetof(block_mxfp4, e)];
    return out + kRows;
  } else if constexpr (F == Format::q8_0) {
#pragma GCC unroll 2
    for (uint32_t i = 0; i < 8; i += 4)
      rows.four_words(offsetof(block_q8_0, qs) + 4 * i, [&](uint32_t k, uint32_t r, I32 x) SIMD_LAMBDA {
        store_i32(out + 64 * (i + k) + 4 * r, x ^ set_i32(0x80808080));
      });
    return put_halves(rows, offsetof(block_q8_0, d), out + 512);
  } else if constexpr (F == Format::q4_k) {
    out = put_k_header(rows, out);
    for (uint32_t c = 0; c < 4; ++c) {
      rows.words(offsetof(block_q4_k, qs) + 32 * c, lo);
#pragma GCC unroll 2
      for (uint32_t side = 0; side < 2; ++side) {
#pragma GCC unroll 8
        for (uint32_t i = 0; i < 8; ++i)
          for (uint32_t r = 0; r < kRows; ++r) codes[i][r] = q4_k_quants(lo[i][r], side);
        out = put_nibbles(codes, out);
      }
    }
    return out;
  } else if constexpr (F == Format::q5_k) {
    out = put_k_header(rows, out);
    rows.words(offsetof(block_q5_k, qh), hi);
    for (uint32_t c = 0; c < 4; ++c) {
      rows.words(offsetof(block_q5_k, qs) + 32 * c, lo);
#pragma GCC unroll 2
      for (uint32_t side = 0; side < 2; ++side) {
#pragma GCC unroll 8
        for (uint32_t i = 0; i < 8; ++i)
          for (uint32_t r = 0; r < kRows; ++r) codes[i][r] = q5_k_quants(lo[i][r], hi[i][r], 2 * c + side);
        out = put_bits(codes, 4, put_nibbles(codes, out));
      }
    }
    return out;
  } else if constexpr (F == Format::q6_k) {
    Lanes scales[4], ql[16];
    out = put_halves(rows, offsetof(block_q6_k, d), out);
    rows.words(offsetof(block_q6_k, scales), scales);
#pragma GCC unroll 4
    for (uint32_t g = 0; g < 4; ++g, out += 64) put_scales(scales[g], out, 16);
    for (uint32_t h = 0; h < 2; ++h) {
      rows.words(offsetof(block_q6_k, ql) + 64 * h, ql);
      rows.words(offsetof(block_q6_k, qh) + 32 * h, hi);
#pragma GCC unroll 4
      for (uint32_t s = 0; s < 4; ++s) {
#pragma GCC unroll 8
        for (uint32_t i = 0; i < 8; ++i)
          for (uint32_t r = 0; r < kRows; ++r) codes[i][r] = q6_k_quants(ql[8 * (s & 1) + i][r], hi[i][r], s);
        out = put_pairs(codes, 4, put_nibbles(codes, out));
      }
    }
    return out;
  } else if constexpr (F == Format::q3_k) {
    Lanes w[4], four;  // scales from word 1 on
    out = put_halves(rows, offsetof(block_q3_k, d), out);
    rows.words(offsetof(block_q3_k, scales) - 4, w);
#pragma GCC unroll 4
    for (uint32_t g = 0; g < 4; ++g, out += 64) {
      for (uint32_t r = 0; r < kRows; ++r) four[r] = qk_subtract(q3_k_scales4(w[1][r], w[2][r], w[3][r], g), 32);
      put_scales(four, out, 16);
    }
    rows.words(offsetof(block_q3_k, hmask), hi);
    for (uint32_t h = 0; h < 2; ++h) {
      rows.words(offsetof(block_q3_k, qs) + 32 * h, lo);
#pragma GCC unroll 4
      for (uint32_t s = 0; s < 4; ++s) {
#pragma GCC unroll 8
        for (uint32_t i = 0; i < 8; ++i)
          for (uint32_t r = 0; r < kRows; ++r) codes[i][r] = q3_k_quants(lo[i][r], hi[i][r], h, s);
        out = put_bits(codes, 2, put_pairs(codes, 0, out));
      }
    }
    return out;
  } else if constexpr (F == Format::q2_k) {
    Lanes scales[4];
    out = put_halves(rows, offsetof(block_q2_k, dmin), put_halves(rows, offsetof(block_q2_k, d), out));
    rows.words(offsetof(block_q2_k, scales), scales);
#pragma GCC unroll 4
    for (uint32_t g = 0; g < 4; ++g, out += 64) put_scales(scales[g], out, 16);
    for (uint32_t h = 0; h < 2; ++h) {
      rows.words(offsetof(block_q2_k, qs) + 32 * h, lo);
#pragma GCC unroll 4
      for (uint32_t s = 0; s < 4; ++s) {
#pragma GCC unroll 8
        for (uint32_t i = 0; i < 8; ++i)
          for (uint32_t r = 0; r < kRows; ++r) codes[i][r] = q2_k_quants(lo[i][r], s);
        out = put_pairs(codes, 0, out);
      }
    }
    return out;
  } else {
    static_assert(F == Format::iq4_xs);
    Lanes header[4], low, high;  // d and scales_h, scales_l
    rows.words(0, header);
    out = put_halves(header[0], 0, out);
    for (uint32_t r = 0; r < kRows; ++r) low[r] = header[1][r], high[r] = header[0][r] >> 16;
#pragma GCC unroll 8
    for (uint32_t j = 0; j < 8; ++j, out += kRows) {
      u8 bytes[kRows];
      for (uint32_t r = 0; r < kRows; ++r) bytes[r] = u8(iq4_xs_scale(low[r], high[r], j));
      __builtin_memcpy(out, bytes, sizeof bytes);
    }
    for (uint32_t j = 0; j < 8; ++j) out = put_words(rows, offsetof(block_iq4_xs, qs) + 16 * j, out);
    return out;
  }
}

// Whole vectors of words of floats: kFloatColumns<F> columns.
template <Format F>
constexpr uint32_t kFloatColumns = 16 / info(F).bytes;

template <Format F>
SIMD_FN u8* put_floats(const Rows& rows, u8* out) {
  if constexpr (F != Format::f16) return put_words(rows, 0, out);
  Lanes w[4];
  rows.words(0, w);
#pragma GCC unroll 4
  for (uint32_t i = 0; i < 4; ++i) out = put_halves(w[i], 1, put_halves(w[i], 0, out));
  return out;
}

// The columns behind them, one by one (bf16: two by two).
template <Format F>
SIMD_FN u8* put_last_floats(const Rows& rows, uint32_t n_cols, u8* out) {
  constexpr uint32_t kBytes = info(F).bytes, kTogether = F == Format::bf16 ? 2 : 1;
  for (uint32_t col = 0; col < n_cols; col += kTogether)
    for (uint32_t r = 0; r < kRows; ++r, out += kTogether * kBytes) {
      __builtin_memset(out, 0, kTogether * kBytes);
      __builtin_memcpy(out, rows.at(r) + col * kBytes, (col + kTogether <= n_cols ? kTogether : 1) * kBytes);
    }
  return out;
}

// Calls put(rows, out) for each piece of `bytes` of every row; rows that are not there are zeros.
template <class Put>
SIMD_FN u8* for_pieces(const u8* rows, uint64_t stride, uint32_t n_rows, uint32_t bytes, uint64_t n, u8* out, Put put) {
  if (n_rows == kRows) {
    for (uint64_t i = 0; i < n; ++i) out = put(Rows{rows + i * bytes, stride}, out);
    return out;
  }
  alignas(64) u8 piece[kRows * 256] = {};
  for (uint64_t i = 0; i < n; ++i) {
    for (uint32_t r = 0; r < n_rows; ++r) __builtin_memcpy(piece + r * bytes, rows + r * stride + i * bytes, bytes);
    out = put(Rows{piece, bytes}, out);
  }
  return out;
}

template <Format F>
void pack_panel(const u8* rows, uint32_t n_rows, uint32_t n_cols, uint32_t panel, u8* out) {
  constexpr uint32_t kBytes = info(F).bytes, kBlock = info(F).block;
  static_assert(kBytes <= 256);
  const uint64_t stride = uint64_t(n_cols / kBlock) * kBytes;
  rows += uint64_t(panel) * kRows * stride;
  n_rows = n_rows - panel * kRows < kRows ? n_rows - panel * kRows : kRows;
  if constexpr (!quantized(F)) {
    const uint32_t n = n_cols / kFloatColumns<F>, last = n_cols % kFloatColumns<F>;
    out = for_pieces(rows, stride, n_rows, 16, n, out,
                     [](const Rows& r, u8* to) SIMD_LAMBDA { return put_floats<F>(r, to); });
    for_pieces(rows + uint64_t(n) * 16, stride, n_rows, last * kBytes, last ? 1 : 0, out,
               [&](const Rows& r, u8* to) SIMD_LAMBDA { return put_last_floats<F>(r, last, to); });
  } else {
    for_pieces(rows, stride, n_rows, kBytes, n_cols / kBlock, out,
               [](const Rows& r, u8* to) SIMD_LAMBDA { return put_block<F>(r, to); });
  }
}

void pack_panel(Format format, const uint8_t* rows, uint32_t n_rows, uint32_t n_cols, uint32_t panel, uint8_t* out) {
  switch (format) {
#define FORMAT(name, NAME, id, block, bytes) \
  case Format::name:                         \
    return pack_panel<Format::name>(rows, n_rows, n_cols, panel, out);
#define KNOWN(NAME, id, block, bytes)
#include "quant/formats.def"
#undef FORMAT
#undef KNOWN
  }
}

void pack_panels(Format format, const uint8_t* rows, uint32_t n_rows, uint32_t n_cols, uint32_t first_panel,
                 uint32_t count, uint8_t* out) {
  const uint64_t bytes = panel_bytes(format, n_cols);
  for (uint32_t i = 0; i < count; ++i) pack_panel(format, rows, n_rows, n_cols, first_panel + i, out + i * bytes);
}

// Writes every kLanes-th value of a vector of rows: column k of row `lane`.
template <Format F>
void unpack(const uint8_t* panel, uint32_t n_cols, int row, float* out) {
  using W = Weights<F>;
  const int lane = row / kLanes * kLanes, in_vector = row % kLanes;
  alignas(64) float value[kLanes];
  if constexpr (!quantized(F)) {
    for (uint32_t k = 0; k < n_cols; ++k) {
      store_f32(value, W::column(panel + k / 2 * 2 * W::kColumnBytes, int(k % 2), lane), kLanes);
      out[k] = value[in_vector];
    }
  } else {
    for (uint32_t block = 0; block < n_cols / kGroup / W::kGroups; ++block, panel += W::kBytes) {
      const W weights(panel, lane);
      for (int j = 0; j < W::kGroups; ++j, out += kGroup) {
        I32 codes[8];
        F32 scale[2], min[2];
        alignas(64) uint32_t words[kLanes];
        alignas(64) float s[2][kLanes], m[2][kLanes];
        weights.codes(j, codes);
        weights.scales(j, scale, min);
#pragma GCC unroll 2
        for (int h = 0; h <= int(W::kHalves); ++h) {
          store_f32(s[h], scale[h], kLanes);
          if constexpr (W::kMins) store_f32(m[h], min[h], kLanes);
        }
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) {
          const int half = W::kHalves && i >= 4;
          store_i32(words, codes[i]);
          for (int b = 0; b < 4; ++b) {
            const float code = float(int32_t(words[in_vector] >> 8 * b & 255));
            // Both are exact: the decoded weight.
            if constexpr (W::kMins)
              out[4 * i + b] = code * s[half][in_vector] + m[half][in_vector];
            else
              out[4 * i + b] = (code - float(W::kZero)) * s[half][in_vector];
          }
        }
      }
    }
  }
}

void unpack_row(const PackedMatrix& weights, uint32_t row, float* out) {
  const uint32_t n_cols = weights.n_cols;
  switch (weights.format) {
#define FORMAT(name, NAME, id, block, bytes)                                                                \
  case Format::name:                                                                                        \
    return unpack<Format::name>(weights.data + row / kPanelRows * panel_size<Format::name>(n_cols), n_cols, \
                                int(row % kPanelRows), out);
#define KNOWN(NAME, id, block, bytes)
#include "quant/formats.def"
#undef FORMAT
#undef KNOWN
  }
}

}  // namespace

extern const PackKernels kPackKernels;
const PackKernels kPackKernels = {pack_panels, unpack_row};

}  // namespace argent::cpu::ARGENT_ISA
