// A second opinion on what a JSON schema allows: a direct validator, written from the specification alone.
#pragma once

#include <cmath>
#include <regex>
#include <set>
#include <string>

#include "base/json.h"

namespace argent::grammar {

inline size_t count_chars(const std::string& text) {
  size_t n = 0;
  for (unsigned char c : text) n += (c & 0xc0) != 0x80;
  return n;
}

inline bool is_of_type(const Json& v, const std::string& type) {
  if (type == "integer")
    return v.is_number_integer() || (v.is_number_float() && std::floor(v.get<double>()) == v.get<double>());
  if (type == "number") return v.is_number();
  if (type == "string") return v.is_string();
  if (type == "array") return v.is_array();
  if (type == "object") return v.is_object();
  if (type == "boolean") return v.is_boolean();
  return type == "null" && v.is_null();
}

inline bool valid(const Json& v, const Json& s, const Json& root) {
  if (s.is_boolean()) return s.get<bool>();
  const auto each = [&](const char* key, auto test) { return !s.contains(key) || test(s[key]); };
  const auto number = [](const Json& j) { return j.get<long double>(); };
  const auto pointer = [](std::string uri) {
    if (const size_t at = uri.find("%25"); at != std::string::npos) uri.replace(at, 3, "%");
    return Json::json_pointer(uri.substr(1));
  };
  if (s.contains("$ref") && !valid(v, root.at(pointer(s["$ref"].get<std::string>())), root)) return false;
  if (s.contains("type")) {
    const Json types = s["type"].is_array() ? s["type"] : Json::array({s["type"]});
    bool any = s.value("nullable", false) && v.is_null();
    for (const Json& t : types) any |= is_of_type(v, t.get<std::string>());
    if (!any) return false;
  }
  if (!each("enum", [&](const Json& e) { return std::find(e.begin(), e.end(), v) != e.end(); })) return false;
  if (!each("const", [&](const Json& c) { return c == v; })) return false;
  if (s.contains("allOf"))
    for (const Json& b : s["allOf"])
      if (!valid(v, b, root)) return false;
  for (const char* key : {"anyOf", "oneOf"}) {
    if (!s.contains(key)) continue;
    bool any = false;
    for (const Json& b : s[key]) any |= valid(v, b, root);
    if (!any) return false;
  }
  if (v.is_number()) {
    if (!each("minimum", [&](const Json& m) { return number(v) >= number(m); })) return false;
    if (!each("maximum", [&](const Json& m) { return number(v) <= number(m); })) return false;
    if (!each("exclusiveMinimum", [&](const Json& m) { return number(v) > number(m); })) return false;
    if (!each("exclusiveMaximum", [&](const Json& m) { return number(v) < number(m); })) return false;
    if (!each("multipleOf", [&](const Json& m) {
          const long double q = number(v) / number(m);
          return std::fabs(q - std::round(q)) < 1e-6L * std::max(1.0L, std::fabs(q));
        }))
      return false;
  }
  if (v.is_string()) {
    const std::string& text = v.get_ref<const std::string&>();
    if (!each("minLength", [&](const Json& n) { return count_chars(text) >= n.get<size_t>(); })) return false;
    if (!each("maxLength", [&](const Json& n) { return count_chars(text) <= n.get<size_t>(); })) return false;
    if (!each("pattern", [&](const Json& p) { return std::regex_search(text, std::regex(p.get<std::string>())); }))
      return false;
  }
  if (v.is_array()) {
    if (!each("minItems", [&](const Json& n) { return v.size() >= n.get<size_t>(); })) return false;
    if (!each("maxItems", [&](const Json& n) { return v.size() <= n.get<size_t>(); })) return false;
    const size_t n_prefix = s.contains("prefixItems") ? s["prefixItems"].size() : 0;
    for (size_t i = 0; i < v.size(); i++) {
      if (i < n_prefix && !valid(v[i], s["prefixItems"][i], root)) return false;
      if (i >= n_prefix && s.contains("items") && !valid(v[i], s["items"], root)) return false;
    }
  }
  if (v.is_object()) {
    if (s.contains("required"))
      for (const Json& name : s["required"])
        if (!v.contains(name.get<std::string>())) return false;
    if (!each("minProperties", [&](const Json& n) { return v.size() >= n.get<size_t>(); })) return false;
    if (!each("maxProperties", [&](const Json& n) { return v.size() <= n.get<size_t>(); })) return false;
    for (const auto& [name, value] : v.items()) {
      bool known = false;
      if (s.contains("properties") && s["properties"].contains(name)) {
        known = true;
        if (!valid(value, s["properties"][name], root)) return false;
      }
      if (s.contains("patternProperties")) {
        for (const auto& [pattern, schema] : s["patternProperties"].items()) {
          if (!std::regex_search(name, std::regex(pattern))) continue;
          known = true;
          if (!valid(value, schema, root)) return false;
        }
      }
      if (!known && s.contains("additionalProperties") && !valid(value, s["additionalProperties"], root)) return false;
      if (s.contains("propertyNames") && !valid(Json(name), s["propertyNames"], root)) return false;
    }
  }
  return true;
}

}  // namespace argent::grammar
