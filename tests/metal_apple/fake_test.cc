// The fake itself: each thing that Metal forbids is a complaint. Calls go through api.h, as the host layer's do.
#include <gtest/gtest.h>

#include <algorithm>

#include "backends/metal/apple/api.h"
#include "metal_apple/fake.h"
#include "metal_apple/test_kernels.h"

namespace argent::metal::apple {
namespace {

using Strings = std::vector<std::string>;

class Fake : public testing::Test {
 protected:
  void SetUp() override {
    fake::reset();
    device = Ref<MTLDevice>::owned(MTLCreateSystemDefaultDevice());
    queue = Ref<MTLCommandQueue>::owned(device->newCommandQueue());
  }
  void TearDown() override {
    pipeline.reset();
    queue.reset();
    device.reset();
    EXPECT_EQ(fake::live_objects(), left);
    fake::reset();
  }
  static bool complained(const std::string& about) {
    const auto all = fake::complaints();
    const bool found =
        std::any_of(all.begin(), all.end(), [&](const auto& c) { return c.find(about) != std::string::npos; });
    if (!found) {
      ADD_FAILURE() << "no complaint about: " << about;
      for (const auto& c : all) ADD_FAILURE() << c;
    }
    return found;
  }
  // A pipeline of test_norm with its constant.
  void make_pipeline(MTLDataType type = MTLDataTypeBool, NSUInteger index = 60, const char* name = "test_norm") {
    const auto options = make<MTLCompileOptions>();
    options->setLanguageVersion(MTLLanguageVersion3_1);
    NSError* error = nullptr;
    const auto library = Ref<MTLLibrary>::owned(device->newLibraryWithSource(
        NSString::stringWithCString("kernel void test_norm(", NSUTF8StringEncoding), options.get(), &error));
    const auto values = make<MTLFunctionConstantValues>();
    const uint32_t value = 0;
    values->setConstantValue(&value, type, index);
    const auto function = Ref<MTLFunction>::owned(
        library->newFunction(NSString::stringWithCString(name, NSUTF8StringEncoding), values.get(), &error));
    const auto descriptor = make<MTLComputePipelineDescriptor>();
    if (!function) {
      error_text = error->localizedDescription()->UTF8String();
      return;
    }
    descriptor->setComputeFunction(function.get());
    descriptor->setThreadGroupSizeIsMultipleOfThreadExecutionWidth(true);
    pipeline = Ref<MTLComputePipelineState>::owned(
        device->newComputePipelineState(descriptor.get(), MTLPipelineOptionNone, nullptr, &error));
  }
  Ref<MTLBuffer> buffer(NSUInteger size = 256) {
    return Ref<MTLBuffer>::owned(device->newBufferWithLength(size, MTLResourceStorageModeShared));
  }

  Ref<MTLDevice> device;
  Ref<MTLCommandQueue> queue;
  Ref<MTLComputePipelineState> pipeline;
  std::string error_text;
  Strings left;  // what a test leaves alive on purpose
};

struct Unknown : NSObject {
  ARGENT_CLASS(MTLUnheardOf)
  ARGENT_METHOD(void, unheard, "unheardOf:")
};

TEST_F(Fake, KnowsNoOtherNames) {
  static_cast<Unknown*>(static_cast<NSObject*>(device.get()))->unheard();
  EXPECT_TRUE(complained("MTLDevice does not know unheardOf:"));
  EXPECT_EQ(Unknown::class_object(), nullptr);
  EXPECT_TRUE(complained("there is no class MTLUnheardOf"));
}

TEST_F(Fake, SeesOverReleaseAndLateUse) {
  MTLBuffer* b = device->newBufferWithLength(16, MTLResourceStorageModeShared);
  b->release();
  EXPECT_EQ(b->contents(), nullptr);
  EXPECT_TRUE(complained("contents sent to a MTLBuffer that was released"));
  b->release();
  EXPECT_TRUE(complained("release sent to a MTLBuffer that was released"));
  {
    const Pool pool;
    NSString::stringWithCString("x", NSUTF8StringEncoding)->release();
  }
  EXPECT_TRUE(complained("NSString released too often"));
}

TEST_F(Fake, SeesLeaksAndMissingPools) {
  device->newBufferWithLength(16, MTLResourceStorageModeShared);
  NSString::stringWithCString("x", NSUTF8StringEncoding);
  EXPECT_TRUE(complained("NSString autoreleased without a pool"));
  objc_autoreleasePoolPush();
  void* inner = objc_autoreleasePoolPush();
  objc_autoreleasePoolPop(static_cast<char*>(inner) - 1);
  EXPECT_TRUE(complained("pools are not closed in turn"));
  objc_autoreleasePoolPop(inner);
  auto live = fake::live_objects();
  std::sort(live.begin(), live.end());
  EXPECT_EQ(live, (Strings{"MTLBuffer", "MTLCommandQueue", "MTLDevice", "NSString", "an autorelease pool"}));
  fake::reset();
  SetUp();
}

TEST_F(Fake, HoldsEncodersToTheirOrder) {
  {
    const Pool pool;
    MTLCommandBuffer* c = queue->commandBuffer();
    MTLComputeCommandEncoder* e = c->computeCommandEncoder(MTLDispatchTypeConcurrent);
    c->commit();
    EXPECT_TRUE(complained("commit before endEncoding"));
    c->computeCommandEncoder(MTLDispatchTypeConcurrent)->endEncoding();
    EXPECT_TRUE(complained("an encoder while another is open"));
    e->endEncoding();
    e->endEncoding();
    EXPECT_TRUE(complained("endEncoding after endEncoding"));
    e->memoryBarrierWithScope(MTLBarrierScopeBuffers);
    EXPECT_TRUE(complained("memoryBarrierWithScope: after endEncoding"));
    e->dispatchThreadgroups(MTLSize{1, 1, 1}, MTLSize{32, 1, 1});
    EXPECT_TRUE(complained("dispatchThreadgroups:threadsPerThreadgroup: after endEncoding"));
    c->GPUEndTime();
    EXPECT_TRUE(complained("a GPU time of a command buffer that is not done"));
    c->commit();
    c->commit();
    EXPECT_TRUE(complained("commit of a command buffer that was committed"));
    const auto event = Ref<MTLSharedEvent>::owned(device->newSharedEvent());
    c->encodeSignalEvent(event.get(), 1);
    EXPECT_TRUE(complained("encodeSignalEvent:value: after commit"));
    queue->commandBuffer()->computeCommandEncoder(MTLDispatchTypeConcurrent);
  }
  EXPECT_TRUE(complained("an encoder is released before endEncoding"));
}

TEST_F(Fake, HoldsDebugGroupsToTheirOrder) {
  const Pool pool;
  MTLComputeCommandEncoder* e = queue->commandBuffer()->computeCommandEncoder(MTLDispatchTypeConcurrent);
  NSString* name = NSString::stringWithCString("x", NSUTF8StringEncoding);
  e->popDebugGroup();
  EXPECT_TRUE(complained("popDebugGroup without pushDebugGroup:"));
  e->pushDebugGroup(nullptr);
  EXPECT_TRUE(complained("pushDebugGroup: of nil"));
  e->pushDebugGroup(name);
  e->pushDebugGroup(name);
  e->popDebugGroup();
  e->endEncoding();
  EXPECT_TRUE(complained("endEncoding with 1 debug groups open"));
  e->pushDebugGroup(name);
  EXPECT_TRUE(complained("pushDebugGroup: after endEncoding"));
  e->popDebugGroup();
  EXPECT_TRUE(complained("popDebugGroup after endEncoding"));
}

TEST_F(Fake, HoldsArgumentsToTheirLimits) {
  const Pool pool;
  make_pipeline();
  const auto b = buffer();
  MTLCommandBuffer* c = queue->commandBuffer();
  MTLComputeCommandEncoder* e = c->computeCommandEncoder(MTLDispatchTypeConcurrent);
  e->dispatchThreadgroups(MTLSize{1, 1, 1}, MTLSize{32, 1, 1});
  EXPECT_TRUE(complained("a dispatch without a pipeline"));
  e->setComputePipelineState(pipeline.get());
  const std::vector<std::byte> bytes(4097);
  e->setBytes(bytes.data(), 4097, 0);
  EXPECT_TRUE(complained("setBytes:length:atIndex: of 4097 bytes"));
  e->setBytes(bytes.data(), 4, 31);
  EXPECT_TRUE(complained("setBytes:length:atIndex: at index 31, at most 30"));
  e->setBuffer(b.get(), 0, 31);
  EXPECT_TRUE(complained("setBuffer:offset:atIndex: at index 31, at most 30"));
  e->setBuffer(b.get(), 256, 1);
  EXPECT_TRUE(complained("a buffer's offset 256 of 256 bytes"));
  e->setBuffer(b.get(), 2, 1);
  EXPECT_TRUE(complained("a buffer's offset 2 is no multiple of 4"));
  e->setThreadgroupMemoryLength(20, 0);
  EXPECT_TRUE(complained("a threadgroup length of 20, no multiple of 16"));
  e->setThreadgroupMemoryLength(16, 31);
  EXPECT_TRUE(complained("setThreadgroupMemoryLength:atIndex: at index 31"));
  e->memoryBarrierWithScope(MTLBarrierScope(2));
  EXPECT_TRUE(complained("a barrier that does not name buffers"));
  e->dispatchThreadgroups(MTLSize{1, 1, 1}, MTLSize{2048, 1, 1});
  EXPECT_TRUE(complained("2048 threads, the pipeline has 1024"));
  e->dispatchThreadgroups(MTLSize{1, 1, 1}, MTLSize{48, 1, 1});
  EXPECT_TRUE(complained("48 threads are no multiple of the width"));
  e->dispatchThreadgroups(MTLSize{1, 0, 1}, MTLSize{32, 1, 1});
  EXPECT_TRUE(complained("a dispatch of no threads"));
  e->dispatchThreadgroups(MTLSize{1, 1, 1}, MTLSize{32, 1, 1});
  EXPECT_TRUE(complained("test_norm: buffer(0) args is not set"));
  const TestNormArgs args{8, 0};
  e->setBytes(&args, sizeof args, 0);
  for (NSUInteger i = 1; i < 4; i++) e->setBuffer(b.get(), 0, i);
  e->dispatchThreadgroups(MTLSize{1, 1, 1}, MTLSize{32, 1, 1});
  EXPECT_TRUE(complained("test_norm: threadgroup(0) has no length"));
  e->setThreadgroupMemoryLength(65536, 0);
  e->dispatchThreadgroups(MTLSize{1, 1, 1}, MTLSize{32, 1, 1});
  EXPECT_TRUE(complained("65536 bytes of threadgroup memory"));
  e->setThreadgroupMemoryLength(16, 0);
  e->setBytes(&args, 4, 0);
  e->dispatchThreadgroups(MTLSize{1, 1, 1}, MTLSize{32, 1, 1});
  e->endEncoding();
  c->commit();
  EXPECT_TRUE(complained("a dispatch does not fit its kernel: test_norm: buffer(0) args has 4 bytes"));
}

TEST_F(Fake, HoldsMemoryToItsRules) {
  alignas(64) static char memory[64];
  Ref<MTLBuffer>::owned(device->newBufferWithBytesNoCopy(memory + 4, 60, MTLResourceStorageModeShared, nullptr));
  EXPECT_TRUE(complained("newBufferWithBytesNoCopy: of 60 bytes that are not whole pages"));
  device->newBufferWithLength(16, MTLResourceOptions(16));
  EXPECT_TRUE(complained("resource options 0x10"));
  device->newBufferWithLength(0, MTLResourceStorageModeShared);
  EXPECT_TRUE(complained("a buffer of no bytes"));
  const auto descriptor = make<MTLResidencySetDescriptor>();
  const auto set = Ref<MTLResidencySet>::owned(device->newResidencySet(descriptor.get(), nullptr));
  const auto b = buffer();
  set->addAllocation(b.get());
  set->addAllocation(b.get());
  EXPECT_TRUE(complained("a buffer is added to a residency set twice"));
  set->requestResidency();
  EXPECT_TRUE(complained("requestResidency before commit of what changed"));
  set->removeAllocation(b.get());
  set->removeAllocation(b.get());
  EXPECT_TRUE(complained("a buffer is taken from a residency set that has it not"));
}

TEST_F(Fake, HoldsFunctionsToTheirConstants) {
  const Pool pool;
  make_pipeline(MTLDataTypeFloat);
  EXPECT_EQ(error_text, "test_norm: function constant 60 (kTestHasWeight) has another type than the value given");
  make_pipeline(MTLDataTypeBool, 5);
  EXPECT_EQ(error_text, "test_norm: there is no function constant 5");
  make_pipeline(MTLDataTypeBool, 60, "test");
  EXPECT_EQ(error_text, "Function test was not found in the library");
  make_pipeline(MTLDataType(4));
  EXPECT_TRUE(complained("a function constant of type 4"));
}

TEST_F(Fake, TakesAtMost64CommandBuffers) {
  const Pool pool;
  fake::settings().hang = true;
  for (int i = 0; i < 65; i++) queue->commandBuffer()->commit();
  EXPECT_TRUE(complained("a 65th command buffer waits for one to be done"));
}

// A line of api.h that nothing calls would be a line that nothing tests.
class EveryMethod : public testing::Environment {
  void TearDown() override {
    if (testing::GTEST_FLAG(filter) == "*" && testing::UnitTest::GetInstance()->Passed()) {
      EXPECT_EQ(fake::unused_methods(), Strings());
    }
  }
};
[[maybe_unused]] const auto* const every_method = testing::AddGlobalTestEnvironment(new EveryMethod);

}  // namespace
}  // namespace argent::metal::apple
