// The interface of llama.cpp's server beside OpenAI's: completions, infill, tokens, embeddings, its properties.
#include <cmath>
#include <cstdlib>
#include <mutex>

#include "server/adapters.h"

namespace argent::server {
namespace {

struct Completion {
  Call call;
  bool stream = false, return_tokens = false, probabilities = false;
  std::string prompt;  // as text, for the answer
  Json settings;       // "generation_settings" of the answer
};

void send_llama_error(Reply& reply, const Error& error) {
  const int status = status_of(error);
  const std::string_view type = status == 404   ? "not_found_error"
                                : status == 503 ? "unavailable_error"
                                : status >= 500 ? "server_error"
                                                : "invalid_request_error";
  reply.send(status, to_text({{"error", {{"code", status}, {"message", error.message}, {"type", type}}}}));
}

Result<const Tokenizer*> tokenizer_of(const LoadedModel& model) {
  const Tokenizer* tokenizer = model.service->tokenizer();
  if (!tokenizer) return fail(Code::unsupported, "{} has no tokenizer", model.name);
  return tokenizer;
}

std::string text_of(const Tokenizer& tokenizer, std::span<const int32_t> ids) {
  std::string bytes;
  for (int32_t id : ids) tokenizer.append_bytes(id, bytes, true);
  return bytes;
}

Result<int32_t> read_id(const Json& j, const LoadedModel& model, std::string_view where) {
  const int64_t n_vocab = model.service->model().n_vocab;
  if (!j.is_number_integer() || j.get<double>() < 0 || j.get<double>() >= double(n_vocab))
    return fail(Code::invalid, "{} wants token ids from 0 to {}", where, n_vocab - 1);
  return j.get<int32_t>();
}

// A string, ids, or texts and ids in a row. Texts may spell control tokens; the first may get a BOS.
Result<std::vector<int32_t>> read_tokens(const Json& j, const LoadedModel& model, std::string_view where) {
  const auto encode = [&](const Json& text, bool add_bos) -> Result<std::vector<int32_t>> {
    ARGENT_LET(const Tokenizer* tokenizer, tokenizer_of(model));
    return tokenizer->encode(text.get_ref<const std::string&>(), {add_bos, true});
  };
  if (j.is_string()) return encode(j, true);
  if (!j.is_array()) return fail(Code::invalid, "{} wants a string or an array of texts and token ids", where);
  std::vector<int32_t> ids;
  size_t n_texts = 0;
  for (const Json& each : j) {
    if (each.is_string()) {
      ARGENT_LET(const std::vector<int32_t> more, encode(each, &each == &j.front()));
      ids.insert(ids.end(), more.begin(), more.end());
      ++n_texts;
    } else {
      ARGENT_LET(ids.emplace_back(), read_id(each, model, where));
    }
  }
  if (n_texts == j.size() && n_texts > 1)
    return fail(Code::unsupported, "{}: several prompts in one request are not supported", where);
  return ids;
}

// A bias: a number, or false for never.
std::optional<float> bias_of(const Json& j) {
  if (j == false) return -INFINITY;
  if (!j.is_number() || std::fabs(j.get<double>()) > 1e6) return std::nullopt;
  return j.get<float>();
}

// Pairs [id or text, bias], or an object from id or text to bias. A text stands for all its tokens.
Status read_logit_bias(const Json& j, const LoadedModel& model, std::vector<LogitBias>& out) {
  const auto add = [&](const Json& token, const Json& value) -> Status {
    const auto bias = bias_of(value);
    if (!bias) return fail(Code::invalid, "logit_bias: a bias wants a number or false");
    if (!token.is_string()) {
      ARGENT_LET(const int32_t id, read_id(token, model, "logit_bias"));
      out.push_back({id, *bias});
      return {};
    }
    ARGENT_LET(const Tokenizer* tokenizer, tokenizer_of(model));
    for (int32_t id : tokenizer->encode(token.get_ref<const std::string&>(), {false, false}))
      out.push_back({id, *bias});
    return {};
  };
  if (j.is_object()) {
    for (const auto& [key, value] : j.items()) {
      char* end = nullptr;
      const long id = std::strtol(key.c_str(), &end, 10);
      ARGENT_TRY(add(!key.empty() && !*end ? Json(id) : Json(key), value));
    }
    return {};
  }
  if (!j.is_array()) return fail(Code::invalid, "logit_bias wants an array of pairs or an object");
  for (const Json& pair : j) {
    if (!pair.is_array() || pair.size() != 2)
      return fail(Code::invalid, "logit_bias wants pairs of a token and a bias");
    ARGENT_TRY(add(pair[0], pair[1]));
  }
  return {};
}

// "samplers": the order is always this one; those that are left out are off.
void read_samplers(Fields& f, SampleParams& p) {
  static constexpr std::string_view kOrder[] = {"penalties", "top_k", "top_p", "min_p", "temperature"};
  static constexpr std::string_view kOff[] = {"dry", "top_n_sigma", "typ_p", "xtc", "infill", "adaptive_p"};
  const Json* samplers = f.array("samplers");
  if (!samplers) return;
  bool seen[std::size(kOrder)] = {};
  size_t next = 0;
  for (const Json& name : *samplers) {
    const auto at = std::find(std::begin(kOrder), std::end(kOrder), name.is_string() ? name.get<std::string>() : "");
    if (at == std::end(kOrder)) {
      if (name.is_string() && std::count(std::begin(kOff), std::end(kOff), name.get<std::string>())) continue;
      return f.fail_at("samplers", fmt::format("samplers: there is no {}", to_text(name).substr(0, 40)));
    }
    const size_t i = size_t(at - std::begin(kOrder));
    if (i < next) return f.fail_at("samplers", fmt::format("samplers: the order is {}", fmt::join(kOrder, ", ")));
    seen[i] = true;
    next = i + 1;
  }
  if (!seen[0]) p.repeat_penalty = 1, p.presence_penalty = p.frequency_penalty = 0;
  if (!seen[1]) p.top_k = 0;
  if (!seen[2]) p.top_p = 1;
  if (!seen[3]) p.min_p = 0;
  if (!seen[4]) p.temperature = 1;
}

Json settings_json(const GenerationRequest& g) {
  const SampleParams& p = g.sampling;
  return {{"seed", p.seed},
          {"temperature", p.temperature},
          {"top_k", p.top_k},
          {"top_p", p.top_p},
          {"min_p", p.min_p},
          {"repeat_last_n", p.repeat_last_n == UINT32_MAX ? -1 : int64_t(p.repeat_last_n)},
          {"repeat_penalty", p.repeat_penalty},
          {"presence_penalty", p.presence_penalty},
          {"frequency_penalty", p.frequency_penalty},
          {"stop", g.stop},
          {"n_predict", g.max_tokens ? int64_t(g.max_tokens) : -1},
          {"ignore_eos", g.ignore_end},
          {"n_probs", g.log_probs.value_or(0)},
          {"samplers", {"penalties", "top_k", "top_p", "min_p", "temperature"}}};
}

// All fields but the prompt's.
Status read_generation(Fields& f, const LoadedModel& model, Completion& c) {
  GenerationRequest& g = c.call.generation;
  f.text("model");
  read_sampling(f, g.sampling);
  read_samplers(f, g.sampling);
  const auto n_predict = f.whole("n_predict", -2, INT32_MAX), max_tokens = f.whole("max_tokens", -2, INT32_MAX);
  const int64_t n = n_predict ? *n_predict : max_tokens.value_or(-1);
  if (n == 0) f.fail_at("n_predict", "n_predict is 0, wants 1 or more, or -1 for as many as there is room for");
  g.max_tokens = n > 0 ? uint32_t(n) : 0;
  g.stop = f.texts("stop", kMaxStops).value_or(std::vector<std::string>());
  g.ignore_end = f.flag("ignore_eos").value_or(false);
  c.stream = f.flag("stream").value_or(false);
  c.return_tokens = f.flag("return_tokens").value_or(false);
  const auto n_probs = f.whole("n_probs", 0, 1000);
  c.probabilities = n_probs.value_or(0) > 0;
  if (c.probabilities || c.return_tokens) g.log_probs = uint32_t(n_probs.value_or(0));
  const auto grammar = f.text("grammar");
  const Json* schema = f.find("json_schema");
  if (grammar && !grammar->empty()) c.call.constraint = {Constraint::Kind::gbnf, *grammar, {}, "grammar"};
  if (schema) c.call.constraint = {Constraint::Kind::json_schema, to_text(*schema), {}, "json_schema"};
  if (grammar && !grammar->empty() && schema) f.fail_at("grammar", "grammar and json_schema exclude each other");
  const Json* bias = f.find("logit_bias");
  static constexpr NeutralField kNeutral[] = {{"dynatemp_range", 0},
                                              {"xtc_probability", 0},
                                              {"typical_p", 1},
                                              {"typ_p", 1},
                                              {"mirostat", 0},
                                              {"dry_multiplier", 0},
                                              {"top_n_sigma", -1},
                                              {"adaptive_target", -1},
                                              {"tfs_z", 1},
                                              {"t_max_predict_ms", 0},
                                              {"post_sampling_probs", 0},
                                              {"grammar_lazy", 0},
                                              {"n_indent", 0},
                                              {"n_cmpl", 1},
                                              {"n", 1}};
  read_neutral(f, kNeutral);
  for (const char* name : {"lora", "image_data", "grammar_triggers", "response_fields", "multimodal_data"})
    if (const Json* list = f.array(name); list && !list->empty())
      f.fail_at(name, fmt::format("{} is not supported", name));
  // Without effect: how the server works inside, and what belongs to samplers that are off.
  f.ignore({"cache_prompt",
            "id_slot",
            "slot_id",
            "n_keep",
            "n_discard",
            "n_cache_reuse",
            "min_keep",
            "penalize_nl",
            "dynatemp_exponent",
            "xtc_threshold",
            "mirostat_tau",
            "mirostat_eta",
            "dry_base",
            "dry_allowed_length",
            "dry_penalty_last_n",
            "dry_sequence_breakers",
            "adaptive_decay",
            "timings_per_token",
            "return_progress",
            "t_max_prompt_ms",
            "api_key",
            "preserved_tokens",
            "speculative.n_max",
            "speculative.n_min",
            "speculative.p_min",
            "speculative.type",
            "backend_sampling"});
  ARGENT_TRY(f.finish());
  if (bias) ARGENT_TRY(read_logit_bias(*bias, model, g.bias));
  c.settings = settings_json(g);
  return {};
}

Result<Infill> read_infill(Fields& f) {
  Infill infill;
  const auto prefix = f.text("input_prefix"), suffix = f.text("input_suffix"), prompt = f.text("prompt");
  const Json* extra = f.array("input_extra");
  if (!prefix) f.fail_at("input_prefix", "input_prefix is missing");
  if (!suffix) f.fail_at("input_suffix", "input_suffix is missing");
  ARGENT_TRY(f.status());
  infill.prefix = *prefix;
  infill.suffix = *suffix;
  infill.prompt = prompt.value_or("");
  for (size_t i = 0; extra && i < extra->size(); ++i) {
    Fields file((*extra)[i], fmt::format("input_extra[{}].", i));
    const auto name = file.text("filename"), text = file.text("text");
    if (!text) file.fail_at("text", fmt::format("input_extra[{}].text is missing", i));
    ARGENT_TRY(file.finish());
    infill.files.push_back({name.value_or("snippet"), *text});
  }
  return infill;
}

// Answers as events or in one piece.
class CompletionSink final : public CallSink {
 public:
  CompletionSink(std::shared_ptr<Reply> reply, const Completion& c, std::string model, const Tokenizer* tokenizer,
                 uint32_t n_prompt)
      : reply_(std::move(reply)),
        model_(std::move(model)),
        prompt_(c.prompt),
        settings_(c.settings),
        stream_(c.stream),
        return_tokens_(c.return_tokens),
        probabilities_(c.probabilities),
        tokenizer_(tokenizer),
        n_prompt_(n_prompt) {}

  void open() {
    if (stream_) opening_([&] { reply_->begin(200, "text/event-stream"); });
  }

  void delta(CallDelta d) override {
    open();
    if (!stream_) return whole_.add(std::move(d));
    WholeAnswer now;
    now.add(std::move(d));
    whole_.finish = now.finish, whole_.stop = now.stop, whole_.n_tokens = now.n_tokens;
    new_line_ = new_line_ || now.content.find('\n') != std::string::npos;
    if (now.content.empty() && now.tokens.empty()) return;
    Json j = head(now);
    j["stop"] = false;
    j["id_slot"] = -1;
    j["tokens_predicted"] = now.n_tokens;
    j["tokens_evaluated"] = n_prompt_;
    add_probabilities(j, now);
    reply_->write(server_event(j));
  }

  void done(const RequestUsage& usage) override {
    if (whole_.finish == FinishReason::cancelled) return failed(shutting_down());
    open();
    new_line_ = new_line_ || whole_.content.find('\n') != std::string::npos;
    Json j = head(whole_);  // of a stream: empty
    j["id_slot"] = -1;
    j["stop"] = true;
    j["model"] = model_;
    j["tokens_predicted"] = usage.n_generated;
    j["tokens_evaluated"] = usage.n_prompt;
    j["generation_settings"] = settings_;
    j["prompt"] = prompt_;
    j["has_new_line"] = new_line_;
    j["truncated"] = false;
    j["stop_type"] = whole_.finish == FinishReason::length ? "limit" : whole_.stop.empty() ? "eos" : "word";
    j["stopping_word"] = whole_.stop;
    j["tokens_cached"] = usage.n_prompt + usage.n_generated;
    j["timings"] = timings(usage);
    if (!stream_) {
      add_probabilities(j, whole_);
      return reply_->send(200, to_text(j));
    }
    reply_->write(server_event(j));
    reply_->end();
  }

  void failed(const Error& error) override {
    if (opening_([&] { send_llama_error(*reply_, error); })) return;
    reply_->write(
        server_event({{"error", {{"code", status_of(error)}, {"message", error.message}, {"type", "server_error"}}}}));
    reply_->end();
  }

 private:
  Json head(const WholeAnswer& a) const {
    Json ids = Json::array();
    if (return_tokens_)
      for (const TokenInfo& token : a.tokens) ids.push_back(token.id);
    return {{"index", 0}, {"content", a.content}, {"tokens", std::move(ids)}};
  }
  void add_probabilities(Json& j, const WholeAnswer& a) const {
    if (!probabilities_) return;
    Json tokens = Json::array();
    for (const TokenInfo& token : a.tokens) tokens.push_back(token_json(tokenizer_, token, true));
    j["completion_probabilities"] = std::move(tokens);
  }

  std::shared_ptr<Reply> reply_;
  const std::string model_, prompt_;
  const Json settings_;
  const bool stream_, return_tokens_, probabilities_;
  const Tokenizer* tokenizer_;  // of the model, which lives while the call does
  const uint32_t n_prompt_;
  Opening opening_;
  bool new_line_ = false;
  WholeAnswer whole_;
};

// A request's body, with the model that it names.
struct Body {
  Json json;
  std::shared_ptr<LoadedModel> model;
};
Result<Body> read_body(const ApiContext& api, const Request& request) {
  ARGENT_LET(Json json, parse_body(request));
  Fields f(json);
  const std::string name = f.text("model").value_or("");
  ARGENT_TRY(f.status());
  ARGENT_LET(std::shared_ptr<LoadedModel> model, api.host->get(name));
  return Body{std::move(json), std::move(model)};
}

Status complete(const ApiContext& api, const Request& request, const std::shared_ptr<Reply>& reply, bool infill) {
  ARGENT_LET(const Body body, read_body(api, request));
  const LoadedModel& model = *body.model;
  Fields f(body.json);
  Completion c;
  c.call = call_on(model, model.name);
  if (infill) {
    ARGENT_LET(const Infill parts, read_infill(f));
    ARGENT_TRY(read_generation(f, model, c));
    ARGENT_LET(c.call.ids, infill_prompt(model, parts));
  } else {
    const Json* prompt = f.find("prompt");
    if (!prompt) f.fail_at("prompt", "prompt is missing");
    ARGENT_TRY(read_generation(f, model, c));
    ARGENT_LET(c.call.ids, read_tokens(*prompt, model, "prompt"));
    if (prompt->is_string()) c.prompt = prompt->get<std::string>();
  }
  const Tokenizer* tokenizer = model.service->tokenizer();
  if (c.prompt.empty() && tokenizer) c.prompt = text_of(*tokenizer, *c.call.ids);
  const uint32_t n_prompt = uint32_t(c.call.ids->size());
  const auto sink = std::make_shared<CompletionSink>(reply, c, model.name, tokenizer, n_prompt);
  ARGENT_LET(const Running running, start(body.model, std::move(c.call), sink));
  tie(reply, running);
  sink->open();
  return {};
}

Status tokenize(const ApiContext& api, const Request& request, const std::shared_ptr<Reply>& reply) {
  ARGENT_LET(const Body body, read_body(api, request));
  Fields f(body.json);
  f.text("model");
  const auto content = f.text("content");
  const bool add_special = f.flag("add_special").value_or(false),
             parse_special = f.flag("parse_special").value_or(true),
             with_pieces = f.flag("with_pieces").value_or(false);
  if (!content) f.fail_at("content", "content is missing");
  ARGENT_TRY(f.finish());
  ARGENT_LET(const Tokenizer* tokenizer, tokenizer_of(*body.model));
  Json tokens = Json::array();
  for (int32_t id : tokenizer->encode(*content, {add_special, parse_special})) {
    if (!with_pieces) {
      tokens.push_back(id);
      continue;
    }
    // A piece that is no whole text is an array of its bytes.
    const std::string piece = text_of(*tokenizer, {&id, 1});
    std::string rest = piece, valid;
    take_complete_utf8(rest, valid);
    tokens.push_back(
        {{"id", id}, {"piece", valid == piece ? Json(piece) : Json(std::vector<uint8_t>(piece.begin(), piece.end()))}});
  }
  reply->send(200, to_text({{"tokens", std::move(tokens)}}));
  return {};
}

Status detokenize(const ApiContext& api, const Request& request, const std::shared_ptr<Reply>& reply) {
  ARGENT_LET(const Body body, read_body(api, request));
  Fields f(body.json);
  f.text("model");
  const Json* tokens = f.array("tokens");
  if (!tokens) f.fail_at("tokens", "tokens is missing");
  ARGENT_TRY(f.finish());
  ARGENT_LET(const Tokenizer* tokenizer, tokenizer_of(*body.model));
  std::vector<int32_t> ids;
  for (const Json& token : *tokens) {
    ARGENT_LET(ids.emplace_back(), read_id(token, *body.model, "tokens"));
  }
  Detokenizer detokenizer(*tokenizer, true);
  std::string content;
  for (int32_t id : ids) content += detokenizer.push(id);
  content += detokenizer.flush();
  reply->send(200, to_text({{"content", content}}));
  return {};
}

Status apply_template(const ApiContext& api, const Request& request, const std::shared_ptr<Reply>& reply) {
  ARGENT_LET(const Body body, read_body(api, request));
  Fields f(body.json);
  Call call;
  f.text("model");
  const Json* messages = f.array("messages");
  if (const Json* tools = f.array("tools")) call.tools = *tools;
  if (const Json* variables = f.object("chat_template_kwargs")) call.variables = *variables;
  if (!messages) f.fail_at("messages", "messages is missing");
  ARGENT_TRY(f.finish());
  call.messages = *messages;
  ARGENT_LET(const std::string prompt, render_prompt(*body.model, call));
  reply->send(200, to_text({{"prompt", prompt}}));
  return {};
}

Status embedding(const ApiContext& api, const Request& request, const std::shared_ptr<Reply>& reply) {
  ARGENT_LET(const Body body, read_body(api, request));
  Fields f(body.json);
  f.text("model");
  const Json *content = f.find("content"), *input = f.find("input");
  f.whole("embd_normalize", 2, 2);  // the length is 1
  if (!content == !input) f.fail_at("content", "content is missing, or there is an input too");
  ARGENT_TRY(f.finish());
  if (!content) content = input;
  const std::string_view where = input ? "input" : "content";
  std::vector<std::vector<int32_t>> prompts;
  // An array that begins with a text or an array is one of several prompts; else it is the ids of one.
  if (content->is_array() && !content->empty() && !content->front().is_number()) {
    if (content->size() > kMaxInputs)
      return fail(Code::invalid, "{} has {} entries, at most {} are taken", where, content->size(), kMaxInputs);
    for (const Json& each : *content) {
      ARGENT_LET(prompts.emplace_back(), read_tokens(each, *body.model, where));
    }
  } else {
    ARGENT_LET(prompts.emplace_back(), read_tokens(*content, *body.model, where));
  }
  const auto done = [reply](Embeddings e) {
    Json out = Json::array();
    for (size_t i = 0; i < e.vectors.size(); ++i)
      out.push_back({{"index", i}, {"embedding", Json::array({e.vectors[i]})}});
    reply->send(200, to_text(out));
  };
  embed(api, *body.model, std::move(prompts), reply, done, [reply](const Error& e) { send_llama_error(*reply, e); });
  return {};
}

Status props(const ApiContext& api, const Request& request, const std::shared_ptr<Reply>& reply) {
  ARGENT_LET(const std::shared_ptr<LoadedModel> model, api.host->get(query_value(request.query, "model")));
  const Tokenizer* tokenizer = model->service->tokenizer();
  const auto token = [&](std::optional<int32_t> id) {
    return tokenizer && id ? std::string(tokenizer->text(*id)) : std::string();
  };
  GenerationRequest unset;
  unset.sampling = model->defaults;
  reply->send(200, to_text({{"default_generation_settings",
                             {{"id", 0},
                              {"n_ctx", model->service->n_ctx()},
                              {"speculative", false},
                              {"is_processing", false},
                              {"params", settings_json(unset)}}},
                            {"total_slots", model->service->parallel()},
                            {"model_alias", model->name},
                            {"model_path", model->path},
                            {"modalities", {{"vision", false}, {"audio", false}}},
                            {"chat_template", model->chat ? model->chat->chat_template().source() : std::string()},
                            {"bos_token", token(tokenizer ? tokenizer->bos() : std::nullopt)},
                            {"eos_token", token(tokenizer ? tokenizer->eos() : std::nullopt)},
                            {"build_info", "argent " ARGENT_VERSION}}));
  return {};
}

// A slot is a place for an answer that is computed; which request has which is not told.
Status slots(const ApiContext& api, const Request& request, const std::shared_ptr<Reply>& reply) {
  ARGENT_LET(const std::shared_ptr<LoadedModel> model, api.host->get(query_value(request.query, "model")));
  const uint64_t running = model->service->metrics().running, parallel = model->service->parallel();
  if (!query_value(request.query, "fail_on_no_slot").empty() && running >= parallel)
    return fail(Code::out_of_memory, "no slot is free");
  Json out = Json::array();
  for (uint64_t i = 0; i < parallel; ++i)
    out.push_back(
        {{"id", i}, {"n_ctx", model->service->n_ctx()}, {"speculative", false}, {"is_processing", i < running}});
  reply->send(200, to_text(out));
  return {};
}

}  // namespace

void add_llama_server_routes(const ApiContext& api) {
  const auto add = [&](std::string_view method, std::string_view path, auto route) {
    api.server->route(method, path, [api, route](Request request, std::shared_ptr<Reply> reply) {
      if (const Status status = route(api, request, reply); !status) send_llama_error(*reply, status.error());
    });
  };
  using Answer = const std::shared_ptr<Reply>&;
  add("POST", "/completion", [](const ApiContext& a, const Request& q, Answer r) { return complete(a, q, r, false); });
  add("POST", "/infill", [](const ApiContext& a, const Request& q, Answer r) { return complete(a, q, r, true); });
  add("POST", "/tokenize", tokenize);
  add("POST", "/detokenize", detokenize);
  add("POST", "/apply-template", apply_template);
  add("POST", "/embedding", embedding);
  add("GET", "/props", props);
  add("GET", "/slots", slots);
}

}  // namespace argent::server
