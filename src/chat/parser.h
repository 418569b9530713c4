// Tokens to a tree, and names to slots.
#pragma once

#include <set>
#include <string>

#include "chat/ast.h"
#include "chat/template.h"

namespace argent {

struct Template::Parsed {
  std::string source;
  std::string name;
  jinja::Block body;
  jinja::ScopeLayout layout;
  std::set<std::string, std::less<>> free_names;  // read from the context by some scope
};

namespace jinja {

Result<std::shared_ptr<Template::Parsed>> parse_template(std::string source, std::string name,
                                                         const TemplateLimits& limits);

// Gives every name its slot, by jinja2's rules: a scope sees what it and the scopes around it ever set; a loop's,
// macro's or block's own assignments end with it. Errors: what jinja2 refuses to compile.
Status resolve_names(Template::Parsed& parsed);

}  // namespace jinja
}  // namespace argent
