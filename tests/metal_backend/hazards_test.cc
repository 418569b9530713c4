#include "backends/metal/hazards.h"

#include <gtest/gtest.h>

namespace argent::metal {
namespace {

struct FakeBuffer : Buffer {
  std::span<const std::byte> bytes() const override { return {data, sizeof data}; }
  std::span<std::byte> fill(size_t, size_t) override { return {}; }
  std::byte data[100] = {};
};

// y = f(x, x2): arguments 0 and 1 are read, 2 is written, 3 is a value.
struct FakePipeline : Pipeline {
  const std::string& name() const override { return text; }
  std::span<const Argument> arguments() const override { return all; }
  std::string text = "f";
  std::vector<Argument> all = {{Argument::buffer, 0, false, "x"},
                               {Argument::buffer, 1, false, "x2"},
                               {Argument::buffer, 2, true, "y"},
                               {Argument::threadgroup, 2, true, "shared"},
                               {Argument::value, 3, false, "args"}};
};

class Hazards : public testing::Test {
 protected:
  void add(std::initializer_list<Dispatch::Bound> bound) {
    Dispatch d;
    d.pipeline = &pipeline_;
    d.buffers = bound;
    list_.dispatches.push_back(d);
  }
  // Where barriers stand, as digits.
  std::string barriers() {
    const uint32_t n = set_barriers(list_);
    std::string text;
    for (const Dispatch& d : list_.dispatches) text += d.barrier ? '1' : '0';
    EXPECT_EQ(n, std::count(text.begin(), text.end(), '1') + !text.empty());
    return text;
  }
  FakePipeline pipeline_;
  FakeBuffer a_, b_;
  CommandList list_;
};

TEST_F(Hazards, NothingSharedNoBarrier) {
  EXPECT_EQ(barriers(), "");
  add({{0, &a_, 0, 10}, {2, &b_, 0, 10}});
  add({{0, &a_, 0, 10}, {2, &b_, 10, 10}});  // the same input, and the neighbour of the output
  add({{0, &a_, 5, 10}, {1, &a_, 0, 1}, {2, &a_, 50, 10}});
  EXPECT_EQ(barriers(), "000");
}

TEST_F(Hazards, ReadAfterWrite) {
  add({{0, &a_, 0, 10}, {2, &b_, 0, 10}});
  add({{0, &b_, 9, 1}, {2, &a_, 50, 10}});
  add({{0, &b_, 20, 10}, {2, &a_, 70, 10}});  // behind the barrier, beside the second
  add({{1, &a_, 50, 1}, {2, &b_, 90, 1}});
  EXPECT_EQ(barriers(), "0101");
}

TEST_F(Hazards, WriteAfterReadAndWrite) {
  add({{0, &a_, 0, 10}, {2, &b_, 0, 10}});
  add({{0, &b_, 50, 10}, {2, &a_, 9, 10}});   // writes what the first reads
  add({{0, &b_, 50, 10}, {2, &a_, 18, 10}});  // writes what the second writes
  EXPECT_EQ(barriers(), "011");
}

TEST_F(Hazards, WithoutASizeToTheEnd) {
  add({{0, &a_, 0, 10}, {2, &b_, 20, 0}});
  add({{0, &b_, 0, 20}, {2, &a_, 50, 1}});
  add({{0, &b_, 99, 1}, {2, &a_, 60, 1}});
  EXPECT_EQ(barriers(), "001");
}

// Parts of one range: only what says so of the same range is apart.
TEST_F(Hazards, PartsOfARange) {
  add({{0, &a_, 0, 10}, {2, &b_, 0, 10, 1}});
  add({{0, &a_, 0, 10}, {2, &b_, 0, 10, 1}});
  add({{0, &b_, 0, 10, 1}, {2, &b_, 20, 10, 1}});  // reads parts of its own
  add({{0, &a_, 0, 10}, {2, &b_, 5, 10, 2}});      // other parts
  add({{0, &a_, 0, 10}, {2, &b_, 5, 10}});
  add({{0, &b_, 5, 10}, {2, &a_, 90, 10}});  // waits for all of them
  EXPECT_EQ(barriers(), "000111");
}

// In place: a dispatch does not wait for itself. Barriers are set anew each time.
TEST_F(Hazards, InPlaceAndTwice) {
  add({{0, &a_, 0, 10}, {2, &a_, 0, 10}});
  add({{0, &a_, 0, 10}, {2, &a_, 0, 10}});
  EXPECT_EQ(barriers(), "01");
  list_.dispatches.erase(list_.dispatches.begin());
  EXPECT_EQ(barriers(), "0");
}

}  // namespace
}  // namespace argent::metal
