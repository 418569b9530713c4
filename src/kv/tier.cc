#include "kv/tier.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <new>
#include <utility>

namespace argent::kv {
namespace {

constexpr uint64_t kBufferAlignment = 64;
constexpr uint64_t kChunkBytes = 64 << 20;
constexpr uint64_t kWritesInFlight = 16 << 20;  // bytes that wait for the disk at once
constexpr int kColdItems = 64;                  // the next to leave host memory, which should be on disk by then

uint64_t index_capacity(const TierConfig& config) {
  const uint64_t least = *std::min_element(config.group_bytes.begin(), config.group_bytes.end());
  // Nodes on the way to an item mostly have items themselves.
  const uint64_t items = config.host_bytes / least + config.disk_bytes / least;
  return std::min<uint64_t>(4 * items + (1 << 16), INT32_MAX / 2);
}

}  // namespace

Tier::Tier(TierConfig config, std::unique_ptr<DiskStore> disk)
    : config_(std::move(config)),
      index_(config_.block_tokens, uint32_t(config_.group_bytes.size()), index_capacity(config_)),
      buffers_(config_.group_bytes.size()),
      untouched_(config_.group_bytes.size()),
      n_places_(config_.group_bytes.size()),
      disk_(std::move(disk)) {}

// ---- items ----

int32_t Tier::add(int32_t parent, uint64_t salt, std::span<const int32_t> tokens) {
  const int32_t node = index_.find(parent, salt, tokens);
  if (node != kNone || index_.full()) return node;
  try {
    return index_.insert(parent, salt, tokens);
  } catch (const std::bad_alloc&) {
    return kNone;
  }
}

void Tier::prune(int32_t node) {
  while (node != kNone && index_.empty_leaf(node)) {
    const int32_t parent = index_.parent(node);
    index_.remove(node);
    node = parent;
  }
}

// With all the room that the item takes in any list, so that nothing that happens to it later takes memory.
int32_t Tier::new_item(int32_t node, uint32_t group) {
  if (unused_.empty()) {
    const size_t n = items_.size() + 1;
    make_room(unused_, n);
    make_room(fresh_, n);
    for (IdList* list : {&host_[0], &host_[1], &disk_list_}) list->make_room(int32_t(n));
    items_.emplace_back();
    unused_.push_back(int32_t(n - 1));
  }
  const int32_t id = unused_.back();
  unused_.pop_back();
  items_[id] = {.node = node, .group = group};
  index_.block(node, group) = id;
  return id;
}

bool Tier::in_host(int32_t node, uint32_t group) const {
  const int32_t id = item_of(node, group);
  return id != kNone && items_[id].data && !items_[id].loading;
}

bool Tier::on_disk(int32_t node, uint32_t group) const {
  const int32_t id = item_of(node, group);
  return id != kNone && items_[id].on_disk;
}

// Puts an item at the end of its list, that of items that were asked for.
void Tier::touch(int32_t id) {
  Item& item = items_[id];
  host_list(item).erase(id);
  if (std::exchange(item.passed, false)) passed_bytes_ -= config_.group_bytes[item.group];
  host_list(item).push_back(id);
  if (!item.on_disk) return;
  disk_list_.erase(id);
  disk_list_.push_back(id);
}

// Host memory of an item that is no longer used.
void Tier::drop_data(Item& item, int32_t id) {
  host_list(item).erase(id);
  const uint64_t bytes = config_.group_bytes[item.group];
  if (std::exchange(item.passed, false)) passed_bytes_ -= bytes;
  usage_.host_bytes -= bytes;
  buffers_[item.group].push_back(std::exchange(item.data, nullptr));
  item.from_disk = false;
}

void Tier::drop_file(Item& item, int32_t id) {
  disk_list_.erase(id);
  usage_.disk_bytes -= item.file_bytes;
  item.on_disk = false;
}

void Tier::drop_if_empty(int32_t id) {
  Item& item = items_[id];
  if (item.data || item.on_disk) return;
  if (item.node != kNone) {
    index_.block(item.node, item.group) = kNone;
    prune(item.node);
  }
  item = {};
  unused_.push_back(id);
}

// Nobody finds the item from now on; it goes when nothing uses its buffer.
void Tier::doom(int32_t id) {
  Item& item = items_[id];
  if (item.on_disk || item.writing) disk_->remove(item.name, item.group);  // behind the write, before another one
  if (item.on_disk) drop_file(item, id);
  if (!item.busy(epoch_)) {
    if (item.data) drop_data(item, id);
    drop_if_empty(id);
    return;
  }
  if (!item.loading) {
    std::byte* data = item.data;
    drop_data(item, id);
    buffers_[item.group].pop_back();
    item.data = data;
  }
  item.doomed = true;
  index_.block(item.node, item.group) = kNone;
  prune(std::exchange(item.node, kNone));
  if (item.epoch == epoch_) fresh_.push_back(id);
}

void Tier::release_doomed(int32_t id) {
  Item& item = items_[id];
  if (!item.doomed || item.busy(epoch_)) return;
  buffers_[item.group].push_back(item.data);
  item = {};
  unused_.push_back(id);
}

void Tier::forget(int32_t node) {
  ++index_.pins(node);
  for (uint32_t g = 0; g < config_.group_bytes.size(); ++g)
    if (item_of(node, g) != kNone) doom(item_of(node, g));
  --index_.pins(node);
  prune(node);
}

void Tier::clear() {
  for (int32_t id = 0; id < int32_t(items_.size()); ++id)
    if (items_[id].node != kNone) doom(id);
}

// ---- host memory ----

// A buffer of a group's blocks within the bound, or null: everything that could go is in use.
std::byte* Tier::take_buffer(uint32_t group) {
  for (;;) {
    if (!buffers_[group].empty()) {
      std::byte* buffer = buffers_[group].back();
      buffers_[group].pop_back();
      return buffer;
    }
    if (allocated_ + config_.group_bytes[group] <= config_.host_bytes) return new_buffer(group);
    // Blocks of other groups have other sizes.
    const auto other = std::find_if(buffers_.begin(), buffers_.end(), [](const auto& b) { return !b.empty(); });
    if (other != buffers_.end())
      give_back(uint32_t(other - buffers_.begin()));
    else if (!evict_one())
      return nullptr;
  }
}

// Cut from chunks of huge pages: the first touch of a block's small pages would cost several times its copy. Null: the
// system has no memory for another chunk.
std::byte* Tier::new_buffer(uint32_t group) {
  const uint64_t bytes = config_.group_bytes[group];
  const uint64_t stride = (bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
  if (untouched_[group].empty()) {
    const uint64_t n = std::max<uint64_t>(1, std::min(kChunkBytes / stride, config_.host_bytes / bytes));
    const uint64_t n_places = n_places_[group] + n;
    try {  // all the room that these places take in any list
      make_room(chunks_, chunks_.size() + 1);
      make_room(untouched_[group], n_places);
      make_room(buffers_[group], n_places);
    } catch (const std::bad_alloc&) {
      return nullptr;
    }
    Result<HugePages> chunk = HugePages::allocate(n * stride);
    if (!chunk) return nullptr;
    for (uint64_t i = n; i-- > 0;)
      untouched_[group].push_back(reinterpret_cast<std::byte*>(chunk->data()) + i * stride);
    n_places_[group] = n_places;
    chunks_.push_back(*std::move(chunk));
  }
  std::byte* buffer = untouched_[group].back();
  untouched_[group].pop_back();
  allocated_ += bytes;
  return buffer;
}

// Gives the memory of a free buffer back to the system, but for pages that it shares with its neighbours.
void Tier::give_back(uint32_t group) {
  std::byte* buffer = buffers_[group].back();
  buffers_[group].pop_back();
  untouched_[group].push_back(buffer);
  allocated_ -= config_.group_bytes[group];
  static const uintptr_t page = uintptr_t(sysconf(_SC_PAGESIZE));
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(buffer) + page - 1) / page * page;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(buffer) + config_.group_bytes[group]) / page * page;
  if (end > begin) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

// What windows passed by may have a quarter of the memory: a long prompt would push everything else out with blocks
// that matter only if somebody's prompt ends there.
bool Tier::evict_one() {
  const bool passed_first = passed_bytes_ > config_.host_bytes / 4;
  for (const bool passed : {passed_first, !passed_first})
    for (int32_t id = host_[passed].front(); id != kNone; id = host_[passed].next(id)) {
      Item& item = items_[id];
      if (item.busy(epoch_)) continue;
      drop_data(item, id);
      drop_if_empty(id);
      ++counters_.evicted;
      return true;
    }
  return false;
}

void Tier::save(int32_t node, uint32_t group, int32_t block, bool passed) {
  int32_t id = item_of(node, group);
  if (id != kNone && items_[id].data) {  // the same tokens: the same bytes
    if (!items_[id].loading) touch(id);
    return;
  }
  ++index_.pins(node);
  std::byte* data = take_buffer(group);
  --index_.pins(node);
  if (!data) return;
  id = item_of(node, group);  // it may have been a file, and may have gone
  try {
    make_room(transfers_, transfers_.size() + 1);
    if (id == kNone) id = new_item(node, group);
  } catch (const std::bad_alloc&) {
    return buffers_[group].push_back(data);
  }
  Item& item = items_[id];
  item.data = data;
  item.epoch = epoch_;
  item.passed = passed;
  host_list(item).push_back(id);
  if (passed) passed_bytes_ += config_.group_bytes[group];
  usage_.host_bytes += config_.group_bytes[group];
  transfers_.push_back({true, group, block, data});
  ++counters_.saved;
}

void Tier::hold(int32_t node, uint32_t group) {
  const int32_t id = item_of(node, group);
  items_[id].epoch = epoch_;
  touch(id);
}

bool Tier::restore(int32_t node, uint32_t group, int32_t block) {
  Item& item = items_[item_of(node, group)];
  item.epoch = epoch_;
  transfers_.push_back({false, group, block, item.data});
  ++counters_.restored;
  return std::exchange(item.from_disk, false);
}

void Tier::count_restored(uint64_t tokens, bool from_disk) {
  (from_disk ? counters_.disk_tokens : counters_.host_tokens) += tokens;
}

void Tier::transferred() {
  transfers_.clear();
  ++epoch_;
  for (const int32_t id : fresh_) release_doomed(id);
  fresh_.clear();  // keeps the room that new_item() has made
}

// ---- disk ----

uint64_t Tier::n_tokens(const Item& item) const {
  uint64_t n = 0;
  for (int32_t node = item.node; node != kNone; node = index_.parent(node)) n += config_.block_tokens;
  return n;
}

DiskBlock Tier::disk_block(const Item& item) const {
  DiskBlock block{.name = {}, .group = item.group, .salt = 0, .tokens = {}};
  std::vector<int32_t> path;
  for (int32_t node = item.node; node != kNone; node = index_.parent(node)) path.push_back(node);
  block.salt = index_.salt(path.back());
  block.tokens.reserve(path.size() * config_.block_tokens);
  for (auto node = path.rbegin(); node != path.rend(); ++node) {
    const auto tokens = index_.tokens(*node);
    block.tokens.insert(block.tokens.end(), tokens.begin(), tokens.end());
  }
  block.name = disk_name(block.salt, block.tokens);
  return block;
}

uint64_t Tier::load(int32_t node, uint32_t group) {
  const int32_t id = item_of(node, group);
  if (items_[id].loading) return items_[id].read;
  const uint64_t bytes = config_.group_bytes[group];
  if (!disk_ || loading_bytes_ + bytes > load_limit()) return 0;
  items_[id].loading = true;  // so that it stays while others go
  std::byte* data = take_buffer(group);
  Item& item = items_[id];
  if (!data) {
    item.loading = false;
    return 0;
  }
  try {
    disk_->read(id, disk_block(item), data);
  } catch (const std::bad_alloc&) {
    buffers_[group].push_back(data);
    item.loading = false;
    return 0;
  }
  item.data = data;
  item.read = ++n_reads_;
  loading_bytes_ += bytes;
  return item.read;
}

// Files that were used longest ago make room. False: it cannot be written now.
bool Tier::write(int32_t id) {
  if (!writable_) return false;
  DiskBlock block = disk_block(items_[id]);
  const uint64_t bytes = disk_file_bytes(config_.group_bytes[items_[id].group], block.tokens.size());
  for (int32_t old = disk_list_.front(); usage_.disk_bytes + writing_bytes_ + bytes > config_.disk_bytes;) {
    while (old != kNone && items_[old].loading) old = disk_list_.next(old);
    if (old == kNone) return false;
    const int32_t gone = std::exchange(old, disk_list_.next(old));
    drop_file(items_[gone], gone);
    disk_->remove(items_[gone].name, items_[gone].group);
    drop_if_empty(gone);
  }
  Item& item = items_[id];
  const DiskName name = block.name;
  disk_->write(id, std::move(block), item.data);
  item.name = name;
  item.file_bytes = bytes;
  item.writing = true;
  writing_bytes_ += bytes;
  return true;
}

void Tier::write_cold() {
  if (!writable_ || usage_.host_bytes <= config_.host_bytes / 2) return;
  for (const IdList& list : host_) {
    int32_t id = list.front();
    for (int i = 0; i < kColdItems && id != kNone && writing_bytes_ < kWritesInFlight; ++i, id = list.next(id))
      if (!items_[id].on_disk && !items_[id].busy(epoch_) && !write(id)) return;
  }
}

bool Tier::write_all(std::chrono::steady_clock::time_point deadline) {
  std::vector<int32_t> wanted;
  const uint64_t failed_before = n_failed_writes_;
  uint64_t bytes = 0;
  for (const IdList& list : host_)
    for (int32_t id = list.back(); id != kNone; id = list.prev(id)) {
      bytes += disk_file_bytes(config_.group_bytes[items_[id].group], n_tokens(items_[id]));
      if (bytes > config_.disk_bytes) break;  // older ones would push newer ones out
      if (!items_[id].on_disk && !items_[id].busy(epoch_)) wanted.push_back(id);
    }
  const auto wait_below = [&](uint64_t limit) {
    while (writing_bytes_ > limit) {
      if (!disk_->wait_done(deadline)) return false;
      for (DiskDone& done : disk_->take_done()) take(std::move(done));
    }
    return true;
  };
  for (const int32_t id : wanted)
    if (!wait_below(kWritesInFlight) || !write(id)) return false;
  return wait_below(0) && n_failed_writes_ == failed_before;
}

void Tier::poll() {
  if (!disk_) return;
  for (DiskDone& done : disk_->take_done()) take(std::move(done));
  try {
    write_cold();
  } catch (const std::bad_alloc&) {  // later
  }
}

void Tier::wait(std::chrono::milliseconds patience) {
  if (disk_) disk_->wait_done(std::chrono::steady_clock::now() + patience);
  poll();
}

void Tier::wait_for_disk(std::chrono::steady_clock::time_point deadline) {
  while (disk_ && !scanned_ && disk_->wait_done(deadline)) poll();
}

void Tier::take(DiskDone done) {
  if (done.kind == DiskDone::scanned) {
    scanned_ = true;
    writable_ = done.ok;
    return done.ok ? take_scan(std::move(done.files)) : void();
  }
  const int32_t id = done.item;
  Item& item = items_[id];
  const uint64_t bytes = config_.group_bytes[item.group];
  if (done.kind == DiskDone::written) {
    item.writing = false;
    writing_bytes_ -= item.file_bytes;
    writable_ = writable_ && done.ok;  // until it is looked through again
    n_failed_writes_ += !done.ok;
    if (item.doomed) return release_doomed(id);
    if (!done.ok || item.on_disk) return;
    item.on_disk = true;
    disk_list_.push_back(id);
    usage_.disk_bytes += item.file_bytes;
    ++counters_.written;
    return;
  }
  item.loading = false;
  loading_bytes_ -= bytes;
  ++n_arrived_;
  if (item.doomed) return release_doomed(id);
  if (done.ok) {
    item.from_disk = true;
    host_list(item).push_back(id);
    usage_.host_bytes += bytes;
    touch(id);
    ++counters_.read;
    return;
  }
  ++counters_.lost;
  disk_->complain(item.name, item.group, done.why);
  buffers_[item.group].push_back(std::exchange(item.data, nullptr));
  if (item.on_disk) {
    drop_file(item, id);
    disk_->remove(item.name, item.group);
  }
  drop_if_empty(id);
}

// All that is in the folder, by length: what was known of it before counts no longer.
void Tier::take_scan(std::vector<DiskFile> files) {
  std::map<DiskName, int32_t> nodes;
  for (int32_t id = 0; id < int32_t(items_.size()); ++id) {
    Item& item = items_[id];
    if (!item.on_disk) continue;
    nodes[item.name] = item.node;
    drop_file(item, id);
  }
  struct Found {
    int64_t used;
    int32_t node;
    uint32_t group;
  };
  std::vector<Found> found;
  for (const DiskFile& file : files) {
    const bool first = file.n_tokens == config_.block_tokens;
    const auto parent = first ? nodes.end() : nodes.find(file.parent);
    const bool reachable = first || parent != nodes.end();
    const int32_t node = reachable ? add(first ? kNone : parent->second, file.salt, file.tokens) : kNone;
    if (node == kNone) {
      disk_->remove(file.name, file.group);
      continue;
    }
    nodes[file.name] = node;
    int32_t id = item_of(node, file.group);
    if (id == kNone) id = new_item(node, file.group);
    items_[id].name = file.name;
    items_[id].file_bytes = disk_file_bytes(config_.group_bytes[file.group], file.n_tokens);
    found.push_back({file.used, node, file.group});
  }
  // A prefix is as recent as what builds on it, and leaves after it.
  std::map<int32_t, int64_t> used;
  for (auto f = found.rbegin(); f != found.rend(); ++f) {
    int64_t& own = used[f->node];
    f->used = own = std::max(own, f->used);
    if (const int32_t parent = index_.parent(f->node); parent != kNone) used[parent] = std::max(used[parent], own + 1);
  }
  std::stable_sort(found.begin(), found.end(), [](const Found& a, const Found& b) { return a.used < b.used; });
  for (const Found& f : found) {
    const int32_t id = item_of(f.node, f.group);
    items_[id].on_disk = true;
    disk_list_.push_back(id);
    usage_.disk_bytes += items_[id].file_bytes;
  }
  for (int32_t id = 0; id < int32_t(items_.size()); ++id)
    if (items_[id].node != kNone && !items_[id].data && !items_[id].on_disk) drop_if_empty(id);
}

// ---- invariants ----

Status Tier::check() const {
  TierUsage usage;
  uint64_t allocated = 0, passed = 0, writing = 0, loading = 0;
  size_t n_unused = 0, n_host = 0, n_disk = 0;
  for (int32_t id = 0; id < int32_t(items_.size()); ++id) {
    const Item& item = items_[id];
    const uint64_t bytes = config_.group_bytes[item.group];
    if (item.data) allocated += bytes;
    if (item.writing) writing += item.file_bytes;
    if (item.loading) loading += bytes;
    if (item.doomed && (item.node != kNone || !item.busy(epoch_) || item.on_disk))
      return fail(Code::internal, "tier: item {} is doomed and stays", id);
    if (item.node == kNone) {
      if (!item.doomed && item.data) return fail(Code::internal, "tier: unused item {} has bytes", id);
      n_unused += !item.doomed;
      continue;
    }
    if (!index_.live(item.node) || item_of(item.node, item.group) != id)
      return fail(Code::internal, "tier: item {} is not its node's", id);
    if (!item.data && !item.on_disk) return fail(Code::internal, "tier: item {} is nowhere", id);
    if ((item.loading || item.writing) && !item.data) return fail(Code::internal, "tier: item {} lost its buffer", id);
    if (item.data && !item.loading) {
      ++n_host;
      usage.host_bytes += bytes;
      if (item.passed) passed += bytes;
    }
    if (item.on_disk) ++n_disk, usage.disk_bytes += item.file_bytes;
  }
  for (size_t g = 0; g < buffers_.size(); ++g) allocated += buffers_[g].size() * config_.group_bytes[g];
  if (n_unused != unused_.size())
    return fail(Code::internal, "tier: {} items unused, {} kept", n_unused, unused_.size());
  if (allocated != allocated_ || allocated > config_.host_bytes)
    return fail(Code::internal, "tier: {} bytes allocated, {} counted, {} allowed", allocated, allocated_,
                config_.host_bytes);
  if (usage.host_bytes != usage_.host_bytes || usage.disk_bytes != usage_.disk_bytes || passed != passed_bytes_ ||
      writing != writing_bytes_ || loading != loading_bytes_)
    return fail(Code::internal, "tier: bytes miscounted: host {} {}, disk {} {}, passed {} {}", usage.host_bytes,
                usage_.host_bytes, usage.disk_bytes, usage_.disk_bytes, passed, passed_bytes_);
  if (usage_.disk_bytes + writing_bytes_ > config_.disk_bytes)
    return fail(Code::internal, "tier: {} bytes of files, {} allowed", usage_.disk_bytes, config_.disk_bytes);
  for (const IdList& list : host_)
    for (int32_t id = list.front(); id != kNone; id = list.next(id), --n_host)
      if (items_[id].passed != (&list == &host_[1]) || !items_[id].data || items_[id].loading)
        return fail(Code::internal, "tier: item {} is in the wrong list", id);
  for (int32_t id = disk_list_.front(); id != kNone; id = disk_list_.next(id), --n_disk)
    if (!items_[id].on_disk) return fail(Code::internal, "tier: item {} is in the wrong list", id);
  if (n_host != 0 || n_disk != 0) return fail(Code::internal, "tier: items are in no list");
  for (int32_t node = 0; node < int32_t(index_.n_slots()); ++node)
    if (index_.live(node) && (index_.empty_leaf(node) || index_.pins(node) != 0))
      return fail(Code::internal, "tier: node {} leads nowhere", node);
  return {};
}

}  // namespace argent::kv
