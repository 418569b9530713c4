#include "cli/load_prompts.h"
#include "base/json.h"

#include <algorithm>
#include <cmath>

#include "cli/command.h"
#include "server/load.h"

namespace argent::cli {
namespace {

// Words that most vocabularies have as one token each.
constexpr std::string_view kWords =
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work government number night point home water room mother "
    "area money story fact month lot right study book eye job word business issue side kind head house service friend "
    "father power hour game line end member law car city community name president team minute idea body information "
    "back parent face others level office door health person art war history party result change morning reason "
    "research girl guy moment air teacher force education foot boy age policy music market sense nation plan college "
    "interest death experience effect use class control field development role effort rate heart drug show leader "
    "light voice wife police mind price report decision son view relationship town road arm difference value building "
    "action season society tax director position player record paper space ground form event official matter center "
    "couple site project activity star table need court oil situation cost industry figure street image phone data "
    "picture practice piece land product doctor wall patient worker news test movie north love step south river tree";

const std::vector<std::string_view>& words_to_draw() {
  static const std::vector<std::string_view> words = [] {
    std::vector<std::string_view> list;
    for (std::string_view rest = kWords; !rest.empty();) {
      const size_t space = std::min(rest.find(' '), rest.size());
      list.push_back(rest.substr(0, space));
      rest.remove_prefix(std::min(space + 1, rest.size()));
    }
    return list;
  }();
  return words;
}

std::string joined(const std::vector<std::string_view>& words) {
  std::string text;
  for (const std::string_view word : words) (text.empty() ? text : text += ' ') += word;
  return text;
}

constexpr int kRounds = 12;  // of asking for one prompt's length; two do where a word is a token

}  // namespace

server::ClientRequest Endpoint::post(std::string target, std::string body) const {
  server::ClientRequest request{.method = "POST", .target = std::move(target), .body = std::move(body)};
  request.headers = {{"Content-Type", "application/json"}, {"User-Agent", "argent-bench"}};
  if (!api_key.empty()) request.headers.emplace_back("Authorization", "Bearer " + api_key);
  request.timeout = timeout;
  return request;
}

server::ClientRequest Endpoint::completion(std::string_view prompt, uint32_t n_tokens, uint64_t seed,
                                           bool stream) const {
  nlohmann::ordered_json body = {{"model", model}};
  if (chat)
    body["messages"] = {{{"role", "user"}, {"content", prompt}}};
  else
    body["prompt"] = n_ids ? nlohmann::ordered_json::parse(prompt) : nlohmann::ordered_json(prompt);
  body.update({{"max_tokens", n_tokens}, {"ignore_eos", true}, {"temperature", temperature}, {"seed", seed}});
  if (stream) body.update({{"stream", true}, {"stream_options", {{"include_usage", true}}}});
  return post(v1 + (chat ? "/chat/completions" : "/completions"), body.dump());
}

Result<PromptMaker> PromptMaker::make(server::HttpClient& client, const Endpoint& endpoint, uint64_t seed,
                                      uint32_t n_tokens, uint32_t n_shared) {
  PromptMaker maker(client, endpoint, seed, n_tokens);
  if (endpoint.n_ids) return maker.add_ids(maker.shared_ids_, n_shared), maker;
  ARGENT_TRY(maker.settle_counting());
  if (n_shared) ARGENT_TRY(maker.fit(maker.shared_, 0, n_shared));
  return maker;
}

void PromptMaker::add_word(Words& words) {
  const auto& all = words_to_draw();
  words.push_back(all[rng_.next() % all.size()]);
}

Result<std::optional<uint32_t>> PromptMaker::tokenized(const std::string& text) {
  const nlohmann::ordered_json body = {{"model", endpoint_->model},
                                       {"content", text},
                                       {"add_special", !endpoint_->chat},  // llama-server's names; then vLLM's
                                       {"prompt", text},
                                       {"add_special_tokens", !endpoint_->chat}};
  ARGENT_LET(const server::Fetched answer,
             server::fetch(*client_, endpoint_->post(endpoint_->root + "/tokenize", body.dump())));
  if (answer.status != 200) return std::optional<uint32_t>();
  const auto json = nlohmann::json::parse(answer.body, nullptr, false);
  if (!json.is_object()) return std::optional<uint32_t>();
  if (const auto count = json.find("count"); count != json.end() && count->is_number_unsigned())
    return std::optional(count->get<uint32_t>());
  if (const auto tokens = json.find("tokens"); tokens != json.end() && tokens->is_array())
    return std::optional(uint32_t(tokens->size()));
  return std::optional<uint32_t>();
}

Result<std::optional<uint32_t>> PromptMaker::counted_by_usage(const std::string& text) {
  ARGENT_LET(const server::Fetched answer, server::fetch(*client_, endpoint_->completion(text, 1, 0, false)));
  const auto event = server::read_completion(answer.body);
  if (answer.status != 200)
    return fail(Code::invalid, "the server answers a completion with {}: {}", answer.status,
                event && !event->error.empty() ? event->error : answer.body.substr(0, 200));
  if (!event || !event->usage) return std::optional<uint32_t>();
  return std::optional(event->usage->prompt);
}

Status PromptMaker::settle_counting() {
  Words words;
  while (words.size() < 32) add_word(words);
  const std::string few = joined(words);
  while (words.size() < 96) add_word(words);
  const std::string many = joined(words);
  ARGENT_LET(const auto few_tokens, tokenized(few));
  tokenizes_ = few_tokens.has_value();
  ARGENT_LET(const auto few_used, counted_by_usage(few));
  if (tokenizes_) {
    if (few_used) besides_ = double(*few_used) - double(*few_tokens);
    ARGENT_LET(const auto many_tokens, tokenized(many));
    if (many_tokens && *many_tokens > *few_tokens) a_word_ = double(*many_tokens - *few_tokens) / 64;
    return {};
  }
  ARGENT_LET(const auto many_used, counted_by_usage(many));
  if (few_used && many_used && *many_used > *few_used) {
    a_word_ = double(*many_used - *few_used) / 64;
    besides_ = *few_used - 32 * a_word_;
  }
  return {};
}

Status PromptMaker::fit(Words& words, size_t fixed, uint32_t n_tokens) {
  const double wanted = std::max(1.0, double(n_tokens) - besides_);
  const auto grow = [&](double tokens) {
    for (int64_t n = std::max<int64_t>(1, int64_t(tokens / a_word_)); n > 0; --n) add_word(words);
  };
  const double fixed_tokens = double(fixed) * a_word_;
  if (wanted > fixed_tokens) grow(wanted - fixed_tokens);
  if (!tokenizes_) return {};
  Words best = words;
  double nearest = INFINITY;
  for (int round = 0; round < kRounds && nearest > 0; ++round) {
    ARGENT_LET(const auto count, tokenized(joined(words)));
    if (!count) return fail(Code::io, "the server's /tokenize fails at times");
    const double missing = wanted - double(*count);
    if (std::abs(missing) < nearest) nearest = std::abs(missing), best = words;
    if (missing > 0) {
      grow(missing);
    } else {
      const size_t n = std::max<size_t>(1, size_t(-missing / a_word_));
      words.resize(words.size() - std::min(n, words.size() - fixed));
      if (words.empty()) add_word(words);
    }
  }
  words = std::move(best);
  return {};
}

void PromptMaker::add_ids(std::vector<uint32_t>& ids, uint32_t n_tokens) {
  while (ids.size() < n_tokens) ids.push_back(uint32_t(rng_.next() % endpoint_->n_ids));
}

Result<std::string> PromptMaker::next() {
  if (endpoint_->n_ids) {
    std::vector<uint32_t> ids = shared_ids_;
    add_ids(ids, n_tokens_);
    return nlohmann::json(ids).dump();
  }
  Words words = shared_;
  ARGENT_TRY(fit(words, shared_.size(), n_tokens_));
  return joined(words);
}

}  // namespace argent::cli
