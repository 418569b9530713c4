#include "engine/engine.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <tuple>

namespace argent {
namespace {

// A device measures its read rate in memory that no cache holds.
constexpr uint64_t kPeaksBytes = 256ull << 20;

}  // namespace

std::string bytes_text(uint64_t bytes) {
  return bytes < 10'000'000'000 ? fmt::format("{:.1f} MB", double(bytes) / 1e6)
                                : fmt::format("{:.2f} GB", double(bytes) / 1e9);
}

Result<std::unique_ptr<Backend>> make_backend(std::string_view device, const BackendOptions& options) {
  if (device == "cpu") return make_cpu_backend(options);
  if (device == "cuda" || device.starts_with("cuda:")) {
    BackendOptions one = options;
    if (device != "cuda") {
      const char* end = device.data() + device.size();
      const auto [rest, error] = std::from_chars(device.data() + 5, end, one.index);
      if (error != std::errc() || rest != end)
        return fail(Code::invalid, "--device {}: wanted cuda, cuda:0, cuda:1 and so on", device);
    }
    return make_cuda_backend(one);
  }
  if (device == "reference") return make_reference_backend(options);
  if (device == "null") return make_null_backend(options);
  if (device == "metal") return make_metal_backend(options);
  if (device == "metal-emu") return make_metal_emu_backend(options);
  return fail(Code::unsupported,
              "--device {}: wanted cpu, cuda:0 (NVIDIA), metal (on Macs), metal-emu, reference or null", device);
}

Result<std::unique_ptr<Engine>> Engine::open(const std::string& path, const EngineOptions& options,
                                             std::unique_ptr<Backend> backend) {
  ARGENT_LET(gguf::File file, gguf::File::open(path));
  std::unique_ptr<Engine> engine(new Engine(std::move(file)));
  engine->options_ = options;
  ARGENT_LET(engine->model_, build_model(engine->file_));
  ARGENT_LET(engine->tokenizer_, Tokenizer::load(engine->file_));
  if (engine->tokenizer_ && uint32_t(engine->tokenizer_->n_vocab()) > engine->model_.n_vocab)
    return fail(Code::invalid, "{}: the tokenizer has {} tokens, the model's vocabulary {}", path,
                engine->tokenizer_->n_vocab(), engine->model_.n_vocab);
  engine->backend_ = std::move(backend);
  if (!engine->backend_) {
    ARGENT_LET(engine->backend_, make_backend(options.device, options.backend));
  }
  ARGENT_TRY(engine->place_layers());
  if (options.deterministic && !engine->backend_->caps().deterministic)
    return fail(Code::unsupported, "--deterministic: the device {} does not promise the same bits", options.device);
  ARGENT_TRY(engine->settle_memory());
  return engine;
}

Status Engine::load(const std::function<bool(const Progress&)>& progress) {
  ARGENT_TRY(check_room());
  const auto start = std::chrono::steady_clock::now();
  ARGENT_TRY(backend_->load(model_.graph, memory_.devices[0].weights, progress));
  counters_.load_nanoseconds = uint64_t((std::chrono::steady_clock::now() - start) / std::chrono::nanoseconds(1));
  ARGENT_TRY(backend_->allocate(model_.kv, need_));
  runs_ahead_ = options_.run_ahead && backend_->caps().runs_ahead;
  ARGENT_LET(std::unique_ptr<kv::Tier> tier, make_tier());  // may hash the file
  if (memory_.weights == WeightStorage::resident && memory_.weights_bytes) {
    file_.drop_tensor_data();
    for (Value& v : model_.graph.values) v.data = nullptr;
  }
  ARGENT_LET(kv::Cache cache, kv::Cache::create(kv_config_, std::move(tier)));
  cache_ = std::make_unique<kv::Cache>(std::move(cache));
  return {};
}

DevicePeaks Engine::measure_peaks() {
  const BackendCaps caps = backend_->caps();
  // Where they count, they are no longer free.
  const uint64_t mapped = memory_.weights == WeightStorage::mapped && !caps.mapped_count ? memory_.file_bytes : 0;
  if (caps.memory_free && caps.memory_free < kPeaksBytes + MemoryReport::kReserve + mapped) return {};
  return backend_->measure_peaks();
}

PlanKey Engine::key_for(uint32_t n_tokens, uint32_t n_outputs, Tail tail) const {
  return plan_key(n_tokens, n_outputs, options_.budget.max_tokens, options_.budget.max_outputs, tail);
}

Result<Plan> Engine::make(const PlanKey& key, Stage stage) const {
  const std::vector<Backend*> parts = backend_->parts();
  const std::vector<const KernelTable*> devices(parts.begin(), parts.end());
  PlanOptions options{.stop_after = stage, .fuse = options_.fuse};
  backend_->place(options);
  return make_plan(model_.graph, key, devices, options);
}

Result<Plan> Engine::plan_for(uint32_t n_tokens, uint32_t n_outputs, Tail tail, Stage stage) const {
  return make(key_for(n_tokens, n_outputs, tail), stage);
}

Result<PlanId> Engine::plan(uint32_t n_tokens, uint32_t n_outputs, Tail tail) {
  const PlanKey key = key_for(n_tokens, n_outputs, tail);
  for (const Compiled& c : plans_)
    if (c.key == key) return c.id;
  ARGENT_LET(Plan plan, make(key, Stage::planned));
  ARGENT_LET(const PlanId id, backend_->compile(std::move(plan)));
  plans_.push_back({key, id});
  ++counters_.plans_built;
  return id;
}

SequenceId Engine::open_sequence() {
  SequenceId id = 0;
  while (id < sequences_.size() && sequences_[id].open) ++id;
  if (id == sequences_.size()) sequences_.emplace_back();
  by_arrival_.push_back(id);
  sequences_[id] = {};
  sequences_[id].open = true;
  sequences_[id].arrival = ++arrivals_;
  sequences_[id].served = counters_.steps;
  return id;
}

void Engine::close_sequence(SequenceId id, bool keep) {
  Sequence& s = sequences_[id];
  detach(s, keep);
  s = {};
  std::erase(by_arrival_, id);
}

// Gives a sequence its place in the KV cache, with what the prefix tree and the tier know of its tokens.
uint32_t Engine::attach(Sequence& s) {
  if (s.has_kv) return cache_->length(s.kv);
  s.kv = cache_->open();
  s.has_kv = true;
  uint32_t found = 0;
  if (!s.mode.all_rows) {  // every row is asked for, so every row is computed
    const auto hit = cache_->adopt_prefix(s.kv, s.tokens);
    found = hit ? hit->length : 0;
  }
  if (!s.begun) set_reused(s, found);
  return found;
}

void Engine::detach(Sequence& s, bool keep) {
  if (s.has_kv) cache_->close(s.kv, keep);
  s.has_kv = s.stepped = s.ahead = false;
  s.level = INT32_MIN;
}

void Engine::set_reused(Sequence& s, uint32_t n_tokens) {
  counters_.reused_tokens += uint64_t(n_tokens) - s.reused;  // in sum right, where it is less than before too
  s.reused = n_tokens;
}

Result<uint32_t> Engine::set_tokens(SequenceId id, std::span<const int32_t> tokens) {
  Sequence& s = sequences_[id];
  if (tokens.empty()) return fail(Code::invalid, "no tokens to compute");
  if (tokens.size() > n_ctx_)
    return fail(Code::invalid, "{} tokens do not fit a context of {} (--ctx sets it)", tokens.size(), n_ctx_);
  for (int32_t t : tokens)
    if (t < 0 || uint32_t(t) >= model_.n_vocab)
      return fail(Code::invalid, "token id {} is outside the vocabulary of {}", t, model_.n_vocab);
  uint32_t same = 0;
  if (s.has_kv) {
    const auto old = cache_->tokens(s.kv);
    const size_t most = std::min(old.size(), tokens.size() - 1);
    while (same < most && old[same] == tokens[same]) ++same;
    if (s.mode.all_rows) same = 0;
    ARGENT_LET(same, cache_->truncate(s.kv, same));
    if (!s.mode.all_rows && cache_->find_prefix(0, tokens).length > same)
      detach(s, true);  // the tree has more, as of another conversation
  }
  s.tokens.assign(tokens.begin(), tokens.end());
  s.n_passes = 0;
  s.begun = s.ahead = false;
  s.reused = 0;
  if (s.has_kv)
    set_reused(s, same);
  else
    same = attach(s);
  load_from_disk(s);
  return same;
}

Result<uint32_t> Engine::append_token(SequenceId id, int32_t token) {
  Sequence& s = sequences_[id];
  if (token < 0 || uint32_t(token) >= model_.n_vocab)
    return fail(Code::invalid, "token id {} is outside the vocabulary of {}", token, model_.n_vocab);
  if (s.tokens.size() >= n_ctx_)
    return fail(Code::invalid, "the context of {} positions is full (--ctx sets it)", n_ctx_);
  s.tokens.push_back(token);
  s.ahead = false;
  return uint32_t(s.tokens.size());
}

// The highest priority among those that are open and not paused: nobody rises above it.
int32_t Engine::top_priority() const {
  int32_t top = INT32_MIN;
  for (const Sequence& s : sequences_)
    if (s.open && !s.paused) top = std::max(top, s.mode.priority);
  return top;
}

// How a sequence stands when blocks are short: its priority, which rises by one for every kAgingSteps steps that it
// waits, as far as others are above it. What it has risen to stays with it as long as it holds its blocks, or it would
// lose them again at the next step.
int32_t Engine::level(const Sequence& s, int32_t top) const {
  const int64_t risen =
      s.mode.priority + int64_t((counters_.steps - std::min(counters_.steps, s.served)) / kAgingSteps);
  return std::max({s.level, s.mode.priority, int32_t(std::min<int64_t>(risen, top))});
}

// Blocks for n more positions. When the pool is out, another sequence is preempted, one that waits for nothing before
// the lowest of those that are below this one, or as high and younger: its blocks stay cached as long as nobody needs
// them, and what is lost is computed again when its turn comes. Levels and arrivals order all sequences, so the first
// always gets blocks.
Status Engine::reserve(SequenceId id, uint32_t n) {
  Sequence& s = sequences_[id];
  const int32_t top = top_priority();
  for (;;) {
    Status status = cache_->reserve(s.kv, n);
    if (status || status.error().code != Code::out_of_memory) return status;
    Sequence* victim = nullptr;
    // The greatest goes first: who waits for nothing, then the lowest level, then the youngest.
    const auto rank = [&](const Sequence& other) {
      const bool idle = !waits(other);
      return std::tuple(idle, -int64_t(level(other, top)), idle ? arrivals_ - other.arrival : other.arrival);
    };
    const auto may_go = [&](const Sequence& other) {
      return &other != &s && other.has_kv && (!waits(other) || rank(other) > rank(s));
    };
    for (Sequence& other : sequences_)
      if (may_go(other) && (!victim || rank(other) > rank(*victim))) victim = &other;
    if (!victim) return status;
    if (victim->stepped) ++counters_.preemptions;
    detach(*victim, true);
  }
}

// What the next step is about, oldest first. A plan samples, hands out logits or hands out states; kinds that wait take
// turns, but that of the first in rank has its own when another found no room.
std::vector<SequenceId> Engine::waiting(bool by_turn) {
  const auto kind = [&](SequenceId id) {
    const SequenceMode& mode = sequences_[id].mode;
    return mode.sampling ? 0 : mode.hidden ? 2 : 1;
  };
  std::vector<SequenceId> ids;
  for (const SequenceId id : by_arrival_)
    if (waits(sequences_[id])) ids.push_back(id);
  if (ids.empty()) return ids;
  // Whoever may take blocks from all others.
  const int32_t top = top_priority();
  const SequenceId first = *std::max_element(ids.begin(), ids.end(), [&](SequenceId a, SequenceId b) {
    return level(sequences_[a], top) < level(sequences_[b], top);
  });
  int turn = kind(first);
  for (SequenceId id : ids)
    if (by_turn && kind_served_[size_t(kind(id))] < kind_served_[size_t(turn)]) turn = kind(id);
  kind_served_[size_t(turn)] = counters_.steps + 1;
  std::erase_if(ids, [&](SequenceId id) { return kind(id) != turn; });
  return ids;
}

Want Engine::want(const Sequence& s) const {
  Want want{uint32_t(s.tokens.size()) - computed(s), s.mode.all_rows && !s.mode.sampling, true,
            std::max(s.level, s.mode.priority), counters_.steps - std::min(counters_.steps, s.served)};
  if (options_.passes.empty()) return want;
  const uint32_t size = options_.passes[std::min(s.n_passes, options_.passes.size() - 1)];
  want.last_row = size >= want.missing;
  want.missing = std::min(want.missing, size);
  return want;
}

// Who computes how much now, with blocks for it. A sequence that the pool has no room for waits; an error when all do.
// The scheduler knows nothing of room: it is asked again, without those that found none, until all that it picks have
// theirs.
Result<std::vector<Pick>> Engine::pick(std::span<const SequenceId> ids) {
  std::vector<Want> wants;
  for (SequenceId id : ids) wants.push_back(want(sequences_[id]));
  const int32_t top = top_priority();
  const auto before = [&](const Sequence& a, const Sequence& b) {
    return std::tuple(-int64_t(level(a, top)), a.arrival) < std::tuple(-int64_t(level(b, top)), b.arrival);
  };
  Error refused = fail(Code::internal, "a step without work");
  const Sequence* first_refused = nullptr;
  for (;;) {
    std::vector<Pick> picks = pick_step(wants, options_.budget);
    if (picks.empty()) return refused;
    bool settled = true;
    for (const Pick& pick : picks) {
      Sequence& s = sequences_[ids[pick.index]];
      Want& wanted = wants[pick.index];
      if (!s.has_kv) {
        settled = false;
        // Nobody gets a place in the cache behind one that finds no room: he would lose it to that one, again and
        // again.
        if (first_refused && before(*first_refused, s)) {
          wanted.missing = 0;
        } else {
          attach(s);  // now and not before, and what is found may leave less to compute
          wanted = want(s);
        }
      } else if (const Status status = reserve(ids[pick.index], pick.n_tokens); !status) {
        settled = false;
        refused = status.error();
        wanted.missing = 0;
        if (!first_refused || before(s, *first_refused)) first_refused = &s;
      }
    }
    for (const Pick& pick : picks) {  // those that had blocks already when a later one took them
      Want& wanted = wants[pick.index];
      if (sequences_[ids[pick.index]].has_kv || wanted.missing == 0) continue;
      settled = false;
      wanted.missing = 0;
    }
    if (settled) return picks;
  }
}

// Fills now_. Its spans point into the sequences' tokens and the cache's tables, which stay as they are until the step
// is committed.
void Engine::fill_step(std::span<const SequenceId> ids, std::span<const Pick> picks) {
  now_.clear();
  Step& step = now_.step;
  const bool sampling = sequences_[ids[0]].mode.sampling.has_value();
  bool all_greedy = sampling, with_logits = false, any_rules = false;
  for (const Pick& pick : picks) {
    const Sequence& s = sequences_[ids[pick.index]];
    const uint32_t length = computed(s), first = uint32_t(step.tokens.size());
    StepSequence part{
        first,          pick.n_tokens, length, ids[pick.index], {}, std::span(s.tokens).first(length + pick.n_tokens),
        s.mode.n_prompt};
    const bool decode = sampling && pick.n_tokens == 1 && pick.n_outputs == 1;
    (decode ? now_.size.decodes : now_.size.prompt) += pick.n_tokens;
    if (!decode) now_.size.prompt_keys += (length + (pick.n_tokens + 1) / 2) * uint64_t(pick.n_tokens);
    for (uint32_t g = 0; g < kv_config_.groups.size(); ++g) part.tables.push_back(cache_->table(s.kv, g));
    for (uint32_t i = 0; i < pick.n_tokens; ++i) {
      step.tokens.push_back(s.tokens[length + i]);
      step.positions.push_back(int32_t(length + i));
      step.row_sequence.push_back(uint32_t(step.sequences.size()));
      if (pick.n_tokens - i > pick.n_outputs) continue;
      step.output_rows.push_back(int32_t(first + i));
      if (!sampling) continue;
      step.sampling.push_back(*s.mode.sampling);
      step.rules.push_back(s.mode.rules);
      any_rules = any_rules || s.mode.rules.any();
      all_greedy = all_greedy && greedy(*s.mode.sampling, s.mode.rules);
      with_logits = with_logits || s.mode.with_logits;
    }
    step.sequences.push_back(std::move(part));
  }
  if (!any_rules) step.rules.clear();
  now_.left.resize(step.sequences.size(), false);
  if (!sampling)
    now_.tail = sequences_[ids[0]].mode.hidden ? Tail::hidden : Tail::logits;
  else
    now_.tail = with_logits ? Tail::sample_logits : all_greedy ? Tail::greedy : Tail::sample;
}

Result<PlanId> Engine::start(Flight& flight) {
  const Step& step = flight.step;
  ARGENT_LET(const PlanId id, plan(uint32_t(step.tokens.size()), uint32_t(step.output_rows.size()), flight.tail));
  flight.begin = std::chrono::steady_clock::now();
  ARGENT_LET(flight.ticket, backend_->run(id, step));
  return id;
}

Result<StepResult> Engine::run_step() {
  if (!profile_ || now_.ticket) {
    if (!now_.ticket) ARGENT_TRY(start(now_));
    if (may_run_ahead()) ARGENT_TRY(run_ahead());
    return backend_->wait(now_.ticket);
  }
  const uint32_t n_tokens = uint32_t(now_.step.tokens.size()), n_outputs = uint32_t(now_.step.output_rows.size());
  ARGENT_LET(const PlanId id, plan(n_tokens, n_outputs, now_.tail));
  now_.begin = std::chrono::steady_clock::now();
  return run_profiled(id, key_for(n_tokens, n_outputs, now_.tail));
}

// Does all that waits draw its next token from the step that runs, by parameters that are known already?
bool Engine::may_run_ahead() const {
  if (!runs_ahead_ || profile_ || !options_.passes.empty() || !samples(now_.tail) || now_.tail == Tail::sample_logits)
    return false;
  for (size_t i = 0; i < now_.left.size(); ++i) {
    const StepSequence& part = now_.step.sequences[i];
    const Sequence& s = sequences_[part.slot];
    if (now_.left[i] || s.mode.rules.any() || part.length + part.n_rows != s.tokens.size() ||
        s.tokens.size() >= n_ctx_ || s.tokens.size() + 1 >= s.mode.end)
      return false;
  }
  const auto n_waiting =
      std::count_if(sequences_.begin(), sequences_.end(), [&](const Sequence& s) { return waits(s); });
  return size_t(n_waiting) == now_.left.size();
}

// Starts the step behind the one that runs. Where there is no room or it fails, the next call makes it, and tells why.
Status Engine::run_ahead() {
  ahead_.clear();
  Step& step = ahead_.step;
  for (const StepSequence& part : now_.step.sequences)
    if (!cache_->reserve(sequences_[part.slot].kv, part.n_rows + 1)) return {};
  ARGENT_TRY(transfer());
  bool all_greedy = true;
  ahead_.recent.reserve(now_.step.sequences.size());
  for (const StepSequence& part : now_.step.sequences) {
    const Sequence& s = sequences_[part.slot];
    const SampleParams& sampling = *s.mode.sampling;
    const uint32_t row = uint32_t(step.tokens.size()), length = uint32_t(s.tokens.size());
    StepSequence next{row, 1, length, part.slot, {}, s.tokens, s.mode.n_prompt};
    if (sampling.repeat_penalty != 1 || sampling.presence_penalty != 0 || sampling.frequency_penalty != 0) {
      std::vector<int32_t>& recent = ahead_.recent.emplace_back(s.tokens);
      recent.push_back(~int32_t(part.slot));
      next.recent = recent;
    }
    for (uint32_t g = 0; g < kv_config_.groups.size(); ++g) next.tables.push_back(cache_->table(s.kv, g));
    step.tokens.push_back(~int32_t(part.slot));
    step.positions.push_back(int32_t(length));
    step.row_sequence.push_back(row);
    step.output_rows.push_back(int32_t(row));
    step.sampling.push_back(sampling);
    step.sequences.push_back(std::move(next));
    all_greedy = all_greedy && greedy(sampling);
  }
  ahead_.tail = all_greedy ? Tail::greedy : Tail::sample;
  ahead_.size.decodes = uint32_t(step.tokens.size());
  ahead_.left.resize(step.sequences.size(), false);
  if (!start(ahead_)) {
    ahead_.clear();
    return {};
  }
  for (const StepSequence& part : now_.step.sequences) sequences_[part.slot].ahead = true;
  return {};
}

// Makes the step that is ahead the one that this call is about, unless nobody wants any of it any more.
bool Engine::take_ahead() {
  if (!ahead_.ticket) return false;
  const auto last_done = now_.begin + std::chrono::nanoseconds(last_nanoseconds_);
  std::swap(now_, ahead_);
  ahead_.clear();
  now_.begin = std::max(now_.begin, last_done);
  bool any = false;
  for (size_t i = 0; i < now_.left.size(); ++i) {
    const StepSequence& part = now_.step.sequences[i];
    Sequence& s = sequences_[part.slot];
    now_.left[i] = !std::exchange(s.ahead, false) || !waits(s) || s.tokens.size() != part.length + 1 ||
                   !s.mode.sampling || *s.mode.sampling != now_.step.sampling[i] || s.mode.rules.any() ||
                   s.mode.with_logits || s.mode.hidden;
    any = any || !now_.left[i];
  }
  if (any) kind_served_[0] = counters_.steps + 1;
  return any;
}

// Appends what a row sampled, where there is room.
bool Engine::take_sample(Sequence& s, int32_t token) {
  if (token < 0) {  // not finite: what it computed can not be trusted, and nobody else may find it again
    detach(s, false);
  }
  const bool room = token >= 0 && s.tokens.size() < n_ctx_;
  if (room)
    s.tokens.push_back(token);
  else
    s.paused = true;
  return room;
}

Status Engine::finish_step(const StepResult& result, const std::function<void(const StepOutput&)>& sink) {
  const Step& step = now_.step;
  last_nanoseconds_ = uint64_t((std::chrono::steady_clock::now() - now_.begin) / std::chrono::nanoseconds(1));
  counters_.backend_nanoseconds += last_nanoseconds_;
  ++counters_.steps;
  for (size_t i = 0; i < step.sequences.size(); ++i) {
    if (now_.left[i]) continue;
    const StepSequence& part = step.sequences[i];
    Sequence& s = sequences_[part.slot];
    ARGENT_TRY(cache_->commit(s.kv, std::span<const int32_t>(s.tokens).subspan(part.length, part.n_rows)));
    counters_.tokens += part.n_rows;
    ++s.n_passes;
    s.stepped = s.begun = true;
    s.served = counters_.steps;
  }
  const size_t width = step.output_rows.empty() ? 0 : result.logits.size() / step.output_rows.size();
  for (uint32_t r = 0; r < step.output_rows.size(); ++r) {
    const uint32_t row = uint32_t(step.output_rows[r]), sequence = step.row_sequence[row];
    if (now_.left[sequence]) continue;
    StepOutput out{step.sequences[sequence].slot, uint32_t(step.positions[row]), -1, {}};
    if (width) out.logits = result.logits.subspan(uint64_t(r) * width, width);
    if (samples(now_.tail)) {
      out.token = result.sampled[r];
      out.appended = take_sample(sequences_[out.sequence], out.token);
    }
    sink(out);
  }
  return {};
}

Result<bool> Engine::step(const std::function<void(const StepOutput&)>& sink) {
  last_step_ = {};
  take_arrivals();
  if (!take_ahead()) {
    std::vector<SequenceId> ids = waiting(true);
    if (ids.empty()) return wait_for_disk();
    Result<std::vector<Pick>> picked = pick(ids);
    if (!picked) {
      ids = waiting(false);
      picked = pick(ids);
    }
    ARGENT_LET(const std::vector<Pick> picks, std::move(picked));
    const int32_t top = top_priority();
    for (const Pick& pick : picks) {
      Sequence& s = sequences_[ids[pick.index]];
      s.level = level(s, top);
    }
    ARGENT_TRY(transfer());
    fill_step(ids, picks);
  }
  last_step_ = now_.size;
  ARGENT_LET(const StepResult result, run_step());
  ARGENT_TRY(finish_step(result, sink));
  return true;
}

}  // namespace argent
