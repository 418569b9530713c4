// A read-only view of the bytes of a regular file, memory mapped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/result.h"

namespace argent {

class MappedFile {
 public:
  // Error not_found or io, with the path and the system's words. An empty file maps to an empty span.
  static Result<MappedFile> open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept { *this = std::move(other); }
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const uint8_t> bytes() const { return {data_, size_}; }

  // Gives up all whole pages behind byte `from`: bytes() ends there, and no FileReader reads from this file any more.
  void drop_from(size_t from);

 private:
  MappedFile() = default;
  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
  bool mapped_ = false;
};

// Copies bytes of a MappedFile by reading the file: the first touch of a mapping's page costs more than to copy its
// bytes, even where they are in memory. Bytes that are in no MappedFile are copied from where they lie.
class FileReader {
 public:
  // For bytes of the mapping that holds `data`, which outlives the reader.
  explicit FileReader(const uint8_t* data);

  // Copies [data, data + size) to `to`. Error io: the file has become shorter, or cannot be read. Any thread may call.
  Status read(const uint8_t* data, size_t size, uint8_t* to) const;

 private:
  int fd_ = -1;                     // not owned
  const uint8_t* start_ = nullptr;  // of the mapping
  std::string path_;
};

// The system may begin to read these bytes of a mapping. A refusal only costs time.
void read_ahead(const uint8_t* data, size_t size);

}  // namespace argent
