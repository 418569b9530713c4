// Products for many tokens by simdgroup_matrix: a threadgroup of 128 threads computes 32 tokens by 64 rows of the
// weights, 32 columns at a step. Weights are decoded to half on the way to threadgroup memory, activations rounded to
// half; sums are floats. Columns are a multiple of 32. Weights of F32 and BF16 beyond 65504 become infinite: the host
// takes mul_mv for such.
//
// threadgroup(0): 8192 bytes; the tiles of a step, then, of a tile that sticks out of y, the sums.
#include "backends/metal/kernels/args.h"
#include "backends/metal/kernels/weights.h"

using namespace metal;
using namespace argent;

// 8 x 8 pieces lie one after the other, so that a matrix load reads 128 bytes in a row: piece (k / 8, r / 8), then r,
// then k.
inline uint mul_mm_piece(uint r, uint k, uint rows) { return (k / 8 * (rows / 8) + r / 8) * 64 + r % 8 * 8; }

template <class Reader>
inline void mul_mm(constant MatmulArgs& args, device const typename Reader::Block* w, device const float* x,
                   device float* y, threadgroup half* tiles, uint3 group, uint index, uint simdgroup) {
  threadgroup half* tile_w = tiles;            // 64 rows
  threadgroup half* tile_x = tiles + 64 * 32;  // 32 tokens
  const uint row0 = group.x * 64;
  const uint token0 = group.y * 32;
  const uint blocks = args.cols / Reader::kElements;
  // Of its step, a thread stages 16 weights of a row and 8 activations of a token.
  const uint w_row = index / 2;
  const uint w_k = index % 2 * 16;
  const uint x_token = index / 4;
  const uint x_k = index % 4 * 8;
  device const typename Reader::Block* w_blocks = w + ulong(min(row0 + w_row, args.rows - 1)) * blocks;
  device const float* x_row = x + ulong(min(token0 + x_token, args.tokens - 1)) * args.x_stride;
  // A SIMD-group has 16 tokens by 32 rows.
  const uint sum_token = simdgroup / 2 * 16;
  const uint sum_row = simdgroup % 2 * 32;
  simdgroup_float8x8 sums[8];
  for (uint i = 0; i < 8; i++) {
    sums[i] = make_filled_simdgroup_matrix<float, 8>(0.0f);
  }
  for (uint k0 = 0; k0 < args.cols; k0 += 32) {
    MTL_UNROLL
    for (uint e = 0; e < 2; e++) {
      const uint k = k0 + w_k + 8 * e;
      float4 low;
      float4 high;
      Reader::eight(w_blocks + k / Reader::kElements, k % Reader::kElements / 8, low, high);
      threadgroup half4* to = reinterpret_cast<threadgroup half4*>(tile_w + mul_mm_piece(w_row, w_k + 8 * e, 64));
      to[0] = half4(low);
      to[1] = half4(high);
    }
    device const float4* from = reinterpret_cast<device const float4*>(x_row + k0 + x_k);
    threadgroup half4* to = reinterpret_cast<threadgroup half4*>(tile_x + mul_mm_piece(x_token, x_k, 32));
    to[0] = half4(from[0]);
    to[1] = half4(from[1]);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    MTL_UNROLL
    for (uint k = 0; k < 32; k += 8) {
      simdgroup_half8x8 a[2];
      simdgroup_half8x8 b[4];
      MTL_UNROLL
      for (uint i = 0; i < 2; i++) {
        simdgroup_load(a[i], tile_x + mul_mm_piece(sum_token + 8 * i, k, 32), 8);
      }
      MTL_UNROLL
      for (uint j = 0; j < 4; j++) {
        simdgroup_load(b[j], tile_w + mul_mm_piece(sum_row + 8 * j, k, 64), 8, 0, true);
      }
      MTL_UNROLL
      for (uint i = 0; i < 2; i++) {
        MTL_UNROLL
        for (uint j = 0; j < 4; j++) {
          simdgroup_multiply_accumulate(sums[4 * i + j], a[i], b[j], sums[4 * i + j]);
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  if (row0 + 64 <= args.rows && token0 + 32 <= args.tokens) {  // the same in the whole threadgroup
    device float* to = y + ulong(token0 + sum_token) * args.y_stride + row0 + sum_row;
    for (uint i = 0; i < 2; i++) {
      for (uint j = 0; j < 4; j++) {
        simdgroup_store(sums[4 * i + j], to + ulong(8 * i) * args.y_stride + 8 * j, args.y_stride);
      }
    }
    return;
  }
  threadgroup float* scratch = reinterpret_cast<threadgroup float*>(tiles);  // 32 tokens of 64 rows
  for (uint i = 0; i < 2; i++) {
    for (uint j = 0; j < 4; j++) {
      simdgroup_store(sums[4 * i + j], scratch + (sum_token + 8 * i) * 64 + sum_row + 8 * j, 64);
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = index; i < 32 * 64; i += 128) {
    const uint token = token0 + i / 64;
    const uint row = row0 + i % 64;
    if (token < args.tokens && row < args.rows) {
      y[ulong(token) * args.y_stride + row] = scratch[i];
    }
  }
}

#define FORMAT(name, NAME, id, elements, bytes)                                                                       \
  kernel void mul_mm_##name(constant MatmulArgs& args [[buffer(0)]],                                                  \
                            device const NAME##Reader::Block* w [[buffer(1)]], device const float* x [[buffer(2)]],   \
                            device float* y [[buffer(3)]], threadgroup half* tiles MTL_TG(0),                         \
                            uint3 group [[threadgroup_position_in_grid]], uint index [[thread_index_in_threadgroup]], \
                            uint simdgroup [[simdgroup_index_in_threadgroup]]) {                                      \
    mul_mm<NAME##Reader>(args, w, x, y, tiles, group, index, simdgroup);                                              \
  }
#define KNOWN(NAME, id, elements, bytes)
#include "quant/formats.def"
#undef FORMAT
#undef KNOWN
