// How work becomes time (bench/metal/work_model.cc), and models by their shape alone.
#include "metal/work_model.h"

#include <gtest/gtest.h>

#include "metal/record.h"
#include "metal/shapes.h"
#include "models/model.h"

namespace argent::metal {
namespace {

const GpuDescription& gpu() { return gpus().front(); }

DispatchWork streaming(double bytes, uint64_t threadgroups = 10000) {
  DispatchWork w;
  w.family = "streaming";
  w.weights = w.loaded = bytes;
  w.threadgroups = threadgroups;
  w.threads = 64;
  return w;
}
DispatchWork waiting(double trips) {
  DispatchWork w;
  w.family = "waiting";
  w.threadgroups = 1;
  w.threads = 128;
  w.trips = trips;
  return w;
}
Prediction of(std::vector<std::pair<DispatchWork, bool>> works) {
  RecordedList list;
  for (auto& [work, barrier] : works) list.push_back({work.family, work, barrier});
  return predict(list, gpu());
}

TEST(MetalWorkModel, MemoryAtItsBandwidth) {
  const DispatchTime t = dispatch_time(streaming(1e9), gpu());
  EXPECT_EQ(t.limit, Limit::memory);
  EXPECT_NEAR(t.seconds, 1e9 / (gpu().bandwidth * gpu().read_share), 1e-6);
}

TEST(MetalWorkModel, OneCoreHasItsLinkOnly) {
  const DispatchTime t = dispatch_time(streaming(1e8, 1), gpu());
  EXPECT_NEAR(t.seconds, 1e8 / (gpu().core_link * gpu().clock()), 1e-6);
  EXPECT_GT(t.seconds, 3 * dispatch_time(streaming(1e8), gpu()).seconds);
}

TEST(MetalWorkModel, PassesOverWhatDoesNotStayInTheCache) {
  DispatchWork w = streaming(gpu().cache_bytes / 4);
  w.passes = 16;
  EXPECT_EQ(dispatch_time(w, gpu()).bytes, w.weights);
  w.weights *= 4;
  EXPECT_EQ(dispatch_time(w, gpu()).bytes, 16 * w.weights);
}

TEST(MetalWorkModel, OneLevelOverlapsAndBarriersCost) {
  const double launch = gpu().launch, barrier = gpu().barrier;
  const Prediction apart = of({{waiting(10), false}, {waiting(10), true}});
  const Prediction together = of({{waiting(10), false}, {waiting(10), false}});
  EXPECT_EQ(apart.levels, 2u);
  EXPECT_EQ(together.levels, 1u);
  EXPECT_NEAR(apart.seconds - together.seconds, 10 * gpu().latency + barrier, 1e-9);
  // Two that want the memory share it.
  const Prediction both = of({{streaming(1e9), false}, {streaming(1e9), false}});
  EXPECT_NEAR(both.seconds, of({{streaming(2e9), false}}).seconds + launch, 1e-6);
}

TEST(MetalWorkModel, MoreIsNeverSlower) {
  GpuDescription better = gpu();
  better.bandwidth *= 2, better.cores *= 2, better.f32_flops *= 2;
  for (const uint64_t groups : {1u, 7u, 20u, 41u, 1000u}) {
    DispatchWork w = streaming(1e8, groups);
    w.operations = 1e9, w.shared = 1e8, w.matrix = 1e6;
    EXPECT_LE(dispatch_time(w, better).seconds, dispatch_time(w, gpu()).seconds) << groups;
  }
}

TEST(MetalShapes, EveryOneIsAModelWithAList) {
  for (const std::string_view name : shape_names()) {
    const auto shaped = make_shape(name);
    ASSERT_TRUE(shaped) << shaped.error().message;
    const auto model = build_model(*shaped->file);
    ASSERT_TRUE(model) << name << ": " << model.error().message;
    Recording recording;
    const Status recorded = record_step(model->graph, {.depth = 4096}, recording);
    ASSERT_TRUE(recorded) << name << ": " << recorded.error().message;
    for (const GpuDescription& g : gpus()) {
      const Prediction p = predict(recording.lists.back(), g);
      // Nothing is read faster than the memory gives it.
      EXPECT_GT(p.seconds, p.bytes / (g.bandwidth * g.read_share)) << name;
      EXPECT_GT(p.levels, 6 * model->n_layer) << name;
    }
  }
  const auto unknown = make_shape("nonsense");
  ASSERT_FALSE(unknown);
  EXPECT_NE(unknown.error().message.find("there is no shape 'nonsense', there are smollm2"), std::string::npos);
}

}  // namespace
}  // namespace argent::metal
