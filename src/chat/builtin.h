// Chat templates for files that carry none.
#pragma once

#include <string_view>

namespace argent {

struct BuiltinTemplate {
  std::string_view name;
  std::string_view tokens[2];  // control tokens that a vocabulary must have; empty: none
  std::string_view source;
};

extern const BuiltinTemplate kBuiltinTemplates[4];

}  // namespace argent
