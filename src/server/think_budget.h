// Reasoning within bounds: after so many tokens the thought is closed, and a constraint holds for what follows it only.
#pragma once

#include <memory>
#include <optional>

#include "chat/output.h"
#include "engine/token_rule.h"
#include "tokenizer/tokenizer.h"

namespace argent::server {

// budget: tokens of a thought (none: as long as it likes); 0 closes it at once. `then`: what holds behind the thought,
// or from the beginning where there is none; may be null.
std::unique_ptr<TokenRule> limit_thinking(const Tokenizer& tokenizer, const OutputForm& form,
                                          std::optional<uint32_t> budget, std::unique_ptr<TokenRule> then);

}  // namespace argent::server
