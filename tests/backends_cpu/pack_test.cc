#include <gtest/gtest.h>

#include "backends_cpu/matmul_cases.h"

namespace argent::cpu {
namespace {

TEST(Pack, GrowsByAtMostFourPercent) {
  for (const Format format : all_formats()) {
    const uint64_t file = 16 * row_bytes(format, 1024), packed = packed_bytes(format, 16, 1024);
    EXPECT_GE(packed, file) << info(format).name;
    EXPECT_LE(packed, file * 1.04) << info(format).name;
    EXPECT_EQ(packed_bytes(format, 17, 1024), 2 * packed);
    EXPECT_EQ(packed_bytes(format, 0, 1024), 0u);
  }
}

// A one-hot row of floats picks one weight out of the panel: its decoded value, to the bit.
TEST(Pack, KeepsEveryWeight) {
  const MatmulKernels& kernels = matmul_kernels(Isa::baseline);
  for (const Format format : all_formats()) {
    const uint32_t n_rows = 37, n_cols = info(format).block == 256 ? 512 : 96;
    Guarded<uint8_t> rows(n_rows * row_bytes(format, n_cols));
    random_rows(format, rows.data(), n_rows, n_cols, 7);
    Guarded<uint8_t> packed(packed_bytes(format, n_rows, n_cols));
    pack_kernels(Isa::baseline).pack(format, rows.data(), n_rows, n_cols, 0, n_panels(n_rows), packed.data());
    std::vector<float> x(n_cols), acts(n_cols), out(n_rows), decoded(n_rows * n_cols);
    for (uint32_t r = 0; r < n_rows; ++r)
      decode_row(format, rows.data() + r * row_bytes(format, n_cols), decoded.data() + r * n_cols, n_cols);
    for (uint32_t k = 0; k < n_cols; ++k) {
      x[k] = 1;
      kernels.prepare_f32({n_cols, 1, 0, 1, 0, n_cols}, x.data(), n_cols, acts.data());
      kernels.multiply_f32({format, n_rows, n_cols, packed.data()}, 0, n_panels(n_rows), acts.data(), 1, out.data(),
                           n_rows);
      for (uint32_t r = 0; r < n_rows; ++r)
        ASSERT_EQ(out[r], decoded[r * n_cols + k]) << info(format).name << " row " << r << " column " << k;
      x[k] = 0;
    }
  }
}

TEST(Pack, RangesAreIndependent) {
  for (const Format format : all_formats()) {
    const uint32_t n_rows = 67, n_cols = 256;
    std::vector<uint8_t> rows(n_rows * row_bytes(format, n_cols));
    random_rows(format, rows.data(), n_rows, n_cols, 3, true);
    const uint64_t bytes = packed_bytes(format, n_rows, n_cols);
    std::vector<uint8_t> whole(bytes, 1), parts(bytes, 2);
    pack_kernels(Isa::baseline).pack(format, rows.data(), n_rows, n_cols, 0, 5, whole.data());
    const PackKernels& kernels = pack_kernels(Isa::baseline);
    const uint64_t panel = panel_bytes(format, n_cols);
    kernels.pack(format, rows.data(), n_rows, n_cols, 3, 2, parts.data() + 3 * panel);
    for (uint64_t i = 0; i < 3 * panel; ++i) ASSERT_EQ(parts[i], 2) << info(format).name;
    kernels.pack(format, rows.data(), n_rows, n_cols, 0, 0, parts.data());
    kernels.pack(format, rows.data(), n_rows, n_cols, 0, 1, parts.data());
    kernels.pack(format, rows.data(), n_rows, n_cols, 1, 2, parts.data() + panel);
    EXPECT_EQ(whole, parts) << info(format).name;
  }
}

// Whatever the machine, the same bytes; rows read and panels written end at inaccessible pages.
TEST(Pack, EveryIsaWritesTheSameBytes) {
  for (const Format format : all_formats())
    for (const uint32_t n_rows : {1u, 16u, 29u})
      for (uint32_t n_cols : {1u, 2u, 7u, 32u, 256u, 512u}) {
        if (n_cols % info(format).block) continue;
        Guarded<uint8_t> rows(n_rows * row_bytes(format, n_cols));
        random_rows(format, rows.data(), n_rows, n_cols, n_rows + n_cols, true);
        const uint64_t bytes = packed_bytes(format, n_rows, n_cols);
        Guarded<uint8_t> first(bytes), other(bytes);
        pack_kernels(Isa::baseline).pack(format, rows.data(), n_rows, n_cols, 0, n_panels(n_rows), first.data());
        for (const Isa isa : supported_isas()) {
          pack_kernels(isa).pack(format, rows.data(), n_rows, n_cols, 0, n_panels(n_rows), other.data());
          ASSERT_EQ(std::memcmp(first.data(), other.data(), bytes), 0) << info(format).name << " " << int(isa);
        }
      }
}

// A row comes back as decode_row gives it, to the bit.
TEST(Pack, UnpacksRows) {
  for (const Format format : all_formats())
    for (uint32_t n_cols : {3u, 32u, 768u}) {
      if (n_cols % info(format).block) continue;
      const uint32_t n_rows = 37;
      Guarded<uint8_t> rows(n_rows * row_bytes(format, n_cols));
      random_rows(format, rows.data(), n_rows, n_cols, 11);
      Guarded<uint8_t> packed(packed_bytes(format, n_rows, n_cols));
      pack_kernels(Isa::baseline).pack(format, rows.data(), n_rows, n_cols, 0, n_panels(n_rows), packed.data());
      std::vector<float> decoded(n_cols);
      Guarded<float> out(n_cols);
      for (const Isa isa : supported_isas())
        for (uint32_t r = 0; r < n_rows; ++r) {
          decode_row(format, rows.data() + r * row_bytes(format, n_cols), decoded.data(), n_cols);
          pack_kernels(isa).unpack_row({format, n_rows, n_cols, packed.data()}, r, out.data());
          ASSERT_EQ(std::memcmp(out.data(), decoded.data(), n_cols * 4), 0) << info(format).name << " row " << r;
        }
    }
}

}  // namespace
}  // namespace argent::cpu
