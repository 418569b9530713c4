// MetalDevice on the fake runtime: memory, devices that cannot be used, and every failure of a list that Metal can
// give.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "metal_apple/device.h"

namespace argent::metal {
namespace {

// ---- memory

class Mapped {
 public:
  explicit Mapped(size_t size) : size_(size) {
    data_ = static_cast<uint8_t*>(mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    for (size_t i = 0; i < size; i++) data_[i] = uint8_t(i * 7);
  }
  ~Mapped() { munmap(data_, size_); }
  uint8_t* data() const { return data_; }

 private:
  size_t size_;
  uint8_t* data_;
};

TEST_F(Apple, WrapsInPlaceWhereItCan) {
  const size_t page = size_t(sysconf(_SC_PAGESIZE));
  const Mapped memory(4 * page);
  auto device = open();
  ASSERT_TRUE(device);
  const auto check = [&](size_t offset, size_t size, bool copied) {
    auto buffer = device->wrap(memory.data() + offset, size);
    ASSERT_TRUE(buffer) << buffer.error().message;
    ASSERT_EQ((*buffer)->bytes().size(), size);
    EXPECT_EQ((*buffer)->bytes().data() == reinterpret_cast<const std::byte*>(memory.data() + offset), !copied);
    EXPECT_EQ(std::memcmp((*buffer)->bytes().data(), memory.data() + offset, size), 0);
  };
  check(0, 2 * page, false);
  EXPECT_EQ(device->counts().wrapped_in_place, 1);
  check(64, page, false);  // begins and ends inside pages
  check(page, 100, false);
  EXPECT_EQ(device->counts().wrapped_pages, 2);
  fake::settings().no_copy_fails = true;
  check(64, page, true);
  EXPECT_EQ(device->counts().wrapped_copied, 1);
  EXPECT_FALSE(device->wrap(nullptr, 1));
  EXPECT_FALSE(device->wrap(memory.data(), 0));
}

TEST_F(Apple, KernelsReadWrappedMemoryAtItsOffset) {
  const Mapped memory(1 << 16);
  auto device = open();
  ASSERT_TRUE(device);
  const Norm norm(*device);
  for (const bool copied : {false, true}) {
    fake::settings().no_copy_fails = copied;
    auto* floats = reinterpret_cast<float*>(memory.data() + 5008);
    for (uint32_t i = 0; i < kCols; i++) floats[i] = float(i % 5) - 2;
    auto buffer = device->wrap(memory.data() + 4992, 16 + kCols * sizeof(float));
    ASSERT_TRUE(buffer);
    Dispatch d = norm.dispatch(*norm.x, *norm.y);
    d.buffers[0] = {1, buffer->get(), 16, 0};
    EXPECT_EQ(norm.error({d}), "");
    EXPECT_TRUE(Norm::normal(*norm.y));
    double squares = 0;
    for (uint32_t i = 0; i < kCols; i++) squares += floats[i] * floats[i];
    for (uint32_t i = 0; i < kCols; i++)
      ASSERT_NEAR(Norm::floats(*norm.y)[i], floats[i] / std::sqrt(squares / kCols + 1e-5), 1e-5) << i;
  }
}

TEST_F(Apple, KeepsToTheWorkingSet) {
  fake::settings().working_set = 1 << 20;
  fake::settings().max_buffer = 1 << 19;
  auto device = open();
  ASSERT_TRUE(device);
  const auto too_large = device->alloc((1 << 19) + 1);
  ASSERT_FALSE(too_large);
  EXPECT_EQ(too_large.error().code, Code::out_of_memory);
  EXPECT_EQ(too_large.error().message,
            "a buffer of 524289 bytes was asked for; Fake M1 allows 524288 (maxBufferLength)");
  auto first = device->alloc(1 << 19);
  ASSERT_TRUE(first);
  {
    const auto second = device->alloc(1 << 19);
    ASSERT_TRUE(second);
    const auto third = device->alloc(1);
    ASSERT_FALSE(third);
    EXPECT_EQ(third.error().code, Code::out_of_memory);
    EXPECT_EQ(third.error().message,
              "a buffer of 1 bytes was asked for; 1048576 are in use of the 1048576 that Fake M1 can work with "
              "(recommendedMaxWorkingSetSize)");
    EXPECT_FALSE(device->wrap(&third, 1));
  }
  EXPECT_TRUE(device->alloc(1 << 19));  // the second one's room
}

TEST_F(Apple, AWorkingSetOfZeroIsNoLimit) {
  fake::settings().working_set = 0;
  auto device = open();
  ASSERT_TRUE(device);
  EXPECT_TRUE(device->alloc(4096));
  EXPECT_EQ(device->info().memory_free, 0);  // unknown
}

TEST_F(Apple, TellsOfMemoryThatMetalDoesNotGive) {
  auto device = open();
  ASSERT_TRUE(device);
  fake::settings().alloc_fails = true;
  const auto buffer = device->alloc(4096);
  ASSERT_FALSE(buffer);
  EXPECT_EQ(buffer.error().code, Code::out_of_memory);
  EXPECT_EQ(buffer.error().message, "Fake M1 gave no buffer of 4096 bytes");
  fake::settings().no_copy_fails = true;
  EXPECT_FALSE(device->wrap(&buffer, 1));
  fake::settings().alloc_fails = false;
  EXPECT_TRUE(device->alloc(4096));
  EXPECT_FALSE(device->alloc(0));
}

TEST_F(Apple, BuffersMayOutliveTheirDevice) {
  auto device = open();
  ASSERT_TRUE(device);
  auto buffer = device->alloc(100);
  ASSERT_TRUE(buffer);
  (*buffer)->fill(0, 100)[99] = std::byte(7);
  device.reset();
  EXPECT_EQ((*buffer)->bytes()[99], std::byte(7));
}

TEST_F(Apple, WorksWithoutResidencySets) {
  EXPECT_TRUE(open()->metal_info().residency_set);
  fake::settings().no_residency_sets = true;
  auto device = open();
  ASSERT_TRUE(device);
  EXPECT_FALSE(device->metal_info().residency_set);
  const Norm norm(*device);
  EXPECT_EQ(norm.error({norm.dispatch(*norm.x, *norm.y)}), "");
}

// ---- devices that cannot be used

TEST_F(Apple, SaysWhatADeviceLacks) {
  fake::settings().no_device = true;
  EXPECT_EQ(error_of_open(), "there is no Metal device");
  fake::reset();
  fake::settings().old_family = true;
  EXPECT_EQ(error_of_open(), "Fake M1 is no GPU of family Apple7 or later (M1 or later), which the kernels want");
  EXPECT_EQ(error_of_open(with([&](MetalOptions& o) { o.any_family = true; })), "");
  fake::reset();
  fake::settings().discrete = true;
  EXPECT_EQ(error_of_open(), "Fake M1 does not share its memory with the processor");
  fake::reset();
  fake::settings().simd_width = 64;
  const std::string error = error_of_open();
  EXPECT_NE(error.find("SIMD-groups of this GPU have 64 threads, the kernels want 32"), std::string::npos) << error;
}

TEST_F(Apple, TellsWhatItIs) {
  auto device = open();
  ASSERT_TRUE(device);
  EXPECT_EQ(device->metal_info().device, "Fake M1");
  EXPECT_EQ(device->metal_info().system, "Version 0 (fake)");
  EXPECT_EQ(device->metal_info().max_threadgroup_bytes, 32768);
  const auto buffer = device->alloc(1000);
  ASSERT_TRUE(buffer);
  EXPECT_EQ(device->info().description, "Fake M1");
  EXPECT_EQ(device->info().memory_free, fake::settings().working_set - 1000);
  EXPECT_EQ(device->info().max_buffer_bytes, fake::settings().max_buffer);
}

// ---- errors of lists

TEST_F(Apple, GoesOnAfterAnError) {
  auto device = open();
  ASSERT_TRUE(device);
  const Norm norm(*device);
  for (const auto& [code, text, kind] : {std::tuple(8, "the GPU has not enough memory", Code::out_of_memory),
                                         {3, "a kernel touched memory that is not there", Code::internal},
                                         {2, "a kernel ran for too long and was ended", Code::internal},
                                         {4, "the system no longer lets this program use the GPU", Code::internal},
                                         {99, "an unknown error", Code::internal}}) {
    fake::settings().command_error = code;
    const CommandList list{{norm.dispatch(*norm.x, *norm.y)}};
    EXPECT_TRUE(device->submit(list));
    EXPECT_TRUE(device->submit(list));  // the one after the error
    const Status waited = device->wait();
    ASSERT_FALSE(waited);
    EXPECT_EQ(waited.error().code, kind);
    EXPECT_EQ(waited.error().message, fmt::format("the GPU gave up a list of 1 dispatches from test_norm on: {} ({}: "
                                                  "The fake was told to fail.)",
                                                  text, code));
    EXPECT_TRUE(device->wait()) << "an error is told once";
    Norm::floats(*norm.y)[0] = kUntouched;
    EXPECT_EQ(norm.error({norm.dispatch(*norm.x, *norm.y)}), "");
    EXPECT_TRUE(Norm::normal(*norm.y));
  }
}

TEST_F(Apple, AnErrorBeforeTheWaitIsKept) {
  auto device = open();
  ASSERT_TRUE(device);
  const Norm norm(*device);
  fake::settings().command_error = 3;
  for (int i = 0; i < 40; i++) EXPECT_TRUE(device->submit({{norm.dispatch(*norm.x, *norm.y)}}));
  const Status waited = device->wait();
  ASSERT_FALSE(waited);
  EXPECT_NE(waited.error().message.find("a kernel touched memory"), std::string::npos);
  EXPECT_TRUE(device->wait());
}

TEST_F(Apple, WaitEndsAtItsDeadline) {
  auto device = open(with([&](MetalOptions& o) { o.deadline = milliseconds(200); }));
  ASSERT_TRUE(device);
  const Norm norm(*device);
  fake::settings().hang = true;
  const CommandList list{{norm.dispatch(*norm.x, *norm.y)}};
  for (int i = 0; i < 3; i++) EXPECT_TRUE(device->submit(list));
  const auto start = std::chrono::steady_clock::now();
  const Status waited = device->wait();
  const auto took = std::chrono::steady_clock::now() - start;
  ASSERT_FALSE(waited);
  EXPECT_EQ(waited.error().message, "the GPU did not finish a list of 1 dispatches from test_norm on within 0.2 s");
  EXPECT_GE(took, milliseconds(199));
  EXPECT_LT(took, milliseconds(500)) << "one deadline, not one a list";
  fake::settings().hang = false;
  EXPECT_EQ(norm.error({norm.dispatch(*norm.x, *norm.y)}), "");
  EXPECT_TRUE(Norm::normal(*norm.y));
}

TEST_F(Apple, SubmitEndsAtTheDeadlineWhenTooMuchWaits) {
  auto device = open(with([&](MetalOptions& o) { o.deadline = milliseconds(20); }));
  ASSERT_TRUE(device);
  const Norm norm(*device);
  fake::settings().hang = true;
  const CommandList list{{norm.dispatch(*norm.x, *norm.y)}};
  int started = 0;
  Status submitted;
  while (submitted && started < 100) {
    submitted = device->submit(list);
    started += bool(submitted);
  }
  EXPECT_EQ(started, 32);
  ASSERT_FALSE(submitted);
  EXPECT_NE(submitted.error().message.find("did not finish"), std::string::npos);
  EXPECT_TRUE(device->wait());
}

TEST_F(Apple, WaitsForWhatIsLate) {
  fake::settings().late = 200;
  auto device = open();
  ASSERT_TRUE(device);
  const Norm norm(*device);
  EXPECT_EQ(norm.error({norm.dispatch(*norm.x, *norm.y)}), "");
}

TEST_F(Apple, ClosingWaitsForLists) {
  fake::settings().late = 10;
  auto device = open();
  ASSERT_TRUE(device);
  const Norm norm(*device);
  EXPECT_TRUE(device->submit({{norm.dispatch(*norm.x, *norm.y)}}));
  device.reset();
  EXPECT_TRUE(Norm::normal(*norm.y));
}

}  // namespace
}  // namespace argent::metal
