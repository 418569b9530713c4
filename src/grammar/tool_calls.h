// Tool calls to rules: the texts of a style around names and arguments.
#pragma once

#include <string>
#include <unordered_map>

#include "grammar/grammar.h"
#include "grammar/schema.h"

namespace argent::grammar {

using ControlTokens = std::unordered_map<std::string, int32_t>;  // by their texts

class ToolCallRules {
 public:
  // All of these must outlive it.
  ToolCallRules(Rules& rules, const ToolCallStyle& style, const ControlTokens& control, const SchemaOptions& options)
      : rules_(rules), style_(style), control_(control), options_(options) {}
  // Code::unsupported or invalid, and "tools/1/parameters#/properties/x: ...", for what a strict tool asks for.
  Result<RuleId> lower(std::span<const Tool> tools, int max_calls, bool behind_mark);

 private:
  using Form = ToolCallStyle::Form;
  // The arguments of a tool as a form writes them, by the tool's schema or as any object.
  Result<Expr> arguments(const Tool& tool, size_t index, const Form& form);
  Result<Expr> lower_arguments(Rules& rules, std::string_view schema, size_t index, const Form& form);
  Result<Expr> tagged(Rules& rules, SchemaRules& schema, const ToolCallStyle::Tags& tags);
  Result<Expr> any_tagged(const ToolCallStyle::Tags& tags);
  // One call of any of the tools.
  Result<Expr> call(std::span<const Tool> tools, const Form& form);
  // One of the style's texts.
  Result<Expr> written(Rules& rules, std::string_view text);
  Result<Expr> written(std::string_view text) { return written(rules_, text); }

  Rules& rules_;
  const ToolCallStyle& style_;
  const ControlTokens& control_;
  const SchemaOptions& options_;
};

}  // namespace argent::grammar
