#include "base/huge_pages.h"

#include <gtest/gtest.h>

#include "base/cpu_features.h"

namespace argent {
namespace {

TEST(HugePages, AreAlignedZeroedAndWhole) {
  for (const uint64_t bytes : {uint64_t(1), uint64_t(4096), (uint64_t(2) << 20) + 1, uint64_t(5) << 20}) {
    auto pages = HugePages::allocate(bytes);
    ASSERT_TRUE(pages);
    EXPECT_EQ(reinterpret_cast<uint64_t>(pages->data()) % (2 << 20), 0u);
    EXPECT_EQ(pages->size(), bytes);
    EXPECT_EQ(pages->data()[0], 0);
    EXPECT_EQ(pages->data()[bytes - 1], 0);
    pages->data()[bytes - 1] = 1;
  }
}

TEST(HugePages, Move) {
  auto a = HugePages::allocate(100);
  ASSERT_TRUE(a);
  uint8_t* data = a->data();
  HugePages b = std::move(*a);
  EXPECT_EQ(b.data(), data);
  EXPECT_EQ(a->data(), nullptr);
  HugePages c;
  c = std::move(b);
  EXPECT_EQ(c.data(), data);
  EXPECT_EQ(c.size(), 100u);
}

TEST(HugePages, ImpossibleSizesAreErrors) {
  ASSERT_TRUE(HugePages::allocate(0));
  for (const uint64_t bytes : {uint64_t(1) << 62, UINT64_MAX, UINT64_MAX - (2 << 20)}) {
    const auto pages = HugePages::allocate(bytes);
    ASSERT_FALSE(pages);
    EXPECT_EQ(pages.error().code, Code::out_of_memory);
  }
}

#if defined(__x86_64__)
TEST(CpuFeatures, AgreeWithTheCompilersRuntime) {
  const CpuFeatures& f = cpu_features();
  EXPECT_EQ(f.avx2, bool(__builtin_cpu_supports("avx2")));
  EXPECT_EQ(f.fma, bool(__builtin_cpu_supports("fma")));
#if !defined(__clang__)  // clang 14 does not know the name
  EXPECT_EQ(f.avx_vnni, bool(__builtin_cpu_supports("avxvnni")));
#endif
  EXPECT_EQ(f.avx512f, bool(__builtin_cpu_supports("avx512f")));
  EXPECT_EQ(f.avx512bw, bool(__builtin_cpu_supports("avx512bw")));
  EXPECT_EQ(f.avx512vl, bool(__builtin_cpu_supports("avx512vl")));
  EXPECT_EQ(f.avx512dq, bool(__builtin_cpu_supports("avx512dq")));
  EXPECT_EQ(f.avx512vnni, bool(__builtin_cpu_supports("avx512vnni")));
  EXPECT_EQ(f.avx512vbmi, bool(__builtin_cpu_supports("avx512vbmi")));
}
#endif

}  // namespace
}  // namespace argent
