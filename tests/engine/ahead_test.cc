// The engine a step ahead of what it has seen: texts are those without, on a device that computes what it is told.
#include <array>

#include "engine/engines.h"

namespace argent::test {
namespace {

// The CPU, with what two steps drew kept.
class AheadBackend final : public Backend {
 public:
  explicit AheadBackend(std::unique_ptr<Backend> cpu) : cpu_(std::move(cpu)) {}
  BackendCaps caps() const override {
    BackendCaps caps = cpu_->caps();
    caps.runs_ahead = true;
    return caps;
  }
  std::string device_name() const override { return cpu_->device_name(); }
  Kernel find(const Graph& graph, const Node& node) const override { return cpu_->find(graph, node); }
  bool wants_fused(Op op) const override { return cpu_->wants_fused(op); }
  uint64_t workspace(const Graph& graph, const Node& node, uint32_t n_rows) const override {
    return cpu_->workspace(graph, node, n_rows);
  }
  uint64_t weight_bytes(const Graph& graph, ValueId weight) const override { return cpu_->weight_bytes(graph, weight); }
  uint64_t kv_bytes(const KvSpec& layer, uint32_t n_blocks) const override { return cpu_->kv_bytes(layer, n_blocks); }
  Status load(const Graph& graph, WeightStorage storage,
              const std::function<bool(const Progress&)>& progress) override {
    return cpu_->load(graph, storage, progress);
  }
  Status allocate(const KvLayout& layout, const MemoryNeed& need) override { return cpu_->allocate(layout, need); }
  Result<PlanId> compile(Plan plan) override { return cpu_->compile(std::move(plan)); }
  Result<Ticket> run(PlanId plan, const Step& step) override {
    ARGENT_LET(const Ticket ticket, cpu_->run(plan, step));
    ARGENT_LET(const StepResult result, cpu_->wait(ticket));
    sampled_[ticket % 2].assign(result.sampled.begin(), result.sampled.end());
    for (const int32_t token : step.tokens) n_fed_ += token < 0;
    last_ = ticket;
    return ticket;
  }
  Result<StepResult> wait(Ticket ticket) override {
    if (ticket == last_) return cpu_->wait(ticket);
    if (ticket + 1 != last_) return fail(Code::internal, "step {} is too long ago", ticket);
    return StepResult{{}, sampled_[ticket % 2]};
  }
  Status copy_blocks(std::span<const KvCopy> copies) override { return cpu_->copy_blocks(copies); }
  uint64_t kv_block_bytes(uint32_t group) const override { return cpu_->kv_block_bytes(group); }
  Status save_blocks(std::span<const KvTransfer> transfers) override { return cpu_->save_blocks(transfers); }
  Status restore_blocks(std::span<const KvTransfer> transfers) override { return cpu_->restore_blocks(transfers); }
  std::string kv_format() const override { return cpu_->kv_format(); }
  void set_profile(bool on) override { cpu_->set_profile(on); }
  std::span<const NodeTime> profile() const override { return cpu_->profile(); }
  uint64_t n_fed() const { return n_fed_; }

 private:
  const std::unique_ptr<Backend> cpu_;
  std::array<std::vector<int32_t>, 2> sampled_;
  Ticket last_ = 0;
  uint64_t n_fed_ = 0;
};

TEST(StepsAhead, TextsAreTheSame) {
  for (const char* arch : {"llama", "gemma3"}) {
    EngineOptions options = options_for("cpu");
    options.n_sequences = 8;
    std::vector<std::vector<int32_t>> texts[2];
    for (const bool ahead : {false, true}) {
      options.run_ahead = ahead;
      auto backend = std::make_unique<AheadBackend>(*make_cpu_backend(options.backend));
      const AheadBackend& seen = *backend;
      const auto engine = open(TinyModel(arch), options, std::move(backend));
      ASSERT_TRUE(engine);
      texts[ahead] = generate(*engine, mixed_requests());
      for (const Request& r : mixed_requests()) texts[ahead].push_back(generate(*engine, r));
      EXPECT_EQ(seen.n_fed() > 0, ahead);
    }
    for (size_t i = 0; i < texts[0].size(); ++i) EXPECT_EQ(texts[0][i], texts[1][i]) << arch << ", text " << i;
  }
}

// Between two steps a sequence gets a text as long as the one that it had: what is ahead is of no use.
TEST(StepsAhead, AnotherTextInBetween) {
  std::vector<int32_t> texts[2];
  for (const bool ahead : {false, true}) {
    EngineOptions options = options_for("cpu");
    options.run_ahead = ahead;
    const auto engine =
        open(TinyModel("llama"), options, std::make_unique<AheadBackend>(*make_cpu_backend(options.backend)));
    ASSERT_TRUE(engine);
    const SequenceId id = engine->open_sequence();
    engine->set_sampling(id, SampleParams{});
    const auto take = [&](const StepOutput& out) { texts[ahead].push_back(out.token); };
    set_tokens(*engine, id, text(20));
    for (int i = 0; i < 5; ++i) ASSERT_TRUE(*step(*engine, take));
    set_tokens(*engine, id, text(engine->tokens(id).size(), 2));
    for (int i = 0; i < 5; ++i) ASSERT_TRUE(*step(*engine, take));
    engine->set_sampling(
        id,
        SampleParams{.temperature = 9, .top_k = 0, .top_p = 1, .min_p = 0, .seed = 9});  // of what is drawn from now on
    for (int i = 0; i < 5; ++i) ASSERT_TRUE(*step(*engine, take));
    ASSERT_TRUE(engine->append_token(id, 7));
    for (int i = 0; i < 5; ++i) ASSERT_TRUE(*step(*engine, take));
  }
  EXPECT_EQ(texts[0], texts[1]);
}

}  // namespace
}  // namespace argent::test
