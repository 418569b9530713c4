#include "chat/json_input.h"

namespace argent {
namespace {

// Of the deepest bracket outside of strings.
uint32_t depth_of(std::string_view text) {
  uint32_t depth = 0, deepest = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\') ++i;
      quoted = c != '"';
    } else if (c == '"') {
      quoted = true;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if ((c == ']' || c == '}') && depth > 0) {
      --depth;
    }
  }
  return deepest;
}

}  // namespace

Result<Json> parse_json(std::string_view text, std::string_view name, uint32_t max_depth) {
  if (depth_of(text) > max_depth) return fail(Code::invalid, "{}: nested more than {} deep", name, max_depth);
  try {
    return Json::parse(text);
  } catch (const Json::exception& e) {
    // "[json.exception.parse_error.101] parse error at line 1, column 2: ..."
    std::string_view what = e.what();
    if (const size_t end = what.find("] "); end != std::string_view::npos) what.remove_prefix(end + 2);
    return fail(Code::invalid, "{} is not JSON: {}", name, what);
  }
}

}  // namespace argent
