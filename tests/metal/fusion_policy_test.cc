#include "backends/metal/fusion_policy.h"

#include <gtest/gtest.h>

namespace argent::metal {
namespace {

using enum Format;

TEST(FusionPolicy, KindFollowsTokens) {
  EXPECT_EQ(product_kind(1), ProductKind::one);
  EXPECT_EQ(product_kind(2), ProductKind::few);
  EXPECT_EQ(product_kind(8), ProductKind::few);
  EXPECT_EQ(product_kind(9), ProductKind::many);
}

TEST(FusionPolicy, GluUpToSoManyRows) {
  EXPECT_TRUE(fuses_glu(14336, 4096, 1, q4_k, q6_k));
  EXPECT_TRUE(fuses_glu(16384, 4096, 8, q4_k, q4_k));
  EXPECT_FALSE(fuses_glu(16385, 4096, 1, q4_k, q4_k));
  EXPECT_TRUE(fuses_glu(28672, 8192, 9, q4_k, q4_k));
  EXPECT_FALSE(fuses_glu(1536, 8192, 9, q4_k, bf16));
  EXPECT_FALSE(fuses_glu(1536, 8192, 9, f32, q4_k));
  EXPECT_TRUE(fuses_glu(1536, 8192, 8, f32, bf16));
}

TEST(FusionPolicy, ColumnsAreWholeBlocksOfEveryFormat) {
  EXPECT_FALSE(fuses_glu(1536, 576, 1, q4_k, q8_0));
  EXPECT_FALSE(fuses_glu(1536, 576, 1, q8_0, q4_k));
  EXPECT_TRUE(fuses_glu(1536, 576, 1, q8_0, f16));
  EXPECT_TRUE(fuses_glu(1536, 40, 8, f16, f32));
  EXPECT_FALSE(fuses_glu(1536, 40, 9, f16, f32));  // steps of 32 columns
  EXPECT_FALSE(fuses_glu(1536, 44, 1, f16, f16));
  EXPECT_FALSE(fuses_glu(1536, 0, 1, f16, f16));
  EXPECT_FALSE(fuses_qkv(576, 1, q8_0, q8_0, q6_k));
  EXPECT_TRUE(fuses_qkv(512, 8, q8_0, f16, q6_k));
}

TEST(FusionPolicy, QkvIsForDecode) {
  EXPECT_TRUE(fuses_qkv(4096, 8, q4_k, q4_k, q6_k));
  EXPECT_FALSE(fuses_qkv(4096, 9, q4_k, q4_k, q6_k));
}

TEST(FusionPolicy, QkvRopeNeedsHeadsThatFit) {
  const HeadShape llama{32, 8, 128, 128, 128, KvType::f16, KvType::f16};
  const auto fuses = [](const HeadShape& a, uint32_t tokens = 1) {
    return fuses_qkv_rope(a, 4096, tokens, q4_k, q4_k, q6_k);
  };
  auto with = [&](auto change) {
    HeadShape a = llama;
    change(a);
    return fuses(a);
  };
  EXPECT_TRUE(fuses(llama));
  EXPECT_TRUE(fuses(llama, 8));
  EXPECT_FALSE(fuses(llama, 9));
  EXPECT_TRUE(fuses({1, 1, 256, 256, 0, KvType::q8_0, KvType::q8_0}, 1));
  EXPECT_FALSE(with([](auto& a) { a.d_head = 260; }));
  EXPECT_FALSE(with([](auto& a) { a.d_value = 512; }));
  EXPECT_FALSE(with([](auto& a) { a.d_value = 66; }));
  EXPECT_FALSE(with([](auto& a) { a.n_rot = 63; }));
  EXPECT_FALSE(with([](auto& a) { a.n_rot = 130; }));
  EXPECT_TRUE(with([](auto& a) { a.d_head = a.n_rot = 80; }));
  EXPECT_FALSE(with([](auto& a) { a.d_head = a.n_rot = 80, a.type_k = KvType::q8_0; }));
  EXPECT_FALSE(with([](auto& a) { a.d_value = 80, a.type_v = KvType::q8_0; }));
}

}  // namespace
}  // namespace argent::metal
