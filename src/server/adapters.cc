#include "server/adapters.h"

#include <chrono>
#include <cmath>

namespace argent::server {
namespace {

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char lower = char(c | 32);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

std::string decode_query(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && hex_value(text[i + 1]) >= 0 && hex_value(text[i + 2]) >= 0) {
      out += char(hex_value(text[i + 1]) * 16 + hex_value(text[i + 2]));
      i += 2;
    } else {
      out += text[i] == '+' ? ' ' : text[i];
    }
  }
  return out;
}

// The embeddings of one request, while they are computed.
struct EmbedGroup {
  std::mutex mutex;
  Embeddings result;
  size_t left = 0;
  bool told = false;
  std::vector<Running> running;
  std::function<void(Embeddings)> done;
  std::function<void(const Error&)> failed;

  void cancel() {
    std::vector<Running> all;
    {
      const std::lock_guard lock(mutex);
      all = running;
    }
    for (const Running& r : all) r.cancel();
  }
  void fail_once(const Error& error) {
    {
      const std::lock_guard lock(mutex);
      if (std::exchange(told, true)) return;
    }
    cancel();
    failed(error);
  }
};

class EmbedSink final : public CallSink {
 public:
  EmbedSink(std::shared_ptr<EmbedGroup> group, size_t index) : group_(std::move(group)), index_(index) {}
  void delta(CallDelta) override {}
  void embedding(std::vector<float> vector) override {
    const std::lock_guard lock(group_->mutex);
    group_->result.vectors[index_] = std::move(vector);
  }
  void done(const RequestUsage& usage) override {
    std::unique_lock lock(group_->mutex);
    group_->result.n_prompt += usage.n_prompt;
    if (group_->result.vectors[index_].empty()) {
      lock.unlock();
      return group_->fail_once(shutting_down());
    }
    if (--group_->left > 0 || std::exchange(group_->told, true)) return;
    lock.unlock();
    group_->done(std::move(group_->result));
  }
  void failed(const Error& error) override { group_->fail_once(error); }

 private:
  std::shared_ptr<EmbedGroup> group_;
  size_t index_;
};

}  // namespace

Result<Json> parse_body(const Request& request) {
  ARGENT_LET(Json body, parse_json(request.body, "the body", kMaxBodyDepth));
  if (!body.is_object()) return fail(Code::invalid, "the body is no JSON object");
  return body;
}

Call call_on(const LoadedModel& model, const std::string& name) {
  Call call;
  call.model = name;
  call.generation.sampling = model.sampling();
  return call;
}

void read_sampling(Fields& f, SampleParams& p) {
  if (const auto v = f.number("temperature", -1e9, 100)) p.temperature = std::max(0.0f, float(*v));
  if (const auto v = f.whole("top_k", INT32_MIN, INT32_MAX)) p.top_k = uint32_t(std::max<int64_t>(0, *v));
  if (const auto v = f.number("top_p", 0, 1)) p.top_p = std::max(1e-9f, float(*v));  // 0: the best token alone
  if (const auto v = f.number("min_p", 0, 1)) p.min_p = float(*v);
  if (const auto v = f.whole("seed", INT64_MIN, INT64_MAX); v && *v != -1 && *v != UINT32_MAX) p.seed = uint64_t(*v);
  if (const auto v = f.number("repeat_penalty", 0.01, 100)) p.repeat_penalty = float(*v);
  if (const auto v = f.whole("repeat_last_n", -1, INT32_MAX)) p.repeat_last_n = *v < 0 ? UINT32_MAX : uint32_t(*v);
  if (const auto v = f.number("presence_penalty", -100, 100)) p.presence_penalty = float(*v);
  if (const auto v = f.number("frequency_penalty", -100, 100)) p.frequency_penalty = float(*v);
}

void read_neutral(Fields& f, std::span<const NeutralField> neutral) {
  for (const NeutralField& n : neutral) {
    const Json* j = f.find(n.name);
    if (!j) continue;
    const bool same =
        j->is_boolean() ? double(j->get<bool>()) == n.value : j->is_number() && j->get<double>() == n.value;
    if (!same) f.fail_at(n.name, fmt::format("{} is supported as {} only, which is off", n.name, n.value));
  }
}

void WholeAnswer::add(CallDelta d) {
  content += d.output.content;
  reasoning += d.output.reasoning;
  for (ToolDelta& call : d.output.calls) {
    if (calls.empty() || calls.back().index != call.index)
      calls.push_back(std::move(call));
    else
      calls.back().arguments += call.arguments;
  }
  std::move(d.tokens.begin(), d.tokens.end(), std::back_inserter(tokens));
  n_tokens = d.n_tokens;
  if (d.finish) finish = *d.finish, stop = std::move(d.stop);
}

Error shutting_down() { return fail(Code::out_of_memory, "the server is shutting down"); }

std::optional<Json> arguments_of(const ToolDelta& call) {
  if (call.arguments.empty()) return Json::object();
  auto parsed = parse_json(call.arguments, "arguments", kMaxBodyDepth * 2);
  if (!parsed || !parsed->is_object()) return std::nullopt;
  return *std::move(parsed);
}

void embed(const ApiContext& api, const LoadedModel& model, std::vector<std::vector<int32_t>> prompts,
           const std::shared_ptr<Reply>& reply, std::function<void(Embeddings)> done,
           std::function<void(const Error&)> failed) {
  auto group = std::make_shared<EmbedGroup>();
  group->done = std::move(done);
  group->failed = std::move(failed);
  group->left = prompts.size();
  group->result.vectors.resize(prompts.size());
  if (prompts.empty()) return group->done({});
  using Pooling = GenerationRequest::Pooling;
  for (size_t i = 0; i < prompts.size(); ++i) {
    Call call;
    call.model = model.name;
    call.ids = std::move(prompts[i]);
    call.generation.pooling = model.pooling == Pooling::none ? Pooling::mean : model.pooling;
    const auto running = start(*api.host, std::move(call), std::make_shared<EmbedSink>(group, i));
    if (!running) return group->fail_once(running.error());
    const std::lock_guard lock(group->mutex);
    group->running.push_back(*running);
    if (group->told) running->cancel();
  }
  reply->on_gone([group] { group->cancel(); });
}

Result<std::vector<int32_t>> infill_prompt(const LoadedModel& model, const Infill& infill) {
  const Tokenizer* tokenizer = model.service->tokenizer();
  if (!tokenizer) return fail(Code::unsupported, "{} has no tokenizer", model.name);
  const Tokenizer::Fim& fim = tokenizer->fim();
  std::vector<std::string_view> missing;
  if (!fim.prefix) missing.push_back("prefix");
  if (!fim.suffix) missing.push_back("suffix");
  if (!fim.middle) missing.push_back("middle");
  if (!missing.empty())
    return fail(Code::unsupported, "{} does not fill in the middle: its vocabulary has no {} token", model.name,
                fmt::join(missing, ", no "));
  std::vector<int32_t> ids;
  const auto add = [&](std::string_view text) {
    const auto more = tokenizer->encode(text, {false, false});
    ids.insert(ids.end(), more.begin(), more.end());
  };
  if (tokenizer->add_bos() && tokenizer->bos()) ids.push_back(*tokenizer->bos());
  if (!infill.files.empty()) {
    if (fim.repository) {
      ids.push_back(*fim.repository);
      add("repository\n");
    }
    for (const Infill::File& file : infill.files) {
      if (fim.separator) {
        ids.push_back(*fim.separator);
        add(file.name + "\n");
      } else {
        add("\n\n--- " + file.name + " ---\n\n");
      }
      add(file.text);
    }
    if (fim.separator) {
      ids.push_back(*fim.separator);
      add("current\n");
    }
  }
  ids.push_back(*fim.prefix);
  add(infill.prefix + infill.prompt);
  ids.push_back(*fim.suffix);
  add(infill.suffix);
  ids.push_back(*fim.middle);
  return ids;
}

Json token_json(const Tokenizer* tokenizer, const TokenInfo& token, bool with_ids) {
  const auto one = [&](int32_t id, const std::string& bytes, double log_prob) {
    Json j = Json::object();
    if (with_ids) j["id"] = id;
    j["token"] = bytes;
    j["bytes"] = std::vector<int>(reinterpret_cast<const uint8_t*>(bytes.data()),
                                  reinterpret_cast<const uint8_t*>(bytes.data()) + bytes.size());
    j["logprob"] = std::isfinite(log_prob) ? log_prob : -9999.0;  // JSON has no infinity
    return j;
  };
  Json j = one(token.id, token.bytes, token.log_prob);
  Json top = Json::array();
  for (const sample::LogProb& t : token.top) {
    std::string bytes;
    if (tokenizer) tokenizer->append_bytes(t.token, bytes, true);
    top.push_back(one(t.token, bytes, t.log_prob));
  }
  j["top_logprobs"] = std::move(top);
  return j;
}

std::string utc_time(std::chrono::system_clock::time_point time) {
  using namespace std::chrono;
  const auto whole = floor<seconds>(time);
  const std::time_t t = system_clock::to_time_t(whole);
  std::tm parts = {};
  gmtime_r(&t, &parts);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:09}Z", parts.tm_year + 1900, parts.tm_mon + 1,
                     parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec,
                     duration_cast<nanoseconds>(time - whole).count());
}

std::string query_value(std::string_view query, std::string_view name) {
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), pair.size() + 1));
    const size_t equal = std::min(pair.find('='), pair.size());
    if (decode_query(pair.substr(0, equal)) == name) return decode_query(pair.substr(std::min(pair.size(), equal + 1)));
  }
  return {};
}

}  // namespace argent::server
