// What the OpenAI interfaces share: errors in their form, the fields they have in common, a stream of events.
//   openai_fields.cc: requests to calls;  openai_answer.cc: deltas to JSON;  the others: one route each
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/api.h"
#include "server/fields.h"

namespace argent::server::openai {

// ---- Errors

// What a request is refused with; field: "param" of OpenAI's errors, "" where none is to blame.
struct Refusal {
  Error error;
  std::string field;
};

// {"error": {"message", "type", "param", "code"}}
Json error_json(const Refusal& refusal);
void refuse(Reply& reply, const Refusal& refusal);
// The field of the body that a message begins with: "messages[2].content" of "messages[2].content is ...". "": none.
std::string field_of(const Error& error, const Json& body);
// An error of start(): where it names no field, what is malformed is the prompt's.
Refusal blame(const Error& error, const Json& body, std::string_view prompt_field);

// ---- Requests

Result<Json> read_body(const server::Request& request);

// What a request says of sampling; LoadedModel::sampling() stands for the rest.
struct Sampling {
  std::optional<float> temperature, top_p, min_p, repeat_penalty, presence_penalty, frequency_penalty;
  std::optional<uint32_t> top_k, repeat_last_n;
  std::optional<uint64_t> seed;

  SampleParams over(SampleParams defaults) const;
};

struct Streaming {
  bool stream = false;
  bool include_usage = false;  // one more chunk at the end
};

// A call with what its route needs beside it.
struct Parsed {
  Call call;
  Sampling sampling;
  Streaming streaming;
};

// Each reads its fields and leaves its first error in them.
Sampling read_sampling(Fields& fields);
// n, min_tokens, stop, stop_token_ids, ignore_eos, logit_bias, priority.
void read_generation(Fields& fields, GenerationRequest& generation);
// Tokens of an answer at most; -1 is as many as there is room for.
void read_max_tokens(Fields& fields, std::initializer_list<std::string_view> names, GenerationRequest& generation);
Streaming read_streaming(Fields& fields);
// grammar, json_schema and the guided_* fields; response_format where there is one.
void read_constraint(Fields& fields, Parsed& parsed);
// {type: text | json_object | json_schema, ...} at `path`: response_format, and the Responses interface's text.format,
// where (flat) the schema stands in the object itself.
void read_format(Fields& fields, const Json& format, const std::string& path, bool flat, Parsed& parsed);
// tools, tool_choice, parallel_tool_calls. flat: as the Responses interface has them, without "function" around.
void read_tools(Fields& fields, bool flat, Call& call);
// A forced call and a constraint of the answer's text exclude each other.
void check_forced_call(Fields& fields, const Parsed& parsed);
// none and minimal: no reasoning; low: at most 512 tokens of it, medium: 2048; high and xhigh: as much as it likes.
void read_effort(Fields& fields, std::string_view name, Call& call);
// Roles, and what has no place in a text model; "developer" becomes "system".
void read_messages(Fields& fields, Call& call);
// A text, ids, or an array of either; an empty one is an error. For "prompt" and "input".
struct Prompt {
  std::optional<std::string> text;
  std::optional<std::vector<int32_t>> ids;
};
std::vector<Prompt> read_prompts(Fields& fields, std::string_view name, size_t most);
// The error of an object inside of the body's, an unread field included.
void absorb(Fields& body, Fields& inner);

// The whole of /v1/chat/completions and /v1/responses.
std::optional<Refusal> read_chat(const Json& body, Parsed& out);
std::optional<Refusal> read_responses(const Json& body, Parsed& out);

// The model of a request, its defaults applied, so that start() is all that is left.
std::optional<Refusal> prepare(ModelHost& host, Parsed& parsed, std::shared_ptr<LoadedModel>& model);

// ---- Answers

// The bytes of a token as its text shows them.
std::string bytes_of(const Tokenizer* tokenizer, int32_t id);
// {"content": [{"token", "logprob", "bytes", "top_logprobs"}]}: its entries.
Json chat_log_probs(const std::vector<TokenInfo>& tokens, const Tokenizer* tokenizer);
// [null, {"id": {"logprob", "decoded_token"}}, ...], as vLLM has it.
Json prompt_log_probs(const std::vector<TokenInfo>& tokens, const Tokenizer* tokenizer);
std::string_view finish_word(FinishReason reason);
// One delta as a chunk's; the calls' ids and names come in the first piece of each.
Json chat_delta(const OutputDelta& output);
// JSON has no infinity: what is less likely than e^-9999 is that.
double finite(float log_prob);

// Answers that are collected to be sent as one.
struct Collected {
  std::string content, reasoning;
  std::vector<ToolDelta> calls;  // complete
  std::optional<FinishReason> finish;
  uint32_t n_tokens = 0, n_reasoning = 0;  // reasoning: tokens up to the end of it

  void add(const CallDelta& delta);
  Json message() const;  // {"role", "content", "reasoning_content", "tool_calls"}
};

int64_t unix_time();  // seconds
Json usage_json(const RequestUsage& usage, uint32_t n_reasoning);

// Server-sent events. Headers go with the first event, so that what fails before it has a status of its own.
class Events {
 public:
  explicit Events(std::shared_ptr<Reply> reply) : reply_(std::move(reply)) {}
  void send(std::string event);
  // An error frame, or the whole answer where nothing was sent; either way the last call.
  void fail(const Refusal& refusal);
  void end() { reply_->end(); }
  Reply& reply() { return *reply_; }

 private:
  std::shared_ptr<Reply> reply_;
  bool begun_ = false;
};

// Chunks that are a piece of text and nothing else, as most are, written without building their JSON: the same bytes in
// a tenth of the time.
class TextChunks {
 public:
  // head: what every chunk begins with.
  TextChunks(const Json& head, bool chat, bool include_usage);
  std::string event(size_t index, std::string_view text) const;

 private:
  static void append_json(std::string& out, std::string_view text);
  std::string before_, between_, end_;  // with the index and the text, or the text and the index, between them
  bool text_first_ = false;
};

void add_completions_routes(const ApiContext& api);
void add_embeddings_routes(const ApiContext& api);

}  // namespace argent::server::openai
