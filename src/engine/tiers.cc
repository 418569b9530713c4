// The engine's part in the tiers of evicted KV blocks: what they may take, what a block on disk depends on, transfers
// between steps, and waiting for the disk.
#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include "engine/engine.h"

namespace argent {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kMostHostBytes = 1ull << 30, kUnknownHostBytes = 256ull << 20;
constexpr std::chrono::seconds kScanPatience{2}, kSavePatience{10};
constexpr std::chrono::milliseconds kWait{10};  // after which a waiting step looks whether there are new requests
// A prompt whose blocks are read from disk goes on without them when none has come for so long.
constexpr std::chrono::milliseconds kDiskPatience{250};
constexpr uint64_t kSaveBytes = 64ull << 20;  // saved at once when the engine ends

// Everything that the bytes of a KV block depend on but its tokens: the model's files, and `format`.
std::array<uint8_t, 16> hash_of(const gguf::File& file, const std::string& format) {
  XXH3_state_t* state = XXH3_createState();
  XXH3_128bits_reset(state);
  for (const gguf::Shard& shard : file.shards()) XXH3_128bits_update(state, shard.bytes.data(), shard.bytes.size());
  XXH3_128bits_update(state, format.data(), format.size());
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state));
  XXH3_freeState(state);
  std::array<uint8_t, 16> hash;
  std::memcpy(hash.data(), canonical.digest, hash.size());
  return hash;
}

}  // namespace

// Without a number, what is left beside everything else bounds it.
void Engine::settle_tiers() {
  MemoryUse& host = memory_.devices[0];
  if (!options_.prefix_cache) host.kv_host_bytes = 0;
  if (options_.prefix_cache && !options_.kv_host_bytes) {
    const uint64_t free = host.free_bytes, needed = host.needed_bytes();
    host.kv_host_bytes = free == 0        ? kUnknownHostBytes
                         : free <= needed ? 0
                                          : std::min({kMostHostBytes, free / 8, (free - needed) / 2});
  }
  add_up();
}

Result<std::unique_ptr<kv::Tier>> Engine::make_tier() {
  if (!options_.kv_disk.empty() && memory_.kv_host_bytes == 0)
    return fail(Code::invalid,
                "a KV tier on disk ({}) goes through host memory, and none is left for it: wanted more "
                "than 0 bytes (--kv-host-bytes)",
                options_.kv_disk);
  std::unique_ptr<kv::Tier> none;
  if (memory_.kv_host_bytes == 0) return none;
  kv::TierConfig config{.block_tokens = kKvBlockTokens, .group_bytes = {}, .host_bytes = memory_.kv_host_bytes};
  for (uint32_t g = 0; g < kv_config_.groups.size(); ++g) config.group_bytes.push_back(backend_->kv_block_bytes(g));
  std::unique_ptr<kv::DiskStore> disk;
  if (!options_.kv_disk.empty()) {
    kv::DiskConfig d{.folder = {}, .block_tokens = config.block_tokens, .group_bytes = config.group_bytes};
    d.model = hash_of(file_, fmt::format("{} {} fuse {}", options_.program, backend_->kv_format(), options_.fuse));
    for (const uint8_t byte : d.model) fmt::format_to(std::back_inserter(d.folder), "{:02x}", byte);
    d.folder = options_.kv_disk + "/" + d.folder;
    d.max_bytes = config.disk_bytes = options_.kv_disk_bytes;
    d.retry = options_.kv_disk_retry;
    d.log = options_.log;
    disk = std::make_unique<kv::DiskStore>(std::move(d));
  }
  auto tier = std::make_unique<kv::Tier>(std::move(config), std::move(disk));
  tier->wait_for_disk(Clock::now() + kScanPatience);  // so that a server that is started again knows its prefixes
  return tier;
}

// Copies what the cache wants copied between the device and the host; before any step that writes blocks.
Status Engine::transfer() {
  kv::Tier* tier = cache_->tier();
  if (!tier) return {};
  const std::span<const kv::Transfer> all = tier->transfers();
  Status status;
  for (size_t i = 0; i < all.size() && status;) {
    transfers_.clear();
    const bool save = all[i].save;
    for (; i < all.size() && all[i].save == save; ++i) transfers_.push_back({all[i].group, all[i].block, all[i].host});
    status = save ? backend_->save_blocks(transfers_) : backend_->restore_blocks(transfers_);
  }
  tier->transferred();
  if (status) return {};
  for (Sequence& s : sequences_) detach(s, false);  // nobody knows what stands in the blocks
  cache_->drop_cached();
  return status;
}

// Begins to read what the disk has of a text that is about to be computed.
void Engine::load_from_disk(Sequence& s) {
  if (!cache_->tier() || !cache_->tier()->has_disk() || s.mode.all_rows) return;
  s.load = cache_->load_prefix(0, s.tokens);
  if (s.load) last_arrival_ = Clock::now();
}

// Lets those go on whose blocks have come from disk, and those who have waited long enough.
void Engine::take_arrivals() {
  kv::Tier* tier = cache_->tier();
  if (!tier) return;
  const uint64_t before = tier->n_arrived();
  tier->poll();
  const auto now = Clock::now();
  if (tier->n_arrived() != before) last_arrival_ = now;
  for (Sequence& s : sequences_) {
    if (s.load == 0 || (!tier->arrived(s.load) && now - last_arrival_ < kDiskPatience)) continue;
    s.load = 0;
    if (!s.has_kv || cache_->find_prefix(0, s.tokens).length <= cache_->length(s.kv)) continue;
    detach(s, true);  // attach() finds more now
  }
}

// A step that computes nothing: waits a little for the disk if somebody waits for it. False: nobody does.
bool Engine::wait_for_disk() {
  const bool any = std::any_of(sequences_.begin(), sequences_.end(),
                               [](const Sequence& s) { return s.open && !s.paused && s.load != 0; });
  if (any) cache_->tier()->wait(kWait);
  return any;
}

// What is in host memory goes to disk, then what the device still has, the latest used first, as long as that is quick.
Engine::~Engine() {
  kv::Tier* tier = cache_ ? cache_->tier() : nullptr;
  if (!tier || !tier->has_disk()) return;
  const auto deadline = Clock::now() + kSavePatience;
  for (Sequence& s : sequences_) detach(s, true);
  sequences_.clear();
  if (!transfer() || !tier->write_all(deadline)) return;
  const auto save = [&] { return bool(transfer()) && tier->write_all(deadline); };
  const uint64_t most = std::min(kSaveBytes, memory_.kv_host_bytes / 2);
  uint64_t bytes = 0;
  size_t seen = 0;
  bool good = true;
  cache_->save_cached([&] {
    for (; seen < tier->transfers().size(); ++seen) bytes += tier->group_bytes(tier->transfers()[seen].group);
    if (bytes < most) return true;
    good = save();
    bytes = seen = 0;
    return good;
  });
  if (good) save();
}

}  // namespace argent
