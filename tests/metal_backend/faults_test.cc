// Slips of the host's side, made on purpose in command lists and models: a barrier that is missing, a value written
// where another is still read, rows computed that nobody wants, a bias left out, a prompt that takes another way than
// its tokens one by one. tools/metal/faults.py puts the same into the source and wants these tests to fail.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include "backends/metal/kernels/args.h"
#include "backends/metal/kernels/args_norm.h"
#include "metal_backend/emu_backend.h"
#include "metal_backend/spy_device.h"
#include "metal_backend/tolerances.h"
#include "ops/harness.h"
#include "support/tiny_model.h"

namespace argent::ops_test {
namespace {

using emu::Fault;
using emu::Finding;
using metal::CommandList;
using metal::Dispatch;
using metal::SpyDevice;
using test::TinyModel;
using test::TinyShape;

TinyShape tiny_shape(std::string_view arch) {
  TinyShape s;
  s.n_layer = arch == "muse-glimmer" ? 4 : 2;  // a round of sliding and full ones
  s.d_head = 64;
  s.n_head = 2, s.n_head_kv = 1;
  s.formats = {Format::q8_0, Format::q4_0, Format::q5_0};
  return s;
}

// One sequence on a model, with tokens and wanted rows of the test's choice. Plans are for few rows, so that keys may
// be divided among threadgroups.
class Chat {
 public:
  Chat(const Graph& graph, const MakeBackend& make) : graph_(graph) {
    for (int32_t b = 0; b < kBlocks; ++b) table_.push_back(b);
    const Status status = start(make);
    EXPECT_TRUE(status) << status.error().message;
  }

  // Logits of the rows from `first_wanted` on.
  std::vector<float> step(const std::vector<int32_t>& tokens, uint32_t first_wanted = 0) {
    Step step;
    add(step, tokens, length_, 0);
    length_ += uint32_t(tokens.size());
    return run(step, first_wanted);
  }
  // Of all rows of a token of decode, and of other sequences: a prompt, and two tokens of a third one behind it.
  std::vector<float> mixed_step(int32_t token, const std::vector<int32_t>& prompt) {
    const std::vector<int32_t> one{token}, two{7, 8};
    Step step;
    add(step, one, length_, 0);
    add(step, prompt, 0, kBlocks - 2);
    add(step, two, 0, kBlocks - 1);
    ++length_;
    return run(step, 0);
  }
  // As if the positions up to `length` had been stored: zeros.
  void pass_over(uint32_t length) {
    for (uint32_t g = 0; g < windows_.size(); ++g) {
      std::vector<std::byte> zeros(backend_->kv_block_bytes(g));
      for (const int32_t block : table_) EXPECT_TRUE(backend_->restore_blocks({{KvTransfer{g, block, zeros.data()}}}));
    }
    length_ = length;
  }

 private:
  static constexpr int32_t kBlocks = 24;
  static constexpr uint32_t kRows = 32;

  // A sequence whose blocks are those from first_block on. The tokens outlive the step.
  void add(Step& step, const std::vector<int32_t>& tokens, uint32_t length, uint32_t first_block) const {
    const uint32_t n = uint32_t(tokens.size()), slot = uint32_t(step.sequences.size());
    const uint32_t n_blocks = (length + n + kKvBlockTokens - 1) / kKvBlockTokens;
    StepSequence sequence{uint32_t(step.tokens.size()), n, length, slot, {}, tokens, n};
    for (size_t g = 0; g < windows_.size(); ++g)
      sequence.tables.push_back(std::span(table_).subspan(first_block, n_blocks));
    step.sequences.push_back(std::move(sequence));
    for (uint32_t i = 0; i < n; ++i) {
      step.tokens.push_back(tokens[i]);
      step.positions.push_back(int32_t(length + i));
      step.row_sequence.push_back(slot);
    }
  }
  std::vector<float> run(Step& step, uint32_t first_wanted) {
    if (plans_.size() < 2) return {};
    for (uint32_t i = first_wanted; i < step.tokens.size(); ++i) step.output_rows.push_back(int32_t(i));
    const auto ticket = backend_->run(plans_[first_wanted > 0], step);
    EXPECT_TRUE(ticket) << ticket.error().message;
    if (!ticket) return {};
    const auto result = backend_->wait(*ticket);
    EXPECT_TRUE(result) << result.error().message;
    return result ? std::vector<float>(result->logits.begin(), result->logits.end()) : std::vector<float>();
  }

  Status start(const MakeBackend& make) {
    ARGENT_LET(backend_, make(backend_options(ActivationMode::f32)));
    ARGENT_TRY(backend_->load(
        graph_, backend_->caps().resident_weights ? WeightStorage::resident : WeightStorage::mapped, nullptr));
    const KvLayout layout = kv_layout(graph_);
    windows_ = layout.windows;
    MemoryNeed need{0, std::vector<uint32_t>(windows_.size(), kBlocks)};
    const KernelTable* device = backend_.get();
    PlanOptions options;
    options.fuse = true;
    std::vector<Plan> plans;
    for (const bool all_rows : {true, false}) {
      ARGENT_LET(Plan plan, make_plan(graph_, {kRows, kRows, all_rows, Tail::logits}, {&device, 1}, options));
      need.arena_bytes = std::max(need.arena_bytes, plan.arena_bytes[0]);
      plans.push_back(std::move(plan));
    }
    ARGENT_TRY(backend_->allocate(layout, need));
    for (Plan& plan : plans) {
      ARGENT_LET(const PlanId id, backend_->compile(std::move(plan)));
      plans_.push_back(id);
    }
    return {};
  }

  const Graph graph_;
  std::unique_ptr<Backend> backend_;
  std::vector<PlanId> plans_;  // of all rows, of those that are wanted
  std::vector<uint32_t> windows_;
  std::vector<int32_t> table_;
  uint32_t length_ = 0;
};

std::vector<int32_t> some_tokens(uint32_t n) {
  std::vector<int32_t> tokens(n);
  for (uint32_t i = 0; i < n; ++i) tokens[i] = int32_t(i * 37 % 100);
  return tokens;
}

MakeBackend on(std::function<std::unique_ptr<metal::Device>()> device, std::string_view without = "") {
  return [=](const BackendOptions& options) { return metal::make_backend(options, "spied on", device(), without); };
}
MakeBackend spied(SpyDevice::Log& log, std::string_view without = "") {
  return on([&log] { return std::make_unique<SpyDevice>(&log); }, without);
}

// ---- lists that somebody has tampered with

// Shows each list to `look`, which may run others in its place; then runs it.
class TamperedDevice : public emu::EmuDevice {
 public:
  using Look = std::function<void(TamperedDevice&, const CommandList&)>;
  explicit TamperedDevice(const Look& look) : EmuDevice({.count = false}), look_(look) {}
  metal::Status submit(const CommandList& list) override {
    look_(*this, list);
    return EmuDevice::submit(list);
  }
  std::vector<Finding> findings_of(const CommandList& list) {
    forget();
    const metal::Status status = EmuDevice::submit(list);
    EXPECT_TRUE(status) << status.error().message;
    std::vector<Finding> found = findings();
    forget();
    return found;
  }

 private:
  const Look& look_;
};

bool has(const std::vector<Finding>& findings, Fault fault) {
  return std::any_of(findings.begin(), findings.end(), [&](const Finding& f) { return f.fault == fault; });
}

class TamperedLists : public testing::Test {
 protected:
  void SetUp() override {
    if (!emu::Machine::instrumented) GTEST_SKIP() << "races are seen by the build with checks";
  }
  // A prompt by matrix products and flash attention, a step of decode, one whose keys are divided among threadgroups,
  // and one that has all of these.
  void show_steps(const std::string& arch, const TamperedDevice::Look& look) {
    const auto model = test::load(TinyModel(arch, tiny_shape(arch)));
    ASSERT_TRUE(model) << model.error().message;
    Chat chat((*model)->model.graph, on([&look] { return std::make_unique<TamperedDevice>(look); }));
    chat.step(some_tokens(11), 10);
    chat.step({5});
    chat.pass_over(600);
    chat.step({6});
    chat.mixed_step(3, some_tokens(11));
  }
};

TEST_F(TamperedLists, EveryBarrierIsNeeded) {
  for (const std::string arch : {"qwen2", "muse-glimmer"}) {
    size_t n_lists = 0, n_barriers = 0, n_joins = 0;
    show_steps(arch, [&](TamperedDevice& device, const CommandList& list) {
      ++n_lists;
      for (const Dispatch& d : list.dispatches) n_joins += d.pipeline->name() == "attention_combine";
      for (const Finding& f : device.findings_of(list)) ADD_FAILURE() << "nothing was changed: " << f.line();
      for (size_t i = 0; i < list.dispatches.size(); ++i) {
        if (!list.dispatches[i].barrier) continue;
        ++n_barriers;
        CommandList less = list;
        less.dispatches[i].barrier = false;
        EXPECT_TRUE(has(device.findings_of(less), Fault::race_of_dispatches))
            << arch << ": nobody misses the barrier of dispatch " << i << ", " << list.dispatches[i].pipeline->name()
            << " behind " << list.dispatches[i - 1].pipeline->name() << ", of list " << n_lists;
      }
    });
    EXPECT_EQ(n_lists, 4u) << arch;
    EXPECT_GE(n_joins, 1u) << arch;
    EXPECT_GE(n_barriers, 4 * 2 * 7u) << arch;
  }
}

Dispatch::Bound* bound(Dispatch& d, uint32_t index) {
  for (Dispatch::Bound& b : d.buffers)
    if (b.index == index) return &b;
  return nullptr;
}
bool same_place(const Dispatch::Bound& a, const Dispatch::Bound& b) {
  return a.buffer == b.buffer && a.offset == b.offset;
}

// The gate of an attention's output, written over the query while attention reads it: both are in one run of dispatches
// without a barrier, as they may be where each has a place of its own.
TEST_F(TamperedLists, GateOverTheQuery) {
  size_t n_gates = 0;
  show_steps("muse-glimmer", [&](TamperedDevice& device, const CommandList& list) {
    for (size_t z = 0; z < list.dispatches.size(); ++z) {
      CommandList other = list;
      auto& all = other.dispatches;
      if (all[z].pipeline->name() != "zip_elements") continue;
      const auto reads_out = [&](Dispatch& d) {
        return d.pipeline->name().starts_with("attention_") && same_place(*bound(d, 6), *bound(all[z], 1));
      };
      size_t attention = z;
      while (attention > 0 && !(all[attention].pipeline->name().starts_with("attention_") &&
                                !all[attention].pipeline->name().ends_with("combine") && reads_out(all[attention])))
        --attention;
      size_t gate = z;
      while (gate > 0 &&
             !(all[gate].pipeline->name().starts_with("mul_") && same_place(*bound(all[gate], 3), *bound(all[z], 2))))
        --gate;
      if (attention == 0 || gate == 0 || gate > attention) continue;
      ++n_gates;
      // The product behind attention, without a barrier: right where it has a place of its own.
      const Dispatch product = all[gate];
      all[gate + 1].barrier |= product.barrier;
      all.insert(all.begin() + ptrdiff_t(attention + 1), product);
      all[attention + 1].barrier = false;
      all.erase(all.begin() + ptrdiff_t(gate));
      for (const Finding& f : device.findings_of(other)) ADD_FAILURE() << "beside the query: " << f.line();
      bound(all[attention], 3)->offset = bound(all[attention - 1], 1)->offset;
      EXPECT_TRUE(has(device.findings_of(other), Fault::race_of_dispatches)) << "layer " << n_gates;
    }
  });
  EXPECT_EQ(n_gates, 4 * 4u);
}

// Rows of decode and of a prompt are in one output, in any order, and their kernels do not wait for one another: a row
// that both have is seen.
TEST_F(TamperedLists, ARowThatIsDecodedAndOfAPrompt) {
  size_t n_pairs = 0;
  show_steps("qwen2", [&](TamperedDevice& device, const CommandList& list) {
    for (size_t i = 1; i < list.dispatches.size(); ++i) {
      if (!list.dispatches[i].pipeline->name().starts_with("attention_decode") ||
          !list.dispatches[i - 1].pipeline->name().starts_with("attention_prefill"))
        continue;
      ++n_pairs;
      EXPECT_FALSE(list.dispatches[i].barrier);
      CommandList other = list;
      const TinyShape shape = tiny_shape("qwen2");
      bound(other.dispatches[i], 6)->offset -= 4 * shape.n_head * shape.d_head;  // the row behind the prompt
      EXPECT_TRUE(has(device.findings_of(other), Fault::race_of_dispatches)) << "layer " << n_pairs;
    }
  });
  EXPECT_EQ(n_pairs, 2u);
}

// ---- what a GPU waits for

// Levels of the list of one token behind 600 positions, whose keys are divided among threadgroups; beside a prompt, or
// alone.
uint32_t decode_levels(const std::string& arch, uint32_t n_layer, bool mixed = false) {
  TinyShape shape = tiny_shape(arch);
  shape.n_layer = n_layer;
  const auto model = test::load(TinyModel(arch, shape));
  EXPECT_TRUE(model) << model.error().message;
  SpyDevice::Log log;
  Chat chat((*model)->model.graph, spied(log));
  chat.pass_over(600);
  if (mixed)
    chat.mixed_step(5, some_tokens(11));
  else
    chat.step({5});
  const std::vector<Dispatch>& all = log.lists.back().dispatches;
  EXPECT_TRUE(std::any_of(all.begin(), all.end(), [](const Dispatch& d) {
    return d.pipeline->name() == "attention_combine";
  })) << arch;
  return metal::levels(log.lists.back());
}

TEST(MetalModels, DependentStepsOfALayer) {
  for (const char* arch : {"llama", "qwen2", "qwen3"})
    EXPECT_LE(decode_levels(arch, 3) - decode_levels(arch, 2), 8u) << arch;
  // Projections, norms of heads or biases, rotation and the store apart; decode and prompts attend at the same time.
  for (const auto& [arch, most] : {std::pair("llama", 10u), {"qwen2", 11u}, {"qwen3", 11u}})
    EXPECT_LE(decode_levels(arch, 3, true) - decode_levels(arch, 2, true), most) << arch;
  // A round of sliding and full layers.
  EXPECT_LE(decode_levels("muse-glimmer", 8) - decode_levels("muse-glimmer", 4), 4 * 9u);
}

// ---- rows that are computed

template <class T>
T args_of(const Dispatch& d) {
  T args;
  std::memcpy(&args, d.values[0].bytes.data(), sizeof args);
  return args;
}

// A prompt that wants the logits of its last row multiplies only this row with the head and with the last FFN.
TEST(MetalRows, OneRowOfLogits) {
  for (const std::string& arch : test::kArchitectures) {
    const TinyShape shape = tiny_shape(arch);
    const auto model = test::load(TinyModel(arch, shape));
    ASSERT_TRUE(model);
    SpyDevice::Log log;
    Chat chat((*model)->model.graph, spied(log));
    EXPECT_EQ(chat.step(some_tokens(23), 22).size(), shape.n_vocab);
    ASSERT_EQ(log.lists.size(), 1u);
    // Tokens of products by the number of rows of their weights, in order.
    std::map<uint32_t, std::vector<uint32_t>> tokens;
    for (const Dispatch& d : log.lists[0].dispatches) {
      const std::string& name = d.pipeline->name();
      if (!name.starts_with("mul_m") && !name.starts_with("glu")) continue;
      const auto args = args_of<MatmulArgs>(d);
      tokens[args.rows].push_back(args.tokens);
    }
    EXPECT_EQ(tokens[shape.n_vocab], std::vector<uint32_t>{1}) << arch << ": the head";
    std::vector<uint32_t> ffn = tokens[shape.n_ff];
    ASSERT_FALSE(ffn.empty()) << arch;
    EXPECT_EQ(ffn.back(), 1u) << arch << ": the last layer's FFN";
    EXPECT_EQ(ffn.front(), 23u) << arch << ": the first layer's FFN";
    ffn.erase(std::remove(ffn.begin(), ffn.end(), 1u), ffn.end());
    EXPECT_EQ(ffn, std::vector<uint32_t>(ffn.size(), 23u)) << arch;
  }
}

// ---- biases

struct Biased {
  const char *arch, *part;
  uint32_t width;
};

// A bias of every projection that may have one, each alone; and it is seen in the logits.
TEST(MetalModels, BiasOfEveryProjection) {
  TinyShape shape = tiny_shape("");
  shape.n_layer = 1;
  const uint32_t q = shape.n_head * shape.d_head, kv = shape.n_head_kv * shape.d_head;
  for (const Biased& b :
       {Biased{"llama", "attn_output", shape.n_embd}, Biased{"llama", "attn_q", q}, Biased{"llama", "attn_v", kv},
        Biased{"qwen2", "attn_output", shape.n_embd}, Biased{"qwen3", "ffn_down", shape.n_embd},
        Biased{"qwen3", "ffn_gate", shape.n_ff}, Biased{"qwen3", "ffn_up", shape.n_ff},
        Biased{"gemma3", "attn_output", shape.n_embd}, Biased{"muse-glimmer", "attn_gate", q},
        Biased{"muse-glimmer", "attn_output", shape.n_embd}}) {
    TinyModel with(b.arch, shape), without(b.arch, shape);
    for (uint32_t layer = 0; layer < with.s.n_layer; ++layer) {
      const std::string name = fmt::format("blk.{}.{}.bias", layer, b.part);
      with.put(name, {b.width}, Format::f32);
      for (uint32_t i = 0; i < b.width; ++i) with.poke(name, 0, i, float(i % 7) - 2.5f);
    }
    const auto model = test::load(with), plain = test::load(without);
    ASSERT_TRUE(model && plain) << b.arch << " " << b.part;
    const auto logits = [](const test::LoadedModel& m, const MakeBackend& make) {
      Chat chat(m.model.graph, make);
      Seen seen{chat.step(some_tokens(11)), {}};
      for (const std::vector<int32_t>& tokens : {std::vector<int32_t>{9}, {1, 2, 3}}) {
        const std::vector<float> more = chat.step(tokens);
        seen.logits.insert(seen.logits.end(), more.begin(), more.end());
      }
      return seen;
    };
    const Seen wanted = logits(**model, make_reference_backend), other = logits(**plain, make_reference_backend);
    const auto emulated = [](std::string_view less) {
      return on([] { return std::make_unique<emu::EmuDevice>(); }, less);
    };
    double worst = 0;
    const auto exact = compare(logits(**model, emulated(kExactFactors)), wanted, shape.n_vocab, kModel, &worst);
    EXPECT_FALSE(exact) << b.arch << " with " << b.part << ": " << *exact;
    const auto halves = compare(logits(**model, emulated("")), wanted, shape.n_vocab, kHalfModel, &worst);
    EXPECT_FALSE(halves) << b.arch << " with " << b.part << ", halves: " << *halves;
    EXPECT_TRUE(compare(other, wanted, shape.n_vocab, kHalfModel, &worst))
        << b.arch << ": " << b.part << " is not seen";
  }
}

// ---- a prompt and its tokens one by one

// The norms of a list but for those of heads, which decode has in another kernel: kernel, epsilons, and where in the
// model's file the weights are.
std::vector<std::string> norms_of(const CommandList& list, uint32_t d_head, std::span<const uint8_t> file) {
  std::vector<std::string> norms;
  for (const Dispatch& d : list.dispatches) {
    const std::string& name = d.pipeline->name();
    if (!name.starts_with("rms_norm")) continue;
    const bool twice = name == "rms_norm_twice";
    const float eps = twice ? args_of<NormTwiceArgs>(d).eps : args_of<RmsNormArgs>(d).eps;
    const float eps2 = twice ? args_of<NormTwiceArgs>(d).eps2 : 0;
    const uint32_t group = twice ? args_of<NormTwiceArgs>(d).group : args_of<RmsNormArgs>(d).group;
    if (group == d_head) continue;
    std::string text = fmt::format("{} of {}, {:g} {:g}", name, group, eps, eps2);
    for (const Dispatch::Bound& b : d.buffers) {
      const auto at = reinterpret_cast<const uint8_t*>(b.buffer->bytes().data()) + b.offset;
      if (at >= file.data() && at < file.data() + file.size()) text += fmt::format(", weights at {}", at - file.data());
    }
    norms.push_back(text);
  }
  return norms;
}

TEST(MetalModels, APromptIsItsTokensOneByOne) {
  for (const std::string& arch : test::kArchitectures)
    for (const std::string_view without : {kExactFactors, std::string_view()}) {
      const TinyShape shape = tiny_shape(arch);
      const auto model = test::load(TinyModel(arch, shape));
      ASSERT_TRUE(model);
      const std::vector<int32_t> tokens = some_tokens(13);
      SpyDevice::Log log;
      Chat whole((*model)->model.graph, spied(log, without));
      const Seen prompt{whole.step(tokens), {}};
      SpyDevice::Log logs;
      Chat single((*model)->model.graph, spied(logs, without));
      Seen one_by_one;
      for (const int32_t token : tokens) {
        const std::vector<float> row = single.step({token});
        one_by_one.logits.insert(one_by_one.logits.end(), row.begin(), row.end());
      }
      const auto& logits = one_by_one.logits;  // two NaN would pass for the same
      ASSERT_TRUE(std::all_of(logits.begin(), logits.end(), [](float x) { return std::isfinite(x); })) << arch;
      double worst = 0;
      const auto difference = compare(prompt, one_by_one, shape.n_vocab, without.empty() ? kHalfModel : kModel, &worst);
      EXPECT_FALSE(difference) << arch << ": " << *difference;
      ASSERT_FALSE(log.lists.empty() || logs.lists.empty());
      const std::span<const uint8_t> file = (*model)->bytes;
      EXPECT_EQ(norms_of(log.lists[0], shape.d_head, file), norms_of(logs.lists[0], shape.d_head, file)) << arch;
    }
}

}  // namespace
}  // namespace argent::ops_test
