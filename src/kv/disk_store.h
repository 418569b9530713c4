// Files of KV blocks in one folder, read and written by threads of their own. Knows no index: what is asked for is
// compared with what the file says of itself.
//
// A file holds one block of one layer group: a head with everything that the block's bytes depend on (the model's hash,
// all tokens up to the block's end), checksums, the bytes. A folder is hostile until checked: sizes are compared with
// what they must be before anything is allocated, links and what is no plain file are not followed, a file that is cut,
// changed or somebody else's is passed over. Files are written beside and renamed. One process at a time uses a folder
// (a lock); a second one waits for its turn and runs without a disk tier until then.
//
// When writing fails (disk full, no permission, the folder is gone), one line is logged, nothing is written for a
// while, and then it is tried again from the start. Nobody waits for any of this.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <chrono>
#include <compare>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace argent::kv {

struct DiskConfig {
  std::string folder;  // made where it is not there, its parents too
  std::array<uint8_t, 16> model = {};
  uint32_t block_tokens = 32;
  std::vector<uint64_t> group_bytes = {};
  uint64_t max_bytes = 0;  // older files beyond it are removed when the folder is looked through
  std::chrono::milliseconds retry{30'000};
  std::function<void(const std::string&)> log = {};  // from any thread
};

// What a file is called by: a hash of salt and tokens, which is only a name.
struct DiskName {
  uint64_t high = 0, low = 0;
  auto operator<=>(const DiskName&) const = default;
};
DiskName disk_name(uint64_t salt, std::span<const int32_t> tokens);
// The size of a file whose block of so many bytes ends behind n_tokens.
uint64_t disk_file_bytes(uint64_t block_bytes, uint64_t n_tokens);

struct DiskBlock {
  DiskName name;
  uint32_t group = 0;
  uint64_t salt = 0;
  std::vector<int32_t> tokens;  // all up to the block's end
};

// A file that was found in the folder.
struct DiskFile {
  DiskName name, parent;  // the latter: of the block before; none for a first one
  uint32_t group = 0, n_tokens = 0;
  uint64_t salt = 0;
  std::vector<int32_t> tokens;  // of this block alone
  int64_t used = 0;             // nanoseconds, a clock's
};

// What the threads have to tell. `scanned` comes first, and again after each time that writing failed: all that is
// there then, by n_tokens; not ok: the folder cannot be used now.
struct DiskDone {
  enum Kind { scanned, written, read } kind;
  int32_t item = -1;
  bool ok = false;
  std::vector<DiskFile> files = {};
  std::string why = {};  // of a read: what kept it from being used
};

class DiskStore {
 public:
  explicit DiskStore(DiskConfig config);
  // Ends after the files that are being read and written now.
  ~DiskStore();
  DiskStore(const DiskStore&) = delete;
  DiskStore& operator=(const DiskStore&) = delete;

  // Each is answered by a DiskDone with the item's number; `data` stays as it is until then.
  void write(int32_t item, DiskBlock block, const std::byte* data);
  void read(int32_t item, DiskBlock block, std::byte* data);
  void remove(DiskName name, uint32_t group);

  // Tells the log of a file that was wanted and could not be used; not more often than every ten seconds.
  void complain(DiskName name, uint32_t group, const std::string& why);

  // What has been done since the last call, in order of each kind.
  std::vector<DiskDone> take_done();
  // Waits until take_done() has something, or until then. False: it has nothing.
  bool wait_done(std::chrono::steady_clock::time_point deadline);

 private:
  struct Job {
    enum Kind { write, read, remove } kind;
    int32_t item;
    DiskBlock block;
    std::byte* data;
  };

  void write_loop();
  void read_loop();
  void done(DiskDone d);
  template <class Work>
  static std::string guarded(const Work& work);
  void pause(const std::string& why);
  std::string open_folder();
  std::string scan(std::vector<DiskFile>& files);
  std::string check_file(const std::string& name, DiskFile& file) const;
  std::string write_file(const Job& job);
  std::string read_file(const Job& job) const;
  std::string path_of(DiskName name, uint32_t group) const;

  const DiskConfig config_;
  std::mutex mutex_;
  std::condition_variable work_, finished_;
  std::deque<Job> writes_, reads_;
  std::vector<DiskDone> done_;
  std::atomic<bool> any_done_ = false;
  bool stopping_ = false;
  bool usable_ = false;                                 // of the writer's thread: the folder is open
  bool failed_before_ = false;                          // of the writer's thread
  int lock_ = -1;                                       // of the writer's thread
  std::chrono::steady_clock::time_point retry_at_{};    // of the writer's thread
  std::chrono::steady_clock::time_point complained_{};  // of the caller's thread
  uint64_t silent_ = 0;                                 // complaints since then
  std::thread writer_, reader_;
};

}  // namespace argent::kv
