#include "gguf/split.h"

#include <algorithm>

#include "base/checked.h"

namespace argent::gguf {

namespace {

void copy_keys(const File& model, Writer& writer) {
  for (const Entry& entry : model.entries())
    if (entry.key != kSplitNo && entry.key != kSplitCount && entry.key != kSplitTensors)
      writer.set(entry.key, entry.value);
}

// The tensors of each shard: where each begins, and the end.
std::vector<size_t> plan(const File& model, const SplitOptions& options) {
  std::vector<size_t> begins{0};
  uint64_t n_bytes = 0;
  for (size_t i = 0; i < model.tensors().size(); ++i) {
    const uint64_t size = align_up(model.tensors()[i].n_bytes, model.alignment());
    const size_t n = i - begins.back();
    const bool full = (options.max_tensors && n == options.max_tensors) ||
                      (options.max_bytes && n > 0 && n_bytes + size > options.max_bytes);
    if (full) {
      begins.push_back(i);
      n_bytes = 0;
    }
    n_bytes += size;
  }
  begins.push_back(model.tensors().size());
  return begins;
}

}  // namespace

Result<std::vector<std::string>> split(const File& model, const SplitOptions& options, const std::string& prefix,
                                       const Progress& progress) {
  const std::vector<size_t> begins = plan(model, options);
  const uint32_t count = uint32_t(begins.size() - 1);
  if (count > kMaxShards)
    return fail(Code::invalid, "{}: would be {} shards, at most {} are possible; raise the limit of a shard",
                model.path(), count, kMaxShards);

  std::vector<OutputFile> files;
  uint64_t done_before = 0;
  for (uint32_t i = 0; i < count; ++i) {
    Writer writer;
    if (i == 0) {
      copy_keys(model, writer);
    } else if (const Value* alignment = model.find("general.alignment")) {
      writer.set("general.alignment", *alignment);
    }
    writer.set(kSplitNo, uint16_t(i));
    writer.set(kSplitCount, uint16_t(count));
    writer.set(kSplitTensors, int32_t(model.tensors().size()));
    uint64_t n_bytes = 0;
    for (size_t t = begins[i]; t < begins[i + 1]; ++t) {
      writer.add_tensor(model.tensors()[t]);
      n_bytes += model.tensors()[t].n_bytes;
    }
    ARGENT_LET(OutputFile file, OutputFile::create(ShardName{prefix, i + 1, count}.path()));
    Progress of_all;
    if (progress) of_all = [&](uint64_t done, uint64_t) { return progress(done_before + done, model.tensor_bytes()); };
    ARGENT_TRY(writer.write_to(file, of_all));
    ARGENT_TRY(file.close());
    files.push_back(std::move(file));
    done_before += n_bytes;
  }

  std::vector<std::string> paths;
  for (OutputFile& file : files) {
    ARGENT_TRY(file.rename());
    paths.push_back(file.path());
  }
  return paths;
}

Status merge(const File& model, const std::string& path, const Progress& progress) {
  Writer writer;
  copy_keys(model, writer);
  for (const Tensor& tensor : model.tensors()) writer.add_tensor(tensor);
  return writer.write(path, progress);
}

}  // namespace argent::gguf
