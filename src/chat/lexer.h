// Template text to tokens, with jinja2's whitespace control (trim_blocks and lstrip_blocks on, one trailing newline of
// the file dropped, all line ends read as \n).
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace argent::jinja {

enum class TokenKind : uint8_t {
  data,
  variable_begin,
  variable_end,
  block_begin,
  block_end,
  name,
  string,
  integer,
  real,
  op,
  eof
};

struct Token {
  TokenKind kind = TokenKind::eof;
  std::string text;  // data, name, decoded string, digits without underscores, operator
  uint32_t line = 1;
  uint32_t column = 1;  // in code points
};

struct Position {
  uint32_t line = 1;
  uint32_t column = 1;
};

// "name:line:column: what"
Error error_at(Code code, const std::string& name, Position at, const std::string& what);

// Errors carry the position; `name` is the template's. The last token is eof.
Result<std::vector<Token>> tokenize(const std::string& source, const std::string& name);

}  // namespace argent::jinja
