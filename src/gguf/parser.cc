#include "gguf/parser.h"

#include <algorithm>
#include <numeric>

#include "base/checked.h"

namespace argent::gguf {

namespace {

template <class T>
T load(const uint8_t* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

// The least that a key or a tensor takes in the header: what bounds the counts of a file by its size.
constexpr uint64_t kMinEntryBytes = 8 + 1 + 4 + 1;           // name, type, a value of one byte
constexpr uint64_t kMinTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;  // name, n_dims, one dimension, type, offset

}  // namespace

class Parser {
 public:
  Parser(std::span<const uint8_t> bytes, const std::string& path)
      : path_(path), begin_(bytes.data()), size_(bytes.size()), limit_(std::min(size_, kMaxHeaderBytes)) {}

  Result<Header> run() {
    ARGENT_TRY(read_counts());
    ARGENT_TRY(read_entries());
    ARGENT_TRY(read_alignment());
    ARGENT_TRY(read_tensors());
    ARGENT_TRY(place_tensors());
    ARGENT_TRY(check_concatenated());
    return std::move(header_);
  }

 private:
  bool has(uint64_t n) const { return n <= limit_ - at_; }
  template <class T>
  T take() {
    const T value = load<T>(begin_ + at_);
    at_ += sizeof(T);
    return value;
  }

  // What the parser is reading, for messages: "key 'a.b'", or "key 3 of 24" while its name is not known.
  std::string subject() const {
    if (!name_.empty()) return fmt::format("{} {}", kind_, quote(name_));
    return fmt::format("{} {} of {}", kind_, index_ + 1, count_);
  }
  template <class... Args>
  Error bad(fmt::format_string<Args...> format, Args&&... args) const {
    return fail(Code::invalid, "{}: {} {}", path_, subject(), fmt::format(format, std::forward<Args>(args)...));
  }
  // `need` more bytes do not fit at the current position.
  Error short_of(std::string_view what, uint64_t need) const {
    if (limit_ < size_ && need <= size_ - at_)
      return bad("({}) ends beyond the {} bytes that keys and tensor infos may take", what, kMaxHeaderBytes);
    return bad("({}) needs {} bytes at offset {}, but the file ends at {}; is it truncated?", what, need, at_, size_);
  }

  Status read_counts();
  Status read_name(uint64_t max);
  Status read_entries();
  Status read_value(Value& value);
  Status read_array(Value& value);
  Status read_strings(Value& value);
  Status read_alignment();
  Status read_tensors();
  Status place_tensors();
  Status check_disjoint() const;
  Status check_concatenated() const;

  const std::string& path_;
  const uint8_t* begin_;
  const uint64_t size_;   // of the file
  const uint64_t limit_;  // where the header must end
  uint64_t at_ = 0;
  uint64_t n_tensors_ = 0, n_entries_ = 0, n_strings_ = 0;
  std::string_view kind_, name_;
  uint64_t index_ = 0, count_ = 0;
  Header header_;
};

Status Parser::read_counts() {
  const std::span<const uint8_t> bytes(begin_, size_);
  if (size_ == 0) return fail(Code::invalid, "{}: not a GGUF file: it is empty", path_);
  if (size_ < 4 || std::memcmp(begin_, "GGUF", 4) != 0) {
    if (const auto what = sniff(bytes); !what.empty())
      return fail(Code::invalid, "{}: not a GGUF file: it {}", path_, what);
    const std::string_view magic(reinterpret_cast<const char*>(begin_), std::min<size_t>(size_, 4));
    return fail(Code::invalid, "{}: not a GGUF file: it begins with {}, wanted 'GGUF'", path_, quote(magic));
  }
  if (size_ < 8) return fail(Code::invalid, "{}: truncated: {} bytes, the GGUF header takes 24", path_, size_);
  const uint32_t version = load<uint32_t>(begin_ + 4);
  if ((version & 0xffff) == 0 && version >> 16)
    return fail(Code::unsupported, "{}: a big-endian GGUF file, which is not supported; convert it to little endian",
                path_);
  if (version != 2 && version != 3)
    return fail(Code::unsupported, "{}: GGUF version {}, wanted 2 or 3{}", path_, version,
                version == 1 ? "; convert the original model again" : "");
  if (size_ < 24) return fail(Code::invalid, "{}: truncated: {} bytes, the GGUF header takes 24", path_, size_);
  header_.version = version;
  n_tensors_ = load<uint64_t>(begin_ + 8);
  n_entries_ = load<uint64_t>(begin_ + 16);
  at_ = 24;

  const auto check_count = [&](std::string_view what, uint64_t n, uint64_t max, uint64_t bytes_each) -> Status {
    if (n > max)
      return fail(Code::invalid, "{}: the header claims {} {}, at most {} are accepted", path_, n, what, max);
    if (n > (size_ - at_) / bytes_each)
      return fail(Code::invalid,
                  "{}: the header claims {} {}, which take at least {} bytes each, but only {} bytes follow", path_, n,
                  what, bytes_each, size_ - at_);
    return {};
  };
  ARGENT_TRY(check_count("tensors", n_tensors_, kMaxTensors, kMinTensorBytes));
  ARGENT_TRY(check_count("keys", n_entries_, kMaxKeys, kMinEntryBytes));
  return {};
}

Status Parser::read_name(uint64_t max) {
  name_ = {};
  if (!has(8)) return short_of("length of the name", 8);
  const uint64_t length = take<uint64_t>();
  if (length == 0) return bad("has an empty name");
  if (length > max) return bad("has a name of {} bytes, at most {} are accepted", length, max);
  if (!has(length)) return short_of("name", length);
  name_ = {reinterpret_cast<const char*>(begin_ + at_), size_t(length)};
  at_ += length;
  return {};
}

Status Parser::read_entries() {
  kind_ = "key";
  count_ = n_entries_;
  header_.entries.reserve(n_entries_);
  for (index_ = 0; index_ < n_entries_; ++index_) {
    ARGENT_TRY(read_name(kMaxKeyBytes));
    Entry entry{name_, {}};
    ARGENT_TRY(read_value(entry.value));
    header_.entries.push_back(entry);
  }
  return {};
}

Status Parser::read_value(Value& value) {
  if (!has(4)) return short_of("value type", 4);
  const uint32_t id = take<uint32_t>();
  if (id >= kTypeCount) return bad("has value type {}, wanted 0 to {}", id, kTypeCount - 1);
  const Type type{id};
  value.type_ = value.element_ = type;
  if (type == Type::array) return read_array(value);
  if (type == Type::string) {
    if (!has(8)) return short_of("length of the string", 8);
    const uint64_t length = load<uint64_t>(begin_ + at_);
    if (length > limit_ - at_ - 8) {
      at_ += 8;
      return short_of("string", length);
    }
    value.n_bytes_ = 8 + length;
  } else {
    value.n_bytes_ = fixed_size(type);
    if (!has(value.n_bytes_)) return short_of(type_name(type), value.n_bytes_);
    if (type == Type::boolean && begin_[at_] > 1) return bad("is a bool of value {}, wanted 0 or 1", begin_[at_]);
  }
  value.data_ = begin_ + at_;
  at_ += value.n_bytes_;
  return {};
}

Status Parser::read_array(Value& value) {
  if (!has(12)) return short_of("element type and length of the array", 12);
  const uint32_t id = take<uint32_t>();
  const uint64_t size = take<uint64_t>();
  if (id >= kTypeCount) return bad("is an array of value type {}, wanted 0 to {}", id, kTypeCount - 1);
  const Type element{id};
  if (element == Type::array)
    return fail(Code::unsupported, "{}: {} is an array of arrays, which is not supported", path_, subject());
  value.element_ = element;
  value.size_ = size;
  value.data_ = begin_ + at_;
  if (element == Type::string) return read_strings(value);

  const auto n_bytes = checked_mul(size, fixed_size(element));
  if (!n_bytes) return bad("is an array of {} {}, which exceeds 64 bits of bytes", size, type_name(element));
  if (!has(*n_bytes)) return short_of(fmt::format("{}[{}]", type_name(element), size), *n_bytes);
  if (element == Type::boolean)
    for (uint64_t i = 0; i < size; ++i)
      if (value.data_[i] > 1) return bad("has bool {} of value {}, wanted 0 or 1", i, value.data_[i]);
  value.n_bytes_ = *n_bytes;
  at_ += *n_bytes;
  return {};
}

Status Parser::read_strings(Value& value) {
  const uint64_t size = value.size_;
  if (size > (limit_ - at_) / 8)
    return bad("is an array of {} strings, which take at least 8 bytes each, but only {} bytes follow", size,
               limit_ - at_);
  n_strings_ += size;
  if (n_strings_ > kMaxStrings)
    return bad("brings the strings of the file to {}, at most {} are accepted", n_strings_, kMaxStrings);

  std::vector<uint32_t> starts(size);  // 32 bits: a header is at most kMaxHeaderBytes long
  static_assert(kMaxHeaderBytes <= uint64_t{1} << 32);
  const uint64_t base = at_;
  uint64_t at = at_;
  for (uint64_t i = 0; i < size; ++i) {
    starts[i] = uint32_t(at - base);
    const uint64_t left = limit_ - at;
    const uint64_t length = left >= 8 ? load<uint64_t>(begin_ + at) : 0;
    if (left < 8 || length > left - 8) {
      at_ = left < 8 ? at : at + 8;
      return short_of(fmt::format("string {} of {}", i, size), left < 8 ? 8 : length);
    }
    at += 8 + length;
  }
  value.n_bytes_ = at - base;
  value.strings_ = starts.data();
  header_.strings.push_back(std::move(starts));  // moving a vector leaves its elements where they are
  at_ = at;
  return {};
}

Status Parser::read_alignment() {
  for (const Entry& entry : header_.entries) {
    if (entry.key != "general.alignment") continue;
    const auto n = entry.value.type() == Type::u32 ? entry.value.as_uint() : std::nullopt;
    if (!n || !valid_alignment(*n))
      return fail(Code::invalid, "{}: key 'general.alignment' is {}, wanted a u32, a power of two up to {}", path_,
                  entry.value.describe(), kMaxAlignment);
    header_.alignment = uint32_t(*n);
    return {};  // a second one is refused as a repeated key
  }
  return {};
}

Status Parser::read_tensors() {
  kind_ = "tensor";
  count_ = n_tensors_;
  header_.tensors.reserve(n_tensors_);
  for (index_ = 0; index_ < n_tensors_; ++index_) {
    ARGENT_TRY(read_name(kMaxNameBytes));
    Tensor tensor;
    tensor.name = name_;
    if (!has(4)) return short_of("number of dimensions", 4);
    tensor.n_dims = take<uint32_t>();
    if (tensor.n_dims < 1 || tensor.n_dims > tensor.dims.size())
      return bad("has {} dimensions, wanted 1 to {}", tensor.n_dims, tensor.dims.size());
    const uint64_t rest = 8 * uint64_t{tensor.n_dims} + 4 + 8;
    if (!has(rest)) return short_of("dimensions, type and offset", rest);
    for (uint32_t d = 0; d < tensor.n_dims; ++d) tensor.dims[d] = take<uint64_t>();
    tensor.gguf_type = take<uint32_t>();
    tensor.offset = take<uint64_t>();  // from the start of the data, until place_tensors()
    ARGENT_TRY(resolve_shape(tensor, path_));
    header_.tensors.push_back(tensor);
  }
  return {};
}

Status resolve_shape(Tensor& tensor, const std::string& path) {
  const auto bad = [&](std::string_view what) {
    return fail(Code::invalid, "{}: tensor {} {}", path, quote(tensor.name), what);
  };
  if (tensor.n_dims < 1 || tensor.n_dims > tensor.dims.size())
    return bad(fmt::format("has {} dimensions, wanted 1 to {}", tensor.n_dims, tensor.dims.size()));
  const auto shape = [&] {
    return fmt::format("{}", fmt::join(tensor.dims.data(), tensor.dims.data() + tensor.n_dims, " x "));
  };
  std::optional<uint64_t> n = 1;
  for (uint32_t d = 0; d < tensor.n_dims; ++d) {
    if (tensor.dims[d] == 0) return bad(fmt::format("has shape {}, wanted no dimension of 0", shape()));
    if (n) n = checked_mul(*n, tensor.dims[d]);
  }
  if (!n) return bad(fmt::format("has shape {}, more elements than 64 bits count", shape()));

  const FormatInfo* format = find_format(tensor.gguf_type);
  if (!format)
    return fail(Code::unsupported, "{}: tensor {} has type id {}, which is unknown or retired", path,
                quote(tensor.name), tensor.gguf_type);
  if (tensor.dims[0] % format->block != 0)
    return bad(fmt::format("has rows of {} elements, wanted a multiple of {} for {}", tensor.dims[0], format->block,
                           format->name));
  const auto n_bytes = checked_mul(*n / format->block, format->bytes);
  if (!n_bytes) return bad(fmt::format("has shape {} of {}, more bytes than 64 bits count", shape(), format->name));
  tensor.format = format;
  tensor.n_elements = *n;
  tensor.n_bytes = *n_bytes;
  return {};
}

Status Parser::place_tensors() {
  header_.data_offset = align_up(at_, header_.alignment);
  const Tensor* beyond = nullptr;
  uint64_t wanted = 0;
  for (Tensor& tensor : header_.tensors) {
    name_ = tensor.name;
    if (tensor.offset % header_.alignment != 0)
      return bad("has offset {}, wanted a multiple of the alignment, {}", tensor.offset, header_.alignment);
    const auto offset = checked_add(header_.data_offset, tensor.offset);
    const auto end = offset ? checked_add(*offset, tensor.n_bytes) : std::nullopt;
    if (!end) return bad("has offset {} and {} bytes, whose end exceeds 64 bits", tensor.offset, tensor.n_bytes);
    if (*end > size_ && *end > wanted) beyond = &tensor;
    wanted = std::max(wanted, *end);
    tensor.offset = *offset;
    tensor.data = begin_ + std::min(*offset, size_);
  }
  if (beyond) {
    name_ = beyond->name;
    return bad("takes bytes {} to {}, but the file has {} bytes; is it truncated?", beyond->offset,
               beyond->offset + beyond->n_bytes, size_);
  }
  return check_disjoint();
}

Status Parser::check_disjoint() const {
  const auto& tensors = header_.tensors;
  const auto before = [&](uint32_t a, uint32_t b) { return tensors[a].offset < tensors[b].offset; };
  std::vector<uint32_t> order(tensors.size());
  std::iota(order.begin(), order.end(), 0);
  if (!std::is_sorted(order.begin(), order.end(), before)) std::sort(order.begin(), order.end(), before);
  for (size_t i = 1; i < order.size(); ++i) {
    const Tensor &a = tensors[order[i - 1]], &b = tensors[order[i]];
    if (b.offset < a.offset + a.n_bytes)
      return fail(Code::invalid, "{}: tensor {} at bytes {} to {} overlaps tensor {}, which begins at {}", path_,
                  quote(a.name), a.offset, a.offset + a.n_bytes, quote(b.name), b.offset);
  }
  return {};
}

// Shards joined with cat look like a whole first shard with bytes behind it.
Status Parser::check_concatenated() const {
  uint64_t end = at_;
  for (const Tensor& tensor : header_.tensors) end = std::max(end, tensor.offset + tensor.n_bytes);
  for (const uint64_t at : {end, align_up(end, header_.alignment)}) {
    if (at > size_ || size_ - at < 8 || std::memcmp(begin_ + at, "GGUF", 4) != 0) continue;
    const uint32_t version = load<uint32_t>(begin_ + at + 4);
    if (version < 1 || version > 3) continue;
    return fail(
        Code::invalid,
        "{}: several GGUF files were concatenated: a second one begins at byte {}; keep shards as separate files "
        "or join them with `argent gguf merge`",
        path_, at);
  }
  return {};
}

Result<Header> parse_header(std::span<const uint8_t> bytes, const std::string& path) {
  return Parser(bytes, path).run();
}

}  // namespace argent::gguf
