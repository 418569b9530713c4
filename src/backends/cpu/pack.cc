#include "backends/cpu/pack.h"

#include <cstring>

#include "quant/walk.h"

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
//   floats        the column's 16 values
// d, dmin, m: 16 halves; e, scales, mins: 16 bytes (6-bit ones expanded; those of Q3_K and IQ4_XS minus 32).
namespace argent::cpu {
namespace {

constexpr uint32_t kRows = kPanelRows;
using Lanes = u32[kRows];

struct Rows {
  const u8* at[kRows];  // the current block of each row

  void words(uint32_t offset, Lanes& w) const {
    for (uint32_t r = 0; r < kRows; ++r) w[r] = load_word(at[r] + offset);
  }
};

// Four nibble vectors copied as they are: the formats whose byte i holds elements i and i + 16.
u8* put_words(const Rows& rows, uint32_t offset, u8* out) {
  for (uint32_t i = 0; i < 4; ++i, out += 64)
    for (uint32_t r = 0; r < kRows; ++r) std::memcpy(out + 4 * r, rows.at[r] + offset + 4 * i, 4);
  return out;
}

u8* put_halves(const Rows& rows, uint32_t offset, u8* out) {
  for (uint32_t r = 0; r < kRows; ++r) std::memcpy(out + 2 * r, rows.at[r] + offset, 2);
  return out + 2 * kRows;
}

u8* put_bytes(const Rows& rows, uint32_t offset, u8* out) {
  for (uint32_t r = 0; r < kRows; ++r) out[r] = rows.at[r][offset];
  return out + kRows;
}

u8* put_nibbles(const Lanes (&codes)[8], u8* out) {
  for (uint32_t i = 0; i < 4; ++i, out += 64) {
    Lanes w;
    for (uint32_t r = 0; r < kRows; ++r) w[r] = (codes[i][r] & 0x0f0f0f0f) | (codes[4 + i][r] & 0x0f0f0f0f) << 4;
    std::memcpy(out, w, 64);
  }
  return out;
}

u8* put_bits(const Lanes (&codes)[8], uint32_t bit, u8* out) {
  Lanes w = {};
  for (uint32_t i = 0; i < 8; ++i)
    for (uint32_t r = 0; r < kRows; ++r) w[r] |= (codes[i][r] >> bit & 0x01010101) << i;
  std::memcpy(out, w, 64);
  return out + 64;
}

u8* put_pairs(const Lanes (&codes)[8], uint32_t bit, u8* out) {
  for (uint32_t p = 0; p < 2; ++p, out += 64) {
    Lanes w = {};
    for (uint32_t f = 0; f < 4; ++f)
      for (uint32_t r = 0; r < kRows; ++r) w[r] |= (codes[4 * p + f][r] >> bit & 0x03030303) << 2 * f;
    std::memcpy(out, w, 64);
  }
  return out;
}

// Bytes 4g to 4g+3 of every lane's words to 16-byte vectors `stride` apart.
void put_scales(const Lanes& four, u8* out, uint32_t stride) {
  for (uint32_t k = 0; k < 4; ++k)
    for (uint32_t r = 0; r < kRows; ++r) out[k * stride + r] = u8(four[r] >> 8 * k);
}

template <class B>
u8* put_q5(const Rows& rows, u8* out) {
  Lanes qh, codes[8];
  rows.words(offsetof(B, qh), qh);
  for (uint32_t i = 0; i < 8; ++i)
    for (uint32_t r = 0; r < kRows; ++r) codes[i][r] = qk_spread(qh[r] >> 4 * i);
  return put_bits(codes, 0, put_words(rows, offsetof(B, qs), out));
}

// The 6-bit scales and mins that Q4_K and Q5_K share.
template <class B>
u8* put_k_scales(const Rows& rows, u8* out) {
  Lanes s0, s1, s2, four;
  rows.words(offsetof(B, scales), s0), rows.words(offsetof(B, scales) + 4, s1), rows.words(offsetof(B, scales) + 8, s2);
  for (uint32_t g = 0; g < 2; ++g) {
    for (uint32_t r = 0; r < kRows; ++r) four[r] = q4_k_scales4(s0[r], s2[r], g);
    put_scales(four, out + 128 * g, 32);
    for (uint32_t r = 0; r < kRows; ++r) four[r] = q4_k_mins4(s1[r], s2[r], g);
    put_scales(four, out + 128 * g + 16, 32);
  }
  return out + 256;
}

u8* put_block(Format format, const Rows& rows, u8* out) {
  Lanes codes[8], lo, hi;
  switch (format) {
    case Format::q4_0:
      return put_halves(rows, offsetof(block_q4_0, d), put_words(rows, offsetof(block_q4_0, qs), out));
    case Format::iq4_nl:
      return put_halves(rows, offsetof(block_iq4_nl, d), put_words(rows, offsetof(block_iq4_nl, qs), out));
    case Format::q4_1:
      out = put_halves(rows, offsetof(block_q4_1, d), put_words(rows, offsetof(block_q4_1, qs), out));
      return put_halves(rows, offsetof(block_q4_1, m), out);
    case Format::q5_0:
      return put_halves(rows, offsetof(block_q5_0, d), put_q5<block_q5_0>(rows, out));
    case Format::q5_1:
      out = put_halves(rows, offsetof(block_q5_1, d), put_q5<block_q5_1>(rows, out));
      return put_halves(rows, offsetof(block_q5_1, m), out);
    case Format::mxfp4:
      return put_bytes(rows, offsetof(block_mxfp4, e), put_words(rows, offsetof(block_mxfp4, qs), out));
    case Format::q8_0:
      for (uint32_t i = 0; i < 8; ++i, out += 64) {
        rows.words(offsetof(block_q8_0, qs) + 4 * i, lo);
        for (uint32_t r = 0; r < kRows; ++r) lo[r] ^= 0x80808080;
        std::memcpy(out, lo, 64);
      }
      return put_halves(rows, offsetof(block_q8_0, d), out);
    case Format::q4_k:
      out = put_halves(rows, offsetof(block_q4_k, dmin), put_halves(rows, offsetof(block_q4_k, d), out));
      out = put_k_scales<block_q4_k>(rows, out);
      for (uint32_t j = 0; j < 8; ++j) {
        for (uint32_t i = 0; i < 8; ++i) {
          rows.words(offsetof(block_q4_k, qs) + 32 * (j / 2) + 4 * i, lo);
          for (uint32_t r = 0; r < kRows; ++r) codes[i][r] = q4_k_quants(lo[r], j % 2);
        }
        out = put_nibbles(codes, out);
      }
      return out;
    case Format::q5_k:
      out = put_halves(rows, offsetof(block_q5_k, dmin), put_halves(rows, offsetof(block_q5_k, d), out));
      out = put_k_scales<block_q5_k>(rows, out);
      for (uint32_t j = 0; j < 8; ++j) {
        for (uint32_t i = 0; i < 8; ++i) {
          rows.words(offsetof(block_q5_k, qs) + 32 * (j / 2) + 4 * i, lo);
          rows.words(offsetof(block_q5_k, qh) + 4 * i, hi);
          for (uint32_t r = 0; r < kRows; ++r) codes[i][r] = q5_k_quants(lo[r], hi[r], j);
        }
        out = put_bits(codes, 4, put_nibbles(codes, out));
      }
      return out;
    case Format::q6_k:
      out = put_halves(rows, offsetof(block_q6_k, d), out);
      for (uint32_t g = 0; g < 4; ++g, out += 64) {
        rows.words(offsetof(block_q6_k, scales) + 4 * g, lo);
        put_scales(lo, out, 16);
      }
      for (uint32_t j = 0; j < 8; ++j) {
        const uint32_t h = j / 4, s = j % 4;
        for (uint32_t i = 0; i < 8; ++i) {
          rows.words(offsetof(block_q6_k, ql) + 64 * h + 32 * (s & 1) + 4 * i, lo);
          rows.words(offsetof(block_q6_k, qh) + 32 * h + 4 * i, hi);
          for (uint32_t r = 0; r < kRows; ++r) codes[i][r] = q6_k_quants(lo[r], hi[r], s);
        }
        out = put_pairs(codes, 4, put_nibbles(codes, out));
      }
      return out;
    case Format::q3_k: {
      out = put_halves(rows, offsetof(block_q3_k, d), out);
      Lanes s0, s1, s2;
      rows.words(offsetof(block_q3_k, scales), s0), rows.words(offsetof(block_q3_k, scales) + 4, s1);
      rows.words(offsetof(block_q3_k, scales) + 8, s2);
      for (uint32_t g = 0; g < 4; ++g, out += 64) {
        for (uint32_t r = 0; r < kRows; ++r) lo[r] = qk_subtract(q3_k_scales4(s0[r], s1[r], s2[r], g), 32);
        put_scales(lo, out, 16);
      }
      for (uint32_t j = 0; j < 8; ++j) {
        const uint32_t h = j / 4, s = j % 4;
        for (uint32_t i = 0; i < 8; ++i) {
          rows.words(offsetof(block_q3_k, qs) + 32 * h + 4 * i, lo);
          rows.words(offsetof(block_q3_k, hmask) + 4 * i, hi);
          for (uint32_t r = 0; r < kRows; ++r) codes[i][r] = q3_k_quants(lo[r], hi[r], h, s);
        }
        out = put_bits(codes, 2, put_pairs(codes, 0, out));
      }
      return out;
    }
    case Format::q2_k:
      out = put_halves(rows, offsetof(block_q2_k, dmin), put_halves(rows, offsetof(block_q2_k, d), out));
      for (uint32_t g = 0; g < 4; ++g, out += 64) {
        rows.words(offsetof(block_q2_k, scales) + 4 * g, lo);
        put_scales(lo, out, 16);
      }
      for (uint32_t j = 0; j < 8; ++j) {
        for (uint32_t i = 0; i < 8; ++i) {
          rows.words(offsetof(block_q2_k, qs) + 32 * (j / 4) + 4 * i, lo);
          for (uint32_t r = 0; r < kRows; ++r) codes[i][r] = q2_k_quants(lo[r], j % 4);
        }
        out = put_pairs(codes, 0, out);
      }
      return out;
    case Format::iq4_xs: {
      out = put_halves(rows, offsetof(block_iq4_xs, d), out);
      rows.words(offsetof(block_iq4_xs, scales_l), lo);
      for (uint32_t r = 0; r < kRows; ++r) std::memcpy(&hi[r], rows.at[r] + offsetof(block_iq4_xs, scales_h), 2);
      for (uint32_t j = 0; j < 8; ++j, out += kRows)
        for (uint32_t r = 0; r < kRows; ++r) out[r] = u8(iq4_xs_scale(lo[r], hi[r] & 0xffff, j));
      for (uint32_t j = 0; j < 8; ++j) out = put_words(rows, offsetof(block_iq4_xs, qs) + 16 * j, out);
      return out;
    }
    case Format::f16:
    case Format::bf16:
      return put_halves(rows, 0, out);
    case Format::f32:
      rows.words(0, lo);
      std::memcpy(out, lo, 64);
      return out + 64;
  }
  return out;
}

// Bytes of one block of 16 rows.
constexpr uint32_t block_bytes(Format format) {
  const uint32_t file = kRows * info(format).bytes;
  switch (format) {
    case Format::q4_k:
    case Format::q5_k:
      return file + kRows * 4;  // 16 bytes of scales and mins for 12
    case Format::q3_k:
      return file + kRows * 4;  // 16 for 12
    case Format::iq4_xs:
      return file + kRows * 2;  // 8 for 6
    default:
      return file;
  }
}

// One loop a format, so that put_block is inlined with a constant.
template <Format F>
void pack(const u8* rows, uint32_t n_rows, uint32_t n_cols, uint32_t first_panel, uint32_t count, u8* packed) {
  static constexpr u8 kZeros[256] = {};
  constexpr uint32_t kBytes = info(F).bytes;
  static_assert(kBytes <= sizeof kZeros);
  const uint64_t stride = row_bytes(F, n_cols);
  u8* out = packed + first_panel * panel_bytes(F, n_cols);
  for (uint32_t panel = first_panel; panel < first_panel + count; ++panel) {
    Rows at;
    uint32_t step[kRows];
    for (uint32_t r = 0; r < kRows; ++r) {
      const uint64_t row = uint64_t(panel) * kRows + r;
      at.at[r] = row < n_rows ? rows + row * stride : kZeros;
      step[r] = row < n_rows ? kBytes : 0;
    }
    for (uint32_t block = 0; block < n_cols / info(F).block; ++block) {
      out = put_block(F, at, out);
      for (uint32_t r = 0; r < kRows; ++r) at.at[r] += step[r];
    }
  }
}

}  // namespace

uint64_t panel_bytes(Format format, uint32_t n_cols) {
  return uint64_t(n_cols / info(format).block) * block_bytes(format);
}

void pack_panels(Format format, const uint8_t* rows, uint32_t n_rows, uint32_t n_cols, uint32_t first_panel,
                 uint32_t count, uint8_t* packed) {
  switch (format) {
#define FORMAT(name, NAME, id, block, bytes) \
  case Format::name:                         \
    return pack<Format::name>(rows, n_rows, n_cols, first_panel, count, packed);
#define KNOWN(NAME, id, block, bytes)
#include "quant/formats.def"
#undef FORMAT
#undef KNOWN
  }
}

}  // namespace argent::cpu
