// POST /v1/completions.
#include <mutex>

#include "server/openai.h"

namespace argent::server::openai {
namespace {

constexpr size_t kMostPrompts = 128;  // of a request
constexpr uint32_t kMaxTokens = 16;   // where a request says nothing

struct Completions {
  Parsed parsed;  // without its prompt
  std::vector<Prompt> prompts;
  std::optional<std::string> suffix;
  bool echo = false;
  bool only_echo = false;  // max_tokens is 0: the prompt comes back, with its log-probabilities
};

// The older form of log-probabilities: columns.
class Columns {
 public:
  void add(const std::vector<TokenInfo>& tokens, const Tokenizer* tokenizer) {
    for (const TokenInfo& token : tokens) add(token, tokenizer, token.bytes, false);
  }
  // Of a prompt, which stands before the answer as `text`: that has no BOS, nor the space that SentencePiece puts
  // there.
  void add_prompt(const std::vector<TokenInfo>& tokens, const Tokenizer* tokenizer, std::string_view text) {
    for (const TokenInfo& token : tokens) {
      std::string_view shown = token.bytes;
      if (!text.starts_with(shown) && shown.starts_with(' ')) shown.remove_prefix(1);
      if (!text.starts_with(shown) && tokenizer && tokenizer->is_control(token.id)) shown = {};
      add(token, tokenizer, shown, tokens_.empty());
      text.remove_prefix(std::min(shown.size(), text.size()));
    }
  }
  // What came since the last call.
  Json take() {
    Json all{{"tokens", std::move(tokens_)},
             {"token_logprobs", std::move(token_log_probs_)},
             {"top_logprobs", std::move(top_)},
             {"text_offset", std::move(offsets_)}};
    tokens_ = token_log_probs_ = top_ = offsets_ = Json::array();
    return all;
  }
  bool empty() const { return tokens_.empty(); }

 private:
  // Part of a character: "bytes:\xe2\x80", as OpenAI has it.
  static std::string shown(const std::string& bytes) {
    std::string rest = bytes, text;
    take_complete_utf8(rest, text);
    if (rest.empty() && text == bytes) return bytes;
    text = "bytes:";
    for (const char c : bytes) text += fmt::format("\\x{:02x}", uint8_t(c));
    return text;
  }

  // first: nothing came before it. text: what the token adds to the choice's.
  void add(const TokenInfo& token, const Tokenizer* tokenizer, std::string_view text, bool first) {
    tokens_.push_back(shown(token.bytes));
    token_log_probs_.push_back(first ? Json() : Json(finite(token.log_prob)));
    Json top = first ? Json() : Json::object();
    if (!first)
      for (const sample::LogProb& p : token.top) top[shown(bytes_of(tokenizer, p.token))] = finite(p.log_prob);
    top_.push_back(std::move(top));
    offsets_.push_back(offset_);
    for (const char c : text) offset_ += (uint8_t(c) & 0xc0) != 0x80;  // characters begun
  }

  Json tokens_ = Json::array(), token_log_probs_ = Json::array(), top_ = Json::array(), offsets_ = Json::array();
  uint64_t offset_ = 0;
};

// All the prompts of a request: their choices are numbered across, prompt by prompt.
class Answer {
 public:
  Answer(std::shared_ptr<Reply> reply, const Completions& asked, const LoadedModel& model)
      : events_(std::move(reply)),
        streaming_(asked.parsed.streaming),
        log_probs_(asked.parsed.call.generation.log_probs.has_value()),
        echo_(asked.echo),
        only_echo_(asked.only_echo),
        tokenizer_(model.service->tokenizer()),
        n_(asked.parsed.call.generation.n),
        n_open_(asked.prompts.size()),
        choices_(asked.prompts.size() * n_),
        head_{{"id", random_id("cmpl-")},
              {"object", "text_completion"},
              {"created", unix_time()},
              {"model", model.name},
              {"system_fingerprint", "argent"}},
        text_chunks_(head_, false, streaming_.include_usage) {
    for (size_t i = 0; echo_ && i < choices_.size(); ++i) choices_[i].text = echoed(asked.prompts[i / n_]);
  }

  // Nothing is written before, so that a prompt that is refused has a status.
  void open() {
    const std::lock_guard lock(mutex_);
    opened_ = true;
    for (std::string& event : std::exchange(waiting_, {})) events_.send(std::move(event));
    if (n_open_ == 0) close();
  }
  // Of a prompt that was not begun: the whole request is refused.
  void refuse_all(const Refusal& refusal) {
    const std::lock_guard lock(mutex_);
    over_ = true;
    events_.fail(refusal);
  }

  void prompt(size_t which, const std::vector<TokenInfo>& tokens) {
    const std::lock_guard lock(mutex_);
    if (!log_probs_ || !echo_) return;
    for (uint32_t i = 0; i < n_; ++i) {
      Choice& choice = choices_[which * n_ + i];
      choice.columns.add_prompt(tokens, tokenizer_, choice.text);
    }
  }

  void delta(size_t which, const CallDelta& delta) {
    const std::lock_guard lock(mutex_);
    if (over_) return;
    const uint32_t index = uint32_t(which) * n_ + delta.index;
    Choice& choice = choices_[index];
    if (delta.finish == FinishReason::cancelled) error_ = fail(Code::cancelled, "the request was cancelled");
    if (!only_echo_) {
      choice.text += delta.output.content;
      if (log_probs_) choice.columns.add(delta.tokens, tokenizer_);
    }
    if (delta.finish) choice.finish = only_echo_ ? FinishReason::length : *delta.finish;
    if (!streaming_.stream || error_) return;
    if (!choice.text.empty() && !log_probs_)
      send(text_chunks_.event(index, choice.text));
    else if (!choice.text.empty() || !choice.columns.empty())
      send(server_event(chunk(index, choice, false)));
    choice.text.clear();
    if (!delta.finish) return;
    flush();
    held_ = chunk(index, choice, true);  // the last one goes with the timings
  }

  // usage: null where it failed.
  void done(const RequestUsage* usage, const Error* error) {
    const std::lock_guard lock(mutex_);
    if (error && !error_) error_ = *error;
    if (usage) {
      usage_.n_prompt += usage->n_prompt;
      usage_.n_reused += usage->n_reused;
      usage_.n_generated += only_echo_ ? 0 : usage->n_generated;
      usage_.queue_seconds = std::max(usage_.queue_seconds, usage->queue_seconds);  // prompts are computed together
      usage_.prompt_seconds = std::max(usage_.prompt_seconds, usage->prompt_seconds);
      usage_.decode_seconds = std::max(usage_.decode_seconds, usage->decode_seconds);
    }
    if (--n_open_ == 0 && opened_) close();
  }

 private:
  struct Choice {
    std::string text;
    Columns columns;
    std::optional<FinishReason> finish;
  };

  std::string echoed(const Prompt& prompt) const {
    if (prompt.text) return *prompt.text;
    if (!tokenizer_) return "";
    Detokenizer detokenizer(*tokenizer_, true, true);
    std::string text;
    for (const int32_t id : *prompt.ids) text += detokenizer.push(id);
    return text + detokenizer.flush();
  }
  Json choice_json(size_t index, Choice& choice) {
    return {{"text", choice.text},
            {"index", index},
            {"logprobs", log_probs_ ? choice.columns.take() : Json()},
            {"finish_reason", choice.finish ? Json(finish_word(*choice.finish)) : Json()}};
  }
  Json chunk(size_t index, Choice& choice, bool last) {
    Json json = head_;
    Json each = choice_json(index, choice);
    if (last)
      each["text"] = "", each["logprobs"] = nullptr;
    else
      each["finish_reason"] = nullptr;
    json["choices"] = Json::array({std::move(each)});
    if (streaming_.include_usage) json["usage"] = nullptr;
    return json;
  }
  void send(std::string event) {
    if (opened_)
      events_.send(std::move(event));
    else
      waiting_.push_back(std::move(event));
  }
  void flush() {
    if (!held_.is_null()) send(server_event(held_));
    held_ = nullptr;
  }
  void close() {
    if (std::exchange(over_, true)) return;
    if (error_) return events_.fail({*error_, ""});
    if (!streaming_.stream) {
      Json body = head_;
      Json& list = body["choices"] = Json::array();
      for (size_t i = 0; i < choices_.size(); ++i) list.push_back(choice_json(i, choices_[i]));
      body["usage"] = usage_json(usage_, 0);
      body["timings"] = timings(usage_);
      return events_.reply().send(200, to_text(body));
    }
    if (streaming_.include_usage) {
      flush();
      held_ = head_;
      held_["choices"] = Json::array();
      held_["usage"] = usage_json(usage_, 0);
    }
    held_["timings"] = timings(usage_);
    flush();
    events_.send("data: [DONE]\n\n");
    events_.end();
  }

  std::mutex mutex_;
  Events events_;
  const Streaming streaming_;
  const bool log_probs_, echo_, only_echo_;
  const Tokenizer* tokenizer_;
  const uint32_t n_;
  size_t n_open_;  // prompts not over
  std::vector<Choice> choices_;
  const Json head_;
  const TextChunks text_chunks_;
  Json held_;
  std::vector<std::string> waiting_;
  std::optional<Error> error_;
  RequestUsage usage_;
  bool opened_ = false, over_ = false;
};

class PromptSink final : public CallSink {
 public:
  PromptSink(std::shared_ptr<Answer> answer, size_t which) : answer_(std::move(answer)), which_(which) {}
  void prompt(const std::vector<TokenInfo>& tokens) override { answer_->prompt(which_, tokens); }
  void delta(CallDelta delta) override { answer_->delta(which_, delta); }
  void done(const RequestUsage& usage) override { answer_->done(&usage, nullptr); }
  void failed(const Error& error) override { answer_->done(nullptr, &error); }

 private:
  std::shared_ptr<Answer> answer_;
  size_t which_;
};

std::optional<Refusal> read_completions(const Json& body, Completions& out) {
  Fields fields(body);
  Call& call = out.parsed.call;
  GenerationRequest& generation = call.generation;
  call.model = fields.text("model").value_or("");
  out.prompts = read_prompts(fields, "prompt", kMostPrompts);
  out.parsed.sampling = read_sampling(fields);
  out.echo = fields.flag("echo").value_or(false);
  const Json* most = fields.find("max_tokens");
  out.only_echo = out.echo && most && most->is_number() && *most == 0;
  generation.max_tokens = kMaxTokens;
  if (out.only_echo)
    generation.max_tokens = 1;  // computed and not shown
  else
    read_max_tokens(fields, {"max_tokens"}, generation);
  read_generation(fields, generation);
  out.parsed.streaming = read_streaming(fields);
  if (const auto top = fields.whole("logprobs", 0, 20)) {
    generation.log_probs = uint32_t(*top);
    if (out.echo) generation.prompt_log_probs = uint32_t(*top);
  }
  if (const auto best = fields.whole("best_of", 1, 128); best && *best != generation.n)
    fields.fail_at("best_of", fmt::format("best_of is {}, wants n, {}: all answers are given", *best, generation.n));
  out.suffix = fields.text("suffix");
  if (out.suffix && out.echo) fields.fail_at("suffix", "suffix and echo do not go together");
  read_constraint(fields, out.parsed);
  fields.ignore({"user", "cache_prompt"});
  if (const Status status = fields.finish(); !status) return Refusal{status.error(), fields.error_field()};
  if (out.suffix && out.suffix->empty()) out.suffix.reset();
  return std::nullopt;
}

// The prompt, the suffix, and the mark behind which a model that was trained so fills in what is between.
Result<std::vector<int32_t>> fill_in(const LoadedModel& model, const Prompt& prompt, const std::string& suffix) {
  static constexpr std::string_view kMarks[][3] = {
      {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"},
      {"<fim_prefix>", "<fim_suffix>", "<fim_middle>"},
      {"<fim-prefix>", "<fim-suffix>", "<fim-middle>"},
      {"▁<PRE>", "▁<SUF>", "▁<MID>"},
  };
  if (!prompt.text) return fail(Code::invalid, "suffix wants a prompt that is a text");
  const Tokenizer* tokenizer = model.service->tokenizer();
  for (const auto& marks : kMarks) {
    if (!tokenizer) break;
    const auto before = tokenizer->find(marks[0]), after = tokenizer->find(marks[1]),
               middle = tokenizer->find(marks[2]);
    if (!before || !after || !middle) continue;
    std::vector<int32_t> ids;
    if (tokenizer->add_bos() && tokenizer->bos()) ids.push_back(*tokenizer->bos());
    const auto add = [&](int32_t mark, const std::string& text) {
      ids.push_back(mark);
      const std::vector<int32_t> more = tokenizer->encode(text, {false, false});
      ids.insert(ids.end(), more.begin(), more.end());
    };
    add(*before, *prompt.text);
    add(*after, suffix);
    ids.push_back(*middle);
    return ids;
  }
  return fail(Code::invalid, "suffix: {} has no tokens for filling in", model.name);
}

Call call_of(const Completions& asked, const Prompt& prompt) {
  const Call& from = asked.parsed.call;
  Call call;
  call.model = from.model;
  call.text = prompt.text;
  call.ids = prompt.ids;
  call.parse_special = true;
  call.constraint = from.constraint;
  const GenerationRequest& g = from.generation;
  GenerationRequest& to = call.generation;
  to.n = g.n;
  to.sampling = g.sampling;
  to.max_tokens = g.max_tokens;
  to.min_tokens = g.min_tokens;
  to.ignore_end = g.ignore_end;
  to.end_ids = g.end_ids;
  to.stop = g.stop;
  to.bias = g.bias;
  to.log_probs = g.log_probs;
  to.prompt_log_probs = g.prompt_log_probs;
  to.priority = g.priority;
  return call;
}

void handle_completions(ModelHost& host, const server::Request& request, const std::shared_ptr<Reply>& reply) {
  const auto body = read_body(request);
  if (!body) return refuse(*reply, {body.error(), ""});
  Completions asked;
  if (const auto refusal = read_completions(*body, asked)) return refuse(*reply, *refusal);
  std::shared_ptr<LoadedModel> model;
  if (const auto refusal = prepare(host, asked.parsed, model)) return refuse(*reply, *refusal);
  if (asked.suffix)
    for (Prompt& prompt : asked.prompts) {
      auto ids = fill_in(*model, prompt, *asked.suffix);
      if (!ids) return refuse(*reply, {ids.error(), "suffix"});
      prompt = {{}, std::move(*ids)};
    }
  const auto answer = std::make_shared<Answer>(reply, asked, *model);
  std::vector<Running> running;
  for (size_t i = 0; i < asked.prompts.size(); ++i) {
    const auto begun = start(model, call_of(asked, asked.prompts[i]), std::make_shared<PromptSink>(answer, i));
    if (begun) {
      running.push_back(*begun);
      continue;
    }
    answer->refuse_all(blame(begun.error(), *body, "prompt"));
    for (const Running& other : running) other.cancel();
    return;
  }
  reply->on_gone([running] {
    for (const Running& each : running) each.cancel();
  });
  reply->on_pressure([running](bool full) {
    for (const Running& each : running) each.pause(full);
  });
  answer->open();
}

}  // namespace

void add_completions_routes(const ApiContext& api) {
  for (const char* path : {"/v1/completions", "/completions"})
    api.server->route("POST", path, [host = api.host](server::Request request, std::shared_ptr<Reply> reply) {
      handle_completions(*host, request, reply);
    });
}

}  // namespace argent::server::openai
