#include "cli/conversation.h"

#include <algorithm>

#include "cli/command.h"

namespace argent::cli {
namespace {

constexpr std::string_view kSpace = " \t\r\n";

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(kSpace);
  return begin == std::string_view::npos ? std::string_view()
                                         : text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

}  // namespace

void ChatOptions::add(CLI::App& app) {
  app.add_option("--system", system, "instructions that the model gets before the first message");
  app.add_option("--chat-template", chat_template,
                 "a template file, or chatml, llama3, gemma, mistral (default: the model's)");
  app.add_option("--var", variables, "a variable of the chat template: NAME=JSON, repeatable")->allow_extra_args(false);
  app.add_option("-n,--max-tokens", max_tokens, "most tokens of an answer; 0: until the context is full")->capture_default_str();
  app.add_flag("-q,--quiet", quiet, "no statistics on stderr");
  profile.add(app);
}

Result<Conversation> Conversation::start(Engine& engine, const ChatOptions& options) {
  if (!engine.tokenizer())
    return fail(Code::unsupported, "{}: the file has no tokenizer, so it takes no text; argent logits takes token ids",
                engine.file().path());
  ChatRequest sample;
  ARGENT_LET(sample.variables, parse_variables(options.variables));
  ARGENT_LET(ChatFormat format, load_chat_format(engine.file(), options.chat_template, sample));
  Conversation conversation(engine, std::move(format));
  conversation.variables_ = std::move(sample.variables);
  ARGENT_TRY(conversation.set_system(options.system));
  conversation.sequence_ = engine.open_sequence();
  conversation.find_end_ids();
  return conversation;
}

// The control token that the template writes behind an answer ends one, whether the vocabulary says so or not.
void Conversation::find_end_ids() {
  static constexpr std::string_view kMark = "argent";
  ChatRequest request;
  request.messages = {{{"role", "user"}, {"content", "a"}}, {{"role", "assistant"}, {"content", kMark}}};
  request.add_generation_prompt = false;
  request.variables = variables_;
  const auto rendered = format_.render(request);
  if (!rendered) return;  // a template that renders no answers
  const size_t at = rendered->text.rfind(kMark);
  if (at == std::string::npos) return;
  const std::vector<int32_t> after = encode_rendered(*engine_->tokenizer(), *rendered, at + kMark.size());
  if (!after.empty() && engine_->tokenizer()->is_control(after[0])) end_ids_.push_back(after[0]);
}

std::string_view Conversation::role(size_t i) const { return messages_[i]["role"].get_ref<const std::string&>(); }

std::string Conversation::text(size_t i) const {
  const Json& content = messages_[i].contains("content") ? messages_[i]["content"] : Json();
  if (content.is_string()) return content.get<std::string>();
  std::string text;
  if (content.is_array())
    for (const Json& part : content)
      if (part.is_object() && part.contains("text") && part["text"].is_string())
        text += part["text"].get_ref<const std::string&>();
  return text;
}

Status Conversation::set_system(const std::string& text) {
  if (!text.empty() && !format_.capabilities().system_role)
    return fail(Code::unsupported, "the chat template has no place for a system message");
  const bool has = !messages_.empty() && role(0) == "system";
  if (has && text.empty())
    messages_.erase(messages_.begin());
  else if (has)
    messages_[0]["content"] = text;
  else if (!text.empty())
    messages_.insert(messages_.begin(), Json{{"role", "system"}, {"content", text}});
  return {};
}

Status Conversation::set_messages(Json messages) {
  ARGENT_LET(Json normal, normalize_messages(messages));
  std::swap(messages_, normal);
  if (const auto rendered = render(true); !rendered && !messages_.empty()) {
    std::swap(messages_, normal);
    return rendered.error();
  }
  return {};
}

Result<Rendered> Conversation::render(bool add_generation_prompt) const {
  ChatRequest request;
  request.messages = messages_;
  request.variables = variables_;
  request.add_generation_prompt = add_generation_prompt;
  return format_.render(request);
}

// The prompt's tokens. Where it goes on from what is computed, the computed tokens stay and only what follows is new:
// so an answer is never cut into other tokens than it was drawn in. A template may have trimmed the answer.
std::vector<int32_t> Conversation::prompt(const Rendered& rendered) const {
  const Tokenizer& tokenizer = *engine_->tokenizer();
  const std::string_view text = rendered.text;
  if (computed_ && text.starts_with(computed_->prompt)) {
    const std::string_view rest = text.substr(computed_->prompt.size());
    for (const std::string_view answer : {std::string_view(computed_->answer), trimmed(computed_->answer)}) {
      if (!rest.starts_with(answer)) continue;
      const std::vector<int32_t> more = encode_rendered(tokenizer, rendered, computed_->prompt.size() + answer.size());
      if (more.empty() || !tokenizer.is_control(more[0])) continue;  // text that runs on would be cut elsewhere
      std::vector<int32_t> ids = computed_->tokens;
      ids.insert(ids.end(), more.begin(), more.end());
      return ids;
    }
  }
  return encode_prompt(tokenizer, rendered);
}

Result<size_t> Conversation::n_tokens() const {
  if (messages_.empty()) return size_t(0);
  ARGENT_LET(const Rendered rendered, render(true));
  return prompt(rendered).size();
}

Result<Generation> Conversation::answer(const SampleParams& params, uint32_t max_tokens,
                                        const std::function<Status(std::string_view)>& sink) {
  ARGENT_LET(const Rendered rendered, render(true));
  const std::vector<int32_t> ids = prompt(rendered);
  if (ids.size() >= engine_->n_ctx())
    return fail(Code::invalid,
                "the conversation has {} tokens and the context {} positions, so there is no room for an answer",
                ids.size(), engine_->n_ctx());
  const GenerateOptions options{.max_tokens = max_tokens, .also_end = end_ids_, .begins_text = true};
  ARGENT_LET(Generation generation, generate(*engine_, sequence_, ids, params, options, sink));
  computed_ = Computed{rendered.text, generation.text, ids};
  computed_->tokens.insert(computed_->tokens.end(), generation.tokens.begin(), generation.tokens.end());
  const bool nothing = generation.stop == Stop::interrupted && generation.tokens.empty();
  if (!nothing) messages_.push_back({{"role", "assistant"}, {"content", generation.text}});
  return generation;
}

}  // namespace argent::cli
