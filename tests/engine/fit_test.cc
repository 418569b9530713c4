// How many layers go to a device, and with which context, as numbers.
#include "engine/fit.h"

#include <gtest/gtest.h>

namespace argent {
namespace {

// Layers of 100, a head of 50, embeddings of 30, 1 of cache for each 1,024 positions of a layer.
FitSizes sizes(uint32_t n_layers, uint64_t device_free, std::vector<uint32_t> contexts = {8192}) {
  FitSizes s;
  s.layer_bytes.assign(n_layers, 100);
  s.head_bytes = 50;
  s.model_bytes = 100 * n_layers + 80;
  s.workspace_bytes = 7;
  s.reserve_bytes = 3;
  s.device_free = device_free;
  s.host_free = 1 << 20;
  for (const uint32_t n : contexts) s.contexts.push_back({n, std::vector<uint64_t>(n_layers, n / 1024)});
  return s;
}
// What k of the layers take with the head.
uint64_t part(uint32_t k, uint32_t n_ctx = 8192) { return k * (100 + n_ctx / 1024) + 50 + 7 + 3; }
uint64_t whole(uint32_t n, uint32_t n_ctx = 8192) { return n * (100 + n_ctx / 1024) + 80 + 7 + 3; }

const std::vector<uint32_t> kHalves = {8192, 4096, 2048, 1024, 512};

TEST(FitLayers, EverythingFitsToTheByte) {
  EXPECT_EQ(fit_layers(sizes(4, whole(4))), (Fit{true, 4, 8192}));
  EXPECT_EQ(fit_layers(sizes(4, whole(4) - 1)), (Fit{false, 4, 8192}));  // but for the embeddings
}

TEST(FitLayers, AsManyAsFit) {
  for (uint32_t k = 1; k <= 32; ++k) {
    EXPECT_EQ(fit_layers(sizes(32, part(k))), (Fit{false, k, 8192})) << k;
    EXPECT_EQ(fit_layers(sizes(32, part(k) - 1)), (Fit{false, k - 1, 8192})) << k;
  }
}

TEST(FitLayers, NothingFits) {
  for (const uint64_t free : {uint64_t(1), uint64_t(60), part(1, 512) - 1}) {  // 60: the head alone does
    EXPECT_EQ(fit_layers(sizes(4, free, kHalves)), (Fit{false, 0, 512})) << free;
  }
  // The head alone is too large, for any number of layers.
  FitSizes s = sizes(4, whole(4));
  s.head_bytes = s.model_bytes = whole(4);
  EXPECT_EQ(fit_layers(s), (Fit{false, 0, 8192}));
}

TEST(FitLayers, ContextShrinksBeforeLayersLeaveAndNoFurther) {
  EXPECT_EQ(fit_layers(sizes(4, whole(4), kHalves)), (Fit{true, 4, 8192}));
  EXPECT_EQ(fit_layers(sizes(4, whole(4) - 1, kHalves)), (Fit{true, 4, 4096}));
  EXPECT_EQ(fit_layers(sizes(4, whole(4, 4096), kHalves)), (Fit{true, 4, 4096}));
  // Below 4096 positions the embeddings or layers go instead, and the context is the longest again.
  EXPECT_EQ(fit_layers(sizes(4, whole(4, 4096) - 1, kHalves)), (Fit{false, 4, 8192}));
  EXPECT_EQ(fit_layers(sizes(4, part(4) - 1, kHalves)), (Fit{false, 3, 8192}));
  // No layer fits at the longest.
  EXPECT_EQ(fit_layers(sizes(4, part(1, 2048), kHalves)), (Fit{false, 1, 2048}));
  // What was asked for stays, as does what the model was trained for.
  EXPECT_EQ(fit_layers(sizes(4, whole(4) - 9, {8192})), (Fit{false, 4, 8192}));
  EXPECT_EQ(fit_layers(sizes(4, whole(4, 2048), {2048, 1024, 512})), (Fit{true, 4, 2048}));
  EXPECT_EQ(fit_layers(sizes(4, whole(4, 2048) - 1, {2048, 1024, 512})), (Fit{false, 4, 2048}));
}

TEST(FitLayers, TheHostHoldsTheOthersCaches) {
  FitSizes s = sizes(8, part(2));
  s.host_free = 6 * 8 + 7 + 3;
  EXPECT_EQ(fit_layers(s), (Fit{false, 2, 8192}));
  s.host_free -= 1;
  EXPECT_EQ(fit_layers(s), (Fit{false, 0, 8192}));
  FitSizes shorter = sizes(8, part(2), kHalves);
  shorter.host_free = 6 * 4 + 7 + 3;
  EXPECT_EQ(fit_layers(shorter), (Fit{false, 2, 4096}));
}

TEST(FitLayers, LayersDiffer) {
  FitSizes s = sizes(4, 0);
  s.layer_bytes = {1, 1000, 10, 10};
  s.model_bytes = 1101;
  s.device_free = 50 + 20 + 16 + 10;
  EXPECT_EQ(fit_layers(s), (Fit{false, 2, 8192}));  // the last ones, though the first would fit as well
  s.device_free += 900;
  EXPECT_EQ(fit_layers(s), (Fit{false, 2, 8192}));
}

TEST(FitLayers, UnknownIsEnoughAndBeyond64BitsIsNot) {
  EXPECT_EQ(fit_layers(sizes(4, 0)), (Fit{true, 4, 8192}));
  FitSizes s = sizes(4, UINT64_MAX);
  EXPECT_EQ(fit_layers(s), (Fit{true, 4, 8192}));
  s.contexts[0].kv_bytes.assign(4, UINT64_MAX / 2);
  EXPECT_EQ(fit_layers(s), (Fit{false, 0, 8192}));
  EXPECT_EQ(fit_layers(FitSizes{}), (Fit{false, 0, 0}));
}

}  // namespace
}  // namespace argent
