// Random use of many sequences against a plain model: what each sequence's tokens are, and memory that remembers what
// was written where. check() after every operation.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "device.h"
#include "kv/kv.h"

namespace argent::kv {
namespace {

struct Model {
  uint64_t salt = 0;
  Tokens tokens;
  Tokens wanted;  // what a new request still feeds
};

class Simulation {
 public:
  Simulation(Config config, uint32_t seed, size_t max_open, uint32_t alphabet, std::unique_ptr<Tier> tier)
      : config_(config),
        cache_(*Cache::create(config, std::move(tier))),
        device_(config),
        rng_(seed),
        max_open_(max_open),
        alphabet_(alphabet) {}

  void run(int n_operations) {
    for (int i = 0; i < n_operations && !::testing::Test::HasFatalFailure(); ++i) {
      operation();
      if (below(4) == 0) device_.transfer(cache_);
      if (Tier* tier = cache_.tier(); tier && tier->has_disk() && below(8) == 0)
        tier->write_all(std::chrono::steady_clock::now() + std::chrono::seconds(30));  // a disk that keeps up
      else if (tier)
        tier->poll();
      const Status ok = cache_.check();
      ASSERT_TRUE(ok) << "operation " << i << ": " << ok.error().message;
      if (i % 256 == 0)
        for (auto& [id, model] : open_) device_.expect_readable(cache_, id, model.salt, model.tokens);
    }
    const Counters& c = cache_.counters();
    ::testing::Test::RecordProperty("reused_tokens", std::to_string(c.reused_tokens));
    for (auto& [id, model] : open_) cache_.close(id);
    device_.transfer(cache_);
    cache_.drop_cached();
    if (cache_.tier()) {
      ASSERT_EQ(cache_.tier()->usage().host_bytes, 0);
    }
    ASSERT_TRUE(cache_.check());
    for (uint32_t g = 0; g < config_.groups.size(); ++g) ASSERT_EQ(cache_.usage(g).free, config_.groups[g].n_blocks);
  }

  const Counters& counters() const { return cache_.counters(); }
  const Tier* tier() const { return cache_.tier(); }
  std::set<std::string> seen;  // which interesting things happened

 private:
  uint32_t below(uint32_t n) { return static_cast<uint32_t>(rng_() % n); }
  Tokens random_tokens(uint32_t n) {
    Tokens t(n);
    for (int32_t& token : t) token = static_cast<int32_t>(below(alphabet_));
    return t;
  }
  auto pick() { return std::next(open_.begin(), below(static_cast<uint32_t>(open_.size()))); }

  void operation() {
    if (open_.empty() || (open_.size() < max_open_ && below(16) == 0)) return begin();
    auto it = pick();
    switch (below(32)) {
      case 0:
        return end(it);
      case 1:
        return roll_back(it);
      case 2:
        return open_.size() < max_open_ ? split(it) : end(it);
      case 3:
        return preempt(it);
      default:
        return step(it);
    }
  }

  void verify(SeqId id) { device_.expect_readable(cache_, id, open_[id].salt, open_[id].tokens); }

  void adopt(SeqId id, const Tokens& wanted) {
    const PrefixHit expected = cache_.find_prefix(open_[id].salt, wanted);
    auto hit = cache_.adopt_prefix(id, wanted);
    ASSERT_TRUE(hit) << hit.error().message;
    if (cache_.tier()) {  // as far as there are blocks
      ASSERT_LE(hit->length, expected.length);
      if (hit->length < expected.length) seen.insert("short of blocks");
    } else {
      ASSERT_EQ(hit->length, expected.length);
    }
    ASSERT_EQ(hit->matched, expected.matched);
    ASSERT_TRUE(wanted.empty() ? hit->length == 0 : hit->length < wanted.size());
    if (hit->length) seen.insert("hit");
    if (hit->length && hit->length < hit->matched) seen.insert("shorter hit");
    open_[id].tokens.assign(wanted.begin(), wanted.begin() + hit->length);
    open_[id].wanted.assign(wanted.begin() + hit->length, wanted.end());
    verify(id);
  }

  void begin() {
    Model model{.salt = below(8) == 0 ? 1u : 0u, .tokens = {}, .wanted = {}};
    // A former request's beginning, then something new.
    if (!history_.empty() && below(4) != 0) {
      model.wanted = history_[below(static_cast<uint32_t>(history_.size()))];
      model.wanted.resize(below(static_cast<uint32_t>(model.wanted.size()) + 1));
    }
    const Tokens fresh = random_tokens(1 + below(3 * config_.block_tokens));
    model.wanted.insert(model.wanted.end(), fresh.begin(), fresh.end());
    const SeqId id = cache_.open(model.salt);
    const Tokens wanted = model.wanted;
    open_[id] = model;
    if (const uint64_t read = cache_.load_prefix(model.salt, wanted); read && below(2)) {
      while (!cache_.tier()->arrived(read)) cache_.tier()->wait(std::chrono::seconds(10));
      seen.insert("from disk");
    }
    adopt(id, wanted);
  }

  void step(std::map<SeqId, Model>::iterator it) {
    auto& [id, model] = *it;
    Tokens computed;
    uint32_t accepted;
    if (!model.wanted.empty()) {  // a chunk of the prompt
      const uint32_t n = 1 + below(std::min<uint32_t>(config_.max_step, static_cast<uint32_t>(model.wanted.size())));
      computed.assign(model.wanted.begin(), model.wanted.begin() + n);
      accepted = n;
    } else {  // decode, sometimes with drafts of which some are accepted
      computed = random_tokens(below(2) ? 1 : 1 + below(config_.max_step));
      accepted = 1 + below(static_cast<uint32_t>(computed.size()));
    }
    const auto n = static_cast<uint32_t>(computed.size());
    const auto evicted = cache_.counters().evicted;
    if (Status reserved = cache_.reserve(id, n); !reserved) {
      ASSERT_EQ(reserved.error().code, Code::out_of_memory);
      ASSERT_EQ(cache_.counters().evicted, evicted);
      verify(id);
      seen.insert("exhausted");
      return preempt(pick());
    }
    ASSERT_GE(cache_.capacity(id), cache_.length(id) + n);
    device_.compute(cache_, id, model.salt, computed);
    computed.resize(accepted);
    ASSERT_TRUE(cache_.commit(id, computed));
    model.tokens.insert(model.tokens.end(), computed.begin(), computed.end());
    if (!model.wanted.empty()) model.wanted.erase(model.wanted.begin(), model.wanted.begin() + accepted);
    verify(id);
    if (model.tokens.size() > 12 * config_.block_tokens) end(it);
  }

  void roll_back(std::map<SeqId, Model>::iterator it) {
    auto& [id, model] = *it;
    const auto length = static_cast<uint32_t>(model.tokens.size());
    const uint32_t n = below(2) ? below(length + 1) : length - std::min(length, below(4));
    auto got = cache_.truncate(id, n);
    ASSERT_TRUE(got);
    ASSERT_LE(*got, n);
    ASSERT_TRUE(*got == n || *got % config_.block_tokens == 0);
    if (*got == n && n % config_.block_tokens) seen.insert("exact roll-back");
    if (*got + config_.block_tokens <= n) seen.insert("deeper roll-back");
    model.tokens.resize(*got);
    model.wanted.clear();
    verify(id);
  }

  void split(std::map<SeqId, Model>::iterator it) {
    auto fork = cache_.fork(it->first);
    if (!fork) {
      ASSERT_EQ(fork.error().code, Code::out_of_memory);
      return;
    }
    device_.copy(cache_, fork->copies);
    open_[fork->seq] = it->second;
    verify(fork->seq);
    seen.insert("fork");
  }

  void end(std::map<SeqId, Model>::iterator it) {
    if (history_.size() < 8) history_.emplace_back();
    history_[below(static_cast<uint32_t>(history_.size()))] = it->second.tokens;
    cache_.close(it->first, below(8) != 0);
    open_.erase(it);
  }

  void preempt(std::map<SeqId, Model>::iterator it) {
    const Model model = it->second;
    cache_.close(it->first);
    open_.erase(it);
    Tokens all = model.tokens;
    all.insert(all.end(), model.wanted.begin(), model.wanted.end());
    const SeqId id = cache_.open(model.salt);
    open_[id] = model;
    adopt(id, all);
  }

  Config config_;
  Cache cache_;
  Device device_;
  std::mt19937 rng_;
  size_t max_open_;
  uint32_t alphabet_;
  std::map<SeqId, Model> open_;
  std::vector<Tokens> history_;
};

struct Case {
  const char* name;
  Config config;
  size_t max_open;
  uint64_t host_blocks = 0, disk_blocks = 0;
  friend void PrintTo(const Case& c, std::ostream* os) { *os << c.name; }
};

class KvSimulation : public ::testing::TestWithParam<Case> {};

TEST_P(KvSimulation, TablesAlwaysReadTheSequence) {
  std::set<std::string> seen;
  for (uint32_t seed = 1; seed <= 4; ++seed) {
    TestFolder folder;
    const Case& c = GetParam();
    std::unique_ptr<Tier> tier;
    if (c.host_blocks)
      tier = make_tier(c.config, c.host_blocks, c.disk_blocks,
                       {.folder = folder.path, .log = [](const std::string& line) { ADD_FAILURE() << line; }});
    Simulation simulation(c.config, seed, c.max_open, seed % 2 ? 2 : 3, std::move(tier));
    simulation.run(c.disk_blocks ? 4000 : 20000);
    if (HasFatalFailure()) return;
    seen.merge(simulation.seen);
    if (c.host_blocks) {
      EXPECT_GT(simulation.tier()->counters().host_tokens, 0);
    }
    if (c.disk_blocks) {
      EXPECT_GT(simulation.tier()->counters().disk_tokens, 0);
      EXPECT_GT(simulation.tier()->counters().written, 0);
      EXPECT_EQ(simulation.tier()->counters().lost, 0);
    }
    EXPECT_GT(simulation.counters().merged + !GetParam().config.prefix_cache, 0);
  }
  // The script is worth something only if the rare cases occur.
  const Config& config = GetParam().config;
  std::set<std::string> expected{"exhausted", "fork"};
  if (config.prefix_cache) expected.insert("hit");
  if (config.block_tokens > 1) expected.insert("exact roll-back");
  if (config.groups.back().window) expected.insert("deeper roll-back");
  if (GetParam().host_blocks && !GetParam().disk_blocks && config.groups[0].window == 0)
    expected.insert("short of blocks");
  if (GetParam().disk_blocks) expected.insert("from disk");
  if (config.groups.back().window && config.prefix_cache) expected.insert("shorter hit");
  for (const std::string& what : expected) EXPECT_TRUE(seen.contains(what)) << what;
}

INSTANTIATE_TEST_SUITE_P(
    Configs, KvSimulation,
    ::testing::Values(
        Case{"full", {.block_tokens = 4, .max_step = 9, .groups = {{30, 0}}}, 6},
        Case{"mixed", {.block_tokens = 4, .max_step = 9, .groups = {{40, 0}, {24, 7}}}, 6},
        Case{"sliding_only", {.block_tokens = 2, .max_step = 5, .groups = {{14, 3}}}, 5},
        Case{"three_groups",
             {.block_tokens = 4, .max_step = 6, .rollback = 3, .groups = {{30, 5}, {40, 0}, {36, 0}}},
             8},
        Case{"two_windows", {.block_tokens = 1, .max_step = 4, .groups = {{12, 1}, {26, 9}}}, 4},
        Case{"full_host", {.block_tokens = 4, .max_step = 9, .groups = {{30, 0}}}, 6, 25},
        Case{"mixed_host", {.block_tokens = 4, .max_step = 9, .groups = {{40, 0}, {24, 7}}}, 6, 60},
        Case{"sliding_only_host", {.block_tokens = 2, .max_step = 5, .groups = {{14, 3}}}, 5, 20},
        Case{"three_groups_host",
             {.block_tokens = 4, .max_step = 6, .rollback = 3, .groups = {{30, 5}, {40, 0}, {36, 0}}},
             8,
             40},
        Case{"full_disk", {.block_tokens = 4, .max_step = 9, .groups = {{30, 0}}}, 6, 12, 100},
        Case{"mixed_disk", {.block_tokens = 4, .max_step = 9, .groups = {{40, 0}, {24, 7}}}, 6, 24, 150},
        Case{"no_tree", {.block_tokens = 4, .max_step = 9, .groups = {{30, 0}, {20, 6}}, .prefix_cache = false}, 6}),
    [](const auto& info) { return std::string(info.param.name); });

// With room for everything, a hit is the longest common prefix with anything ever computed.
TEST(KvSimulation, HitsAreTheLongestCommonPrefix) {
  const Config config{.block_tokens = 4, .max_step = 64, .groups = {{4000, 0}, {4000, 10}}};
  Cache cache = *Cache::create(config);
  std::mt19937 rng(7);
  std::vector<Tokens> all;
  for (int i = 0; i < 300; ++i) {
    Tokens request;
    if (!all.empty() && rng() % 4) {
      request = all[rng() % all.size()];
      request.resize(rng() % (request.size() + 1));
    }
    for (auto n = 1 + rng() % 12; n-- > 0;) request.push_back(static_cast<int32_t>(rng() % 2));
    request.resize(std::min<size_t>(request.size(), 60));
    size_t longest = 0;
    for (const Tokens& t : all) {
      const auto [end, ignored] = std::mismatch(request.begin(), request.end() - 1, t.begin(), t.end());
      longest = std::max<size_t>(longest, (end - request.begin()) / 4 * 4);
    }
    const SeqId seq = cache.open();
    const PrefixHit hit = *cache.adopt_prefix(seq, request);
    ASSERT_EQ(hit.length, longest);
    ASSERT_EQ(hit.matched, longest);
    ASSERT_TRUE(cache.reserve(seq, static_cast<uint32_t>(request.size()) - hit.length));
    ASSERT_TRUE(cache.commit(seq, std::span(request).subspan(hit.length)));
    ASSERT_TRUE(cache.check());
    if (rng() % 3) cache.close(seq);
    all.push_back(request);
  }
}

}  // namespace
}  // namespace argent::kv
