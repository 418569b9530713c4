// Reading a request's JSON: typed, by name, with the path of what is wrong. A field that nobody read is refused by
// name.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "chat/template.h"

namespace argent::server {

// The deepest nesting of a request body.
inline constexpr uint32_t kMaxBodyDepth = 64;

// One JSON object. The first error stays (status()), and what is read after it is as if absent, so that a route reads
// everything and asks once. A null is as if the field were absent.
class Fields {
 public:
  // `path` stands before names in errors: "messages[2]."
  explicit Fields(const Json& object, std::string path = {});

  const Json* find(std::string_view name);  // null: absent; marks the field as read
  bool has(std::string_view name) const;
  std::optional<std::string> text(std::string_view name);
  std::optional<bool> flag(std::string_view name);
  // A number; whole(): without a fraction (1.0 is whole). Out of [least, most]: an error that says so.
  std::optional<double> number(std::string_view name, double least, double most);
  std::optional<int64_t> whole(std::string_view name, int64_t least, int64_t most);
  const Json* object(std::string_view name);
  const Json* array(std::string_view name);
  // A string or an array of strings.
  std::optional<std::vector<std::string>> texts(std::string_view name, size_t most);
  // One of these words.
  std::optional<std::string> word(std::string_view name, std::initializer_list<std::string_view> words);
  // Accepted and without effect here (user, metadata, store...): only its being there is noted.
  void ignore(std::initializer_list<std::string_view> names);
  // Fields that were not read, of which one that is not null is an error: "unsupported field 'x'".
  Status finish();

  Status status() const { return error_ ? Status(*error_) : Status(); }
  const std::string& error_field() const { return error_field_; }  // for "param" in OpenAI's errors
  void fail_at(std::string_view name, std::string message);

 private:
  const Json& object_;
  std::string path_;
  std::set<std::string, std::less<>> read_;
  std::optional<Error> error_;
  std::string error_field_;
};

}  // namespace argent::server
