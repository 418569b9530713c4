#include "quant/formats.h"

#include "quant/walk.h"

namespace argent {
namespace {

template <Format F>
void decode_blocks(const u8* row, float* out, uint64_t n) {
  using W = Walk<F>;
  constexpr uint32_t kBlock = info(F).block, kGroups = kBlock / W::kGroup;
  static_assert(sizeof(typename W::Block) == info(F).bytes, "formats.def and the header disagree");
  for (uint64_t at = 0; at < n; at += kBlock, row += sizeof(typename W::Block)) {
    typename W::Block block;  // a copy, since rows start anywhere in a file
    std::memcpy(&block, row, sizeof block);
    u8 q[kBlock];
    float scale[kGroups], min[kGroups] = {};
    W::quants(block, q);
    W::scales(block, scale, min);
    for (uint32_t g = 0; g < kGroups; g++)
      for (int i = 0; i < W::kGroup; i++)
        out[at + g * W::kGroup + i] = W::value(scale[g], min[g], q[g * W::kGroup + i]);
  }
}

template <>
void decode_blocks<Format::f32>(const u8* row, float* out, uint64_t n) {
  if (n) std::memcpy(out, row, n * sizeof(block_f32));  // an empty row may be null
}

template <>
void decode_blocks<Format::f16>(const u8* row, float* out, uint64_t n) {
  for (uint64_t i = 0; i < n; i++) {
    block_f16 b;
    std::memcpy(&b, row + i * sizeof b, sizeof b);
    out[i] = f16_value(b.bits);
  }
}

template <>
void decode_blocks<Format::bf16>(const u8* row, float* out, uint64_t n) {
  for (uint64_t i = 0; i < n; i++) {
    block_bf16 b;
    std::memcpy(&b, row + i * sizeof b, sizeof b);
    out[i] = bf16_value(b.bits);
  }
}

}  // namespace

void decode_row(Format format, const void* row, float* out, uint64_t n) {
  switch (format) {
#define FORMAT(name, NAME, id, block, bytes) \
  case Format::name:                         \
    return decode_blocks<Format::name>(static_cast<const u8*>(row), out, n);
#define KNOWN(NAME, id, block, bytes)
#include "quant/formats.def"
#undef FORMAT
#undef KNOWN
  }
}

}  // namespace argent
