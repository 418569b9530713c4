#include "gguf/writer.h"

#include <algorithm>
#include <cstring>

#include "base/checked.h"
#include "gguf/parser.h"

namespace argent::gguf {

namespace {

constexpr uint64_t kChunkBytes = 16 << 20;  // of tensor data between two calls of Progress

using Bytes = std::vector<uint8_t>;

void append(Bytes& out, const void* data, size_t size) {
  const size_t at = out.size();
  out.resize(at + size);
  if (size) std::memcpy(out.data() + at, data, size);
}
template <class T>
void append(Bytes& out, T value) {
  append(out, &value, sizeof value);
}
void append(Bytes& out, std::string_view text) {
  append(out, uint64_t{text.size()});
  append(out, text.data(), text.size());
}

}  // namespace

Writer::Key& Writer::slot(std::string_view key) {
  auto at = std::find_if(keys_.begin(), keys_.end(), [&](const Key& k) { return k.name == key; });
  if (at == keys_.end()) at = keys_.insert(at, Key{std::string(key), 0, {}});
  at->n_strings = 0;
  at->encoded.clear();
  return *at;
}

void Writer::encode(std::string_view key, Type type, std::optional<ArrayHead> head, const void* data, size_t size) {
  Key& k = slot(key);
  k.encoded.reserve(16 + size);
  append(k.encoded, uint32_t(type));
  if (head) {
    append(k.encoded, uint32_t(head->element));
    append(k.encoded, head->size);
    if (head->element == Type::string) k.n_strings = head->size;
  }
  append(k.encoded, data, size);
}

void Writer::set(std::string_view key, std::string_view value) {
  Bytes& out = slot(key).encoded;
  append(out, uint32_t(Type::string));
  append(out, value);
}

void Writer::set(std::string_view key, const Value& value) {
  std::optional<ArrayHead> head;
  if (value.is_array()) head = {value.element_type(), value.size()};
  encode(key, value.type(), head, value.raw().data(), value.raw().size());
}

void Writer::set_strings(std::string_view key, std::span<const std::string_view> values) {
  Bytes elements;
  for (const std::string_view text : values) append(elements, text);
  encode(key, Type::array, ArrayHead{Type::string, values.size()}, elements.data(), elements.size());
}

void Writer::erase(std::string_view key) {
  keys_.erase(std::remove_if(keys_.begin(), keys_.end(), [&](const Key& k) { return k.name == key; }), keys_.end());
}

void Writer::add_tensor(const Tensor& tensor) {
  add_tensor(tensor.name, std::span(tensor.dims).first(tensor.n_dims), tensor.gguf_type, {tensor.data, tensor.n_bytes});
}

void Writer::add_tensor(std::string_view name, std::span<const uint64_t> dims, uint32_t gguf_type,
                        std::span<const uint8_t> data) {
  Piece piece;
  piece.name = name;
  piece.tensor.n_dims = uint32_t(dims.size());
  std::copy_n(dims.begin(), std::min(dims.size(), piece.tensor.dims.size()), piece.tensor.dims.begin());
  piece.tensor.gguf_type = gguf_type;
  piece.tensor.data = data.data();
  piece.n_given = data.size();
  tensors_.push_back(std::move(piece));
}

Result<uint32_t> Writer::alignment(const std::string& path) const {
  const auto key = std::find_if(keys_.begin(), keys_.end(), [](const Key& k) { return k.name == "general.alignment"; });
  if (key == keys_.end()) return kDefaultAlignment;
  uint32_t field[2] = {};
  if (key->encoded.size() == sizeof field) std::memcpy(field, key->encoded.data(), sizeof field);
  if (field[0] != uint32_t(Type::u32) || !valid_alignment(field[1]))
    return fail(Code::invalid, "{}: key 'general.alignment' must be a u32, a power of two up to {}", path,
                kMaxAlignment);
  return field[1];
}

Status Writer::check_keys(const std::string& path) const {
  if (keys_.size() > kMaxKeys)
    return fail(Code::invalid, "{}: {} keys to write, at most {} are accepted", path, keys_.size(), kMaxKeys);
  uint64_t n_strings = 0;
  for (const Key& key : keys_) {
    if (key.name.empty() || key.name.size() > kMaxKeyBytes)
      return fail(Code::invalid, "{}: key {} has {} bytes, wanted 1 to {}", path, quote(key.name), key.name.size(),
                  kMaxKeyBytes);
    n_strings += key.n_strings;
  }
  if (n_strings > kMaxStrings)
    return fail(Code::invalid, "{}: {} strings in arrays to write, at most {} are accepted", path, n_strings,
                kMaxStrings);
  return {};
}

Status Writer::check_tensors(const std::string& path, std::vector<Tensor>& resolved) const {
  if (tensors_.size() > kMaxTensors)
    return fail(Code::invalid, "{}: {} tensors to write, at most {} are accepted", path, tensors_.size(), kMaxTensors);
  for (const Piece& piece : tensors_) {
    if (piece.name.empty() || piece.name.size() > kMaxNameBytes)
      return fail(Code::invalid, "{}: tensor {} has a name of {} bytes, wanted 1 to {}", path, quote(piece.name),
                  piece.name.size(), kMaxNameBytes);
    Tensor tensor = piece.tensor;
    tensor.name = piece.name;
    ARGENT_TRY(resolve_shape(tensor, path));
    if (piece.n_given != tensor.n_bytes)
      return fail(Code::invalid, "{}: tensor {} has {} bytes of data, its shape takes {}", path, quote(piece.name),
                  piece.n_given, tensor.n_bytes);
    resolved.push_back(tensor);
  }
  NameIndex names;
  if (const auto twice = names.build(uint32_t(resolved.size()), [&](uint32_t i) { return resolved[i].name; }))
    return fail(Code::invalid, "{}: tensor {} stands twice", path, quote(resolved[*twice].name));
  return {};
}

Status Writer::emit(const std::string& path, const Sink& sink, const Progress& progress) const {
  ARGENT_LET(const uint64_t align, alignment(path));
  ARGENT_TRY(check_keys(path));
  std::vector<Tensor> tensors;
  ARGENT_TRY(check_tensors(path, tensors));

  Bytes header;
  append(header, "GGUF", 4);
  append(header, uint32_t{3});
  append(header, uint64_t{tensors.size()});
  append(header, uint64_t{keys_.size()});
  for (const Key& key : keys_) {
    append(header, std::string_view(key.name));
    append(header, key.encoded.data(), key.encoded.size());
  }
  uint64_t offset = 0, total = 0;
  for (const Tensor& tensor : tensors) {
    append(header, tensor.name);
    append(header, tensor.n_dims);
    for (uint32_t d = 0; d < tensor.n_dims; ++d) append(header, tensor.dims[d]);
    append(header, tensor.gguf_type);
    append(header, offset);
    total += tensor.n_bytes;
    offset += align_up(tensor.n_bytes, align);  // data is in memory: cannot wrap
  }
  if (header.size() > kMaxHeaderBytes)
    return fail(Code::invalid, "{}: keys and tensor infos take {} bytes, at most {} are accepted", path, header.size(),
                kMaxHeaderBytes);
  header.resize(align_up(header.size(), align));
  ARGENT_TRY(sink(header));

  const Bytes zeros(align);
  uint64_t done = 0;
  for (const Tensor& tensor : tensors) {
    for (uint64_t at = 0; at < tensor.n_bytes; at += kChunkBytes) {
      const uint64_t n = std::min(kChunkBytes, tensor.n_bytes - at);
      ARGENT_TRY(sink({tensor.data + at, size_t(n)}));
      done += n;
      if (progress && !progress(done, total)) return fail(Code::cancelled, "{}: writing was cancelled", path);
    }
    ARGENT_TRY(sink(std::span(zeros).first(align_up(tensor.n_bytes, align) - tensor.n_bytes)));
  }
  return {};
}

Status Writer::write_to(OutputFile& file, const Progress& progress) const {
  return emit(
      file.path(), [&](std::span<const uint8_t> bytes) { return file.write(bytes); }, progress);
}

Status Writer::write(const std::string& path, const Progress& progress) const {
  ARGENT_LET(OutputFile file, OutputFile::create(path));
  ARGENT_TRY(write_to(file, progress));
  ARGENT_TRY(file.close());
  return file.rename();
}

Result<std::vector<uint8_t>> Writer::to_bytes() const {
  Bytes out;
  const auto sink = [&](std::span<const uint8_t> bytes) -> Status {
    append(out, bytes.data(), bytes.size());
    return {};
  };
  ARGENT_TRY(emit("(memory)", sink, {}));
  return out;
}

}  // namespace argent::gguf
