// POST /v1/chat/completions.
#include "server/openai.h"

namespace argent::server {
namespace openai {
namespace {

// From a call's deltas to one answer, or to the chunks of a stream. The service's thread calls, which the model and its
// tokenizer outlive; the model itself is not kept here, since the last to let go of it would wait for that thread.
class ChatSink final : public CallSink {
 public:
  ChatSink(std::shared_ptr<Reply> reply, const Parsed& parsed, const LoadedModel& model)
      : events_(std::move(reply)),
        streaming_(parsed.streaming),
        log_probs_(parsed.call.generation.log_probs.has_value()),
        tokenizer_(model.service->tokenizer()),
        answers_(parsed.call.generation.n),
        begun_(answers_.size()),
        log_prob_lists_(log_probs_ ? answers_.size() : 0, Json::array()),
        head_{{"id", random_id("chatcmpl-")},
              {"object", streaming_.stream ? "chat.completion.chunk" : "chat.completion"},
              {"created", unix_time()},
              {"model", model.name},
              {"system_fingerprint", "argent"}},
        text_chunks_(head_, true, streaming_.include_usage) {}

  void prompt(const std::vector<TokenInfo>& tokens) override {
    prompt_log_probs_ = prompt_log_probs(tokens, tokenizer_);
  }

  void delta(CallDelta delta) override {
    Collected& answer = answers_[delta.index];
    if (delta.finish == FinishReason::cancelled) cancelled_ = true;
    if (!streaming_.stream) {
      answer.add(delta);
      if (log_probs_)
        for (Json& each : chat_log_probs(delta.tokens, tokenizer_))
          log_prob_lists_[delta.index].push_back(std::move(each));
      return;
    }
    if (cancelled_) return;
    if (!begun_[delta.index]) chunk(delta.index, {{"role", "assistant"}, {"content", ""}});
    begun_[delta.index] = true;
    if (!delta.output.reasoning.empty()) answer.n_reasoning = delta.n_tokens;
    const OutputDelta& output = delta.output;
    if (!output.content.empty() && output.reasoning.empty() && output.calls.empty() && delta.tokens.empty())
      events_.send(text_chunks_.event(delta.index, output.content));
    else if (!output.empty() || !delta.tokens.empty())
      chunk(delta.index, chat_delta(delta.output), &delta.tokens);
    if (!delta.finish) return;
    // Held back: the last one has the timings with it, which are known when all is done.
    flush();
    held_ = chunk_json(delta.index, Json::object(), nullptr, delta.finish);
  }

  void done(const RequestUsage& usage) override {
    if (cancelled_) return failed(fail(Code::cancelled, "the request was cancelled"));
    uint32_t n_reasoning = 0;
    for (const Collected& answer : answers_) n_reasoning += answer.n_reasoning;
    if (streaming_.stream) {
      if (streaming_.include_usage) {
        flush();
        held_ = head_;
        held_["choices"] = Json::array();
        held_["usage"] = usage_json(usage, n_reasoning);
      }
      held_["timings"] = timings(usage);
      flush();
      events_.send("data: [DONE]\n\n");
      return events_.end();
    }
    Json body = head_;
    Json& choices = body["choices"] = Json::array();
    for (size_t i = 0; i < answers_.size(); ++i) {
      const Json list = log_probs_ ? Json{{"content", std::move(log_prob_lists_[i])}, {"refusal", nullptr}} : Json();
      choices.push_back({{"index", i},
                         {"message", answers_[i].message()},
                         {"logprobs", list},
                         {"finish_reason", finish_word(answers_[i].finish.value_or(FinishReason::stop))}});
    }
    if (!prompt_log_probs_.is_null()) body["prompt_logprobs"] = prompt_log_probs_;
    body["usage"] = usage_json(usage, n_reasoning);
    body["timings"] = timings(usage);
    events_.reply().send(200, to_text(body));
  }

  void failed(const Error& error) override { events_.fail({error, ""}); }

 private:
  Json chunk_json(uint32_t index, Json delta, const std::vector<TokenInfo>* tokens,
                  std::optional<FinishReason> finish) {
    Json json = head_;
    Json choice{{"index", index}, {"delta", std::move(delta)}};
    choice["logprobs"] = log_probs_ && tokens && !tokens->empty()
                             ? Json{{"content", chat_log_probs(*tokens, tokenizer_)}, {"refusal", nullptr}}
                             : Json();
    choice["finish_reason"] = finish ? Json(finish_word(*finish)) : Json();
    json["choices"] = Json::array({std::move(choice)});
    if (streaming_.include_usage) json["usage"] = nullptr;
    return json;
  }
  void chunk(uint32_t index, Json delta, const std::vector<TokenInfo>* tokens = nullptr) {
    events_.send(server_event(chunk_json(index, std::move(delta), tokens, {})));
  }
  void flush() {
    if (!held_.is_null()) events_.send(server_event(held_));
    held_ = nullptr;
  }

  Events events_;
  const Streaming streaming_;
  const bool log_probs_;
  const Tokenizer* tokenizer_;
  std::vector<Collected> answers_;
  std::vector<bool> begun_;  // had its role
  std::vector<Json> log_prob_lists_;
  Json prompt_log_probs_;
  const Json head_;
  const TextChunks text_chunks_;
  Json held_;
  bool cancelled_ = false;
};

void read_variables(Fields& fields, Call& call) {
  if (const Json* variables = fields.object("chat_template_kwargs")) call.variables = *variables;
  read_effort(fields, "reasoning_effort", call);
  if (const auto think = fields.flag("enable_thinking")) call.think = think;
  if (const auto budget = fields.whole("thinking_budget", -1, INT32_MAX)) {
    call.think_budget.reset();
    if (*budget >= 0) call.think_budget = uint32_t(*budget);
  }
  if (const auto format = fields.word("reasoning_format", {"none", "auto", "deepseek"}))
    call.split_reasoning = *format != "none";
}

// Whether the last message is continued; both flags say the same of it.
void read_continuation(Fields& fields, Call& call) {
  const auto prompted = fields.flag("add_generation_prompt");
  const auto continued = fields.flag("continue_final_message");
  if (prompted && continued && *prompted == *continued)
    return fields.fail_at("continue_final_message",
                          fmt::format("add_generation_prompt and continue_final_message are both {}", *prompted));
  call.continue_last = continued.value_or(!prompted.value_or(false));
  const bool asked = continued.value_or(false) || !prompted.value_or(true);
  if (asked && call.messages && call.messages->back()["role"] != "assistant") {
    const char* name = continued ? "continue_final_message" : "add_generation_prompt";
    fields.fail_at(name, fmt::format("{}: there is no last message of the assistant to continue", name));
  }
}

void handle_chat(ModelHost& host, const server::Request& request, const std::shared_ptr<Reply>& reply) {
  const auto body = read_body(request);
  if (!body) return refuse(*reply, {body.error(), ""});
  Parsed parsed;
  if (const auto refusal = read_chat(*body, parsed)) return refuse(*reply, *refusal);
  std::shared_ptr<LoadedModel> model;
  if (const auto refusal = prepare(host, parsed, model)) return refuse(*reply, *refusal);
  auto sink = std::make_shared<ChatSink>(reply, parsed, *model);
  const auto running = start(model, std::move(parsed.call), std::move(sink));
  if (!running) return refuse(*reply, blame(running.error(), *body, "messages"));
  tie(reply, *running);
}

}  // namespace

std::optional<Refusal> read_chat(const Json& body, Parsed& out) {
  Fields fields(body);
  Call& call = out.call;
  call.model = fields.text("model").value_or("");
  read_messages(fields, call);
  out.sampling = read_sampling(fields);
  read_max_tokens(fields, {"max_completion_tokens", "max_tokens"}, call.generation);
  read_generation(fields, call.generation);
  out.streaming = read_streaming(fields);

  const bool log_probs = fields.flag("logprobs").value_or(false);
  const auto top = fields.whole("top_logprobs", 0, 20);
  if (top && !log_probs) fields.fail_at("top_logprobs", "top_logprobs wants logprobs to be true");
  if (log_probs) call.generation.log_probs = uint32_t(top.value_or(0));
  if (const auto prompt = fields.whole("prompt_logprobs", 0, 20)) {
    if (out.streaming.stream) fields.fail_at("prompt_logprobs", "prompt_logprobs is not for streams");
    call.generation.prompt_log_probs = uint32_t(*prompt);
  }

  read_variables(fields, call);
  read_continuation(fields, call);
  read_constraint(fields, out);
  read_tools(fields, false, call);
  check_forced_call(fields, out);
  if (const auto modalities = fields.texts("modalities", 4))
    for (const std::string& each : *modalities)
      if (each != "text")
        fields.fail_at("modalities", fmt::format("modalities has '{}': this server gives text", each.substr(0, 40)));
  fields.ignore({"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
                 "prompt_cache_retention", "cache_prompt"});
  if (const Status status = fields.finish(); !status) return Refusal{status.error(), fields.error_field()};
  return std::nullopt;
}

}  // namespace openai

void add_openai_routes(const ApiContext& api) {
  for (const char* path : {"/v1/chat/completions", "/chat/completions"})
    api.server->route("POST", path, [host = api.host](Request request, std::shared_ptr<Reply> reply) {
      openai::handle_chat(*host, request, reply);
    });
  openai::add_completions_routes(api);
  openai::add_embeddings_routes(api);
}

}  // namespace argent::server
