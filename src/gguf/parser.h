// Parses and checks the header of one GGUF file in memory. Internal to the room; the policy is in gguf.h.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "gguf/gguf.h"

namespace argent::gguf {

struct Header {
  uint32_t version = 0;
  uint32_t alignment = kDefaultAlignment;
  uint64_t data_offset = 0;
  std::vector<Entry> entries;
  std::vector<Tensor> tensors;                 // shard is 0
  std::vector<std::vector<uint32_t>> strings;  // what the entries' values point to
};

// Errors name the file as `path`.
Result<Header> parse_header(std::span<const uint8_t> bytes, const std::string& path);

// Checks n_dims, dims and gguf_type of a tensor and sets its format, n_elements and n_bytes.
Status resolve_shape(Tensor& tensor, const std::string& path);

// Whether general.alignment may have this value.
constexpr bool valid_alignment(uint64_t n) { return n > 0 && n <= kMaxAlignment && (n & (n - 1)) == 0; }

// What bytes that do not begin as GGUF seem to be, as the end of a sentence "x is not a GGUF file: it ..."; empty if
// nothing known.
std::string_view sniff(std::span<const uint8_t> bytes);

}  // namespace argent::gguf
