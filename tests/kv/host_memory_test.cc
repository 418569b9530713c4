// What the host tier takes of the system: buffers within their bound, and nothing that breaks when there is no more.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <new>
#include <optional>
#include <string>

#include "kv/kv.h"

namespace {

// How many more blocks operator new gives before it fails once, or for good.
thread_local int64_t blocks_left = INT64_MAX;
thread_local bool for_good = false;

}  // namespace

[[gnu::noinline]] void* operator new(size_t bytes) {
  void* const memory = blocks_left > 0 ? std::malloc(bytes) : nullptr;
  if (blocks_left > 0)
    --blocks_left;
  else if (!for_good)
    blocks_left = INT64_MAX;
  if (!memory) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace argent::kv {
namespace {

constexpr uint32_t kBlockTokens = 4;
constexpr uint64_t kMiB = 1 << 20;

std::vector<int32_t> counting(int32_t first, int32_t n) {
  std::vector<int32_t> tokens(n);
  for (int32_t i = 0; i < n; ++i) tokens[i] = first + i;
  return tokens;
}

uint64_t kilobytes(const std::string& what) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(what)) return std::stoull(line.substr(what.size()));
  return 0;
}

// Saves blocks of texts that nobody asked for before.
struct Saver {
  explicit Saver(TierConfig config) : tier(std::move(config)) {}
  void save(uint32_t group) {
    const auto tokens = counting(next += kBlockTokens, kBlockTokens);
    const int32_t node = tier.add(kNone, 0, tokens);
    tier.save(node, group, 0, false);
    tier.prune(node);
    for (const Transfer& t : tier.transfers()) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(t.host) % 64, 0u);
      std::memset(t.host, int(next), tier.group_bytes(t.group));
    }
    tier.transferred();
    const Status sound = tier.check();
    EXPECT_TRUE(sound) << sound.error().message;
  }

  Tier tier;
  int32_t next = 0;
};

// One size of blocks after the other fills all that there is: the memory of the first goes back to the system.
TEST(HostMemory, StaysBelowItsBound) {
  constexpr uint64_t kBound = 24 * kMiB, kSlack = 6 * kMiB;  // huge pages begun, and all else
  Saver saver({.block_tokens = kBlockTokens, .group_bytes = {200'000, 1'000'000, 3'000'000}, .host_bytes = kBound});
  const uint64_t before = kilobytes("RssAnon:") << 10;
  if (before == 0) GTEST_SKIP() << "no /proc";
  for (const uint32_t group : {0u, 2u, 1u, 0u})
    for (uint64_t i = 0; i < 2 * kBound / saver.tier.group_bytes(group); ++i) {
      saver.save(group);
      if (i % 16 == 0) {
        EXPECT_LE((kilobytes("RssAnon:") << 10), before + kBound + kSlack);
      }
    }
  EXPECT_GT(saver.tier.usage().host_bytes, kBound - 3'000'000);
}

TEST(HostMemory, NoneIsNoError) {
  Saver saver({.block_tokens = kBlockTokens, .group_bytes = {100'000}, .host_bytes = 1ull << 30});
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_DATA, &before), 0);
  const rlimit none = {(kilobytes("VmData:") << 10) + 16 * kMiB, before.rlim_max};  // less than a chunk
  ASSERT_EQ(setrlimit(RLIMIT_DATA, &none), 0);
  for (int i = 0; i < 3; ++i) saver.save(0);
  ASSERT_EQ(setrlimit(RLIMIT_DATA, &before), 0);
  EXPECT_EQ(saver.tier.counters().saved, 0u);
  saver.save(0);
  EXPECT_EQ(saver.tier.counters().saved, 1u);
}

// Computes a text; whoever finds no memory gives up, and closing takes none.
bool computes(Cache& cache, const std::vector<int32_t>& tokens, int64_t blocks) {
  std::optional<SeqId> seq;
  bool good = true;
  blocks_left = blocks;
  try {
    seq = cache.open();
    size_t at = cache.adopt_prefix(*seq, tokens)->length;
    for (; at < tokens.size(); at += kBlockTokens) {
      EXPECT_TRUE(cache.reserve(*seq, kBlockTokens));
      cache.tier()->transferred();
      EXPECT_TRUE(cache.commit(*seq, std::span(tokens).subspan(at, kBlockTokens)));
    }
  } catch (const std::bad_alloc&) {
    good = false;
  }
  cache.tier()->transferred();
  if (seq) cache.close(*seq, good);
  blocks_left = INT64_MAX;
  return good;
}

// Each place that takes memory fails in turn, once or with all that follow: the cache is as sound as before.
TEST(HostMemory, EndsAnywhere) {
  const Config config{.block_tokens = kBlockTokens, .max_step = 8, .groups = {{10, 0}, {6, 6}}};
  const auto prompt = counting(0, 32);
  for (const bool all : {false, true}) {
    for_good = all;
    int64_t n_failed = 0;
    for (int64_t n = 0; n < 2000; ++n) {
      TierConfig host{.block_tokens = kBlockTokens, .group_bytes = {64, 128}, .host_bytes = 20 * 128};
      Cache cache = *Cache::create(config, std::make_unique<Tier>(std::move(host)));
      bool whole = computes(cache, prompt, n);
      for (int32_t i = 1; i < 5; ++i) whole = computes(cache, counting(i % 4 * 1000, 32), n) && whole;
      const Status sound = cache.check();
      ASSERT_TRUE(sound) << n << ": " << sound.error().message;
      EXPECT_TRUE(computes(cache, prompt, INT64_MAX));
      EXPECT_EQ(cache.n_open(), 0u);
      n_failed += !whole;
      if (whole && n > 200) break;
    }
    EXPECT_GT(n_failed, 20);
  }
}

}  // namespace
}  // namespace argent::kv
