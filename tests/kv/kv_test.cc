#include "kv/kv.h"

#include <gtest/gtest.h>

#include <numeric>
#include <optional>

#include "device.h"

namespace argent::kv {
namespace {

Tokens count_from(int32_t first, size_t n) {
  Tokens t(n);
  std::iota(t.begin(), t.end(), first);
  return t;
}

Tokens operator+(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class Kv : public ::testing::Test {
 protected:
  void make(Config config) {
    auto made = Cache::create(config);
    ASSERT_TRUE(made) << made.error().message;
    cache.emplace(*std::move(made));
    device.emplace(config);
  }
  // Full attention and a window, the usual mixture.
  void make_mixed(uint32_t window, uint32_t blocks = 64, uint32_t block_tokens = 4, uint32_t max_step = 16) {
    make({.block_tokens = block_tokens, .max_step = max_step, .groups = {{blocks, 0}, {blocks, window}}});
  }

  void verify(SeqId seq, const Tokens& tokens) {
    const Status ok = cache->check();
    ASSERT_TRUE(ok) << ok.error().message;
    device->expect_readable(*cache, seq, 0, tokens);
  }

  // Adopts what it can (on an empty sequence) and computes the rest in steps; returns what was adopted.
  uint32_t feed(SeqId seq, const Tokens& all) {
    uint32_t hit = 0;
    if (cache->capacity(seq) == 0) {
      auto adopted = cache->adopt_prefix(seq, all);
      EXPECT_TRUE(adopted);
      hit = adopted->length;
      verify(seq, Tokens(all.begin(), all.begin() + hit));
    }
    while (cache->length(seq) < all.size()) {
      const uint32_t done = cache->length(seq);
      const auto n = std::min<uint32_t>(cache->config().max_step, static_cast<uint32_t>(all.size()) - done);
      const Tokens step(all.begin() + done, all.begin() + done + n);
      const Status reserved = cache->reserve(seq, n);
      EXPECT_TRUE(reserved) << reserved.error().message;
      if (!reserved) return hit;
      device->compute(*cache, seq, 0, step);
      const Status committed = cache->commit(seq, step);
      EXPECT_TRUE(committed) << committed.error().message;
      verify(seq, Tokens(all.begin(), all.begin() + done + n));
    }
    return hit;
  }

  SeqId fed(const Tokens& all) {
    const SeqId seq = cache->open();
    feed(seq, all);
    return seq;
  }

  // Leaves `all` in the cache, with no open sequence.
  void remember(const Tokens& all) { cache->close(fed(all)); }

  uint32_t hit(const Tokens& all) { return cache->find_prefix(0, all).length; }

  std::optional<Cache> cache;
  std::optional<Device> device;
};

TEST(KvConfig, NonsenseIsRefused) {
  auto code = [](Config c) {
    auto made = Cache::create(std::move(c));
    return made ? std::string("ok") : made.error().code == Code::invalid ? made.error().message : "wrong code";
  };
  EXPECT_EQ(code({.groups = {{1, 0}}}), "ok");
  EXPECT_EQ(code({.block_tokens = 24, .groups = {{1, 0}}}), "KV block of 24 tokens: wanted a power of two up to 65536");
  EXPECT_EQ(code({.block_tokens = 0, .groups = {{1, 0}}}), "KV block of 0 tokens: wanted a power of two up to 65536");
  EXPECT_EQ(code({.max_step = 0, .groups = {{1, 0}}}), "KV max_step is 0: wanted at least one token a step");
  EXPECT_EQ(code({}), "KV cache without layer groups");
  EXPECT_EQ(code({.groups = {{1, 0}, {0, 5}}}), "KV group 1 has no blocks");
  EXPECT_EQ(code({.groups = {{1, 0xffffffff}}}),
            "KV group 0: window 4294967295 + max_step 512 + rollback 0 exceed 2147483647 positions");
  EXPECT_EQ(code({.rollback = 0xffffffff, .groups = {{1, 5}}}),
            "KV group 0: window 5 + max_step 512 + rollback 4294967295 exceed 2147483647 positions");
  EXPECT_EQ(code({.groups = {{0x7fffffff, 0}, {1, 0}}}), "2147483648 KV blocks: wanted at most 2147483647");
}

TEST(KvConfig, BlocksNeeded) {
  const Config c{.block_tokens = 32, .max_step = 512};
  EXPECT_EQ(blocks_needed(c, 0, 0), 0);
  EXPECT_EQ(blocks_needed(c, 0, 1), 1);
  EXPECT_EQ(blocks_needed(c, 0, 32), 1);
  EXPECT_EQ(blocks_needed(c, 0, 33), 2);
  EXPECT_EQ(blocks_needed(c, 0, 0xffffffff), 1u << 27);
  EXPECT_EQ(blocks_needed(c, 5, 100), 4);         // shorter than the bound
  EXPECT_EQ(blocks_needed(c, 5, 1 << 20), 18);    // 516 positions: 515 touch 17 blocks, one more if they are askew
  EXPECT_EQ(blocks_needed(c, 512, 1 << 20), 33);  // 1023 positions
  const Config one{.block_tokens = 1, .max_step = 1};
  EXPECT_EQ(blocks_needed(one, 1, 1000), 1);
  EXPECT_EQ(blocks_needed(one, 7, 1000), 7);
}

// A pool of exactly blocks_needed serves any way of cutting a long sequence into steps; with one block less, the worst
// way fails.
TEST_F(Kv, BlocksNeededIsEnoughAndNotMore) {
  for (uint32_t window : {1u, 2u, 5u, 8u, 9u, 31u, 64u})
    for (uint32_t rollback : {0u, 1u, 7u, 8u}) {
      Config config{.block_tokens = 8, .max_step = 20, .rollback = rollback, .groups = {{1, window}}};
      const uint32_t need = blocks_needed(config, window, 10000);
      for (bool enough : {true, false}) {
        bool failed = false;
        for (uint32_t offset = 0; offset < 8; ++offset)
          for (bool tree : {true, false}) {
            config.prefix_cache = tree;
            config.groups[0].n_blocks = enough ? need : need - 1;
            make(config);
            const SeqId seq = cache->open();
            for (uint32_t step : {offset, 20u, 20u, 20u, 20u, 1u, 20u, 3u, 20u, 20u, 20u, 20u, 20u}) {
              failed |= !cache->reserve(seq, step);
              if (failed) break;
              ASSERT_TRUE(cache->commit(seq, Tokens(step, 7)));
              const Status ok = cache->check();
              ASSERT_TRUE(ok) << ok.error().message;
            }
          }
        EXPECT_EQ(failed, !enough) << "window " << window << " rollback " << rollback;
      }
    }
}

TEST_F(Kv, LengthsAroundBlockEdges) {
  for (uint32_t n : {1u, 2u, 31u, 32u, 33u, 63u, 64u, 65u, 511u, 512u, 513u, 1024u, 1500u}) {
    make_mixed(5, 64, 32, 512);
    const Tokens prompt = count_from(0, n);
    EXPECT_EQ(feed(cache->open(), prompt), 0);
    EXPECT_EQ(cache->usage(0).referenced, (n + 31) / 32) << n;
    // Held: the block being filled, and the one before it for the 4 positions that a query at its start sees.
    EXPECT_EQ(cache->usage(1).referenced, (n >= 32) + (n % 32 != 0)) << n;
    EXPECT_EQ(hit(prompt), (n - 1) / 32 * 32) << n;
    EXPECT_EQ(hit(prompt + Tokens{9}), n / 32 * 32) << n;
  }
}

TEST_F(Kv, OneTokenAtATimeCrossesEveryEdge) {
  make_mixed(6);
  const SeqId seq = cache->open();
  for (size_t n = 1; n <= 50; ++n) feed(seq, count_from(0, n));
  EXPECT_LE(cache->usage(1).referenced, 3);
  EXPECT_EQ(cache->usage(0).referenced, 13);
}

TEST_F(Kv, HitAfterClose) {
  make_mixed(6);
  const Tokens prompt = count_from(0, 23);
  remember(prompt);
  EXPECT_EQ(cache->usage(0).cached, 5);
  EXPECT_EQ(cache->usage(0).referenced, 0);
  EXPECT_EQ(feed(cache->open(), prompt), 20);
  EXPECT_EQ(cache->counters().hits, 1);
  EXPECT_EQ(cache->counters().reused_tokens, 20);
}

TEST_F(Kv, CloseWithoutKeepFreesWhatNobodyBuildsOn) {
  make_mixed(6);
  const Tokens system = count_from(0, 8);
  remember(system + Tokens{50, 51, 52, 53});
  const SeqId seq = fed(system + count_from(60, 10));
  EXPECT_EQ(cache->usage(0).referenced, 5);
  cache->close(seq, /*keep=*/false);
  EXPECT_TRUE(cache->check());
  EXPECT_EQ(cache->usage(0).cached, 3);
  EXPECT_EQ(hit(system + count_from(60, 10)), 8);
  EXPECT_EQ(hit(system + Tokens{50, 51, 52, 53, 54}), 12);
  EXPECT_EQ(cache->counters().evicted, 0);
}

TEST_F(Kv, LastTokenIsLeftToCompute) {
  make_mixed(6);
  remember(count_from(0, 16));
  EXPECT_EQ(hit({}), 0);
  EXPECT_EQ(hit(count_from(0, 1)), 0);
  EXPECT_EQ(hit(count_from(0, 4)), 0);
  EXPECT_EQ(hit(count_from(0, 5)), 4);
  EXPECT_EQ(hit(count_from(0, 16)), 12);
  EXPECT_EQ(hit(count_from(0, 17)), 16);
}

TEST_F(Kv, SaltsDoNotMeet) {
  make_mixed(6);
  const Tokens prompt = count_from(0, 20);
  remember(prompt);
  EXPECT_EQ(cache->find_prefix(1, prompt).matched, 0);
  const SeqId other = cache->open(1);
  EXPECT_EQ(cache->adopt_prefix(other, prompt)->length, 0);
  ASSERT_TRUE(cache->reserve(other, 16));
  ASSERT_TRUE(cache->commit(other, Tokens(prompt.begin(), prompt.begin() + 16)));
  EXPECT_EQ(cache->counters().merged, 0);
  EXPECT_EQ(cache->find_prefix(1, prompt).length, 16);
  EXPECT_TRUE(cache->check());
}

TEST_F(Kv, SameBlockAfterAnotherPrefixIsAnotherBlock) {
  make_mixed(6);
  const Tokens same{7, 7, 7, 7};
  remember(same + same + same + same);
  EXPECT_EQ(hit(Tokens{8, 7, 7, 7} + same + same), 0);
  EXPECT_EQ(hit(same + same + Tokens{7, 7, 7, 8} + same), 8);
  remember(Tokens{8, 7, 7, 7} + same + same);
  EXPECT_EQ(cache->usage(0).cached, 7);
}

// Two sequences compute the same prompt at the same time: the content is stored once.
TEST_F(Kv, ConcurrentDuplicatesMerge) {
  make_mixed(6);
  const Tokens prompt = count_from(0, 16);
  const SeqId a = cache->open(), b = cache->open();
  for (SeqId seq : {a, b}) {
    ASSERT_TRUE(cache->reserve(seq, 16));
    device->compute(*cache, seq, 0, prompt);
  }
  EXPECT_EQ(cache->usage(0).referenced, 8);
  ASSERT_TRUE(cache->commit(a, prompt));
  ASSERT_TRUE(cache->commit(b, prompt));
  EXPECT_EQ(cache->usage(0).referenced, 4);
  EXPECT_EQ(cache->counters().merged, 4);
  verify(a, prompt);
  verify(b, prompt);
}

// ---- sliding groups ----

TEST_F(Kv, SlidingHitNeedsItsLastWindowOnly) {
  make({.block_tokens = 4, .max_step = 16, .groups = {{64, 0}, {8, 6}}});
  const Tokens prompt = count_from(0, 41);
  remember(prompt);
  // 8 sliding blocks for 10 full blocks: the oldest are evicted, the end of the prompt is usable none the less.
  EXPECT_EQ(hit(prompt), 40);
  EXPECT_EQ(feed(cache->open(), prompt), 40);
  EXPECT_EQ(cache->usage(1).referenced, 3);
  // The tree still knows the first blocks, but their window is gone.
  const PrefixHit early = cache->find_prefix(0, count_from(0, 9));
  EXPECT_EQ(early.matched, 8);
  EXPECT_EQ(early.length, 0);
}

TEST_F(Kv, SlidingLossShortensTheHit) {
  make({.block_tokens = 4, .max_step = 8, .groups = {{64, 0}, {12, 6}}});
  const Tokens prompt = count_from(0, 33), shorter = count_from(0, 17);
  remember(prompt);
  remember(shorter);  // touches blocks 2 and 3: the sliding ones now leave in the order 0 1 4 5 7 6 3 2, 4 are free
  const SeqId other = cache->open();
  for (int32_t i = 0; i < 2; ++i) {
    ASSERT_TRUE(cache->reserve(other, 8));
    ASSERT_TRUE(cache->commit(other, count_from(100 + 8 * i, 8)));
  }
  ASSERT_TRUE(cache->reserve(other, 8));
  ASSERT_TRUE(cache->check());
  EXPECT_EQ(cache->find_prefix(0, prompt).matched, 32);
  EXPECT_EQ(hit(prompt), 32);
  ASSERT_TRUE(cache->commit(other, count_from(116, 8)));
  ASSERT_TRUE(cache->reserve(other, 8));
  ASSERT_TRUE(cache->commit(other, count_from(124, 8)));
  ASSERT_TRUE(cache->reserve(other, 4));
  EXPECT_EQ(cache->find_prefix(0, prompt).matched, 32);
  EXPECT_EQ(hit(prompt), 16);
  EXPECT_EQ(feed(cache->open(), prompt), 16);
  EXPECT_EQ(cache->counters().window_lost, 16);
}

// Recomputing blocks that the tree knows puts the evicted sliding blocks back.
TEST_F(Kv, RecomputationHealsGaps) {
  make({.block_tokens = 4, .max_step = 8, .groups = {{64, 0}, {6, 6}}});
  const Tokens prompt = count_from(0, 25);
  remember(prompt);
  remember(count_from(100, 25));
  EXPECT_EQ(cache->find_prefix(0, prompt).matched, 24);
  EXPECT_EQ(hit(prompt), 0);
  remember(prompt);
  EXPECT_EQ(hit(prompt), 24);
  EXPECT_EQ(cache->usage(0).cached, 12);
}

TEST_F(Kv, TinyWindowsAndLargeSteps) {
  for (uint32_t window : {1u, 2u, 5u, 32u, 33u}) {
    const Config config{.block_tokens = 32, .max_step = 512};
    const uint32_t need = blocks_needed(config, window, 4000);
    make({.block_tokens = 32, .max_step = 512, .groups = {{128, 0}, {need, window}}});
    const Tokens prompt = count_from(0, 3000);
    const SeqId seq = fed(prompt);
    for (size_t n = 3001; n < 3100; ++n) feed(seq, count_from(0, n));
    cache->close(seq);
    EXPECT_EQ(feed(cache->open(), count_from(0, 3099)), 3072);
  }
}

TEST_F(Kv, SlidingOnlyStaysBoundedAndUseful) {
  make({.block_tokens = 4, .max_step = 8, .groups = {{8, 6}}});
  const SeqId seq = cache->open();
  for (int32_t i = 0; i < 1000; ++i) {  // far more tokens than the tree has nodes for one path
    ASSERT_TRUE(cache->reserve(seq, 8));
    ASSERT_TRUE(cache->commit(seq, count_from(8 * i, 8)));
    ASSERT_TRUE(cache->check());
  }
  EXPECT_EQ(cache->length(seq), 8000);
  cache->close(seq);
  ASSERT_TRUE(cache->check());
  // Long paths of the past give way to new ones.
  for (int32_t i = 0; i < 20; ++i) {
    const Tokens prompt = count_from(10000 + 1000 * i, 101);
    remember(prompt);
    EXPECT_EQ(hit(prompt), 100) << i;
  }
}

// ---- roll-back ----

TEST_F(Kv, ChatEditing) {
  make_mixed(6);
  const Tokens history = count_from(0, 30);
  const SeqId seq = fed(history);
  EXPECT_EQ(*cache->truncate(seq, 21), 20);  // block 5 is published: not written again
  verify(seq, count_from(0, 20));
  const Tokens edited = count_from(0, 21) + count_from(200, 12);
  feed(seq, edited);
  cache->close(seq);
  EXPECT_EQ(hit(history), 28);  // both versions are there
  EXPECT_EQ(hit(edited), 32);
}

TEST_F(Kv, TruncateIsExactInTheBlockBeingFilled) {
  make_mixed(6);
  const SeqId seq = fed(count_from(0, 31));
  EXPECT_EQ(*cache->truncate(seq, 100), 31);
  EXPECT_EQ(*cache->truncate(seq, 30), 30);
  EXPECT_EQ(*cache->truncate(seq, 29), 29);
  verify(seq, count_from(0, 29));
  feed(seq, count_from(0, 29) + Tokens{5, 6, 7, 8});
  EXPECT_EQ(*cache->truncate(seq, 31), 28);
  EXPECT_EQ(*cache->truncate(seq, 28), 28);
  verify(seq, count_from(0, 28));
  EXPECT_EQ(*cache->truncate(seq, 0), 0);
  verify(seq, {});
  EXPECT_EQ(cache->usage(0).referenced, 0);
  EXPECT_EQ(feed(seq, count_from(0, 30)), 28);  // an emptied sequence may adopt
}

TEST_F(Kv, TruncateIsExactWithoutTree) {
  make({.block_tokens = 4, .max_step = 64, .groups = {{64, 0}}, .prefix_cache = false});
  const SeqId seq = fed(count_from(0, 30));
  for (uint32_t n : {29u, 22u, 13u, 12u, 3u}) {
    EXPECT_EQ(*cache->truncate(seq, n), n);
    verify(seq, count_from(0, n));
    EXPECT_EQ(cache->usage(0).referenced, (n + 3) / 4);
  }
  EXPECT_EQ(cache->usage(0).cached, 0);
  EXPECT_EQ(hit(count_from(0, 30)), 0);
}

TEST_F(Kv, TruncateWithoutTreeGoesNoFurtherThanTheWindow) {
  make({.block_tokens = 4, .max_step = 16, .rollback = 5, .groups = {{64, 0}, {64, 6}}, .prefix_cache = false});
  const SeqId seq = fed(count_from(0, 41));
  EXPECT_EQ(*cache->truncate(seq, 36), 36);
  verify(seq, count_from(0, 36));
  EXPECT_EQ(*cache->truncate(seq, 22), 0);  // the window of 22 was dropped and nothing of it is kept
  verify(seq, {});
}

TEST_F(Kv, TruncateFindsTheWindowAgainOrGoesLower) {
  // The sliding pool is so small that only the last few dropped blocks are still cached.
  make({.block_tokens = 4, .max_step = 4, .groups = {{64, 0}, {6, 6}}});
  const SeqId seq = fed(count_from(0, 41));
  EXPECT_EQ(*cache->truncate(seq, 33), 32);
  verify(seq, count_from(0, 32));
  feed(seq, count_from(0, 41));
  EXPECT_EQ(*cache->truncate(seq, 18), 0);
  verify(seq, {});
}

TEST_F(Kv, RollbackSpareIsNeverLost) {
  for (uint32_t window : {1u, 3u, 6u, 17u})
    for (uint32_t length = 20; length < 40; ++length)
      for (uint32_t back = 1; back <= 10; ++back) {
        Config config{.block_tokens = 4, .max_step = 4, .rollback = 10};
        config.groups = {{64, 0}, {blocks_needed(config, window, 1000), window}};
        make(config);
        const SeqId seq = fed(count_from(0, length));
        const uint32_t n = length - back;
        const auto got = *cache->truncate(seq, n);
        EXPECT_EQ(got, n >= length / 4 * 4 ? n : n / 4 * 4);
        verify(seq, count_from(0, got));
      }
}

TEST_F(Kv, RejectedDraftsAreWrittenAgain) {
  make_mixed(6);
  const SeqId seq = fed(count_from(0, 14));
  Tokens all = count_from(0, 14);
  for (int32_t i = 0; i < 30; ++i) {
    ASSERT_TRUE(cache->reserve(seq, 9));
    const auto accepted = static_cast<uint32_t>(i * 7 % 9 + 1);
    device->compute(*cache, seq, 0, count_from(1000 + 100 * i, 9));
    const Tokens step = count_from(1000 + 100 * i, accepted);
    ASSERT_TRUE(cache->commit(seq, step));
    all = all + step;
    verify(seq, all);
  }
}

// ---- preemption, forks, exhaustion ----

TEST_F(Kv, PreemptionComesBackToTheSame) {
  for (uint32_t n : {5u, 8u, 21u, 40u}) {
    make_mixed(6);
    const Tokens all = count_from(0, n);
    SeqId seq = fed(all);
    cache->close(seq, /*keep=*/true);
    seq = cache->open();
    EXPECT_EQ(feed(seq, all), (n - 1) / 4 * 4);
    verify(seq, all);
  }
}

TEST_F(Kv, ForkSharesFullBlocksAndCopiesTheRest) {
  for (uint32_t n = 1; n < 30; ++n)
    for (bool tree : {true, false}) {
      make({.block_tokens = 4, .max_step = 16, .rollback = 12, .groups = {{64, 0}, {64, 6}}, .prefix_cache = tree});
      const Tokens prompt = count_from(0, n);
      const SeqId a = fed(prompt);
      auto fork = cache->fork(a);
      ASSERT_TRUE(fork);
      EXPECT_EQ(fork->copies.size(), n % 4 ? 2 : 0);
      device->copy(*cache, fork->copies);
      verify(fork->seq, prompt);
      EXPECT_EQ(cache->usage(0).referenced, (n + 3) / 4 + (n % 4 != 0));
      feed(a, prompt + count_from(100, 9));
      feed(fork->seq, prompt + count_from(200, 9));
      verify(a, prompt + count_from(100, 9));
      // Going back into what both have must not write there.
      const uint32_t back = *cache->truncate(a, n - 1);
      EXPECT_EQ(back, n % 4 && !tree ? n - 1 : (n - 1) / 4 * 4);
      feed(a, Tokens(prompt.begin(), prompt.begin() + back) + count_from(300, 9));
      verify(fork->seq, prompt + count_from(200, 9));
      cache->close(a);
      verify(fork->seq, prompt + count_from(200, 9));
    }
}

TEST_F(Kv, ExhaustionChangesNothing) {
  make({.block_tokens = 4, .max_step = 64, .groups = {{16, 0}, {6, 6}}});
  const SeqId a = fed(count_from(0, 10));
  remember(count_from(50, 12));
  const auto before0 = cache->usage(0), before1 = cache->usage(1);
  const Tokens table0(cache->table(a, 0).begin(), cache->table(a, 0).end());
  const Status failed = cache->reserve(a, 32);  // 8 more blocks: the full group has them, the sliding one has not
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code, Code::out_of_memory);
  EXPECT_EQ(failed.error().message, "KV group 1: a step needs 8 more blocks; 0 of 6 are free, 3 cached, 3 in use");
  EXPECT_EQ(cache->usage(0).free, before0.free);
  EXPECT_EQ(cache->usage(1).cached, before1.cached);
  EXPECT_TRUE(std::ranges::equal(cache->table(a, 0), table0));
  EXPECT_EQ(cache->counters().evicted, 0);
  EXPECT_EQ(cache->counters().failed_reserves, 1);
  verify(a, count_from(0, 10));
  EXPECT_EQ(hit(count_from(50, 13)), 12);
  EXPECT_TRUE(cache->reserve(a, 14));  // 3 more: exactly what can be evicted
  EXPECT_TRUE(cache->check());
  const auto fork = cache->fork(a);
  ASSERT_FALSE(fork);
  EXPECT_EQ(fork.error().code, Code::out_of_memory);
  EXPECT_EQ(cache->n_open(), 1);
  EXPECT_TRUE(cache->check());
}

TEST_F(Kv, EvictionIsLeastRecentAndLeafFirst) {
  make({.block_tokens = 4, .max_step = 64, .groups = {{6, 0}}});
  const Tokens a = count_from(0, 9), b = count_from(100, 9), c = count_from(200, 9);
  remember(a);
  remember(b);
  remember(c);
  remember(a);  // a is now the most recent, b the least
  const SeqId other = cache->open();
  const std::vector<std::vector<uint32_t>> expected{{8, 4, 8}, {8, 0, 8}, {8, 0, 4}, {8, 0, 0}, {4, 0, 0}, {0, 0, 0}};
  for (uint32_t i = 0; i < 6; ++i) {
    ASSERT_TRUE(cache->reserve(other, 4 * (i + 1)));
    ASSERT_TRUE(cache->check());
    EXPECT_EQ((std::vector{hit(a), hit(b), hit(c)}), expected[i]) << i;
  }
  EXPECT_FALSE(cache->reserve(other, 25));
}

TEST_F(Kv, DropCachedLeavesOpenSequences) {
  make_mixed(6);
  remember(count_from(100, 30));
  const SeqId seq = fed(count_from(0, 30));
  cache->drop_cached();
  verify(seq, count_from(0, 30));
  EXPECT_EQ(cache->usage(0).cached, 0);
  EXPECT_EQ(cache->usage(1).cached, 0);
  EXPECT_EQ(hit(count_from(100, 30)), 0);
  cache->close(seq);
  EXPECT_EQ(hit(count_from(0, 30)), 28);
}

TEST_F(Kv, MisuseIsAnErrorAndHarmless) {
  make_mixed(6);
  const SeqId seq = fed(count_from(0, 10));
  EXPECT_EQ(cache->reserve(seq, 17).error().code, Code::invalid);
  EXPECT_EQ(cache->commit(seq, count_from(0, 3)).error().message,
            "commit of 3 tokens at length 10: only 12 positions are reserved");
  EXPECT_EQ(cache->adopt_prefix(seq, count_from(0, 10)).error().code, Code::internal);
  verify(seq, count_from(0, 10));
  cache->close(seq);
  cache->close(seq);
  EXPECT_EQ(cache->n_open(), 0);
  const SeqId next = cache->open();
  EXPECT_NE(next, seq);  // although it takes the same slot
  EXPECT_EQ(cache->reserve(seq, 1).error().code, Code::internal);
  EXPECT_EQ(cache->commit(seq, {}).error().code, Code::internal);
  EXPECT_EQ(cache->truncate(seq, 0).error().code, Code::internal);
  EXPECT_EQ(cache->fork(seq).error().code, Code::internal);
  EXPECT_EQ(cache->adopt_prefix(seq, {}).error().code, Code::internal);
  EXPECT_TRUE(cache->table(seq, 0).empty());
  EXPECT_TRUE(cache->table(next, 2).empty());
  EXPECT_EQ(cache->length(seq), 0);
  EXPECT_EQ(cache->capacity(SeqId{12345}), 0);
  cache->close(next);
  EXPECT_TRUE(cache->check());
}

}  // namespace
}  // namespace argent::kv
