// What every HTTP interface asks of the server in the end: a call in one form, answered by deltas in one form. Adapters
// (openai.cc, anthropic.cc, ollama.cc, llama_server.cc) translate their JSON to a Call, and what comes back to theirs.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "chat/json_input.h"
#include "chat/output.h"
#include "engine/chat_format.h"
#include "engine/service.h"
#include "grammar/grammar.h"
#include "server/http.h"

namespace argent::server {

class CallOpenings;

// A model that serves, with what turns requests into tokens and tokens into answers. Immutable but for its service.
struct LoadedModel {
  std::string name;  // as /v1/models lists it
  std::string path;
  int64_t created = 0;  // the file's time, seconds since 1970
  std::unique_ptr<Service> service;
  std::optional<ChatFormat> chat;
  std::string no_chat;  // why there is none
  OutputForm output;
  GenerationRequest::Pooling pooling = GenerationRequest::Pooling::mean;
  SampleParams defaults{.temperature = 0.8f};  // sampling where a request says nothing
  bool fixed_seed = false;                     // the seed too: otherwise each request has one of its own

  SampleParams sampling() const;  // the defaults, with a seed

  // Made on first use. unsupported: no tokenizer.
  Result<std::shared_ptr<grammar::Compiler>> grammars() const;
  // The same, of a form of its answers.
  std::shared_ptr<const CallOpenings> openings(const OutputForm& form) const;

 private:
  mutable std::mutex mutex_;
  mutable std::shared_ptr<grammar::Compiler> grammars_;
  mutable std::map<std::string, std::shared_ptr<const CallOpenings>> openings_;  // by the mark of thoughts
};

// Structured output.
struct Constraint {
  enum class Kind { none, json_object, json_schema, regex, gbnf, choice };
  Kind kind = Kind::none;
  std::string text;  // the schema, pattern or grammar
  std::vector<std::string> choices;
  std::string field = {};  // of the request, which errors name
};

struct Call {
  std::string model;  // as the request names it; "" is the default model

  // What is answered: messages (through the chat template), else a text, else ids.
  std::optional<Json> messages;  // OpenAI's form
  std::optional<std::string> text;
  bool parse_special = false;  // the texts of control tokens in `text` are those tokens
  bool add_bos = true;
  std::optional<std::vector<int32_t>> ids;

  // Of messages:
  Json tools;  // OpenAI's form; null: none
  enum class ToolChoice { automatic, none, required };
  ToolChoice tool_choice = ToolChoice::automatic;
  std::set<std::string> callable;      // the tools that may be called; empty: all
  std::set<std::string> strict_tools;  // whose parameters are enforced, or refused
  bool parallel_tool_calls = true;
  Json variables = Json::object();       // chat_template_kwargs
  bool continue_last = true;             // a last message of the assistant is continued
  bool split_reasoning = true;           // reasoning apart from content
  std::optional<bool> think;             // on or off, where the template knows how
  std::optional<uint32_t> think_budget;  // tokens of reasoning at most

  Constraint constraint;
  GenerationRequest generation;  // the rule is made from the above, and the prompt by make_prompt()

  // Made with the prompt:
  OutputForm form;    // of the answers
  std::string begun;  // of a message that is continued: what answers go on from
};

enum class FinishReason { stop, length, tool_calls, cancelled };

// Of one of n answers.
struct CallDelta {
  uint32_t index = 0;
  OutputDelta output;             // completions use output.content only
  std::vector<TokenInfo> tokens;  // where log_probs are asked for
  std::optional<FinishReason> finish;
  std::string stop;       // the stop text that ended it
  uint32_t n_tokens = 0;  // generated so far
};

// Called on the service's thread: translate and write, and do not wait.
class CallSink {
 public:
  virtual ~CallSink() = default;
  virtual void prompt(const std::vector<TokenInfo>&) {}  // where prompt_log_probs are asked for
  virtual void delta(CallDelta delta) = 0;
  virtual void embedding(std::vector<float>) {}
  virtual void done(const RequestUsage& usage) = 0;  // the last call, or
  virtual void failed(const Error& error) = 0;
};

// A call that runs. It does not keep the model: what runs on a model's own thread must not be the last to let it go, so
// the host keeps a model until its requests are over.
class Running {
 public:
  Running() = default;
  Running(const std::shared_ptr<LoadedModel>& model, Service::RequestId id)
      : model_(model), name_(model->name), id_(id) {}
  void cancel() const {
    if (const auto m = model_.lock()) m->service->cancel(id_);
  }
  void pause(bool paused) const {
    if (const auto m = model_.lock()) m->service->pause(id_, paused);
  }
  const std::string& model_name() const { return name_; }

 private:
  std::weak_ptr<LoadedModel> model_;
  std::string name_;
  Service::RequestId id_ = 0;
};

// The models of a server; models.h has the one that loads on demand.
class ModelHost {
 public:
  virtual ~ModelHost() = default;
  // Loads it where needed, which takes as long as it takes. not_found: no such model, with those there are.
  virtual Result<std::shared_ptr<LoadedModel>> get(const std::string& name) = 0;

  struct Entry {
    std::string name, path;
    int64_t created = 0;
    uint64_t bytes = 0;
    enum class State { unloaded, loading, loaded, failed } state = State::unloaded;
    double progress = 0;  // while loading, 0 to 1
    uint32_t n_ctx = 0;   // 0 while it is not loaded
    bool pinned = false;
    std::string error;  // of failed
  };
  virtual std::vector<Entry> list() = 0;
  virtual Status load(const std::string& name, bool pin) = 0;
  virtual Status unload(const std::string& name) = 0;  // requests that run are let finish
};

// Renders and tokenizes, once for a call.
Status make_prompt(const LoadedModel& model, Call& call);
// Begins a call: finds the model, makes the prompt unless it was made, compiles. Errors come before anything is
// computed.
Result<Running> start(ModelHost& host, Call call, std::shared_ptr<CallSink> sink);
// On this model, whatever happens to its name meanwhile: for sinks that refer to something of it.
Result<Running> start(const std::shared_ptr<LoadedModel>& model, Call call, std::shared_ptr<CallSink> sink);
// The prompt's text of a call with messages.
Result<std::string> render_prompt(const LoadedModel& model, const Call& call);

// The client's going cancels the call, its slowness pauses it.
void tie(const std::shared_ptr<Reply>& reply, const Running& running);

// HTTP status of an error.
int status_of(const Error& error);

// Random, as in "chatcmpl-3f9a...": 24 hexadecimal digits.
std::string random_id(std::string_view prefix);
// JSON text that is valid whatever bytes are in it.
std::string to_text(const Json& json);
// "data: ...\n\n", with an event's name before it where there is one.
std::string server_event(const Json& json, std::string_view event = {});
// {"prompt_n", "prompt_ms", "prompt_per_second", "cache_n", "predicted_n", "predicted_ms", "predicted_per_second",
// "queue_ms"}
Json timings(const RequestUsage& usage);

// The body of an error as Anthropic's interface has it.
Json anthropic_error(int status, std::string_view message);

struct ApiContext {
  ModelHost* host;
  Server* server;
};
// Adds the routes of each interface.
void add_openai_routes(const ApiContext& api);
void add_responses_routes(const ApiContext& api);
void add_anthropic_routes(const ApiContext& api);
void add_ollama_routes(const ApiContext& api);
void add_llama_server_routes(const ApiContext& api);
void add_operations_routes(const ApiContext& api);  // /health, /metrics, models, /openapi.json
void add_page_routes(const ApiContext& api);
std::vector<std::string> page_paths();

}  // namespace argent::server
