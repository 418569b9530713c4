#include "engine/service.h"

#include <algorithm>
#include <cmath>

#include "base/memory_reserve.h"
#include "engine/stops.h"
#include "sample/params.h"

namespace argent {
namespace {

using Seconds = std::chrono::duration<double>;
constexpr double kAgingSeconds = 10;  // a request that waits rises by one priority for each of them

const Error kOutOfMemory{Code::out_of_memory, "out of memory"};  // short enough to be copied without any

}  // namespace

struct Service::Answer {
  uint32_t index = 0;
  SequenceId sequence = 0;
  bool open = false;  // has the sequence
  bool over = false;
  std::unique_ptr<TokenRule> rule;
  std::vector<uint32_t> mask;
  std::vector<LogitBias> bias;
  std::optional<Detokenizer> text;
  StopMatcher stops;
  std::vector<TokenInfo> held;  // of text that is held back
  uint32_t n_tokens = 0;
  uint32_t n_found = 0;  // tokens that were computed when it began
  Clock::time_point last;
};

struct Service::Active {
  RequestId id = 0;
  GenerationRequest request;
  std::shared_ptr<RequestSink> sink;
  Clock::time_point submitted, started, first;
  std::vector<std::unique_ptr<Answer>> answers;
  RequestUsage usage;
  bool paused = false, cancelled = false;
  bool reading = true;   // the prompt
  bool reopens = false;  // the prompt's log-probabilities are complete: now the answers
  bool counted = false;  // in the metrics of prompts
  std::optional<Error> error;
  std::vector<TokenInfo> prompt_probs;
  std::vector<double> pooled;
  uint32_t n_pooled = 0;

  // What is done for this request alone; memory that it finds none of is the request's error and nobody else's.
  template <class Call>
  void guarded(const Call& call) {
    try {
      call();
    } catch (const std::bad_alloc&) {
      error = kOutOfMemory;
    }
  }
};

std::unique_ptr<Service> Service::start(std::unique_ptr<Engine> engine, const ServiceOptions& options) {
  std::unique_ptr<Service> service(new Service(std::move(engine), options));
  service->thread_ = std::thread([s = service.get()] { s->run(); });
  return service;
}

Service::Service(std::unique_ptr<Engine> engine, const ServiceOptions& options)
    : engine_(std::move(engine)), options_(options) {
  options_.parallel = std::max(1u, std::min(options_.parallel, engine_->options().budget.max_outputs));
}

Service::~Service() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

Status Service::check(const GenerationRequest& r) const {
  if (r.prompt.empty()) return fail(Code::invalid, "the prompt has no tokens");
  const uint32_t room = engine_->n_ctx();
  const uint32_t needed = uint32_t(r.pooling == GenerationRequest::Pooling::none);
  if (r.prompt.size() + needed > room)
    return fail(Code::invalid, "the prompt has {} tokens, the context {} positions{}", r.prompt.size(), room,
                needed ? ", one of them for an answer" : "");
  for (size_t i = 0; i < r.prompt.size(); ++i)
    if (r.prompt[i] < 0 || uint32_t(r.prompt[i]) >= engine_->model().n_vocab)
      return fail(Code::invalid, "token {} of the prompt is {}, the vocabulary has ids 0 to {}", i, r.prompt[i],
                  engine_->model().n_vocab - 1);
  const uint32_t most = needed ? options_.max_answers : 1;
  if (r.n == 0 || r.n > most) return fail(Code::invalid, "n is {}, wants 1 to {}", r.n, most);
  for (const std::string& s : r.stop)
    if (s.empty()) return fail(Code::invalid, "a stop text is empty");
  for (int32_t id : r.end_ids)
    if (id < 0 || uint32_t(id) >= engine_->model().n_vocab)
      return fail(Code::invalid, "{} can end no answer: the vocabulary has ids 0 to {}", id,
                  engine_->model().n_vocab - 1);
  for (const LogitBias& b : r.bias)
    if (b.token < 0 || uint32_t(b.token) >= engine_->model().n_vocab || !(b.bias < INFINITY))
      return fail(Code::invalid, "logit_bias of token {} is {}: wants an id below {} and a finite number", b.token,
                  b.bias, engine_->model().n_vocab);
  return sample::check(r.sampling);
}

Result<Service::RequestId> Service::submit(GenerationRequest request, std::shared_ptr<RequestSink> sink) {
  ARGENT_TRY(check(request));
  auto active = std::make_unique<Active>();
  active->request = std::move(request);
  active->sink = std::move(sink);
  active->submitted = Clock::now();
  active->usage.n_prompt = uint32_t(active->request.prompt.size());
  for (uint32_t i = 0; i < active->request.n; ++i) {
    active->answers.push_back(std::make_unique<Answer>());
    active->answers.back()->index = i;
  }
  Requests one;
  one.push_back(std::move(active));
  RequestId id;
  {
    const std::lock_guard lock(mutex_);
    if (stopping_ || draining_) return fail(Code::out_of_memory, "the server is shutting down");
    if (n_open_ >= options_.parallel + uint64_t(options_.max_queue)) {
      metrics_.rejected.fetch_add(1, std::memory_order_relaxed);
      return fail(Code::out_of_memory, "{} requests are waiting already", options_.max_queue);
    }
    id = one.front()->id = next_id_++;
    commands_.push_back({Command::submit, id, std::move(one)});
    ++n_open_;
  }
  metrics_.requests.fetch_add(1, std::memory_order_relaxed);
  changed_.notify_all();  // one of those that wake may be a drain()
  return id;
}

void Service::cancel(RequestId id) {
  {
    const std::lock_guard lock(mutex_);
    commands_.push_back({Command::cancel, id, {}});
  }
  changed_.notify_all();
}

void Service::cancel_all() {
  {
    const std::lock_guard lock(mutex_);
    commands_.push_back({Command::cancel_all, 0, {}});
  }
  changed_.notify_all();
}

void Service::pause(RequestId id, bool paused) {
  {
    const std::lock_guard lock(mutex_);
    commands_.push_back({paused ? Command::pause : Command::resume, id, {}});
  }
  changed_.notify_all();
}

bool Service::drain(std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  draining_ = true;
  return changed_.wait_for(lock, patience, [&] { return n_open_ == 0; });
}

// False: the service ends. Waits while there is nothing to compute.
bool Service::take_commands() {
  std::vector<Command> commands;
  bool stopping;
  {
    std::unique_lock lock(mutex_);
    const auto idle = [&] {
      return std::all_of(active_.begin(), active_.end(), [](const auto& a) { return a->paused; }) &&
             (n_running_ >= options_.parallel ||
              std::all_of(queue_.begin(), queue_.end(), [](const auto& q) { return q->paused; }));
    };
    const auto called = [&] { return !commands_.empty() || stopping_; };
    while (!called() && idle()) {
      lock.unlock();
      const bool more = engine_->prepare();
      lock.lock();
      if (!more) changed_.wait(lock, called);
    }
    commands.swap(commands_);
    stopping = stopping_;
  }
  for (Command& c : commands) {
    if (c.kind == Command::submit) {
      queue_.splice(queue_.end(), c.request);
      continue;
    }
    if (c.kind == Command::cancel_all) {
      for (auto& q : queue_) q->cancelled = true;
      for (auto& a : active_) a->cancelled = true;
      continue;
    }
    Active* a = nullptr;
    for (Requests* requests : {&queue_, &active_})
      for (auto& r : *requests)
        if (r->id == c.id) a = r.get();
    if (!a) continue;
    if (c.kind == Command::cancel) a->cancelled = true;
    if (c.kind == Command::cancel || a->paused == (c.kind == Command::pause)) continue;
    a->paused = c.kind == Command::pause;
    for (const auto& answer : a->answers) {
      if (!answer->open) continue;
      n_running_ += a->paused ? -1 : 1;
      if (!answer->over) engine_->pause(answer->sequence, a->paused);
    }
  }
  if (!stopping) return true;
  for (auto& q : queue_) q->cancelled = true;
  for (auto& a : active_) a->cancelled = true;
  return false;
}

// Brings waiting requests in: the highest priority first, which grows with the wait, then the oldest. Whose reader is
// slow takes nobody's place: it waits, or goes on beside the others once it reads again.
void Service::admit() {
  const auto now = Clock::now();
  for (auto it = queue_.begin(); it != queue_.end();) {
    const auto q = it++;
    if ((*q)->cancelled) active_.splice(active_.end(), queue_, q);  // sweep() tells
  }
  for (auto& a : active_)  // the rest of n answers before others' first
    if (!a->cancelled && !a->paused) a->guarded([&] { open_answers(*a); });
  while (!queue_.empty() && n_running_ < options_.parallel) {
    const auto rank = [&](const std::unique_ptr<Active>& q) {
      return q->paused ? -INFINITY
                       : q->request.priority + std::floor(Seconds(now - q->submitted).count() / kAgingSeconds);
    };
    const auto best =
        std::max_element(queue_.begin(), queue_.end(), [&](const auto& a, const auto& b) { return rank(a) < rank(b); });
    if ((*best)->paused) break;
    Active& a = **best;
    active_.splice(active_.end(), queue_, best);
    a.started = now;
    a.usage.queue_seconds = Seconds(now - a.submitted).count();
    metrics_.queue_seconds.add(a.usage.queue_seconds);
    a.guarded([&] {
      a.sink->started(a.usage);
      open_answers(a);
    });
  }
}

// The first answer reads the prompt; the others begin when it is there, as long as there is room for more.
void Service::open_answers(Active& a) {
  using Pooling = GenerationRequest::Pooling;
  for (auto& owned : a.answers) {
    Answer& answer = *owned;
    if (answer.open || answer.over) continue;
    if (a.error || n_running_ >= options_.parallel || (answer.index > 0 && a.reading)) return;
    const GenerationRequest& r = a.request;
    answer.sequence = engine_->open_sequence();
    answer.open = true;
    if (!a.paused) ++n_running_;
    if (by_sequence_.size() <= answer.sequence) by_sequence_.resize(answer.sequence + 1);
    by_sequence_[answer.sequence] = {&a, &answer};
    SequenceMode& mode = engine_->mode(answer.sequence);
    mode.priority = r.priority;
    mode.n_prompt = a.usage.n_prompt;
    if (r.pooling != Pooling::none) {
      mode.hidden = true;
      mode.all_rows = r.pooling == Pooling::mean;
    } else if (r.prompt_log_probs && a.reading) {
      mode.all_rows = true;
    } else {
      if (engine_->tokenizer()) answer.text.emplace(*engine_->tokenizer(), r.render_control, r.begins_text);
      answer.stops = StopMatcher(r.stop);
      if (r.rule) answer.rule = answer.index + 1 == r.n && r.n == 1 ? std::move(a.request.rule) : r.rule->fork();
      mode.with_logits = r.log_probs.has_value();
      mode.sampling = r.sampling;
      if (r.max_tokens) mode.end = uint32_t(std::min<uint64_t>(UINT32_MAX, uint64_t(r.prompt.size()) + r.max_tokens));
      mode.sampling->sample_index = answer.index;
      prepare(answer, a);
    }
    const auto reused = engine_->set_tokens(answer.sequence, r.prompt);
    if (!reused) {
      a.error = reused.error();
      return;
    }
    answer.n_found = *reused;
    if (answer.index == 0 && !std::exchange(a.counted, true)) {
      a.usage.n_reused = std::max(a.usage.n_reused, *reused);
      metrics_.prompt_tokens.fetch_add(a.usage.n_prompt, std::memory_order_relaxed);
      metrics_.reused_tokens.fetch_add(*reused, std::memory_order_relaxed);
    }
    engine_->pause(answer.sequence, a.paused);
  }
}

// The rules of the answer's next token.
void Service::prepare(Answer& answer, const Active& a) {
  SequenceMode& mode = engine_->mode(answer.sequence);
  const GenerationRequest& r = a.request;
  answer.bias = r.bias;
  if (answer.n_tokens < r.min_tokens) {
    if (engine_->tokenizer())
      for (int32_t id : engine_->tokenizer()->end_ids()) answer.bias.push_back({id, -INFINITY});
    for (int32_t id : r.end_ids) answer.bias.push_back({id, -INFINITY});
  }
  mode.rules.bias = answer.bias;
  mode.rules.mask = {};
  if (!answer.rule) return;
  answer.mask.assign((uint64_t(engine_->model().n_vocab) + 31) / 32, UINT32_MAX);
  if (answer.rule->restrict(answer.mask)) mode.rules.mask = answer.mask;
}

TokenInfo Service::token_info(int32_t id, std::vector<sample::LogProb> probs) const {
  TokenInfo info{id, {}, probs.empty() ? 0 : probs[0].log_prob, {}};
  if (engine_->tokenizer()) engine_->tokenizer()->append_bytes(id, info.bytes, true);
  if (!probs.empty()) info.top.assign(probs.begin() + 1, probs.end());
  return info;
}

void Service::on_output(const StepOutput& out) {
  auto [a, answer] = by_sequence_[out.sequence];
  if (!a || answer->over || a->error) return;
  a->guarded([&, a = a, answer = answer] {
    if (engine_->mode(out.sequence).sampling)
      on_token(*a, *answer, out);
    else if (engine_->mode(out.sequence).hidden)
      on_state(*a, *answer, out);
    else
      on_prompt_row(*a, *answer, out);
  });
}

// A row of a prompt whose log-probabilities are asked for.
void Service::on_prompt_row(Active& a, Answer& answer, const StepOutput& out) {
  const std::vector<int32_t>& prompt = a.request.prompt;
  if (out.position == 0) a.prompt_probs = {token_info(prompt[0], {})};  // once more, where it was preempted
  if (out.position + 1 < prompt.size()) {
    const int32_t next = prompt[out.position + 1];
    std::vector<sample::LogProb> probs = sample::log_probs(out.logits, next, *a.request.prompt_log_probs);
    if (std::isnan(probs[0].log_prob)) {
      a.error = fail(Code::internal, "the model's logits are not finite");
      return;
    }
    a.prompt_probs.push_back(token_info(next, std::move(probs)));
    return;
  }
  a.reopens = true;
  engine_->pause(answer.sequence, true);
}

void Service::on_state(Active& a, Answer& answer, const StepOutput& out) {
  if (a.pooled.empty() || out.position == 0) {  // once more, where it was preempted
    a.pooled.assign(out.logits.size(), 0.0);
    a.n_pooled = 0;
  }
  for (size_t i = 0; i < out.logits.size(); ++i) a.pooled[i] += out.logits[i];
  ++a.n_pooled;
  if (out.position + 1 < a.request.prompt.size()) return;
  double norm = 0;
  for (double& x : a.pooled) x /= a.n_pooled, norm += x * x;
  if (!std::isfinite(norm)) {
    a.error = fail(Code::internal, "the model's hidden states are not finite");
    return;
  }
  std::vector<float> result(a.pooled.size());
  for (size_t i = 0; i < result.size(); ++i) result[i] = norm > 0 ? float(a.pooled[i] / std::sqrt(norm)) : 0.0f;
  answer.over = true;
  engine_->pause(answer.sequence, true);
  a.usage.prompt_seconds = Seconds(Clock::now() - a.started).count();
  a.sink->embedding(std::move(result));
}

void Service::on_token(Active& a, Answer& answer, const StepOutput& out) {
  const GenerationRequest& r = a.request;
  const auto now = step_done_;
  if (out.token < 0) {
    a.error = fail(
        Code::internal, "{}",
        answer.rule ? "no token may come next, or the logits are not finite" : "the model's logits are not finite");
    return;
  }
  if (a.reading) {
    a.reading = false;
    a.first = now;
    if (const uint32_t found = engine_->reused(answer.sequence); found > answer.n_found) {  // the disk gave more
      a.usage.n_reused += found - answer.n_found;
      metrics_.reused_tokens.fetch_add(found - answer.n_found, std::memory_order_relaxed);
    }
    a.usage.prompt_seconds = Seconds(now - a.started).count();
    metrics_.first_token_seconds.add(Seconds(now - a.submitted).count());
    a.sink->prompt_read(a.usage, std::move(a.prompt_probs));
  }
  if (answer.n_tokens > 0) metrics_.token_seconds.add(Seconds(now - answer.last).count());
  answer.last = now;
  const bool ends = std::find(r.end_ids.begin(), r.end_ids.end(), out.token) != r.end_ids.end() ||
                    (engine_->tokenizer() && engine_->tokenizer()->is_end(out.token));
  if (answer.rule && !answer.rule->accept(out.token)) {
    a.error = fail(Code::internal, "token {} was drawn against the request's rules", out.token);
    return;
  }
  if (ends && !r.ignore_end) return finish_answer(a, answer, Finish::stop, {});
  ++answer.n_tokens;
  ++a.usage.n_generated;
  metrics_.generated_tokens.fetch_add(1, std::memory_order_relaxed);
  if (r.log_probs) answer.held.push_back(token_info(out.token, sample::log_probs(out.logits, out.token, *r.log_probs)));
  std::string text;
  if (answer.text && answer.stops.push(answer.text->push(out.token), text))
    return finish_answer(a, answer, Finish::stop, std::move(text));
  if ((r.max_tokens && answer.n_tokens >= r.max_tokens) || !out.appended ||
      engine_->tokens(answer.sequence).size() >= engine_->n_ctx())
    return finish_answer(a, answer, Finish::length, std::move(text));
  if (!text.empty() || !answer.text) {
    AnswerEvent event{answer.index, std::move(text), std::move(answer.held), answer.n_tokens, {}, -1};
    answer.held.clear();
    a.sink->answer(std::move(event));
  }
  if (answer.rule || answer.n_tokens <= r.min_tokens) prepare(answer, a);
}

void Service::finish_answer(Active& a, Answer& answer, Finish how, std::string text) {
  if (answer.text && answer.stops.matched() < 0) {
    if (answer.stops.push(answer.text->flush(), text) && how == Finish::length) how = Finish::stop;
    answer.stops.finish(text);
  }
  answer.over = true;
  if (answer.open) engine_->pause(answer.sequence, true);
  a.sink->answer({answer.index, std::move(text), std::move(answer.held), answer.n_tokens, how, answer.stops.matched()});
  answer.held.clear();
}

void Service::close_answer(Active& a, Answer& answer, bool keep) {
  if (!answer.open) return;
  engine_->close_sequence(answer.sequence, keep);
  if (!a.paused) --n_running_;
  if (answer.sequence < by_sequence_.size()) by_sequence_[answer.sequence] = {};
  answer.open = false;
}

// Ends what is over, and tells.
void Service::sweep() {
  for (auto it = active_.begin(); it != active_.end();) {
    Active& a = **it;
    a.guarded([&] {
      if (a.cancelled && !a.error)
        for (auto& answer : a.answers)
          if (!answer->over) finish_answer(a, *answer, Finish::cancelled, {});
      if (!std::exchange(a.reopens, false) || a.cancelled || a.error) return;
      close_answer(a, *a.answers[0], true);
      a.request.prompt_log_probs.reset();
      open_answers(a);
    });
    bool all = true;
    for (auto& answer : a.answers) {
      if (answer->over || a.error) close_answer(a, *answer, !a.error);  // what failed is not to be found again
      all = all && answer->over;
    }
    if (!all && !a.error) {
      ++it;
      continue;
    }
    const auto now = Clock::now();
    if (a.first != Clock::time_point{}) a.usage.decode_seconds = Seconds(now - a.first).count();
    metrics_.request_seconds.add(Seconds(now - a.submitted).count());
    const bool failed = a.error.has_value();
    (failed        ? metrics_.failed
     : a.cancelled ? metrics_.cancelled
                   : metrics_.finished)
        .fetch_add(1, std::memory_order_relaxed);
    if (!failed) a.guarded([&] { a.sink->done(a.usage); });
    if (a.error) a.guarded([&] { a.sink->failed(*a.error); });  // if nothing can be told, the sink's end tells it
    it = active_.erase(it);
    const std::lock_guard lock(mutex_);
    if (--n_open_ == 0) changed_.notify_all();
  }
}

void Service::publish_metrics() {
  const auto set = [](std::atomic<uint64_t>& to, uint64_t value) { to.store(value, std::memory_order_relaxed); };
  set(metrics_.queued, queue_.size());
  set(metrics_.running, n_running_);
  set(metrics_.steps, engine_->counters().steps);
  set(metrics_.preemptions, engine_->counters().preemptions);
  kv::GroupUsage sum;
  for (uint32_t g = 0; g < engine_->cache().config().groups.size(); ++g) {
    const kv::GroupUsage u = engine_->cache().usage(g);
    sum.total += u.total, sum.referenced += u.referenced, sum.cached += u.cached;
  }
  set(metrics_.kv_blocks, sum.total);
  set(metrics_.kv_used, sum.referenced);
  set(metrics_.kv_cached, sum.cached);
  if (const kv::Tier* tier = engine_->cache().tier()) {
    set(metrics_.kv_host_bytes, tier->usage().host_bytes);
    set(metrics_.kv_disk_bytes, tier->usage().disk_bytes);
    set(metrics_.host_restored_tokens, tier->counters().host_tokens);
    set(metrics_.disk_restored_tokens, tier->counters().disk_tokens);
  }
}

// False: there was nothing to compute. Memory that all share has no one to blame: all that took part fail.
bool Service::step() {
  Result<bool> more = false;
  try {
    bool first = true;
    more = engine_->step([&](const StepOutput& out) {
      if (std::exchange(first, false)) step_done_ = Clock::now();
      on_output(out);
    });
  } catch (const std::bad_alloc&) {
    more = kOutOfMemory;
  }
  if (more) return *more;
  for (auto& a : active_)
    if (!a->paused) a->guarded([&] { a->error = more.error(); });
  return false;
}

void Service::run() {
  const uint32_t most = engine_->options().budget.max_tokens;
  publish_metrics();
  for (bool going = true; going;) {
    going = take_commands();
    admit();
    sweep();
    if (!going) break;
    const uint32_t decodes = uint32_t(std::count_if(by_sequence_.begin(), by_sequence_.end(), [](const auto& s) {
      return s.first && !s.first->paused && !s.first->reading && !s.second->over;
    }));
    engine_->set_max_prompt(chunks_.rows(decodes, most));
    const uint64_t backend_before = engine_->counters().backend_nanoseconds;
    const auto start = Clock::now();
    const bool stepped = step();
    sweep();
    const double seconds = Seconds(Clock::now() - start).count();
    if (stepped) {
      const Engine::StepSize size = engine_->last_step();
      chunks_.observe(size.decodes, size.prompt, size.prompt_keys, seconds);
      const uint64_t all = uint64_t(seconds * 1e9), backend = engine_->counters().backend_nanoseconds - backend_before;
      metrics_.step_nanoseconds.fetch_add(all, std::memory_order_relaxed);
      metrics_.host_nanoseconds.fetch_add(all - std::min(all, backend), std::memory_order_relaxed);
    }
    publish_metrics();
    refill_memory_reserve();
  }
  publish_metrics();
}

}  // namespace argent
