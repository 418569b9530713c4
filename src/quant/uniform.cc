#include "quant/uniform.h"

#include <cstdlib>

#include "quant/walk.h"

namespace argent {
namespace {

constexpr bool has_blocks(Format format) { return info(format).block > 1; }

template <Format F>
constexpr UniformShape shape_of() {
  if constexpr (has_blocks(F))
    return {Walk<F>::kGroup, Walk<F>::kHasMin, Walk<F>::kZero};
  else
    return {};
}

template <Format F>
void split_blocks(const u8* row, uint64_t n, u8* q, float* scale, float* min) {
  if constexpr (has_blocks(F)) {
    using W = Walk<F>;
    constexpr uint32_t kBlock = info(F).block, kGroups = kBlock / W::kGroup;
    for (uint64_t at = 0; at < n; at += kBlock, row += sizeof(typename W::Block), q += kBlock, scale += kGroups) {
      typename W::Block block;
      std::memcpy(&block, row, sizeof block);
      W::quants(block, q);
      W::scales(block, scale, min);
      if constexpr (W::kSigned)
        for (uint32_t i = 0; i < kBlock; i++) q[i] ^= 128;  // signed byte + 128
      if constexpr (W::kHasMin) {
        if constexpr (W::kMinSubtracted)
          for (uint32_t g = 0; g < kGroups; g++) min[g] = -min[g];
        min += kGroups;
      }
    }
  }
}

}  // namespace

UniformShape uniform_shape(Format format) {
  if (!has_blocks(format)) std::abort();
  switch (format) {
#define FORMAT(name, NAME, id, block, bytes) \
  case Format::name:                         \
    return shape_of<Format::name>();
#define KNOWN(NAME, id, block, bytes)
#include "quant/formats.def"
#undef FORMAT
#undef KNOWN
  }
  std::abort();
}

void uniform_row(Format format, const void* row, uint64_t n, uint8_t* q, float* scale, float* min) {
  if (!has_blocks(format)) std::abort();
  switch (format) {
#define FORMAT(name, NAME, id, block, bytes) \
  case Format::name:                         \
    return split_blocks<Format::name>(static_cast<const u8*>(row), n, q, scale, min);
#define KNOWN(NAME, id, block, bytes)
#include "quant/formats.def"
#undef FORMAT
#undef KNOWN
  }
}

}  // namespace argent
