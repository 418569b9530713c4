#include "server/fields.h"

#include <cmath>

namespace argent::server {
namespace {

std::string_view kind_of(const Json& j) {
  switch (j.type()) {
    case Json::value_t::null:
      return "null";
    case Json::value_t::boolean:
      return "a boolean";
    case Json::value_t::string:
      return "a string";
    case Json::value_t::array:
      return "an array";
    case Json::value_t::object:
      return "an object";
    default:
      return "a number";
  }
}

}  // namespace

Fields::Fields(const Json& object, std::string path) : object_(object), path_(std::move(path)) {
  if (object.is_object()) return;
  const std::string_view name = std::string_view(path_).substr(0, path_.empty() ? 0 : path_.size() - 1);
  error_ = fail(Code::invalid, "{} is {}, wants an object", name.empty() ? "the body" : name, kind_of(object));
  error_field_ = name;
}

bool Fields::has(std::string_view name) const {
  if (!object_.is_object()) return false;
  const auto it = object_.find(std::string(name));
  return it != object_.end() && !it->is_null();
}

const Json* Fields::find(std::string_view name) {
  read_.emplace(name);
  if (error_ || !has(name)) return nullptr;
  return &*object_.find(std::string(name));
}

void Fields::fail_at(std::string_view name, std::string message) {
  if (error_) return;
  error_field_ = fmt::format("{}{}", path_, name);
  error_ = fail(Code::invalid, "{}", message);
}

std::optional<std::string> Fields::text(std::string_view name) {
  const Json* j = find(name);
  if (!j) return std::nullopt;
  if (j->is_string()) return j->get<std::string>();
  fail_at(name, fmt::format("{}{} is {}, wants a string", path_, name, kind_of(*j)));
  return std::nullopt;
}

std::optional<bool> Fields::flag(std::string_view name) {
  const Json* j = find(name);
  if (!j) return std::nullopt;
  if (j->is_boolean()) return j->get<bool>();
  fail_at(name, fmt::format("{}{} is {}, wants true or false", path_, name, kind_of(*j)));
  return std::nullopt;
}

std::optional<double> Fields::number(std::string_view name, double least, double most) {
  const Json* j = find(name);
  if (!j) return std::nullopt;
  if (!j->is_number()) {
    fail_at(name, fmt::format("{}{} is {}, wants a number", path_, name, kind_of(*j)));
    return std::nullopt;
  }
  const double value = j->get<double>();
  if (value >= least && value <= most) return value;
  fail_at(name, fmt::format("{}{} is {}, wants {} to {}", path_, name, value, least, most));
  return std::nullopt;
}

std::optional<int64_t> Fields::whole(std::string_view name, int64_t least, int64_t most) {
  const Json* j = find(name);
  if (!j) return std::nullopt;
  const auto wrong = [&](auto seen) {
    fail_at(name, fmt::format("{}{} is {}, wants a whole number from {} to {}", path_, name, seen, least, most));
    return std::nullopt;
  };
  if (!j->is_number()) return wrong(kind_of(*j));
  int64_t value;
  if (j->is_number_unsigned()) {
    const uint64_t u = j->get<uint64_t>();
    if (u > uint64_t(INT64_MAX)) return wrong(u);
    value = int64_t(u);
  } else if (j->is_number_integer()) {
    value = j->get<int64_t>();
  } else {
    const double d = j->get<double>();
    if (d != std::floor(d) || std::fabs(d) > 9e15) return wrong(d);
    value = int64_t(d);
  }
  if (value < least || value > most) return wrong(value);
  return value;
}

const Json* Fields::object(std::string_view name) {
  const Json* j = find(name);
  if (!j || j->is_object()) return j;
  fail_at(name, fmt::format("{}{} is {}, wants an object", path_, name, kind_of(*j)));
  return nullptr;
}

const Json* Fields::array(std::string_view name) {
  const Json* j = find(name);
  if (!j || j->is_array()) return j;
  fail_at(name, fmt::format("{}{} is {}, wants an array", path_, name, kind_of(*j)));
  return nullptr;
}

std::optional<std::vector<std::string>> Fields::texts(std::string_view name, size_t most) {
  const Json* j = find(name);
  if (!j) return std::nullopt;
  if (j->is_string()) return std::vector{j->get<std::string>()};
  if (!j->is_array()) {
    fail_at(name, fmt::format("{}{} is {}, wants a string or an array of strings", path_, name, kind_of(*j)));
    return std::nullopt;
  }
  if (j->size() > most) {
    fail_at(name, fmt::format("{}{} has {} entries, at most {} are taken", path_, name, j->size(), most));
    return std::nullopt;
  }
  std::vector<std::string> out;
  for (const Json& each : *j) {
    if (!each.is_string()) {
      fail_at(name, fmt::format("{}{}[{}] is {}, wants a string", path_, name, out.size(), kind_of(each)));
      return std::nullopt;
    }
    out.push_back(each.get<std::string>());
  }
  return out;
}

std::optional<std::string> Fields::word(std::string_view name, std::initializer_list<std::string_view> words) {
  std::optional<std::string> seen = text(name);
  if (!seen) return std::nullopt;
  for (std::string_view w : words)
    if (*seen == w) return seen;
  fail_at(name, fmt::format("{}{} is '{}', wants one of {}", path_, name, seen->substr(0, 40), fmt::join(words, ", ")));
  return std::nullopt;
}

void Fields::ignore(std::initializer_list<std::string_view> names) {
  for (std::string_view name : names) read_.emplace(name);
}

Status Fields::finish() {
  if (!error_ && object_.is_object())
    for (const auto& [name, value] : object_.items())
      if (!value.is_null() && !read_.contains(name)) {
        fail_at(name, fmt::format("unsupported field '{}{}'", path_, name.substr(0, 60)));
        break;
      }
  return status();
}

}  // namespace argent::server
