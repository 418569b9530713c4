// JSON that users hand in: bounded in depth, since what walks it afterwards recurses.
#pragma once

#include <string_view>

#include "chat/chat.h"

namespace argent {

inline constexpr uint32_t kMaxJsonDepth = 200;

// The value of a text that is JSON as a whole. invalid: where it is not, or nested deeper than max_depth; `name` says
// which input that was. std::bad_alloc: there is no memory for it.
Result<Json> parse_json(std::string_view text, std::string_view name, uint32_t max_depth = kMaxJsonDepth);

}  // namespace argent
