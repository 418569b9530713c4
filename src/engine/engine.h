// The engine: a model on a backend, the KV cache of all its sequences, and the loop of steps that brings them forward.
// One thread calls it. A chat is one sequence of the general case.
#pragma once

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "backends/backend.h"
#include "engine/fit.h"
#include "engine/profile.h"
#include "engine/scheduler.h"
#include "gguf/gguf.h"
#include "kv/kv.h"
#include "models/model.h"
#include "tokenizer/tokenizer.h"

namespace argent {

struct EngineOptions {
  std::string device = "cpu";  // as make_backend takes it
  BackendOptions backend;
  // Layers on the device, the last ones, with the head; the others are on the CPU. More than there are: all. None: as
  // many as fit, where the device has memory of its own, else all.
  std::optional<uint32_t> gpu_layers;
  static constexpr uint32_t kAllLayers = UINT32_MAX;
  uint32_t n_ctx = 0;        // positions of one sequence; 0: the model's, at most 8,192, less when memory is short
  uint32_t n_sequences = 1;  // sequences of n_ctx positions that the KV pool holds at once
  uint64_t pool_tokens = 0;  // positions of the whole pool instead; at least n_ctx are there. 0: n_sequences * n_ctx
  // A server's pool: without n_ctx the model's whole training length for one sequence, without pool_tokens as many
  // positions as half of the free memory holds, up to n_sequences * n_ctx; the length is cut to the pool.
  bool serves = false;
  Budget budget;
  // None: resident where that fits into free memory with room for 2,048 positions (or as many as are asked for, or as
  // the model knows), else mapped.
  std::optional<WeightStorage> weights;
  bool deterministic = false;  // only on a device that is; others are refused as unsupported
  bool fuse = true;
  bool prefix_cache = true;
  bool run_ahead = true;  // where the device can; texts are the same without
  // Blocks of prefixes that leave the KV pool stay in host memory; 0: they do not, none: as memory allows, at most 1
  // GiB.
  std::optional<uint64_t> kv_host_bytes = 0;
  std::string
      kv_disk;  // and in files of a folder below this one, so that the next process finds them; empty: they do not
  uint64_t kv_disk_bytes = 8ull << 30;              // of each model
  std::chrono::milliseconds kv_disk_retry{30'000};  // after writing failed
  std::string program;                              // files are of this version of the program only
  std::function<void(const std::string&)> log;      // what happens beside requests; from any thread
  std::vector<uint32_t> passes;  // sizes of a sequence's passes, the last repeating; empty: as the budget allows
};

// What a model takes of a device's memory, known before anything is allocated.
struct MemoryUse {
  std::string device;     // "cuda:0"
  uint32_t n_layers = 0;  // of the model, that it computes
  // Of weights that count against free_bytes: resident ones, and mapped ones where caps().mapped_count; otherwise 0.
  uint64_t weights_bytes = 0;
  WeightStorage weights = WeightStorage::resident;
  uint64_t kv_bytes = 0;
  uint64_t kv_host_bytes = 0;    // the most that evicted KV blocks take in host memory
  uint64_t workspace_bytes = 0;  // the arena of the largest plan, and what its steps take beside it
  uint64_t free_bytes = 0;       // before loading; 0: unknown
  uint64_t total_bytes() const { return weights_bytes + kv_bytes + kv_host_bytes + workspace_bytes; }
  // Headroom for what is not in the plan: tokenizer, stacks, code.
  static constexpr uint64_t kReserve = 64ull << 20;
  uint64_t needed_bytes() const { return total_bytes() + kReserve; }
  bool fits() const { return free_bytes == 0 || needed_bytes() <= free_bytes; }
};

// Of all devices together, and of each: one, or the CPU and another one that share the layers.
struct MemoryReport : MemoryUse {
  uint64_t file_bytes = 0;             // of the tensors in the file
  uint64_t resident_needed_bytes = 0;  // where weights are mapped because a copy does not fit: what would be needed
  std::vector<MemoryUse> devices;
  // The first that does not fit; null: all do.
  const MemoryUse* misfit() const {
    for (const MemoryUse& use : devices)
      if (!use.fits()) return &use;
    return nullptr;
  }
  bool fits() const { return misfit() == nullptr; }
};

// For messages: "140.2 MB", from 10 GB on "12.34 GB".
std::string bytes_text(uint64_t bytes);

struct EngineCounters {
  uint64_t steps = 0, tokens = 0;
  uint64_t plans_built = 0;          // stays still in steady decode
  uint64_t reused_tokens = 0;        // prompt tokens found in the cache
  uint64_t preemptions = 0;          // sequences that were being computed and gave their blocks to others
  uint64_t backend_nanoseconds = 0;  // from run() until the result was there
  uint64_t load_nanoseconds = 0;     // weights: from the file to where they are used
};

using SequenceId = uint32_t;

// What a step gives for one sequence.
struct StepOutput {
  SequenceId sequence;
  uint32_t position;              // of the row
  int32_t token = -1;             // sampled, where the sequence samples, and appended to it unless its context is full;
                                  // -1 when its logits were not finite: the sequence is paused and its cache dropped
  std::span<const float> logits;  // where it does not, or also asks for what the token was drawn from; the last hidden
                                  // state [n_embd] where it asks for that
  bool appended = false;          // the token
};

// What a sequence wants of its rows, and how it stands among others.
struct SequenceMode {
  std::optional<SampleParams> sampling;  // its last row draws a token; none: logits are handed out
  RowRules rules;                        // of that row; what the spans refer to outlives them
  uint32_t n_prompt = 0;                 // tokens that presence and frequency penalties pass over
  bool with_logits = false;              // beside the token
  bool hidden = false;                   // no logits, but hidden states
  bool all_rows = false;                 // of every token, without sampling
  int32_t priority = 0;
  uint32_t end = UINT32_MAX;  // its length in tokens at which nobody wants more: no step ahead is begun for those
};

class Engine {
 public:
  // Reads the file and settles memory, without allocating weights: `argent check` stops here. Errors: the file's, the
  // model's, or out_of_memory with what is needed and free. backend: in place of the one that options.device names.
  static Result<std::unique_ptr<Engine>> open(const std::string& path, const EngineOptions& options,
                                              std::unique_ptr<Backend> backend = nullptr);
  // Saves what can be found again, where it has a place on disk, for up to 10 s.
  ~Engine();
  // Brings the weights to the device and allocates.
  Status load(const std::function<bool(const Progress&)>& progress = {});

  const gguf::File& file() const { return file_; }
  const Model& model() const { return model_; }
  const Tokenizer* tokenizer() const { return tokenizer_.get(); }  // null: the file takes ids only
  const MemoryReport& memory() const { return memory_; }
  // Where the layers are, in a line: "28 of 32 layers on cuda:0 (12.3 of 14.1 GiB free), 4 and the embeddings on the
  // CPU; context 8,192". Empty on the CPU alone, and on a device without memory of its own that was not asked for it.
  std::string layers_text() const;
  // Some or all layers are on the CPU though another device was named.
  bool layers_on_cpu() const { return memory_.devices.size() > 1 || !without_layers_.empty(); }
  const EngineCounters& counters() const { return counters_; }
  const kv::Cache& cache() const { return *cache_; }
  Backend& backend() { return *backend_; }
  uint32_t n_ctx() const { return n_ctx_; }
  const EngineOptions& options() const { return options_; }

  SequenceId open_sequence();
  void close_sequence(SequenceId id, bool keep = true);
  // Makes `tokens` the sequence's whole text: what it has computed of a common beginning stays, what the prefix tree
  // knows is found again, the rest is computed by the next steps. Returns how many tokens need no computing. At least
  // one token is always left to compute. invalid: no tokens, an id outside the vocabulary, or more than n_ctx tokens.
  Result<uint32_t> set_tokens(SequenceId id, std::span<const int32_t> tokens);
  Result<uint32_t> append_token(SequenceId id, int32_t token);
  std::span<const int32_t> tokens(SequenceId id) const { return sequences_[id].tokens; }
  // How many of its tokens were found computed when the sequence began to compute: what set_tokens() said, or more, as
  // the disk gave it.
  uint32_t reused(SequenceId id) const { return sequences_[id].reused; }
  // How the sequence goes on: sampled tokens are appended until `paused`; without sampling its logits are handed out.
  SequenceMode& mode(SequenceId id) { return sequences_[id].mode; }
  void set_sampling(SequenceId id, const std::optional<SampleParams>& sampling) { mode(id).sampling = sampling; }
  void set_all_logits(SequenceId id, bool all) { mode(id).all_rows = all; }
  void pause(SequenceId id, bool paused) { sequences_[id].paused = paused; }
  // Rows of prompts in a step that has decodes; ChunkPolicy says how many.
  void set_max_prompt(uint32_t rows) { options_.budget.max_prompt = rows; }
  // Rows of the last step. Decodes: last rows of sequences that sample.
  struct StepSize {
    uint32_t decodes = 0, prompt = 0;
    uint64_t prompt_keys = 0;  // positions that the prompts' rows see, together
  };
  StepSize last_step() const { return last_step_; }

  // Does a little of what would hold up later steps; for times when there is nothing to do. False: nothing is left.
  bool prepare() { return backend_->prepare(); }

  // Runs one step over all sequences that have something to compute, and hands out what it gave. False: nothing to do.
  // While the only ones wait for the disk, it waits too, for 10 ms at most, and computes nothing.
  // `sink` may pause a sequence or append to one, but neither open nor close any: more of the step's outputs may
  // follow.
  Result<bool> step(const std::function<void(const StepOutput&)>& sink);

  // From now on the times of every step go to `sink`, also those of plans that ran before; an empty sink ends it.
  void set_profile(ProfileSink sink);

  // What the device can do at most, measured now, between steps. Unknown where the memory that this takes for an
  // instant is not free, or would push a mapped model out of the page cache.
  DevicePeaks measure_peaks();

  // The plan that a step of these sizes runs, for dumps; a stage before `planned` stops the passes there.
  Result<Plan> plan_for(uint32_t n_tokens, uint32_t n_outputs, Tail tail, Stage stage) const;

 private:
  struct Sequence {
    bool open = false, paused = false;
    SequenceMode mode;
    std::vector<int32_t> tokens;
    kv::SeqId kv{};
    bool has_kv = false;   // false after preemption, until it is scheduled again
    bool stepped = false;  // something was computed since it has its place in the cache
    bool begun = false;    // and since it has its text
    bool ahead = false;    // ahead_ has its next row, and nothing has changed since but for the token that was drawn
    uint32_t reused = 0;
    uint64_t load = 0;                 // what it waits for, of the disk; 0: nothing
    int32_t level = INT32_MIN;         // the rank that it was last served at, while it has its place in the cache
    uint64_t arrival = 0, served = 0;  // the latter: a step's number
    size_t n_passes = 0;               // of options.passes
  };

  explicit Engine(gguf::File file) : file_(std::move(file)) {}
  // Makes the backend one that shares the layers with the CPU, where that is wanted.
  Status place_layers();
  Result<FitSizes> fit_sizes(uint64_t host_free);
  Status settle_memory();
  Status settle_arena();
  void settle_weights(WeightStorage storage);
  Result<std::vector<uint32_t>> blocks_of(uint32_t n_ctx, uint64_t pool_tokens) const;
  uint64_t server_pool() const;
  Status settle_kv(uint32_t least_ctx);
  void add_up();
  Status check_room() const;
  PlanKey key_for(uint32_t n_tokens, uint32_t n_outputs, Tail tail) const;
  Result<Plan> make(const PlanKey& key, Stage stage) const;
  Result<PlanId> plan(uint32_t n_tokens, uint32_t n_outputs, Tail tail);  // compiled, made on first use
  uint32_t computed(const Sequence& s) const { return s.has_kv ? cache_->length(s.kv) : 0; }
  // Has something to compute.
  bool waits(const Sequence& s) const { return s.open && !s.paused && s.load == 0 && s.tokens.size() > computed(s); }
  uint32_t attach(Sequence& s);
  void detach(Sequence& s, bool keep);
  void set_reused(Sequence& s, uint32_t n_tokens);
  int32_t top_priority() const;
  int32_t level(const Sequence& s, int32_t top) const;
  Status reserve(SequenceId id, uint32_t n);
  // The parts of step(), in order; a Pick's index is into ids.
  std::vector<SequenceId> waiting(bool by_turn);
  Want want(const Sequence& s) const;
  Result<std::vector<Pick>> pick(std::span<const SequenceId> ids);
  void fill_step(std::span<const SequenceId> ids, std::span<const Pick> picks);
  Result<StepResult> run_step();
  Status finish_step(const StepResult& result, const std::function<void(const StepOutput&)>& sink);
  bool may_run_ahead() const;
  Status run_ahead();
  bool take_ahead();
  struct Flight;
  Result<PlanId> start(Flight& flight);
  bool take_sample(Sequence& s, int32_t token);
  void settle_tiers();
  Result<std::unique_ptr<kv::Tier>> make_tier();
  Status transfer();
  void load_from_disk(Sequence& s);
  void take_arrivals();
  bool wait_for_disk();
  Result<std::shared_ptr<const Graph>> graph_of(const PlanKey& key);
  Result<StepResult> run_profiled(PlanId id, const PlanKey& key);

  gguf::File file_;
  EngineOptions options_;
  Model model_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<kv::Cache> cache_;
  kv::Config kv_config_;
  uint32_t n_ctx_ = 0;
  MemoryReport memory_;
  uint64_t host_free_ = 0;      // of devices[0], before another one took of it
  std::string without_layers_;  // says of the device that was asked for why it is not used; empty: it is
  MemoryNeed need_;
  std::vector<uint64_t> step_bytes_;  // by device: of the largest step, beside the arena
  std::vector<Sequence> sequences_;
  std::vector<SequenceId> by_arrival_;  // the open ones
  uint64_t arrivals_ = 0;
  struct Compiled {
    PlanKey key;
    PlanId id;
  };
  std::vector<Compiled> plans_;
  EngineCounters counters_;
  // A step that runs, or is about to.
  struct Flight {
    Step step;
    Tail tail = Tail::logits;
    StepSize size;
    std::vector<bool> left;                    // by sequence of the step: what it gives is wanted by nobody any more
    std::vector<std::vector<int32_t>> recent;  // of those whose text is not at hand as it will be
    Ticket ticket = 0;                         // 0: it does not run yet
    std::chrono::steady_clock::time_point begin{};  // of the device's time for it
    void clear() { step.clear(), size = {}, left.clear(), recent.clear(), ticket = 0; }
  };
  // The step that this call is about, and the one behind it, where the device has that already. Its rows are fed on the
  // device what the first one draws, so that the device need not wait for the host.
  Flight now_, ahead_;
  uint64_t last_nanoseconds_ = 0;  // of now_, once it is done
  bool runs_ahead_ = false;
  StepSize last_step_;
  std::vector<KvTransfer> transfers_;                     // scratch of transfer()
  std::chrono::steady_clock::time_point last_arrival_{};  // of a block from disk that somebody waits for
  ProfileSink profile_;
  uint64_t profile_begin_ = 0;
  std::array<uint64_t, 3> kind_served_ =
      {};  // step in which sequences that sample, want logits, want states had theirs
  std::vector<std::pair<PlanKey, std::shared_ptr<const Graph>>> profiled_graphs_;
};

// The backend of that name with its options; unsupported names the ones of this build.
Result<std::unique_ptr<Backend>> make_backend(std::string_view device, const BackendOptions& options);

}  // namespace argent
