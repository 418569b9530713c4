// Builds the bytes of GGUF files field by field, valid or not, independently of the writer under test.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gguf/gguf.h"

namespace argent::gguf {

class Bytes {
 public:
  template <class T>
  Bytes& put(T value) {
    const size_t at = bytes_.size();
    bytes_.resize(at + sizeof value);
    std::memcpy(bytes_.data() + at, &value, sizeof value);
    return *this;
  }
  Bytes& text(std::string_view s) {
    bytes_.insert(bytes_.end(), s.begin(), s.end());
    return *this;
  }
  Bytes& string(std::string_view s) { return put(uint64_t{s.size()}).text(s); }
  Bytes& type(Type t) { return put(uint32_t(t)); }
  Bytes& array(Type element, uint64_t n) { return type(Type::array).type(element).put(n); }
  Bytes& append(const Bytes& other) { return text({reinterpret_cast<const char*>(other.bytes_.data()), other.size()}); }
  Bytes& pad(size_t align, uint8_t fill = 0) {
    while (bytes_.size() % align) bytes_.push_back(fill);
    return *this;
  }
  Bytes& fill(size_t n, uint8_t value) {
    bytes_.insert(bytes_.end(), n, value);
    return *this;
  }
  size_t size() const { return bytes_.size(); }
  std::span<const uint8_t> span() const { return bytes_; }
  std::vector<uint8_t>& vector() { return bytes_; }

 private:
  std::vector<uint8_t> bytes_;
};

inline Bytes u32_value(uint32_t v) { return Bytes().type(Type::u32).put(v); }
inline Bytes u16_value(uint16_t v) { return Bytes().type(Type::u16).put(v); }
inline Bytes i32_value(int32_t v) { return Bytes().type(Type::i32).put(v); }
inline Bytes string_value(std::string_view s) { return Bytes().type(Type::string).string(s); }

struct RawTensor {
  std::string name;
  std::vector<uint64_t> dims;
  uint32_t type = 0;  // F32
  uint64_t offset = 0;
  std::optional<uint32_t> n_dims;  // what the file says, if not dims.size()
};

struct RawFile {
  uint32_t version = 3;
  std::vector<std::pair<std::string, Bytes>> keys;
  std::vector<RawTensor> tensors;
  size_t data_bytes = 0;
  size_t align = 32;
  std::optional<uint64_t> n_keys, n_tensors;  // what the file says, if not the sizes

  Bytes header() const {
    Bytes b;
    b.text("GGUF").put(version).put(n_tensors.value_or(tensors.size())).put(n_keys.value_or(keys.size()));
    for (const auto& [key, value] : keys) b.string(key).append(value);
    for (const RawTensor& t : tensors) {
      b.string(t.name).put(t.n_dims.value_or(uint32_t(t.dims.size())));
      for (const uint64_t d : t.dims) b.put(d);
      b.put(t.type).put(t.offset);
    }
    return b;
  }
  Bytes build() const {
    Bytes b = header();
    if (tensors.empty() && data_bytes == 0) return b;
    b.pad(align);
    for (size_t i = 0; i < data_bytes; ++i) b.put(uint8_t(i * 7 + 1));
    return b;
  }
};

// Two tensors and a key of every kind; valid.
inline RawFile small_file() {
  RawFile f;
  f.keys = {{"general.architecture", string_value("llama")},
            {"a.u32", u32_value(7)},
            {"a.bool", Bytes().type(Type::boolean).put(uint8_t{1})},
            {"a.strings", Bytes().array(Type::string, 3).string("x").string("").string("yz")},
            {"a.floats", Bytes().array(Type::f32, 2).put(1.5f).put(-2.f)}};
  f.tensors = {{"w", {32, 2}, 8, 0, {}}, {"b", {5}, 0, 96, {}}};  // Q8_0: 2 rows of 34 bytes; F32: 20 bytes
  f.data_bytes = 96 + 20;
  return f;
}

// A copy of bytes that ends at a page that must not be touched: reading past the end is fatal also without sanitizers.
class Guarded {
 public:
  explicit Guarded(std::span<const uint8_t> bytes) : size_(bytes.size()) {
    const size_t page = size_t(::sysconf(_SC_PAGESIZE));
    room_ = (size_ + page - 1) / page * page;
    base_ = static_cast<uint8_t*>(
        ::mmap(nullptr, room_ + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    ::mprotect(base_ + room_, page, PROT_NONE);
    total_ = room_ + page;
    if (size_) std::memcpy(base_ + room_ - size_, bytes.data(), size_);
  }
  Guarded(const Guarded&) = delete;
  ~Guarded() { ::munmap(base_, total_); }
  std::span<uint8_t> span() { return {base_ + room_ - size_, size_}; }

 private:
  size_t size_, room_ = 0, total_ = 0;
  uint8_t* base_ = nullptr;
};

// A folder that goes with the test.
class TempDir {
 public:
  TempDir() {
    std::string name = (std::filesystem::temp_directory_path() / "argent-gguf-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~TempDir() { std::filesystem::remove_all(path_); }
  std::string operator/(std::string_view name) const { return (path_ / name).string(); }
  size_t n_files() const {
    return size_t(std::distance(std::filesystem::directory_iterator(path_), std::filesystem::directory_iterator()));
  }

 private:
  std::filesystem::path path_;
};

inline void write_file(const std::string& path, std::span<const uint8_t> bytes) {
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), std::streamsize(bytes.size()));
}
inline std::vector<uint8_t> read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace argent::gguf
