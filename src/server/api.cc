#include "server/api.h"

#include <algorithm>
#include <random>

#include "server/think_budget.h"
#include "server/tool_rule.h"

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

// The tools of a request that may be called.
Json callable_tools(const Call& call) {
  if (call.callable.empty()) return call.tools;
  Json tools = Json::array();
  for (const Json& tool : call.tools)
    if (call.callable.contains(tool["function"]["name"].get<std::string>())) tools.push_back(tool);
  return tools;
}

// From a service's events to a call's deltas: answers are split into content, reasoning and tool calls.
class Translator final : public RequestSink {
 public:
  Translator(std::shared_ptr<CallSink> sink, const Call& call, bool parse)
      : sink_(std::move(sink)),
        stops_(call.generation.stop),
        tools_(callable_tools(call)),
        form_(call.form),
        begun_(call.begun),
        parse_(parse) {}

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
    if (it != parsers_.end()) return it->second;
    it = parsers_.emplace(index, OutputParser(form_, tools_, [](uint32_t) { return random_id("call_"); })).first;
    it->second.go_on_from(begun_);
    return it->second;
  }

  std::shared_ptr<CallSink> sink_;
  std::vector<std::string> stops_;
  Json tools_;
  OutputForm form_;
  std::string begun_;
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
    const size_t text = call.begun.find_first_not_of(" \n");
    const bool begun =
        text != std::string::npos && call.begun.compare(text, form.think_begin.size(), form.think_begin) == 0;
    form.starts_in_thought = call.begun.empty() ? prompt.ends_with(form.think_begin)
                                                : begun && call.begun.find(form.think_end) == std::string::npos;
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

struct Prompt {
  Rendered rendered;
  std::string begun;  // the end of it that answers go on from
};

// A last message of the assistant stays open: what the template writes behind its text is cut off.
Result<Prompt> render_open(const ChatFormat& format, ChatRequest request) {
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
    ARGENT_LET(Rendered rendered, format.render(request));
    return Prompt{std::move(rendered), {}};
  }
  const size_t end = at + text.size();
  whole.text.resize(end);
  std::erase_if(whole.spans, [&](const Span& s) { return s.begin >= end; });
  if (!whole.spans.empty()) whole.spans.back().end = std::min(whole.spans.back().end, end);
  return Prompt{std::move(whole), std::move(text)};
}

Result<Prompt> render(const LoadedModel& model, const Call& call) {
  if (!model.chat) return fail(Code::unsupported, "{}", model.no_chat);
  if (!call.messages->is_array() || call.messages->empty()) return fail(Code::invalid, "messages is empty");
  if (has_tools(call) && !model.chat->capabilities().tools && model.output.tools == ToolStyle::none)
    return fail(Code::unsupported, "tools: the model's chat template knows no tools");
  if (continues(call)) return render_open(*model.chat, chat_request(call));
  ARGENT_LET(Rendered rendered, model.chat->render(chat_request(call)));
  return Prompt{std::move(rendered), {}};
}

std::vector<grammar::Tool> grammar_tools(const Call& call) {
  std::vector<grammar::Tool> tools;
  for (const Json& tool : callable_tools(call)) {
    const Json& function = tool["function"];
    const std::string name = function["name"].get<std::string>();
    const bool has_schema = function.contains("parameters") && function["parameters"].is_object();
    tools.push_back(
        {name, has_schema ? to_text(function["parameters"]) : std::string(), call.strict_tools.contains(name)});
  }
  return tools;
}

int max_calls(const Call& call) { return call.parallel_tool_calls ? 16 : 1; }

std::unique_ptr<TokenRule> rule_of(std::shared_ptr<const grammar::Compiled> compiled) {
  return std::make_unique<GrammarRule>(grammar::Matcher(std::move(compiled)));
}

// An answer that is calls and nothing else.
grammar::Compiler::Answer compile_calls(grammar::Compiler& compiler, const Call& call) {
  const std::vector<CallMark>& marks = call_marks(call.form.tools);
  if (marks.empty()) return fail(Code::unsupported, "tool_choice: the model's chat template knows no calls");
  return compiler.tool_calls(grammar_tools(call), marks[0].style, max_calls(call));
}

grammar::Compiler::Answer compile_text(grammar::Compiler& compiler, const Constraint& constraint) {
  using Kind = Constraint::Kind;
  switch (constraint.kind) {
    case Kind::json_object:
      return compiler.json_object();
    case Kind::json_schema:
      return compiler.json_schema(constraint.text);
    case Kind::regex:
      return compiler.regex(constraint.text);
    case Kind::gbnf:
      return compiler.gbnf(constraint.text);
    default:
      return compiler.choice(constraint.choices);
  }
}

// The rule of a text with calls in it; null: they are free. Tools that are not strict are no reason to refuse.
Result<std::unique_ptr<TokenRule>> rule_of_free_calls(const LoadedModel& model, grammar::Compiler& compiler,
                                                      const Call& call) {
  const std::vector<grammar::Tool> tools = grammar_tools(call);
  std::vector<std::shared_ptr<const grammar::Compiled>> blocks;
  for (const CallMark& mark : call_marks(call.form.tools)) {
    auto block = compiler.tool_block(tools, mark.style, max_calls(call));
    if (!block && call.strict_tools.empty()) return std::unique_ptr<TokenRule>();
    if (!block) return block.error();
    blocks.push_back(*std::move(block));
  }
  if (blocks.empty()) return std::unique_ptr<TokenRule>();
  return watch_calls(*model.service->tokenizer(), call.form, model.openings(call.form), std::move(blocks),
                     call.parallel_tool_calls, call.begun);
}

Result<std::unique_ptr<TokenRule>> rule_of(const LoadedModel& model, const Call& call) {
  const bool tools = has_tools(call), constrained = call.constraint.kind != Constraint::Kind::none;
  const bool forced = tools && call.tool_choice == Call::ToolChoice::required;
  std::unique_ptr<TokenRule> whole, free;  // of the whole answer; of calls in a text
  if (tools || constrained) {
    ARGENT_LET(const std::shared_ptr<grammar::Compiler> compiler, model.grammars());
    if (constrained && !forced) {
      auto text = compile_text(*compiler, call.constraint);
      if (!text) return fail(text.error().code, "{}: {}", call.constraint.field, text.error().message);
      whole = rule_of(*std::move(text));
    }
    if (tools && (forced || constrained)) {
      auto calls = compile_calls(*compiler, call);
      if (!calls && (forced || !call.strict_tools.empty())) return calls.error();
      if (calls) whole = either(std::move(whole), rule_of(*std::move(calls)));
    } else if (tools) {
      ARGENT_LET(free, rule_of_free_calls(model, *compiler, call));
    }
  }
  const Tokenizer* tokenizer = model.service->tokenizer();
  if (!call.form.think_begin.empty() && tokenizer && (call.think_budget || whole))
    whole = limit_thinking(*tokenizer, call.form, call.think_budget, std::move(whole));
  return both(std::move(whole), std::move(free));
}

}  // namespace

Result<std::shared_ptr<grammar::Compiler>> LoadedModel::grammars() const {
  const std::lock_guard lock(mutex_);
  if (grammars_) return grammars_;
  if (!service->tokenizer()) return fail(Code::unsupported, "{} has no tokenizer, which constraints need", name);
  ARGENT_LET(grammars_, grammar::Compiler::make(*service->tokenizer(), int(service->model().n_vocab)));
  return grammars_;
}

std::shared_ptr<const CallOpenings> LoadedModel::openings(const OutputForm& form) const {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<const CallOpenings>& known = openings_[form.think_begin];
  if (!known) known = std::make_shared<CallOpenings>(*service->tokenizer(), form);
  return known;
}

Result<std::string> render_prompt(const LoadedModel& model, const Call& call) {
  if (!call.messages) return call.text.value_or("");
  ARGENT_LET(Prompt prompt, render(model, call));
  return std::move(prompt.rendered.text);
}

Status make_prompt(const LoadedModel& model, Call& call) {
  const Tokenizer* tokenizer = model.service->tokenizer();
  if (call.ids) {
    call.generation.prompt = *call.ids;
    return {};
  }
  if (!tokenizer) return fail(Code::unsupported, "{} has no tokenizer: it takes token ids only", model.name);
  if (!call.messages) {
    call.generation.prompt = tokenizer->encode(call.text.value_or(""), {call.add_bos, call.parse_special});
    return {};
  }
  ARGENT_LET(Prompt prompt, render(model, call));
  call.begun = std::move(prompt.begun);
  call.form = form_of(model, call, prompt.rendered.text);
  call.generation.prompt = encode_prompt(*tokenizer, prompt.rendered);
  return {};
}

Result<Running> start(ModelHost& host, Call call, std::shared_ptr<CallSink> sink) {
  ARGENT_LET(const std::shared_ptr<LoadedModel> model, host.get(call.model));
  return start(model, std::move(call), std::move(sink));
}

Result<Running> start(const std::shared_ptr<LoadedModel>& model, Call call, std::shared_ptr<CallSink> sink) {
  if (call.generation.prompt.empty()) ARGENT_TRY(make_prompt(*model, call));
  ARGENT_LET(call.generation.rule, rule_of(*model, call));
  // Parsers see the texts of the control tokens that mark calls and thoughts.
  const bool parse = call.messages && (call.form.tools != ToolStyle::none || !call.form.think_begin.empty());
  call.generation.render_control = call.generation.render_control || parse;
  auto translator = std::make_shared<Translator>(std::move(sink), call, parse);
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

static uint64_t random_bits() {
  static thread_local std::mt19937_64 random(std::random_device{}());
  return random();
}

SampleParams LoadedModel::sampling() const {
  SampleParams params = defaults;
  if (!fixed_seed) params.seed = random_bits() >> 1;  // fits where seeds are signed
  return params;
}

std::string random_id(std::string_view prefix) {
  return fmt::format("{}{:016x}{:08x}", prefix, random_bits(), uint32_t(random_bits()));
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
