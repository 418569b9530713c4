// Times of a step by node, from a device that says when each dispatch ran.
#include <gtest/gtest.h>

#include <numeric>

#include "backends/metal/backend.h"
#include "metal_backend/spy_device.h"
#include "ops/harness.h"
#include "support/tiny_model.h"

namespace argent::ops_test {
namespace {

using metal::CommandList;
using metal::GpuTime;

// Dispatch i takes i + 1 microseconds, and begins a microsecond after the one before.
class ClockDevice : public emu::EmuDevice {
 public:
  struct Log {
    std::vector<CommandList> submitted, timed;
    bool fails = false;
  };
  explicit ClockDevice(Log& log) : EmuDevice({.count = false}), log_(log) {}
  metal::Status submit(const CommandList& list) override {
    log_.submitted.push_back(list);
    return EmuDevice::submit(list);
  }
  Result<std::vector<GpuTime>> run_timed(const CommandList& list) override {
    log_.timed.push_back(list);
    if (log_.fails) return fail(Code::internal, "the GPU is gone");
    ARGENT_TRY(EmuDevice::submit(list));
    ARGENT_TRY(wait());
    std::vector<GpuTime> times;
    double begin = 0;
    for (size_t i = 0; i < list.dispatches.size(); ++i) {
      times.push_back({begin, 1e-6 * double(i + 1)});
      begin += 1e-6 * double(i + 2);
    }
    return times;
  }

 private:
  Log& log_;
};

class Profile : public testing::Test {
 protected:
  void start(std::unique_ptr<metal::Device> device) {
    test::TinyShape shape;
    shape.d_head = 64, shape.n_head = 2, shape.n_head_kv = 1;
    auto loaded = test::load(test::TinyModel("qwen2", shape));
    ASSERT_TRUE(loaded) << loaded.error().message;
    model_ = *std::move(loaded);
    const Status status = make(std::move(device));
    ASSERT_TRUE(status) << status.error().message;
  }
  // Logits of a token behind so many zeros that attention divides them among threadgroups.
  Result<std::vector<float>> step() {
    static const std::vector<int32_t> tokens{3};
    std::vector<int32_t> table(kBlocks);
    std::iota(table.begin(), table.end(), 0);
    std::vector<std::byte> zeros(backend_->kv_block_bytes(0));
    for (const int32_t block : table) ARGENT_TRY(backend_->restore_blocks({{KvTransfer{0, block, zeros.data()}}}));
    const uint32_t length = (kBlocks - 1) * kKvBlockTokens;
    Step step;
    StepSequence sequence{0, 1, length, 0, {}, tokens, 1};
    sequence.tables.push_back(table);
    step.sequences.push_back(std::move(sequence));
    step.tokens = {tokens[0]}, step.positions = {int32_t(length)}, step.row_sequence = {0}, step.output_rows = {0};
    ARGENT_LET(const Ticket ticket, backend_->run(plan_, step));
    ARGENT_LET(const StepResult result, backend_->wait(ticket));
    return std::vector<float>(result.logits.begin(), result.logits.end());
  }

  std::unique_ptr<Backend> backend_;
  Graph graph_;  // of the plan

 private:
  static constexpr uint32_t kBlocks = 24;

  Status make(std::unique_ptr<metal::Device> device) {
    ARGENT_LET(backend_, metal::make_backend(backend_options(ActivationMode::f32), "timed", std::move(device),
                                             std::string_view()));
    const Graph& graph = model_->model.graph;
    ARGENT_TRY(backend_->load(graph, WeightStorage::mapped, nullptr));
    const KernelTable* kernels = backend_.get();
    PlanOptions options;
    options.fuse = true;
    ARGENT_LET(Plan plan, make_plan(graph, {8, 8, true, Tail::logits}, {&kernels, 1}, options));
    graph_ = plan.graph;
    const KvLayout layout = kv_layout(graph);
    ARGENT_TRY(
        backend_->allocate(layout, {plan.arena_bytes[0], std::vector<uint32_t>(layout.windows.size(), kBlocks)}));
    ARGENT_LET(plan_, backend_->compile(std::move(plan)));
    return {};
  }

  std::unique_ptr<test::LoadedModel> model_;
  PlanId plan_ = 0;
};

TEST_F(Profile, ANodesTimeIsThatOfItsDispatches) {
  ClockDevice::Log log;
  ASSERT_NO_FATAL_FAILURE(start(std::make_unique<ClockDevice>(log)));
  const auto plain = step();
  ASSERT_TRUE(plain) << plain.error().message;
  EXPECT_EQ(log.timed.size(), 0);
  EXPECT_TRUE(backend_->profile().empty());
  backend_->set_profile(true);
  const auto profiled = step();
  ASSERT_TRUE(profiled) << profiled.error().message;
  EXPECT_EQ(*plain, *profiled);
  ASSERT_EQ(log.timed.size(), 1);
  EXPECT_EQ(log.submitted.size(), 1) << "the step before";
  const CommandList& list = log.timed[0];
  ASSERT_EQ(list.regions.size(), graph_.nodes.size());
  ASSERT_EQ(backend_->profile().size(), graph_.nodes.size());
  EXPECT_EQ(list.label, "1 rows");
  EXPECT_EQ(list.regions.back().end, list.dispatches.size());
  size_t at = 0, several = 0;
  uint64_t begin = 0;  // of dispatch `at`, in microseconds
  for (size_t n = 0; n < graph_.nodes.size(); ++n) {
    const NodeTime& time = backend_->profile()[n];
    EXPECT_EQ(time.node, n);
    EXPECT_EQ(list.regions[n].op, info(graph_.nodes[n].op).name);
    EXPECT_EQ(list.regions[n].layer, graph_.nodes[n].layer);
    const bool runs = at < list.regions[n].end;
    several += at + 1 < list.regions[n].end;
    if (runs) {
      EXPECT_EQ(time.begin, 1000 * begin) << n;
    }
    uint64_t wanted = 0;
    for (; at < list.regions[n].end; ++at) wanted += at + 1, begin += at + 2;
    EXPECT_EQ(time.nanoseconds, 1000 * wanted) << n;
  }
  EXPECT_EQ(at, list.dispatches.size());
  EXPECT_GT(several, 0) << "some op is several dispatches";
}

TEST_F(Profile, TellsTheDevicesError) {
  ClockDevice::Log log;
  ASSERT_NO_FATAL_FAILURE(start(std::make_unique<ClockDevice>(log)));
  backend_->set_profile(true);
  log.fails = true;
  const auto failed = step();
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().message, "the GPU is gone");
  EXPECT_TRUE(backend_->profile().empty());
  log.fails = false;
  EXPECT_TRUE(step());
}

// Without a clock of its own a device is timed by the host's, a dispatch at a time.
TEST_F(Profile, TheEmulatorIsTimedByTheHost) {
  metal::SpyDevice::Log log;
  ASSERT_NO_FATAL_FAILURE(start(std::make_unique<metal::SpyDevice>(&log)));
  const auto plain = step();
  ASSERT_EQ(log.lists.size(), 1);
  const size_t n_dispatches = log.lists[0].dispatches.size();
  backend_->set_profile(true);
  const auto profiled = step();
  ASSERT_TRUE(profiled) << profiled.error().message;
  EXPECT_EQ(*plain, *profiled);
  EXPECT_EQ(log.lists.size(), 1 + n_dispatches);
  uint64_t end = 0, all = 0;
  for (const NodeTime& time : backend_->profile()) {
    EXPECT_GE(time.begin + 1, end) << time.node;  // rounded to nanoseconds
    end = time.begin + time.nanoseconds, all += time.nanoseconds;
  }
  EXPECT_GT(all, 0);
}

}  // namespace
}  // namespace argent::ops_test
