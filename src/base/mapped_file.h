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

  // Gives up all whole pages behind byte `from`: bytes() ends there.
  void drop_from(size_t from);

 private:
  MappedFile() = default;
  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
  bool mapped_ = false;
};

// The system may begin to read these bytes of a mapping. A refusal only costs time.
void read_ahead(const uint8_t* data, size_t size);

}  // namespace argent
