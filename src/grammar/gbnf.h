// llama.cpp's grammar text: `name ::= alternatives`, literals and classes with escapes, `.`, groups, * + ? {n} {n,}
// {n,m} and # comments. A rule ends at a line end outside parentheses that no '|' or '::=' stands beside. The root is
// `root`.
#pragma once

#include "base/result.h"
#include "grammar/rules.h"

namespace argent::grammar {

// Messages begin with "line L, column C: ".
Result<RuleId> parse_gbnf(std::string_view text, Rules& rules);

}  // namespace argent::grammar
