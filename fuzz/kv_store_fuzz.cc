// A folder of KV blocks that anybody may have written to. The input is a script: files that the store itself writes, of
// texts and under names that the script gives, then damage to the folder. Whoever opens it afterwards finds only what
// can be there, reads the right bytes or none, and logs plain lines.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "kv/kv.h"

using namespace argent::kv;
namespace fs = std::filesystem;

namespace {

constexpr uint32_t kBlock = 4;
constexpr uint64_t kMaxBytes = 1200;  // six files or so
constexpr std::chrono::hours kLong{1};
const std::vector<uint64_t> kGroupBytes = {64, 96};

using Tokens = std::vector<int32_t>;

void require(bool condition) {
  if (!condition) std::abort();
}

struct Script {
  const uint8_t* data;
  size_t size;
  uint8_t byte() { return size ? (--size, *data++) : 0; }
  uint32_t number(int n_bytes) {
    uint32_t value = 0;
    for (int i = 0; i < n_bytes; ++i) value |= uint32_t(byte()) << 8 * i;
    return value;
  }
  std::string_view bytes(size_t most) {
    const size_t n = std::min(most, size);
    const std::string_view all(reinterpret_cast<const char*>(data), n);
    data += n, size -= n;
    return all;
  }
};

// The texts that are asked for later: four that begin alike in pairs.
Tokens text(uint8_t which, uint32_t n) {
  Tokens tokens(n);
  for (uint32_t i = 0; i < n; ++i) tokens[i] = int32_t(i + 100 * (which & 2) + (i >= kBlock ? 7 * (which & 1) : 0));
  return tokens;
}

// What a block holds whose text this is.
std::string content(uint64_t salt, const Tokens& tokens, uint32_t group) {
  std::string bytes(kGroupBytes[group], '\0');
  const DiskName name = disk_name(salt, tokens);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = char((i % 2 ? name.high : name.low) >> i % 64) ^ char(group);
  return bytes;
}

struct Folder {
  Folder() {
    const fs::path base = fs::exists("/dev/shm") ? fs::path("/dev/shm") : fs::temp_directory_path();
    path = base / ("argent_kv_fuzz_" + std::to_string(::getpid()));
    fs::remove_all(path);
  }
  ~Folder() {
    fs::remove_all(path);
    require(!fs::exists(path));
  }
  DiskConfig config() const {
    const auto log = [](const std::string& line) {
      require(!line.empty() && line.size() < 600);
      for (const char c : line) require(uint8_t(c) >= 0x20 && uint8_t(c) < 0x7f);
    };
    return {.folder = path,
            .block_tokens = kBlock,
            .group_bytes = kGroupBytes,
            .max_bytes = kMaxBytes,
            .retry = kLong,
            .log = log};
  }

  fs::path path;
};

void write(DiskStore& store, Script& script) {
  const uint8_t how = script.byte();
  const uint32_t n = kBlock * (1 + how % 4), group = how >> 2 & 1;
  DiskBlock block{{}, group, script.byte(), text(how >> 3 & 3, n)};
  if (how & 0x20)
    for (uint32_t i = 0; i < n; ++i) block.tokens[i] = int32_t(script.number(4));
  block.name = how & 0x40 ? DiskName{script.number(4), script.number(4)} : disk_name(block.salt, block.tokens);
  const std::string bytes = content(block.salt, block.tokens, group);
  store.write(0, block, reinterpret_cast<const std::byte*>(bytes.data()));
  for (;;) {
    store.wait_done(std::chrono::steady_clock::now() + kLong);
    for (const DiskDone& done : store.take_done())
      if (done.kind == DiskDone::written) return require(done.ok);
  }
}

void put(const fs::path& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), std::streamsize(bytes.size()));
}

void damage(const Folder& folder, Script& script) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder.path)) files.push_back(entry.path());
  if (files.empty()) return;
  std::sort(files.begin(), files.end());
  const uint8_t how = script.byte();
  const fs::path& file = files[script.byte() % files.size()];
  const fs::path& other = files[script.byte() % files.size()];
  std::error_code ignored;  // what cannot be done is not done
  switch (how % 10) {
    case 0: {  // bytes in the middle
      std::fstream stream(file, std::ios::binary | std::ios::in | std::ios::out);
      stream.seekp(script.byte());
      const std::string_view bytes = script.bytes(1 + (how >> 4));
      stream.write(bytes.data(), std::streamsize(bytes.size()));
      break;
    }
    case 1:
      fs::resize_file(file, script.number(1 + (how >> 4) % 3), ignored);
      break;
    case 2:
      fs::rename(file, other, ignored);
      break;
    case 3: {  // under the name of another group or text
      std::string name = file.filename();
      if (!name.empty()) name[script.byte() % name.size()] = char('0' + script.byte() % 10);
      fs::rename(file, folder.path / name, ignored);
      break;
    }
    case 4:
      fs::copy_file(file, other, fs::copy_options::overwrite_existing, ignored);
      break;
    case 5:
      if (fs::remove(file, ignored)) fs::create_symlink(other, file, ignored);
      break;
    case 6:
      if (fs::remove(file, ignored)) fs::create_directory(file, ignored);
      break;
    case 7:
      if (fs::remove(file, ignored)) (void)::mkfifo(file.c_str(), 0600);
      break;
    case 8:
      if (fs::is_regular_file(fs::symlink_status(file))) put(file, script.bytes(script.number(2)));
      break;
    case 9: {  // any name
      std::string name(script.bytes(1 + script.byte() % 60));
      for (char& c : name)
        if (c == '/' || c == '\0') c = '-';
      if (!name.empty() && !fs::exists(fs::symlink_status(folder.path / name)))
        put(folder.path / name, script.bytes(80));
      break;
    }
  }
}

// What the store says is there.
void look(const Folder& folder, Script& script) {
  DiskStore store(folder.config());
  std::vector<DiskDone> all;
  const auto next = [&] {
    while (all.empty()) {
      store.wait_done(std::chrono::steady_clock::now() + kLong);
      all = store.take_done();
    }
    const DiskDone done = std::move(all.front());
    all.erase(all.begin());
    return done;
  };
  const DiskDone scanned = next();
  require(scanned.kind == DiskDone::scanned && (scanned.ok || scanned.files.empty()));
  uint64_t bytes = 0;
  uint32_t longest = 0;
  for (const DiskFile& file : scanned.files) {
    require(file.group < kGroupBytes.size() && file.tokens.size() == kBlock);
    require(file.n_tokens >= std::max(longest, kBlock) && file.n_tokens % kBlock == 0);
    require((file.n_tokens == kBlock) == (file.parent == DiskName{}));
    if (file.n_tokens == kBlock) require(file.name == disk_name(file.salt, file.tokens));
    longest = file.n_tokens;
    bytes += disk_file_bytes(kGroupBytes[file.group], file.n_tokens);
  }
  require(bytes <= kMaxBytes);
  for (int i = 0; i < 4; ++i) {
    const uint8_t how = script.byte();
    const uint32_t group = how & 1;
    const uint64_t salt = how >> 5;
    const Tokens tokens = text(how >> 1 & 3, kBlock * (1 + (how >> 3 & 3)));
    const std::string wanted = content(salt, tokens, group);
    std::string got(wanted.size(), '\0');
    store.read(i, {disk_name(salt, tokens), group, salt, tokens}, reinterpret_cast<std::byte*>(got.data()));
    const DiskDone read = next();
    require(read.kind == DiskDone::read && read.item == i && (!read.ok || got == wanted));
  }
}

// What the cache gives of it.
void use(const Folder& folder) {
  auto disk = std::make_unique<DiskStore>(folder.config());
  TierConfig config{.block_tokens = kBlock, .group_bytes = kGroupBytes, .host_bytes = 1000, .disk_bytes = kMaxBytes};
  auto tier = std::make_unique<Tier>(std::move(config), std::move(disk));
  tier->wait_for_disk(std::chrono::steady_clock::now() + kLong);
  require(bool(tier->check()));
  Cache cache = *Cache::create({.block_tokens = kBlock, .max_step = 16, .groups = {{8, 0}, {6, 6}}}, std::move(tier));
  for (uint8_t which = 0; which < 4; ++which) {
    const Tokens prompt = text(which, 4 * kBlock + 1);
    if (const uint64_t read = cache.load_prefix(0, prompt))
      while (!cache.tier()->arrived(read)) cache.tier()->wait(kLong);
    const SeqId seq = cache.open();
    require(bool(cache.adopt_prefix(seq, prompt)));
    for (const Transfer& t : cache.tier()->transfers()) {
      if (t.save) continue;
      const auto table = cache.table(seq, t.group);
      const auto at = size_t(std::find(table.begin(), table.end(), t.block) - table.begin());
      require(at < table.size());
      const Tokens upto(prompt.begin(), prompt.begin() + ptrdiff_t((at + 1) * kBlock));
      require(std::memcmp(t.host, content(0, upto, t.group).data(), kGroupBytes[t.group]) == 0);
    }
    cache.tier()->transferred();
    cache.close(seq);
    require(bool(cache.check()) && bool(cache.tier()->check()));
  }
  cache.tier()->write_all(std::chrono::steady_clock::now() + kLong);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Script script{data, size};
  const Folder folder;
  const uint8_t how = script.byte();
  {
    DiskStore store(folder.config());
    for (int i = how % 8; i > 0; --i) write(store, script);
    if (how % 8 == 0) store.wait_done(std::chrono::steady_clock::now() + kLong);
  }
  for (int i = how >> 3 & 7; i > 0; --i) damage(folder, script);
  how & 0x40 ? use(folder) : look(folder, script);
  return 0;
}
