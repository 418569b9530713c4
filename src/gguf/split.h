// Models in several files, in the layout of llama.cpp's gguf-split, and what splits and joins them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "gguf/gguf.h"
#include "gguf/writer.h"

namespace argent::gguf {

inline constexpr std::string_view kSplitNo = "split.no";                  // u16, from 0
inline constexpr std::string_view kSplitCount = "split.count";            // u16
inline constexpr std::string_view kSplitTensors = "split.tensors.count";  // i32, of all shards together
inline constexpr uint32_t kMaxShards = 65535;

// <prefix>-00001-of-00003.gguf
struct ShardName {
  std::string prefix;
  uint32_t number = 0;  // from 1
  uint32_t count = 0;

  std::string path() const;
  static std::optional<ShardName> parse(std::string_view path);
};

// A new shard begins when the next tensor would exceed either limit; 0 is no limit. A tensor larger than max_bytes has
// a shard of its own.
struct SplitOptions {
  uint64_t max_tensors = 0;
  uint64_t max_bytes = 0;  // of tensor data with its padding
};

// Writes `model` as shards named after `prefix` and returns their paths. The first carries all keys. All shards appear
// together after the last is written, or none; files of those names are replaced.
Result<std::vector<std::string>> split(const File& model, const SplitOptions& options, const std::string& prefix,
                                       const Progress& progress = {});

// Writes `model`, split or whole, as one file without split.* keys, keys and tensors in their order.
Status merge(const File& model, const std::string& path, const Progress& progress = {});

}  // namespace argent::gguf
