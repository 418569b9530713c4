// Blocks that leave the prefix tree and come back, from host memory and from disk, whatever the folder holds.
#include "kv/tier.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <fstream>
#include <random>

#include "device.h"

namespace argent::kv {
namespace {

namespace fs = std::filesystem;

constexpr uint32_t kBlock = 4;
constexpr uint64_t kBytes = kBlock * sizeof(uint64_t);

Tokens numbers(int32_t first, int32_t n) {
  Tokens t(n);
  for (int32_t i = 0; i < n; ++i) t[i] = first + i;
  return t;
}

// A cache on a device that remembers, used by one request after the other.
struct Box {
  explicit Box(const Config& c, std::unique_ptr<Tier> tier)
      : config(c), cache(*Cache::create(c, std::move(tier))), device(c) {}

  // Computes `tokens` from what is found, which is returned; every read is checked.
  uint32_t run(const Tokens& tokens, bool keep = true) {
    const SeqId seq = cache.open();
    if (const uint64_t read = cache.load_prefix(0, tokens))
      while (!cache.tier()->arrived(read)) cache.tier()->wait(std::chrono::seconds(10));
    const uint32_t found = cache.adopt_prefix(seq, tokens)->length;
    device.expect_readable(cache, seq, 0, Tokens(tokens.begin(), tokens.begin() + found));
    for (size_t at = found; at < tokens.size();) {
      const size_t n = std::min<size_t>(config.max_step, tokens.size() - at);
      const Tokens step(tokens.begin() + ptrdiff_t(at), tokens.begin() + ptrdiff_t(at + n));
      EXPECT_TRUE(cache.reserve(seq, uint32_t(n)));
      device.compute(cache, seq, 0, step);
      EXPECT_TRUE(cache.commit(seq, step));
      at += n;
    }
    device.expect_readable(cache, seq, 0, tokens);
    cache.close(seq, keep);
    cache.tier()->poll();
    const Status sound = cache.check();
    EXPECT_TRUE(sound) << sound.error().message;
    return found;
  }
  // Fills the pool with something else.
  void flush(int32_t from = 10000) {
    for (int32_t i = 0; i < 4; ++i) run(numbers(from + 1000 * i, int32_t(config.groups[0].n_blocks * kBlock)));
  }
  Tier& tier() { return *cache.tier(); }
  void settle() {  // until the disk is done
    ASSERT_TRUE(tier().write_all(std::chrono::steady_clock::now() + std::chrono::seconds(30)));
  }

  Config config;
  Cache cache;
  Device device;
};

const Config kFull{.block_tokens = kBlock, .max_step = 8, .groups = {{10, 0}}};

TEST(HostTier, EvictedPrefixesComeBack) {
  Box box(kFull, make_tier(kFull, 100));
  const Tokens prompt = numbers(0, 33);
  EXPECT_EQ(box.run(prompt), 0u);
  EXPECT_EQ(box.run(prompt), 32u);  // by the tree
  EXPECT_EQ(box.tier().counters().saved, 0u);
  box.flush(), box.flush();
  EXPECT_EQ(box.cache.find_prefix(0, prompt).length, 32u);
  const uint64_t before = box.tier().counters().host_tokens;
  EXPECT_EQ(box.run(prompt), 32u);
  EXPECT_EQ(box.tier().counters().host_tokens - before, 32u);
  // What came back stays in the tier: to evict it again copies nothing.
  const uint64_t saved = box.tier().counters().saved;
  box.flush();
  EXPECT_EQ(box.tier().counters().saved, saved);
  EXPECT_EQ(box.run(prompt), 32u);
  // Part of it in the tree, part in the tier, and other tokens from there on.
  Tokens other = numbers(0, 30);
  other[17] = 5;
  EXPECT_EQ(box.run(other), 16u);
}

TEST(HostTier, IsBounded) {
  Box box(kFull, make_tier(kFull, 12));
  const Tokens prompt = numbers(0, 33);
  box.run(prompt);
  for (int32_t i = 1; i < 20; ++i) {
    box.run(numbers(1000 * i, 37));
    EXPECT_LE(box.tier().usage().host_bytes, 12 * kBytes);
  }
  EXPECT_EQ(box.tier().usage().host_bytes, 12 * kBytes);
  EXPECT_GT(box.tier().counters().evicted, 100u);
  EXPECT_EQ(box.run(prompt), 0u);
  EXPECT_EQ(box.tier().counters().host_tokens, 0u);
}

TEST(HostTier, NoRoomIsNoError) {
  Box box(kFull, make_tier(kFull, 0));
  box.run(numbers(0, 33));
  box.flush();
  EXPECT_EQ(box.run(numbers(0, 33)), 0u);
  EXPECT_EQ(box.tier().counters().saved, 0u);
}

// Restoring takes free and cached blocks, never those of others, and stops where they end.
TEST(HostTier, RestoresWhatThePoolHasRoomFor) {
  Box box(kFull, make_tier(kFull, 100));
  const Tokens prompt = numbers(0, 33), busy = numbers(500, 24);
  box.run(prompt);
  box.flush();
  const SeqId other = box.cache.open();  // holds six of ten blocks
  ASSERT_TRUE(box.cache.adopt_prefix(other, busy));
  for (size_t at = 0; at < busy.size(); at += 8) {
    const Tokens step(busy.begin() + ptrdiff_t(at), busy.begin() + ptrdiff_t(at + 8));
    ASSERT_TRUE(box.cache.reserve(other, 8));
    box.device.compute(box.cache, other, 0, step);
    ASSERT_TRUE(box.cache.commit(other, step));
  }
  const SeqId seq = box.cache.open();
  EXPECT_EQ(box.cache.find_prefix(0, prompt).length, 32u);
  EXPECT_EQ(box.cache.adopt_prefix(seq, prompt)->length, 16u);
  box.device.expect_readable(box.cache, seq, 0, numbers(0, 16));
  box.device.expect_readable(box.cache, other, 0, busy);
  ASSERT_TRUE(box.cache.check());
  EXPECT_FALSE(box.cache.reserve(seq, 1));
  box.cache.close(seq);
}

TEST(HostTier, WhatFailedIsNotFoundAgain) {
  Box box(kFull, make_tier(kFull, 100));
  const Tokens prompt = numbers(0, 33);
  box.run(prompt);
  box.flush();
  ASSERT_EQ(box.run(prompt, /*keep=*/false), 32u);
  EXPECT_EQ(box.cache.find_prefix(0, prompt).length, 0u);
  EXPECT_EQ(box.run(prompt), 0u);
  box.flush();
  box.cache.drop_cached();
  EXPECT_EQ(box.tier().usage().host_bytes, 0u);
  EXPECT_EQ(box.run(prompt), 0u);
}

TEST(HostTier, ShortTextsAndOtherSalts) {
  Box box(kFull, make_tier(kFull, 100));
  box.run(numbers(0, 33));
  box.flush();
  EXPECT_EQ(box.cache.find_prefix(0, {}).length, 0u);
  EXPECT_EQ(box.cache.find_prefix(0, numbers(0, 4)).length, 0u);  // one token is left to compute
  EXPECT_EQ(box.cache.find_prefix(0, numbers(0, 5)).length, 4u);
  EXPECT_EQ(box.cache.find_prefix(1, numbers(0, 33)).length, 0u);
}

// A continuation needs the full group's blocks and the last window of the sliding one, so that is what is brought back.
TEST(HostTier, WindowsComeBackToo) {
  const Config config{.block_tokens = kBlock, .max_step = 4, .groups = {{12, 0}, {6, 9}}};
  Box box(config, make_tier(config, 200));
  const Tokens prompt = numbers(0, 41);
  box.run(prompt);
  box.flush();
  EXPECT_EQ(box.run(prompt), 40u);
  EXPECT_EQ(box.tier().counters().restored, 10u + 2u);  // (9 - 1) / 4 blocks of the window
  Tokens other = numbers(0, 25);                        // in the middle: windows that went by were kept as well
  other[22] = 7;
  box.flush();
  EXPECT_EQ(box.run(other), 20u);
}

// A long text streams its old windows through the tier; they may not take more than a quarter of it from the others.
TEST(HostTier, WindowsThatWentByPushNobodyOut) {
  const Config config{.block_tokens = kBlock, .max_step = 4, .groups = {{200, 0}, {6, 5}}};
  Box box(config, make_tier(config, 40));
  for (int32_t i = 0; i < 3; ++i) box.run(numbers(1000 * i, 9));
  box.run(numbers(10000, 700));
  uint32_t found = 0;
  for (int32_t i = 0; i < 3; ++i) found += box.run(numbers(1000 * i, 9));
  EXPECT_EQ(found, 3 * 8u);
}

// ---- disk ----

struct Log {
  std::mutex mutex;
  std::vector<std::string> lines;
  std::function<void(const std::string&)> function() {
    return [this](const std::string& line) {
      const std::lock_guard lock(mutex);
      lines.push_back(line);
    };
  }
  size_t count(const std::string& part) {
    const std::lock_guard lock(mutex);
    return size_t(std::count_if(lines.begin(), lines.end(), [&](const auto& l) { return l.find(part) != l.npos; }));
  }
  std::string all() {
    const std::lock_guard lock(mutex);
    std::string text;
    for (const auto& line : lines) text += line + "\n";
    return text;
  }
};

class DiskTier : public testing::Test {
 protected:
  std::unique_ptr<Tier> tier(uint64_t host = 12, uint64_t disk = 1000, uint8_t model = 1) {
    DiskConfig c{.folder = folder.path + "/a/b", .retry = std::chrono::milliseconds(50), .log = log.function()};
    c.model.fill(model);
    return make_tier(kFull, host, disk, c);
  }
  std::string at() const { return folder.path + "/a/b"; }
  std::vector<fs::path> files() const {
    std::vector<fs::path> all;
    for (const auto& entry : fs::directory_iterator(at()))
      if (entry.path().extension() == ".kv") all.push_back(entry.path());
    std::sort(all.begin(), all.end());
    return all;
  }
  uint64_t file_bytes() const {
    uint64_t sum = 0;
    for (const auto& file : files()) sum += fs::file_size(file);
    return sum;
  }
  // The disk takes files again, and says so once.
  void come_back(Box& box) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!box.tier().write_all(end) && std::chrono::steady_clock::now() < end)
      box.tier().wait(std::chrono::milliseconds(20));
    EXPECT_EQ(log.count("is written again"), 1u) << log.all();
    EXPECT_GT(files().size(), 0u);
  }
  // Leaves `prompt` on disk, and nobody who uses the folder.
  void leave(const Tokens& prompt) {
    Box box(kFull, tier());
    box.run(prompt);
    box.cache.save_cached([] { return true; });
    box.device.transfer(box.cache);
    box.settle();
  }

  TestFolder folder;
  Log log;
  const Tokens prompt = numbers(0, 33);
};

TEST_F(DiskTier, WhatLeavesHostMemoryComesBackFromDisk) {
  Box box(kFull, tier());
  box.run(prompt);
  for (int32_t i = 1; i < 12; ++i) {
    box.run(numbers(1000 * i, 37));
    box.settle();  // a disk that keeps up
  }
  EXPECT_EQ(box.cache.find_prefix(0, prompt).length, 0u);
  // Half of what host memory can hold comes at once: six blocks of the eight.
  EXPECT_EQ(box.run(prompt), 24u);
  EXPECT_EQ(box.tier().counters().disk_tokens, 24u);
  EXPECT_EQ(box.tier().counters().lost, 0u);
  EXPECT_EQ(log.all(), "");
}

TEST_F(DiskTier, TheNextProcessFindsIt) {
  leave(prompt);
  EXPECT_EQ(files().size(), 8u);
  struct stat st = {};
  ASSERT_EQ(::stat(at().c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0700u);
  Box box(kFull, tier(100));
  EXPECT_EQ(box.tier().usage().disk_bytes, file_bytes());
  EXPECT_EQ(box.run(numbers(0, 14)), 12u);
  EXPECT_EQ(box.run(prompt), 32u);
  EXPECT_EQ(box.tier().counters().disk_tokens, 32u);
  EXPECT_EQ(log.all(), "");
}

TEST_F(DiskTier, AnotherModelFindsNothing) {
  leave(prompt);
  Box box(kFull, tier(100, 1000, 2));
  EXPECT_EQ(box.run(prompt), 0u);
  EXPECT_EQ(log.count("8 files"), 1u);
  EXPECT_EQ(log.count("is of another model"), 1u);
}

TEST_F(DiskTier, OneProcessAtATime) {
  Box first(kFull, tier());
  auto second = std::make_unique<Box>(kFull, tier(100));
  EXPECT_EQ(log.count("is in use by another process"), 1u);
  second->run(prompt);
  second->flush();
  EXPECT_EQ(second->run(prompt), 32u);  // host memory does what it can
}

// A file is changed at each place in turn: none may crash, be believed or hold up its neighbours.
TEST_F(DiskTier, DamagedFiles) {
  leave(prompt);
  const std::vector<fs::path> all = files();
  ASSERT_EQ(all.size(), 8u);
  std::mt19937 rng(1);
  for (int round = 0; round < 120; ++round) {
    TestFolder copy;
    fs::create_directories(copy.path + "/a");
    fs::copy(at(), copy.path + "/a/b");
    const fs::path victim = copy.path + "/a/b/" + all[rng() % all.size()].filename().string();
    const uint64_t size = fs::file_size(victim);
    if (round % 4 == 0) {
      fs::resize_file(victim, rng() % (size + 1));
    } else if (round % 4 == 1) {
      fs::resize_file(victim, size + 1 + rng() % 4096);
    } else {
      std::fstream f(victim, std::ios::in | std::ios::out | std::ios::binary);
      const auto place = round < 60 ? rng() % 72 : rng() % size;  // the head is small
      f.seekg(std::streamoff(place));
      const char old = char(f.get());
      f.seekp(std::streamoff(place));
      f.put(char(old ^ char(1 << rng() % 8)));
    }
    DiskConfig c{.folder = copy.path + "/a/b", .log = log.function()};
    c.model.fill(1);
    Box box(kFull, make_tier(kFull, 100, 1000, c));
    EXPECT_LT(box.run(prompt), 33u);  // and every read is checked
    EXPECT_EQ(box.run(prompt), 32u);
  }
  EXPECT_GT(log.count("cannot be used"), 20u);
  EXPECT_GT(log.count("its tokens are computed"), 2u);
}

// Names and kinds of files that nobody made with good intentions.
TEST_F(DiskTier, HostileFolder) {
  leave(prompt);
  const std::vector<fs::path> all = files();
  const std::string good = all[0].string();
  const auto named = [&](int i) { return at() + "/" + std::string(31, '0') + char('0' + i) + "-0.kv"; };
  ASSERT_EQ(::mkfifo(named(1).c_str(), 0600), 0);
  fs::create_directory(named(2));
  fs::create_symlink(good, named(3));
  fs::create_symlink("/dev/zero", named(4));
  fs::copy(good, named(5));
  std::ofstream(named(6)) << "short";
  {
    std::ofstream huge(named(7));
    huge << "ARGENTKV";
  }
  fs::resize_file(named(7), uint64_t(1) << 40);  // sparse: sizes that a head could ask for
  std::ofstream(at() + "/notes.txt") << "mine";
  std::ofstream(at() + "/.tmp-1") << "left over";
  std::ofstream(at() + "/" + std::string(32, 'a') + "-999.kv") << "x";
  fs::copy(good, at() + "/" + all[1].stem().string() + ".kv.kv");
  Box box(kFull, tier(100));
  EXPECT_EQ(box.run(prompt), 32u);
  EXPECT_EQ(log.count("cannot be used"), 1u) << log.all();
  EXPECT_EQ(log.count("2 files of somebody else"), 1u) << log.all();
  EXPECT_TRUE(fs::exists(at() + "/notes.txt"));
  EXPECT_FALSE(fs::exists(at() + "/.tmp-1"));
  EXPECT_TRUE(fs::exists(good));
}

// Two files under each other's name: names are hashes, and tokens are compared.
TEST_F(DiskTier, SwappedFiles) {
  const Tokens other = numbers(500, 33);
  leave(prompt), leave(other);
  const auto path = [&](const Tokens& t) {
    const DiskName name = disk_name(0, std::span(t).first(kBlock));
    return at() + fmt::format("/{:016x}{:016x}-0.kv", name.high, name.low);
  };
  Box box(kFull, tier(100));
  fs::rename(path(prompt), at() + "/x");
  fs::rename(path(other), path(prompt));
  fs::rename(at() + "/x", path(other));
  EXPECT_EQ(box.run(prompt), 0u);
  EXPECT_EQ(box.run(other), 0u);
  EXPECT_EQ(box.tier().counters().lost, 2u);
  EXPECT_EQ(log.count("is of other tokens"), 1u) << log.all();
}

TEST_F(DiskTier, IsBounded) {
  Box box(kFull, tier(24, 30));
  for (int32_t i = 0; i < 30; ++i) {
    box.run(numbers(1000 * i, 37));
    box.settle();
    EXPECT_EQ(box.tier().usage().disk_bytes, file_bytes());
    EXPECT_LE(file_bytes(), 30 * disk_file_bytes(kBytes, 64));
  }
  EXPECT_GT(box.tier().counters().written, 100u);
}

// A smaller bound than before: what was used last stays.
TEST_F(DiskTier, ASmallerBoundKeepsTheLatest) {
  leave(numbers(5000, 33));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  leave(prompt);
  EXPECT_EQ(files().size(), 16u);
  Box box(kFull, tier(100, 4));  // of the greatest size: eight of these
  EXPECT_EQ(files().size(), 8u);
  EXPECT_EQ(box.tier().usage().disk_bytes, file_bytes());
  EXPECT_EQ(box.run(prompt), 32u);
}

// The children of a block that is gone cannot be reached: they go as well.
TEST_F(DiskTier, OrphansAreRemoved) {
  leave(prompt);
  const DiskName first = disk_name(0, numbers(0, 4));
  fs::remove(at() + fmt::format("/{:016x}{:016x}-0.kv", first.high, first.low));
  {
    Box box(kFull, tier(100));
    EXPECT_EQ(box.tier().usage().disk_bytes, 0u);
    EXPECT_EQ(box.run(numbers(700, 33)), 0u);
    box.cache.save_cached([] { return true; });
    box.device.transfer(box.cache);
    box.settle();
  }
  EXPECT_EQ(files().size(), 8u);
}

// A limit on the size of files is a full disk that needs no root. Host memory goes on, and so does the disk afterwards.
TEST_F(DiskTier, FullDisk) {
  Box box(kFull, tier());
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 40;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  box.run(prompt);
  for (int32_t i = 1; i < 12; ++i) box.run(numbers(1000 * i, 37));
  for (int i = 0; i < 10; ++i) {  // some retries long
    EXPECT_FALSE(box.tier().write_all(std::chrono::steady_clock::now() + std::chrono::seconds(10)));
    box.tier().wait(std::chrono::milliseconds(20));
  }
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(log.count("cannot write to"), 1u) << log.all();
  EXPECT_EQ(files().size(), 0u);
  EXPECT_EQ(box.run(numbers(11000, 37)), 36u);
  come_back(box);
  EXPECT_EQ(log.lines.size(), 2u) << log.all();
}

TEST_F(DiskTier, FolderVanishes) {
  leave(prompt);
  Box box(kFull, tier(100));
  fs::remove_all(folder.path);
  EXPECT_EQ(box.run(prompt), 0u);
  EXPECT_EQ(log.count("its tokens are computed"), 1u) << log.all();
  box.flush();
  EXPECT_FALSE(box.tier().write_all(std::chrono::steady_clock::now() + std::chrono::seconds(10)));
  come_back(box);
  EXPECT_EQ(box.run(prompt), 32u);
}

TEST_F(DiskTier, AFolderThatCannotBe) {
  std::ofstream(folder.path) << "a file";
  Box box(kFull, tier(100));
  EXPECT_EQ(log.count("cannot make"), 1u) << log.all();
  box.run(prompt);
  box.flush();
  EXPECT_EQ(box.run(prompt), 32u);
  std::filesystem::remove(folder.path);
}

}  // namespace
}  // namespace argent::kv
