#include "grammar/schema.h"

#include <algorithm>
#include <map>

namespace argent::grammar {

namespace {

constexpr int kMaxSchemaDepth = 128;  // of schemas within schemas, over references
constexpr int kMaxOptional = 1000;  // compiling takes time by their square: 0.6 s
constexpr int kMaxCountedProperties = 20000;  // (property, number of those before it)

std::string escaped(std::string_view name) {  // for a JSON pointer
  std::string out;
  for (char c : name) out += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
  return out;
}

// A string as JSON, with quotes; always valid, as parsed JSON is.
std::string quoted(const std::string& text) { return Json(text).dump(); }

int64_t count_of(const Json& flat, const char* name, int64_t missing) {
  const auto it = flat.find(name);
  if (it == flat.end()) return missing;
  const double n = it->get<double>();
  return n > static_cast<double>(kMaxRepeat) ? kMaxRepeat + 1 : static_cast<int64_t>(n);
}

const char* type_name(const Json& value) {
  if (value.is_null()) return "null";
  if (value.is_boolean()) return "boolean";
  if (value.is_object()) return "object";
  if (value.is_array()) return "array";
  if (value.is_string()) return "string";
  if (value.is_number_integer()) return "integer";
  const double x = value.get<double>();
  return x == static_cast<double>(static_cast<int64_t>(std::clamp(x, -9e15, 9e15))) ? "integer" : "number";
}

// The types that a schema's keywords speak of, in the order of the specification.
struct TypeKeywords {
  const char* type;
  std::vector<const char*> keywords;
};
const std::vector<TypeKeywords>& type_keywords() {
  static const std::vector<TypeKeywords> table = {
      {"object",
       {"properties", "required", "additionalProperties", "patternProperties", "propertyNames", "minProperties",
        "maxProperties"}},
      {"array", {"items", "prefixItems", "minItems", "maxItems", "uniqueItems"}},
      {"string", {"pattern", "format", "minLength", "maxLength"}},
      {"number", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}},
  };
  return table;
}

}  // namespace

SchemaRules::SchemaRules(Rules& rules, const Json& document, const SchemaOptions& options, std::string base)
    : rules_(rules), document_(document), options_(options), base_(std::move(base)) {}

Error SchemaRules::error(Code code, const std::string& path, const std::string& what) const {
  return fail(code, "{}{}: {}", base_, path, what);
}

Result<Expr> SchemaRules::lower() { return lower(document_, ""); }

Result<Expr> SchemaRules::lower(const Json& schema, const std::string& path) {
  if (schema.is_boolean()) return schema.get<bool>() ? any_value() : rules_.never();
  if (!schema.is_object()) return error(Code::invalid, path, "a schema is an object, true or false");
  if (depth_ >= kMaxSchemaDepth) return error(Code::invalid, path, "schemas nest too deeply");
  const std::string key = schema.dump();
  if (const auto it = known_.find(key); it != known_.end()) {
    if (it->second.open && it->second.level == level_)
      return error(Code::invalid, path, "the schema refers to itself with nothing in between");
    return rules_.ref(it->second.rule);
  }
  const RuleId rule = rules_.add(base_ + path);
  known_[key] = {rule, true, level_};
  depth_++;
  // A reference that has nothing beside it is a rule of its own, which is what makes recursion finite.
  bool only_ref = schema.contains("$ref");
  for (const auto& [name, value] : schema.items()) only_ref &= name == "$ref" || is_annotation(name);
  Expr body = -1;
  if (only_ref) {
    ARGENT_TRY(check_keywords(schema, path));
    ARGENT_LET(const Json* target, resolve(schema["$ref"], path));
    ARGENT_LET(body, lower(*target, schema["$ref"].get<std::string>().substr(1)));
  } else {
    ARGENT_LET(const Json flat, flatten(schema, path, 0));
    ARGENT_LET(body, lower_flat(flat, path));
  }
  depth_--;
  rules_.define(rule, body);
  known_[key].open = false;
  return rules_.ref(rule);
}

Result<Expr> SchemaRules::lower_flat(const Json& flat, const std::string& path) {
  for (const char* keyword : {"anyOf", "oneOf"})
    if (flat.contains(keyword)) return lower_branches(flat, keyword, path);
  if (flat.contains("enum")) return lower_enum(flat, path);
  std::vector<std::string> types = types_of(flat);
  if (types.empty()) {
    for (const auto& [type, keywords] : type_keywords())
      if (std::any_of(keywords.begin(), keywords.end(), [&](const char* k) { return flat.contains(k); }))
        types.push_back(type);
    if (types.empty()) return any_value();
  }
  std::vector<Expr> choices;
  for (const std::string& type : types) {
    if (type == "integer" && std::find(types.begin(), types.end(), "number") != types.end()) continue;
    ARGENT_LET(const Expr e, lower_type(type, flat, path));
    choices.push_back(e);
  }
  return rules_.alt(std::move(choices));
}

Result<Expr> SchemaRules::lower_branches(const Json& flat, const char* keyword, const std::string& path) {
  Json rest = flat;
  rest.erase(keyword);
  std::vector<Expr> choices;
  int i = 0;
  for (const Json& branch : flat[keyword]) {
    const std::string branch_path = fmt::format("{}/{}/{}", path, keyword, i++);
    ARGENT_LET(const Expr e, lower(rest.empty() ? branch : conjunction(rest, branch), branch_path));
    choices.push_back(e);
  }
  return rules_.alt(std::move(choices));
}

Result<Expr> SchemaRules::lower_enum(const Json& flat, const std::string& path) {
  const std::vector<std::string> types = types_of(flat);
  ARGENT_LET(const std::optional<Bound> low, bound_of(flat, true));
  ARGENT_LET(const std::optional<Bound> high, bound_of(flat, false));
  std::optional<Regex> pattern;
  if (flat.contains("pattern")) {
    auto parsed = Regex::parse(flat["pattern"].get<std::string>());
    if (!parsed) return error(parsed.error().code, path + "/pattern", parsed.error().message);
    pattern = std::move(*parsed);
  }
  std::vector<Expr> choices;
  for (const Json& value : flat["enum"]) {
    const std::string type = type_name(value);
    const auto has = [&](const char* t) { return std::find(types.begin(), types.end(), t) != types.end(); };
    if (!types.empty() && !has(type.c_str()) && !(type == "integer" && has("number"))) continue;
    for (const auto& [of, keywords] : type_keywords()) {
      const bool applies = type == of || (type == "integer" && std::string_view(of) == "number");
      for (const char* k : keywords) {
        const bool checked = !std::string_view(k).ends_with("Length") && std::string_view(k) != "pattern" &&
                             !std::string_view(k).ends_with("imum");
        if (applies && flat.contains(k) && checked)
          return error(Code::unsupported, path, fmt::format("'{}' beside 'enum' can not be enforced", k));
      }
    }
    if (value.is_number() && (low || high)) {
      auto number = Decimal::parse(value.dump());
      if (!number) return error(number.error().code, path, number.error().message);
      const int above = low ? compare(*number, low->value) : 1, below = high ? compare(*number, high->value) : -1;
      if (above < 0 || (above == 0 && low->exclusive) || below > 0 || (below == 0 && high->exclusive)) continue;
    }
    if (value.is_string()) {
      const std::string& text = value.get_ref<const std::string&>();
      std::vector<uint32_t> chars;
      decode_utf8(text, chars);
      const int64_t n = static_cast<int64_t>(chars.size());
      if (n < count_of(flat, "minLength", 0) || n > count_of(flat, "maxLength", n)) continue;
      if (pattern && !pattern->found_in(text)) continue;
    }
    choices.push_back(value_literal(value));
  }
  return rules_.alt(std::move(choices));
}

Result<Expr> SchemaRules::lower_type(const std::string& type, const Json& flat, const std::string& path) {
  if (type == "null") return rules_.literal("null");
  if (type == "boolean") return rules_.alt({rules_.literal("true"), rules_.literal("false")});
  if (type == "string") return lower_string(flat, path);
  if (type == "array") return lower_array(flat, path);
  if (type == "object") return lower_object(flat, path);
  return lower_number(flat, type == "integer", path);
}

Result<Expr> SchemaRules::lower_number(const Json& flat, bool integer, const std::string& path) {
  const auto at_path = [&](const Error& e) { return error(e.code, path, e.message); };
  auto low = bound_of(flat, true), high = bound_of(flat, false);
  if (!low) return at_path(low.error());
  if (!high) return at_path(high.error());
  if (flat.contains("format")) {
    // OpenAPI's widths; others say nothing of numbers.
    const Json& f = flat["format"];
    if (f == "int32" || f == "uint32" || f == "int64" || f == "uint64") {
      const bool narrow = f == "int32" || f == "uint32", sign = f == "int32" || f == "int64";
      const char* least = !sign ? "0" : narrow ? "-2147483648" : "-9223372036854775808";
      const char* most = narrow ? (sign ? "2147483647" : "4294967295")
                         : sign ? "9223372036854775807"
                                : "18446744073709551615";
      ARGENT_LET(const Decimal a, Decimal::parse(least));
      ARGENT_LET(const Decimal b, Decimal::parse(most));
      if (!*low || compare((*low)->value, a) < 0) *low = Bound{a};
      if (!*high || compare((*high)->value, b) > 0) *high = Bound{b};
    } else if (f != "float" && f != "double") {
      return error(Code::unsupported, path, fmt::format("the format {} is not enforced for numbers", f.dump()));
    }
  }
  if (flat.contains("multipleOf")) {
    auto of = Decimal::parse(flat["multipleOf"].dump());
    if (!of) return at_path(of.error());
    auto e = multiple_rule(rules_, *of, integer, *low, *high);
    return e ? e : at_path(e.error());
  }
  auto e = integer ? integer_rule(rules_, *low, *high) : number_rule(rules_, *low, *high);
  return e ? e : at_path(e.error());
}

Result<std::optional<Expr>> SchemaRules::matching(const Json& flat, Regex::Spelling spelling, const std::string& path) {
  const int64_t min = count_of(flat, "minLength", 0), max = count_of(flat, "maxLength", kUnbounded);
  if (max != kUnbounded && min > max) return error(Code::invalid, path, "'minLength' is above 'maxLength'");
  if (min > kMaxRepeat)
    return error(Code::unsupported, path, fmt::format("'minLength' is enforced up to {}", kMaxRepeat));
  const char* from_format = nullptr;
  if (flat.contains("format")) {
    auto known = format_pattern(flat["format"].get<std::string>());
    if (!known) return error(known.error().code, path, known.error().message);
    from_format = *known;
  }
  if (from_format && flat.contains("pattern"))
    return error(Code::unsupported, path, "'format' beside 'pattern' can not be enforced");
  if (!from_format && !flat.contains("pattern")) return std::optional<Expr>();
  auto regex = Regex::parse(from_format ? from_format : flat["pattern"].get<std::string>());
  if (!regex) return error(regex.error().code, path + "/pattern", regex.error().message);
  auto body = regex->search(rules_, spelling, min, std::min(max, kMaxRepeat));
  if (!body) return error(body.error().code, path, body.error().message);
  return std::optional<Expr>(*body);
}

Result<Expr> SchemaRules::lower_string(const Json& flat, const std::string& path) {
  ARGENT_LET(const std::optional<Expr> body, matching(flat, Regex::Spelling::json, path));
  if (body) return rules_.seq({rules_.literal("\""), *body, rules_.literal("\"")});
  const int64_t min = count_of(flat, "minLength", 0), max = count_of(flat, "maxLength", kUnbounded);
  if (min == 0 && max == kUnbounded) return any_string();
  // Characters that need an escape are left out: counting them as well makes a mask take 300 ms instead of some us.
  const CharSet plain = CharSet({{1, 0x1f}, {'"', '"'}, {'\\', '\\'}}).complement();
  return rules_.seq(
      {rules_.literal("\""), rules_.repeat(rules_.chars(plain), min, std::min(max, kMaxRepeat)), rules_.literal("\"")});
}

// A string without quotes; nothing: any.
Result<std::optional<Expr>> SchemaRules::lower_text(const Json& schema, const std::string& path) {
  Json one = schema;
  one["type"] = "string";
  ARGENT_LET(const Json flat, flatten(one, path, 0));
  for (const char* keyword : {"anyOf", "oneOf"})
    if (flat.contains(keyword))
      return error(Code::unsupported, path, fmt::format("'{}' of a text can not be enforced", keyword));
  if (flat.contains("enum")) {
    std::vector<Expr> choices;
    for (const Json& value : flat["enum"])
      if (value.is_string()) choices.push_back(rules_.literal(value.get<std::string>()));
    return std::optional<Expr>(rules_.alt(std::move(choices)));
  }
  ARGENT_LET(std::optional<Expr> body, matching(flat, Regex::Spelling::text, path));
  const int64_t min = count_of(flat, "minLength", 0), max = count_of(flat, "maxLength", kUnbounded);
  if (!body && (min > 0 || max != kUnbounded))
    body = rules_.repeat(rules_.chars(CharSet::all()), min, std::min(max, kMaxRepeat));
  return body;
}

Result<std::vector<SchemaRules::Property>> SchemaRules::properties() {
  ARGENT_TRY(check_keywords(document_, ""));
  for (const auto& [keyword, value] : document_.items())
    if (keyword != "type" && keyword != "properties" && keyword != "required" && keyword != "additionalProperties" &&
        keyword != "$defs" && keyword != "definitions" && !is_annotation(keyword))
      return error(Code::unsupported, "", fmt::format("'{}' of arguments in tags can not be enforced", keyword));
  const Json required = document_.value("required", Json::array());
  std::vector<Property> out;
  const Json listed = document_.value("properties", Json::object());
  for (const auto& [name, schema] : listed.items()) {
    const std::string path = "/properties/" + escaped(name);
    const Json type = schema.is_object() ? schema.value("type", Json()) : Json();
    const bool is_text =
        type == "string" || (type.is_array() && std::find(type.begin(), type.end(), "string") != type.end());
    std::optional<Expr> value;
    if (is_text) {
      ARGENT_LET(value, lower_text(schema, path));
    } else {
      ARGENT_LET(value, lower(schema, path));
    }
    out.push_back({name, std::find(required.begin(), required.end(), name) != required.end(), is_text, value});
  }
  for (const Json& name : required)
    if (!listed.contains(name.get<std::string>()))
      return error(Code::unsupported, "/required",
                   fmt::format("{} is none of the properties", quoted(name.get<std::string>())));
  return out;
}

Result<Expr> SchemaRules::lower_array(const Json& flat, const std::string& path) {
  const int64_t min = count_of(flat, "minItems", 0), max = std::min(count_of(flat, "maxItems", kUnbounded), kMaxRepeat);
  if (max != kUnbounded && min > max) return error(Code::invalid, path, "'minItems' is above 'maxItems'");
  if (min > kMaxRepeat)
    return error(Code::unsupported, path, fmt::format("'minItems' is enforced up to {}", kMaxRepeat));
  if (flat.value("uniqueItems", false) && (max == kUnbounded || max > 1))
    return error(Code::unsupported, path, "'uniqueItems' can not be enforced");
  level_++;
  std::vector<Expr> prefix;
  if (flat.contains("prefixItems")) {
    for (const Json& item : flat["prefixItems"]) {
      if (max != kUnbounded && static_cast<int64_t>(prefix.size()) >= max) break;
      ARGENT_LET(const Expr e, lower(item, fmt::format("{}/prefixItems/{}", path, prefix.size())));
      prefix.push_back(e);
    }
  }
  const int64_t n = static_cast<int64_t>(prefix.size());
  Expr item = rules_.never();
  if (flat.contains("items")) {
    ARGENT_LET(item, lower(flat["items"], path + "/items"));
  } else if (n == 0 || min > n) {
    item = any_value();  // a tuple that says nothing of more has no more
  }
  level_--;
  // From the last position back: at each the list may end, once there are enough.
  const int64_t rest_min = std::max<int64_t>(0, min - n), rest_max = max == kUnbounded ? kUnbounded : max - n;
  Expr content;
  if (n == 0) {
    content = rules_.literal("");
    if (max != 0) {
      const Expr some = rules_.seq({item, rules_.repeat(rules_.seq({comma(), item}), std::max<int64_t>(0, min - 1),
                                                        max == kUnbounded ? kUnbounded : max - 1)});
      content = min == 0 ? rules_.optional(some) : some;
    }
  } else {
    content = rest_max == 0 ? rules_.literal("") : rules_.repeat(rules_.seq({comma(), item}), rest_min, rest_max);
    for (int64_t i = n; i-- > 0;) {
      Expr from_here = i == 0 ? rules_.seq({prefix[i], content}) : rules_.seq({comma(), prefix[i], content});
      content = rules_.ref(rules_.add("items", i >= min ? rules_.optional(from_here) : from_here));
    }
  }
  return rules_.seq({rules_.literal("["), space(), content, space(), rules_.literal("]")});
}

Result<std::optional<Expr>> SchemaRules::further_property(const Json& flat, const std::vector<std::string>& listed,
                                                          const std::string& path) {
  const Json patterns = flat.value("patternProperties", Json::object());
  const bool has_word = flat.contains("additionalProperties");
  const Expr colon = rules_.seq({rules_.literal(":"), space()});
  if (!patterns.empty()) {
    if (patterns.size() > 1 || flat.contains("propertyNames") ||
        (has_word && flat["additionalProperties"] != Json(false)))
      return error(Code::unsupported, path,
                   "'patternProperties' is enforced with one pattern, without further properties or 'propertyNames'");
    const auto it = patterns.begin();
    const std::string at = path + "/patternProperties/" + escaped(it.key());
    auto regex = Regex::parse(it.key());
    if (!regex) return error(regex.error().code, at, regex.error().message);
    for (const std::string& name : listed)
      if (regex->found_in(name))
        return error(Code::unsupported, at, fmt::format("the pattern matches the property {} too", quoted(name)));
    ARGENT_LET(const Expr value, lower(it.value(), at));
    const Expr key = regex->search(rules_, Regex::Spelling::json);
    return std::optional<Expr>(rules_.seq({rules_.literal("\""), key, rules_.literal("\""), colon, value}));
  }
  if (has_word ? flat["additionalProperties"] == Json(false) : !listed.empty()) return std::optional<Expr>();
  Expr value = any_value();
  if (has_word) {
    ARGENT_LET(value, lower(flat["additionalProperties"], path + "/additionalProperties"));
  }
  if (flat.contains("propertyNames")) {
    if (!listed.empty())
      return error(Code::unsupported, path, "'propertyNames' beside 'properties' can not be enforced");
    Json string_type = Json::object();
    string_type["type"] = "string";
    ARGENT_LET(const Expr key, lower(conjunction(flat["propertyNames"], string_type), path + "/propertyNames"));
    return std::optional<Expr>(rules_.seq({key, colon, value}));
  }
  return std::optional<Expr>(rules_.seq({key_except(listed), colon, value}));
}

Result<Expr> SchemaRules::lower_object(const Json& flat, const std::string& path) {
  level_++;
  struct Property {
    Expr text;
    bool required;
  };
  std::vector<Property> properties;
  std::vector<std::string> listed;
  std::vector<std::string> required;
  if (flat.contains("required"))
    for (const Json& name : flat["required"]) required.push_back(name.get<std::string>());
  const auto add = [&](const std::string& name, const Json& schema, const std::string& at) -> Status {
    listed.push_back(name);
    const bool must = std::find(required.begin(), required.end(), name) != required.end();
    if (schema == Json(false)) {
      if (must) return error(Code::invalid, at, "the property is required, and its schema is false");
      return {};
    }
    ARGENT_LET(const Expr value, lower(schema, at));
    const Expr key = rules_.literal(quoted(name) + ":");
    properties.push_back({rules_.ref(rules_.add("property", rules_.seq({key, space(), value}))), must});
    return {};
  };
  if (flat.contains("properties"))
    for (const auto& [name, schema] : flat["properties"].items())
      ARGENT_TRY(add(name, schema, path + "/properties/" + escaped(name)));
  for (const std::string& name : required) {
    if (std::find(listed.begin(), listed.end(), name) != listed.end()) continue;
    const Json schema = flat.value("additionalProperties", Json(true));
    if (schema == Json(false))
      return error(Code::invalid, path,
                   fmt::format("{} is required and 'additionalProperties' forbids it", quoted(name)));
    ARGENT_TRY(add(name, schema, path + "/additionalProperties"));
  }
  ARGENT_LET(const std::optional<Expr> further, further_property(flat, listed, path));
  level_--;

  const int64_t min = count_of(flat, "minProperties", 0);
  int64_t max = count_of(flat, "maxProperties", kUnbounded);
  const int64_t n = static_cast<int64_t>(properties.size());
  const int64_t musts =
      std::count_if(properties.begin(), properties.end(), [](const Property& p) { return p.required; });
  if (n - musts > kMaxOptional)
    return error(Code::unsupported, path, fmt::format("more than {} optional properties", kMaxOptional));
  if (max != kUnbounded && (min > max || musts > max))
    return error(Code::invalid, path, "'maxProperties' is below 'minProperties' or the required properties");
  if (max > kMaxRepeat || (!further && max >= n)) max = kUnbounded;
  if (!further && min > n)
    return error(Code::invalid, path, "'minProperties' is above the number of properties there may be");
  // States (i, c): properties from i on are to come, c were written; c stops counting where it no longer matters.
  const int64_t cap = std::max<int64_t>(1, max == kUnbounded ? (min > musts ? min : 1) : std::min(max, n));
  if (n * cap > kMaxCountedProperties) return error(Code::unsupported, path, "so many properties can not be counted");
  std::vector<RuleId> states;
  for (int64_t i = 0; i < (n + 1) * (cap + 1); i++) states.push_back(rules_.add(base_ + path));
  const auto state = [&](int64_t i, int64_t c) { return states[i * (cap + 1) + std::min(c, cap)]; };
  for (int64_t c = 0; c <= cap; c++) {
    const int64_t least = min > musts ? std::max<int64_t>(0, min - c) : 0;
    const int64_t most = max == kUnbounded ? kUnbounded : max - c;
    // Keys beyond the listed ones may come twice, so they count for one at most.
    if (further && least > 1 && min > std::max<int64_t>(1, n + 1))
      return error(Code::unsupported, path, "'minProperties' above 1 can not be enforced where keys are free");
    Expr tail = least == 0 ? rules_.literal("") : rules_.never();
    if (further && most != 0 && least <= 1) {
      const Expr again = rules_.repeat(rules_.seq({comma(), *further}), 0, most == kUnbounded ? kUnbounded : most - 1);
      const Expr some = c == 0 ? rules_.seq({*further, again}) : rules_.seq({comma(), *further, again});
      tail = least == 0 ? rules_.optional(some) : some;
    }
    rules_.define(state(n, c), tail);
    for (int64_t i = n; i-- > 0;) {
      std::vector<Expr> choices;
      if (max == kUnbounded || c < max) {
        const Expr next = rules_.ref(state(i + 1, c + 1));
        choices.push_back(c == 0 ? rules_.seq({properties[i].text, next})
                                 : rules_.seq({comma(), properties[i].text, next}));
      }
      if (!properties[i].required) choices.push_back(rules_.ref(state(i + 1, c)));
      rules_.define(state(i, c), rules_.alt(std::move(choices)));
    }
  }
  return rules_.seq({rules_.literal("{"), space(), rules_.ref(state(0, 0)), space(), rules_.literal("}")});
}

Expr SchemaRules::key_except(const std::vector<std::string>& names) {
  if (names.empty()) return any_string();
  // A tree of the names' characters; beside each of its paths leads a way out to any key.
  struct TreeNode {
    std::map<uint32_t, size_t> next;
    bool is_name = false;
  };
  std::vector<TreeNode> tree(1);
  for (const std::string& name : names) {
    std::vector<uint32_t> chars;
    decode_utf8(name, chars);
    size_t at = 0;
    for (uint32_t c : chars) {
      const auto [it, fresh] = tree[at].next.try_emplace(c, tree.size());
      const size_t next = it->second;
      if (fresh) tree.emplace_back();
      at = next;
    }
    tree[at].is_name = true;
  }
  const Expr any = rules_.ref(rules_.add("key", rules_.repeat(json_chars(rules_, CharSet::all()), 0)));
  std::vector<RuleId> rules;
  for (size_t i = 0; i < tree.size(); i++) rules.push_back(rules_.add("key"));
  for (size_t i = 0; i < tree.size(); i++) {
    CharSet others = CharSet::all(), taken;
    std::vector<Expr> choices;
    if (!tree[i].is_name) choices.push_back(rules_.literal(""));
    for (const auto& [c, next] : tree[i].next) {
      const CharSet only({{c, c}});
      taken.add(only);
      if (!only.empty()) choices.push_back(rules_.seq({json_chars(rules_, only), rules_.ref(rules[next])}));
    }
    choices.push_back(rules_.seq({json_chars(rules_, others.minus(taken)), any}));
    rules_.define(rules[i], rules_.alt(std::move(choices)));
  }
  return rules_.seq({rules_.literal("\""), rules_.ref(rules[0]), rules_.literal("\"")});
}

Expr json_space(Rules& rules, int max_indent) {
  if (max_indent <= 0) return rules.literal("");
  const Expr indent = rules.repeat(rules.chars(CharSet({{' ', ' '}, {'\t', '\t'}})), 0, max_indent);
  return rules.ref(
      rules.add("space", rules.alt({rules.literal(""), rules.literal(" "), rules.seq({rules.literal("\n"), indent})})));
}

Expr SchemaRules::space() {
  if (space_ < 0) space_ = json_space(rules_, options_.max_indent);
  return space_;
}

Expr SchemaRules::any_string() {
  if (string_ < 0) {
    // The run of plain characters stands first and the quote ends the rule: most tokens then stay within one rule, and
    // a mask takes some us. As a repetition of "plain or escape" it takes 13 ms with 49,152 tokens.
    const RuleId rest = rules_.add("string");
    const CharSet plain = CharSet({{1, 0x1f}, {'"', '"'}, {'\\', '\\'}}).complement();
    rules_.define(
        rest, rules_.seq({rules_.repeat(rules_.chars(plain), 0),
                          rules_.alt({rules_.literal("\""), rules_.seq({json_escape(rules_), rules_.ref(rest)})})}));
    string_ = rules_.add("string", rules_.seq({rules_.literal("\""), rules_.ref(rest)}));
  }
  return rules_.ref(string_);
}

Expr SchemaRules::any_object() {
  any_value();
  return rules_.ref(object_);
}

Expr SchemaRules::any_value() {
  if (any_ >= 0) return rules_.ref(any_);
  any_ = rules_.add("value");
  object_ = rules_.add("object");
  array_ = rules_.add("array");
  const auto list = [&](Expr item) {
    return rules_.optional(rules_.seq({item, rules_.repeat(rules_.seq({comma(), item}), 0)}));
  };
  const Expr member = rules_.seq({any_string(), rules_.literal(":"), space(), rules_.ref(any_)});
  rules_.define(object_, rules_.seq({rules_.literal("{"), space(), list(member), space(), rules_.literal("}")}));
  rules_.define(array_,
                rules_.seq({rules_.literal("["), space(), list(rules_.ref(any_)), space(), rules_.literal("]")}));
  const auto number = number_rule(rules_, std::nullopt, std::nullopt);
  rules_.define(any_, rules_.alt({rules_.ref(object_), rules_.ref(array_), any_string(), *number,
                                  rules_.literal("true"), rules_.literal("false"), rules_.literal("null")}));
  return rules_.ref(any_);
}

Expr SchemaRules::value_literal(const Json& value) {
  std::vector<Expr> parts;
  if (value.is_array() || value.is_object()) {
    parts = {rules_.literal(value.is_array() ? "[" : "{"), space()};
    bool more = false;
    for (const auto& [name, child] : value.items()) {
      if (more) parts.push_back(comma());
      more = true;
      if (value.is_object()) {
        parts.push_back(rules_.literal(quoted(name) + ":"));
        parts.push_back(space());
      }
      parts.push_back(value_literal(child));
    }
    parts.push_back(space());
    parts.push_back(rules_.literal(value.is_array() ? "]" : "}"));
    return rules_.seq(std::move(parts));
  }
  return rules_.literal(value.dump());
}

}  // namespace argent::grammar
