#include <algorithm>
#include <chrono>
#include <cmath>

#include "server/openai.h"

namespace argent::server::openai {
namespace {

// What OpenAI calls an error of a status.
std::string_view type_of(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 429:
      return "rate_limit_error";
    default:
      return status < 500 ? "invalid_request_error" : "server_error";
  }
}

Json byte_list(const std::string& bytes) {
  Json list = Json::array();
  for (const char c : bytes) list.push_back(uint8_t(c));
  return list;
}

}  // namespace

Json error_json(const Refusal& refusal) {
  const Json null;
  const bool no_model = refusal.error.code == Code::not_found && refusal.field == "model";
  return {{"error",
           {{"message", refusal.error.message},
            {"type", type_of(status_of(refusal.error))},
            {"param", refusal.field.empty() ? null : Json(refusal.field)},
            {"code", no_model ? Json("model_not_found") : null}}}};
}

void refuse(Reply& reply, const Refusal& refusal) {
  reply.send(status_of(refusal.error), to_text(error_json(refusal)));
}

std::string field_of(const Error& error, const Json& body) {
  std::string_view text = error.message;
  if (text.starts_with("#/")) text.remove_prefix(2);  // a place in a schema: "#/tools/0/parameters: ..."
  const std::string_view path = text.substr(0, text.find_first_of(" :,"));
  const std::string_view name = path.substr(0, path.find_first_of(".[/"));
  return body.is_object() && body.contains(std::string(name)) ? std::string(path) : std::string();
}

Refusal blame(const Error& error, const Json& body, std::string_view prompt_field) {
  if (std::string field = field_of(error, body); !field.empty()) return {error, std::move(field)};
  if (error.code != Code::invalid) return {error, ""};
  return {{error.code, fmt::format("{}: {}", prompt_field, error.message)}, std::string(prompt_field)};
}

std::string bytes_of(const Tokenizer* tokenizer, int32_t id) {
  std::string bytes;
  if (tokenizer) tokenizer->append_bytes(id, bytes, true);
  return bytes;
}

double finite(float log_prob) { return std::isfinite(log_prob) ? double(log_prob) : -9999.0; }

Json chat_log_probs(const std::vector<TokenInfo>& tokens, const Tokenizer* tokenizer) {
  Json content = Json::array();
  const auto entry = [](const std::string& bytes, float log_prob) {
    return Json{{"token", bytes}, {"logprob", finite(log_prob)}, {"bytes", byte_list(bytes)}};
  };
  for (const TokenInfo& token : tokens) {
    Json each = entry(token.bytes, token.log_prob);
    Json& top = each["top_logprobs"] = Json::array();
    for (const sample::LogProb& p : token.top) top.push_back(entry(bytes_of(tokenizer, p.token), p.log_prob));
    content.push_back(std::move(each));
  }
  return content;
}

Json prompt_log_probs(const std::vector<TokenInfo>& tokens, const Tokenizer* tokenizer) {
  Json list = Json::array();
  for (const TokenInfo& token : tokens) {
    if (list.empty()) {  // nothing came before the first token
      list.push_back(nullptr);
      continue;
    }
    Json entry = Json::object();
    entry[std::to_string(token.id)] = {{"logprob", finite(token.log_prob)}, {"decoded_token", token.bytes}};
    for (const sample::LogProb& p : token.top)
      entry[std::to_string(p.token)] = {{"logprob", finite(p.log_prob)},
                                        {"decoded_token", bytes_of(tokenizer, p.token)}};
    list.push_back(std::move(entry));
  }
  return list;
}

std::string_view finish_word(FinishReason reason) {
  switch (reason) {
    case FinishReason::length:
      return "length";
    case FinishReason::tool_calls:
      return "tool_calls";
    default:
      return "stop";
  }
}

Json chat_delta(const OutputDelta& output) {
  Json delta = Json::object();
  if (!output.reasoning.empty()) delta["reasoning_content"] = output.reasoning;
  if (!output.content.empty()) delta["content"] = output.content;
  for (const ToolDelta& call : output.calls) {
    Json each{{"index", call.index}};
    if (!call.name.empty()) each["id"] = call.id, each["type"] = "function";
    Json& function = each["function"] = Json::object();
    if (!call.name.empty()) function["name"] = call.name;
    function["arguments"] = call.arguments;
    delta["tool_calls"].push_back(std::move(each));
  }
  return delta;
}

void Collected::add(const CallDelta& delta) {
  content += delta.output.content;
  reasoning += delta.output.reasoning;
  for (const ToolDelta& call : delta.output.calls) {
    if (call.index >= calls.size()) calls.resize(call.index + 1);
    ToolDelta& to = calls[call.index];
    to.index = call.index;
    if (!call.name.empty()) to.id = call.id, to.name = call.name;
    to.arguments += call.arguments;
  }
  n_tokens = std::max(n_tokens, delta.n_tokens);
  if (!delta.output.reasoning.empty()) n_reasoning = delta.n_tokens;
  if (delta.finish) finish = delta.finish;
}

Json Collected::message() const {
  Json message{{"role", "assistant"}};
  message["content"] = content.empty() && !calls.empty() ? Json() : Json(content);
  if (!reasoning.empty()) message["reasoning_content"] = reasoning;
  for (const ToolDelta& call : calls)
    message["tool_calls"].push_back(
        {{"id", call.id}, {"type", "function"}, {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
  message["refusal"] = nullptr;
  return message;
}

int64_t unix_time() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

Json usage_json(const RequestUsage& usage, uint32_t n_reasoning) {
  return {{"prompt_tokens", usage.n_prompt},
          {"completion_tokens", usage.n_generated},
          {"total_tokens", usage.n_prompt + usage.n_generated},
          {"prompt_tokens_details", {{"cached_tokens", usage.n_reused}}},
          {"completion_tokens_details", {{"reasoning_tokens", n_reasoning}}}};
}

void Events::send(std::string event) {
  if (!begun_) reply_->begin(200, "text/event-stream", {{"Cache-Control", "no-cache"}});
  begun_ = true;
  reply_->write(std::move(event));
}

void Events::fail(const Refusal& refusal) {
  if (!begun_) return refuse(*reply_, refusal);
  reply_->write(server_event(error_json(refusal)));
  reply_->end();
}

TextChunks::TextChunks(const Json& head, bool chat, bool include_usage) {
  before_ = "data: " + to_text(head);
  before_.pop_back();
  before_ += chat ? ",\"choices\":[{\"index\":" : ",\"choices\":[{\"text\":";
  between_ = chat ? ",\"delta\":{\"content\":" : ",\"index\":";
  end_ = chat ? "}" : "";
  end_ += ",\"logprobs\":null,\"finish_reason\":null}]";
  end_ += include_usage ? ",\"usage\":null}\n\n" : "}\n\n";
  text_first_ = !chat;
}

std::string TextChunks::event(size_t index, std::string_view text) const {
  const std::string number = std::to_string(index);
  std::string out;
  out.reserve(before_.size() + between_.size() + end_.size() + number.size() + text.size() + 16);
  out += before_;
  if (!text_first_) out += number;
  if (!text_first_) out += between_;
  append_json(out, text);
  if (text_first_) out += between_;
  if (text_first_) out += number;
  out += end_;
  return out;
}

void TextChunks::append_json(std::string& out, std::string_view text) {
  const auto as_is = [](uint8_t c) { return c >= 0x20 && c < 0x80 && c != '"' && c != '\\'; };
  const size_t begin = out.size();
  out += '"';
  for (size_t i = 0; i < text.size();) {
    size_t plain = i;
    while (plain < text.size() && as_is(uint8_t(text[plain]))) ++plain;
    out.append(text, i, plain - i);
    if ((i = plain) == text.size()) break;
    const char c = text[i++];
    if (c == '"' || c == '\\') {
      out += {'\\', c};
    } else if (c == '\n') {
      out += "\\n";
    } else {  // what is not ASCII has to be checked
      out.resize(begin);
      out += to_text(Json(text));
      return;
    }
  }
  out += '"';
}

}  // namespace argent::server::openai
