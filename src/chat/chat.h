// Conversations to prompts: a chat template with what it needs from its messages found out once, when it is loaded.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "chat/template.h"

namespace argent {

// Brings OpenAI-style messages into one form. Every message is an object with a string role; content is a string, null,
// absent, or an array of parts {"type": "text", "text": ...} (also plain strings); other part types are
// Code::unsupported. tool_calls is null or an array of objects. Anything else is Code::invalid and names the place
// ("messages[2].content").
//   content null or absent -> "";  parts -> their texts joined by newlines, or kept (typed_content)
//   tool call arguments that are JSON text -> the object in it; "" and null -> {}; text that is no JSON object stays
//   text
struct MessageForm {
  bool typed_content = false;       // the template walks content as an array of parts: strings become one text part
  bool arguments_as_object = true;  // false: arguments that are objects become JSON text instead
  bool null_content = false;        // a null content beside tool_calls stays null: some templates ask for that
};
Result<Json> normalize_messages(const Json& messages, const MessageForm& form = {});

// Reads a template file: a UTF-8 byte order mark is dropped and CRLF becomes LF.
Result<std::string> load_template_file(const std::string& path);

// What probing found out when the format was loaded.
struct ChatCapabilities {
  bool system_role = false;        // shows the text of a system message (or folds it somewhere)
  bool tools = false;              // shows the tools it is given
  bool tool_calls = false;         // shows assistant messages with tool_calls
  bool tool_results = false;       // shows messages of role "tool"
  bool generation_prompt = false;  // add_generation_prompt changes the text
  bool needs_alternation = false;  // refuses two user messages in a row
  MessageForm form;                // how it wants its messages
};

struct ChatRequest {
  Json messages;  // array, OpenAI form
  Json tools;     // array or null
  bool add_generation_prompt = true;
  Json variables = Json::object();  // chat_template_kwargs, --var: input, never trusted; null: none
};

class ChatFormat {
 public:
  // special_tokens: {"bos_token", "<s>"}, ...: handed to the template and trusted. Fails when the template does not
  // parse, or cannot render even one user message, alone or behind a system message. `sample` is what the format will
  // be used for, where that is known: its variables are there when the template is probed, and a template that renders
  // its messages is good, whatever else it refuses.
  static Result<ChatFormat> from_source(std::string source, std::string name,
                                        std::map<std::string, std::string> special_tokens,
                                        const TemplateLimits& limits = {}, const ChatRequest& sample = {});

  // "chatml", "llama3", "gemma", "mistral": for files that carry no template.
  static Result<ChatFormat> builtin(std::string_view name, std::map<std::string, std::string> special_tokens,
                                    const TemplateLimits& limits = {}, const ChatRequest& sample = {});
  static const std::vector<std::string>& builtin_names();

  // The built-in form whose control tokens a vocabulary has; nullopt: none, the model is not a chat model we know.
  static std::optional<std::string> detect_builtin(const std::function<bool(std::string_view)>& has_token,
                                                   std::string_view architecture);

  // FILE or NAME of --chat-template: a built-in name, or the path of a template file.
  static Result<ChatFormat> from_flag(const std::string& file_or_name,
                                      std::map<std::string, std::string> special_tokens,
                                      const TemplateLimits& limits = {}, const ChatRequest& sample = {});

  Result<Rendered> render(const ChatRequest& request) const;

  const ChatCapabilities& capabilities() const { return capabilities_; }
  const Template& chat_template() const { return template_; }
  void set_clock(std::function<std::tm()> now) { options_.now = std::move(now); }

 private:
  ChatFormat(Template parsed, std::map<std::string, std::string> special_tokens, const TemplateLimits& limits);
  Status probe(const ChatRequest& sample);
  void probe_tools(const Json& variables);
  Result<Rendered> render_with(const ChatRequest& request, const MessageForm& form) const;

  Template template_;
  std::map<std::string, std::string> special_tokens_;
  RenderOptions options_;
  ChatCapabilities capabilities_;
};

}  // namespace argent
