// Each faulty kernel of bad.metal gives a finding of the right kind, and no other. Divergence is found in every build,
// the rest in the build with checks.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "backends/metal/emu/device.h"

namespace argent::emu {
namespace {

using metal::Buffer;
using metal::Dispatch;

class Bad : public testing::TestWithParam<Order> {
 protected:
  Bad() : device_({.order = GetParam()}) {
    x_ = make(64, true);
    y_ = make(256, true);
  }
  // A buffer of n floats, 1.0 each or uninitialised.
  std::unique_ptr<Buffer> make(size_t n, bool filled) {
    auto made = device_.alloc(n * sizeof(float));
    EXPECT_TRUE(made);
    if (filled) {
      const std::vector<float> ones(n, 1.0f);
      std::memcpy((*made)->fill(0, n * sizeof(float)).data(), ones.data(), n * sizeof(float));
    }
    return std::move(*made);
  }
  Dispatch dispatch(const std::string& kernel, uint32_t groups = 1, uint32_t threads = 64, bool shared = false) {
    Dispatch d;
    auto pipeline = device_.pipeline(kernel, {});
    EXPECT_TRUE(pipeline) << pipeline.error().message;
    d.pipeline = *pipeline;
    d.grid = {groups};
    d.threads = {threads};
    if (shared) d.threadgroup_bytes = {256};
    return d;
  }
  void expect(std::vector<Dispatch> list, std::vector<Fault> faults) {
    if (!Machine::instrumented) std::erase_if(faults, [](Fault f) { return f != Fault::divergence; });
    device_.forget();
    const auto submitted = device_.submit({std::move(list)});
    ASSERT_TRUE(submitted) << submitted.error().message;
    const auto waited = device_.wait();
    EXPECT_EQ(bool(waited), faults.empty());
    std::vector<Fault> found;
    for (const Finding& f : device_.findings()) {
      found.push_back(f.fault);
      EXPECT_EQ(f.where.starts_with("bad.metal:"), true) << f.line();
      RecordProperty("finding", f.line());
    }
    std::sort(found.begin(), found.end());
    found.erase(std::unique(found.begin(), found.end()), found.end());
    // What is read too early may be uninitialised as well, in the orders in which it is.
    const bool race =
        std::any_of(faults.begin(), faults.end(), [](Fault f) { return f == Fault::race || f == Fault::wrong_scope; });
    if (race) std::erase(found, Fault::uninitialised);
    EXPECT_EQ(found, faults) << (device_.findings().empty() ? "no finding" : device_.findings()[0].line());
  }

  EmuDevice device_;
  std::unique_ptr<Buffer> x_, y_;
};

std::string name_of_order(const testing::TestParamInfo<Order>& info) {
  return info.param == Order::ascending ? "ascending" : info.param == Order::descending ? "descending" : "shuffled";
}
INSTANTIATE_TEST_SUITE_P(Orders, Bad, testing::Values(Order::ascending, Order::descending, Order::shuffled),
                         name_of_order);

TEST_P(Bad, PartialReduction) {
  expect({dispatch("bad_partial_reduction").value(0, 50u).bind(1, *x_).bind(2, *y_)}, {Fault::divergence});
}
TEST_P(Bad, PartialTile) {
  expect({dispatch("bad_partial_tile", 1, 32, true).value(0, 5u).bind(1, *y_)}, {Fault::race});
}
TEST_P(Bad, MatrixLoad) { expect({dispatch("bad_matrix_load", 1, 32, true).bind(0, *y_)}, {Fault::race}); }
TEST_P(Bad, MatrixAgain) { expect({dispatch("bad_matrix_again", 1, 32, true).bind(0, *y_)}, {Fault::race}); }
TEST_P(Bad, MatrixDivergence) { expect({dispatch("bad_matrix_divergence", 1, 32).bind(0, *y_)}, {Fault::divergence}); }
TEST_P(Bad, Overflow) {
  const auto small = make(8, true);
  expect({dispatch("bad_overflow", 1, 32).bind(0, *small)}, {Fault::out_of_bounds});
}
TEST_P(Bad, OverflowOfARange) {
  expect({dispatch("bad_overflow", 1, 32).bind(0, *y_, (256 - 31) * sizeof(float))}, {Fault::out_of_bounds});
}
TEST_P(Bad, ThreadgroupOverflow) {
  expect({dispatch("bad_threadgroup_overflow", 1, 64, true).bind(0, *y_)}, {Fault::out_of_bounds});
}
TEST_P(Bad, EarlyReturn) {
  expect({dispatch("bad_early_return", 1, 64, true).value(0, 48u).bind(1, *y_)}, {Fault::divergence});
}
TEST_P(Bad, EarlyReturnOfASimdgroup) {
  expect({dispatch("bad_early_return", 1, 64, true).value(0, 32u).bind(1, *y_)}, {Fault::divergence});
}
TEST_P(Bad, TwoBarriers) { expect({dispatch("bad_two_barriers").bind(0, *y_)}, {Fault::divergence}); }
TEST_P(Bad, MissingBarrier) { expect({dispatch("bad_missing_barrier", 1, 64, true).bind(0, *y_)}, {Fault::race}); }
TEST_P(Bad, SimdgroupBarrier) { expect({dispatch("bad_simdgroup_barrier", 1, 64, true).bind(0, *y_)}, {Fault::race}); }
TEST_P(Bad, ReaderRace) { expect({dispatch("bad_reader_race", 1, 64, true).bind(0, *y_)}, {Fault::race}); }
TEST_P(Bad, SumForBarrier) { expect({dispatch("bad_sum_for_barrier", 1, 32).bind(0, *y_)}, {Fault::race}); }
TEST_P(Bad, ReaderOfOtherGroup) {
  expect({dispatch("bad_reader_of_other_group", 3).bind(0, *y_)}, {Fault::race_of_threadgroups});
}
TEST_P(Bad, FlagsThreadgroup) { expect({dispatch("bad_flags_threadgroup").bind(0, *y_)}, {Fault::wrong_scope}); }
TEST_P(Bad, FlagsDevice) { expect({dispatch("bad_flags_device", 1, 64, true).bind(0, *y_)}, {Fault::wrong_scope}); }
TEST_P(Bad, Uninitialised) {
  expect({dispatch("bad_uninitialised", 1, 64, true).bind(0, *y_)}, {Fault::uninitialised});
}
TEST_P(Bad, UninitialisedGroup) {
  expect({dispatch("bad_uninitialised_group", 2, 64, true).bind(0, *y_)}, {Fault::uninitialised});
}
TEST_P(Bad, UninitialisedDevice) {
  const auto fresh = make(64, false);
  expect({dispatch("bad_uninitialised_device").bind(0, *fresh)}, {Fault::uninitialised});
  fresh->fill(0, 64 * sizeof(float));
  expect({dispatch("bad_uninitialised_device").bind(0, *fresh)}, {});
}
TEST_P(Bad, WriteConst) { expect({dispatch("bad_write_const").bind(0, *x_)}, {Fault::write_to_const}); }
TEST_P(Bad, WriteConstant) {
  expect({dispatch("bad_write_constant").bind(0, *x_)}, {Fault::write_to_const});
  const std::array<float, 64> by_value = {};
  expect({dispatch("bad_write_constant").value(0, by_value)}, {Fault::write_to_const});
}
TEST_P(Bad, WriteWrapped) {
  const std::vector<float> weights(64, 1.0f);
  const auto wrapped = device_.wrap(weights.data(), 64 * sizeof(float));
  ASSERT_TRUE(wrapped);
  if (Machine::instrumented) expect({dispatch("bad_write_const").bind(0, **wrapped)}, {Fault::write_to_const});
  const auto refused = device_.submit({{dispatch("bad_overflow").bind(0, **wrapped)}});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message, "bad_overflow: buffer(0) y is written, but may only be read");
}
TEST_P(Bad, GroupsOverlap) { expect({dispatch("bad_groups_overlap", 2).bind(0, *y_)}, {Fault::race_of_threadgroups}); }
TEST_P(Bad, HalfAtomic) { expect({dispatch("bad_half_atomic").bind(0, *y_).bind(1, *y_)}, {Fault::race}); }
TEST_P(Bad, PlainReader) {
  expect({dispatch("bad_plain_reader", 1, 32).bind(0, *y_).bind(1, *y_).bind(2, *x_)}, {Fault::race});
}
TEST_P(Bad, Misaligned) { expect({dispatch("bad_misaligned", 1, 32).bind(0, *y_).bind(1, *x_)}, {Fault::misaligned}); }
TEST_P(Bad, Index) {
  expect({dispatch("bad_index").value(0, 5u).bind(1, *y_)}, {Fault::bad_index});
  expect({dispatch("bad_index").value(0, 4u).bind(1, *y_)}, {});
}
TEST_P(Bad, Shift) { expect({dispatch("bad_shift", 1, 32).value(0, 1u).bind(1, *y_)}, {Fault::bad_index}); }

// A dispatch reads what another of its list writes, or writes what it reads: without a barrier a finding, with one
// none.
TEST_P(Bad, ChainOfDispatches) {
  const auto z = make(64, false);
  auto first = [&] { return dispatch("bad_chain_first").bind(0, *x_).bind(1, *y_); };
  auto second = [&] { return dispatch("bad_chain_second").bind(0, *y_).bind(1, *z); };
  auto after = [](Dispatch d) {
    d.barrier = true;
    return d;
  };
  expect({first(), second()}, {Fault::race_of_dispatches});
  expect({second(), first()}, {Fault::race_of_dispatches});
  expect({first(), first()}, {Fault::race_of_dispatches});
  expect({first(), after(second())}, {});
  expect({second(), after(first())}, {});
  expect({first()}, {});
  expect({second()}, {});  // another list
  // Ranges of one buffer that do not meet need none.
  expect({dispatch("bad_chain_first", 1, 32).bind(0, *x_).bind(1, *y_),
          dispatch("bad_chain_first", 1, 32).bind(0, *x_).bind(1, *y_, 32 * sizeof(float))},
         {});
  // A barrier between others does not help: the third is concurrent with the second.
  expect({dispatch("bad_chain_first").bind(0, *x_).bind(1, *z), after(first()), second()}, {Fault::race_of_dispatches});
}

}  // namespace
}  // namespace argent::emu
