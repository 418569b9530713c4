// Products for many tokens by simdgroup_matrix: a threadgroup of 128 threads computes 32 tokens by 64 rows of the
// weights, 32 columns at a step. Weights are decoded to half on the way to threadgroup memory, activations rounded to
// half; sums are floats. Columns are a multiple of 32. Weights of F32 and BF16 beyond 65504 become infinite: the host
// takes mul_mv for such.
//
// Activations beyond 65504 are there in some models, in few tokens (often the first). Threads keep the largest that
// they stage; a tile that has such a one is computed anew, with those tokens scaled by a power of two, and its sums
// scaled back. All others pay for a vote: a barrier and 528 bytes of threadgroup memory.
//
// The last tile takes up to 40 tokens, so that a few more than a multiple of 32 do not read and decode the weights once
// more; of a tile with fewer, groups of 8 tokens that it lacks are neither loaded nor multiplied. A SIMD-group has 16
// rows by all tokens: whatever their number, the four have the same work.
//
// glu_mm is the gated feed-forward y = act(x Wg^T) * (x Wu^T): the 64 rows of a tile are 32 of gate and the same 32 of
// up, which meet in the SIMD-group that has both.
//
// Grid: x of mul_mm_token_tiles(tokens), y of rows / 64 threadgroups (glu_mm: 32), rounded up: tiles of the same
// weights run side by side, so that these come from memory once.
//
// threadgroup(0): 6656 bytes, the tiles of a step; at the end 2048 for sums of tiles that stick out of y, and behind
// them votes and what tokens are scaled back by.
#include "backends/metal/kernels/activation.h"
#include "backends/metal/kernels/args.h"
#include "backends/metal/kernels/dots.h"
#include "backends/metal/kernels/weights.h"

using namespace metal;
using namespace argent;

MTL_FC(uint, kFormatGate, 20);  // ids of quant/formats.def
MTL_FC(uint, kFormatUp, 21);
MTL_FC(uint, kGluAct, 22);  // kActSilu, kActGelu

// 8 x 8 pieces lie one after the other, so that a matrix load reads 128 bytes in a row: piece (k / 8, r / 8), then r,
// then k.
inline uint mul_mm_piece(uint r, uint k, uint rows) { return (k / 8 * (rows / 8) + r / 8) * 64 + r % 8 * 8; }

// Groups of 8 tokens of the tile that begins at a token.
inline uint mul_mm_fragments(uint tokens, uint token0) {
  const uint left = tokens - token0;
  return left > 40 ? 4 : (left + 7) / 8;
}

// Eight weights to the tile.
inline void stage_weights(threadgroup half* tile_w, uint row, uint k, float4 low, float4 high) {
  threadgroup half4* to = reinterpret_cast<threadgroup half4*>(tile_w + mul_mm_piece(row, k, 64));
  to[0] = half4(low);
  to[1] = half4(high);
}

// What a thread stages of a token over all columns: the largest magnitude, and what all of it is multiplied by.
struct Staged {
  float most;
  float scale;
};

// Eight activations of a token to the tile.
inline void stage_token(threadgroup half* tile_x, uint token, uint k, device const float* x, thread Staged& staged) {
  device const float4* from = reinterpret_cast<device const float4*>(x);
  threadgroup half4* to = reinterpret_cast<threadgroup half4*>(tile_x + mul_mm_piece(token, k, 40));
  const float4 low = from[0];
  const float4 high = from[1];
  const float4 large = max(fabs(low), fabs(high));
  staged.most = max(staged.most, max(max(large.x, large.y), max(large.z, large.w)));
  to[0] = half4(low * staged.scale);
  to[1] = half4(high * staged.scale);
}

// Activations of 32 columns, from column k0 on: a thread stages eight of a token, and of a fifth group's (more).
inline void stage_tokens(constant MatmulArgs& args, threadgroup half* tile_x, device const float* x, uint token0,
                         uint fragments, uint k0, uint index, thread Staged& staged, thread Staged& staged_more) {
  const uint token = index / 4;
  const uint more = token + 32;
  const uint k = index % 4 * 8;
  if (token < 8 * fragments) {  // not mutated: more is loaded, and not used
    stage_token(tile_x, token, k, x + ulong(min(token0 + token, args.tokens - 1)) * args.x_stride + k0 + k, staged);
  }
  if (more < 8 * fragments) {
    stage_token(tile_x, more, k, x + ulong(min(token0 + more, args.tokens - 1)) * args.x_stride + k0 + k, staged_more);
  }
}

// Behind the barrier of the last step: whether something staged in the threadgroup is beyond half's range.
inline bool beyond_half(float most, threadgroup float* behind, uint simdgroup, uint lane) {
  const float voted = simd_max(most);
  if (lane == 0) {
    behind[simdgroup] = voted;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return simd_max(behind[lane % 4]) > 65504.0f;
}

// Scales a token that reaches 32768 to between 16384 and that. Four neighbouring lanes stage a token.
inline void scale_token(thread Staged& staged) {
  const float most = max(staged.most, simd_shuffle_xor(staged.most, 1));
  const uint exponent = as_type<uint>(max(most, simd_shuffle_xor(most, 2))) >> 23;
  // 127 is that of 1, 141 of 16384.
  staged.scale = as_type<float>((127 + 141 - max(exponent, 141u)) << 23);  // not mutated: small ones would be scaled up
}

// What sums of a token are multiplied by, exactly.
inline float scale_back(thread const Staged& staged) {
  return as_type<float>((254u << 23) - as_type<uint>(staged.scale));
}

// By token of the tile.
inline void share_scales(thread const Staged& staged, thread const Staged& staged_more, threadgroup float* behind,
                         uint index) {
  if (index % 4 == 0) {
    behind[index / 4] = scale_back(staged);
    behind[index / 4 + 32] = scale_back(staged_more);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
}

// Sums of 8 tokens by 8 rows: 2 i and 2 i + 1 of tokens 8 i on, by the SIMD-group's first and second 8 rows of the
// tile.
struct TileSums {
  simdgroup_float8x8 sum[10];
};

inline void multiply_tiles(threadgroup const half* tile_w, threadgroup const half* tile_x, uint first_row,
                           uint second_row, uint fragments, thread TileSums& sums) {
  simdgroup_half8x8 b[8];
  MTL_UNROLL
  for (uint k = 0; k < 4; k++) {
    simdgroup_load(b[2 * k], tile_w + mul_mm_piece(first_row, 8 * k, 64), 8, 0, true);
    simdgroup_load(b[2 * k + 1], tile_w + mul_mm_piece(second_row, 8 * k, 64), 8, 0, true);
  }
  MTL_UNROLL
  for (uint i = 0; i < 5; i++) {  // a constant bound keeps the sums in registers
    if (i < fragments) {          // the same in the whole threadgroup
      MTL_UNROLL
      for (uint k = 0; k < 4; k++) {
        simdgroup_half8x8 a;
        simdgroup_load(a, tile_x + mul_mm_piece(8 * i, 8 * k, 40), 8);
        simdgroup_multiply_accumulate(sums.sum[2 * i], a, b[2 * k], sums.sum[2 * i]);
        simdgroup_multiply_accumulate(sums.sum[2 * i + 1], a, b[2 * k + 1], sums.sum[2 * i + 1]);
      }
    }
  }
}

template <class Reader>
inline void mul_mm(constant MatmulArgs& args, device const typename Reader::Block* w, device const float* x,
                   device float* y, threadgroup half* tiles, uint3 group, uint index, uint simdgroup, uint lane) {
  threadgroup half* tile_w = tiles;            // 64 rows
  threadgroup half* tile_x = tiles + 64 * 32;  // 40 tokens
  const uint row0 = group.y * 64;
  const uint token0 = group.x * 32;
  const uint fragments = mul_mm_fragments(args.tokens, token0);
  const uint blocks = args.cols / Reader::kElements;
  // Of a step, a thread stages 16 weights of a row.
  const uint w_row = index / 2;
  const uint w_k = index % 2 * 16;
  device const typename Reader::Block* w_blocks = w + ulong(min(row0 + w_row, args.rows - 1)) * blocks;
  const uint first_row = 16 * simdgroup;
  TileSums sums;
  threadgroup float* behind = reinterpret_cast<threadgroup float*>(tiles) + 512;
  Staged staged = {0.0f, 1.0f};
  Staged staged_more = {0.0f, 1.0f};
  bool scaled = false;
  for (;;) {
    MTL_UNROLL
    for (uint i = 0; i < 10; i++) {
      sums.sum[i] = make_filled_simdgroup_matrix<float, 8>(0.0f);
    }
    for (uint k0 = 0; k0 < args.cols; k0 += 32) {
      MTL_UNROLL
      for (uint e = 0; e < 2; e++) {
        const uint k = k0 + w_k + 8 * e;
        float4 low;
        float4 high;
        Reader::eight(w_blocks + k / Reader::kElements, k % Reader::kElements / 8, low, high);
        stage_weights(tile_w, w_row, w_k + 8 * e, low, high);
      }
      stage_tokens(args, tile_x, x, token0, fragments, k0, index, staged, staged_more);
      threadgroup_barrier(mem_flags::mem_threadgroup);
      multiply_tiles(tile_w, tile_x, first_row, first_row + 8, fragments, sums);
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    if (scaled || !beyond_half(max(staged.most, staged_more.most), behind, simdgroup, lane)) {
      break;
    }
    scaled = true;  // these are the same in the whole threadgroup
    scale_token(staged);
    scale_token(staged_more);
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  if (scaled) {  // not mutated: others have scales of 1
    share_scales(staged, staged_more, behind, index);
  }
  threadgroup float* scratch = reinterpret_cast<threadgroup float*>(tiles) + 128 * simdgroup;  // 8 tokens of 16 rows
  device float* to = y + ulong(token0) * args.y_stride + row0 + first_row;
  MTL_UNROLL
  for (uint i = 0; i < 5; i++) {
    if (i < fragments) {  // these are the same in the whole threadgroup
      if (!scaled && row0 + 64 <= args.rows && token0 + 8 * i + 8 <= args.tokens) {
        simdgroup_store(sums.sum[2 * i], to + ulong(8 * i) * args.y_stride, args.y_stride);
        simdgroup_store(sums.sum[2 * i + 1], to + ulong(8 * i) * args.y_stride + 8, args.y_stride);
      } else {
        simdgroup_store(sums.sum[2 * i], scratch, 16);
        simdgroup_store(sums.sum[2 * i + 1], scratch + 8, 16);
        simdgroup_barrier(mem_flags::mem_threadgroup);
        for (uint e = lane; e < 128; e += 32) {
          const uint token = 8 * i + e / 16;
          if (token0 + token < args.tokens && row0 + first_row + e % 16 < args.rows) {
            to[ulong(token) * args.y_stride + e % 16] = scaled ? scratch[e] * behind[token] : scratch[e];
          }
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
      }
    }
  }
}

kernel void glu_mm(constant MatmulArgs& args [[buffer(0)]],            //
                   device const uchar* gate [[buffer(1)]],             //
                   device const uchar* up [[buffer(2)]],               //
                   device const float* x [[buffer(3)]],                //
                   device float* y [[buffer(4)]],                      //
                   threadgroup half* tiles MTL_TG(0),                  //
                   uint3 group [[threadgroup_position_in_grid]],       //
                   uint index [[thread_index_in_threadgroup]],         //
                   uint simdgroup [[simdgroup_index_in_threadgroup]],  //
                   uint lane [[thread_index_in_simdgroup]]) {
  threadgroup half* tile_w = tiles;            // 32 rows of gate, 32 of up
  threadgroup half* tile_x = tiles + 64 * 32;  // 40 tokens
  const uint row0 = group.y * 32;
  const uint token0 = group.x * 32;
  const uint fragments = mul_mm_fragments(args.tokens, token0);
  const uint w_k = index % 2 * 16;
  const uint w_row = min(row0 + index / 2 % 32, args.rows - 1);
  TileSums sums;
  threadgroup float* behind = reinterpret_cast<threadgroup float*>(tiles) + 512;
  Staged staged = {0.0f, 1.0f};
  Staged staged_more = {0.0f, 1.0f};
  bool scaled = false;
  for (;;) {
    MTL_UNROLL
    for (uint i = 0; i < 10; i++) {
      sums.sum[i] = make_filled_simdgroup_matrix<float, 8>(0.0f);
    }
    for (uint k0 = 0; k0 < args.cols; k0 += 32) {
      MTL_UNROLL
      for (uint e = 0; e < 2; e++) {
        const uint k = w_k + 8 * e;
        float4 low;
        float4 high;
        if (simdgroup < 2) {
          eight_of(kFormatGate, gate, w_row, args.cols, (k0 + k) / 8, low, high);
        } else {
          eight_of(kFormatUp, up, w_row, args.cols, (k0 + k) / 8, low, high);
        }
        stage_weights(tile_w, index / 2, k, low, high);
      }
      stage_tokens(args, tile_x, x, token0, fragments, k0, index, staged, staged_more);
      threadgroup_barrier(mem_flags::mem_threadgroup);
      multiply_tiles(tile_w, tile_x, 8 * simdgroup, 32 + 8 * simdgroup, fragments, sums);
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    if (scaled || !beyond_half(max(staged.most, staged_more.most), behind, simdgroup, lane)) {
      break;
    }
    scaled = true;  // these are the same in the whole threadgroup
    scale_token(staged);
    scale_token(staged_more);
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  if (scaled) {  // not mutated: others have scales of 1
    share_scales(staged, staged_more, behind, index);
  }
  threadgroup float* scratch = reinterpret_cast<threadgroup float*>(tiles) + 128 * simdgroup;  // 8 gates, 8 ups
  const uint row = row0 + 8 * simdgroup + lane % 8;
  MTL_UNROLL
  for (uint i = 0; i < 5; i++) {
    if (i < fragments) {  // the same in the whole threadgroup
      simdgroup_store(sums.sum[2 * i], scratch, 16);
      simdgroup_store(sums.sum[2 * i + 1], scratch + 8, 16);
      simdgroup_barrier(mem_flags::mem_threadgroup);
      MTL_UNROLL
      for (uint t0 = 0; t0 < 8; t0 += 4) {
        const uint t = t0 + lane / 8;
        const uint token = token0 + 8 * i + t;
        const float g = scratch[16 * t + lane % 8];
        const float u = scratch[16 * t + 8 + lane % 8];
        if (token < args.tokens && row < args.rows) {
          const float back = scaled ? behind[8 * i + t] : 1.0f;
          y[ulong(token) * args.y_stride + row] = activate(kGluAct, g * back) * (u * back);
        }
      }
      simdgroup_barrier(mem_flags::mem_threadgroup);
    }
  }
}

#define FORMAT(name, NAME, id, elements, bytes)                                                              \
  kernel void mul_mm_##name(                                                                                 \
      constant MatmulArgs& args [[buffer(0)]], device const NAME##Reader::Block* w [[buffer(1)]],            \
      device const float* x [[buffer(2)]], device float* y [[buffer(3)]], threadgroup half* tiles MTL_TG(0), \
      uint3 group [[threadgroup_position_in_grid]], uint index [[thread_index_in_threadgroup]],              \
      uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {          \
    mul_mm<NAME##Reader>(args, w, x, y, tiles, group, index, simdgroup, lane);                               \
  }
#define KNOWN(NAME, id, elements, bytes)
#include "quant/formats.def"
#undef FORMAT
#undef KNOWN
