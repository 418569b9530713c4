#include "kv/disk_store.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <new>
#include <optional>
#include <tuple>
#include <utility>

namespace argent::kv {
namespace {

using Clock = std::chrono::steady_clock;

static_assert(std::endian::native == std::endian::little, "files are little endian");

constexpr std::string_view kMagic = "ARGENTKV";
constexpr uint32_t kVersion = 1;
constexpr uint32_t kMaxTokens = 1 << 24;  // of a prefix: 64 MB of a file's head
constexpr std::chrono::seconds kQuiet{10};

// A file: Head, int32 tokens[n_tokens], the block's bytes.
struct Head {
  char magic[8];
  uint32_t version;
  uint32_t group;
  uint8_t model[16];
  uint32_t block_tokens;
  uint32_t n_tokens;
  uint64_t salt;
  uint64_t n_bytes;
  uint64_t sum;       // XXH3 of the bytes
  uint64_t head_sum;  // XXH3 of all before and the tokens
};
static_assert(sizeof(Head) == 72);

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  // What is written is on its way only when the close went well too.
  bool close() { return ::close(std::exchange(fd_, -1)) == 0; }

 private:
  int fd_;
};

std::string errno_text() { return std::strerror(errno); }

// When a file was last written, in ns.
int64_t written_at(const struct stat& st) {
#if defined(__APPLE__)
  const timespec& at = st.st_mtimespec;
#else
  const timespec& at = st.st_mtim;
#endif
  return int64_t(at.tv_sec) * 1'000'000'000 + at.tv_nsec;
}

bool write_fully(int fd, const void* data, uint64_t n) {
  const auto* p = static_cast<const char*>(data);
  while (n > 0) {
    const ssize_t got = ::write(fd, p, std::min<uint64_t>(n, 1 << 30));
    if (got < 0 && errno == EINTR) continue;
    if (got == 0) errno = ENOSPC;
    if (got <= 0) return false;
    p += got, n -= uint64_t(got);
  }
  return true;
}

bool read_fully(int fd, void* data, uint64_t n) {
  auto* p = static_cast<char*>(data);
  while (n > 0) {
    const ssize_t got = ::read(fd, p, std::min<uint64_t>(n, 1 << 30));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    p += got, n -= uint64_t(got);
  }
  return true;
}

uint64_t head_sum(const Head& head, std::span<const int32_t> tokens) {
  return XXH3_64bits_withSeed(tokens.data(), tokens.size_bytes(), XXH3_64bits(&head, offsetof(Head, head_sum)));
}

std::string name_text(DiskName name, uint32_t group) {
  return fmt::format("{:016x}{:016x}-{}.kv", name.high, name.low, group);
}

// The reverse; nothing where it is no name of ours.
std::optional<std::pair<DiskName, uint32_t>> parse_name(const std::string& text) {
  DiskName name;
  unsigned group = 0;
  if (text.size() < 37 || text.size() > 40) return std::nullopt;
  unsigned long long high = 0, low = 0;
  if (std::sscanf(text.c_str(), "%16llx%16llx-%3u.kv", &high, &low, &group) != 3) return std::nullopt;
  name = {high, low};
  if (name_text(name, group) != text) return std::nullopt;
  return std::pair(name, group);
}

// A plain file of exactly that size, or -1. Neither links nor pipes are followed or waited for.
int open_plain(const std::string& path, struct stat& st) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd >= 0 && (::fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))) {
    ::close(fd);
    return -1;
  }
  return fd;
}

}  // namespace

// The salt is no seed: XXH3 gives short texts the same hash under another one when they differ a little as well.
DiskName disk_name(uint64_t salt, std::span<const int32_t> tokens) {
  const XXH128_hash_t h = XXH3_128bits(tokens.data(), tokens.size_bytes());
  const uint64_t salted[] = {h.high64, h.low64, salt};
  const XXH128_hash_t name = XXH3_128bits(salted, sizeof salted);
  return {name.high64, name.low64};
}

uint64_t disk_file_bytes(uint64_t block_bytes, uint64_t n_tokens) {
  return sizeof(Head) + n_tokens * sizeof(int32_t) + block_bytes;
}

DiskStore::DiskStore(DiskConfig config) : config_(std::move(config)) {
  // Signals are for other threads; SIGXFSZ, of a file beyond the process's limit, is an error of write() then.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  writer_ = std::thread([this] { write_loop(); });
  reader_ = std::thread([this] { read_loop(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

DiskStore::~DiskStore() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_.notify_all();
  writer_.join();
  reader_.join();
  if (lock_ >= 0) ::close(lock_);
}

void DiskStore::write(int32_t item, DiskBlock block, const std::byte* data) {
  {
    const std::lock_guard lock(mutex_);
    writes_.push_back({Job::write, item, std::move(block), const_cast<std::byte*>(data)});
  }
  work_.notify_all();
}

void DiskStore::read(int32_t item, DiskBlock block, std::byte* data) {
  {
    const std::lock_guard lock(mutex_);
    reads_.push_back({Job::read, item, std::move(block), data});
  }
  work_.notify_all();
}

void DiskStore::remove(DiskName name, uint32_t group) {
  try {
    const std::lock_guard lock(mutex_);
    writes_.push_back({Job::remove, -1, {name, group, 0, {}}, nullptr});
  } catch (const std::bad_alloc&) {  // the file stays until the folder is looked through again
  }
  work_.notify_all();
}

std::vector<DiskDone> DiskStore::take_done() {
  if (!any_done_) return {};
  const std::lock_guard lock(mutex_);
  any_done_ = false;
  return std::exchange(done_, {});
}

bool DiskStore::wait_done(std::chrono::steady_clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  return finished_.wait_until(lock, deadline, [&] { return !done_.empty(); });
}

void DiskStore::done(DiskDone d) {
  for (;;) {
    try {
      const std::lock_guard lock(mutex_);
      done_.push_back(std::move(d));
      any_done_ = true;
      break;
    } catch (const std::bad_alloc&) {  // somebody waits for it
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  finished_.notify_all();
}

// What `work` says went wrong; running out of memory does not end the thread.
template <class Work>
std::string DiskStore::guarded(const Work& work) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return "out of memory";
  }
}

std::string DiskStore::path_of(DiskName name, uint32_t group) const {
  return config_.folder + "/" + name_text(name, group);
}

// ---- the writer's thread ----

void DiskStore::write_loop() {
  for (;;) {
    if (!usable_ && Clock::now() >= retry_at_) {
      std::vector<DiskFile> files;
      const std::string why = guarded([&] {
        std::string failed = open_folder();
        return failed.empty() ? scan(files) : failed;
      });
      if (why.empty()) {
        usable_ = true;
        done({DiskDone::scanned, -1, true, std::move(files)});
      } else {
        pause(why);
        done({DiskDone::scanned, -1, false, {}});
      }
    }
    Job job;
    {
      std::unique_lock lock(mutex_);
      const auto ready = [&] { return stopping_ || !writes_.empty(); };
      if (usable_)
        work_.wait(lock, ready);
      else
        work_.wait_until(lock, retry_at_, ready);
      if (stopping_) return;
      if (writes_.empty()) continue;
      job = std::move(writes_.front());
      writes_.pop_front();
    }
    if (job.kind == Job::remove) {
      guarded([&] {
        if (usable_) ::unlink(path_of(job.block.name, job.block.group).c_str());
        return std::string();
      });
      continue;
    }
    const std::string why = usable_ ? guarded([&] { return write_file(job); }) : "paused";
    if (usable_ && !why.empty()) pause(why);
    if (why.empty() && std::exchange(failed_before_, false) && config_.log)
      guarded([&] {
        config_.log(fmt::format("KV disk tier: {} is written again", config_.folder));
        return std::string();
      });
    done({DiskDone::written, job.item, why.empty(), {}});
  }
}

void DiskStore::pause(const std::string& why) {
  usable_ = false;
  retry_at_ = Clock::now() + config_.retry;
  if (std::exchange(failed_before_, true) || !config_.log) return;
  guarded([&] {
    config_.log(fmt::format("KV disk tier: {}; nothing is written to disk, next try in {} s", why,
                            std::max<int64_t>(1, config_.retry.count() / 1000)));
    return std::string();
  });
}

// Makes and locks the folder. What went wrong, or "".
std::string DiskStore::open_folder() {
  std::error_code error;
  std::filesystem::create_directories(config_.folder, error);
  if (error) return fmt::format("cannot make {}: {}", config_.folder, error.message());
  ::chmod(config_.folder.c_str(), 0700);  // what others asked can be read from it
  if (lock_ >= 0) ::close(std::exchange(lock_, -1));
  const std::string path = config_.folder + "/lock";
  lock_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
  if (lock_ < 0) return fmt::format("cannot open {}: {}", path, errno_text());
  if (::flock(lock_, LOCK_EX | LOCK_NB) == 0) return "";
  const bool taken = errno == EWOULDBLOCK;
  const std::string why = taken ? fmt::format("{} is in use by another process", config_.folder)
                                : fmt::format("cannot lock {}: {}", path, errno_text());
  ::close(std::exchange(lock_, -1));
  return why;
}

// Leaves what is there in `files`, the newest that fit, by length. Removes files of ours that are no use.
std::string DiskStore::scan(std::vector<DiskFile>& files) {
  DIR* dir = ::opendir(config_.folder.c_str());
  if (!dir) return fmt::format("cannot read {}: {}", config_.folder, errno_text());
  std::vector<std::pair<int64_t, std::string>> names;
  uint64_t n_foreign = 0;
  while (const dirent* entry = ::readdir(dir)) {
    const std::string name = entry->d_name;
    if (name == "." || name == ".." || name == "lock") continue;
    struct stat st = {};
    if (name.starts_with(".tmp-"))
      ::unlinkat(::dirfd(dir), name.c_str(), 0);
    else if (parse_name(name) && ::fstatat(::dirfd(dir), name.c_str(), &st, AT_SYMLINK_NOFOLLOW) == 0)
      names.emplace_back(written_at(st), name);
    else
      ++n_foreign;
  }
  ::closedir(dir);
  std::sort(names.rbegin(), names.rend());
  uint64_t bytes = 0, n_broken = 0;
  std::string first;
  for (const auto& [used, name] : names) {
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return "the program ends";
    }
    DiskFile file;
    file.used = used;
    const std::string why = check_file(name, file);
    if (!why.empty() && n_broken++ == 0) first = fmt::format("{} {}", name, why);
    const uint64_t size = why.empty() ? disk_file_bytes(config_.group_bytes[file.group], file.n_tokens) : 0;
    if (why.empty() && bytes + size <= config_.max_bytes) {
      bytes += size;
      files.push_back(std::move(file));
    } else {
      ::unlink((config_.folder + "/" + name).c_str());
    }
  }
  std::stable_sort(files.begin(), files.end(),
                   [](const DiskFile& a, const DiskFile& b) { return a.n_tokens < b.n_tokens; });
  if (n_broken && config_.log)
    config_.log(fmt::format("KV disk tier: {} file{} of {} cannot be used: {}", n_broken, n_broken == 1 ? "" : "s",
                            config_.folder, first));
  if (n_foreign && config_.log)
    config_.log(fmt::format("KV disk tier: {} has {} file{} of somebody else, left alone", config_.folder, n_foreign,
                            n_foreign == 1 ? "" : "s"));
  return "";
}

// What makes it no use, or "" and what it is. The block's own bytes are looked at when they are read.
std::string DiskStore::check_file(const std::string& name, DiskFile& file) const {
  std::tie(file.name, file.group) = *parse_name(name);
  if (file.group >= config_.group_bytes.size()) return "is of a layer group that the model does not have";
  struct stat st = {};
  const Descriptor fd(open_plain(config_.folder + "/" + name, st));
  if (fd.get() < 0) return "is no plain file that can be read";
  Head head;
  if (uint64_t(st.st_size) < sizeof head || !read_fully(fd.get(), &head, sizeof head)) return "is cut";
  if (std::string_view(head.magic, 8) != kMagic || head.version != kVersion) return "is of another kind or version";
  if (std::memcmp(head.model, config_.model.data(), 16) != 0) return "is of another model";
  const uint64_t n_bytes = config_.group_bytes[file.group];
  if (head.group != file.group || head.block_tokens != config_.block_tokens || head.n_bytes != n_bytes)
    return "has blocks of another size";
  if (head.n_tokens == 0 || head.n_tokens > kMaxTokens || head.n_tokens % config_.block_tokens)
    return fmt::format("says {} tokens, wants whole blocks of {}", head.n_tokens, config_.block_tokens);
  if (const uint64_t wanted = disk_file_bytes(n_bytes, head.n_tokens); uint64_t(st.st_size) != wanted)
    return fmt::format("has {} bytes, wants {}", st.st_size, wanted);
  std::vector<int32_t> tokens(head.n_tokens);
  if (!read_fully(fd.get(), tokens.data(), tokens.size() * 4)) return "is cut";
  if (head.head_sum != head_sum(head, tokens)) return "has a wrong checksum";
  if (file.name != disk_name(head.salt, tokens)) return "has another file's name";
  const size_t before = tokens.size() - config_.block_tokens;
  file.salt = head.salt;
  file.n_tokens = head.n_tokens;
  if (before) file.parent = disk_name(head.salt, std::span(tokens).first(before));
  file.tokens.assign(tokens.begin() + ptrdiff_t(before), tokens.end());
  return "";
}

std::string DiskStore::write_file(const Job& job) {
  const DiskBlock& block = job.block;
  const uint64_t n_bytes = config_.group_bytes[block.group];
  Head head = {};
  std::memcpy(head.magic, kMagic.data(), 8);
  head.version = kVersion;
  head.group = block.group;
  std::memcpy(head.model, config_.model.data(), 16);
  head.block_tokens = config_.block_tokens;
  head.n_tokens = uint32_t(block.tokens.size());
  head.salt = block.salt;
  head.n_bytes = n_bytes;
  head.sum = XXH3_64bits(job.data, n_bytes);
  head.head_sum = head_sum(head, block.tokens);

  const std::string path = path_of(block.name, block.group);
  const std::string beside = fmt::format("{}/.tmp-{}", config_.folder, ::getpid());
  Descriptor fd(::open(beside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (fd.get() < 0) return fmt::format("cannot make a file in {}: {}", config_.folder, errno_text());
  if (write_fully(fd.get(), &head, sizeof head) &&
      write_fully(fd.get(), block.tokens.data(), block.tokens.size() * 4) && write_fully(fd.get(), job.data, n_bytes) &&
      fd.close() && ::rename(beside.c_str(), path.c_str()) == 0)
    return "";
  const std::string why = errno_text();
  ::unlink(beside.c_str());
  return fmt::format("cannot write to {}: {}", config_.folder, why);
}

// ---- the reader's thread ----

void DiskStore::read_loop() {
  for (;;) {
    Job job;
    {
      std::unique_lock lock(mutex_);
      work_.wait(lock, [&] { return stopping_ || !reads_.empty(); });
      if (stopping_) return;
      job = std::move(reads_.front());
      reads_.pop_front();
    }
    std::string why = guarded([&] { return read_file(job); });
    const bool ok = why.empty();
    done({DiskDone::read, job.item, ok, {}, std::move(why)});
  }
}

// Everything that the file says of itself is compared with what it has to say, its size first.
std::string DiskStore::read_file(const Job& job) const {
  const DiskBlock& block = job.block;
  const uint64_t n_bytes = config_.group_bytes[block.group];
  struct stat st = {};
  const Descriptor fd(open_plain(path_of(block.name, block.group), st));
  if (fd.get() < 0) return "is no plain file that can be read";
  const uint64_t wanted = disk_file_bytes(n_bytes, block.tokens.size());
  if (uint64_t(st.st_size) != wanted) return fmt::format("has {} bytes, wants {}", st.st_size, wanted);
  Head head;
  std::vector<int32_t> tokens(block.tokens.size());
  if (!read_fully(fd.get(), &head, sizeof head) || !read_fully(fd.get(), tokens.data(), tokens.size() * 4) ||
      !read_fully(fd.get(), job.data, n_bytes))
    return "cannot be read";
  if (std::string_view(head.magic, 8) != kMagic || head.version != kVersion || head.group != block.group ||
      std::memcmp(head.model, config_.model.data(), 16) != 0 || head.block_tokens != config_.block_tokens ||
      head.n_tokens != tokens.size() || head.salt != block.salt || head.n_bytes != n_bytes || tokens != block.tokens)
    return "is of other tokens or another model";
  if (head.head_sum != head_sum(head, tokens) || head.sum != XXH3_64bits(job.data, n_bytes))
    return "has a wrong checksum";
  ::futimens(fd.get(), nullptr);  // used now
  return "";
}

void DiskStore::complain(DiskName name, uint32_t group, const std::string& why) {
  const auto now = Clock::now();
  if (complained_ != Clock::time_point{} && now - complained_ < kQuiet) {
    ++silent_;
    return;
  }
  guarded([&] {
    const std::string before = silent_ ? fmt::format(" ({} more like this before)", silent_) : "";
    if (config_.log)
      config_.log(fmt::format("KV disk tier: {} {}, its tokens are computed{}", path_of(name, group), why, before));
    return std::string();
  });
  complained_ = now;
  silent_ = 0;
}

}  // namespace argent::kv
