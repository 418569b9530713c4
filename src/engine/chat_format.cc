#include "engine/chat_format.h"

#include "chat/json_input.h"

namespace argent {
namespace {

constexpr std::string_view kTemplateKey = "tokenizer.chat_template";

std::optional<std::string> detect(const gguf::File& file) {
  const gguf::Value* tokens = file.find("tokenizer.ggml.tokens");
  if (!tokens || !tokens->is_array_of(gguf::Type::string)) return std::nullopt;
  const auto has_token = [&](std::string_view text) {
    for (uint64_t i = 0; i < tokens->size(); ++i)
      if (tokens->string_at(i) == text) return true;
    return false;
  };
  const gguf::Value* arch = file.find("general.architecture");
  return ChatFormat::detect_builtin(has_token, arch ? arch->as_string().value_or("") : "");
}

}  // namespace

std::map<std::string, std::string> special_tokens(const gguf::File& file) {
  static constexpr std::pair<std::string_view, std::string_view> kNames[] = {
      {"bos_token", "tokenizer.ggml.bos_token_id"},       {"eos_token", "tokenizer.ggml.eos_token_id"},
      {"unk_token", "tokenizer.ggml.unknown_token_id"},   {"pad_token", "tokenizer.ggml.padding_token_id"},
      {"sep_token", "tokenizer.ggml.seperator_token_id"}, {"cls_token", "tokenizer.ggml.cls_token_id"},
      {"mask_token", "tokenizer.ggml.mask_token_id"}};
  std::map<std::string, std::string> out;
  const gguf::Value* tokens = file.find("tokenizer.ggml.tokens");
  if (!tokens) return out;
  for (const auto& [name, key] : kNames) {
    const gguf::Value* id = file.find(key);
    const auto index = id ? id->as_uint() : std::nullopt;
    if (index && *index < tokens->size()) out.emplace(name, tokens->string_at(*index));
  }
  return out;
}

Result<ChatFormat> load_chat_format(const gguf::File& file, const std::string& flag, const ChatRequest& sample) {
  if (!flag.empty()) return ChatFormat::from_flag(flag, special_tokens(file), {}, sample);
  ARGENT_LET(const auto own, file.find_string(kTemplateKey));
  if (own)
    return ChatFormat::from_source(std::string(*own), std::string(kTemplateKey), special_tokens(file), {}, sample);
  if (const auto name = detect(file)) return ChatFormat::builtin(*name, special_tokens(file), {}, sample);
  return fail(Code::not_found,
              "{} has no chat template, and its vocabulary none of the known forms; --chat-template FILE gives one, or "
              "a name: {}",
              file.path(), fmt::join(ChatFormat::builtin_names(), ", "));
}

std::string chat_format_source(const gguf::File& file, const std::string& flag) {
  if (!flag.empty()) return "--chat-template " + flag;
  if (file.find(kTemplateKey)) return "file";
  const auto name = detect(file);
  return name ? "built-in " + *name : "";
}

std::vector<int32_t> encode_rendered(const Tokenizer& tokenizer, const Rendered& rendered, size_t begin) {
  std::vector<Tokenizer::Segment> segments;
  const std::string_view text = rendered.text;
  for (const Span& span : rendered.spans)
    if (span.end > begin) {
      const size_t from = std::max(span.begin, begin);
      segments.push_back({text.substr(from, span.end - from), span.from_template});
    }
  return tokenizer.encode(segments, false);
}

std::vector<int32_t> encode_prompt(const Tokenizer& tokenizer, const Rendered& rendered) {
  std::vector<int32_t> ids = encode_rendered(tokenizer, rendered);
  if (const auto bos = tokenizer.bos(); bos && tokenizer.add_bos() && (ids.empty() || ids[0] != *bos))
    ids.insert(ids.begin(), *bos);
  return ids;
}

Result<Json> parse_variables(const std::vector<std::string>& assignments) {
  Json variables = Json::object();
  for (const std::string& assignment : assignments) {
    const size_t equal = assignment.find('=');
    if (equal == 0 || equal == std::string::npos) return fail(Code::invalid, "--var {}: wanted NAME=JSON", assignment);
    const std::string name = assignment.substr(0, equal), text = assignment.substr(equal + 1);
    ARGENT_LET(Json value, parse_json(text, "--var " + name));
    variables[name] = std::move(value);
  }
  return variables;
}

}  // namespace argent
