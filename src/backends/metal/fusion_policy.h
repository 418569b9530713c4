// Which fused matrix kernels fit a shape, and where they are worth it. What a kernel cannot do is said by its file;
// where it loses is a measurement or, where marked so, a guess that a measurement on a Mac should replace.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "graph/kv_type.h"
#include "quant/formats.h"

namespace argent::metal {

// The family of product kernels for a number of tokens: mul_mv, mul_mv_tokens, mul_mm and their fusions.
enum class ProductKind : uint8_t { one, few, many };
constexpr ProductKind product_kind(uint32_t tokens) {
  return tokens == 1 ? ProductKind::one : tokens <= 8 ? ProductKind::few : ProductKind::many;
}

// Rows of cols elements are whole blocks of each format, and whole pieces of what the kernels load.
constexpr bool fits_formats(uint32_t cols, ProductKind kind, std::initializer_list<Format> formats) {
  const uint32_t piece = kind == ProductKind::many ? 32 : 8;
  return cols > 0 && std::all_of(formats.begin(), formats.end(),
                                 [&](Format f) { return cols % std::max(piece, info(f).block) == 0; });
}

// Above this, one dispatch for gate and up was slower than two in others' measurements of decode on Apple GPUs.
constexpr uint32_t kGluMaxRows = 16384;

// glu, glu_tokens, glu_mm: act(x Wg^T) * (x Wu^T), each matrix of rows x cols. For many tokens, a tile costs the same
// either way, and only the second pass over the products falls away; its weights are halves, which those of F32 and
// BF16 may exceed.
constexpr bool fuses_glu(uint32_t rows, uint32_t cols, uint32_t tokens, Format gate, Format up) {
  const ProductKind kind = product_kind(tokens);
  const auto fits_half = [](Format f) { return f != Format::f32 && f != Format::bf16; };
  return fits_formats(cols, kind, {gate, up}) &&
         (kind == ProductKind::many ? fits_half(gate) && fits_half(up) : rows <= kGluMaxRows);
}

// qkv, qkv_tokens: for decode only; three dispatches of mul_mm have work enough each.
constexpr bool fuses_qkv(uint32_t cols, uint32_t tokens, Format q, Format k, Format v) {
  const ProductKind kind = product_kind(tokens);
  return kind != ProductKind::many && fits_formats(cols, kind, {q, k, v});
}

struct HeadShape {
  uint32_t n_head, n_head_kv, d_head, d_value, n_rot;
  KvType type_k, type_v;
};

// qkv_rope, qkv_rope_tokens: a threadgroup has a whole head. Also where a model has fewer heads than the GPU cores: by
// the work model (docs/metal-predictions.md) the levels that fusing saves are worth more than the cores that idle.
constexpr bool fuses_qkv_rope(const HeadShape& a, uint32_t cols, uint32_t tokens, Format q, Format k, Format v) {
  const auto fits_head = [](uint32_t d, KvType type) {
    return d > 0 && d <= 256 && d % (type == KvType::q8_0 ? kKvGroup : 4) == 0;
  };
  return fuses_qkv(cols, tokens, q, k, v) && fits_head(a.d_head, a.type_k) && fits_head(a.d_value, a.type_v) &&
         a.n_rot % 2 == 0 && a.n_rot <= a.d_head;
}

}  // namespace argent::metal
