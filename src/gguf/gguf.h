// Reads GGUF files, versions 2 and 3, little endian, memory mapped, split or whole. Knows no model and no backend.
//
// Files are hostile until checked. open() checks everything that the rest of the program relies on, in time and memory
// bounded by kMaxHeaderBytes and the limits below, whatever the bytes are; each error is one line with the file, the
// key or tensor, what was seen and what was wanted. What is accepted, where the specification leaves it open or other
// readers differ:
//   - Keys and tensor names are not empty, not repeated, at most kMaxKeyBytes and kMaxNameBytes long, of any bytes.
//   - A bool is 0 or 1. Arrays of arrays are refused by name. Strings need not be UTF-8.
//   - general.alignment is a u32, a power of two up to kMaxAlignment; 32 if absent.
//   - A tensor has 1 to 4 dimensions, none 0; its first, the row, is a multiple of its format's block.
//   - Tensor data begins on the alignment, ends inside the file, overlaps no other tensor's. Gaps, any order, and bytes
//     behind the last tensor are allowed, except that a second GGUF file there (shards joined with cat) is refused.
//   - A file without tensors (vocabulary only) is allowed, and may end at its header.
//   - Shards are named <prefix>-00001-of-00003.gguf and carry split.no u16, split.count u16, split.tensors.count i32.
//     split.count 0, which llama.cpp's gguf-split leaves in a merged file, means not split. Keys are the first shard's.
// A file that shrinks while it is mapped is beyond these checks.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"
#include "base/result.h"
#include "gguf/name_index.h"
#include "gguf/value.h"
#include "quant/formats.h"

namespace argent::gguf {

inline constexpr uint32_t kDefaultAlignment = 32;
inline constexpr uint32_t kMaxAlignment = 1 << 20;
inline constexpr uint64_t kMaxHeaderBytes = 1 << 30;  // keys and tensor infos; the largest in use are about 30 MB
inline constexpr uint64_t kMaxKeys = 1 << 16;
inline constexpr uint64_t kMaxTensors = 1 << 18;
inline constexpr uint64_t kMaxStrings = 1 << 24;         // elements of all arrays of strings of a file
inline constexpr uint64_t kMaxKeyBytes = (1 << 16) - 1;  // as the specification has it
inline constexpr uint64_t kMaxNameBytes = 1024;          // the specification has 64; some converters write longer ones

struct Entry {
  std::string_view key;
  Value value;
};

struct Tensor {
  std::string_view name;
  std::array<uint64_t, 4> dims{1, 1, 1, 1};  // dims[0] is the length of a row, contiguous; unused ones are 1
  uint32_t n_dims = 0;
  uint32_t gguf_type = 0;
  const FormatInfo* format = nullptr;  // never null in a File
  uint64_t n_elements = 0;
  uint64_t n_bytes = 0;
  uint64_t offset = 0;  // of the data, from the start of the shard's file
  uint32_t shard = 0;
  const uint8_t* data = nullptr;  // n_bytes, on the file's alignment from the start of the mapping
};

// One file on disk.
struct Shard {
  std::string path;
  std::span<const uint8_t> bytes;
  uint32_t version = 0;
  uint32_t alignment = 0;
  uint64_t data_offset = 0;  // where the tensor data begins
};

struct Header;

class File {
 public:
  // Opens a model, given as a whole file or as any of its shards.
  static Result<File> open(const std::string& path);
  // The same checks on bytes that the caller keeps alive; `name` stands in messages. A shard is refused.
  static Result<File> parse(std::span<const uint8_t> bytes, std::string name);

  File(File&&) noexcept = default;
  File& operator=(File&&) noexcept = default;

  const std::string& path() const { return path_; }  // as given to open()
  uint32_t version() const { return shards_.front().version; }
  uint32_t alignment() const { return shards_.front().alignment; }
  std::span<const Shard> shards() const { return shards_; }  // at least one, in order

  // Whether `path` leads to one of the shards, by whatever name. Writing there would destroy the model.
  bool is_shard(const std::string& path) const;

  // Gives up the mapping of the tensors' data, once it lies elsewhere: their `data` is null from then on.
  void drop_tensor_data();

  std::span<const Entry> entries() const { return entries_; }   // in the order of the file
  std::span<const Tensor> tensors() const { return tensors_; }  // in the order of the files' headers
  uint64_t tensor_bytes() const { return tensor_bytes_; }       // of all tensors, without padding
  const Value* find(std::string_view key) const;                // null if absent
  const Tensor* find_tensor(std::string_view name) const;       // null if absent

  // Checked readers for code that needs a key of a kind within a range. require_x: the key must be there. find_x:
  // nothing if it is absent. x_or: the fallback if it is absent. A key that is there must fit in all three. Integers
  // may be stored in any integer type, floats as f32, f64 or integer and must be finite.
  static constexpr uint32_t kAnyU32 = std::numeric_limits<uint32_t>::max();
  static constexpr float kAnyF32 = std::numeric_limits<float>::max();
  Result<uint32_t> require_u32(std::string_view key, uint32_t min = 0, uint32_t max = kAnyU32) const;
  Result<std::optional<uint32_t>> find_u32(std::string_view key, uint32_t min = 0, uint32_t max = kAnyU32) const;
  Result<uint32_t> u32_or(std::string_view key, uint32_t fallback, uint32_t min = 0, uint32_t max = kAnyU32) const;
  Result<float> require_f32(std::string_view key, float min = -kAnyF32, float max = kAnyF32) const;
  Result<std::optional<float>> find_f32(std::string_view key, float min = -kAnyF32, float max = kAnyF32) const;
  Result<float> f32_or(std::string_view key, float fallback, float min = -kAnyF32, float max = kAnyF32) const;
  Result<bool> require_bool(std::string_view key) const;
  Result<std::optional<bool>> find_bool(std::string_view key) const;
  Result<bool> bool_or(std::string_view key, bool fallback) const;
  Result<std::string_view> require_string(std::string_view key) const;
  Result<std::optional<std::string_view>> find_string(std::string_view key) const;
  Result<std::string_view> string_or(std::string_view key, std::string_view fallback) const;

  // Arrays; `size` is the length wanted, kAnySize for any. Integers of any width; floats f32 or f64, finite; bools bool
  // or integers 0 and 1. The strings come as the checked Value itself, to be read with string_at.
  static constexpr uint64_t kAnySize = std::numeric_limits<uint64_t>::max();
  Result<std::vector<int64_t>> require_ints(std::string_view key, uint64_t size, int64_t min, int64_t max) const;
  Result<std::vector<float>> require_floats(std::string_view key, uint64_t size) const;
  Result<std::vector<bool>> require_bools(std::string_view key, uint64_t size) const;
  Result<const Value*> require_strings(std::string_view key, uint64_t size = kAnySize) const;
  // One number a layer: an array of n integers, or one integer that counts for all n.
  Result<std::vector<uint32_t>> require_u32_each(std::string_view key, uint64_t n, uint32_t min = 0,
                                                 uint32_t max = kAnyU32) const;

 private:
  File() = default;
  void add_shard(Header header, std::span<const uint8_t> bytes, const std::string& path);
  Status open_shards(const std::string& path, uint32_t no, uint32_t count);
  Status finish();
  Error wrong(std::string_view key, const Value* seen, std::string_view wanted) const;

  std::string path_;
  std::vector<MappedFile> maps_;
  std::vector<Shard> shards_;
  std::vector<Entry> entries_;
  std::vector<Tensor> tensors_;
  std::vector<std::vector<uint32_t>> strings_;  // what the Values of arrays of strings point to
  NameIndex keys_, names_;
  uint64_t tensor_bytes_ = 0;
};

}  // namespace argent::gguf
