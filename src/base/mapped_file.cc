#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>

namespace argent {
namespace {

// All mappings by where they begin, with their files: bytes of a model are handed on as pointers.
struct OpenFile {
  size_t size;
  int fd;
  std::string path;
};
std::mutex open_files_mutex;
std::map<const uint8_t*, OpenFile, std::less<>>& open_files() {
  static auto& files = *new std::map<const uint8_t*, OpenFile, std::less<>>;  // used until the last MappedFile is gone
  return files;
}

void forget(const uint8_t* data) {
  const std::lock_guard lock(open_files_mutex);
  if (const auto file = open_files().find(data); file != open_files().end()) {
    ::close(file->second.fd);
    open_files().erase(file);
  }
}

}  // namespace

Result<MappedFile> MappedFile::open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    const Code code = errno == ENOENT ? Code::not_found : Code::io;
    return fail(code, "{}: cannot open: {}", path, std::strerror(errno));
  }
  struct stat st {};
  MappedFile file;
  if (::fstat(fd, &st) != 0) {
    const int error = errno;
    ::close(fd);
    return fail(Code::io, "{}: cannot stat: {}", path, std::strerror(error));
  }
  if (!S_ISREG(st.st_mode)) {
    ::close(fd);
    return fail(Code::invalid, "{}: not a regular file{}", path, S_ISDIR(st.st_mode) ? " (it is a folder)" : "");
  }
  file.size_ = size_t(st.st_size);
  if (file.size_ > 0) {
    void* p = ::mmap(nullptr, file.size_, PROT_READ, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) {
      const int error = errno;
      ::close(fd);
      return fail(Code::io, "{}: cannot map {} bytes: {}", path, file.size_, std::strerror(error));
    }
    file.data_ = static_cast<const uint8_t*>(p);
    file.mapped_ = true;
    const std::lock_guard lock(open_files_mutex);
    open_files()[file.data_] = {file.size_, fd, path};
    return file;
  }
  ::close(fd);
  return file;
}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(mapped_, other.mapped_);
  return *this;
}

void MappedFile::drop_from(size_t from) {
  if (!mapped_ || from >= size_) return;
  const size_t page = size_t(::sysconf(_SC_PAGESIZE)), kept = (from + page - 1) / page * page;
  if (kept == 0 || kept >= size_) return;
  forget(data_);
  ::munmap(const_cast<uint8_t*>(data_) + kept, size_ - kept);
  size_ = kept;
}

FileReader::FileReader(const uint8_t* data) {
  const std::lock_guard lock(open_files_mutex);
  auto file = open_files().upper_bound(data);
  if (file == open_files().begin()) return;
  --file;
  if (size_t(data - file->first) >= file->second.size) return;
  start_ = file->first;
  fd_ = file->second.fd;
  path_ = file->second.path;
}

Status FileReader::read(const uint8_t* data, size_t size, uint8_t* to) const {
  if (fd_ < 0) {
    std::memcpy(to, data, size);
    return {};
  }
  while (size > 0) {
    const ssize_t n = ::pread(fd_, to, size, off_t(data - start_));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail(Code::io, "{}: cannot read: {}", path_, std::strerror(errno));
    if (n == 0) return fail(Code::io, "{}: was cut short while it was read", path_);
    data += n, to += n, size -= size_t(n);
  }
  return {};
}

void read_ahead(const uint8_t* data, size_t size) {
  const uintptr_t page = uintptr_t(::sysconf(_SC_PAGESIZE)), begin = reinterpret_cast<uintptr_t>(data) / page * page;
  // Asking costs 2 ms for 128 MiB that are in memory already (a tenth of the time to read them), so some pages are
  // looked at first.
  constexpr uintptr_t kSamples = 32;
#ifdef __APPLE__
  char in_memory = 1;  // as its mincore has it
#else
  unsigned char in_memory = 1;
#endif
  for (uintptr_t i = 0; i < kSamples && in_memory & 1; ++i)
    if (::mincore(reinterpret_cast<void*>((begin + size / kSamples * i) / page * page), 1, &in_memory) != 0) break;
  if (in_memory & 1) return;
  // Linux reads no more for one call than the disk's read-ahead or its longest request (of 48 MiB asked for at once
  // came 8), so the range is asked for in pieces of what read-ahead is by default.
  constexpr uintptr_t kPiece = 128 << 10;
  const uintptr_t end = reinterpret_cast<uintptr_t>(data) + size;
  for (uintptr_t at = begin; at < end; at += kPiece)
    ::madvise(reinterpret_cast<void*>(at), std::min(kPiece, end - at), MADV_WILLNEED);
}

MappedFile::~MappedFile() {
  if (!mapped_) return;
  forget(data_);
  ::munmap(const_cast<uint8_t*>(data_), size_);
}

}  // namespace argent
