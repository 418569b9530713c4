#include "chat/chat.h"

namespace argent {
namespace {

constexpr int kMaxJsonDepth = 64;  // of what a request may nest; copying and writing JSON is recursive

bool too_deep(const Json& json, int left) {
  if (!json.is_structured()) return false;
  if (left == 0) return true;
  for (const Json& item : json) {
    if (too_deep(item, left - 1)) return true;
  }
  return false;
}

// Brackets inside brackets of JSON text, without parsing it.
bool text_too_deep(const std::string& text) {
  int depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (quoted) {
      if (c == '\\') ++i;
      if (c == '"') quoted = false;
    } else if (c == '"') {
      quoted = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxJsonDepth) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

Error wanted(const std::string& place, const char* what, const Json& got) {
  return fail(Code::invalid, "{}: expected {}, got {}", place, what, got.type_name());
}

Result<std::string> part_text(const Json& part, const std::string& place) {
  if (part.is_string()) return part.get<std::string>();
  if (!part.is_object()) return wanted(place, "a text part", part);
  auto type = part.find("type");
  if (type == part.end() || !type->is_string()) return fail(Code::invalid, "{}: the part has no type", place);
  if (*type != "text") {
    return fail(Code::unsupported, "{}: parts of type '{}' are not supported, only 'text'", place,
                type->get<std::string>().substr(0, 40));
  }
  auto text = part.find("text");
  if (text == part.end()) return fail(Code::invalid, "{}: the part has no text", place);
  if (!text->is_string()) return wanted(place + ".text", "a string", *text);
  return text->get<std::string>();
}

Result<Json> normal_content(const Json& message, const std::string& place, const MessageForm& form) {
  std::vector<std::string> texts;
  auto content = message.find("content");
  bool absent = content == message.end() || content->is_null();
  if (absent) {
    auto calls = message.find("tool_calls");
    bool has_calls = calls != message.end() && calls->is_array() && !calls->empty();
    if (has_calls && form.null_content) return Json();
    if (has_calls && form.typed_content) return Json::array();
    texts.emplace_back();
  } else if (content->is_string()) {
    texts.push_back(content->get<std::string>());
  } else if (content->is_array()) {
    for (size_t i = 0; i < content->size(); ++i) {
      ARGENT_LET(std::string text, part_text((*content)[i], fmt::format("{}.content[{}]", place, i)));
      texts.push_back(std::move(text));
    }
  } else {
    return wanted(place + ".content", "a string, null or an array of text parts", *content);
  }
  if (form.typed_content) {
    Json parts = Json::array();
    for (std::string& text : texts) parts.push_back({{"type", "text"}, {"text", std::move(text)}});
    return parts;
  }
  std::string joined;
  for (size_t i = 0; i < texts.size(); ++i) joined += (i ? "\n" : "") + texts[i];
  return Json(std::move(joined));
}

void normalize_arguments(Json& function, const MessageForm& form) {
  Json& arguments = function["arguments"];
  if (form.arguments_as_object) {
    if (arguments.is_null()) arguments = Json::object();
    if (!arguments.is_string()) return;
    const auto& text = arguments.get_ref<const std::string&>();
    if (text.find_first_not_of(" \t\r\n") == std::string::npos) {
      arguments = Json::object();
    } else if (!text_too_deep(text)) {
      Json parsed = Json::parse(text, nullptr, false);
      if (parsed.is_object()) arguments = std::move(parsed);
    }
    return;
  }
  if (arguments.is_null()) arguments = "{}";
  if (!arguments.is_string()) arguments = arguments.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Status normalize_calls(Json& message, const std::string& place, const MessageForm& form) {
  auto calls = message.find("tool_calls");
  if (calls == message.end()) return {};
  if (calls->is_null()) {
    message.erase("tool_calls");
    return {};
  }
  if (!calls->is_array()) return wanted(place + ".tool_calls", "an array", *calls);
  for (size_t i = 0; i < calls->size(); ++i) {
    Json& call = (*calls)[i];
    std::string call_place = fmt::format("{}.tool_calls[{}]", place, i);
    if (!call.is_object()) return wanted(call_place, "an object", call);
    auto function = call.find("function");
    if (function == call.end()) return fail(Code::invalid, "{}: the call has no function", call_place);
    if (!function->is_object()) return wanted(call_place + ".function", "an object", *function);
    auto name = function->find("name");
    if (name == function->end() || !name->is_string()) {
      return fail(Code::invalid, "{}.function: the function has no name", call_place);
    }
    normalize_arguments(*function, form);
  }
  return {};
}

}  // namespace

Result<Json> normalize_messages(const Json& messages, const MessageForm& form) {
  if (!messages.is_array()) return wanted("messages", "an array", messages);
  if (too_deep(messages, kMaxJsonDepth)) {
    return fail(Code::invalid, "messages: nested more than {} deep", kMaxJsonDepth);
  }
  Json out = Json::array();
  for (size_t i = 0; i < messages.size(); ++i) {
    std::string place = fmt::format("messages[{}]", i);
    if (!messages[i].is_object()) return wanted(place, "an object", messages[i]);
    Json message = messages[i];
    auto role = message.find("role");
    if (role == message.end()) return fail(Code::invalid, "{}: the message has no role", place);
    if (!role->is_string()) return wanted(place + ".role", "a string", *role);
    ARGENT_LET(Json content, normal_content(message, place, form));
    message["content"] = std::move(content);
    ARGENT_TRY(normalize_calls(message, place, form));
    out.push_back(std::move(message));
  }
  return out;
}

}  // namespace argent
