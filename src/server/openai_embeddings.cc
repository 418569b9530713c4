// POST /v1/embeddings.
#include <bit>
#include <cstring>
#include <mutex>

#include "server/openai.h"

namespace argent::server::openai {
namespace {

constexpr size_t kMostInputs = 2048;  // of a request, as OpenAI has it
constexpr size_t kAtOnce = 32;        // that wait or are computed, so that one request cannot fill the queue

// Floats as the base64 of their bytes, little-endian.
std::string base64(const std::vector<float>& values) {
  static_assert(std::endian::native == std::endian::little);
  static constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::vector<uint8_t> bytes(values.size() * sizeof(float));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const size_t n = std::min<size_t>(3, bytes.size() - i);
    uint32_t group = 0;
    for (size_t k = 0; k < 3; ++k) group = group << 8 | (k < n ? bytes[i + k] : 0);
    for (size_t k = 0; k < 4; ++k) out += k <= n ? kDigits[group >> (18 - 6 * k) & 63] : '=';
  }
  return out;
}

// The inputs of one request, some at a time. Keeps the service by address, since its thread calls and outlives that.
class Batch : public std::enable_shared_from_this<Batch> {
 public:
  Batch(std::shared_ptr<Reply> reply, const LoadedModel& model, std::vector<std::vector<int32_t>> inputs, bool as_text)
      : reply_(std::move(reply)),
        service_(*model.service),
        model_(model.name),
        pooling_(model.pooling),
        inputs_(std::move(inputs)),
        as_text_(as_text),
        vectors_(inputs_.size()) {}

  // Submits what there is room for; the answer goes out when nothing is left.
  void advance() {
    std::unique_lock lock(mutex_);
    while (!error_ && !gone_ && next_ < inputs_.size() && open_.size() < kAtOnce) {
      GenerationRequest request;
      request.prompt = std::move(inputs_[next_]);
      request.pooling = pooling_;
      const auto id = service_.submit(std::move(request), std::make_shared<Sink>(shared_from_this(), next_));
      if (id)
        open_[next_++] = *id;
      else
        error_ = id.error();
    }
    if (!open_.empty()) return;
    lock.unlock();
    answer();
  }

  void leave() {
    const std::lock_guard lock(mutex_);
    gone_ = true;
    for (const auto& [index, id] : open_) service_.cancel(id);
  }

 private:
  class Sink final : public RequestSink {
   public:
    Sink(std::shared_ptr<Batch> batch, size_t index) : batch_(std::move(batch)), index_(index) {}
    void answer(AnswerEvent) override {}
    void embedding(std::vector<float> vector) override { batch_->vectors_[index_] = std::move(vector); }
    void done(const RequestUsage& usage) override { batch_->close(index_, usage.n_prompt, {}); }
    void failed(const Error& error) override { batch_->close(index_, 0, error); }

   private:
    std::shared_ptr<Batch> batch_;
    size_t index_;
  };

  void close(size_t index, uint32_t n_prompt, std::optional<Error> error) {
    {
      const std::lock_guard lock(mutex_);
      open_.erase(index);
      n_tokens_ += n_prompt;
      if (!error && vectors_[index].empty()) error = fail(Code::cancelled, "the request was cancelled");
      if (error && !error_) error_ = std::move(error);
    }
    advance();
  }

  void answer() {
    if (error_) return refuse(*reply_, {*error_, ""});
    Json data = Json::array();
    for (size_t i = 0; i < vectors_.size(); ++i)
      data.push_back({{"object", "embedding"},
                      {"index", i},
                      {"embedding", as_text_ ? Json(base64(vectors_[i])) : Json(vectors_[i])}});
    const Json body{{"object", "list"},
                    {"data", std::move(data)},
                    {"model", model_},
                    {"usage", {{"prompt_tokens", n_tokens_}, {"total_tokens", n_tokens_}}}};
    reply_->send(200, to_text(body));
  }

  const std::shared_ptr<Reply> reply_;
  Service& service_;
  const std::string model_;
  const GenerationRequest::Pooling pooling_;
  std::vector<std::vector<int32_t>> inputs_;
  const bool as_text_;

  std::mutex mutex_;
  std::vector<std::vector<float>> vectors_;
  std::map<size_t, Service::RequestId> open_;  // by input
  size_t next_ = 0;
  uint64_t n_tokens_ = 0;
  std::optional<Error> error_;
  bool gone_ = false;
};

void handle_embeddings(ModelHost& host, const server::Request& request, const std::shared_ptr<Reply>& reply) {
  const auto body = read_body(request);
  if (!body) return refuse(*reply, {body.error(), ""});
  Fields fields(*body);
  Parsed parsed;
  parsed.call.model = fields.text("model").value_or("");
  const std::vector<Prompt> prompts = read_prompts(fields, "input", kMostInputs);
  const bool as_text = fields.word("encoding_format", {"float", "base64"}) == "base64";
  const auto dimensions = fields.whole("dimensions", 1, INT32_MAX);
  fields.ignore({"user"});
  if (const Status status = fields.finish(); !status) return refuse(*reply, {status.error(), fields.error_field()});

  std::shared_ptr<LoadedModel> model;
  if (const auto refusal = prepare(host, parsed, model)) return refuse(*reply, *refusal);
  const Service& service = *model->service;
  if (dimensions && *dimensions != service.model().n_embd)
    return refuse(*reply, {fail(Code::invalid, "dimensions is {}: the vectors of {} have {}", *dimensions, model->name,
                                service.model().n_embd),
                           "dimensions"});
  std::vector<std::vector<int32_t>> inputs;
  for (const Prompt& prompt : prompts) {
    Call call;
    call.text = prompt.text;
    call.ids = prompt.ids;
    if (const Status made = make_prompt(*model, call); !made) return refuse(*reply, {made.error(), "input"});
    std::vector<int32_t>& ids = call.generation.prompt;
    const auto wrong = [&](std::string what) {
      refuse(*reply, {fail(Code::invalid, "input[{}] {}", inputs.size(), what), "input"});
    };
    if (ids.empty()) return wrong("has no tokens");
    if (ids.size() > service.n_ctx())
      return wrong(fmt::format("has {} tokens, the context {} positions", ids.size(), service.n_ctx()));
    for (const int32_t id : ids)
      if (uint32_t(id) >= service.model().n_vocab)
        return wrong(fmt::format("has the token {}, the vocabulary ids 0 to {}", id, service.model().n_vocab - 1));
    inputs.push_back(std::move(ids));
  }
  const auto batch = std::make_shared<Batch>(reply, *model, std::move(inputs), as_text);
  batch->advance();
  reply->on_gone([batch = std::weak_ptr(batch), model = std::weak_ptr(model)] {
    const auto alive = model.lock();
    if (const auto still = batch.lock(); alive && still) still->leave();
  });
}

}  // namespace

void add_embeddings_routes(const ApiContext& api) {
  for (const char* path : {"/v1/embeddings", "/embeddings"})
    api.server->route("POST", path, [host = api.host](server::Request request, std::shared_ptr<Reply> reply) {
      handle_embeddings(*host, request, reply);
    });
}

}  // namespace argent::server::openai
