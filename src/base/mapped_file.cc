#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace argent {

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
  ::munmap(const_cast<uint8_t*>(data_) + kept, size_ - kept);
  size_ = kept;
}

void read_ahead(const uint8_t* data, size_t size) {
  const uintptr_t page = uintptr_t(::sysconf(_SC_PAGESIZE)), begin = reinterpret_cast<uintptr_t>(data) / page * page;
  // Asking costs 2 ms for 128 MiB that are in memory already (a tenth of the time to read them), so some pages are
  // looked at first.
  constexpr uintptr_t kSamples = 32;
  unsigned char in_memory = 1;
  for (uintptr_t i = 0; i < kSamples && in_memory & 1; ++i)
    if (::mincore(reinterpret_cast<void*>((begin + size / kSamples * i) / page * page), 1, &in_memory) != 0) break;
  if (in_memory & 1) return;
  ::madvise(reinterpret_cast<void*>(begin), reinterpret_cast<uintptr_t>(data) + size - begin, MADV_WILLNEED);
}

MappedFile::~MappedFile() {
  if (mapped_) ::munmap(const_cast<uint8_t*>(data_), size_);
}

}  // namespace argent
