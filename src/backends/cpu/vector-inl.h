// Elementwise ops, norms, rope and the KV cache's writes, compiled once for each instruction set (simd/simd.h says
// how).
#pragma once

#include "backends/cpu/simd/vector_math.h"
#include "backends/cpu/vector.h"

namespace argent::cpu::ARGENT_ISA {

// attention-inl.h
void attention_begin(float* states, uint32_t n_states, uint32_t d_value);
void attention(const AttentionTile& tile, uint32_t split_begin, uint32_t split_end, float* states, uint8_t* scratch);
void attention_merge(float* into, const float* from, uint32_t n_states, uint32_t d_value);
void attention_end(const float* state, float* out, uint32_t d_value);

namespace {

// y[i] = f(x[i])
template <class Function>
SIMD_FN void map(const float* x, float* y, uint64_t n, Function f) {
  uint64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store_all(y + i, f(load_f32(x + i)));
  if (i < n) store_f32(y + i, f(load_part(x + i, int(n - i))), int(n - i));
}

template <class Function>
SIMD_FN void map2(const float* a, const float* b, float* y, uint64_t n, Function f) {
  uint64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store_all(y + i, f(load_f32(a + i), load_f32(b + i)));
  if (i < n) store_f32(y + i, f(load_part(a + i, int(n - i)), load_part(b + i, int(n - i))), int(n - i));
}

void add_kernel(const float* a, const float* b, float* y, uint64_t n) {
  map2(a, b, y, n, [](F32 u, F32 v) SIMD_LAMBDA { return add(u, v); });
}

void mul_kernel(const float* a, const float* b, float* y, uint64_t n) {
  map2(a, b, y, n, [](F32 u, F32 v) SIMD_LAMBDA { return mul(u, v); });
}

void scale_kernel(const float* x, float s, float* y, uint64_t n) {
  const F32 factor = set_f32(s);
  map(x, y, n, [=](F32 v) SIMD_LAMBDA { return mul(v, factor); });
}

void silu_kernel(const float* x, float* y, uint64_t n) {
  map(x, y, n, [](F32 v) SIMD_LAMBDA { return silu_f32(v); });
}

void gelu_kernel(const float* x, float* y, uint64_t n) {
  map(x, y, n, [](F32 v) SIMD_LAMBDA { return gelu_f32(v); });
}

void sigmoid_kernel(const float* x, float* y, uint64_t n) {
  map(x, y, n, [](F32 v) SIMD_LAMBDA { return sigmoid_f32(v); });
}

void softcap_kernel(const float* x, float c, float* y, uint64_t n) {
  if (c == 0) return scale_kernel(x, 1.0f, y, n);
  const F32 cap = set_f32(c), inverse = set_f32(1.0f / c);
  map(x, y, n, [=](F32 v) SIMD_LAMBDA { return softcap_f32(v, cap, inverse); });
}

void silu_mul_kernel(const float* x, const float* u, float* y, uint64_t n) {
  map2(x, u, y, n, [](F32 v, F32 w) SIMD_LAMBDA { return mul(silu_f32(v), w); });
}

void gelu_mul_kernel(const float* x, const float* u, float* y, uint64_t n) {
  map2(x, u, y, n, [](F32 v, F32 w) SIMD_LAMBDA { return mul(gelu_f32(v), w); });
}

// Element i goes to lane i % 16 of sum i / 16 % 4: 64 short chains.
constexpr uint32_t kSumLanes = 64;

// 1 / sqrt(mean(f(i)^2) + eps), where f yields the kLanes floats at i, or the n_part < kLanes last ones.
template <class Read>
SIMD_FN float inverse_rms(uint32_t n, float eps, Read read) {
  F32 sums[4][kWide];
#pragma GCC unroll 4
  for (int s = 0; s < 4; ++s)
#pragma GCC unroll 4
    for (int v = 0; v < kWide; ++v) sums[s][v] = set_f32(0.0f);
  uint32_t i = 0;
  for (; i + kSumLanes <= n; i += kSumLanes)
#pragma GCC unroll 4
    for (int s = 0; s < 4; ++s)
#pragma GCC unroll 4
      for (int v = 0; v < kWide; ++v) {
        const F32 x = read(i + s * 16 + v * kLanes, 0);
        sums[s][v] = fma(x, x, sums[s][v]);
      }
#pragma GCC unroll 4
  for (int s = 0; s < 4; ++s)
#pragma GCC unroll 4
    for (int v = 0; v < kWide; ++v) {
      if (i >= n) continue;
      const F32 x = read(i, n - i < kLanes ? int(n - i) : 0);
      sums[s][v] = fma(x, x, sums[s][v]);
      i += kLanes;
    }
  F32 sum[kWide];
#pragma GCC unroll 4
  for (int v = 0; v < kWide; ++v) sum[v] = add(add(sums[0][v], sums[1][v]), add(sums[2][v], sums[3][v]));
  return 1.0f / root(fold_sum(sum) / float(n) + eps);
}

SIMD_FN void normalize(const float* x, const float* w, float* y, uint32_t n, float inverse) {
  const F32 factor = set_f32(inverse);
  if (w)
    map2(x, w, y, n, [=](F32 v, F32 u) SIMD_LAMBDA { return mul(mul(v, factor), u); });
  else
    map(x, y, n, [=](F32 v) SIMD_LAMBDA { return mul(v, factor); });
}

void rms_norm_kernel(const float* x, const float* w, float* y, uint32_t n, uint32_t group, float eps) {
  for (uint32_t at = 0; at + group <= n; at += group, x += group, y += group) {
    const float inverse = inverse_rms(
        group, eps, [=](uint32_t i, int part) SIMD_LAMBDA { return part ? load_part(x + i, part) : load_f32(x + i); });
    normalize(x, w, y, group, inverse);
  }
}

void add_rms_norm_kernel(const float* a, const float* b, const float* w, float* s, float* y, uint32_t n, uint32_t group,
                         float eps) {
  for (uint32_t at = 0; at + group <= n; at += group, a += group, b += group, s += group, y += group) {
    const float inverse = inverse_rms(group, eps, [=](uint32_t i, int part) SIMD_LAMBDA {
      if (part) {
        const F32 sum = add(load_part(a + i, part), load_part(b + i, part));
        store_f32(s + i, sum, part);
        return sum;
      }
      const F32 sum = add(load_f32(a + i), load_f32(b + i));
      store_all(s + i, sum);
      return sum;
    });
    normalize(s, w, y, group, inverse);
  }
}

// Pairs (a, b) become (a cos - b sin, b cos + a sin). Here they are neighbours, below half a rotation apart.
void rope_pairs(const float* x, const float* table, float* y, uint32_t n_head, uint32_t d_head, uint32_t n_rot) {
  for (uint32_t i = 0; i < n_rot; i += kLanes) {
    const int part = n_rot - i < kLanes ? int(n_rot - i) : 0;
    const F32 cos_sin = part ? load_part(table + i, part) : load_f32(table + i);
    const F32 cos = even_lanes(cos_sin), sin = negate_even(odd_lanes(cos_sin));
    for (uint32_t h = 0; h < n_head; ++h) {
      const uint64_t at = uint64_t(h) * d_head + i;
      const F32 v = part ? load_part(x + at, part) : load_f32(x + at);
      const F32 turned = fma(v, cos, mul(swap_pairs(v), sin));
      if (part)
        store_f32(y + at, turned, part);
      else
        store_all(y + at, turned);
    }
  }
}

void rope_halves(const float* x, const float* table, float* y, uint32_t n_head, uint32_t d_head, uint32_t n_rot) {
  const uint32_t half = n_rot / 2;
  for (uint32_t i = 0; i < half; i += kLanes) {
    const int n = half - i < kLanes ? int(half - i) : kLanes;
    float c[kLanes] = {}, s[kLanes] = {};
    for (int k = 0; k < n; ++k) {
      c[k] = table[2 * (i + k)];
      s[k] = table[2 * (i + k) + 1];
    }
    const F32 cos = load_f32(c), sin = load_f32(s), minus_sin = sub(set_f32(0.0f), sin);
    for (uint32_t h = 0; h < n_head; ++h) {
      const uint64_t at = uint64_t(h) * d_head + i;
      const bool whole = n == kLanes;
      const F32 first = whole ? load_f32(x + at) : load_part(x + at, n);
      const F32 second = whole ? load_f32(x + at + half) : load_part(x + at + half, n);
      store_f32(y + at, fma(first, cos, mul(second, minus_sin)), n);
      store_f32(y + at + half, fma(second, cos, mul(first, sin)), n);
    }
  }
}

void rope_kernel(const float* x, const float* table, float* y, uint32_t n_head, uint32_t d_head, uint32_t n_rot,
                 bool interleaved) {
  (interleaved ? rope_pairs : rope_halves)(x, table, y, n_head, d_head, n_rot);
  if (x == y || n_rot == d_head) return;
  for (uint32_t h = 0; h < n_head; ++h)
    __builtin_memcpy(y + uint64_t(h) * d_head + n_rot, x + uint64_t(h) * d_head + n_rot,
                     (d_head - n_rot) * sizeof(float));
}

// n floats to halves at `to`, `stride` halves apart.
SIMD_FN void store_halves(const float* x, uint32_t n, uint16_t* to, uint32_t stride) {
  for (uint32_t i = 0; i < n; i += kLanes) {
    const int part = n - i < kLanes ? int(n - i) : kLanes;
    const F32 v = part < kLanes ? load_part(x + i, part) : load_f32(x + i);
    if (stride == 1 && part == kLanes) {
      store_half(to + i, v);
      continue;
    }
    uint16_t halves[kLanes];
    store_half(halves, v);
    for (int k = 0; k < part; ++k) to[(i + k) * uint64_t(stride)] = halves[k];
  }
}

// A group of q8_0 by the rule of graph/kv_type.h; the scale as a half.
SIMD_FN uint16_t quantize_kv(const float* x, int8_t* q) {
  const I32 magnitude = set_i32(0x7fffffff);
  I32 most = set_i32(0);
  for (uint32_t i = 0; i < kKvGroup; i += kLanes) most = max_i32(most, and_i32(f32_bits(load_f32(x + i)), magnitude));
  const int32_t bits = reduce_max(most);
  const float amax = __builtin_bit_cast(float, bits);
  const bool finite = bits < 0x7f800000;
  uint16_t scale[kLanes];
  store_half(scale, set_f32(finite ? amax / 127.0f : __builtin_nanf("")));
  const bool none = !finite || scale[0] == 0;
  const F32 inverse = set_f32(none ? 0.0f : 127.0f / amax);
  for (uint32_t i = 0; i < kKvGroup; i += kLanes)
    store_i8(q + i, none ? set_i32(0) : round_i32(mul(load_f32(x + i), inverse)));
  return scale[0];
}

// One position of one head; `head` is the head's part of the block.
SIMD_FN void store_k(KvType type, const float* x, uint32_t d_head, uint8_t* head, uint32_t slot) {
  uint16_t* to = reinterpret_cast<uint16_t*>(head) + slot;
  if (type == KvType::f16) {
    store_halves(x, d_head, to, kKvBlockTokens);
  } else if (type == KvType::bf16) {
    for (uint32_t d = 0; d < d_head; ++d) to[uint64_t(d) * kKvBlockTokens] = bf16_bits(x[d]);
  } else if (type == KvType::f32) {
    for (uint32_t d = 0; d < d_head; ++d) reinterpret_cast<float*>(head)[uint64_t(d) * kKvBlockTokens + slot] = x[d];
  } else {
    uint16_t* scales = to + uint64_t(d_head / 2) * kKvBlockTokens;
    for (uint32_t d = 0; d < d_head; d += kKvGroup) {
      int8_t q[kKvGroup];
      scales[uint64_t(d / kKvGroup) * kKvBlockTokens] = quantize_kv(x + d, q);
      for (uint32_t i = 0; i < kKvGroup; i += 2) __builtin_memcpy(to + uint64_t(d + i) / 2 * kKvBlockTokens, q + i, 2);
    }
  }
}

SIMD_FN void store_v(KvType type, const float* x, uint32_t d_value, uint8_t* head, uint32_t slot) {
  const uint64_t at = uint64_t(slot) * d_value;
  uint16_t* to = reinterpret_cast<uint16_t*>(head) + at;
  if (type == KvType::f16) {
    store_halves(x, d_value, to, 1);
  } else if (type == KvType::bf16) {
    for (uint32_t d = 0; d < d_value; ++d) to[d] = bf16_bits(x[d]);
  } else if (type == KvType::f32) {
    __builtin_memcpy(reinterpret_cast<float*>(head) + at, x, d_value * sizeof(float));
  } else {
    uint16_t* scales = reinterpret_cast<uint16_t*>(head + uint64_t(kKvBlockTokens) * d_value) + slot;
    for (uint32_t d = 0; d < d_value; d += kKvGroup)
      scales[uint64_t(d / kKvGroup) * kKvBlockTokens] = quantize_kv(x + d, reinterpret_cast<int8_t*>(head) + at + d);
  }
}

void kv_store_kernel(const KvLayer& layer, int32_t block, uint32_t slot, const float* k, const float* v) {
  const uint64_t k_bytes = kv_bytes_of(layer.k_type, kKvBlockTokens * layer.d_head);
  const uint64_t v_bytes = kv_bytes_of(layer.v_type, kKvBlockTokens * layer.d_value);
  uint8_t* k_block = layer.k + uint64_t(uint32_t(block)) * layer.k_stride;
  uint8_t* v_block = layer.v + uint64_t(uint32_t(block)) * layer.v_stride;
  for (uint32_t h = 0; h < layer.n_head_kv; ++h) {
    store_k(layer.k_type, k + uint64_t(h) * layer.d_head, layer.d_head, k_block + h * k_bytes, slot);
    store_v(layer.v_type, v + uint64_t(h) * layer.d_value, layer.d_value, v_block + h * v_bytes, slot);
  }
}

constexpr VectorKernels kTable = {
    add_kernel,      mul_kernel,      scale_kernel,    silu_kernel,     gelu_kernel,         sigmoid_kernel,
    softcap_kernel,  silu_mul_kernel, gelu_mul_kernel, rms_norm_kernel, add_rms_norm_kernel, rope_kernel,
    kv_store_kernel, attention_begin, attention,       attention_merge, attention_end,
};

}  // namespace

extern const VectorKernels kVectorKernels;
const VectorKernels kVectorKernels = kTable;

}  // namespace argent::cpu::ARGENT_ISA
