// POST /v1/responses: calls that stand for themselves, since nothing is kept between them.
#include "server/openai.h"

namespace argent::server {
namespace openai {
namespace {

// What an answer consists of, item by item, told in the documented order of events. One that is no stream is what the
// last event has in it.
class ResponseSink final : public CallSink {
 public:
  ResponseSink(std::shared_ptr<Reply> reply, const Parsed& parsed, const LoadedModel& model, Json response)
      : events_(std::move(reply)),
        stream_(parsed.streaming.stream),
        log_probs_(parsed.call.generation.log_probs.has_value()),
        tokenizer_(model.service->tokenizer()),
        response_(std::move(response)) {}

  void delta(CallDelta delta) override {
    if (delta.finish == FinishReason::cancelled) cancelled_ = true;
    if (cancelled_) return;
    begin();
    if (log_probs_)
      for (Json& each : chat_log_probs(delta.tokens, tokenizer_)) waiting_.push_back(std::move(each));
    const OutputDelta& output = delta.output;
    if (!output.reasoning.empty()) {
      open(Kind::reasoning);
      waiting_.clear();
      text_ += output.reasoning;
      tell("response.reasoning_text.delta", part_place({{"delta", output.reasoning}}));
      n_reasoning_ = delta.n_tokens;
    }
    if (!output.content.empty()) {
      open(Kind::message);
      text_ += output.content;
      tell("response.output_text.delta", part_place({{"delta", output.content}, {"logprobs", waiting_}}));
      keep_log_probs();
    }
    for (const ToolDelta& call : output.calls) {
      waiting_.clear();
      if (!call.name.empty()) {
        close("completed");
        call_id_ = call.id, name_ = call.name;
        open(Kind::call);
      }
      if (call.arguments.empty()) continue;
      text_ += call.arguments;
      tell("response.function_call_arguments.delta", place({{"delta", call.arguments}}));
    }
    if (!delta.finish) return;
    truncated_ = delta.finish == FinishReason::length;
    if (kind_ == Kind::none && response_["output"].empty()) open(Kind::message);
    if (kind_ == Kind::message) keep_log_probs();
    close(truncated_ ? "incomplete" : "completed");
  }

  void done(const RequestUsage& usage) override {
    if (cancelled_) return failed(fail(Code::cancelled, "the request was cancelled"));
    response_["status"] = truncated_ ? "incomplete" : "completed";
    if (truncated_) response_["incomplete_details"] = {{"reason", "max_output_tokens"}};
    response_["usage"] = {{"input_tokens", usage.n_prompt},
                          {"input_tokens_details", {{"cached_tokens", usage.n_reused}}},
                          {"output_tokens", usage.n_generated},
                          {"output_tokens_details", {{"reasoning_tokens", n_reasoning_}}},
                          {"total_tokens", usage.n_prompt + usage.n_generated}};
    response_["timings"] = timings(usage);
    if (!stream_) return events_.reply().send(200, to_text(response_));
    tell(truncated_ ? "response.incomplete" : "response.completed", {{"response", response_}});
    events_.end();
  }

  void failed(const Error& error) override {
    if (!begun_ || !stream_) return refuse(events_.reply(), {error, ""});
    response_["status"] = "failed";
    response_["error"] = {{"code", "server_error"}, {"message", error.message}};
    tell("response.failed", {{"response", response_}});
    events_.end();
  }

 private:
  enum class Kind { none, reasoning, message, call };

  void tell(std::string_view type, Json event) {
    if (!stream_) return;
    Json json{{"type", type}, {"sequence_number", n_events_++}};
    json.update(event);
    events_.send(server_event(json, type));
  }
  Json place(Json event) const {
    Json json{{"item_id", id_}, {"output_index", response_["output"].size()}};
    json.update(event);
    return json;
  }
  Json part_place(Json event) const {
    Json json = place({{"content_index", 0}});
    json.update(event);
    return json;
  }
  void begin() {
    if (std::exchange(begun_, true)) return;
    tell("response.created", {{"response", response_}});
    tell("response.in_progress", {{"response", response_}});
  }
  void keep_log_probs() {
    for (Json& each : waiting_) item_log_probs_.push_back(std::move(each));
    waiting_ = Json::array();
  }
  Json part() const {
    if (kind_ == Kind::reasoning) return {{"type", "reasoning_text"}, {"text", text_}};
    return {{"type", "output_text"}, {"text", text_}, {"annotations", Json::array()}, {"logprobs", item_log_probs_}};
  }
  // The open item; its content is there from its end on.
  Json item(std::string_view status) const {
    const Json parts = status == "in_progress" ? Json::array() : Json::array({part()});
    switch (kind_) {
      case Kind::reasoning:
        return {{"id", id_}, {"type", "reasoning"}, {"summary", Json::array()}, {"content", parts}, {"status", status}};
      case Kind::call:
        return {{"id", id_},     {"type", "function_call"}, {"call_id", call_id_},
                {"name", name_}, {"arguments", text_},      {"status", status}};
      default:
        return {{"id", id_}, {"type", "message"}, {"status", status}, {"role", "assistant"}, {"content", parts}};
    }
  }
  void open(Kind kind) {
    if (kind_ == kind) return;
    close("completed");
    kind_ = kind;
    id_ = random_id(kind == Kind::reasoning ? "rs_" : kind == Kind::message ? "msg_" : "fc_");
    text_.clear();
    item_log_probs_ = Json::array();
    tell("response.output_item.added", {{"output_index", response_["output"].size()}, {"item", item("in_progress")}});
    if (kind != Kind::call) tell("response.content_part.added", part_place({{"part", part()}}));
  }
  void close(std::string_view status) {
    if (kind_ == Kind::none) return;
    if (kind_ == Kind::call) {
      tell("response.function_call_arguments.done", place({{"name", name_}, {"arguments", text_}}));
    } else {
      Json end = part_place({{"text", text_}});
      if (kind_ == Kind::message) end["logprobs"] = item_log_probs_;
      tell(kind_ == Kind::message ? "response.output_text.done" : "response.reasoning_text.done", std::move(end));
      tell("response.content_part.done", part_place({{"part", part()}}));
    }
    Json whole = item(status);
    tell("response.output_item.done", {{"output_index", response_["output"].size()}, {"item", whole}});
    response_["output"].push_back(std::move(whole));
    kind_ = Kind::none;
  }

  Events events_;
  const bool stream_, log_probs_;
  const Tokenizer* tokenizer_;
  Json response_;
  uint64_t n_events_ = 0;
  uint32_t n_reasoning_ = 0;
  bool begun_ = false, cancelled_ = false, truncated_ = false;
  Json waiting_ = Json::array();  // log-probabilities behind text that has not come yet
  // Of the open item.
  Kind kind_ = Kind::none;
  std::string id_, text_, call_id_, name_;
  Json item_log_probs_ = Json::array();
};

// The text of a content or output: a string, or parts that are texts.
std::string read_parts(Fields& fields, const Json& content, const std::string& path) {
  if (content.is_string()) return content.get<std::string>();
  std::string text;
  if (!content.is_array()) {
    fields.fail_at(path, path + " wants a string or an array of parts");
    return text;
  }
  for (size_t i = 0; i < content.size(); ++i) {
    Fields part(content[i], fmt::format("{}[{}].", path, i));
    const auto type = part.word("type", {"input_text", "output_text", "text", "refusal"});
    if (!type) part.fail_at("type", fmt::format("{}[{}].type is missing", path, i));
    const auto piece = part.text(type == "refusal" ? "refusal" : "text");
    if (!piece) part.fail_at("text", fmt::format("{}[{}].text is missing", path, i));
    part.ignore({"annotations", "logprobs"});
    absorb(fields, part);
    if (i > 0) text += '\n';
    text += piece.value_or("");
  }
  return text;
}

// Items to messages: what the assistant said and called in one turn is one message.
class Conversation {
 public:
  explicit Conversation(Fields& fields) : fields_(fields) {}

  void add(const Json& json, const std::string& path) {
    Fields item(json, path + ".");
    const std::string type =
        item.word("type", {"message", "function_call", "function_call_output", "reasoning"}).value_or("message");
    item.ignore({"id", "status"});
    if (type == "message")
      add_message(item, path);
    else if (type == "function_call")
      add_call(item, path);
    else if (type == "function_call_output")
      messages_.push_back({{"role", "tool"},
                           {"tool_call_id", required(item, "call_id", path)},
                           {"content", parts(item, "output", path)}});
    else
      add_reasoning(item, path);
    absorb(fields_, item);
  }
  void say(std::string_view role, std::string text) {
    messages_.push_back({{"role", role}, {"content", std::move(text)}});
  }
  Json take() { return std::move(messages_); }

 private:
  std::string required(Fields& item, std::string_view name, const std::string& path) {
    const auto text = item.text(name);
    if (!text) item.fail_at(name, fmt::format("{}.{} is missing", path, name));
    return text.value_or("");
  }
  std::string parts(Fields& item, std::string_view name, const std::string& path) {
    const Json* content = item.find(name);
    if (!content) item.fail_at(name, fmt::format("{}.{} is missing", path, name));
    return content ? read_parts(fields_, *content, fmt::format("{}.{}", path, name)) : std::string();
  }
  Json& assistant() {
    if (messages_.empty() || messages_.back()["role"] != "assistant")
      messages_.push_back({{"role", "assistant"}, {"content", ""}});
    Json& message = messages_.back();
    if (!reasoning_.empty()) message["reasoning_content"] = std::exchange(reasoning_, {});
    return message;
  }
  void add_message(Fields& item, const std::string& path) {
    const auto role = item.word("role", {"user", "assistant", "system", "developer"});
    if (!role) item.fail_at("role", path + ".role is missing");
    item.ignore({"phase"});
    std::string text = parts(item, "content", path);
    if (role != "assistant") return say(role == "developer" ? "system" : role.value_or(""), std::move(text));
    if (!messages_.empty() && messages_.back()["role"] == "assistant" && messages_.back()["content"] != "")
      say("assistant", "");
    assistant()["content"] = std::move(text);
  }
  void add_call(Fields& item, const std::string& path) {
    const Json function{{"name", required(item, "name", path)}, {"arguments", required(item, "arguments", path)}};
    const std::string id = required(item, "call_id", path);
    assistant()["tool_calls"].push_back({{"id", id}, {"type", "function"}, {"function", function}});
  }
  void add_reasoning(Fields& item, const std::string& path) {
    item.array("summary");
    item.ignore({"encrypted_content"});
    const Json* content = item.array("content");
    for (size_t i = 0; content && i < content->size(); ++i) {
      const std::string at = fmt::format("{}.content[{}]", path, i);
      Fields part((*content)[i], at + ".");
      part.word("type", {"reasoning_text"});
      reasoning_ += required(part, "text", at);
      absorb(fields_, part);
    }
  }

  Fields& fields_;
  Json messages_ = Json::array();
  std::string reasoning_;  // before the assistant's next item
};

void read_input(Fields& fields, Call& call) {
  Conversation conversation(fields);
  if (auto instructions = fields.text("instructions")) conversation.say("system", std::move(*instructions));
  const Json* input = fields.find("input");
  if (!input) return fields.fail_at("input", "input is missing");
  if (input->is_string()) {
    conversation.say("user", input->get<std::string>());
  } else if (!input->is_array() || input->empty()) {
    return fields.fail_at("input", "input wants a string or an array of items");
  } else {
    for (size_t i = 0; i < input->size(); ++i) conversation.add((*input)[i], fmt::format("input[{}]", i));
  }
  call.messages = conversation.take();
}

void read_log_probs(Fields& fields, GenerationRequest& generation) {
  const auto top = fields.whole("top_logprobs", 0, 20);
  bool wanted = top.value_or(0) > 0;
  if (const auto include = fields.texts("include", 16))
    for (const std::string& each : *include) {
      if (each == "message.output_text.logprobs")
        wanted = true;
      else if (each != "reasoning.encrypted_content")  // reasoning comes as it is
        fields.fail_at("include", fmt::format("include has '{}', which there is not", each.substr(0, 60)));
    }
  if (wanted) generation.log_probs = uint32_t(top.value_or(0));
}

// 0.95 for 0.95f, not 0.949999988.
double shortest(float value) { return std::stod(fmt::format("{}", value)); }

// The response as it begins: the request's fields are echoed.
Json response_json(const Json& body, const Parsed& parsed, const LoadedModel& model) {
  const auto given = [&](const char* name, Json otherwise) {
    return body.contains(name) && !body[name].is_null() ? body[name] : otherwise;
  };
  const SampleParams& sampling = parsed.call.generation.sampling;
  return {{"id", random_id("resp_")},
          {"object", "response"},
          {"created_at", unix_time()},
          {"status", "in_progress"},
          {"background", false},
          {"error", nullptr},
          {"incomplete_details", nullptr},
          {"instructions", given("instructions", nullptr)},
          {"max_output_tokens", given("max_output_tokens", nullptr)},
          {"model", model.name},
          {"output", Json::array()},
          {"parallel_tool_calls", parsed.call.parallel_tool_calls},
          {"previous_response_id", nullptr},
          {"reasoning", given("reasoning", {{"effort", nullptr}, {"summary", nullptr}})},
          {"store", false},
          {"temperature", shortest(sampling.temperature)},
          {"text", given("text", {{"format", {{"type", "text"}}}})},
          {"tool_choice", given("tool_choice", "auto")},
          {"tools", given("tools", Json::array())},
          {"top_p", shortest(sampling.top_p)},
          {"truncation", "disabled"},
          {"usage", nullptr},
          {"metadata", given("metadata", Json::object())}};
}

void handle_responses(ModelHost& host, const server::Request& request, const std::shared_ptr<Reply>& reply) {
  const auto body = read_body(request);
  if (!body) return refuse(*reply, {body.error(), ""});
  Parsed parsed;
  if (const auto refusal = read_responses(*body, parsed)) return refuse(*reply, *refusal);
  std::shared_ptr<LoadedModel> model;
  if (const auto refusal = prepare(host, parsed, model)) return refuse(*reply, *refusal);
  auto sink = std::make_shared<ResponseSink>(reply, parsed, *model, response_json(*body, parsed, *model));
  const auto running = start(model, std::move(parsed.call), std::move(sink));
  if (!running) return refuse(*reply, blame(running.error(), *body, "input"));
  tie(reply, *running);
}

}  // namespace

std::optional<Refusal> read_responses(const Json& body, Parsed& out) {
  Fields fields(body);
  Call& call = out.call;
  call.model = fields.text("model").value_or("");
  for (const char* name : {"previous_response_id", "conversation"})
    if (fields.find(name)) fields.fail_at(name, fmt::format("{}: responses are not kept, send all of the input", name));
  if (fields.flag("background").value_or(false)) fields.fail_at("background", "background: responses are not kept");
  read_input(fields, call);
  call.continue_last = false;
  out.sampling = read_sampling(fields);
  read_max_tokens(fields, {"max_output_tokens"}, call.generation);
  out.streaming = read_streaming(fields);
  read_log_probs(fields, call.generation);
  read_tools(fields, true, call);
  if (const Json* text = fields.object("text")) {
    Fields inner(*text, "text.");
    if (const Json* format = inner.object("format")) read_format(fields, *format, "text.format", true, out);
    absorb(fields, inner);
  }
  if (const Json* reasoning = fields.object("reasoning")) {
    Fields inner(*reasoning, "reasoning.");
    read_effort(inner, "effort", call);
    inner.ignore({"summary", "generate_summary"});
    absorb(fields, inner);
  }
  check_forced_call(fields, out);
  fields.word("truncation", {"disabled"});
  fields.ignore(
      {"store", "user", "metadata", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"});
  if (const Status status = fields.finish(); !status) return Refusal{status.error(), fields.error_field()};
  return std::nullopt;
}

}  // namespace openai

void add_responses_routes(const ApiContext& api) {
  api.server->route("POST", "/v1/responses", [host = api.host](Request request, std::shared_ptr<Reply> reply) {
    openai::handle_responses(*host, request, reply);
  });
  for (const char* method : {"GET", "DELETE"})
    api.server->route(method, "/v1/responses/{id}", [](Request, std::shared_ptr<Reply> reply) {
      openai::refuse(*reply, {fail(Code::invalid, "store: responses are not kept"), "store"});
    });
}

}  // namespace argent::server
