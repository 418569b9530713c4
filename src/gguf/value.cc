#include "gguf/value.h"

#include <fmt/format.h>

#include <bit>

namespace argent::gguf {

static_assert(std::endian::native == std::endian::little, "values are read in place from little-endian files");

std::string_view type_name(Type type) {
  constexpr std::string_view names[kTypeCount] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                                  "bool", "string", "array", "u64", "i64", "f64"};
  return uint32_t(type) < kTypeCount ? names[uint32_t(type)] : "?";
}

std::string quote(std::string_view text, size_t max) {
  std::string out = "'";
  for (const char c : text.substr(0, max)) {
    if (c == '\'' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c >= 0x20 && c < 0x7f) {
      out += c;
    } else {
      out += fmt::format("\\x{:02x}", uint8_t(c));
    }
  }
  if (text.size() > max) out += "...";
  out += '\'';
  return out;
}

std::string Value::type_name() const {
  if (is_array()) return fmt::format("{}[{}]", gguf::type_name(element_), size_);
  return std::string(gguf::type_name(type_));
}

std::string Value::describe() const {
  if (is_array()) return type_name();
  if (type_ == Type::string) return "string " + quote(load_string(data_));
  if (type_ == Type::boolean) return *data_ ? "bool true" : "bool false";
  if (type_ == Type::u64) return fmt::format("u64 {}", load<uint64_t>(data_));
  if (type_ == Type::f32) return fmt::format("f32 {}", load<float>(data_));
  if (type_ == Type::f64) return fmt::format("f64 {}", load<double>(data_));
  return fmt::format("{} {}", gguf::type_name(type_), load_int(type_, data_));
}

std::optional<uint64_t> Value::as_uint() const {
  if (type_ == Type::u64) return load<uint64_t>(data_);
  const auto value = as_int();
  if (!value || *value < 0) return std::nullopt;
  return uint64_t(*value);
}

std::optional<int64_t> Value::as_int() const {
  if (!is_integer(type_)) return std::nullopt;
  if (type_ == Type::u64 && load<uint64_t>(data_) >> 63) return std::nullopt;
  return load_int(type_, data_);
}

std::optional<double> Value::as_float() const {
  if (!is_integer(type_) && !is_float(type_)) return std::nullopt;
  return load_float(type_, data_);
}

std::optional<bool> Value::as_bool() const {
  if (type_ != Type::boolean) return std::nullopt;
  return *data_ != 0;
}

std::optional<std::string_view> Value::as_string() const {
  if (type_ != Type::string) return std::nullopt;
  return load_string(data_);
}

}  // namespace argent::gguf
