// Rotary position embedding (Su et al. 2021): a table of cosines and sines once a step, which all layers then use.
//
// rope_table     a thread a pair. Grid {n_rot / 2 / threads.x, rows / threads.y}, both rounded up; threads {32, 4}.
// rope, rope_qk  a thread a unit of a head: the n_rot / 2 pairs, then the `copied` elements; with kRopeFours four of
//                them. Grid {units / threads.x, heads / threads.y, rows}, rounded up, heads being n_head, or n_head +
//                n_head_kv; threads {x, 128 / x}, x the power of two from units on, at most 32: no division, and lanes
//                lie side by side in memory. No threadgroup memory.
//
// A thread reads and writes elements of its own, so y may lie where x lies; `copied` is 0 then.
// kRopeFours wants n_rot a multiple of 8, d_head one of 4, and all buffers at multiples of 16 bytes.
#include "backends/metal/kernels/args_rope.h"
#include "backends/metal/kernels/dialect.h"

using namespace metal;
using namespace argent;

MTL_FC(bool, kRopeInterleaved, 50);  // pairs (0,1), (2,3).. instead of (0,n_rot/2), (1,n_rot/2+1)..
MTL_FC(bool, kRopeFours, 51);

// An f32 angle is off by 0.03 at position 1,000,000. So angles are fractions of a turn in units of 2^-64: whole turns
// fall away in the product, exactly, and f32 comes only after. Cosine and sine are precise ones: the fast ones of Metal
// may be off by 2^-13.
kernel void rope_table(constant RopeTableArgs& args [[buffer(0)]],    //
                       device const int* positions [[buffer(1)]],     // [rows]
                       device const ulong* turns [[buffer(2)]],       // [n_rot / 2], RopeFrequencies::turns
                       device float2* table [[buffer(3)]],            // [rows][n_rot / 2]: cos and sin
                       uint3 position [[thread_position_in_grid]]) {  //
  const uint pairs = args.n_rot / 2;
  if (position.x < pairs && position.y < args.rows) {
    const ulong turn = turns[position.x] * ulong(positions[position.y]);
    const float angle = float(as_type<int>(uint(turn >> 32))) * 1.46291807926715968e-9f;  // pi / 2^31: [-pi, pi)
    table[ulong(position.y) * pairs + position.x] = float2(precise::cos(angle), precise::sin(angle)) * args.magnitude;
  }
}

// One unit of a head. `table` is the row's.
inline void rope_one(constant RopeArgs& args, device const float* table, device const float* x, device float* y,
                     uint unit) {
  const uint pairs = args.n_rot / 2;
  if (unit < pairs) {
    const float2 turn = reinterpret_cast<device const float2*>(table)[unit];
    const uint first = kRopeInterleaved ? 2 * unit : unit;
    const uint second = first + (kRopeInterleaved ? 1 : pairs);
    const float x0 = x[first];
    const float x1 = x[second];
    y[first] = x0 * turn.x - x1 * turn.y;
    y[second] = x0 * turn.y + x1 * turn.x;
  } else if (unit < pairs + args.copied) {
    y[pairs + unit] = x[pairs + unit];
  }
}

// (a, b), (c, d) of v rotated by (cos, sin), (cos, sin) of turn.
inline float4 rotate_two(float4 v, float4 turn) {
  return float4(v.x * turn.x - v.y * turn.y, v.x * turn.y + v.y * turn.x, v.z * turn.z - v.w * turn.w,
                v.z * turn.w + v.w * turn.z);
}

inline void rope_four(constant RopeArgs& args, device const float4* table, device const float4* x, device float4* y,
                      uint unit) {
  const uint units = args.n_rot / 8;
  if (unit < units) {
    const float4 turn0 = table[2 * unit];
    const float4 turn1 = table[2 * unit + 1];
    const uint first = kRopeInterleaved ? 2 * unit : unit;
    const uint second = first + (kRopeInterleaved ? 1 : units);
    const float4 x0 = x[first];
    const float4 x1 = x[second];
    const float4 cos4 = float4(turn0.x, turn0.z, turn1.x, turn1.z);
    const float4 sin4 = float4(turn0.y, turn0.w, turn1.y, turn1.w);
    y[first] = kRopeInterleaved ? rotate_two(x0, turn0) : x0 * cos4 - x1 * sin4;
    y[second] = kRopeInterleaved ? rotate_two(x1, turn1) : x0 * sin4 + x1 * cos4;
  } else if (unit < units + args.copied / 4) {
    y[units + unit] = x[units + unit];
  }
}

inline void rope_head(constant RopeArgs& args, device const float* table, device const float* x, device float* y,
                      uint unit) {
  if (kRopeFours) {
    rope_four(args, reinterpret_cast<device const float4*>(table), reinterpret_cast<device const float4*>(x),
              reinterpret_cast<device float4*>(y), unit);
  } else {
    rope_one(args, table, x, y, unit);
  }
}

kernel void rope(constant RopeArgs& args [[buffer(0)]],         //
                 device const float* table [[buffer(1)]],       // [rows][n_rot]
                 device const float* x [[buffer(2)]],           // [rows][n_head][d_head]
                 device float* y [[buffer(3)]],                 // [rows][n_head][d_head]
                 uint3 position [[thread_position_in_grid]]) {  //
  const uint head = position.y;
  if (head < args.n_head) {
    const ulong first = (ulong(position.z) * args.n_head + head) * args.d_head;
    rope_head(args, table + ulong(position.z) * args.n_rot, x + first, y + first, position.x);
  }
}

// Queries and keys of the same rows.
kernel void rope_qk(constant RopeArgs& args [[buffer(0)]],         //
                    device const float* table [[buffer(1)]],       // [rows][n_rot]
                    device const float* q [[buffer(2)]],           // [rows][n_head][d_head]
                    device const float* k [[buffer(3)]],           // [rows][n_head_kv][d_head]
                    device float* q_out [[buffer(4)]],             // [rows][n_head][d_head]
                    device float* k_out [[buffer(5)]],             // [rows][n_head_kv][d_head]
                    uint3 position [[thread_position_in_grid]]) {  //
  const uint head = position.y;
  device const float* row_table = table + ulong(position.z) * args.n_rot;
  if (head < args.n_head) {
    const ulong first = (ulong(position.z) * args.n_head + head) * args.d_head;
    rope_head(args, row_table, q + first, q_out + first, position.x);
  } else if (head < args.n_head + args.n_head_kv) {
    const ulong first = (ulong(position.z) * args.n_head_kv + head - args.n_head) * args.d_head;
    rope_head(args, row_table, k + first, k_out + first, position.x);
  }
}
