// A model that serves many at once: a thread of its own runs the engine's steps over all requests. Requests come from
// any thread, what happens to them is told by events on the service's thread.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "engine/metrics.h"
#include "engine/token_rule.h"
#include "sample/chain.h"

namespace argent {

enum class Finish {
  stop,       // the model ended its text, or a stop text or id came
  length,     // max_tokens, or the context is full
  cancelled,  // by cancel(), or by the service's end
};

struct TokenInfo {
  int32_t id;
  std::string bytes;                 // of the token; not always whole characters
  float log_prob = 0;                // where log_probs are asked for
  std::vector<sample::LogProb> top;  // the most likely ones, best first
};

// One of n answers.
struct AnswerEvent {
  uint32_t index = 0;
  std::string text;               // whole characters that came since the last event
  std::vector<TokenInfo> tokens;  // where log_probs are asked for: those behind the text, and behind what a stop held
  uint32_t n_tokens = 0;          // generated so far
  std::optional<Finish> finish;   // the answer's last event
  int stop = -1;                  // which stop text ended it
};

struct RequestUsage {
  uint32_t n_prompt = 0, n_reused = 0, n_generated = 0;  // tokens; generated: of all answers
  double queue_seconds = 0, prompt_seconds = 0, decode_seconds = 0;
};

// Where a request's events go; called on the service's thread, so no call waits for anything.
class RequestSink {
 public:
  virtual ~RequestSink() = default;
  virtual void started(const RequestUsage&) {}  // its prompt is about to be read
  // log_probs[i] belongs to token i of the prompt; [0] is empty.
  virtual void prompt_read(const RequestUsage&, std::vector<TokenInfo>) {}
  virtual void answer(AnswerEvent event) = 0;
  virtual void embedding(std::vector<float>) {}
  // The last call.
  virtual void done(const RequestUsage& usage) = 0;
  virtual void failed(const Error& error) = 0;
};

struct GenerationRequest {
  std::vector<int32_t> prompt;   // token ids, at least one
  uint32_t n = 1;                // answers; the prompt is computed once
  SampleParams sampling;         // answer i has sample_index i
  uint32_t max_tokens = 0;       // of an answer; 0: until the context is full
  uint32_t min_tokens = 0;       // before which no id that ends is drawn
  bool ignore_end = false;       // goes on after the model's end
  bool render_control = false;   // shows the texts of control tokens
  bool begins_text = false;      // an answer is a text of its own: SentencePiece's first space goes
  std::vector<int32_t> end_ids;  // beside the vocabulary's own
  std::vector<std::string> stop;
  std::vector<LogitBias> bias;
  std::optional<uint32_t> log_probs;  // of each token, with so many most likely ones
  std::optional<uint32_t> prompt_log_probs;
  std::unique_ptr<TokenRule> rule;
  int32_t priority = 0;

  enum class Pooling { none, mean, last };
  Pooling pooling = Pooling::none;  // not none: an embedding instead of answers
};

struct ServiceOptions {
  uint32_t parallel = 16;      // answers computed at once
  uint32_t max_queue = 1024;   // requests that wait; beyond, submit() fails with out_of_memory
  uint32_t max_answers = 128;  // n of a request
};

class Service {
 public:
  using RequestId = uint64_t;

  // An engine that is loaded; the service owns it from now on.
  static std::unique_ptr<Service> start(std::unique_ptr<Engine> engine, const ServiceOptions& options);
  ~Service();  // cancels what is open

  // invalid: an empty prompt, one that the context has no room for (both counts are named), ids outside the vocabulary,
  // n or a parameter out of range; out_of_memory: the queue is full. Otherwise the sink hears of it: memory that runs
  // out later fails the request that wanted it, and std::bad_alloc comes from here only.
  Result<RequestId> submit(GenerationRequest request, std::shared_ptr<RequestSink> sink);
  void cancel(RequestId id);              // within a step; done() follows. No effect on one that is over.
  void cancel_all();                      // the same of every request
  void pause(RequestId id, bool paused);  // by a reader that is slow: nothing is computed for it meanwhile
  // Takes no more requests; true once all are over, or false after the time.
  bool drain(std::chrono::milliseconds patience);

  // What stays as it is while the service lives, for any thread.
  const Model& model() const { return engine_->model(); }
  const gguf::File& file() const { return engine_->file(); }
  const Tokenizer* tokenizer() const { return engine_->tokenizer(); }
  uint32_t n_ctx() const { return engine_->n_ctx(); }
  const MemoryReport& memory() const { return engine_->memory(); }
  std::string layers_text() const { return engine_->layers_text(); }
  uint32_t parallel() const { return options_.parallel; }
  ServiceMetrics& metrics() { return metrics_; }

 private:
  struct Answer;
  struct Active;
  using Clock = std::chrono::steady_clock;

  Service(std::unique_ptr<Engine> engine, const ServiceOptions& options);
  // Requests go from list to list as nodes, which takes no memory that might be out.
  using Requests = std::list<std::unique_ptr<Active>>;

  Status check(const GenerationRequest& request) const;
  void run();
  bool take_commands();
  void admit();
  bool step();
  void open_answers(Active& a);
  void prepare(Answer& answer, const Active& a);
  void on_output(const StepOutput& out);
  void on_prompt_row(Active& a, Answer& answer, const StepOutput& out);
  void on_state(Active& a, Answer& answer, const StepOutput& out);
  void on_token(Active& a, Answer& answer, const StepOutput& out);
  void finish_answer(Active& a, Answer& answer, Finish how, std::string text);
  void close_answer(Active& a, Answer& answer, bool keep);
  void sweep();
  void publish_metrics();
  TokenInfo token_info(int32_t id, std::vector<sample::LogProb> probs) const;

  std::unique_ptr<Engine> engine_;
  ServiceOptions options_;
  ServiceMetrics metrics_;
  ChunkPolicy chunks_;

  struct Command {
    enum Kind { submit, cancel, cancel_all, pause, resume } kind;
    RequestId id;
    Requests request;  // of submit: one
  };
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Command> commands_;
  bool stopping_ = false, draining_ = false;
  size_t n_open_ = 0;  // requests not over
  RequestId next_id_ = 1;

  // Of the service's thread only.
  Requests queue_, active_;
  std::vector<std::pair<Active*, Answer*>> by_sequence_;
  uint32_t n_running_ = 0;       // answers with a sequence, but for those of paused requests
  Clock::time_point step_done_;  // when the last step's outputs were there

  std::thread thread_;
};

}  // namespace argent
