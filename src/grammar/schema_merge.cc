// Which keywords there are, and how several schemas for one value become one.
#include <algorithm>

#include "grammar/schema.h"

namespace argent::grammar {

namespace {

constexpr size_t kMaxSchema = 1 << 20;
constexpr int kMaxNesting = 64;
constexpr int kMaxKeys = 10000;
constexpr int kMaxMerges = 20000;
constexpr size_t kMaxBranches = 256;

enum class Wants : uint8_t {
  annotation,  // says nothing about the text
  schema,      // a schema
  schemas,     // an array of schemas, at least one
  map,         // an object of schemas
  names,       // an array of strings
  count,       // a whole number >= 0
  number,
  positive,  // a number > 0
  bound,     // a number, or draft 4's boolean
  text,
  flag,
  anything,
  refused,
};

struct Keyword {
  const char* name;
  Wants wants;
};

constexpr Keyword kKeywords[] = {
    {"title", Wants::annotation},
    {"description", Wants::annotation},
    {"default", Wants::annotation},
    {"examples", Wants::annotation},
    {"example", Wants::annotation},
    {"deprecated", Wants::annotation},
    {"readOnly", Wants::annotation},
    {"writeOnly", Wants::annotation},
    {"$comment", Wants::annotation},
    {"$schema", Wants::annotation},
    {"$id", Wants::annotation},
    {"id", Wants::annotation},
    {"$anchor", Wants::annotation},
    {"$defs", Wants::annotation},
    {"definitions", Wants::annotation},
    {"contentEncoding", Wants::annotation},
    {"contentMediaType", Wants::annotation},
    {"discriminator", Wants::annotation},
    {"externalDocs", Wants::annotation},
    {"xml", Wants::annotation},
    {"type", Wants::anything},
    {"enum", Wants::anything},
    {"const", Wants::anything},
    {"$ref", Wants::text},
    {"allOf", Wants::schemas},
    {"anyOf", Wants::schemas},
    {"oneOf", Wants::schemas},
    {"properties", Wants::map},
    {"required", Wants::names},
    {"additionalProperties", Wants::schema},
    {"patternProperties", Wants::map},
    {"propertyNames", Wants::schema},
    {"minProperties", Wants::count},
    {"maxProperties", Wants::count},
    {"items", Wants::anything},
    {"prefixItems", Wants::schemas},
    {"additionalItems", Wants::schema},
    {"minItems", Wants::count},
    {"maxItems", Wants::count},
    {"uniqueItems", Wants::flag},
    {"pattern", Wants::text},
    {"format", Wants::text},
    {"minLength", Wants::count},
    {"maxLength", Wants::count},
    {"minimum", Wants::number},
    {"maximum", Wants::number},
    {"exclusiveMinimum", Wants::bound},
    {"exclusiveMaximum", Wants::bound},
    {"multipleOf", Wants::positive},
    {"nullable", Wants::flag},
    {"unevaluatedProperties", Wants::flag},
    {"not", Wants::refused},
    {"if", Wants::refused},
    {"then", Wants::refused},
    {"else", Wants::refused},
    {"dependentRequired", Wants::refused},
    {"dependentSchemas", Wants::refused},
    {"dependencies", Wants::refused},
    {"contains", Wants::refused},
    {"minContains", Wants::refused},
    {"maxContains", Wants::refused},
    {"unevaluatedItems", Wants::refused},
    {"$dynamicRef", Wants::refused},
    {"$recursiveRef", Wants::refused},
};

constexpr const char* kTypes[] = {"null", "boolean", "object", "array", "number", "integer", "string"};

const Keyword* find_keyword(const std::string& name) {
  for (const Keyword& k : kKeywords)
    if (name == k.name) return &k;
  return nullptr;
}

bool is_schema(const Json& j) { return j.is_object() || j.is_boolean(); }

const char* problem_of(const Json& value, Wants wants) {
  switch (wants) {
    case Wants::schema:
      return is_schema(value) ? nullptr : "a schema (an object, true or false)";
    case Wants::schemas:
      return value.is_array() && !value.empty() && std::all_of(value.begin(), value.end(), is_schema)
                 ? nullptr
                 : "an array of schemas, at least one";
    case Wants::map:
      return value.is_object() && std::all_of(value.begin(), value.end(), is_schema) ? nullptr : "an object of schemas";
    case Wants::names:
      return value.is_array() && std::all_of(value.begin(), value.end(), [](const Json& j) { return j.is_string(); })
                 ? nullptr
                 : "an array of strings";
    case Wants::count: {
      const bool fits = value.is_number_unsigned() ||
                        (value.is_number_float() && value.get<double>() >= 0 && value.get<double>() < 1e15 &&
                         value.get<double>() == static_cast<double>(static_cast<int64_t>(value.get<double>())));
      return fits ? nullptr : "a whole number from 0";
    }
    case Wants::number:
      return value.is_number() ? nullptr : "a number";
    case Wants::positive:
      return value.is_number() && value.get<double>() > 0 ? nullptr : "a number above 0";
    case Wants::bound:
      return value.is_number() || value.is_boolean() ? nullptr : "a number";
    case Wants::text:
      return value.is_string() ? nullptr : "a string";
    case Wants::flag:
      return value.is_boolean() ? nullptr : "true or false";
    default:
      return nullptr;
  }
}

Json never() { return {{"enum", Json::array()}}; }

bool less(const Json& a, const Json& b) {
  if (a.is_number_integer() && b.is_number_integer()) {
    if (a.is_number_unsigned() && b.is_number_unsigned()) return a.get<uint64_t>() < b.get<uint64_t>();
    if (!a.is_number_unsigned() && !b.is_number_unsigned()) return a.get<int64_t>() < b.get<int64_t>();
  }
  return a.get<double>() < b.get<double>();
}

Json intersect_types(const Json& a, const Json& b) {
  Json out = Json::array();
  const auto has = [](const std::vector<std::string>& list, const char* t) {
    return std::find(list.begin(), list.end(), t) != list.end();
  };
  const auto x = types_of({{"type", a}}), y = types_of({{"type", b}});
  for (const char* t : kTypes) {
    const bool whole = std::string_view(t) == "integer";
    if ((has(x, t) || (whole && has(x, "number"))) && (has(y, t) || (whole && has(y, "number"))) &&
        !(whole && has(x, "number") && has(y, "number")))
      out.push_back(t);
  }
  return out;
}

}  // namespace

bool is_annotation(const std::string& name) {
  const Keyword* k = find_keyword(name);
  return name.starts_with("x-") || (k && k->wants == Wants::annotation);
}

Result<Json> parse_schema(std::string_view text) {
  if (text.size() > kMaxSchema)
    return fail(Code::invalid, "#: the schema has {} bytes, at most {}", text.size(), kMaxSchema);
  int nesting = 0, keys = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); i++) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\')
        i++;
      else if (c == '"')
        in_string = false;
      continue;
    }
    if (c == '"') in_string = true;
    if (c == ':') keys++;
    if ((c == '{' || c == '[') && ++nesting > kMaxNesting)
      return fail(Code::invalid, "#: the schema nests deeper than {}", kMaxNesting);
    if (c == '}' || c == ']') nesting--;
  }
  if (keys > kMaxKeys) return fail(Code::invalid, "#: the schema has {} keys, at most {}", keys, kMaxKeys);
  Json out = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (out.is_discarded()) return fail(Code::invalid, "#: the schema is not JSON");
  return out;
}

Json conjunction(Json a, Json b) {
  Json out = Json::object();
  out["allOf"] = Json::array();
  out["allOf"].push_back(std::move(a));
  out["allOf"].push_back(std::move(b));
  return out;
}

std::vector<std::string> types_of(const Json& flat) {
  std::vector<std::string> out;
  const auto it = flat.find("type");
  if (it == flat.end()) return out;
  if (it->is_string()) return {it->get<std::string>()};
  for (const Json& t : *it) out.push_back(t.get<std::string>());
  return out;
}

Result<std::optional<Bound>> bound_of(const Json& flat, bool low) {
  std::optional<Bound> out;
  const auto plain = flat.find(low ? "minimum" : "maximum");
  const auto strict = flat.find(low ? "exclusiveMinimum" : "exclusiveMaximum");
  const bool draft4 = strict != flat.end() && strict->is_boolean();
  if (plain != flat.end()) {
    ARGENT_LET(Decimal d, Decimal::parse(plain->dump()));
    out = Bound{std::move(d), draft4 && strict->get<bool>()};
  }
  if (strict != flat.end() && !draft4) {
    ARGENT_LET(Decimal d, Decimal::parse(strict->dump()));
    const int order = out ? compare(d, out->value) : 0;
    if (!out || order == 0 || (order > 0) == low) out = Bound{std::move(d), true};
  }
  return out;
}

Status SchemaRules::check_keywords(const Json& schema, const std::string& path) const {
  for (const auto& [name, value] : schema.items()) {
    const Keyword* k = find_keyword(name);
    if (!k) {
      if (name.starts_with("x-")) continue;
      return error(Code::unsupported, path, fmt::format("the keyword '{}' is not known", name));
    }
    if (k->wants == Wants::refused)
      return error(Code::unsupported, path, fmt::format("'{}' can not be enforced", name));
    if (const char* wanted = problem_of(value, k->wants))
      return error(Code::invalid, path, fmt::format("'{}' must be {}", name, wanted));
  }
  if (const auto it = schema.find("type"); it != schema.end()) {
    const auto known = [](const Json& t) {
      return t.is_string() && std::find(std::begin(kTypes), std::end(kTypes), t.get<std::string>()) != std::end(kTypes);
    };
    if (!known(*it) && !(it->is_array() && !it->empty() && std::all_of(it->begin(), it->end(), known)))
      return error(Code::invalid, path,
                   fmt::format("'type' must be one of {} or an array of them", fmt::join(kTypes, ", ")));
  }
  if (const auto it = schema.find("enum"); it != schema.end() && (!it->is_array() || it->empty()))
    return error(Code::invalid, path, "'enum' must be an array of at least one value");
  if (const auto it = schema.find("items"); it != schema.end()) {
    if (!is_schema(*it) && (!it->is_array() || problem_of(*it, Wants::schemas)))
      return error(Code::invalid, path, "'items' must be a schema or an array of schemas");
    if (it->is_array() && schema.contains("prefixItems"))
      return error(Code::invalid, path, "'items' is an array beside 'prefixItems'");
  }
  if (schema.contains("unevaluatedProperties") &&
      (schema["unevaluatedProperties"].get<bool>() || schema.contains("anyOf") || schema.contains("oneOf") ||
       schema.contains("allOf") || schema.contains("$ref")))
    return error(Code::unsupported, path, "'unevaluatedProperties' is enforced as false beside 'properties' only");
  return {};
}

Result<const Json*> SchemaRules::resolve(const Json& ref, const std::string& path) const {
  const std::string& uri = ref.get_ref<const std::string&>();
  if (uri.empty() || uri[0] != '#' || (uri.size() > 1 && uri[1] != '/'))
    return error(Code::unsupported, path, fmt::format("'$ref' to '{}' is not '#' or '#/...' in this schema", uri));
  std::string pointer;
  for (size_t i = 1; i < uri.size(); i++) {
    const auto hex = [](char c) {
      return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
    };
    if (uri[i] == '%' && i + 2 < uri.size() && hex(uri[i + 1]) >= 0 && hex(uri[i + 2]) >= 0) {
      pointer += static_cast<char>(hex(uri[i + 1]) * 16 + hex(uri[i + 2]));
      i += 2;
    } else {
      pointer += uri[i];
    }
  }
  const Json* at = &document_;
  for (size_t start = 0; start < pointer.size();) {
    const size_t end = std::min(pointer.find('/', start + 1), pointer.size());
    std::string token;
    for (size_t i = start + 1; i < end; i++) {
      const bool escaped = pointer[i] == '~' && i + 1 < end && (pointer[i + 1] == '0' || pointer[i + 1] == '1');
      token += escaped ? (pointer[++i] == '0' ? '~' : '/') : pointer[i];
    }
    start = end;
    const Json* next = nullptr;
    if (at->is_object()) {
      if (const auto it = at->find(token); it != at->end()) next = &*it;
    } else if (at->is_array() && !token.empty() && token.size() < 8 &&
               token.find_first_not_of("0123456789") == std::string::npos && (token == "0" || token[0] != '0')) {
      const size_t index = std::stoul(token);
      if (index < at->size()) next = &(*at)[index];
    }
    if (!next) return error(Code::invalid, path, fmt::format("'$ref' to '{}': no '{}' there", uri, token));
    at = next;
  }
  if (!is_schema(*at)) return error(Code::invalid, path, fmt::format("'$ref' to '{}', which is no schema", uri));
  return at;
}

Result<Json> SchemaRules::flatten(const Json& schema, const std::string& path, int depth) {
  if (depth > kMaxNesting) return error(Code::invalid, path, "'$ref' and 'allOf' lead in a circle or too deep");
  if (schema.is_boolean()) return schema.get<bool>() ? Json::object() : never();
  ARGENT_TRY(check_keywords(schema, path));
  Json out = Json::object();
  for (const auto& [name, value] : schema.items())
    if (!is_annotation(name) && name != "allOf" && name != "$ref" && name != "const" && name != "nullable")
      out[name] = value;
  if (out.contains("unevaluatedProperties")) {
    if (!out.contains("additionalProperties")) out["additionalProperties"] = false;
    out.erase("unevaluatedProperties");
  }
  if (out.contains("items") && out["items"].is_array()) {
    out["prefixItems"] = out["items"];
    out.erase("items");
    if (out.contains("additionalItems")) out["items"] = out["additionalItems"];
  }
  out.erase("additionalItems");
  if (schema.contains("nullable") && schema["nullable"].get<bool>()) {
    if (!out.contains("type")) return error(Code::unsupported, path, "'nullable' without 'type' can not be enforced");
    Json types = types_of(out);
    if (std::find(types.begin(), types.end(), "null") == types.end()) types.push_back("null");
    out["type"] = std::move(types);
  }
  if (schema.contains("const")) {
    Json only = Json::object();
    only["enum"] = Json::array();
    only["enum"].push_back(schema["const"]);
    ARGENT_LET(out, merge(std::move(out), only, path));
  }
  if (schema.contains("$ref")) {
    ARGENT_LET(const Json* target, resolve(schema["$ref"], path));
    ARGENT_LET(const Json part, flatten(*target, path, depth + 1));
    ARGENT_LET(out, merge(std::move(out), part, path));
  }
  if (schema.contains("allOf")) {
    int i = 0;
    for (const Json& branch : schema["allOf"]) {
      ARGENT_LET(const Json part, flatten(branch, fmt::format("{}/allOf/{}", path, i++), depth + 1));
      ARGENT_LET(out, merge(std::move(out), part, path));
    }
  }
  return out;
}

Result<Json> SchemaRules::merge(Json a, const Json& b, const std::string& path) {
  if (a.empty()) return b;
  if (++merges_ > kMaxMerges) return error(Code::invalid, path, "'$ref' and 'allOf' join too many schemas");
  const auto clash = [&](const char* name) {
    return error(Code::unsupported, path, fmt::format("two different '{}' for one value can not be enforced", name));
  };
  const bool a_closes = a.contains("additionalProperties"), b_closes = b.contains("additionalProperties");
  const Json a_patterns = a.value("patternProperties", Json::object()),
             b_patterns = b.value("patternProperties", Json::object());
  if (a_patterns != b_patterns && (a_closes || b_closes || (!a_patterns.empty() && !b_patterns.empty())))
    return clash("patternProperties");
  if (a.value("prefixItems", Json::array()) != b.value("prefixItems", Json::array()) &&
      (a.contains("items") || b.contains("items") || (a.contains("prefixItems") && b.contains("prefixItems"))))
    return clash("prefixItems");
  if (a.contains("properties") || b.contains("properties")) {
    // A property that only one side lists falls under the other side's word on further ones.
    Json all = Json::object();
    const Json none = Json::object();
    const auto add = [&](const Json& from, const Json& other, bool other_first) {
      const Json& theirs = other.contains("properties") ? other["properties"] : none;
      for (const auto& [name, value] : (from.contains("properties") ? from["properties"] : none).items()) {
        if (all.contains(name)) continue;
        if (theirs.contains(name))
          all[name] = theirs[name] == value ? value
                      : other_first         ? conjunction(theirs[name], value)
                                            : conjunction(value, theirs[name]);
        else if (other.contains("additionalProperties"))
          all[name] = conjunction(value, other["additionalProperties"]);
        else
          all[name] = value;
      }
    };
    add(a, b, false);
    add(b, a, true);
    a["properties"] = std::move(all);
  }
  for (const auto& [name, value] : b.items()) {
    if (name == "properties") continue;
    if (!a.contains(name)) {
      a[name] = value;
      continue;
    }
    Json& mine = a[name];
    if (mine == value) continue;
    if (name == "type") {
      mine = intersect_types(mine, value);
      if (mine.empty()) return never();
    } else if (name == "enum") {
      Json both = Json::array();
      for (const Json& v : mine)
        if (std::find(value.begin(), value.end(), v) != value.end()) both.push_back(v);
      mine = std::move(both);
    } else if (name == "required") {
      for (const Json& v : value)
        if (std::find(mine.begin(), mine.end(), v) == mine.end()) mine.push_back(v);
    } else if (name.starts_with("min") || name == "exclusiveMinimum") {
      if (mine.is_boolean() || value.is_boolean()) return clash(name.c_str());
      if (less(mine, value)) mine = value;
    } else if (name.starts_with("max") || name == "exclusiveMaximum") {
      if (mine.is_boolean() || value.is_boolean()) return clash(name.c_str());
      if (less(value, mine)) mine = value;
    } else if (name == "items" || name == "additionalProperties" || name == "propertyNames") {
      mine = conjunction(mine, value);
    } else if (name == "uniqueItems") {
      mine = true;
    } else if (name == "anyOf" || name == "oneOf") {
      if (mine.size() * value.size() > kMaxBranches) return clash(name.c_str());
      Json both = Json::array();
      for (const Json& x : mine)
        for (const Json& y : value) both.push_back(conjunction(x, y));
      mine = std::move(both);
    } else {
      return clash(name.c_str());
    }
  }
  // Draft 4's flag belongs to its own minimum.
  for (const char* name : {"exclusiveMinimum", "exclusiveMaximum"})
    if (a.contains(name) && a[name].is_boolean() && a[name].get<bool>() &&
        b.contains(name[9] == 'M' && name[10] == 'i' ? "minimum" : "maximum"))
      return clash(name);
  return a;
}

}  // namespace argent::grammar
