// What leaves the prefix tree and may be wanted again: KV blocks in host memory, and on disk where there is a store.
//
// An item is the block of one layer group for one node, a node a full block of tokens after its parent's, as in the
// prefix tree; nodes have a tree of their own here, so a prefix is found by its tokens and never by a hash alone. Items
// and not whole nodes come and go: a continuation needs the blocks of a full group from the first token on, those of a
// sliding group in the last window only.
//
// Transfers are queued by save() and restore() and done by whoever owns the device, in order, before the next step
// writes blocks; then transferred() is called. Until then the items that take part in them stay. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/huge_pages.h"
#include "base/result.h"
#include "kv/disk_store.h"
#include "kv/id_list.h"
#include "kv/prefix_tree.h"

namespace argent::kv {

// A block to be copied between the device and host memory.
struct Transfer {
  bool save;  // to the host
  uint32_t group;
  int32_t block;
  std::byte* host;
};

struct TierConfig {
  uint32_t block_tokens = 32;
  std::vector<uint64_t> group_bytes = {};  // of a block, by layer group
  uint64_t host_bytes = 0;                 // the most that blocks take in host memory
  uint64_t disk_bytes = 0;                 // the same of files
};

struct TierUsage {
  uint64_t host_bytes = 0, disk_bytes = 0;  // of blocks that can be found; of their files
};

// Totals since the tier was made.
struct TierCounters {
  uint64_t saved = 0, restored = 0;  // blocks
  uint64_t host_tokens = 0;          // restored tokens that lay in host memory
  uint64_t disk_tokens = 0;          // those that had to come from disk
  uint64_t evicted = 0;              // blocks that left host memory for others
  uint64_t written = 0, read = 0;    // blocks, to and from disk
  uint64_t lost = 0;                 // blocks of files that could not be used
};

class Tier {
 public:
  explicit Tier(TierConfig config, std::unique_ptr<DiskStore> disk = nullptr);
  Tier(const Tier&) = delete;
  Tier& operator=(const Tier&) = delete;

  // ---- by the prefix tree ----

  // The node of these block_tokens tokens after its parent (kNone: the first block of texts of that salt), or kNone.
  int32_t find(int32_t parent, uint64_t salt, std::span<const int32_t> tokens) const {
    return index_.find(parent, salt, tokens);
  }
  // The same, added where it is not there; kNone: no room. What is added and gets no item must be pruned.
  int32_t add(int32_t parent, uint64_t salt, std::span<const int32_t> tokens);
  void prune(int32_t node);

  // The node's block of that group is about to leave the device: queues its copy, unless its bytes are here already or
  // there is no room or no memory. `passed`: because a window went on, not because nobody wanted it for long.
  void save(int32_t node, uint32_t group, int32_t block, bool passed);
  bool in_host(int32_t node, uint32_t group) const;
  // Items that will be restored, so that what is saved meanwhile does not take their place.
  void hold(int32_t node, uint32_t group);
  // Queues the copy of an item in host memory to a block. True: it had come from disk for this.
  bool restore(int32_t node, uint32_t group, int32_t block);
  void count_restored(uint64_t tokens, bool from_disk);

  // Nothing of this node may be found again.
  void forget(int32_t node);
  void clear();  // the same of all

  // ---- from disk ----

  bool on_disk(int32_t node, uint32_t group) const;
  // Begins to read an item that is on disk and not in host memory. Returns a number for arrived(); 0: it cannot be.
  uint64_t load(int32_t node, uint32_t group);
  // Reads end in the order of their beginning: everything up to this number has, one way or the other.
  bool arrived(uint64_t read) const { return read <= n_arrived_; }
  uint64_t n_arrived() const { return n_arrived_; }
  // The most bytes of reads that are worth beginning: what comes would only push out what came.
  uint64_t load_limit() const { return config_.host_bytes / 2; }
  uint64_t group_bytes(uint32_t group) const { return config_.group_bytes[group]; }

  // ---- by the engine ----

  std::span<const Transfer> transfers() const { return transfers_; }
  void transferred();
  // Takes in what the disk did meanwhile and begins to write what will have to leave host memory.
  void poll();
  // The same, waiting for the disk for at most that long if it has nothing to tell.
  void wait(std::chrono::milliseconds patience);
  // Writes what is in host memory and not on disk, the latest used first, until the time. True: all is there.
  bool write_all(std::chrono::steady_clock::time_point deadline);
  // Waits until the folder has been looked through, or until then.
  void wait_for_disk(std::chrono::steady_clock::time_point deadline);
  bool has_disk() const { return disk_ != nullptr; }

  TierUsage usage() const { return usage_; }
  const TierCounters& counters() const { return counters_; }
  // Verifies every invariant; O(everything), for tests. internal: what is broken.
  Status check() const;

 private:
  struct Item {
    int32_t node = kNone;  // kNone: not in use
    uint32_t group = 0;
    std::byte* data = nullptr;
    DiskName name = {};       // where it is on disk, or will be
    uint64_t file_bytes = 0;  // that it takes there
    uint64_t epoch = 0;       // of its last transfer
    uint64_t read = 0;        // number of its last read
    bool passed = false;      // in which list of host memory it is
    bool loading = false;     // data is being read
    bool writing = false;     // data is being written
    bool on_disk = false;     // a file is there
    bool from_disk = false;   // and data came from it, for somebody who waits
    bool doomed = false;      // goes as soon as nobody uses data
    bool busy(uint64_t now) const { return loading || writing || epoch == now; }
  };

  int32_t item_of(int32_t node, uint32_t group) const { return index_.block(node, group); }
  int32_t new_item(int32_t node, uint32_t group);
  IdList& host_list(const Item& item) { return host_[item.passed]; }
  void touch(int32_t id);
  std::byte* take_buffer(uint32_t group);
  std::byte* new_buffer(uint32_t group);
  void give_back(uint32_t group);
  bool evict_one();
  void drop_data(Item& item, int32_t id);
  void drop_file(Item& item, int32_t id);
  void drop_if_empty(int32_t id);
  void doom(int32_t id);
  void release_doomed(int32_t id);
  uint64_t n_tokens(const Item& item) const;  // up to its end
  DiskBlock disk_block(const Item& item) const;
  bool write(int32_t id);
  void write_cold();
  void take(DiskDone done);
  void take_scan(std::vector<DiskFile> files);

  const TierConfig config_;
  PrefixTree index_;  // its "blocks" are items
  std::vector<Item> items_;
  std::vector<int32_t> unused_;
  IdList host_[2];  // items with data and neither loading nor doomed, by use; [1]: passed ones, which leave first
  IdList disk_list_;
  uint64_t passed_bytes_ = 0;
  std::vector<HugePages> chunks_;
  std::vector<std::vector<std::byte*>> buffers_;    // free ones, by group
  std::vector<std::vector<std::byte*>> untouched_;  // places in chunks that take no memory yet, by group
  std::vector<uint64_t> n_places_;                  // in all chunks, by group
  uint64_t allocated_ = 0;                          // bytes of all buffers but those
  uint64_t epoch_ = 1;
  std::vector<Transfer> transfers_;
  std::vector<int32_t> fresh_;  // items of this epoch that are doomed
  TierUsage usage_;
  TierCounters counters_;
  uint64_t writing_bytes_ = 0, loading_bytes_ = 0;
  uint64_t n_reads_ = 0, n_arrived_ = 0, n_failed_writes_ = 0;
  bool scanned_ = false, writable_ = false;  // the disk has answered; and takes files
  std::unique_ptr<DiskStore> disk_;          // last: its threads use the buffers
};

}  // namespace argent::kv
