#include "quant/formats.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "base/half.h"
#include "quant/uniform.h"
#include "quant/walk.h"

namespace argent {
namespace {

struct Golden {
  const FormatInfo* format;
  std::vector<uint8_t> block;
  uint64_t digest;
  std::vector<uint32_t> first;
};

std::vector<Golden> read_golden() {
  std::ifstream file(ARGENT_TEST_DIR "/golden.txt");
  std::vector<Golden> rows;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream in(line);
    std::string name, hex, word;
    Golden row{};
    in >> name >> hex >> std::hex >> row.digest;
    for (const FormatInfo& f : kFormats)
      if (f.name == name) row.format = &f;
    for (size_t i = 0; i < hex.size(); i += 2) row.block.push_back(uint8_t(std::stoul(hex.substr(i, 2), nullptr, 16)));
    while (in >> word) row.first.push_back(uint32_t(std::stoul(word, nullptr, 16)));
    rows.push_back(row);
  }
  return rows;
}

uint32_t bits_of(float f) { return std::isnan(f) ? 0x7fc00000 : std::bit_cast<uint32_t>(f); }

uint64_t digest(const std::vector<float>& values) {
  uint64_t h = 0xcbf29ce484222325;
  for (float f : values)
    for (int k = 0; k < 4; k++) h = (h ^ (bits_of(f) >> 8 * k & 255)) * 0x100000001b3;
  return h;
}

// Random bytes: 1 scale in 32 is infinite or NaN.
std::vector<uint8_t> random_blocks(Format format, size_t blocks, uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<uint8_t> row(blocks * info(format).bytes);
  for (uint8_t& byte : row) byte = uint8_t(rng());
  return row;
}

std::vector<Format> block_formats() {
  std::vector<Format> list;
  for (const FormatInfo& f : kFormats)
    if (f.format && f.block > 1) list.push_back(*f.format);
  return list;
}

TEST(Formats, GoldenVectors) {
  const std::vector<Golden> rows = read_golden();
  std::set<std::string_view> seen;
  for (size_t i = 0; i < rows.size(); i++) {
    const Golden& row = rows[i];
    ASSERT_TRUE(row.format && row.format->format) << "row " << i;
    ASSERT_EQ(row.block.size(), row.format->bytes);
    std::vector<float> out(row.format->block);
    decode_row(*row.format->format, row.block.data(), out.data(), out.size());
    for (size_t k = 0; k < row.first.size(); k++)
      EXPECT_EQ(bits_of(out[k]), row.first[k]) << row.format->name << " row " << i << " element " << k;
    EXPECT_EQ(digest(out), row.digest) << row.format->name << " row " << i;
    seen.insert(row.format->name);
  }
  for (const FormatInfo& f : kFormats)
    EXPECT_EQ(f.format.has_value(), seen.count(f.name)) << f.name << ": a golden vector for each format with a decoder";
}

TEST(Formats, TableOfIds) {
  std::set<uint32_t> ids;
  for (const FormatInfo& f : kFormats) {
    EXPECT_TRUE(ids.insert(f.gguf_id).second) << f.name;
    EXPECT_EQ(find_format(f.gguf_id), &f);
    EXPECT_TRUE(!f.format || &info(*f.format) == &f) << f.name << ": formats with a decoder come first";
  }
  for (uint32_t id : {4u, 5u, 31u, 33u, 36u, 38u, 1000u, ~0u}) EXPECT_EQ(find_format(id), nullptr) << id;
  EXPECT_EQ(row_bytes(Format::q4_k, 512), 288u);
}

// Rows lie at any byte of a file, and a decoder must neither read nor write past its n elements.
TEST(Formats, AnyAlignmentAndNothingBeyond) {
  for (const FormatInfo& f : kFormats) {
    if (!f.format) continue;
    const size_t blocks = 3, n = blocks * f.block;
    const std::vector<uint8_t> row = random_blocks(*f.format, blocks, f.gguf_id);
    std::vector<float> expected(n);
    decode_row(*f.format, row.data(), expected.data(), n);
    for (size_t offset = 1; offset < 4; offset++) {
      std::vector<uint8_t> shifted(row.size() + offset);  // exact size: the address sanitizer sees reads beyond
      std::memcpy(shifted.data() + offset, row.data(), row.size());
      std::vector<float> out(n + 2, 12345.0f);
      decode_row(*f.format, shifted.data() + offset, out.data() + 1, n);
      for (size_t i = 0; i < n; i++) ASSERT_EQ(bits_of(out[i + 1]), bits_of(expected[i])) << f.name << " element " << i;
      EXPECT_EQ(out[0], 12345.0f) << f.name;
      EXPECT_EQ(out[n + 1], 12345.0f) << f.name;
    }
    decode_row(*f.format, nullptr, nullptr, 0);
  }
}

// value = scale * (q - zero_point) [+ min] must be decode_row's bit for bit, with separate roundings and with one: the
// product is exact.
TEST(Uniform, EqualsDecodeRow) {
  for (Format format : block_formats()) {
    const int blocks = 2000, n = blocks * info(format).block;
    const std::vector<uint8_t> row = random_blocks(format, blocks, 7);
    const UniformShape shape = uniform_shape(format);
    std::vector<uint8_t> q(n);
    std::vector<float> scale(n / shape.group), min(n / shape.group), out(n);
    uniform_row(format, row.data(), n, q.data(), scale.data(), shape.has_min ? min.data() : nullptr);
    decode_row(format, row.data(), out.data(), n);
    int finite = 0;
    for (int i = 0; i < n; i++) {
      const float s = scale[i / shape.group], m = min[i / shape.group];
      const float level = float(int(q[i]) - shape.zero_point);
      const float two = shape.has_min ? s * level + m : s * level;
      ASSERT_EQ(bits_of(two), bits_of(out[i])) << info(format).name << " element " << i;
      if (!std::isfinite(out[i])) continue;
      finite++;
      if (shape.has_min) {
        ASSERT_EQ(bits_of(std::fma(s, level, m)), bits_of(out[i])) << info(format).name;
      } else {
        ASSERT_EQ(double(s) * double(level), double(out[i])) << info(format).name << ": a product that is not exact";
      }
    }
    EXPECT_GT(finite, n / 2) << info(format).name;
  }
}

TEST(Uniform, Shapes) {
  struct Want {
    Format format;
    int group, zero_point;
    bool has_min;
    int lowest, highest;  // of q
  };
  const Want wants[] = {
      {Format::q4_0, 32, 8, false, 0, 15},       {Format::q4_1, 32, 0, true, 0, 15},
      {Format::q5_0, 32, 16, false, 0, 31},      {Format::q5_1, 32, 0, true, 0, 31},
      {Format::q8_0, 32, 128, false, 0, 255},    {Format::q2_k, 16, 0, true, 0, 3},
      {Format::q3_k, 16, 4, false, 0, 7},        {Format::q4_k, 32, 0, true, 0, 15},
      {Format::q5_k, 32, 0, true, 0, 31},        {Format::q6_k, 16, 32, false, 0, 63},
      {Format::iq4_nl, 32, 128, false, 1, 241},  {Format::iq4_xs, 32, 128, false, 1, 241},
      {Format::mxfp4, 32, 128, false, 116, 140},
  };
  EXPECT_EQ(std::size(wants), block_formats().size());
  for (const Want& want : wants) {
    const UniformShape shape = uniform_shape(want.format);
    EXPECT_EQ(shape.group, want.group);
    EXPECT_EQ(shape.zero_point, want.zero_point);
    EXPECT_EQ(shape.has_min, want.has_min);
    const int blocks = 200, n = blocks * info(want.format).block;
    const std::vector<uint8_t> row = random_blocks(want.format, blocks, 11);
    std::vector<uint8_t> q(n);
    std::vector<float> scale(n / shape.group), min(n / shape.group, 77.0f);
    uniform_row(want.format, row.data(), n, q.data(), scale.data(), min.data());
    EXPECT_EQ(*std::min_element(q.begin(), q.end()), want.lowest) << info(want.format).name;
    EXPECT_EQ(*std::max_element(q.begin(), q.end()), want.highest) << info(want.format).name;
    EXPECT_EQ(std::count(min.begin(), min.end(), 77.0f), want.has_min ? 0 : min.size()) << "min is touched where it is";
  }
  EXPECT_DEATH((void)uniform_shape(Format::f16), "");
}

TEST(Portable, HalfAgreesWithBase) {
  for (uint32_t h = 0; h < 65536; h++) ASSERT_EQ(bits_of(qk_half(h)), bits_of(half_to_float(uint16_t(h)))) << h;
  EXPECT_EQ(std::bit_cast<uint32_t>(qk_half(0x8000)), 0x80000000u);
}

TEST(Portable, BytesOfWords) {
  for (uint32_t b = 0; b < 32; b++)
    for (uint32_t k = 0; k < 4; k++) EXPECT_EQ(qk_byte(qk_spread(b), k), b >> k & 1);
  for (uint32_t x = 0; x < 128; x++)
    for (uint32_t zero : {0u, 4u, 8u, 16u, 32u, 127u}) {
      const uint32_t w = qk_subtract(x | (127 - x) << 8 | 127u << 24, zero);
      EXPECT_EQ(qk_signed(qk_byte(w, 0)), int(x) - int(zero));
      EXPECT_EQ(qk_signed(qk_byte(w, 1)), 127 - int(x) - int(zero));
      EXPECT_EQ(qk_signed(qk_byte(w, 2)), -int(zero));
      EXPECT_EQ(qk_signed(qk_byte(w, 3)), 127 - int(zero));
    }
  for (uint32_t i = 0; i < 65536; i++) {
    const uint32_t indices = (i & 15) | (i & 0xf0) << 4 | (i & 0xf00) << 8 | (i & 0xf000) << 12;
    const uint32_t w = qk_lookup(indices, 0xa3a2a1a0, 0xa7a6a5a4, 0xabaaa9a8, 0xafaeadac);
    ASSERT_EQ(w, indices + 0xa0a0a0a0);
  }
}

// The packed forms that kernels use, against the quants that decode_row uses.
TEST(Headers, LevelsAreQuantsMinusZero) {
  std::mt19937 rng(3);
  for (int round = 0; round < 2000; round++) {
    const uint32_t w = rng(), hi = rng(), i = rng() % 4 * 4, side = rng() % 2, s = rng() % 4;
    for (uint32_t k = 0; k < 4; k++) {
      const auto at = [&](uint32_t word) { return int(qk_byte(word, k)); };
      const auto level = [&](uint32_t word) { return qk_signed(qk_byte(word, k)); };
      EXPECT_EQ(level(q4_0_levels(w, side)), at(q4_0_quants(w, side)) - 8);
      EXPECT_EQ(level(q5_0_levels(w, hi, i, side)), at(q5_0_quants(w, hi, i, side)) - 16);
      EXPECT_EQ(level(q3_k_levels(w, hi, side, s)), at(q3_k_quants(w, hi, side, s)) - 4);
      EXPECT_EQ(level(q6_k_levels(w, hi, s)), at(q6_k_quants(w, hi, s)) - 32);
      // A single byte gives the same as that byte of a word.
      const uint32_t one = qk_byte(w, k), one_hi = qk_byte(hi, k);
      EXPECT_EQ(q4_0_quants(one, side) & 255, at(q4_0_quants(w, side)));
      EXPECT_EQ(q5_0_quants(one, hi, i + k, side) & 255, at(q5_0_quants(w, hi, i, side)));
      EXPECT_EQ(q5_k_quants(one, one_hi, s) & 255, at(q5_k_quants(w, hi, s)));
      EXPECT_EQ(q6_k_quants(one, one_hi, s) & 255, at(q6_k_quants(w, hi, s)));
      EXPECT_EQ(q3_k_quants(one, one_hi, side, s) & 255, at(q3_k_quants(w, hi, side, s)));
    }
  }
}

TEST(Headers, FourScalesAtOnce) {
  std::mt19937 rng(5);
  for (int round = 0; round < 500; round++) {
    const uint32_t s0 = rng(), s1 = rng(), s2 = rng();
    for (uint32_t j = 0; j < 8; j++) {
      EXPECT_EQ(q4_k_scale(s0, s2, j), qk_byte(q4_k_scales4(s0, s2, j / 4), j % 4));
      EXPECT_EQ(q4_k_min(s1, s2, j), qk_byte(q4_k_mins4(s1, s2, j / 4), j % 4));
    }
    for (uint32_t j = 0; j < 16; j++)
      EXPECT_EQ(q3_k_scale(s0, s1, s2, j) + 32, qk_byte(q3_k_scales4(s0, s1, s2, j / 4), j % 4));
  }
}

}  // namespace
}  // namespace argent
