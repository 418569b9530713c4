// A file that is written under a temporary name in its folder and appears whole, or not at all.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace argent::gguf {

class OutputFile {
 public:
  // Error invalid if `path` exists and is not a regular file, io with the system's words. Nothing is at `path` yet.
  static Result<OutputFile> create(const std::string& path);

  OutputFile(OutputFile&& other) noexcept { *this = std::move(other); }
  OutputFile& operator=(OutputFile&& other) noexcept;
  ~OutputFile();  // removes the temporary file unless it was renamed

  Status write(std::span<const uint8_t> bytes);  // buffered
  Status close();                                // everything is on the disk after this
  Status rename();                               // after close(): replaces what was at `path`

  const std::string& path() const { return path_; }

 private:
  OutputFile() = default;
  Status flush();
  Status write_through(std::span<const uint8_t> bytes);
  Error system_error(std::string_view what) const;

  std::string path_, temporary_;
  int fd_ = -1;
  uint64_t written_ = 0;
  std::vector<uint8_t> buffer_;
};

}  // namespace argent::gguf
