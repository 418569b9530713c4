#include "chat/chat.h"

#include <algorithm>

#include "base/mapped_file.h"
#include "chat/builtin.h"

namespace argent {
namespace {

// Words that no template writes by itself.
constexpr const char* kUser = "Argent-probe-user";
constexpr const char* kSystem = "Argent-probe-system";
constexpr const char* kTool = "argent_probe_tool";
constexpr const char* kKey = "argent_probe_key";
constexpr const char* kResult = "Argent-probe-result";

bool shows(const Result<Rendered>& rendered, std::string_view word) {
  return rendered && rendered->text.find(word) != std::string::npos;
}

Json message(const char* role, const char* content) { return {{"role", role}, {"content", content}}; }

}  // namespace

Result<std::string> load_template_file(const std::string& path) {
  ARGENT_LET(MappedFile file, MappedFile::open(path));
  auto bytes = file.bytes();
  if (bytes.size() > TemplateLimits().source_bytes) {
    return fail(Code::invalid, "{}: {} bytes are too many for a chat template", path, bytes.size());
  }
  std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\r' && i + 1 < text.size() && text[i + 1] == '\n') continue;
    out += text[i];
  }
  return out;
}

ChatFormat::ChatFormat(Template parsed, std::map<std::string, std::string> special_tokens, const TemplateLimits& limits)
    : template_(std::move(parsed)), special_tokens_(std::move(special_tokens)) {
  options_.limits = limits;
  options_.trusted_variables.clear();
  for (const auto& [name, text] : special_tokens_) options_.trusted_variables.push_back(name);
}

Result<ChatFormat> ChatFormat::from_source(std::string source, std::string name,
                                           std::map<std::string, std::string> special_tokens,
                                           const TemplateLimits& limits, const ChatRequest& sample) {
  ARGENT_LET(Template parsed, Template::parse(std::move(source), std::move(name), limits));
  ChatFormat format(std::move(parsed), std::move(special_tokens), limits);
  ARGENT_TRY(format.probe(sample));
  return format;
}

Result<ChatFormat> ChatFormat::builtin(std::string_view name, std::map<std::string, std::string> special_tokens,
                                       const TemplateLimits& limits, const ChatRequest& sample) {
  for (const BuiltinTemplate& t : kBuiltinTemplates) {
    if (t.name == name) {
      return from_source(std::string(t.source), std::string(name), std::move(special_tokens), limits, sample);
    }
  }
  std::string known;
  for (const std::string& n : builtin_names()) known += (known.empty() ? "" : ", ") + n;
  return fail(Code::not_found, "no built-in chat template '{}'; there are {}", name.substr(0, 100), known);
}

const std::vector<std::string>& ChatFormat::builtin_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const BuiltinTemplate& t : kBuiltinTemplates) all.emplace_back(t.name);
    return all;
  }();
  return names;
}

std::optional<std::string> ChatFormat::detect_builtin(const std::function<bool(std::string_view)>& has_token,
                                                      std::string_view architecture) {
  std::optional<std::string> found;
  for (const BuiltinTemplate& t : kBuiltinTemplates) {
    bool all = std::all_of(std::begin(t.tokens), std::end(t.tokens),
                           [&](std::string_view token) { return token.empty() || has_token(token); });
    if (!all) continue;
    if (architecture.starts_with(t.name)) return std::string(t.name);  // several fit: the model's own family wins
    if (!found) found = std::string(t.name);
  }
  return found;
}

Result<ChatFormat> ChatFormat::from_flag(const std::string& file_or_name,
                                         std::map<std::string, std::string> special_tokens,
                                         const TemplateLimits& limits, const ChatRequest& sample) {
  const auto& names = builtin_names();
  if (std::find(names.begin(), names.end(), file_or_name) != names.end()) {
    return builtin(file_or_name, std::move(special_tokens), limits, sample);
  }
  auto source = load_template_file(file_or_name);
  if (!source) {
    std::string known;
    for (const std::string& n : names) known += ", " + n;
    return fail(source.error().code, "--chat-template: {} (or a built-in name: {})", source.error().message,
                known.substr(2));
  }
  return from_source(std::move(*source), file_or_name, std::move(special_tokens), limits, sample);
}

Result<Rendered> ChatFormat::render(const ChatRequest& request) const {
  return render_with(request, capabilities_.form);
}

Result<Rendered> ChatFormat::render_with(const ChatRequest& request, const MessageForm& form) const {
  ARGENT_LET(Json messages, normalize_messages(request.messages, form));
  if (!request.tools.is_null() && !request.tools.is_array()) {
    return fail(Code::invalid, "tools: expected an array, got {}", request.tools.type_name());
  }
  if (!request.variables.is_null() && !request.variables.is_object()) {
    return fail(Code::invalid, "template variables: expected an object, got {}", request.variables.type_name());
  }
  // As transformers passes them: tools and documents are there but none when there are none.
  Json context = Json::object();
  context["messages"] = std::move(messages);
  context["tools"] = request.tools.empty() ? Json() : request.tools;
  context["documents"] = Json();
  context["add_generation_prompt"] = request.add_generation_prompt;
  for (const auto& [name, text] : special_tokens_) context[name] = text;
  for (const auto& [name, value] : request.variables.items()) {
    bool taken = context.contains(name) && name != "documents";
    if (taken) return fail(Code::invalid, "the template variable '{}' is set by the engine", name.substr(0, 100));
    context[name] = value;
  }
  return template_.render(context, options_);
}

Status ChatFormat::probe(const ChatRequest& sample) {
  ChatRequest request;
  request.variables = sample.variables;
  MessageForm& form = capabilities_.form;
  request.messages = Json::array({message("user", kUser)});
  auto rendered = render_with(request, form);
  if (!shows(rendered, kUser)) {
    MessageForm typed;
    typed.typed_content = true;
    auto with_parts = render_with(request, typed);
    if (shows(with_parts, kUser) || (!rendered && with_parts)) {
      form = typed;
      rendered = std::move(with_parts);
    }
  }
  if (!rendered && sample.messages.is_array()) {
    rendered = render_with(sample, form);
    if (!rendered) return rendered.error();
    request = sample;
  }
  if (!rendered) {
    const Error refused = rendered.error();
    request.messages = Json::array({message("system", kSystem), message("user", kUser)});
    rendered = render_with(request, form);
    if (!rendered) return fail(refused.code, "the chat template cannot render a user message: {}", refused.message);
  }
  request.add_generation_prompt = false;
  auto without = render_with(request, form);
  capabilities_.generation_prompt = without && without->text != rendered->text;
  request = ChatRequest();
  request.variables = sample.variables;

  request.messages = Json::array({message("user", kUser), message("user", kUser)});
  capabilities_.needs_alternation = !render_with(request, form);
  request.messages = Json::array({message("system", kSystem), message("user", kUser)});
  capabilities_.system_role = shows(render_with(request, form), kSystem);
  probe_tools(sample.variables);
  return {};
}

void ChatFormat::probe_tools(const Json& variables) {
  MessageForm& form = capabilities_.form;
  ChatRequest request;
  request.variables = variables;
  Json parameters = {{"type", "object"}, {"properties", {{kKey, {{"type", "string"}, {"description", "d"}}}}}};
  Json function = {{"name", kTool}, {"description", "d"}, {"parameters", parameters}};
  request.messages = Json::array({message("user", kUser)});
  request.tools = Json::array({Json{{"type", "function"}, {"function", function}}});
  capabilities_.tools = shows(render_with(request, form), kTool);

  // A whole exchange, since templates check the order of roles; the id has the nine characters that Mistral's wants.
  Json call = {
      {"id", "probe0001"}, {"type", "function"}, {"function", {{"name", kTool}, {"arguments", {{kKey, "probe"}}}}}};
  Json calls = {{"role", "assistant"}, {"content", nullptr}, {"tool_calls", Json::array({call})}};
  Json result = {{"role", "tool"}, {"content", kResult}, {"tool_call_id", "probe0001"}, {"name", kTool}};
  request.messages =
      Json::array({message("user", kUser), calls, result, message("assistant", "a"), message("user", "u")});
  const std::string python_repr = std::string("'") + kKey + "'";
  // The form transformers' users would pass comes first; a dict written as Python's repr means that text was wanted.
  for (bool as_object : {true, false}) {
    for (bool null_content : {true, false}) {
      MessageForm tried = form;
      tried.arguments_as_object = as_object;
      tried.null_content = null_content;
      auto rendered = render_with(request, tried);
      if (!shows(rendered, kTool) || (as_object && shows(rendered, python_repr))) continue;
      // "None" printed for the missing content is as bad as an error.
      if (null_content && rendered->text.find("None") != std::string::npos) continue;
      form = tried;
      capabilities_.tool_calls = true;
      capabilities_.tool_results = shows(rendered, kResult);
      return;
    }
  }
  // Without calls a template may still show results.
  request.messages = Json::array({message("user", kUser), message("assistant", "a"), result});
  capabilities_.tool_results = shows(render_with(request, form), kResult);
}

}  // namespace argent
