#include <gtest/gtest.h>

#include <bit>

#include "backends_cpu/matmul_cases.h"

namespace argent::cpu {
namespace {

constexpr uint32_t kTokens[] = {1, 2, 3, 5, 8, 15, 16, 17, 31, 33};
constexpr uint32_t kRows[] = {1, 15, 16, 17, 33};
constexpr uint32_t kMaxTokens = 33, kMaxRows = 33;

// Without FMA every product is rounded: one more rounding a group (q8) or column (f32) than the fused order.
constexpr double kUnfusedTolerance = 4e-7;

std::vector<uint32_t> widths(Format format) {
  if (info(format).block == 256) return {256, 512, 768};
  if (info(format).block == 32) return {32, 64, 96, 288};
  return {1, 2, 3, 31, 32, 33, 65};
}

// Prepares x [n_tokens][n_cols] and multiplies; out is [n_tokens][n_rows + 3], with kUntouched where nothing may be
// written.
std::vector<float> multiply(const MatmulKernels& kernels, Activations kind, const PackedMatrix& weights, const float* x,
                            uint32_t n_tokens, uint32_t panel_begin, uint32_t panel_end) {
  const uint64_t stride = weights.n_rows + 3;
  Guarded<float> out(n_tokens * stride - 3);
  for (uint64_t i = 0; i < n_tokens * stride - 3; ++i) out[i] = kUntouched;
  const ActivationPart all = {weights.n_cols, n_tokens, 0, n_tokens, 0, weights.n_cols};
  if (kind == Activations::q8) {
    Guarded<QuantGroup> acts(activation_bytes(kind, weights.n_cols, n_tokens) / sizeof(QuantGroup));
    kernels.prepare_q8(all, x, weights.n_cols, acts.data());
    kernels.multiply_q8(weights, panel_begin, panel_end, acts.data(), n_tokens, out.data(), stride);
  } else if (kind == Activations::bf16) {
    Guarded<BrainPair> acts(activation_bytes(kind, weights.n_cols, n_tokens) / sizeof(BrainPair));
    kernels.prepare_bf16(all, x, weights.n_cols, acts.data());
    kernels.multiply_bf16(weights, panel_begin, panel_end, acts.data(), n_tokens, out.data(), stride);
  } else {
    Guarded<float> acts(activation_bytes(kind, weights.n_cols, n_tokens) / sizeof(float));
    kernels.prepare_f32(all, x, weights.n_cols, acts.data());
    kernels.multiply_f32(weights, panel_begin, panel_end, acts.data(), n_tokens, out.data(), stride);
  }
  std::vector<float> result(out.data(), out.data() + n_tokens * stride - 3);
  result.resize(n_tokens * stride, kUntouched);
  return result;
}

struct MatmulCase {
  Format format;
  uint32_t n_cols;
  Guarded<uint8_t> rows;
  std::vector<float> x;

  MatmulCase(Format format, uint32_t n_cols, bool hostile = false)
      : format(format), n_cols(n_cols), rows(kMaxRows * row_bytes(format, n_cols)) {
    random_rows(format, rows.data(), kMaxRows, n_cols, n_cols, hostile);
    x = random_floats(kMaxTokens * n_cols, n_cols + 1);
  }
  const uint8_t* row(uint32_t r) const { return rows.data() + r * row_bytes(format, n_cols); }
};

// The whole sweep of one format and kind of activations: every ISA against the plain arithmetic, any number of tokens
// against one, and nothing written elsewhere.
void sweep(Format format, Activations kind) {
  for (const uint32_t n_cols : widths(format)) {
    const MatmulCase c(format, n_cols);
    std::vector<Output> expected(kMaxTokens * kMaxRows);
    for (uint32_t t = 0; t < kMaxTokens; ++t) {
      const float* x = c.x.data() + t * n_cols;
      std::vector<QuantGroup> acts;
      for (uint32_t g = 0; kind == Activations::q8 && g < n_cols / kGroup; ++g)
        acts.push_back(reference_group(x + g * kGroup));
      for (uint32_t r = 0; r < kMaxRows; ++r)
        expected[t * kMaxRows + r] = kind == Activations::q8     ? reference_q8(format, c.row(r), n_cols, acts.data())
                                     : kind == Activations::bf16 ? reference_bf16(c.row(r), n_cols, x)
                                                                 : reference_f32(format, c.row(r), n_cols, x);
    }
    for (const uint32_t n_rows : kRows) {
      Guarded<uint8_t> packed(packed_bytes(format, n_rows, n_cols));
      pack_kernels(Isa::baseline).pack(format, c.rows.data(), n_rows, n_cols, 0, n_panels(n_rows), packed.data());
      const PackedMatrix weights = {format, n_rows, n_cols, packed.data()};
      for (const Isa isa : supported_isas()) {
        for (const uint32_t n_tokens : kTokens) {
          const auto out = multiply(matmul_kernels(isa), kind, weights, c.x.data(), n_tokens, 0, n_panels(n_rows));
          for (uint32_t t = 0; t < n_tokens; ++t) {
            for (uint32_t r = 0; r < n_rows; ++r) {
              const float got = out[t * (n_rows + 3) + r];
              const Output& want = expected[t * kMaxRows + r];
              const auto where = [&] {
                return std::string(info(format).name) + " " + isa_name(isa) + " tokens " + std::to_string(n_tokens) +
                       " rows " + std::to_string(n_rows) + " columns " + std::to_string(n_cols) + " at token " +
                       std::to_string(t) + " row " + std::to_string(r);
              };
              if (!has_fma(isa))
                ASSERT_NEAR(got, want.value, kUnfusedTolerance * want.magnitude) << where();
              else
                ASSERT_TRUE(same(got, want.value)) << where() << ": " << got << ", not " << want.value;
            }
            for (uint32_t r = n_rows; r < n_rows + 3; ++r) ASSERT_EQ(out[t * (n_rows + 3) + r], kUntouched);
          }
        }
      }
    }
  }
}

class EveryFormat : public testing::TestWithParam<Format> {};

TEST_P(EveryFormat, NativeMatchesThePlainOrder) {
  if (native_activations(GetParam()) != Activations::f32) sweep(GetParam(), native_activations(GetParam()));
}

TEST_P(EveryFormat, F32MatchesThePlainOrder) { sweep(GetParam(), Activations::f32); }

// Rounding activations to bfloat16's 8 bits moves each by at most 2^-9 of itself, evenly spread: an NMSE below 2^-18
// / 3.
TEST(Multiply, Bfloat16IsNearTheExactProduct) {
  const uint32_t n_cols = 769, n_rows = kMaxRows, n_tokens = kMaxTokens;
  const MatmulCase c(Format::bf16, n_cols);
  std::vector<uint8_t> packed(packed_bytes(Format::bf16, n_rows, n_cols));
  pack_kernels(Isa::baseline).pack(Format::bf16, c.rows.data(), n_rows, n_cols, 0, n_panels(n_rows), packed.data());
  std::vector<float> w(n_cols);
  for (const Isa isa : supported_isas()) {
    const auto out = multiply(matmul_kernels(isa), Activations::bf16, {Format::bf16, n_rows, n_cols, packed.data()},
                              c.x.data(), n_tokens, 0, n_panels(n_rows));
    double error = 0, power = 0;
    for (uint32_t r = 0; r < n_rows; ++r) {
      decode_row(Format::bf16, c.row(r), w.data(), n_cols);
      for (uint32_t t = 0; t < n_tokens; ++t) {
        double exact = 0;
        for (uint32_t k = 0; k < n_cols; ++k) exact += double(w[k]) * c.x[t * n_cols + k];
        error += std::pow(out[t * (n_rows + 3) + r] - exact, 2), power += exact * exact;
      }
    }
    EXPECT_LT(error / power, 0x1p-16 / 3) << isa_name(isa);
    EXPECT_GT(error / power, 0) << isa_name(isa);
  }
}

// The rounding of activations to int8 moves an output by at most half a step of each group times its weights.
TEST_P(EveryFormat, Q8IsNearTheExactProduct) {
  const Format format = GetParam();
  if (!quantized(format)) return;
  const uint32_t n_cols = 768, n_rows = kMaxRows, n_tokens = 3;
  const MatmulCase c(format, n_cols);
  std::vector<uint8_t> packed(packed_bytes(format, n_rows, n_cols));
  pack_kernels(Isa::baseline).pack(format, c.rows.data(), n_rows, n_cols, 0, n_panels(n_rows), packed.data());
  std::vector<float> w(n_cols);
  for (const Isa isa : supported_isas()) {
    const auto out = multiply(matmul_kernels(isa), Activations::q8, {format, n_rows, n_cols, packed.data()}, c.x.data(),
                              n_tokens, 0, n_panels(n_rows));
    for (uint32_t t = 0; t < n_tokens; ++t) {
      for (uint32_t r = 0; r < n_rows; ++r) {
        decode_row(format, c.row(r), w.data(), n_cols);
        double exact = 0, bound = 0;
        for (uint32_t g = 0; g < n_cols / kGroup; ++g) {
          const double half_step = reference_group(c.x.data() + t * n_cols + g * kGroup).scale * 0.5;
          for (uint32_t k = g * kGroup; k < (g + 1) * kGroup; ++k) {
            exact += double(w[k]) * c.x[t * n_cols + k];
            bound += std::fabs(w[k]) * half_step;
          }
        }
        ASSERT_NEAR(out[t * (n_rows + 3) + r], exact, bound * 1.001) << info(format).name;
        EXPECT_GT(bound, 0);
      }
    }
  }
}

TEST_P(EveryFormat, PanelRangesWriteTheirRowsOnly) {
  const Format format = GetParam();
  const uint32_t n_cols = 256, n_rows = 33, n_tokens = 5;
  const MatmulCase c(format, n_cols);
  std::vector<uint8_t> packed(packed_bytes(format, n_rows, n_cols));
  pack_kernels(Isa::baseline).pack(format, c.rows.data(), n_rows, n_cols, 0, 3, packed.data());
  for (const Isa isa : supported_isas()) {
    const MatmulKernels& kernels = matmul_kernels(isa);
    const PackedMatrix weights = {format, n_rows, n_cols, packed.data()};
    const auto whole = multiply(kernels, native_activations(format), weights, c.x.data(), n_tokens, 0, 3);
    const auto part = multiply(kernels, native_activations(format), weights, c.x.data(), n_tokens, 1, 2);
    const auto none = multiply(kernels, native_activations(format), weights, c.x.data(), n_tokens, 2, 2);
    for (uint32_t t = 0; t < n_tokens; ++t) {
      for (uint32_t r = 0; r < n_rows; ++r) {
        const uint64_t at = t * (n_rows + 3) + r;
        ASSERT_TRUE(same(part[at], r / 16 == 1 ? whole[at] : kUntouched));
        ASSERT_EQ(none[at], kUntouched);
      }
    }
  }
}

// Scales that are infinite, NaN or subnormal give defined outputs, the same on ISAs with FMA; a format's own extremes
// (Q8_0's -128, MXFP4's first and last exponents) are among random bytes.
TEST_P(EveryFormat, HostileBytesGiveTheSameOutputsEverywhere) {
  const Format format = GetParam();
  const uint32_t n_cols = 768, n_rows = kMaxRows, n_tokens = 17;
  const MatmulCase c(format, n_cols, true);
  std::vector<uint8_t> packed(packed_bytes(format, n_rows, n_cols));
  pack_kernels(Isa::baseline).pack(format, c.rows.data(), n_rows, n_cols, 0, n_panels(n_rows), packed.data());
  for (const Activations kind : {Activations::q8, Activations::f32, Activations::bf16}) {
    if (kind != Activations::f32 && kind != native_activations(format)) continue;
    std::vector<float> first;
    for (const Isa isa : supported_isas()) {
      const auto out =
          multiply(matmul_kernels(isa), kind, {format, n_rows, n_cols, packed.data()}, c.x.data(), n_tokens, 0, 3);
      if (!has_fma(isa)) continue;
      if (first.empty()) first = out;
      for (size_t i = 0; i < out.size(); ++i) ASSERT_TRUE(same(out[i], first[i])) << info(format).name;
    }
  }
}

// The greatest and least quants against activations of +127 and -127: sums of 16-bit products must not saturate.
TEST_P(EveryFormat, ExtremeQuantsAreExact) {
  const Format format = GetParam();
  if (!quantized(format)) return;
  const uint32_t n_cols = 256;
  MatmulCase c(format, n_cols);
  const Halves halves = halves_of(format);
  for (const int byte : {0x00, 0x7f, 0x80, 0xff}) {
    std::memset(c.rows.data(), byte, row_bytes(format, n_cols));
    for (uint64_t b = 0; b < row_bytes(format, n_cols); b += info(format).bytes) {
      const uint16_t one = float_to_half(1.0f);
      if (halves.d >= 0) std::memcpy(c.rows.data() + b + halves.d, &one, 2);
      if (halves.m >= 0) std::memcpy(c.rows.data() + b + halves.m, &one, 2);
      if (format == Format::mxfp4) c.rows[b] = 127;
    }
    std::vector<uint8_t> packed(packed_bytes(format, 1, n_cols));
    pack_kernels(Isa::baseline).pack(format, c.rows.data(), 1, n_cols, 0, 1, packed.data());
    for (const float value : {1.0f, -1.0f}) {
      const std::vector<float> x(n_cols, value);
      const std::vector<QuantGroup> acts(n_cols / kGroup, reference_group(x.data()));
      const Output want = reference_q8(format, c.rows.data(), n_cols, acts.data());
      for (const Isa isa : supported_isas()) {
        const float got =
            multiply(matmul_kernels(isa), Activations::q8, {format, 1, n_cols, packed.data()}, x.data(), 1, 0, 1)[0];
        if (!has_fma(isa))
          EXPECT_NEAR(got, want.value, kUnfusedTolerance * want.magnitude) << info(format).name << " " << byte;
        else
          EXPECT_TRUE(same(got, want.value)) << info(format).name << " " << isa_name(isa) << " " << byte;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, EveryFormat, testing::ValuesIn(all_formats()),
                         [](const auto& test) { return std::string(argent::info(test.param).name); });

TEST(Prepare, MatchesTheDefinition) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const uint32_t n_cols = 16 * kGroup, n_tokens = 19;
  std::vector<float> x = random_floats(n_tokens * n_cols, 5);
  const auto fill = [&](uint32_t group, float value) { std::fill_n(x.data() + group * kGroup, kGroup, value); };
  fill(0, 0.0f), fill(1, -0.0f), fill(2, 0x1p-149f), fill(3, std::nextafterf(0x1p-100f, 0)), fill(4, 0x1p-100f);
  fill(5, std::numeric_limits<float>::max()), fill(6, -std::numeric_limits<float>::max());
  x[7 * kGroup + 31] = kInf, x[8 * kGroup] = -kInf, x[9 * kGroup + 17] = std::nanf(""),
                 x[10 * kGroup + 3] = -std::nanf("");
  fill(11, 0x1p-120f), x[11 * kGroup + 9] = 1.0f;
  for (uint32_t i = 0; i < kGroup; ++i) x[12 * kGroup + i] = 127.0f - 0.5f * float(i);  // ties, to even
  for (const Isa isa : supported_isas()) {
    Guarded<QuantGroup> acts(n_cols / kGroup * n_tokens);
    // In four parts, as threads would.
    for (const uint32_t token : {0u, 7u})
      for (const uint32_t col : {0u, 96u})
        matmul_kernels(isa).prepare_q8({n_cols, n_tokens, token, token ? n_tokens : 7, col, col ? n_cols : 96},
                                       x.data() + token * n_cols + col, n_cols, acts.data());
    for (uint32_t t = 0; t < n_tokens; ++t) {
      for (uint32_t g = 0; g < n_cols / kGroup; ++g) {
        const QuantGroup want = reference_group(x.data() + t * n_cols + g * kGroup);
        const QuantGroup& got = acts[activation_index(t, g, n_cols / kGroup, n_tokens)];
        ASSERT_TRUE(same(got.scale, want.scale)) << isa_name(isa) << " group " << g;
        ASSERT_EQ(std::memcmp(got.q, want.q, kGroup), 0) << isa_name(isa) << " group " << g;
        ASSERT_EQ(std::memcmp(got.half_sum, want.half_sum, 6 * sizeof(float)), 0) << isa_name(isa) << " group " << g;
      }
    }
  }
}

TEST(Prepare, FloatsAreInterleaved) {
  const uint32_t n_cols = 37, n_tokens = 21;
  const std::vector<float> x = random_floats(n_tokens * n_cols, 6);
  for (const Isa isa : supported_isas()) {
    Guarded<float> acts(n_cols * n_tokens);
    for (const uint32_t col : {0u, 5u})
      matmul_kernels(isa).prepare_f32({n_cols, n_tokens, 0, n_tokens, col, col ? n_cols : 5}, x.data() + col, n_cols,
                                      acts.data());
    for (uint32_t t = 0; t < n_tokens; ++t)
      for (uint32_t k = 0; k < n_cols; ++k)
        ASSERT_EQ(acts[activation_index(t, k, n_cols, n_tokens)], x[t * n_cols + k]) << isa_name(isa);
  }
}

// Ice Lake's AVX-512 has no vdpbf16ps. Random bytes are weights of every size, infinite, NaN and subnormal ones too.
TEST(Multiply, Avx512WithoutBf16HasTheSameBits) {
  if (!isa_supported(Isa::avx512) || !cpu_features().avx512bf16) GTEST_SKIP() << "this machine has no AVX-512 BF16";
  CpuFeatures lesser = cpu_features();
  lesser.avx512bf16 = false;
  const MatmulKernels &with = matmul_kernels(Isa::avx512), &without = matmul_kernels(Isa::avx512, lesser);
  ASSERT_NE(with.multiply_bf16, without.multiply_bf16);
  for (const bool hostile : {false, true})
    for (const uint32_t n_cols : {1u, 2u, 65u, 512u}) {
      const MatmulCase c(Format::bf16, n_cols, hostile);
      Guarded<uint8_t> packed(packed_bytes(Format::bf16, kMaxRows, n_cols));
      pack_kernels(Isa::baseline).pack(Format::bf16, c.rows.data(), kMaxRows, n_cols, 0, 3, packed.data());
      const PackedMatrix weights = {Format::bf16, kMaxRows, n_cols, packed.data()};
      for (const uint32_t n_tokens : kTokens) {
        const auto a = multiply(with, Activations::bf16, weights, c.x.data(), n_tokens, 0, 3);
        const auto b = multiply(without, Activations::bf16, weights, c.x.data(), n_tokens, 0, 3);
        for (size_t i = 0; i < a.size(); ++i) ASSERT_TRUE(same(a[i], b[i])) << n_cols << ' ' << n_tokens << ' ' << i;
      }
    }
}

// bfloat16 rounds to nearest even, NaN stays one, and what lies behind an odd last column is zero.
TEST(Prepare, PairsOfBfloat16) {
  const uint32_t n_cols = 37, n_tokens = 21, n_pairs = 19;
  std::vector<float> x = random_floats(n_tokens * n_cols, 6);
  x[3] = std::nanf(""), x[4] = std::numeric_limits<float>::infinity(), x[5] = 0x1.fffffep127f;
  x[6] = 0x1.01p0f, x[7] = 0x1.03p0f, x[8] = std::bit_cast<float>(0x7f800001u), x[9] = 0x1p-140f;
  for (const Isa isa : supported_isas()) {
    Guarded<BrainPair> acts(n_pairs * n_tokens);
    for (const uint32_t col : {0u, 6u})
      matmul_kernels(isa).prepare_bf16({n_cols, n_tokens, 0, n_tokens, col, col ? n_cols : 6}, x.data() + col, n_cols,
                                       acts.data());
    for (uint32_t t = 0; t < n_tokens; ++t)
      for (uint32_t pair = 0; pair < n_pairs; ++pair) {
        const BrainPair got = acts[activation_index(t, pair, n_pairs, n_tokens)];
        const float* at = x.data() + t * n_cols + 2 * pair;
        ASSERT_EQ(got.even, float_to_bf16(at[0])) << isa_name(isa) << ' ' << t << ' ' << pair;
        ASSERT_EQ(got.odd, 2 * pair + 1 < n_cols ? float_to_bf16(at[1]) : 0)
            << isa_name(isa) << ' ' << t << ' ' << pair;
      }
  }
}

// vdpbf16ps takes subnormals for zero and makes none; so do the others, and the control register is as before.
TEST(Multiply, Bfloat16FlushesSubnormals) {
  const uint32_t n_cols = 6;
  const float w[n_cols] = {0x1p-130f, 1, 0, 0x1p-63f, 0x1p-60f, 0x1p-65f};
  const float x[n_cols] = {0x1p100f, 0x1p-130f, 0, 0x1p-63f, 0x1p-66f, 0x1p-65f};  // 0, 0, 0, 2^-126, 2^-126, 0
  uint8_t row[2 * n_cols];
  for (uint32_t k = 0; k < n_cols; ++k) {
    const uint16_t b = float_to_bf16(w[k]);
    std::memcpy(row + 2 * k, &b, 2);
  }
  Guarded<uint8_t> packed(packed_bytes(Format::bf16, 1, n_cols));
  pack_kernels(Isa::baseline).pack(Format::bf16, row, 1, n_cols, 0, 1, packed.data());
  for (const Isa isa : supported_isas()) {
    const float got =
        multiply(matmul_kernels(isa), Activations::bf16, {Format::bf16, 1, n_cols, packed.data()}, x, 1, 0, 1)[0];
    EXPECT_EQ(got, 0x1p-125f) << isa_name(isa);
    volatile float tiny = 0x1p-130f;
    EXPECT_GT(tiny * 0.5f, 0) << isa_name(isa);
  }
}

TEST(Multiply, NotANumberReachesEveryOutputOfItsTokenOnly) {
  for (const Format format : all_formats()) {
    const uint32_t n_cols = 256, n_rows = 16, n_tokens = 4;
    MatmulCase c(format, n_cols);
    std::vector<uint8_t> packed(packed_bytes(format, n_rows, n_cols));
    pack_kernels(Isa::baseline).pack(format, c.rows.data(), n_rows, n_cols, 0, 1, packed.data());
    c.x[2 * n_cols + 100] = std::nanf("");
    for (const Isa isa : supported_isas()) {
      const auto out = multiply(matmul_kernels(isa), native_activations(format),
                                {format, n_rows, n_cols, packed.data()}, c.x.data(), n_tokens, 0, 1);
      for (uint32_t t = 0; t < n_tokens; ++t)
        for (uint32_t r = 0; r < n_rows; ++r)
          ASSERT_EQ(std::isnan(out[t * (n_rows + 3) + r]), t == 2) << info(format).name << " " << isa_name(isa);
    }
  }
}

}  // namespace
}  // namespace argent::cpu
