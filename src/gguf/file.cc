#include <sys/stat.h>

#include <algorithm>
#include <filesystem>

#include "gguf/gguf.h"
#include "gguf/parser.h"
#include "gguf/split.h"

namespace argent::gguf {

namespace {

// The split.* keys of one shard.
struct SplitKeys {
  uint32_t no = 0, count = 0, n_tensors = 0;
};

// Nothing if the file is not split.
Result<std::optional<SplitKeys>> read_split_keys(const Header& header, const std::string& path) {
  const auto find = [&](std::string_view key) -> const Value* {
    for (const Entry& entry : header.entries)
      if (entry.key == key) return &entry.value;
    return nullptr;
  };
  const auto wrong = [&](std::string_view key, const Value* value, std::string_view wanted) {
    return fail(Code::invalid, "{}: key '{}' is {}, wanted {}", path, key, value ? value->describe() : "missing",
                wanted);
  };
  const Value *count = find(kSplitCount), *no = find(kSplitNo), *n_tensors = find(kSplitTensors);
  if (!count) return std::optional<SplitKeys>();
  if (count->type() != Type::u16) return wrong(kSplitCount, count, "a u16");
  if (*count->as_uint() == 0) return std::optional<SplitKeys>();
  if (!no || no->type() != Type::u16 || *no->as_uint() >= *count->as_uint())
    return wrong(kSplitNo, no, fmt::format("a u16 below split.count, {}", *count->as_uint()));
  if (!n_tensors || n_tensors->type() != Type::i32 || *n_tensors->as_int() < 0)
    return wrong(kSplitTensors, n_tensors, "an i32 of at least 0");
  return std::optional<SplitKeys>(
      {uint32_t(*no->as_uint()), uint32_t(*count->as_uint()), uint32_t(*n_tensors->as_uint())});
}

// Names the shards that are not there.
Status check_present(const ShardName& given) {
  std::string missing;
  uint32_t n_missing = 0;
  ShardName name = given;
  for (name.number = 1; name.number <= given.count; ++name.number) {
    struct stat st {};
    if (::stat(name.path().c_str(), &st) == 0) continue;
    if (++n_missing <= 4) missing += (n_missing > 1 ? ", " : "") + name.path();
  }
  if (n_missing == 0) return {};
  if (n_missing > 4) missing += fmt::format(" and {} more", n_missing - 4);
  return fail(Code::not_found, "{}: {} of its {} shards {} missing: {}", given.path(), n_missing, given.count,
              n_missing == 1 ? "is" : "are", missing);
}

}  // namespace

void File::add_shard(Header header, std::span<const uint8_t> bytes, const std::string& path) {
  const uint32_t index = uint32_t(shards_.size());
  shards_.push_back({path, bytes, header.version, header.alignment, header.data_offset});
  for (Tensor& tensor : header.tensors) {
    tensor.shard = index;
    tensors_.push_back(tensor);
  }
  if (index == 0) {
    entries_ = std::move(header.entries);
    strings_ = std::move(header.strings);
  }
}

Status File::finish() {
  const auto key_of = [&](uint32_t i) { return entries_[i].key; };
  const auto name_of = [&](uint32_t i) { return tensors_[i].name; };
  if (const auto twice = keys_.build(uint32_t(entries_.size()), key_of))
    return fail(Code::invalid, "{}: key {} stands twice", shards_.front().path, quote(entries_[*twice].key));
  if (const auto twice = names_.build(uint32_t(tensors_.size()), name_of))
    return fail(Code::invalid, "{}: tensor {} stands twice", shards_[tensors_[*twice].shard].path,
                quote(tensors_[*twice].name));
  for (const Tensor& tensor : tensors_) tensor_bytes_ += tensor.n_bytes;  // all inside files: cannot wrap
  return {};
}

Result<File> File::parse(std::span<const uint8_t> bytes, std::string name) {
  File file;
  file.path_ = std::move(name);
  ARGENT_LET(Header header, parse_header(bytes, file.path_));
  ARGENT_LET(const auto split, read_split_keys(header, file.path_));
  if (split && split->count > 1)
    return fail(Code::invalid, "{}: shard {} of {}; only whole files are read from memory", file.path_, split->no + 1,
                split->count);
  file.add_shard(std::move(header), bytes, file.path_);
  ARGENT_TRY(file.finish());
  return file;
}

Result<File> File::open(const std::string& path) {
  ARGENT_LET(MappedFile map, MappedFile::open(path));
  ARGENT_LET(Header header, parse_header(map.bytes(), path));
  ARGENT_LET(const auto split, read_split_keys(header, path));
  File file;
  file.path_ = path;
  if (split && split->count > 1) {
    ARGENT_TRY(file.open_shards(path, split->no, split->count));
  } else {
    file.add_shard(std::move(header), map.bytes(), path);
    file.maps_.push_back(std::move(map));
  }
  ARGENT_TRY(file.finish());
  return file;
}

// Opens all shards of a model of which the one at `path` was given and says that it is shard `no` of `count`.
Status File::open_shards(const std::string& path, uint32_t no, uint32_t count) {
  const auto given = ShardName::parse(path);
  if (!given)
    return fail(Code::invalid,
                "{}: shard {} of {}, so its name must end in -{:05}-of-{:05}.gguf for the others to be found", path,
                no + 1, count, no + 1, count);
  if (given->count != count)
    return fail(Code::invalid, "{}: its name says {} shards, its key 'split.count' says {}", path, given->count, count);
  ARGENT_TRY(check_present(*given));

  uint32_t n_tensors = 0;
  ShardName name = *given;
  for (uint32_t i = 0; i < count; ++i) {
    name.number = i + 1;
    const std::string shard_path = name.path();
    ARGENT_LET(MappedFile map, MappedFile::open(shard_path));
    ARGENT_LET(Header header, parse_header(map.bytes(), shard_path));
    ARGENT_LET(const auto split, read_split_keys(header, shard_path));
    if (!split || split->count != count)
      return fail(Code::invalid, "{}: a file of {} shard(s), wanted shard {} of {}", shard_path,
                  split ? split->count : 1, i + 1, count);
    if (split->no != i)
      return fail(Code::invalid, "{}: its name says shard {}, its key 'split.no' says {}; were files renamed?",
                  shard_path, i + 1, split->no + 1);
    if (i == 0) n_tensors = split->n_tensors;
    if (split->n_tensors != n_tensors)
      return fail(Code::invalid, "{}: key 'split.tensors.count' is {}, in the first shard {}; are they of one model?",
                  shard_path, split->n_tensors, n_tensors);
    add_shard(std::move(header), map.bytes(), shard_path);
    maps_.push_back(std::move(map));
    if (tensors_.size() > n_tensors) break;
  }
  if (tensors_.size() != n_tensors)
    return fail(Code::invalid, "{}: its {} shards hold {}{} tensors, key 'split.tensors.count' says {}", path, count,
                shards_.size() < count ? "at least " : "", tensors_.size(), n_tensors);
  return {};
}

const Value* File::find(std::string_view key) const {
  const auto i = keys_.find(key, [&](uint32_t i) { return entries_[i].key; });
  return i ? &entries_[*i].value : nullptr;
}

const Tensor* File::find_tensor(std::string_view name) const {
  const auto i = names_.find(name, [&](uint32_t i) { return tensors_[i].name; });
  return i ? &tensors_[*i] : nullptr;
}

std::string ShardName::path() const { return fmt::format("{}-{:05}-of-{:05}.gguf", prefix, number, count); }

std::optional<ShardName> ShardName::parse(std::string_view path) {
  // -00001-of-00003.gguf
  constexpr size_t kTail = 20;
  if (path.size() <= kTail) return std::nullopt;
  const std::string_view tail = path.substr(path.size() - kTail);
  if (tail[0] != '-' || tail.substr(6, 4) != "-of-" || tail.substr(15) != ".gguf") return std::nullopt;
  ShardName name{std::string(path.substr(0, path.size() - kTail)), 0, 0};
  for (size_t i = 0; i < 5; ++i) {
    const char a = tail[1 + i], b = tail[10 + i];
    if (a < '0' || a > '9' || b < '0' || b > '9') return std::nullopt;
    name.number = name.number * 10 + uint32_t(a - '0');
    name.count = name.count * 10 + uint32_t(b - '0');
  }
  if (name.number < 1 || name.number > name.count) return std::nullopt;
  return name;
}

bool File::is_shard(const std::string& path) const {
  std::error_code ignored;
  return std::any_of(shards_.begin(), shards_.end(),
                     [&](const Shard& shard) { return std::filesystem::equivalent(path, shard.path, ignored); });
}

void File::drop_tensor_data() {
  for (Tensor& tensor : tensors_) tensor.data = nullptr;
  for (size_t i = 0; i < maps_.size(); ++i) {
    maps_[i].drop_from(size_t(shards_[i].data_offset));
    shards_[i].bytes = maps_[i].bytes();
  }
}

}  // namespace argent::gguf
