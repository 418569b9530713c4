#include "grammar/tool_calls.h"

#include <algorithm>

namespace argent::grammar {
namespace {

constexpr std::string_view kAnyObject = R"({"type":"object"})";

bool is_name(unsigned char c) {
  return (c | 32) >= 'a' ? (c | 32) <= 'z' || c == '_' : (c >= '0' && c <= '9') || c == '-' || c == '.';
}

// Any text up to the first `end`, and that: ASCII whose first byte does not come again in it.
Expr up_to(Rules& rules, std::string_view end) {
  std::vector<RuleId> at;  // so many bytes of it were read
  for (size_t i = 0; i < end.size(); i++) at.push_back(rules.add("text"));
  for (size_t i = 0; i < end.size(); i++) {
    const auto one = [](char c) { return CharRange{uint32_t(c), uint32_t(c)}; };
    const Expr next = rules.literal(end.substr(i, 1));
    std::vector<Expr> choices = {i + 1 < end.size() ? rules.seq({next, rules.ref(at[i + 1])}) : next};
    if (i > 0) choices.push_back(rules.seq({rules.literal(end.substr(0, 1)), rules.ref(at[1])}));
    const CharSet other = CharSet({one(end[0]), one(end[i])}).complement();
    choices.push_back(rules.seq({rules.chars(other), rules.ref(at[0])}));
    rules.define(at[i], rules.alt(std::move(choices)));
  }
  return rules.ref(at[0]);
}

}  // namespace

Result<Expr> ToolCallRules::tagged(Rules& rules, SchemaRules& schema, const ToolCallStyle::Tags& tags) {
  ARGENT_LET(const std::vector<SchemaRules::Property> properties, schema.properties());
  std::vector<Expr> all;
  for (const SchemaRules::Property& property : properties) {
    if (!std::all_of(property.name.begin(), property.name.end(), is_name))
      return fail(Code::unsupported, "the property '{}' can not stand in a tag", property.name);
    ARGENT_LET(const Expr begin, written(rules, tags.begin));
    ARGENT_LET(const Expr middle, written(rules, tags.middle));
    const Expr value = property.value ? rules.seq({*property.value, rules.literal(tags.end)}) : up_to(rules, tags.end);
    const Expr one = rules.seq({begin, rules.literal(property.name), middle, value});
    all.push_back(property.required ? one : rules.optional(one));
  }
  return rules.seq(std::move(all));
}

Result<Expr> ToolCallRules::any_tagged(const ToolCallStyle::Tags& tags) {
  ARGENT_LET(const Expr begin, written(tags.begin));
  ARGENT_LET(const Expr middle, written(tags.middle));
  const CharSet letters({{'a', 'z'}, {'A', 'Z'}, {'0', '9'}, {'_', '_'}, {'-', '.'}});
  const Expr name = rules_.repeat(rules_.chars(letters), 1, 64);
  return rules_.repeat(rules_.seq({begin, name, middle, up_to(rules_, tags.end)}), 0);
}

Result<Expr> ToolCallRules::lower_arguments(Rules& rules, std::string_view text, size_t index, const Form& form) {
  auto schema = parse_schema(text);
  if (!schema) return fail(schema.error().code, "tools/{}/parameters{}", index, schema.error().message);
  if (schema->is_object()) {  // whatever else a schema allows, arguments are an object
    Json& type = (*schema)["type"];
    if (type.is_null() || (type.is_array() && std::find(type.begin(), type.end(), "object") != type.end()))
      type = "object";
    if (type != "object")
      return fail(Code::unsupported, "tools/{}/parameters#: arguments are an object, the schema wants another type",
                  index);
    // A tool that lists no parameters takes none, unless it says more of them.
    const bool says_more = std::any_of(schema->items().begin(), schema->items().end(), [](const auto& item) {
      return item.key() != "type" && !is_annotation(item.key()) && !item.value().empty();
    });
    if (schema->contains("properties") && !says_more) (*schema)["additionalProperties"] = false;
  }
  SchemaRules lowered(rules, *schema, options_, fmt::format("tools/{}/parameters#", index));
  return form.tags ? tagged(rules, lowered, *form.tags) : lowered.lower();
}

Result<Expr> ToolCallRules::arguments(const Tool& tool, size_t index, const Form& form) {
  const auto can_be_enforced = [&] {
    Rules alone;
    const auto e = lower_arguments(alone, tool.parameters, index, form);
    return e && alone.text(alone.add("arguments", *e));
  };
  if (!tool.parameters.empty() && (tool.strict || can_be_enforced()))
    return lower_arguments(rules_, tool.parameters, index, form);
  return form.tags ? any_tagged(*form.tags) : lower_arguments(rules_, kAnyObject, index, form);
}

Result<Expr> ToolCallRules::written(Rules& rules, std::string_view text) {
  std::vector<uint32_t> chars;
  if (!decode_utf8(text, chars) || text.find('\0') != std::string::npos)
    return fail(Code::invalid, "the literals of a tool call are not UTF-8, or have a NUL in them");
  std::vector<Expr> parts;
  std::string plain;
  const auto end_plain = [&] {
    if (!plain.empty()) parts.push_back(rules.literal(plain));
    plain.clear();
  };
  while (!text.empty()) {
    auto token = control_.end();
    for (size_t n = text.size(); n > 1 && token == control_.end(); --n)
      token = control_.find(std::string(text.substr(0, n)));
    if (token != control_.end()) {
      end_plain();
      parts.push_back(rules.token(token->second));
      text.remove_prefix(token->first.size());
      continue;
    }
    if (text[0] == '\n') {
      end_plain();
      parts.push_back(json_space(rules, options_.max_indent));
    } else {
      plain += text[0];
    }
    text.remove_prefix(1);
  }
  end_plain();
  return rules.seq(std::move(parts));
}

Result<Expr> ToolCallRules::call(std::span<const Tool> tools, const Form& form) {
  ARGENT_LET(const Expr begin, written(form.name_begin));
  ARGENT_LET(const Expr end, written(form.end));
  std::vector<Expr> choices;
  for (size_t i = 0; i < tools.size(); i++) {
    ARGENT_LET(const Expr body, arguments(tools[i], i, form));
    const RuleId rule = rules_.add("arguments", body);
    for (const std::string& text : form.name_end) {
      ARGENT_LET(const Expr middle, written(text));
      choices.push_back(rules_.seq({rules_.literal(tools[i].name), middle, rules_.ref(rule)}));
    }
  }
  return rules_.seq({begin, rules_.alt(std::move(choices)), end});
}

Result<RuleId> ToolCallRules::lower(std::span<const Tool> tools, int max_calls, bool behind_mark) {
  std::vector<Expr> names;
  for (size_t i = 0; i < tools.size(); i++) {
    const std::string& name = tools[i].name;
    if (name.empty() || !std::all_of(name.begin(), name.end(), is_name))
      return fail(Code::invalid, "tools/{}: the name is empty or has more than letters, digits, '_', '-' and '.'", i);
    names.push_back(rules_.literal(name));
  }
  ARGENT_LET(Expr mark, written(style_.mark));
  ARGENT_LET(const Expr between_blocks, written(style_.between));
  ARGENT_LET(const Expr lead_begin, written(style_.lead_begin));
  ARGENT_LET(const Expr lead_end, written(style_.lead_end));
  std::vector<Expr> answers;
  for (const Form& form : style_.forms) {
    ARGENT_LET(const Expr open, written(form.open));
    ARGENT_LET(const Expr close, written(form.close));
    ARGENT_LET(const Expr between, written(form.between));
    ARGENT_LET(const Expr one, call(tools, form));
    const Expr each = rules_.ref(rules_.add("tool call", one));
    const bool list = !form.between.empty();
    const Expr calls = rules_.seq({each, rules_.repeat(rules_.seq({between, each}), 0, list ? max_calls - 1 : 0)});
    const Expr block = rules_.ref(rules_.add("tool calls", rules_.seq({open, calls, close})));
    if (behind_mark) {
      answers.push_back(block);
      continue;
    }
    const Expr more = rules_.repeat(rules_.seq({between_blocks, mark, block}), 0, list ? 0 : max_calls - 1);
    answers.push_back(rules_.seq({mark, block, more}));
  }
  Expr answer = rules_.alt(std::move(answers));
  if (behind_mark) {
    const CharSet space({{'\t', '\n'}, {'\r', '\r'}, {' ', ' '}});
    answer = rules_.seq({answer, rules_.repeat(rules_.chars(space), 0)});
  } else if (!style_.lead_begin.empty()) {
    answer = rules_.seq({lead_begin, rules_.alt(std::move(names)), lead_end, answer});
  }
  return rules_.add("answer", answer);
}

}  // namespace argent::grammar
