// The formats that tensors are stored in: ids, block sizes, and decoding a row to floats. The bit layouts and their
// decoders are in one header a format, quant/<name>.h, which CUDA and Metal kernels include as well.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace argent {

// Formats that the engine computes with, in the order of formats.def.
enum class Format : uint8_t {
#define FORMAT(name, NAME, id, block, bytes) name,
#define KNOWN(NAME, id, block, bytes)
#include "quant/formats.def"
#undef FORMAT
#undef KNOWN
};

struct FormatInfo {
  std::string_view name;  // as in files and messages: "Q4_K"
  uint32_t gguf_id;
  uint32_t block;                // elements of a block
  uint32_t bytes;                // bytes of a block
  std::optional<Format> format;  // nothing for a format that is known but not computed with
};

inline constexpr FormatInfo kFormats[] = {
#define FORMAT(name, NAME, id, block, bytes) {#NAME, id, block, bytes, Format::name},
#define KNOWN(NAME, id, block, bytes) {#NAME, id, block, bytes, std::nullopt},
#include "quant/formats.def"
#undef FORMAT
#undef KNOWN
};

constexpr const FormatInfo& info(Format format) { return kFormats[static_cast<size_t>(format)]; }

// The row of a GGUF type id, or null for an id that is unknown or retired (4, 5, 31 to 33, 36 to 38).
constexpr const FormatInfo* find_format(uint32_t gguf_id) {
  for (const FormatInfo& f : kFormats)
    if (f.gguf_id == gguf_id) return &f;
  return nullptr;
}

// Bytes of a row of n elements; n must be a multiple of the block.
constexpr uint64_t row_bytes(Format format, uint64_t n) { return n / info(format).block * info(format).bytes; }

// Decodes n elements (a multiple of the block) of a row to floats, bit-exact with the format's definition.
void decode_row(Format format, const void* row, float* out, uint64_t n);

}  // namespace argent
