// A conversation with a model: messages, the chat template, and the sequence that has computed them so far.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include "engine/chat_format.h"
#include "cli/generate.h"
#include "cli/profile.h"

namespace argent::cli {

struct ChatOptions {
  std::string chat_template;           // --chat-template; empty: the model's own
  std::vector<std::string> variables;  // --var NAME=JSON
  std::string system;
  uint32_t max_tokens = 1024;  // of an answer; 0: until the context is full
  bool quiet = false;
  ProfileOptions profile;

  void add(CLI::App& app);
};

class Conversation {
 public:
  // unsupported: a file without a tokenizer; else as load_chat_format.
  static Result<Conversation> start(Engine& engine, const ChatOptions& options);

  // Lets the model answer the messages as they stand, the last being the user's, and adds the answer to them. What an
  // earlier answer computed is used again, the tokens of the answer being those that the model drew, not those that its
  // text would be cut into. On an error, also when the context has no room, the messages stay as they are; so they do
  // when Ctrl-C came before the first token.
  Result<Generation> answer(const SampleParams& params, uint32_t max_tokens,
                            const std::function<Status(std::string_view)>& sink);

  // An array as OpenAI has it. A system message is the first.
  const Json& messages() const { return messages_; }
  void add_user(std::string text) { messages_.push_back({{"role", "user"}, {"content", std::move(text)}}); }
  // "" takes it away. unsupported: the template shows no system message.
  Status set_system(const std::string& text);
  // Replaces all messages; invalid when the template cannot render them, and then nothing changes.
  Status set_messages(Json messages);
  // Takes messages away until `n` are left.
  void keep(size_t n) {
    messages_.erase(messages_.begin() + std::ptrdiff_t(std::min(n, messages_.size())), messages_.end());
  }
  size_t n_messages() const { return messages_.size(); }
  std::string_view role(size_t i) const;
  std::string text(size_t i) const;
  // Tokens that the messages take with the beginning of an answer.
  Result<size_t> n_tokens() const;

  Engine& engine() const { return *engine_; }

 private:
  Conversation(Engine& engine, ChatFormat format) : engine_(&engine), format_(std::move(format)) {}
  Result<Rendered> render(bool add_generation_prompt) const;
  std::vector<int32_t> prompt(const Rendered& rendered) const;
  void find_end_ids();

  Engine* engine_;
  ChatFormat format_;
  Json variables_ = Json::object();
  Json messages_ = Json::array();
  std::vector<int32_t> end_ids_;  // what the template writes behind an answer
  SequenceId sequence_ = 0;
  // What the sequence has: the text of a rendered prompt with the answer behind it, and its tokens.
  struct Computed {
    std::string prompt;
    std::string answer;
    std::vector<int32_t> tokens;
  };
  std::optional<Computed> computed_;
};

}  // namespace argent::cli
