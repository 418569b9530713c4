// What a program does with a CUDA backend, as far as the host's side sees it: kernels do nothing here.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "backends/cuda/part/backend.h"
#include "cuda_host/fake_cudart.h"
#include "graph/kv_layout.h"
#include "support/tiny_model.h"

namespace argent::cuda {

// Layers of two groups; every kind of weight.
inline std::unique_ptr<test::LoadedModel> tiny() {
  test::TinyShape shape;
  shape.n_layer = 4;
  shape.formats = {Format::q8_0, Format::f16, Format::q4_0};
  auto model = test::load(test::TinyModel("muse-glimmer", shape));
  EXPECT_TRUE(model) << model.error().message;
  return model ? *std::move(model) : nullptr;
}

// A model on a backend. Each function does a part of its life, and gives the first error.
class Life {
 public:
  Life(Backend& backend, const Graph& graph) : backend_(backend), graph_(graph), layout_(kv_layout(graph)) {}

  Status load() { return backend_.load(graph_, WeightStorage::resident, nullptr); }
  Status allocate() {
    const KernelTable* device = &backend_;
    MemoryNeed need{0, std::vector<uint32_t>(layout_.windows.size(), kBlocks)};
    std::vector<Plan> plans;
    for (const Tail tail : {Tail::logits, Tail::sample}) {
      ARGENT_LET(Plan plan, make_plan(graph_, {kRows, kRows, false, tail}, {&device, 1}));
      need.arena_bytes = std::max(need.arena_bytes, plan.arena_bytes[0]);
      plans.push_back(std::move(plan));
    }
    sequences_ = {};
    n_blocks_ = 0;
    ARGENT_TRY(backend_.allocate(layout_, need));
    for (size_t i = 0; i < plans.size(); ++i) {
      ARGENT_LET(plans_[i], backend_.compile(std::move(plans[i])));
    }
    return {};
  }
  // Prompts, decodes, the same shapes again and again, steps that overlap, and more and more rows and sequences while
  // others are under way; with times of every node in between.
  Status steps() {
    ARGENT_TRY(step(false, {{0, 70}}));
    for (int i = 0; i < 4; ++i) ARGENT_TRY(step(true, {{0, 1}}));
    for (int i = 0; i < 4; ++i) ARGENT_TRY(step(true, {{0, 1}}, true));
    // Memory that grows, of one kind in each step, while a step is under way and a graph names it.
    ARGENT_TRY(step(false, {{2, 300}}));
    ARGENT_TRY(step(false, {{1, 800}}));
    ARGENT_TRY(two_steps({1, 300}));    // partial results of attention
    ARGENT_TRY(two_steps({3, kRows}));  // the step's data
    ARGENT_TRY(two_steps({70, 1}));     // slots
    ARGENT_TRY(step(true, {{2, 1}}));
    backend_.set_profile(true);
    ARGENT_TRY(step(true, {{0, 1}}));
    if (backend_.profile().empty()) return fail(Code::internal, "no times were taken");
    backend_.set_profile(false);
    return step(true, {{0, 1}}, true);
  }
  // Blocks that are brought, copied and saved keep their bytes.
  Status blocks() {
    for (uint32_t g = 0; g < layout_.windows.size(); ++g) {
      const uint64_t n = backend_.kv_block_bytes(g);
      std::vector<std::byte> given(2 * n), seen(2 * n);
      const fake_cuda::Pinned a(given), b(seen);
      for (size_t i = 0; i < given.size(); ++i) given[i] = std::byte(i * 31 + i / 251);
      ARGENT_TRY(backend_.restore_blocks({{{g, 1, given.data()}, {g, 2, given.data() + n}}}));
      ARGENT_TRY(backend_.copy_blocks({{{g, 1, 5}, {g, 2, 6}}}));
      ARGENT_TRY(backend_.save_blocks({{{g, 5, seen.data()}, {g, 6, seen.data() + n}}}));
      if (seen != given) return fail(Code::internal, "blocks of group {} have other bytes", g);
    }
    return {};
  }
  Status all(bool with_steps = true) {
    ARGENT_TRY(load());
    ARGENT_TRY(allocate());
    if (with_steps) ARGENT_TRY(steps());
    return blocks();
  }

 private:
  static constexpr uint32_t kRows = 1500, kBlocks = 104, kSequences = 71;
  struct Part {
    uint32_t sequence, n_rows;
  };

  // Decodes of sequence 2, the last by a graph, and something else before that has ended.
  Status two_steps(const Part& other) {
    for (int i = 0; i < 2; ++i) ARGENT_TRY(step(true, {{2, 1}}));
    ARGENT_LET(const Ticket first, start(true, {{2, 1}}));
    ARGENT_LET(const Ticket second, start(false, {other}));
    ARGENT_LET(const StepResult one, backend_.wait(first));
    if (one.sampled.size() != 1) return fail(Code::internal, "{} tokens were sampled", one.sampled.size());
    ARGENT_LET(const StepResult two, backend_.wait(second));
    const size_t width = graph_.value(graph_.logits).width;
    if (two.logits.size() != width) return fail(Code::internal, "{} logits, {} wanted", two.logits.size(), width);
    return {};
  }
  // Each sequence's last row samples or gives its logits. feed_back: rows are what the slot sampled last.
  Result<Ticket> start(bool sample, const std::vector<Part>& parts, bool feed_back = false) {
    Step s;
    for (const Part& part : parts) {
      auto& [length, table] = sequences_[part.sequence];
      StepSequence sequence{uint32_t(s.tokens.size()), part.n_rows, length, part.sequence, {}, recent_};
      for (uint32_t i = 0; i < part.n_rows; ++i) {
        s.tokens.push_back(feed_back ? ~int32_t(part.sequence) : int32_t(i % 100));
        s.positions.push_back(int32_t(length + i));
        s.row_sequence.push_back(uint32_t(s.sequences.size()));
      }
      s.output_rows.push_back(int32_t(s.tokens.size()) - 1);
      if (sample) s.sampling.emplace_back();
      length += part.n_rows;
      while (table.size() * kKvBlockTokens < length) table.push_back(int32_t(n_blocks_++));
      sequence.tables.assign(layout_.windows.size(), table);
      s.sequences.push_back(std::move(sequence));
    }
    return backend_.run(plans_[sample], s);
  }
  Status step(bool sample, const std::vector<Part>& parts, bool feed_back = false) {
    ARGENT_LET(const Ticket ticket, start(sample, parts, feed_back));
    const auto result = backend_.wait(ticket);
    return result ? Status() : result.error();
  }

  Backend& backend_;
  const Graph& graph_;
  const KvLayout layout_;
  std::array<PlanId, 2> plans_ = {};  // logits, sampled
  struct Sequence {
    uint32_t length = 0;
    std::vector<int32_t> table;
  };
  std::array<Sequence, kSequences> sequences_;
  uint32_t n_blocks_ = 0;
  const std::vector<int32_t> recent_ = {1, 2, 3};
};

}  // namespace argent::cuda
