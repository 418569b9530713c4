#include "gguf/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>

namespace argent::gguf {

namespace {
constexpr size_t kBufferBytes = 1 << 20;
}

Error OutputFile::system_error(std::string_view what) const {
  return fail(Code::io, "{}: cannot {}: {}", path_, what, std::strerror(errno));
}

Result<OutputFile> OutputFile::create(const std::string& path) {
  struct stat st {};
  if (::stat(path.c_str(), &st) == 0 && !S_ISREG(st.st_mode))
    return fail(Code::invalid, "{}: exists and is not a regular file", path);

  static std::atomic<uint32_t> counter{0};
  OutputFile file;
  file.path_ = path;
  do {
    file.temporary_ = fmt::format("{}.{}-{}.part", path, ::getpid(), counter++);
    file.fd_ = ::open(file.temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  } while (file.fd_ < 0 && errno == EEXIST);
  if (file.fd_ < 0) {
    file.temporary_.clear();
    return file.system_error("create it");
  }
  return file;
}

OutputFile& OutputFile::operator=(OutputFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(temporary_, other.temporary_);
  std::swap(fd_, other.fd_);
  std::swap(written_, other.written_);
  std::swap(buffer_, other.buffer_);
  return *this;
}

OutputFile::~OutputFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

Status OutputFile::write(std::span<const uint8_t> bytes) {
  if (buffer_.size() + bytes.size() > kBufferBytes) ARGENT_TRY(flush());
  if (bytes.size() >= kBufferBytes) return write_through(bytes);
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  return {};
}

Status OutputFile::flush() {
  ARGENT_TRY(write_through(buffer_));
  buffer_.clear();
  return {};
}

Status OutputFile::write_through(std::span<const uint8_t> bytes) {
  constexpr size_t kMaxWrite = 1 << 30;  // macOS refuses writes of 2 GiB
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd_, bytes.data(), std::min(bytes.size(), kMaxWrite));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return system_error(fmt::format("write at byte {}", written_));
    written_ += uint64_t(n);
    bytes = bytes.subspan(size_t(n));
  }
  return {};
}

Status OutputFile::close() {
  ARGENT_TRY(flush());
  if (::fsync(fd_) != 0) return system_error("write it to the disk");
  const int fd = std::exchange(fd_, -1);
  if (::close(fd) != 0) return system_error("close it");
  buffer_ = {};
  return {};
}

Status OutputFile::rename() {
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) return system_error("rename the finished file to it");
  temporary_.clear();
  return {};
}

}  // namespace argent::gguf
