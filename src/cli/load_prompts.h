// Prompts of random words for a load test, of a number of tokens that the server itself counts.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/rng.h"
#include "server/http_client.h"

namespace argent::cli {

// How to reach a server's completions.
struct Endpoint {
  server::Url url = {};
  std::string root = {}, v1 = {};  // paths: "" and "/v1" when the URL is http://HOST:PORT
  std::string model = {}, api_key = {};
  bool chat = false;
  uint32_t n_ids = 0;  // above 0: prompts are token ids below it, as a JSON array; not for chat
  double temperature = 0;
  std::chrono::milliseconds timeout{600000};

  server::ClientRequest post(std::string target, std::string body) const;
  server::ClientRequest completion(std::string_view prompt, uint32_t n_tokens, uint64_t seed, bool stream) const;
};

class PromptMaker {
 public:
  // Finds out how the server's tokens are counted: by its /tokenize (llama-server's or vLLM's fields); else by the
  // usage of two short completions, as so many tokens a word; else 1.3 a word. Ids need no counting. `n_shared` tokens
  // come first in all prompts. io: the server does not answer. invalid: the API's answer to a completion is an error.
  static Result<PromptMaker> make(server::HttpClient& client, const Endpoint& endpoint, uint64_t seed,
                                  uint32_t n_tokens, uint32_t n_shared);
  Result<std::string> next();
  bool exact() const { return tokenizes_ || endpoint_->n_ids > 0; }

 private:
  PromptMaker(server::HttpClient& client, const Endpoint& endpoint, uint64_t seed, uint32_t n_tokens)
      : client_(&client), endpoint_(&endpoint), rng_(seed), n_tokens_(n_tokens) {}
  using Words = std::vector<std::string_view>;
  void add_word(Words& words);
  Result<std::optional<uint32_t>> tokenized(const std::string& text);         // none: there is no /tokenize
  Result<std::optional<uint32_t>> counted_by_usage(const std::string& text);  // none: it tells no usage
  Status settle_counting();
  // Adds words until there are n_tokens; the first `fixed` stay.
  Status fit(Words& words, size_t fixed, uint32_t n_tokens);
  void add_ids(std::vector<uint32_t>& ids, uint32_t n_tokens);

  server::HttpClient* client_;
  const Endpoint* endpoint_;
  Rng rng_;
  uint32_t n_tokens_;
  bool tokenizes_ = false;
  double a_word_ = 1.3;  // tokens
  double besides_ = 0;   // tokens that the server counts besides those of the words: the chat template's
  Words shared_;
  std::vector<uint32_t> shared_ids_;
};

}  // namespace argent::cli
