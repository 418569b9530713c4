// What the interfaces beside OpenAI's share: bodies, sampling under llama.cpp's names, answers in one piece, embeddings
// of several texts, prompts that fill in the middle.
#pragma once

#include <functional>
#include <mutex>
#include <span>
#include <utility>

#include "server/api.h"
#include "server/fields.h"

namespace argent::server {

inline constexpr size_t kMaxStops = 64;
inline constexpr size_t kMaxInputs = 1024;  // texts of one request for embeddings

// The body of a request, which is an object.
Result<Json> parse_body(const Request& request);

// A call on this model, sampled as the model is where the request says nothing, with a seed of its own.
Call call_on(const LoadedModel& model, const std::string& name);

// temperature, top_k, top_p, min_p, seed, repeat_penalty, repeat_last_n, presence_penalty, frequency_penalty, as Ollama
// and llama-server name them. Their special values: seed -1, also as 32 bits, is a random one, top_k <= 0 all tokens,
// repeat_last_n -1 the whole context, a temperature below 0 is 0.
void read_sampling(Fields& fields, SampleParams& params);

// Fields that change nothing while they have a certain value: others are refused.
struct NeutralField {
  std::string_view name;
  double value;
};
void read_neutral(Fields& fields, std::span<const NeutralField> neutral);

// The first word of an answer, which both the thread that took the request and the model's may have to say: a stream's
// head, or an error's status.
class Opening {
 public:
  // Runs `say` unless something was said; whether it did. Others wait until it has been said.
  template <class Say>
  bool operator()(Say&& say) {
    const std::lock_guard lock(mutex_);
    if (std::exchange(said_, true)) return false;
    say();
    return true;
  }

 private:
  std::mutex mutex_;
  bool said_ = false;
};

// One answer as the sum of its deltas. Tool calls are complete.
struct WholeAnswer {
  std::string content, reasoning;
  std::vector<ToolDelta> calls;
  std::vector<TokenInfo> tokens;
  FinishReason finish = FinishReason::cancelled;
  std::string stop;
  uint32_t n_tokens = 0;
  void add(CallDelta delta);
};

// What ends a call that nobody cancelled: the server does.
Error shutting_down();

// Arguments of a tool call as the object they are; nothing where the model wrote no such thing.
std::optional<Json> arguments_of(const ToolDelta& call);

// The embeddings of several prompts, computed together. Exactly one of `done` and `failed` is called; the client's
// going ends all.
struct Embeddings {
  std::vector<std::vector<float>> vectors;
  uint64_t n_prompt = 0;
};
void embed(const ApiContext& api, const LoadedModel& model, std::vector<std::vector<int32_t>> prompts,
           const std::shared_ptr<Reply>& reply, std::function<void(Embeddings)> done,
           std::function<void(const Error&)> failed);

// What stands between a prefix and a suffix, behind other files.
struct Infill {
  std::string prefix, suffix, prompt;  // the prompt continues the prefix
  struct File {
    std::string name, text;
  };
  std::vector<File> files;
};
// The prompt in the order prefix, suffix, middle. unsupported: names the tokens that the vocabulary lacks.
Result<std::vector<int32_t>> infill_prompt(const LoadedModel& model, const Infill& infill);

// A token with its log-probability, and the most likely ones in its place: {"id", "token", "bytes", "logprob",
// "top_logprobs"}, where with_ids says so.
Json token_json(const Tokenizer* tokenizer, const TokenInfo& token, bool with_ids);

// "2026-01-31T12:34:56.123456789Z".
std::string utc_time(std::chrono::system_clock::time_point time);

// The value of a parameter of a query, decoded; "" where it is not there.
std::string query_value(std::string_view query, std::string_view name);

}  // namespace argent::server
