// Anthropic's Messages: POST /v1/messages and /v1/messages/count_tokens.
#include <mutex>

#include "server/adapters.h"

namespace argent::server {
namespace {

struct Messages {
  Call call;
  bool stream = false;
  bool show_thinking = false;
};

void add_part(Json& message, std::string text) {
  message["content"].push_back({{"type", "text"}, {"text", std::move(text)}});
}

// The message at the end that this role goes on writing: turns of one role in a row are one turn.
Json& open_message(Json& messages, std::string_view role) {
  if (messages.empty() || messages.back()["role"] != role || role == "tool")
    messages.push_back({{"role", role}, {"content", Json::array()}});
  return messages.back();
}

// A string, or an array of text blocks; what is in them is given to `take` one by one.
Status read_texts(const Json& value, const std::string& path, const std::function<void(std::string)>& take) {
  if (value.is_string()) {
    take(value.get<std::string>());
    return {};
  }
  if (!value.is_array()) return fail(Code::invalid, "{} wants a string or an array of blocks", path);
  for (size_t i = 0; i < value.size(); ++i) {
    Fields block(value[i], fmt::format("{}[{}].", path, i));
    const auto type = block.text("type");
    if (type && *type != "text")
      return fail(Code::unsupported, "{}[{}]: blocks of type '{}' are not supported", path, i, type->substr(0, 40));
    auto text = block.text("text");
    block.ignore({"cache_control", "citations"});
    if (!type || !text) block.fail_at("text", fmt::format("{}[{}] wants a type and a text", path, i));
    ARGENT_TRY(block.finish());
    take(*std::move(text));
  }
  return {};
}

class MessageReader {
 public:
  Result<Json> read(const Json& system, const Json& messages) {
    if (!system.is_null()) {
      Json& message = open_message(out_, "system");
      ARGENT_TRY(read_texts(system, "system", [&](std::string text) { add_part(message, std::move(text)); }));
    }
    if (!messages.is_array() || messages.empty()) return fail(Code::invalid, "messages wants an array with messages");
    for (size_t i = 0; i < messages.size(); ++i) ARGENT_TRY(read_message(messages[i], fmt::format("messages[{}]", i)));
    for (Json& message : out_) {
      Json& content = message["content"];
      if (content.empty()) content = "";
      if (content.size() == 1 && content.is_array()) content = Json(content[0]["text"]);
    }
    return std::move(out_);
  }

 private:
  Status read_message(const Json& message, const std::string& path) {
    Fields fields(message, path + ".");
    const auto role = fields.word("role", {"user", "assistant", "system"});
    const Json* content = fields.find("content");
    if (!role) fields.fail_at("role", path + ".role is missing");
    if (!content) fields.fail_at("content", path + ".content is missing");
    ARGENT_TRY(fields.finish());
    if (content->is_string() || *role == "system") {
      Json& open = open_message(out_, *role);
      return read_texts(*content, path + ".content", [&](std::string text) { add_part(open, std::move(text)); });
    }
    if (!content->is_array()) return fail(Code::invalid, "{}.content wants a string or an array of blocks", path);
    if (content->empty()) open_message(out_, *role);
    for (size_t i = 0; i < content->size(); ++i)
      ARGENT_TRY(read_block((*content)[i], *role, fmt::format("{}.content[{}]", path, i)));
    return {};
  }

  Status read_block(const Json& block, const std::string& role, const std::string& path) {
    Fields fields(block, path + ".");
    const std::string type = fields.text("type").value_or("");
    ARGENT_TRY(fields.status());
    const bool assistant = role == "assistant";
    const auto wanted = [&](std::string_view name) {
      auto text = fields.text(name);
      if (!text) fields.fail_at(name, fmt::format("{}.{} is missing", path, name));
      return text.value_or("");
    };
    fields.ignore({"cache_control"});
    if (type == "text") {
      std::string text = wanted("text");
      fields.ignore({"citations"});
      ARGENT_TRY(fields.finish());
      add_part(open_message(out_, role), std::move(text));
    } else if (type == "thinking" && assistant) {
      const std::string text = wanted("thinking");
      fields.ignore({"signature"});
      ARGENT_TRY(fields.finish());
      Json& message = open_message(out_, role);
      message["reasoning_content"] = message.value("reasoning_content", std::string()) + text;
    } else if (type == "redacted_thinking" && assistant) {  // another model's secret: nothing to show
    } else if (type == "tool_use" && assistant) {
      const std::string id = wanted("id"), name = wanted("name");
      const Json* input = fields.object("input");
      fields.ignore({"caller"});
      ARGENT_TRY(fields.finish());
      names_[id] = name;
      open_message(out_, role)["tool_calls"].push_back(
          {{"id", id},
           {"type", "function"},
           {"function", {{"name", name}, {"arguments", input ? *input : Json::object()}}}});
    } else if (type == "tool_result" && !assistant) {
      const std::string id = wanted("tool_use_id");
      const Json* content = fields.find("content");
      const bool is_error = fields.flag("is_error").value_or(false);
      ARGENT_TRY(fields.finish());
      const auto name = names_.find(id);
      if (name == names_.end())
        return fail(Code::invalid, "{}.tool_use_id is '{}', which no tool_use before has", path, id.substr(0, 80));
      std::string all = is_error ? "Error: " : "";
      bool first = true;
      if (content)
        ARGENT_TRY(read_texts(*content, path + ".content", [&](std::string text) {
          if (!std::exchange(first, false)) all += "\n";
          all += text;
        }));
      out_.push_back({{"role", "tool"}, {"tool_call_id", id}, {"name", name->second}, {"content", Json::array()}});
      add_part(out_.back(), std::move(all));
    } else {
      return fail(type.empty() ? Code::invalid : Code::unsupported,
                  "{}: blocks of type '{}' are not supported in messages of role {}", path, type.substr(0, 40), role);
    }
    return {};
  }

  Json out_ = Json::array();
  std::map<std::string, std::string> names_;  // of tools, by the ids of their uses
};

Status read_tools(const Json& tools, Call& call) {
  call.tools = Json::array();
  for (size_t i = 0; i < tools.size(); ++i) {
    Fields tool(tools[i], fmt::format("tools[{}].", i));
    if (const auto type = tool.text("type"); type && *type != "custom")
      return fail(Code::unsupported, "tools[{}]: type '{}' is not supported, only custom tools are", i,
                  type->substr(0, 40));
    const auto name = tool.text("name");
    const auto description = tool.text("description");
    const Json* schema = tool.object("input_schema");
    const bool strict = tool.flag("strict").value_or(false);
    if (tool.flag("defer_loading").value_or(false))
      tool.fail_at("defer_loading", fmt::format("tools[{}].defer_loading: true is not supported", i));
    tool.ignore({"cache_control", "eager_input_streaming", "input_examples", "allowed_callers"});
    if (!name || name->empty()) tool.fail_at("name", fmt::format("tools[{}].name is missing", i));
    if (!schema) tool.fail_at("input_schema", fmt::format("tools[{}].input_schema is missing", i));
    ARGENT_TRY(tool.finish());
    Json function = {{"name", *name}};
    if (description) function["description"] = *description;
    function["parameters"] = *schema;
    call.tools.push_back({{"type", "function"}, {"function", std::move(function)}});
    if (strict) call.strict_tools.insert(*name);
  }
  return {};
}

Status read_tool_choice(const Json& choice, Call& call) {
  Fields fields(choice, "tool_choice.");
  const auto type = fields.word("type", {"auto", "any", "tool", "none"});
  const auto name = fields.text("name");
  call.parallel_tool_calls = !fields.flag("disable_parallel_tool_use").value_or(false);
  if (!type) fields.fail_at("type", "tool_choice.type is missing");
  ARGENT_TRY(fields.finish());
  using Choice = Call::ToolChoice;
  call.tool_choice = *type == "auto" ? Choice::automatic : *type == "none" ? Choice::none : Choice::required;
  if (*type == "auto" || *type == "none") return {};
  if (call.tools.empty()) return fail(Code::invalid, "tool_choice.type is '{}', but there are no tools", *type);
  if (*type == "any") return {};
  if (!name) return fail(Code::invalid, "tool_choice.name is missing");
  for (const Json& tool : call.tools)
    if (tool["function"]["name"] == *name) {
      call.callable = {*name};
      return {};
    }
  return fail(Code::invalid, "tool_choice.name is '{}', which is none of the tools", name->substr(0, 80));
}

Status read_thinking(const Json& thinking, Messages& m) {
  Fields fields(thinking, "thinking.");
  const auto type = fields.word("type", {"enabled", "disabled", "adaptive"});
  const auto budget = fields.whole("budget_tokens", 1, INT32_MAX);
  const auto display = fields.word("display", {"summarized", "omitted"});
  if (!type) fields.fail_at("type", "thinking.type is missing");
  if (type == "enabled" && !budget) fields.fail_at("budget_tokens", "thinking.budget_tokens is missing");
  ARGENT_TRY(fields.finish());
  m.call.think = *type != "disabled";
  if (*type == "enabled") m.call.think_budget = uint32_t(*budget);
  m.show_thinking = *m.call.think && display != "omitted";
  return {};
}

Status read_output(const Json& config, Constraint& constraint) {
  Fields fields(config, "output_config.");
  fields.word("effort", {"low", "medium", "high", "xhigh", "max"});  // models here know no such thing
  const Json* format = fields.object("format");
  ARGENT_TRY(fields.finish());
  if (!format) return {};
  Fields form(*format, "output_config.format.");
  const auto type = form.word("type", {"json_schema"});
  const Json* schema = form.object("schema");
  if (!type || !schema) form.fail_at("schema", "output_config.format wants type json_schema and a schema");
  ARGENT_TRY(form.finish());
  constraint = {Constraint::Kind::json_schema, to_text(*schema), {}, "output_config.format.schema"};
  return {};
}

// Edits of the context that are made in any case: templates leave old thoughts out.
Status read_context_management(const Json& management) {
  Fields fields(management, "context_management.");
  const Json* edits = fields.array("edits");
  ARGENT_TRY(fields.finish());
  for (const Json& edit : edits ? *edits : Json::array())
    if (!edit.is_object() || !edit.contains("type") || edit["type"] != "clear_thinking_20251015")
      return fail(Code::unsupported, "context_management: edits other than clear_thinking_20251015 are not supported");
  return {};
}

Result<Messages> read_request(const LoadedModel& model, const std::string& name, Fields& f, bool counting) {
  Messages m;
  m.call = call_on(model, name);
  GenerationRequest& g = m.call.generation;
  f.text("model");
  const Json* system = f.find("system");
  const Json* messages = f.find("messages");
  const Json* tools = f.array("tools");
  const Json* choice = f.object("tool_choice");
  const Json* thinking = f.object("thinking");
  const Json* output = f.object("output_config");
  f.ignore({"cache_control", "speed", "user_profile_id", "workspace_id", "metadata", "service_tier", "inference_geo",
            "diagnostics"});
  if (const Json* management = f.find("context_management")) ARGENT_TRY(read_context_management(*management));
  if (!counting) {
    const auto max_tokens = f.whole("max_tokens", 1, UINT32_MAX);
    if (!max_tokens) f.fail_at("max_tokens", "max_tokens is missing");
    g.max_tokens = uint32_t(max_tokens.value_or(1));
    if (const auto v = f.number("temperature", 0, 1)) g.sampling.temperature = float(*v);
    if (const auto v = f.number("top_p", 0, 1)) g.sampling.top_p = std::max(1e-9f, float(*v));
    if (const auto v = f.whole("top_k", 0, INT32_MAX)) g.sampling.top_k = uint32_t(*v);
    g.stop = f.texts("stop_sequences", kMaxStops).value_or(std::vector<std::string>());
    m.stream = f.flag("stream").value_or(false);
  }
  if (!messages) f.fail_at("messages", "messages is missing");
  ARGENT_TRY(f.finish());
  ARGENT_LET(m.call.messages, MessageReader().read(system ? *system : Json(), *messages));
  if (tools) ARGENT_TRY(read_tools(*tools, m.call));
  if (choice) ARGENT_TRY(read_tool_choice(*choice, m.call));
  m.call.think = false;
  if (thinking) ARGENT_TRY(read_thinking(*thinking, m));
  if (m.call.think_budget && !counting && *m.call.think_budget >= g.max_tokens)
    return fail(Code::invalid, "thinking.budget_tokens is {}, wants less than max_tokens, which is {}",
                *m.call.think_budget, g.max_tokens);
  if (output) ARGENT_TRY(read_output(*output, m.call.constraint));
  return m;
}

void send_error(Reply& reply, const Error& error) {
  const int status = status_of(error);
  reply.send(status, to_text(anthropic_error(status, error.message)));
}

// The cached part of a prompt stands apart.
Json usage_json(const RequestUsage& usage) {
  return {{"input_tokens", usage.n_prompt - usage.n_reused},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", usage.n_reused},
          {"output_tokens", usage.n_generated}};
}

// Answers in blocks, as events or in one piece.
class MessageSink final : public CallSink {
 public:
  MessageSink(std::shared_ptr<Reply> reply, std::string model, bool stream, bool show_thinking, uint32_t n_prompt)
      : reply_(std::move(reply)),
        model_(std::move(model)),
        stream_(stream),
        show_thinking_(show_thinking),
        n_prompt_(n_prompt) {}

  // Begins a stream. By whom it is first needed: the thread that took the request, or the model's.
  void open() {
    if (!stream_) return;
    opening_([&] {
      reply_->begin(200, "text/event-stream");
      RequestUsage usage;
      usage.n_prompt = n_prompt_;
      event({{"type", "message_start"}, {"message", message(Json(nullptr), usage)}});
    });
  }

  void delta(CallDelta d) override {
    open();
    if (show_thinking_ && !d.output.reasoning.empty()) {
      enter("thinking", {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}});
      append("thinking_delta", "thinking", d.output.reasoning);
    }
    if (!d.output.content.empty()) {
      enter("text", {{"type", "text"}, {"text", ""}});
      append("text_delta", "text", d.output.content);
    }
    for (const ToolDelta& call : d.output.calls) {
      if (!call.id.empty()) {
        leave();
        enter("tool_use", {{"type", "tool_use"}, {"id", call.id}, {"name", call.name}, {"input", Json::object()}});
      }
      arguments_ += call.arguments;
      if (stream_ && !call.arguments.empty()) append("input_json_delta", "partial_json", call.arguments);
    }
    if (d.finish) {
      finish_ = *d.finish;
      stop_ = std::move(d.stop);
    }
  }

  void done(const RequestUsage& usage) override {
    if (finish_ == FinishReason::cancelled) return failed(shutting_down());
    open();
    leave();
    const Json reason = finish_ == FinishReason::length       ? "max_tokens"
                        : finish_ == FinishReason::tool_calls ? "tool_use"
                        : stop_.empty()                       ? "end_turn"
                                                              : "stop_sequence";
    if (!stream_) {
      reply_->send(200, to_text(message(reason, usage)));
      return;
    }
    event({{"type", "message_delta"},
           {"delta", {{"stop_reason", reason}, {"stop_sequence", stop_json()}}},
           {"usage", usage_json(usage)}});
    event({{"type", "message_stop"}});
    reply_->end();
  }

  void failed(const Error& error) override {
    if (opening_([&] { send_error(*reply_, error); })) return;
    event(anthropic_error(status_of(error), error.message));
    reply_->end();
  }

 private:
  void event(const Json& json) { reply_->write(server_event(json, json["type"].get_ref<const std::string&>())); }
  Json stop_json() const { return stop_.empty() ? Json(nullptr) : Json(stop_); }
  Json message(const Json& reason, const RequestUsage& usage) const {
    return {
        {"id", id_},          {"type", "message"},     {"role", "assistant"},          {"model", model_},
        {"content", blocks_}, {"stop_reason", reason}, {"stop_sequence", stop_json()}, {"usage", usage_json(usage)}};
  }

  void enter(std::string_view type, Json block) {
    if (type_ == type) return;
    leave();
    type_ = type;
    if (!stream_) {
      blocks_.push_back(std::move(block));
      return;
    }
    event({{"type", "content_block_start"}, {"index", n_blocks_}, {"content_block", std::move(block)}});
    if (n_blocks_ == 0) event({{"type", "ping"}});
  }
  void append(std::string_view kind, const std::string& field, const std::string& text) {
    if (stream_)
      event({{"type", "content_block_delta"}, {"index", n_blocks_}, {"delta", {{"type", kind}, {field, text}}}});
    else
      blocks_.back()[field].get_ref<std::string&>() += text;
  }
  void leave() {
    if (type_.empty()) return;
    // Arguments that are no object are in the text too; the block has to have one.
    if (type_ == "tool_use" && !stream_)
      blocks_.back()["input"] = arguments_of({0, {}, {}, arguments_}).value_or(Json::object());
    if (stream_) event({{"type", "content_block_stop"}, {"index", n_blocks_}});
    ++n_blocks_;
    arguments_.clear();
    type_ = {};
  }

  std::shared_ptr<Reply> reply_;
  const std::string model_, id_ = random_id("msg_");
  const bool stream_, show_thinking_;
  const uint32_t n_prompt_;
  Opening opening_;

  // Of the model's thread only.
  Json blocks_ = Json::array();
  size_t n_blocks_ = 0;
  std::string_view type_;  // of the block that is open
  std::string arguments_;
  FinishReason finish_ = FinishReason::cancelled;
  std::string stop_;
};

Status create(const ApiContext& api, const Request& request, const std::shared_ptr<Reply>& reply, bool counting) {
  ARGENT_LET(const Json body, parse_body(request));
  Fields fields(body);
  const auto name = fields.text("model");
  if (!name) fields.fail_at("model", "model is missing");
  ARGENT_TRY(fields.status());
  ARGENT_LET(const std::shared_ptr<LoadedModel> model, api.host->get(*name));
  ARGENT_LET(Messages m, read_request(*model, *name, fields, counting));
  ARGENT_TRY(make_prompt(*model, m.call));
  const uint32_t n_prompt = uint32_t(m.call.generation.prompt.size());  // in a stream's first event already
  if (counting) {
    reply->send(200, to_text({{"input_tokens", n_prompt}}));
    return {};
  }
  const auto sink = std::make_shared<MessageSink>(reply, *name, m.stream, m.show_thinking, n_prompt);
  ARGENT_LET(const Running running, start(model, std::move(m.call), sink));
  tie(reply, running);
  sink->open();
  return {};
}

}  // namespace

Json anthropic_error(int status, std::string_view message) {
  const std::string_view type = status == 401                    ? "authentication_error"
                                : status == 403                  ? "permission_error"
                                : status == 404                  ? "not_found_error"
                                : status == 413                  ? "request_too_large"
                                : status == 429                  ? "rate_limit_error"
                                : status == 503 || status == 529 ? "overloaded_error"
                                : status >= 500                  ? "api_error"
                                                                 : "invalid_request_error";
  return {{"type", "error"}, {"error", {{"type", type}, {"message", message}}}};
}

void add_anthropic_routes(const ApiContext& api) {
  for (const bool counting : {false, true})
    api.server->route("POST", counting ? "/v1/messages/count_tokens" : "/v1/messages",
                      [api, counting](Request request, std::shared_ptr<Reply> reply) {
                        const Status status = create(api, request, reply, counting);
                        if (!status) send_error(*reply, status.error());
                      });
}

}  // namespace argent::server
