// Ollama's interface: /api/chat, /api/generate, /api/embed, /api/embeddings. Streams are lines of JSON.
#include "server/ollama.h"

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <mutex>

namespace argent::server {
namespace {

using Clock = std::chrono::steady_clock;
using ollama::send_error;

// keep_alive: how long a model stays is the server's affair (--ttl), but for these two.
enum class KeepAlive { as_server, unload, pin };

struct Asked {
  Call call;
  std::string model;  // as the request names it
  bool chat = false, stream = true, nothing = false;
  KeepAlive keep = KeepAlive::as_server;
  int64_t load_nanoseconds = 0;
};

int64_t nanoseconds(double seconds) { return int64_t(seconds * 1e9); }

// Seconds as a number, or a duration in Go's notation: "5m", "1h30m", "-1s", "0".
std::optional<double> duration(const Json& j) {
  if (j.is_number()) return j.get<double>();
  if (!j.is_string()) return std::nullopt;
  std::string_view text = j.get_ref<const std::string&>();
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  double sum = 0;
  bool any = false;
  while (!text.empty()) {
    size_t n = 0;
    while (n < text.size() && (std::isdigit(uint8_t(text[n])) || text[n] == '.')) ++n;
    if (n == 0 || n > 15) return std::nullopt;
    const double value = std::strtod(std::string(text.substr(0, n)).c_str(), nullptr);
    text.remove_prefix(n);
    size_t u = 0;
    while (u < text.size() && std::isalpha(uint8_t(text[u]))) ++u;
    static constexpr std::pair<std::string_view, double> kUnits[] = {{"ns", 1e-9}, {"us", 1e-6}, {"ms", 1e-3}, {"s", 1},
                                                                     {"m", 60},    {"h", 3600},  {"", 1}};
    const auto unit =
        std::find_if(std::begin(kUnits), std::end(kUnits), [&](const auto& k) { return k.first == text.substr(0, u); });
    if (unit == std::end(kUnits)) return std::nullopt;
    sum += value * unit->second;
    text.remove_prefix(u);
    any = true;
  }
  return any ? std::optional(negative ? -sum : sum) : std::nullopt;
}

void read_keep_alive(Fields& f, Asked& asked) {
  const Json* j = f.find("keep_alive");
  if (!j) return;
  const auto seconds = duration(*j);
  if (!seconds) return f.fail_at("keep_alive", "keep_alive wants seconds or a duration such as \"5m\"");
  asked.keep = *seconds == 0 ? KeepAlive::unload : *seconds < 0 ? KeepAlive::pin : KeepAlive::as_server;
}

Status read_options(const Json* options, const LoadedModel& model, GenerationRequest& g) {
  if (!options) return {};
  Fields f(*options, "options.");
  read_sampling(f, g.sampling);
  if (const auto n = f.whole("num_predict", -2, INT32_MAX)) g.max_tokens = *n > 0 ? uint32_t(*n) : 0;
  if (const auto stop = f.texts("stop", kMaxStops)) g.stop = *stop;
  const uint32_t n_ctx = model.service->n_ctx();
  if (const auto n = f.whole("num_ctx", 0, INT32_MAX); n && *n > n_ctx)
    f.fail_at("num_ctx",
              fmt::format("options.num_ctx is {}, the model's context here {} (argent serve --ctx)", *n, n_ctx));
  static constexpr NeutralField kNeutral[] = {{"mirostat", 0}, {"tfs_z", 1}, {"typical_p", 1}};
  read_neutral(f, kNeutral);
  f.ignore({"num_keep", "num_batch", "num_gpu", "main_gpu", "num_thread", "low_vram", "use_mmap", "use_mlock", "numa",
            "f16_kv", "vocab_only", "logits_all", "penalize_newline", "mirostat_tau", "mirostat_eta"});
  return f.finish();
}

Status read_format(const Json* format, Constraint& constraint) {
  if (!format || (format->is_string() && format->get_ref<const std::string&>().empty())) return {};
  if (format->is_object())
    constraint = {Constraint::Kind::json_schema, to_text(*format), {}, "format"};
  else if (*format == "json")
    constraint = {Constraint::Kind::json_object, {}, {}, "format"};
  else
    return fail(Code::invalid, "format wants \"json\" or a schema");
  return {};
}

void read_think(Fields& f, Call& call) {
  const Json* think = f.find("think");
  if (!think) return;
  if (think->is_boolean()) {
    call.think = think->get<bool>();
  } else if (const auto effort = f.word("think", {"low", "medium", "high"})) {
    call.think = true;
    call.variables["reasoning_effort"] = *effort;
  }
}

Status no_images(Fields& f, const std::string& path) {
  const Json* images = f.array("images");
  if (images && !images->empty()) return fail(Code::unsupported, "{}images are not supported", path);
  return {};
}

// Ollama's messages in OpenAI's form: calls get ids, which results find again by the order they stand in.
Result<Json> read_messages(const Json& messages) {
  Json out = Json::array();
  std::vector<std::string> open;  // ids of calls without a result
  size_t n_calls = 0;
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string path = fmt::format("messages[{}].", i);
    Fields f(messages[i], path);
    const auto role = f.word("role", {"system", "user", "assistant", "tool"});
    const auto content = f.text("content"), thinking = f.text("thinking"), tool_name = f.text("tool_name"),
               name = f.text("name"), id = f.text("tool_call_id");
    const Json* calls = f.array("tool_calls");
    ARGENT_TRY(no_images(f, path));
    if (!role) f.fail_at("role", path + "role is missing");
    ARGENT_TRY(f.finish());
    Json message = {{"role", *role}, {"content", content.value_or("")}};
    if (thinking && !thinking->empty()) message["reasoning_content"] = *thinking;
    if (*role == "tool") {
      if (tool_name || name) message["name"] = tool_name ? *tool_name : *name;
      if (id || !open.empty()) message["tool_call_id"] = id ? *id : open.front();
      if (!open.empty()) open.erase(open.begin());
    }
    if (calls && !calls->empty()) {
      open.clear();
      for (size_t c = 0; c < calls->size(); ++c) {
        Fields call((*calls)[c], fmt::format("{}tool_calls[{}].", path, c));
        const Json* function = call.object("function");
        const auto given = call.text("id");
        call.ignore({"type"});
        if (!function) call.fail_at("function", fmt::format("{}tool_calls[{}].function is missing", path, c));
        ARGENT_TRY(call.finish());
        open.push_back(given ? *given : fmt::format("call_{}", n_calls));
        ++n_calls;
        Json copy = *function;
        copy.erase("index");
        message["tool_calls"].push_back({{"id", open.back()}, {"type", "function"}, {"function", std::move(copy)}});
      }
    }
    out.push_back(std::move(message));
  }
  return out;
}

// What chat and generate have in common; the rest of the fields is read before.
Status read_common(Fields& f, const LoadedModel& model, Asked& asked) {
  GenerationRequest& g = asked.call.generation;
  asked.stream = f.flag("stream").value_or(true);
  const Json* format = f.find("format");
  const Json* options = f.object("options");
  read_keep_alive(f, asked);
  read_think(f, asked.call);
  const bool log_probs = f.flag("logprobs").value_or(false);
  const auto top = f.whole("top_logprobs", 0, 20);
  if (log_probs) g.log_probs = uint32_t(top.value_or(0));
  f.ignore({"truncate", "shift"});  // a prompt that is too long is an error here
  ARGENT_TRY(f.finish());
  ARGENT_TRY(read_options(options, model, g));
  return read_format(format, asked.call.constraint);
}

// Tools go to the template as they are.
Status read_tools(const Json& tools, Call& call) {
  for (size_t i = 0; i < tools.size(); ++i) {
    Fields tool(tools[i], fmt::format("tools[{}].", i));
    const Json* function = tool.object("function");
    ARGENT_TRY(tool.status());
    if (!function) return fail(Code::invalid, "tools[{}].function is missing", i);
    Fields f(*function, fmt::format("tools[{}].function.", i));
    const auto name = f.text("name");
    f.object("parameters");
    ARGENT_TRY(f.status());
    if (!name) return fail(Code::invalid, "tools[{}].function.name is missing", i);
  }
  call.tools = tools;
  return {};
}

Status read_chat(Fields& f, const LoadedModel& model, Asked& asked) {
  const Json* messages = f.array("messages");
  const Json* tools = f.array("tools");
  ARGENT_TRY(read_common(f, model, asked));
  if (tools) ARGENT_TRY(read_tools(*tools, asked.call));
  asked.nothing = !messages || messages->empty();
  if (asked.nothing) return {};
  ARGENT_LET(asked.call.messages, read_messages(*messages));
  return {};
}

Status read_generate(Fields& f, const LoadedModel& model, Asked& asked) {
  Call& call = asked.call;
  const auto prompt = f.text("prompt"), suffix = f.text("suffix"), system = f.text("system"),
             format = f.text("template");
  const bool raw = f.flag("raw").value_or(false);
  const Json* context = f.array("context");
  ARGENT_TRY(no_images(f, ""));
  if (format && !format->empty())
    return fail(Code::unsupported, "template is not supported: the model's own is used (raw: none)");
  if (context && !context->empty()) return fail(Code::unsupported, "context is not supported: /api/chat has messages");
  ARGENT_TRY(read_common(f, model, asked));
  asked.nothing = (!prompt || prompt->empty()) && (!suffix || suffix->empty());
  if (asked.nothing) return {};
  if (suffix && !suffix->empty()) {
    ARGENT_LET(call.ids, infill_prompt(model, {prompt.value_or(""), *suffix, {}, {}}));
    return {};
  }
  if (raw || !model.chat) {
    if (system && !system->empty())
      return fail(Code::invalid, "{}",
                  raw ? "system and raw exclude each other" : "system: the model has no chat template");
    call.text = *prompt;
    call.parse_special = raw;
    return {};
  }
  Json messages = Json::array();
  if (system && !system->empty()) messages.push_back({{"role", "system"}, {"content", *system}});
  messages.push_back({{"role", "user"}, {"content", *prompt}});
  call.messages = std::move(messages);
  return {};
}

// Answers as lines or in one piece.
class LineSink final : public CallSink {
 public:
  LineSink(std::shared_ptr<Reply> reply, const Asked& asked, const Tokenizer* tokenizer)
      : reply_(std::move(reply)),
        model_(asked.model),
        chat_(asked.chat),
        stream_(asked.stream),
        load_nanoseconds_(asked.load_nanoseconds),
        tokenizer_(tokenizer) {}

  void open() {
    if (stream_) opening_([&] { reply_->begin(200, "application/x-ndjson"); });
  }

  void delta(CallDelta d) override {
    open();
    if (!stream_) return whole_.add(std::move(d));
    WholeAnswer now;
    now.content = std::move(d.output.content);
    now.reasoning = std::move(d.output.reasoning);
    now.tokens = std::move(d.tokens);
    d.output.content.clear(), d.output.reasoning.clear(), d.tokens.clear();
    whole_.add(std::move(d));  // calls, which are given once they are complete
    if (!now.content.empty() || !now.reasoning.empty() || !now.tokens.empty()) line(now);
    give_calls(whole_.finish != FinishReason::cancelled);
  }

  void done(const RequestUsage& usage) override {
    if (whole_.finish == FinishReason::cancelled) return failed(shutting_down());
    open();
    Json last = stream_ ? head(WholeAnswer()) : head(whole_);
    last["done"] = true;
    last["done_reason"] = whole_.finish == FinishReason::length ? "length" : "stop";
    last["total_duration"] =
        load_nanoseconds_ + nanoseconds(usage.queue_seconds + usage.prompt_seconds + usage.decode_seconds);
    last["load_duration"] = load_nanoseconds_;
    last["prompt_eval_count"] = usage.n_prompt;
    last["prompt_eval_duration"] = nanoseconds(usage.prompt_seconds);
    last["eval_count"] = usage.n_generated;
    last["eval_duration"] = nanoseconds(usage.decode_seconds);
    if (!stream_) return reply_->send(200, to_text(last));
    reply_->write(to_text(last) + "\n");
    reply_->end();
  }

  void failed(const Error& error) override {
    if (opening_([&] { send_error(*reply_, error); })) return;
    reply_->write(to_text({{"error", error.message}}) + "\n");
    reply_->end();
  }

 private:
  Json head(const WholeAnswer& a) const {
    Json j = {{"model", model_}, {"created_at", utc_time(std::chrono::system_clock::now())}};
    if (chat_) {
      Json message = {{"role", "assistant"}, {"content", a.content}};
      if (!a.reasoning.empty()) message["thinking"] = a.reasoning;
      for (const ToolDelta& call : a.calls)
        if (const auto arguments = arguments_of(call))  // what is no object is in the text
          message["tool_calls"].push_back(
              {{"id", call.id}, {"function", {{"index", call.index}, {"name", call.name}, {"arguments", *arguments}}}});
      j["message"] = std::move(message);
    } else {
      j["response"] = a.content;
      if (!a.reasoning.empty()) j["thinking"] = a.reasoning;
    }
    if (!a.tokens.empty()) {
      Json tokens = Json::array();
      for (const TokenInfo& token : a.tokens) tokens.push_back(token_json(tokenizer_, token, false));
      j["logprobs"] = std::move(tokens);
    }
    return j;
  }
  void line(const WholeAnswer& a) {
    Json j = head(a);
    j["done"] = false;
    reply_->write(to_text(j) + "\n");
  }
  // All but the last call are complete; that one is at the answer's end.
  void give_calls(bool all) {
    WholeAnswer now;
    while (n_given_ + (all ? 0 : 1) < whole_.calls.size()) {
      ToolDelta& call = whole_.calls[n_given_++];
      if (arguments_of(call)) now.calls.push_back(std::move(call));
    }
    if (!now.calls.empty()) line(now);
  }

  std::shared_ptr<Reply> reply_;
  const std::string model_;
  const bool chat_, stream_;
  const int64_t load_nanoseconds_;
  const Tokenizer* tokenizer_;  // of the model, which lives while the call does
  Opening opening_;
  WholeAnswer whole_;
  size_t n_given_ = 0;
};

// The answer to a request without a prompt, which is about the model itself.
Status answer_nothing(const ApiContext& api, const Asked& asked, const std::shared_ptr<Reply>& reply) {
  if (asked.keep == KeepAlive::unload) ARGENT_TRY(api.host->unload(asked.model));
  Json j = {{"model", asked.model}, {"created_at", utc_time(std::chrono::system_clock::now())}};
  if (asked.chat)
    j["message"] = {{"role", "assistant"}, {"content", ""}};
  else
    j["response"] = "";
  j["done"] = true;
  j["done_reason"] = asked.keep == KeepAlive::unload ? "unload" : "load";
  reply->send(200, to_text(j) + (asked.stream ? "\n" : ""), asked.stream ? "application/x-ndjson" : "application/json");
  return {};
}

// The model that a request names, loaded, and how long that took.
Result<std::shared_ptr<LoadedModel>> load(const ApiContext& api, Fields& fields, Asked& asked) {
  asked.model = ollama::model_name(fields);
  ARGENT_TRY(fields.status());
  const auto begin = Clock::now();
  ARGENT_LET(std::shared_ptr<LoadedModel> model, api.host->get(asked.model));
  asked.load_nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin).count();
  return model;
}

Status keep(const ApiContext& api, const Asked& asked) {
  if (asked.keep == KeepAlive::pin) return api.host->load(asked.model, true);
  if (asked.keep == KeepAlive::unload) return api.host->unload(asked.model);  // once what runs is over
  return {};
}

Status answer(const ApiContext& api, const Request& request, const std::shared_ptr<Reply>& reply, bool chat) {
  ARGENT_LET(const Json body, parse_body(request));
  Fields fields(body);
  Asked asked;
  ARGENT_LET(const std::shared_ptr<LoadedModel> model, load(api, fields, asked));
  asked.call = call_on(*model, asked.model);
  asked.chat = chat;
  ARGENT_TRY(chat ? read_chat(fields, *model, asked) : read_generate(fields, *model, asked));
  if (asked.nothing) {
    if (asked.keep == KeepAlive::pin) ARGENT_TRY(keep(api, asked));
    return answer_nothing(api, asked, reply);
  }
  const auto sink = std::make_shared<LineSink>(reply, asked, model->service->tokenizer());
  ARGENT_LET(const Running running, start(model, std::move(asked.call), sink));
  tie(reply, running);
  sink->open();
  static_cast<void>(keep(api, asked));  // the answer is under way: a failure here is no error of it
  return {};
}

Status embeddings(const ApiContext& api, const Request& request, const std::shared_ptr<Reply>& reply, bool several) {
  ARGENT_LET(const Json body, parse_body(request));
  Fields f(body);
  Asked asked;
  ARGENT_LET(const std::shared_ptr<LoadedModel> model, load(api, f, asked));
  std::vector<std::string> texts;
  std::optional<int64_t> dimensions;
  bool truncate = true;
  if (several) {
    const bool has_input = f.has("input");
    texts = f.texts("input", kMaxInputs).value_or(std::vector<std::string>());
    dimensions = f.whole("dimensions", 1, model->service->model().n_embd);
    truncate = f.flag("truncate").value_or(true);
    if (!has_input) f.fail_at("input", "input is missing");
  } else {
    const auto prompt = f.text("prompt");
    if (!prompt) f.fail_at("prompt", "prompt is missing");
    texts.push_back(prompt.value_or(""));
  }
  const Json* options = f.object("options");
  read_keep_alive(f, asked);
  ARGENT_TRY(f.finish());
  GenerationRequest unused;
  ARGENT_TRY(read_options(options, *model, unused));
  std::vector<std::vector<int32_t>> prompts;
  for (std::string& text : texts) {
    Call call;
    call.text = std::move(text);
    ARGENT_TRY(make_prompt(*model, call));
    prompts.push_back(std::move(call.generation.prompt));
    if (truncate && prompts.back().size() > model->service->n_ctx()) prompts.back().resize(model->service->n_ctx());
  }
  const auto begin = Clock::now();
  const auto done = [=, name = asked.model, loading = asked.load_nanoseconds](Embeddings e) {
    if (!several) return reply->send(200, to_text({{"embedding", e.vectors.at(0)}}));
    if (dimensions)
      for (std::vector<float>& v : e.vectors) {  // shorter, and of length 1 again
        v.resize(size_t(*dimensions));
        double norm = 0;
        for (float x : v) norm += double(x) * x;
        for (float& x : v) x = norm > 0 ? float(x / std::sqrt(norm)) : 0;
      }
    const int64_t spent = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin).count();
    reply->send(200, to_text({{"model", name},
                              {"embeddings", e.vectors},
                              {"total_duration", spent + loading},
                              {"load_duration", loading},
                              {"prompt_eval_count", e.n_prompt}}));
  };
  embed(api, *model, std::move(prompts), reply, done, [reply](const Error& e) { send_error(*reply, e); });
  static_cast<void>(keep(api, asked));
  return {};
}

}  // namespace

void add_ollama_routes(const ApiContext& api) {
  const auto add = [&](std::string_view path, auto route, bool variant) {
    api.server->route("POST", path, [api, route, variant](Request request, std::shared_ptr<Reply> reply) {
      if (const Status status = route(api, request, reply, variant); !status) send_error(*reply, status.error());
    });
  };
  add("/api/chat", answer, true);
  add("/api/generate", answer, false);
  add("/api/embed", embeddings, true);
  add("/api/embeddings", embeddings, false);
  ollama::add_model_routes(api);
}

}  // namespace argent::server
