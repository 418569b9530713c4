// What a backend does with block numbers, on memory that remembers what was written.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "kv/kv.h"

namespace argent::kv {

using Tokens = std::vector<int32_t>;

inline uint64_t next_value(uint64_t previous, int32_t token) {
  uint64_t h = (previous ^ static_cast<uint32_t>(token)) * 0x9e3779b97f4a7c15u;
  return h ^ (h >> 31);
}

// Position p of a sequence holds a value that depends on the salt and all tokens up to p, as real keys and values do.
class Device {
 public:
  explicit Device(const Config& config) : config_(config) {
    for (const GroupConfig& g : config.groups) memory_.emplace_back(size_t{g.n_blocks} * config.block_tokens);
  }

  void compute(const Cache& cache, SeqId seq, uint64_t salt, const Tokens& step) {
    transfer(cache);
    uint64_t value = salt;
    for (int32_t token : cache.tokens(seq)) value = next_value(value, token);
    uint32_t p = cache.length(seq);
    for (int32_t token : step) {
      value = next_value(value, token);
      for (uint32_t g = 0; g < memory_.size(); ++g) at(cache, seq, g, p) = value;
      ++p;
    }
  }

  void copy(const Cache& cache, const std::vector<BlockCopy>& copies) {
    transfer(cache);
    const uint32_t b = config_.block_tokens;
    for (const BlockCopy& c : copies)
      std::copy_n(memory_[c.group].begin() + c.from * b, b, memory_[c.group].begin() + c.to * b);
  }

  // What the tier wants copied.
  void transfer(const Cache& cache) {
    if (!cache.tier()) return;
    for (const Transfer& t : cache.tier()->transfers()) {
      uint64_t* block = memory_[t.group].data() + size_t{static_cast<uint32_t>(t.block)} * config_.block_tokens;
      const size_t bytes = config_.block_tokens * sizeof(uint64_t);
      if (t.save)
        std::memcpy(t.host, block, bytes);
      else
        std::memcpy(block, t.host, bytes);
    }
    cache.tier()->transferred();
  }

  // All that the query at position length(seq) attends to is the sequence's own. True as well for the query of any
  // later position of a step, which sees a part of it and what the step writes.
  void expect_readable(const Cache& cache, SeqId seq, uint64_t salt, const Tokens& tokens) {
    transfer(cache);
    ASSERT_TRUE(std::ranges::equal(cache.tokens(seq), tokens));
    ASSERT_EQ(cache.length(seq), tokens.size());
    const auto length = static_cast<int64_t>(tokens.size());
    int64_t first = length;
    for (const GroupConfig& g : config_.groups)
      first = std::min(first, g.window ? std::max<int64_t>(0, length - g.window + 1) : 0);
    uint64_t value = salt;
    for (int64_t p = 0; p < length; ++p) {
      value = next_value(value, tokens[p]);
      if (p < first) continue;
      for (uint32_t g = 0; g < memory_.size(); ++g) {
        const uint32_t window = config_.groups[g].window;
        if (window && p + window <= length) continue;
        ASSERT_EQ(at(cache, seq, g, static_cast<uint32_t>(p)), value) << "group " << g << " position " << p;
      }
    }
  }

 private:
  uint64_t& at(const Cache& cache, SeqId seq, uint32_t g, uint32_t p) {
    static uint64_t nowhere;
    const auto table = cache.table(seq, g);
    const uint32_t i = p / config_.block_tokens;
    if (i >= table.size() || table[i] < 0) {
      ADD_FAILURE() << "group " << g << ": position " << p << " has no block";
      return nowhere = 0;
    }
    return memory_[g][size_t{static_cast<uint32_t>(table[i])} * config_.block_tokens + p % config_.block_tokens];
  }

  Config config_;
  std::vector<std::vector<uint64_t>> memory_;
};

// A folder of a test's own, gone with it.
struct TestFolder {
  TestFolder() {
    static int n = 0;
    path = testing::TempDir() + "argent_kv_" + std::to_string(::getpid()) + "_" + std::to_string(n++);
    std::filesystem::remove_all(path);
  }
  ~TestFolder() { std::filesystem::remove_all(path); }
  std::string path;
};

// A tier for such a device, of so many blocks of each kind; files with up to 64 tokens.
inline std::unique_ptr<Tier> make_tier(const Config& config, uint64_t host_blocks, uint64_t disk_blocks = 0,
                                       DiskConfig disk = {}) {
  TierConfig tier{.block_tokens = config.block_tokens};
  const uint64_t bytes = config.block_tokens * sizeof(uint64_t);
  tier.group_bytes.assign(config.groups.size(), bytes);
  tier.host_bytes = host_blocks * bytes;
  std::unique_ptr<DiskStore> store;
  if (disk_blocks) {
    disk.block_tokens = config.block_tokens;
    disk.group_bytes = tier.group_bytes;
    disk.max_bytes = tier.disk_bytes = disk_blocks * disk_file_bytes(bytes, 64);
    store = std::make_unique<DiskStore>(disk);
  }
  auto made = std::make_unique<Tier>(tier, std::move(store));
  made->wait_for_disk(std::chrono::steady_clock::now() + std::chrono::seconds(30));
  return made;
}

}  // namespace argent::kv
