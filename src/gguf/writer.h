// Writes GGUF version 3, little endian. What it writes, gguf.h accepts.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/result.h"
#include "gguf/gguf.h"
#include "gguf/output_file.h"

namespace argent::gguf {

// Called as tensor data is written, with bytes done and bytes in total; false stops with Code::cancelled.
using Progress = std::function<bool(uint64_t done, uint64_t total)>;

// The GGUF type that stores T; Type::array for what is no scalar.
template <class T>
constexpr Type type_of() {
  if constexpr (std::is_same_v<T, bool>) return Type::boolean;
  if constexpr (std::is_same_v<T, uint8_t>) return Type::u8;
  if constexpr (std::is_same_v<T, int8_t>) return Type::i8;
  if constexpr (std::is_same_v<T, uint16_t>) return Type::u16;
  if constexpr (std::is_same_v<T, int16_t>) return Type::i16;
  if constexpr (std::is_same_v<T, uint32_t>) return Type::u32;
  if constexpr (std::is_same_v<T, int32_t>) return Type::i32;
  if constexpr (std::is_same_v<T, uint64_t>) return Type::u64;
  if constexpr (std::is_same_v<T, int64_t>) return Type::i64;
  if constexpr (std::is_same_v<T, float>) return Type::f32;
  if constexpr (std::is_same_v<T, double>) return Type::f64;
  return Type::array;
}
template <class T>
concept Scalar = type_of<T>()
!= Type::array;

class Writer {
 public:
  // Keys, in the order of their first set(); a later one of the same name replaces the value. "general.alignment" is
  // also what the file is laid out with.
  template <Scalar T>
  void set(std::string_view key, T value) {
    encode(key, type_of<T>(), {}, &value, sizeof value);
  }
  void set(std::string_view key, std::string_view value);
  void set(std::string_view key, const Value& value);  // copied, of the same type
  template <Scalar T>
  void set_array(std::string_view key, std::span<const T> values) {
    encode(key, Type::array, ArrayHead{type_of<T>(), values.size()}, values.data(), values.size_bytes());
  }
  void set_strings(std::string_view key, std::span<const std::string_view> values);
  void erase(std::string_view key);

  // Tensors, in order. The data is borrowed until the file is written; dims[0] is the length of a row.
  void add_tensor(const Tensor& tensor);
  void add_tensor(std::string_view name, std::span<const uint64_t> dims, uint32_t gguf_type,
                  std::span<const uint8_t> data);

  // Writes the file; until it is whole, `path` is as it was. Error invalid if what was set does not make a valid file,
  // io (as for a full disk) with the system's words.
  Status write(const std::string& path, const Progress& progress = {}) const;
  // The same into an output file that the caller renames.
  Status write_to(OutputFile& file, const Progress& progress = {}) const;
  Result<std::vector<uint8_t>> to_bytes() const;

 private:
  struct ArrayHead {
    Type element;
    uint64_t size;
  };
  struct Key {
    std::string name;
    uint64_t n_strings = 0;        // elements of an array of strings
    std::vector<uint8_t> encoded;  // type and value as they stand in the file
  };
  struct Piece {
    std::string name;
    Tensor tensor;         // its name is not used: `name` may move
    uint64_t n_given = 0;  // bytes of data
  };
  using Sink = std::function<Status(std::span<const uint8_t>)>;

  Key& slot(std::string_view key);
  void encode(std::string_view key, Type type, std::optional<ArrayHead> head, const void* data, size_t size);
  Result<uint32_t> alignment(const std::string& path) const;
  Status check_keys(const std::string& path) const;
  Status check_tensors(const std::string& path, std::vector<Tensor>& resolved) const;
  Status emit(const std::string& path, const Sink& sink, const Progress& progress) const;

  std::vector<Key> keys_;
  std::vector<Piece> tensors_;
};

}  // namespace argent::gguf
