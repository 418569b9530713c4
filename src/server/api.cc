#include "server/api.h"

#include <algorithm>
#include <random>

#include "server/think_budget.h"

namespace argent::server {
namespace {

// A grammar as a rule of tokens.
class GrammarRule final : public TokenRule {
 public:
  explicit GrammarRule(grammar::Matcher matcher) : matcher_(std::move(matcher)) {}
  bool restrict(std::span<uint32_t> mask) override {
    allowed_.assign(mask.size(), 0);
    matcher_.fill_mask(allowed_);  // nothing may come: nothing is allowed
    for (size_t i = 0; i < mask.size(); ++i) mask[i] &= allowed_[i];
    return true;
  }
  bool accept(int32_t token) override { return matcher_.accept(token); }
  std::unique_ptr<TokenRule> fork() const override { return std::make_unique<GrammarRule>(matcher_.fork()); }

 private:
  grammar::Matcher matcher_;
  std::vector<uint32_t> allowed_;
};

// From a service's events to a call's deltas: answers are split into content, reasoning and tool calls.
class Translator final : public RequestSink {
 public:
  Translator(std::shared_ptr<CallSink> sink, const Call& call, const OutputForm& form, bool parse)
      : sink_(std::move(sink)), stops_(call.generation.stop), tools_(call.tools), form_(form), parse_(parse) {}

  void prompt_read(const RequestUsage&, std::vector<TokenInfo> probs) override {
    if (!probs.empty()) sink_->prompt(probs);
  }
  void answer(AnswerEvent event) override {
    CallDelta delta;
    delta.index = event.index;
    delta.tokens = std::move(event.tokens);
    delta.n_tokens = event.n_tokens;
    bool calls = false;
    if (parse_) {
      OutputParser& parser = parser_of(event.index);
      delta.output = parser.push(event.text);
      if (event.finish) {
        OutputDelta rest = parser.finish();
        delta.output.content += rest.content;
        delta.output.reasoning += rest.reasoning;
        std::move(rest.calls.begin(), rest.calls.end(), std::back_inserter(delta.output.calls));
        calls = parser.n_calls() > 0;
      }
    } else {
      delta.output.content = std::move(event.text);
    }
    if (event.finish) {
      delta.finish = *event.finish == Finish::length      ? FinishReason::length
                     : *event.finish == Finish::cancelled ? FinishReason::cancelled
                     : calls                              ? FinishReason::tool_calls
                                                          : FinishReason::stop;
      if (event.stop >= 0) delta.stop = stops_[size_t(event.stop)];
    }
    if (!delta.output.empty() || !delta.tokens.empty() || delta.finish) sink_->delta(std::move(delta));
  }
  void embedding(std::vector<float> e) override { sink_->embedding(std::move(e)); }
  void done(const RequestUsage& usage) override { sink_->done(usage); }
  void failed(const Error& error) override { sink_->failed(error); }

 private:
  OutputParser& parser_of(uint32_t index) {
    auto it = parsers_.find(index);
    if (it == parsers_.end())
      it = parsers_.emplace(index, OutputParser(form_, tools_, [](uint32_t) { return random_id("call_"); })).first;
    return it->second;
  }

  std::shared_ptr<CallSink> sink_;
  std::vector<std::string> stops_;
  Json tools_;
  OutputForm form_;
  bool parse_;
  std::map<uint32_t, OutputParser> parsers_;
};

bool has_tools(const Call& call) {
  return call.tools.is_array() && !call.tools.empty() && call.tool_choice != Call::ToolChoice::none;
}

// The form of this call's answers.
OutputForm form_of(const LoadedModel& model, const Call& call, std::string_view prompt) {
  OutputForm form = model.output;
  if (!has_tools(call)) form.tools = ToolStyle::none;
  if (!call.split_reasoning) form.think_begin.clear(), form.think_end.clear();
  if (!form.think_begin.empty()) {
    while (!prompt.empty() && (prompt.back() == '\n' || prompt.back() == ' ')) prompt.remove_suffix(1);
    form.starts_in_thought = prompt.ends_with(form.think_begin);
  }
  return form;
}

ChatRequest chat_request(const Call& call) {
  ChatRequest request;
  request.messages = *call.messages;
  if (has_tools(call)) request.tools = call.tools;
  request.variables = call.variables.is_object() ? call.variables : Json::object();
  if (call.think && !request.variables.contains("enable_thinking")) request.variables["enable_thinking"] = *call.think;
  return request;
}

bool continues(const Call& call) {
  return call.continue_last && call.messages->is_array() && !call.messages->empty() &&
         call.messages->back().is_object() && call.messages->back().value("role", Json()) == "assistant" &&
         !call.messages->back().contains("tool_calls");
}

// A last message of the assistant stays open: what the template writes behind its text is cut off.
Result<Rendered> render_open(const ChatFormat& format, ChatRequest request) {
  Json& last = request.messages.back();
  std::string text;
  ARGENT_LET(const Json normal, normalize_messages(request.messages));
  if (normal.back().value("content", Json()).is_string()) text = normal.back()["content"].get<std::string>();
  last["content"] = text;
  request.add_generation_prompt = false;
  ARGENT_LET(Rendered whole, format.render(request));
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();  // templates trim
  const size_t at = text.empty() ? std::string::npos : whole.text.rfind(text);
  if (at == std::string::npos) {
    request.messages.erase(request.messages.end() - 1);
    request.add_generation_prompt = true;
    return format.render(request);
  }
  const size_t end = at + text.size();
  whole.text.resize(end);
  std::erase_if(whole.spans, [&](const Span& s) { return s.begin >= end; });
  if (!whole.spans.empty()) whole.spans.back().end = std::min(whole.spans.back().end, end);
  return whole;
}

Result<Rendered> render(const LoadedModel& model, const Call& call) {
  if (!model.chat) return fail(Code::unsupported, "{}", model.no_chat);
  if (!call.messages->is_array() || call.messages->empty()) return fail(Code::invalid, "messages is empty");
  if (has_tools(call) && !model.chat->capabilities().tools && model.output.tools == ToolStyle::none)
    return fail(Code::unsupported, "tools: the model's chat template knows no tools");
  return continues(call) ? render_open(*model.chat, chat_request(call)) : model.chat->render(chat_request(call));
}

std::vector<grammar::Tool> grammar_tools(const Call& call) {
  std::vector<grammar::Tool> tools;
  for (const Json& tool : call.tools) {
    const Json function = tool.value("function", tool);
    const std::string name = function.value("name", std::string());
    if (call.tool_choice == Call::ToolChoice::named && name != call.tool_name) continue;
    tools.push_back({name, function.contains("parameters") && function["parameters"].is_object()
                               ? to_text(function["parameters"])
                               : std::string()});
  }
  return tools;
}

// How a required call is written so that the model's parser reads it.
grammar::ToolCallStyle call_style(ToolStyle style) {
  switch (style) {
    case ToolStyle::llama3:
      return {"{\"name\": \"", "\", \"parameters\": ", "}", "; "};
    case ToolStyle::mistral:
      return {"[TOOL_CALLS][{\"name\": \"", "\", \"arguments\": ", "}]", "\n"};
    case ToolStyle::hermes:
      return {};
    default:
      return {"{\"name\": \"", "\", \"arguments\": ", "}", "\n"};
  }
}

Result<std::shared_ptr<const grammar::Compiled>> compile(const LoadedModel& model, const Call& call) {
  using Kind = Constraint::Kind;
  const bool forced = has_tools(call) &&
                      (call.tool_choice == Call::ToolChoice::required || call.tool_choice == Call::ToolChoice::named);
  if (!forced && call.constraint.kind == Kind::none) return std::shared_ptr<const grammar::Compiled>();
  ARGENT_LET(const std::shared_ptr<grammar::Compiler> compiler, model.grammars());
  if (forced) {
    const std::vector<grammar::Tool> tools = grammar_tools(call);
    if (tools.empty()) return fail(Code::invalid, "tool_choice names '{}', which is none of the tools", call.tool_name);
    return compiler->tool_calls(tools, call_style(model.output.tools), call.parallel_tool_calls ? 16 : 1);
  }
  switch (call.constraint.kind) {
    case Kind::json_object:
      return compiler->json_object();
    case Kind::json_schema:
      return compiler->json_schema(call.constraint.text);
    case Kind::regex:
      return compiler->regex(call.constraint.text);
    case Kind::gbnf:
      return compiler->gbnf(call.constraint.text);
    default:
      return compiler->choice(call.constraint.choices);
  }
}

std::vector<int32_t> encode(const Tokenizer& tokenizer, const Rendered& rendered) {
  return encode_prompt(tokenizer, rendered);
}

}  // namespace

Result<std::shared_ptr<grammar::Compiler>> LoadedModel::grammars() const {
  const std::lock_guard lock(mutex_);
  if (grammars_) return grammars_;
  if (!service->tokenizer()) return fail(Code::unsupported, "{} has no tokenizer, which constraints need", name);
  ARGENT_LET(grammars_, grammar::Compiler::make(*service->tokenizer(), int(service->model().n_vocab)));
  return grammars_;
}

Result<std::string> render_prompt(const LoadedModel& model, const Call& call) {
  if (!call.messages) return call.text.value_or("");
  ARGENT_LET(Rendered rendered, render(model, call));
  return std::move(rendered.text);
}

Result<std::vector<int32_t>> prompt_tokens(const LoadedModel& model, const Call& call) {
  if (call.ids) return *call.ids;
  const Tokenizer* tokenizer = model.service->tokenizer();
  if (!tokenizer) return fail(Code::unsupported, "{} has no tokenizer: it takes token ids only", model.name);
  if (!call.messages) return tokenizer->encode(call.text.value_or(""), {call.add_bos, call.parse_special});
  ARGENT_LET(const Rendered rendered, render(model, call));
  return encode(*tokenizer, rendered);
}

Result<Running> start(ModelHost& host, Call call, std::shared_ptr<CallSink> sink) {
  ARGENT_LET(const std::shared_ptr<LoadedModel> model, host.get(call.model));
  return start(model, std::move(call), std::move(sink));
}

Result<Running> start(const std::shared_ptr<LoadedModel>& model, Call call, std::shared_ptr<CallSink> sink) {
  const Tokenizer* tokenizer = model->service->tokenizer();
  if (!tokenizer && !call.ids)
    return fail(Code::unsupported, "{} has no tokenizer: it takes token ids only", model->name);
  OutputForm form;
  if (call.messages) {
    ARGENT_LET(const Rendered rendered, render(*model, call));
    form = form_of(*model, call, rendered.text);
    call.generation.prompt = encode(*tokenizer, rendered);
  } else {
    ARGENT_LET(call.generation.prompt, prompt_tokens(*model, call));
  }
  ARGENT_LET(std::shared_ptr<const grammar::Compiled> compiled, compile(*model, call));
  std::unique_ptr<TokenRule> rule;
  if (compiled) rule = std::make_unique<GrammarRule>(grammar::Matcher(std::move(compiled)));
  if (!form.think_begin.empty() && tokenizer && (call.think_budget || rule))
    rule = limit_thinking(*tokenizer, form, call.think_budget, std::move(rule));
  call.generation.rule = std::move(rule);
  // Parsers see the texts of the control tokens that mark calls and thoughts.
  const bool parse = call.messages && (form.tools != ToolStyle::none || !form.think_begin.empty());
  call.generation.render_control = call.generation.render_control || parse;
  auto translator = std::make_shared<Translator>(std::move(sink), call, form, parse);
  ARGENT_LET(const Service::RequestId id, model->service->submit(std::move(call.generation), std::move(translator)));
  return Running(model, id);
}

void tie(const std::shared_ptr<Reply>& reply, const Running& running) {
  reply->on_gone([running] { running.cancel(); });
  reply->on_pressure([running](bool full) { running.pause(full); });
}

int status_of(const Error& error) {
  switch (error.code) {
    case Code::invalid:
    case Code::unsupported:
      return 400;
    case Code::not_found:
      return 404;
    case Code::out_of_memory:
      return 503;
    case Code::cancelled:
      return 499;
    default:
      return 500;
  }
}

std::string random_id(std::string_view prefix) {
  static thread_local std::mt19937_64 random(std::random_device{}());
  return fmt::format("{}{:016x}{:08x}", prefix, random(), uint32_t(random()));
}

std::string to_text(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::string server_event(const Json& json, std::string_view event) {
  return event.empty() ? fmt::format("data: {}\n\n", to_text(json))
                       : fmt::format("event: {}\ndata: {}\n\n", event, to_text(json));
}

Json timings(const RequestUsage& u) {
  const auto rate = [](double n, double seconds) { return seconds > 0 ? n / seconds : 0.0; };
  const double n_prompt = u.n_prompt - u.n_reused, n_decoded = u.n_generated > 0 ? u.n_generated - 1 : 0;
  return {{"prompt_n", u.n_prompt - u.n_reused},
          {"prompt_ms", u.prompt_seconds * 1e3},
          {"prompt_per_second", rate(n_prompt, u.prompt_seconds)},
          {"cache_n", u.n_reused},
          {"predicted_n", u.n_generated},
          {"predicted_ms", u.decode_seconds * 1e3},
          {"predicted_per_second", rate(n_decoded, u.decode_seconds)},
          {"queue_ms", u.queue_seconds * 1e3}};
}

}  // namespace argent::server
