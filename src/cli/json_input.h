// JSON that users hand in: bounded in depth, since what walks it afterwards recurses.
#pragma once

#include <string_view>

#include "chat/chat.h"

namespace argent::cli {

inline constexpr uint32_t kMaxJsonDepth = 200;

// The value of a text that is JSON as a whole. invalid: where it is not, or nested deeper than kMaxJsonDepth; `name` says
// which input that was.
Result<Json> parse_json(std::string_view text, std::string_view name);

}  // namespace argent::cli
