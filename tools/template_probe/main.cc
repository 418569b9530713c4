// Renders templates for tests: reads JSON lines {"template": ..., "context": {...}} on stdin and writes JSON lines
// {"text": ..., "input": [[begin, end], ...]} or {"error": ..., "when": "parse" | "render"}. {"builtin": NAME} gives
// the text of a built-in template. strftime_now sees the 5 March 2024, 14:07:09 (a Tuesday).
#include <iostream>
#include <string>

#include "chat/chat.h"

namespace {

argent::Json answer(const argent::Json& request) {
  auto failed = [](const argent::Error& e, const char* when) {
    return argent::Json{{"error", e.message}, {"when", when}, {"unsupported", e.code == argent::Code::unsupported}};
  };
  if (request.contains("builtin")) {
    auto format = argent::ChatFormat::builtin(request["builtin"].get<std::string>(), {});
    if (!format) return failed(format.error(), "parse");
    return {{"text", format->chat_template().source()}};
  }
  auto parsed = argent::Template::parse(request.at("template").get<std::string>(), "template");
  if (!parsed) return failed(parsed.error(), "parse");
  argent::RenderOptions options;
  options.now = [] {
    std::tm tm{};
    tm.tm_year = 124, tm.tm_mon = 2, tm.tm_mday = 5, tm.tm_hour = 14, tm.tm_min = 7, tm.tm_sec = 9;
    tm.tm_wday = 2, tm.tm_yday = 64;
    return tm;
  };
  auto rendered = parsed->render(request.at("context"), options);
  if (!rendered) return failed(rendered.error(), "render");
  argent::Json input = argent::Json::array();
  for (const argent::Span& s : rendered->spans) {
    if (!s.from_template) input.push_back({s.begin, s.end});
  }
  return {{"text", rendered->text}, {"input", input}};
}

}  // namespace

int main() {
  std::ios::sync_with_stdio(false);
  for (std::string line; std::getline(std::cin, line);) {
    auto request = argent::Json::parse(line, nullptr, false);
    if (request.is_discarded() ||
        !(request.contains("builtin") || (request.contains("template") && request.contains("context")))) {
      std::cerr << "not a request: " << line << "\n";
      return 2;
    }
    std::cout << answer(request).dump(-1, ' ', false, argent::Json::error_handler_t::replace) << "\n";
  }
}
