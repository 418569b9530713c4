// What the backend says of its device.
#include <gtest/gtest.h>

#include "metal_backend/emu_backend.h"

namespace argent::metal {
namespace {

// As an Apple GPU: what is taken is no longer free.
class SmallDevice : public emu::EmuDevice {
 public:
  explicit SmallDevice(const uint64_t* free) : free_(free) {}
  DeviceInfo info() const override { return {.description = "small", .memory_free = *free_}; }

 private:
  const uint64_t* free_;
};

TEST(MetalCaps, MemoryIsTheDevices) {
  uint64_t free = 1000;
  const auto backend = make_backend({}, "metal", std::make_unique<SmallDevice>(&free));
  ASSERT_TRUE(backend);
  const BackendCaps caps = (*backend)->caps();
  EXPECT_EQ(caps.name, "metal");
  EXPECT_EQ(caps.description, "small");
  EXPECT_EQ(caps.memory_free, 1000u);
  EXPECT_FALSE(caps.resident_weights);
  EXPECT_TRUE(caps.mapped_weights);
  EXPECT_TRUE(caps.mapped_count);  // against that memory: Apple's GPUs keep what they read
  EXPECT_FALSE(caps.deterministic);
  free = 900;
  EXPECT_EQ((*backend)->caps().memory_free, 900u);
}

}  // namespace
}  // namespace argent::metal
