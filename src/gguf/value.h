// A typed value of a GGUF file: a view of the file's bytes, checked when the file was opened, never a copy.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace argent::gguf {

// Ids as in the GGUF specification ("gguf_metadata_value_type").
enum class Type : uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, string, array, u64, i64, f64 };
inline constexpr uint32_t kTypeCount = 13;

// "u8" ... "bool", "string", "array", "f64"; "?" for an id beyond the table.
std::string_view type_name(Type type);

// Bytes of a value of fixed size; 0 for strings and arrays.
constexpr uint32_t fixed_size(Type type) {
  switch (type) {
    case Type::u8:
    case Type::i8:
    case Type::boolean:
      return 1;
    case Type::u16:
    case Type::i16:
      return 2;
    case Type::u32:
    case Type::i32:
    case Type::f32:
      return 4;
    case Type::u64:
    case Type::i64:
    case Type::f64:
      return 8;
    case Type::string:
    case Type::array:
      return 0;
  }
  return 0;
}

constexpr bool is_integer(Type type) {
  return type == Type::u8 || type == Type::i8 || type == Type::u16 || type == Type::i16 || type == Type::u32 ||
         type == Type::i32 || type == Type::u64 || type == Type::i64;
}
constexpr bool is_float(Type type) { return type == Type::f32 || type == Type::f64; }

// Text of a file for a message: in single quotes, bytes that are not printable ASCII as \xNN, cut after `max` bytes.
std::string quote(std::string_view text, size_t max = 80);

class Value {
 public:
  Value() = default;  // u8 0

  Type type() const { return type_; }
  bool is_array() const { return type_ == Type::array; }
  // For messages: "u32", "string", "string[49152]".
  std::string type_name() const;
  // For messages, with the value: "u32 7", "string 'llama'", "f32[64]".
  std::string describe() const;

  // Scalars. Nothing where the type or the range does not fit; a bool is no integer.
  std::optional<uint64_t> as_uint() const;            // any integer type, value >= 0
  std::optional<int64_t> as_int() const;              // any integer type, value < 2^63
  std::optional<double> as_float() const;             // f32, f64 or any integer type
  std::optional<bool> as_bool() const;                // bool
  std::optional<std::string_view> as_string() const;  // string, any bytes: UTF-8 is not checked

  // Arrays. A scalar has size 0. The element type of a scalar is its type.
  uint64_t size() const { return is_array() ? size_ : 0; }
  Type element_type() const { return element_; }
  bool is_array_of(Type element) const { return is_array() && element_ == element; }

  // Element i, O(1). Total functions: 0 or "" where i >= size() or the elements are of another kind, so check the kind
  // once before a loop. int_at reads integers and bools and saturates a u64 at 2^63-1; float_at reads floats and
  // integers.
  int64_t int_at(uint64_t i) const;
  double float_at(uint64_t i) const;
  std::string_view string_at(uint64_t i) const;

  // The value as encoded in the file: a scalar's bytes, a string's length and bytes, an array's elements one after the
  // other. Not aligned.
  std::span<const uint8_t> raw() const { return {data_, n_bytes_}; }

 private:
  friend class Parser;

  template <class T>
  static T load(const uint8_t* p) {
    T value;
    std::memcpy(&value, p, sizeof value);
    return value;
  }
  static std::string_view load_string(const uint8_t* p) {
    return {reinterpret_cast<const char*>(p) + 8, size_t(load<uint64_t>(p))};
  }
  static int64_t load_int(Type type, const uint8_t* p);
  static double load_float(Type type, const uint8_t* p);

  static constexpr uint8_t kZero[8] = {};

  Type type_ = Type::u8, element_ = Type::u8;
  uint64_t size_ = 1;  // elements of an array
  const uint8_t* data_ = kZero;
  uint64_t n_bytes_ = 1;
  const uint32_t* strings_ = nullptr;  // of an array of strings: where in data_ each one's length stands
};

inline int64_t Value::load_int(Type type, const uint8_t* p) {
  switch (type) {
    case Type::u8:
    case Type::boolean:
      return *p;
    case Type::i8:
      return int8_t(*p);
    case Type::u16:
      return load<uint16_t>(p);
    case Type::i16:
      return load<int16_t>(p);
    case Type::u32:
      return load<uint32_t>(p);
    case Type::i32:
      return load<int32_t>(p);
    case Type::i64:
      return load<int64_t>(p);
    case Type::u64: {
      constexpr uint64_t max = std::numeric_limits<int64_t>::max();
      const uint64_t value = load<uint64_t>(p);
      return int64_t(value < max ? value : max);
    }
    default:
      return 0;
  }
}

inline double Value::load_float(Type type, const uint8_t* p) {
  switch (type) {
    case Type::f32:
      return load<float>(p);
    case Type::f64:
      return load<double>(p);
    case Type::u64:
      return double(load<uint64_t>(p));
    case Type::boolean:
      return 0;
    default:
      return double(load_int(type, p));
  }
}

inline int64_t Value::int_at(uint64_t i) const {
  return i < size() ? load_int(element_, data_ + i * fixed_size(element_)) : 0;
}
inline double Value::float_at(uint64_t i) const {
  return i < size() ? load_float(element_, data_ + i * fixed_size(element_)) : 0;
}
inline std::string_view Value::string_at(uint64_t i) const {
  return strings_ && i < size() ? load_string(data_ + strings_[i]) : std::string_view();
}

}  // namespace argent::gguf
