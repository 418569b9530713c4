// The CUDA backend on a runtime whose calls fail: each of them once, and each as the first after the device was lost.
#include <gtest/gtest.h>

#include <new>

#include "backends/cuda/part/encode_graph.h"
#include "cuda_host/life.h"

namespace argent::cuda {
namespace {

using fake_cuda::Fault;
using fake_cuda::state;

void expect_no_findings(const std::string& when) {
  for (const std::string& finding : state().findings) ADD_FAILURE() << when << ": " << finding;
}

void expect_nothing_left(const std::string& when) {
  expect_no_findings(when);
  EXPECT_EQ(state().things, 0u) << when;
  EXPECT_FALSE(state().capturing) << when;
}

void expect_one_line(const Error& error, const std::string& when) {
  EXPECT_FALSE(error.message.empty()) << when;
  EXPECT_EQ(error.message.find('\n'), std::string::npos) << when << ": " << error.message;
}

class CudaHost : public testing::Test {
 protected:
  void SetUp() override { fake_cuda::reset(); }
  void TearDown() override { fake_cuda::reset(); }
};

TEST_F(CudaHost, NothingFailsAndNothingIsLeft) {
  const auto model = tiny();
  ASSERT_TRUE(model);
  {
    const auto backend = make_backend({});
    ASSERT_TRUE(backend) << backend.error().message;
    for (int i = 0; i < 2; ++i) {
      const Status lived = Life(**backend, model->model.graph).all();
      EXPECT_TRUE(lived) << lived.error().message;
    }
    EXPECT_GT(state().kernels, 500u);
    EXPECT_GE(state().graphs, 6u);
  }
  expect_nothing_left("without a fault");
}

// Which calls of a life are made to fail: each, or each seventh of a life with steps, where most are those of kernels.
struct Sweep {
  bool steps;
  uint64_t stride;
};
constexpr Sweep kSweeps[] = {{false, 1}, {true, 7}};

// The call gives one line, nothing is left behind, and the same backend does the same again, now without an error.
TEST_F(CudaHost, EveryCallMayFailOnce) {
  const auto model = tiny();
  ASSERT_TRUE(model);
  for (const auto& [steps, stride] : kSweeps) {
    uint64_t n_errors = 0;
    bool reached = true;
    for (uint64_t n = 1; reached && !HasFailure(); n += stride) {
      fake_cuda::reset();
      fake_cuda::fail_at(n, Fault::once);
      {
        auto backend = make_backend({});
        std::string when;
        if (!backend) {
          when = fmt::format("call {} ({})", n, state().failed);
          expect_one_line(backend.error(), when);
          ++n_errors;
          backend = make_backend({});
          ASSERT_TRUE(backend) << when << ": " << backend.error().message;
        }
        Life life(**backend, model->model.graph);
        if (const Status lived = life.all(steps); !lived) {
          when = fmt::format("call {} ({}): {}", n, state().failed, lived.error().message);
          expect_one_line(lived.error(), when);
          EXPECT_FALSE(state().failed.empty()) << when;
          ++n_errors;
          const Status again = life.all(steps);
          EXPECT_TRUE(again) << when << ", then " << again.error().message;
        }
        expect_no_findings(when);
      }
      reached = !state().failed.empty();
      expect_nothing_left(fmt::format("call {} ({})", n, state().failed));
    }
    fmt::print("{} calls {} failed once with an error\n", n_errors, steps ? "of a life with steps" : "of one without");
    EXPECT_GT(n_errors, 100u);
  }
}

// All that follows fails with the cause, and what the device had is left alone.
TEST_F(CudaHost, EveryCallMayLoseTheDevice) {
  const auto model = tiny();
  ASSERT_TRUE(model);
  for (const auto& [steps, stride] : kSweeps) {
    bool reached = true;
    for (uint64_t n = 1; reached && !HasFailure(); n += stride) {
      fake_cuda::reset();
      fake_cuda::fail_at(n, Fault::lost);
      {
        const auto backend = make_backend({});
        const std::string where = fmt::format("call {} ({})", n, state().failed);
        if (!backend) {
          expect_one_line(backend.error(), where);
          continue;
        }
        Life life(**backend, model->model.graph);
        const Status lived = life.all(steps);
        const std::string when = fmt::format("call {} ({})", n, state().failed);
        if (lived) {
          EXPECT_EQ(state().failed, "") << when;
        } else {
          expect_one_line(lived.error(), when);
          for (const Status& status : {life.load(), life.allocate(), life.steps(), life.blocks()}) {
            ASSERT_FALSE(status) << when;
            EXPECT_NE(status.error().message.find("the device cannot be used until the program starts anew"),
                      std::string::npos)
                << when << ": " << status.error().message;
          }
          EXPECT_EQ((*backend)->caps().memory_free, 0u);
        }
      }
      reached = !state().failed.empty();
      expect_no_findings(fmt::format("call {} ({})", n, state().failed));
    }
  }
}

TEST_F(CudaHost, LoadingThatIsStoppedKeepsNothing) {
  const auto model = tiny();
  ASSERT_TRUE(model);
  const auto backend = make_backend({});
  ASSERT_TRUE(backend) << backend.error().message;
  const uint64_t before = state().things;
  for (int stop = 1;; ++stop) {
    int n = 0;
    const Status loaded =
        (*backend)->load(model->model.graph, WeightStorage::resident, [&](const Progress&) { return ++n < stop; });
    if (loaded) {
      EXPECT_GT(stop, 10);
      break;
    }
    EXPECT_EQ(loaded.error().code, Code::cancelled);
    EXPECT_EQ(state().things, before) << "stopped at " << stop;
    EXPECT_EQ(state().device_bytes, 0u);
    const Status allocated = Life(**backend, model->model.graph).allocate();
    ASSERT_FALSE(allocated);
    EXPECT_NE(allocated.error().message.find("no weights were loaded"), std::string::npos) << allocated.error().message;
  }
}

// By the memory's own rule: nobody has to have waited.
TEST_F(CudaHost, MemoryWaitsForWhatWasStarted) {
  const auto device = Device::open(0);
  ASSERT_TRUE(device) << device.error().message;
  {
    auto from = Memory::pinned(**device, 1000, "test"), to = Memory::of_device(**device, 1000, "test");
    ASSERT_TRUE(from && to);
    for (int i = 0; i < 3; ++i)
      ASSERT_EQ(cudaMemcpyAsync(to->data(), from->data(), 1000, cudaMemcpyHostToDevice, (*device)->stream()),
                cudaSuccess);
    EXPECT_EQ((*device)->allocated(), 1000u);
    EXPECT_EQ(state().waiting, 3u);
  }
  EXPECT_EQ(state().waiting, 0u);
  EXPECT_EQ((*device)->allocated(), 0u);
  expect_no_findings("memory that is freed");
}

// An exception in the middle of a capture leaves a stream that works.
TEST_F(CudaHost, CapturesEnd) {
  const auto opened = Device::open(0);
  ASSERT_TRUE(opened) << opened.error().message;
  Device& device = **opened;
  {
    const auto memory = Memory::of_device(device, 64, "test");
    ASSERT_TRUE(memory);
    Graphs graphs;
    StepShape shape;
    shape.n_tokens = 1;
    const auto good = [&](Launch& launch) {
      launch.note(cudaMemsetAsync(memory->data(), 0, 64, launch.stream), "set");
    };
    const auto throws = [&](Launch& launch) {
      good(launch);
      throw std::bad_alloc();
    };
    EXPECT_TRUE(graphs.run(device, shape, {.dependent = false}, good));
    EXPECT_THROW((void)graphs.run(device, shape, {.dependent = false}, throws), std::bad_alloc);
    EXPECT_FALSE(state().capturing);
    EXPECT_TRUE(device.finish());
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(graphs.run(device, shape, {.dependent = false}, good));
    EXPECT_EQ(state().graphs, 2u);
    EXPECT_TRUE(device.finish());
  }
  expect_no_findings("captures");
}

// Peaks are measured where half of the free memory is enough for it, and nothing of that stays.
TEST_F(CudaHost, PeaksAreMeasuredWhereThereIsRoom) {
  for (const uint64_t memory : {400ull << 20, 600ull << 20}) {
    fake_cuda::reset({.memory = memory});
    const auto backend = make_backend({});
    ASSERT_TRUE(backend) << backend.error().message;
    const uint64_t before = state().things;
    const DevicePeaks peaks = (*backend)->measure_peaks();
    EXPECT_EQ(peaks.read_bytes > 0, memory > (512u << 20));
    EXPECT_GT(peaks.int8_ops, 0);
    EXPECT_GT(peaks.f32_ops, 0);
    EXPECT_EQ(state().things, before);
    for (const Fault fault : {Fault::once, Fault::lost})
      for (uint64_t n = 1;; ++n) {
        fake_cuda::fail_at(n, fault);
        (void)(*backend)->measure_peaks();
        if (state().failed.empty()) break;
        EXPECT_TRUE(fault == Fault::lost || state().things == before) << n;
      }
    expect_no_findings("peaks");
  }
}

// A device without room for all of it says so, and works with less.
TEST_F(CudaHost, ShortMemoryIsSaid) {
  const auto model = tiny();
  ASSERT_TRUE(model);
  bool fits = false;
  for (uint64_t memory = 1 << 16; !fits; memory += memory / 4) {
    ASSERT_LT(memory, 1 << 26);
    fake_cuda::reset({.memory = memory});
    {
      const auto backend = make_backend({});
      ASSERT_TRUE(backend) << backend.error().message;
      const Status lived = Life(**backend, model->model.graph).all();
      fits = bool(lived);
      if (!lived) {
        EXPECT_EQ(lived.error().code, Code::out_of_memory) << lived.error().message;
        expect_one_line(lived.error(), std::to_string(memory));
      }
    }
    expect_nothing_left(std::to_string(memory));
  }
}

}  // namespace
}  // namespace argent::cuda
