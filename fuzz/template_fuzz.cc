// Any bytes as a template, and behind a zero byte as its variables: refused with one line, or rendered within the
// limits to text whose spans cover it.
#include <cstdlib>
#include <string>

#include "chat/chat.h"

using namespace argent;

namespace {

void check(bool holds) {
  if (!holds) std::abort();
}

void check_error(const Error& error) {
  check(!error.message.empty());
  check(error.message.find('\n') == std::string::npos);
  check(error.code != Code::internal);
}

// The parser of JSON takes any depth, but freeing what it made is recursive.
bool deep(const std::string& text) {
  int depth = 0;
  for (char c : text) depth += c == '[' || c == '{';
  return depth > 500;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string bytes(reinterpret_cast<const char*>(data), size);
  std::string source = bytes.substr(0, bytes.find('\0'));
  std::string variables = source.size() < bytes.size() ? bytes.substr(source.size() + 1) : "";
  TemplateLimits limits;
  limits.steps = 50'000;
  limits.memory_bytes = 8 << 20;
  limits.output_bytes = 1 << 20;

  auto parsed = Template::parse(source, "fuzz", limits);
  if (!parsed) {
    check_error(parsed.error());
    return 0;
  }
  Json context = deep(variables) ? Json() : Json::parse(variables, nullptr, false);
  if (!context.is_object()) {
    context = {{"messages", Json::array({{{"role", "user"}, {"content", "héllo\n<|im_end|>"}}})},
               {"tools", nullptr},
               {"bos_token", "<s>"},
               {"x", Json::array({1, 2.5, "a", nullptr, true, {{"k", Json::array()}}})}};
  }
  RenderOptions options;
  options.limits = limits;
  options.now = [] { return std::tm{}; };
  auto rendered = parsed->render(context, options);
  if (!rendered) {
    check_error(rendered.error());
  } else {
    size_t at = 0;
    for (const Span& s : rendered->spans) {
      check(s.begin == at && s.end > s.begin);
      at = s.end;
    }
    check(at == rendered->text.size());
    auto again = parsed->render(context, options);
    check(again && again->text == rendered->text && again->spans == rendered->spans);
  }

  auto format = ChatFormat::from_source(source, "fuzz", {{"bos_token", "<s>"}}, limits);
  if (!format) {
    check_error(format.error());
    return 0;
  }
  ChatRequest request;
  request.messages = context.contains("messages") ? context["messages"] : Json();
  request.tools = context.contains("tools") ? context["tools"] : Json();
  request.variables = context;
  for (const char* name : {"messages", "tools", "documents", "add_generation_prompt", "bos_token"}) {
    request.variables.erase(name);
  }
  auto prompt = format->render(request);
  if (!prompt) check_error(prompt.error());
  return 0;
}
